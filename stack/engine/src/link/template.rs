//! Headers of a connection's segments, written from a template: what never changes is copied, with its checksum known.
//!
//! [`uwarp_wire::frame::prepend_tcp`] writes any header and is what this is tested against; the template knows the two
//! shapes of a segment in an open connection: with the timestamp option alone, and without options. It knows them for
//! both versions of IP, with and without a VLAN tag: four layouts, each with its offsets known when it is compiled.

use uwarp_tcp::UsualSegment;
use uwarp_wire::checksum::{fold_wide, pseudo_header};
use uwarp_wire::fixed::{PLAIN, TAGGED, V4, V6};
use uwarp_wire::frame::Path;
use uwarp_wire::tcp::{self, TcpHeader};

/// Most octets that are the same in every segment: Ethernet with a tag, IPv6, and the two ports.
const FIXED_MAX: usize = 18 + 40 + 4;
/// The kinds and lengths of the aligned timestamp option (RFC 7323, appendix A).
const ALIGNED: u32 = 0x0101_080a;
/// Octets that a [`Pattern`] copies: no fewer than the longest headers.
const PATTERN: usize = 96;
const _: () = assert!(PATTERN >= FIXED_MAX - 4 + tcp::HEADER_LEN + TIMESTAMPS);
/// Octets of the aligned timestamp option.
const TIMESTAMPS: usize = 12;

/// What stands in front of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Ipv4,
    Ipv4Tagged,
    Ipv6,
    Ipv6Tagged,
}

/// The constant part of a connection's headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template {
    octets: [u8; FIXED_MAX],
    layout: Layout,
    /// Sum of the IPv4 header without its length and the ECN bits.
    ip_sum: u32,
    /// Sum of the pseudo-header without its length, and of the ports.
    tcp_sum: u32,
}

/// Headers of a segment, for segments that differ from it in sequence number and flags alone.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// The headers, and what is in front of them.
    octets: [u8; PATTERN],
    /// Octets of the headers.
    headers: usize,
    /// Where TCP's begin in `octets`.
    tcp_at: usize,
    /// TCP's header length, as the half of a word that it stands in beside the flags.
    data_offset: u16,
    /// Octets of the segment's payload.
    len: u32,
    /// Sum of the pseudo-header and of TCP's header without its sequence number and flags.
    sum: u64,
}

impl Pattern {
    /// As [`Template::prepend_usual`]. `None`: the segment is of another length, or the headroom is too small.
    #[inline]
    pub(crate) fn repeat(
        &self,
        headroom: &mut [u8],
        segment: &UsualSegment,
        payload_sum: Option<u32>,
    ) -> Option<usize> {
        if segment.len != self.len {
            return None;
        }
        let room = headroom.last_chunk_mut::<PATTERN>()?;
        *room = self.octets;
        let header = room.get_mut(self.tcp_at..)?.first_chunk_mut::<{ tcp::HEADER_LEN }>()?;
        header[4..8].copy_from_slice(&segment.sequence.0.to_be_bytes());
        let control = self.data_offset | segment.flags.bits();
        header[12..14].copy_from_slice(&control.to_be_bytes());
        // The checksum for a device that completes it is the same.
        if let Some(payload) = payload_sum {
            let sum = self.sum + u64::from(segment.sequence.0) + u64::from(control) + u64::from(payload);
            header[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&(!fold_wide(sum)).to_be_bytes());
        }
        Some(self.headers)
    }
}

/// An array of `octets`, which are as many.
#[inline(always)]
fn copy<const N: usize>(octets: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(octets);
    array
}

