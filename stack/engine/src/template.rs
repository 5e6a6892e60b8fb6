//! Headers of a connection's segments, written from a template: what never changes is copied, with its checksum known.
//!
//! [`uwarp_wire::frame::prepend_tcp`] writes any header and is what this is tested against; the template knows the two
//! shapes of a segment in an open connection: with the timestamp option alone, and without options.

use uwarp_wire::checksum::{fold, pseudo_header};
use uwarp_wire::frame::Path;
use uwarp_wire::ipv4;
use uwarp_wire::tcp::{self, TcpHeader};

/// Octets that are the same in every segment: Ethernet, IPv4, and the two ports.
const FIXED: usize = 14 + 20 + 4;
/// Where the TCP header begins.
const TCP: usize = 14 + 20;
/// Octets of the aligned timestamp option.
const TIMESTAMPS: usize = 12;

/// The constant part of a connection's headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template {
    octets: [u8; FIXED],
    /// Sum of the IPv4 header without its length and the ECN bits.
    ip_sum: u32,
    /// Sum of the pseudo-header without its length, and of the ports.
    tcp_sum: u32,
}

impl Template {
    /// The template for a path and our and the peer's port. `None` unless it is IPv4 without a VLAN tag.
    pub(crate) fn new(path: &Path, local_port: u16, remote_port: u16) -> Option<Template> {
        let mut header = TcpHeader::new(tcp::TcpFlags::NONE);
        (header.source_port, header.destination_port) = (local_port, remote_port);
        let mut octets = [0; FIXED + 16];
        if path.vlan.is_some() {
            return None;
        }
        let checksum = uwarp_wire::frame::TcpChecksum::PseudoHeaderOnly;
        uwarp_wire::frame::prepend_tcp(&mut octets, path, &header, 0, 0, checksum).ok()?;
        let mut fixed = [0; FIXED];
        fixed.copy_from_slice(&octets[..FIXED]);
        // The length and the checksum are written for each segment.
        fixed[16..18].fill(0);
        fixed[24..26].fill(0);
        let ip_sum = uwarp_wire::checksum::sum(&fixed[14..TCP]);
        let ports = u64::from(local_port) + u64::from(remote_port);
        let addresses = pseudo_header(path.source, path.destination, tcp::PROTOCOL, 0);
        Some(Template { octets: fixed, ip_sum, tcp_sum: narrow(u64::from(addresses) + ports) })
    }