impl Template {
    /// The template for a path and our and the peer's port. `None` if the addresses are of two versions.
    pub(crate) fn new(path: &Path, local_port: u16, remote_port: u16) -> Option<Template> {
        let mut header = TcpHeader::new(tcp::TcpFlags::NONE);
        (header.source_port, header.destination_port) = (local_port, remote_port);
        let layout = match (path.source.is_ipv4(), path.vlan.is_some()) {
            (true, false) => Layout::Ipv4,
            (true, true) => Layout::Ipv4Tagged,
            (false, false) => Layout::Ipv6,
            (false, true) => Layout::Ipv6Tagged,
        };
        let mut whole = [0; FIXED_MAX + 16];
        let tcp_at = path.headers_len();
        let checksum = uwarp_wire::frame::TcpChecksum::PseudoHeaderOnly;
        let room = &mut whole[..tcp_at + tcp::HEADER_LEN];
        uwarp_wire::frame::prepend_tcp(room, path, &header, 0, 0, checksum).ok()?;
        let mut octets = [0; FIXED_MAX];
        octets[..tcp_at + 4].copy_from_slice(&whole[..tcp_at + 4]);
        // The length and the checksum are written for each segment.
        let ip_at = if path.vlan.is_some() { TAGGED } else { PLAIN };
        let mut ip_sum = 0;
        if path.source.is_ipv4() {
            octets[ip_at + 2..ip_at + 4].fill(0);
            octets[ip_at + 10..ip_at + 12].fill(0);
            ip_sum = uwarp_wire::checksum::sum(&octets[ip_at..tcp_at]);
        }
        let ports = u64::from(local_port) + u64::from(remote_port);
        let addresses = pseudo_header(path.source, path.destination, tcp::PROTOCOL, 0);
        Some(Template { octets, layout, ip_sum, tcp_sum: narrow(u64::from(addresses) + ports) })
    }

    /// What stands in front of TCP.
    #[inline]
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the headers of a received frame of this layout, without IP options, are of an answer: they have our
    /// hardware address, VLAN, IP address and port as the destination and the peer's address and port as the source.
    /// The sender's hardware address may be any.
    #[inline(always)]
    pub(crate) fn is_answered_by<const LINK: usize, const IP: usize>(&self, head: &[u8]) -> bool {
        let Some(head) = head.get(..LINK + IP + 4) else { return false };
        let (own, tcp_at) = (&self.octets[..LINK + IP + 4], LINK + IP);
        let ports = |octets: &[u8]| u32::from_ne_bytes(copy(&octets[tcp_at..tcp_at + 4]));
        let same_addresses = if IP == V4 {
            let addresses = |octets: &[u8]| u64::from_ne_bytes(copy(&octets[tcp_at - 8..tcp_at]));
            addresses(head) == addresses(own).rotate_left(32)
        } else {
            head[tcp_at - 32..tcp_at - 16] == own[tcp_at - 16..tcp_at]
                && head[tcp_at - 16..tcp_at] == own[tcp_at - 32..tcp_at - 16]
        };
        // A tag's other four bits are a priority.
        let vlan = |octets: &[u8]| u32::from_be_bytes(copy(&octets[LINK - 6..LINK - 2])) & !0xf000;
        let same_vlan = LINK == PLAIN || vlan(head) == vlan(own);
        let same_mac = copy::<6>(&head[..6]) == copy(&own[6..12]);
        same_mac & same_addresses & same_vlan & (ports(head) == ports(own).rotate_left(16))
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
        let segment = UsualSegment {
            flags: header.flags,
            sequence: header.sequence,
            acknowledgment: header.acknowledgment,
            window: header.window,
            timestamps: options.timestamps,
            ecn,
            len: payload_len as u32,
        };
        self.prepend_usual(headroom, &segment, payload_sum)
    }

    /// The same for a segment that is known to have no other option. `None`: the headroom is too small.
    #[inline(always)]
    pub(crate) fn prepend_usual(
        &self,
        headroom: &mut [u8],
        segment: &UsualSegment,
        payload_sum: Option<u32>,
    ) -> Option<usize> {
        if self.layout == Layout::Ipv4 {
            return self.write::<PLAIN, V4>(headroom, segment, payload_sum);
        }
        // By value: the segment need not be in memory for the layout above.
        self.prepend_other(headroom, *segment, payload_sum)
    }

    /// The pattern for segments behind this one, whose headers of so many octets [`Template::prepend_usual`] has
    /// written.
    #[inline]
    pub(crate) fn pattern(&self, headroom: &[u8], headers: usize, segment: &UsualSegment) -> Option<Pattern> {
        let tcp_len = tcp::HEADER_LEN + if segment.timestamps.is_some() { TIMESTAMPS } else { 0 };
        let mut sum = u64::from(self.tcp_sum)
            + tcp_len as u64
            + u64::from(segment.len)
            + u64::from(segment.acknowledgment.0)
            + u64::from(segment.window);
        if let Some(timestamps) = segment.timestamps {
            sum += u64::from(ALIGNED) + u64::from(timestamps.value) + u64::from(timestamps.echo);
        }
        let octets = *headroom.last_chunk()?;
        let data_offset = (tcp_len as u16 / 4) << 12;
        Some(Pattern { octets, headers, tcp_at: PATTERN - tcp_len, data_offset, len: segment.len, sum })
    }

    #[inline(never)]
    fn prepend_other(&self, headroom: &mut [u8], segment: UsualSegment, payload_sum: Option<u32>) -> Option<usize> {
        let segment = &segment;
        match self.layout {
            Layout::Ipv6 => self.write::<PLAIN, V6>(headroom, segment, payload_sum),
            Layout::Ipv6Tagged => self.write::<TAGGED, V6>(headroom, segment, payload_sum),
            _ => self.write::<TAGGED, V4>(headroom, segment, payload_sum),
        }
    }