    /// Writes the headers of a segment directly in front of a payload that follows `headroom`; gives their length.
    /// `payload_sum` is the partial sum of the payload, or `None` if the device computes the checksum. `None` is
    /// returned for headers that the template does not know.
    #[inline]
    pub(crate) fn prepend(
        &self,
        headroom: &mut [u8],
        header: &TcpHeader,
        ecn: u8,
        payload_len: usize,
        payload_sum: Option<u32>,
    ) -> Option<usize> {
        let options = &header.options;
        let unusual = options.mss.is_some()
            || options.window_scale.is_some()
            || options.sack_permitted
            || !options.sack.is_empty()
            || header.urgent != 0;
        if unusual {
            return None;
        }
        let tcp_len = tcp::HEADER_LEN + if options.timestamps.is_some() { TIMESTAMPS } else { 0 };
        let length = TCP + tcp_len;
        let start = headroom.len().checked_sub(length)?;
        let out = &mut headroom[start..];
        out[..FIXED].copy_from_slice(&self.octets);
        let total = (ipv4::HEADER_LEN + tcp_len + payload_len) as u16;
        out[15] |= ecn;
        out[16..18].copy_from_slice(&total.to_be_bytes());
        let ip = !fold(narrow(u64::from(self.ip_sum) + u64::from(total) + u64::from(ecn)));
        out[24..26].copy_from_slice(&ip.to_be_bytes());

        let control = (tcp_len as u16) << 10 | header.flags.bits();
        let l4_len = (tcp_len + payload_len) as u64;
        let rest = out[FIXED..].first_chunk_mut::<16>()?;
        rest[..4].copy_from_slice(&header.sequence.0.to_be_bytes());
        rest[4..8].copy_from_slice(&header.acknowledgment.0.to_be_bytes());
        rest[8..10].copy_from_slice(&control.to_be_bytes());
        rest[10..12].copy_from_slice(&header.window.to_be_bytes());
        let mut sum = u64::from(self.tcp_sum)
            + l4_len
            + u64::from(header.sequence.0)
            + u64::from(header.acknowledgment.0)
            + u64::from(control)
            + u64::from(header.window);
        if let Some(timestamps) = options.timestamps {
            const ALIGNED: u32 = 0x0101_080a;
            let place = out[TCP + tcp::HEADER_LEN..].first_chunk_mut::<TIMESTAMPS>()?;
            place[..4].copy_from_slice(&ALIGNED.to_be_bytes());
            place[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
            place[8..].copy_from_slice(&timestamps.echo.to_be_bytes());
            sum += u64::from(ALIGNED) + u64::from(timestamps.value) + u64::from(timestamps.echo);
        }
        let checksum = match payload_sum {
            Some(payload) => !fold(narrow(sum + u64::from(payload))),
            // The sum of the pseudo-header alone, as devices expect it: the ports are not part of it.
            None => {
                let ports = [u16::from_be_bytes([out[34], out[35]]), u16::from_be_bytes([out[36], out[37]])];
                let ports = narrow(u64::from(ports[0]) + u64::from(ports[1]));
                fold(narrow(u64::from(self.tcp_sum) + l4_len + u64::from(!fold(ports))))
            }
        };
        let place = out[TCP + tcp::CHECKSUM_OFFSET..].first_chunk_mut::<4>()?;
        place[..2].copy_from_slice(&checksum.to_be_bytes());
        place[2..].fill(0);
        Some(length)
    }
}

/// A 64-bit sum of words as a partial sum.
#[inline]
fn narrow(total: u64) -> u32 {
    let total = (total & 0xffff_ffff) + (total >> 32);
    ((total & 0xffff_ffff) + (total >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;
    use uwarp_wire::ethernet::EthernetAddress;
    use uwarp_wire::frame::{TcpChecksum, prepend_tcp};
    use uwarp_wire::tcp::{SeqNumber, TcpFlags, Timestamps};

    proptest! {
        #[test]
        fn writes_what_the_general_function_writes(
            addresses in any::<[u32; 2]>(), ports in any::<[u16; 2]>(), macs in any::<[[u8; 6]; 2]>(),
            numbers in any::<[u32; 4]>(), flags in 0u16..512, window in any::<u16>(), stamped in any::<bool>(),
            ecn in 0u8..4, payload_len in 0usize..9000, payload_sum in any::<u32>(), offload in any::<bool>(),
        ) {
            let [source, destination] = addresses.map(|address| Ipv4Addr::from(address).into());
            let path = Path::new(EthernetAddress(macs[0]), EthernetAddress(macs[1]), source, destination);
            let template = Template::new(&path, ports[0], ports[1]).expect("IPv4");
            let mut header = TcpHeader::new(TcpFlags::from_bits(flags));
            (header.source_port, header.destination_port) = (ports[0], ports[1]);
            (header.sequence, header.acknowledgment) = (SeqNumber(numbers[0]), SeqNumber(numbers[1]));
            header.window = window;
            header.options.timestamps = stamped.then_some(Timestamps { value: numbers[2], echo: numbers[3] });
            let (mut wanted, mut written) = ([0xAA; 128], [0xAA; 128]);
            let checksum = if offload { TcpChecksum::PseudoHeaderOnly } else { TcpChecksum::Full { payload_sum } };
            let general = prepend_tcp(&mut wanted, &path, &header, ecn, payload_len, checksum).expect("it fits");
            let sum = (!offload).then_some(payload_sum);
            let fast = template.prepend(&mut written, &header, ecn, payload_len, sum);
            prop_assert_eq!(fast, Some(general));
            // 0 and 0xFFFF are the same number in one's complement.
            let at = 128 - general + TCP + tcp::CHECKSUM_OFFSET;
            let same = |octets: &[u8]| matches!(octets, [0, 0] | [0xff, 0xff]);
            if !(same(&wanted[at..at + 2]) && same(&written[at..at + 2])) {
                prop_assert_eq!(&wanted[at..at + 2], &written[at..at + 2]);
            }
            wanted[at..at + 2].fill(0);
            written[at..at + 2].fill(0);
            prop_assert_eq!(wanted, written);
        }
    }

    #[test]
    fn unusual_headers_are_left_to_the_general_function() {
        let path = Path::new(
            EthernetAddress([2; 6]),
            EthernetAddress([4; 6]),
            Ipv4Addr::new(10, 0, 0, 1).into(),
            Ipv4Addr::new(10, 0, 0, 2).into(),
        );
        let template = Template::new(&path, 1, 2).expect("IPv4");
        let mut header = TcpHeader::new(TcpFlags::SYN);
        header.options.mss = Some(1460);
        assert_eq!(template.prepend(&mut [0; 128], &header, 0, 0, Some(0)), None);
    }
}