    #[inline(always)]
    fn write<const LINK: usize, const IP: usize>(
        &self,
        headroom: &mut [u8],
        segment: &UsualSegment,
        payload_sum: Option<u32>,
    ) -> Option<usize> {
        let fixed = LINK + IP + 4;
        let UsualSegment { timestamps, ecn, .. } = *segment;
        let payload_len = segment.len as usize;
        let tcp_len = tcp::HEADER_LEN + if timestamps.is_some() { TIMESTAMPS } else { 0 };
        let length = LINK + IP + tcp_len;
        let start = headroom.len().checked_sub(length)?;
        let out = &mut headroom[start..];
        out[..fixed].copy_from_slice(&self.octets[..fixed]);
        if IP == V4 {
            let total = (IP + tcp_len + payload_len) as u16;
            out[LINK + 1] |= ecn;
            out[LINK + 2..LINK + 4].copy_from_slice(&total.to_be_bytes());
            let ip = !fold_wide(u64::from(self.ip_sum) + u64::from(total) + u64::from(ecn));
            out[LINK + 10..LINK + 12].copy_from_slice(&ip.to_be_bytes());
        } else {
            // The traffic class lies across the first two octets (RFC 8200 §3).
            out[LINK + 1] |= ecn << 4;
            out[LINK + 4..LINK + 6].copy_from_slice(&((tcp_len + payload_len) as u16).to_be_bytes());
        }

        let control = (tcp_len as u16) << 10 | segment.flags.bits();
        let l4_len = (tcp_len + payload_len) as u64;
        let rest = out[fixed..].first_chunk_mut::<16>()?;
        rest[..4].copy_from_slice(&segment.sequence.0.to_be_bytes());
        rest[4..8].copy_from_slice(&segment.acknowledgment.0.to_be_bytes());
        rest[8..10].copy_from_slice(&control.to_be_bytes());
        rest[10..12].copy_from_slice(&segment.window.to_be_bytes());
        let mut sum = u64::from(self.tcp_sum)
            + l4_len
            + u64::from(segment.sequence.0)
            + u64::from(segment.acknowledgment.0)
            + u64::from(control)
            + u64::from(segment.window);
        if let Some(timestamps) = timestamps {
            let place = out[LINK + IP + tcp::HEADER_LEN..].first_chunk_mut::<TIMESTAMPS>()?;
            place[..4].copy_from_slice(&ALIGNED.to_be_bytes());
            place[4..8].copy_from_slice(&timestamps.value.to_be_bytes());
            place[8..].copy_from_slice(&timestamps.echo.to_be_bytes());
            sum += u64::from(ALIGNED) + u64::from(timestamps.value) + u64::from(timestamps.echo);
        }
        let checksum = match payload_sum {
            Some(payload) => !fold_wide(sum + u64::from(payload)),
            // The sum of the pseudo-header alone, as devices expect it: the ports are not part of it.
            None => {
                let at = LINK + IP;
                let ports =
                    [u16::from_be_bytes([out[at], out[at + 1]]), u16::from_be_bytes([out[at + 2], out[at + 3]])];
                let ports = u64::from(ports[0]) + u64::from(ports[1]);
                fold_wide(u64::from(self.tcp_sum) + l4_len + u64::from(!fold_wide(ports)))
            }
        };
        let place = out[LINK + IP + tcp::CHECKSUM_OFFSET..].first_chunk_mut::<4>()?;
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
    use std::net::{Ipv4Addr, Ipv6Addr};
    use uwarp_wire::ethernet::{EthernetAddress, VlanTag};
    use uwarp_wire::frame::{TcpChecksum, prepend_tcp};
    use uwarp_wire::tcp::{SeqNumber, TcpFlags, Timestamps};

    proptest! {
        #[test]
        fn writes_what_the_general_function_writes(
            addresses in any::<[u128; 2]>(), v6 in any::<bool>(), vlan in any::<Option<u16>>(), ports in any::<[u16; 2]>(), macs in any::<[[u8; 6]; 2]>(),
            numbers in any::<[u32; 4]>(), flags in 0u16..512, window in any::<u16>(), stamped in any::<bool>(),
            ecn in 0u8..4, payload_len in 0usize..9000, payload_sum in any::<u32>(), offload in any::<bool>(),
            other in (any::<u32>(), 0u16..512),
        ) {
            // The high octets keep IPv6 addresses out of the IPv4-mapped ones.
            let [source, destination] = addresses.map(|address| match v6 {
                true => Ipv6Addr::from_bits(address >> 8 | 0x20 << 120).into(),
                false => Ipv4Addr::from(address as u32).into(),
            });
            let mut path = Path::new(EthernetAddress(macs[0]), EthernetAddress(macs[1]), source, destination);
            path.vlan = vlan.map(VlanTag);
            let template = Template::new(&path, ports[0], ports[1]).expect("one version");
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
            // The same by the pattern of a segment with another number and other flags.
            let usual = |sequence: u32, flags: u16| UsualSegment {
                flags: TcpFlags::from_bits(flags),
                sequence: SeqNumber(sequence),
                acknowledgment: header.acknowledgment,
                window,
                timestamps: header.options.timestamps,
                ecn,
                len: payload_len as u32,
            };
            let (mut before, mut repeated) = ([0xAA; 128], [0xAA; 128]);
            let first = usual(other.0, other.1);
            let headers = template.prepend_usual(&mut before, &first, sum.map(|sum| sum ^ 1)).expect("it fits");
            let pattern = template.pattern(&before, headers, &first).expect("it fits");
            prop_assert_eq!(pattern.repeat(&mut repeated, &usual(numbers[0], flags), sum), Some(general));
            prop_assert_eq!(repeated, written);
            let longer = UsualSegment { len: payload_len as u32 + 1, ..first };
            prop_assert_eq!(pattern.repeat(&mut repeated, &longer, sum), None);
            // 0 and 0xFFFF are the same number in one's complement.
            let at = 128 - general + path.headers_len() + tcp::CHECKSUM_OFFSET;
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
