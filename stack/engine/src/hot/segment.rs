//! The headers of the usual received segment.

use std::ops::Range;

use uwarp_iwarp::framing::CRC_LEN;
use uwarp_memory::kernels::{checksum_sum, crc32c_and_sum, has_one_pass};
use uwarp_tcp::UsualSegment;
use uwarp_wire::checksum::{fold_wide, is_good_ipv4_header};
use uwarp_wire::fixed::{PLAIN, Packet, Segment, V4};
use uwarp_wire::tcp::{self, SeqNumber, TcpFlags, Timestamps};

use crate::link::port::{Buffer, ChecksumStatus};
use crate::link::template::Template;

/// Octets of the aligned timestamp option.
const TIMESTAMPS: usize = 12;

/// What was found of an intact segment.
pub(super) struct Intact {
    /// The CRC32C of its payload, as one FPDU, if that came along with the checksum.
    pub(super) crc: Option<u32>,
}

/// A predicted segment in its frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Predicted {
    pub(super) segment: UsualSegment,
    /// Where its payload is in the frame.
    pub(super) payload: Range<usize>,
}

#[inline(always)]
fn octets<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&frame[at..at + N]);
    array
}

#[inline(always)]
fn u32_at(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets(frame, at))
}

impl Predicted {
    /// Looks at the headers of a buffer's frame, which are of the template's layout: `LINK` octets of the link's header
    /// and `IP` of IP's, without options. `None` unless it is from the peer of the connection with this template, and
    /// intact, and TCP has no flag but ACK and PSH, and no option but timestamps.
    #[inline(always)]
    pub(super) fn of<B: Buffer, const LINK: usize, const IP: usize>(
        buffer: &B,
        frame: &[u8],
        template: &Template,
    ) -> Option<Predicted> {
        let head = Segment::<LINK, IP>::of(frame)?;
        let ip = head.packet();
        if !ip.is_tcp() || !template.is_answered_by::<LINK, IP>(head.octets()) || buffer.segment_count() != 1 {
            return None;
        }
        let (plain, stamped) = (Segment::<LINK, IP>::OPTIONS, Segment::<LINK, IP>::OPTIONS + TIMESTAMPS);
        let (payload_at, timestamps) = match head.control() & !TcpFlags::PSH.bits() & 0xf1ff {
            0x8010 => {
                let option = frame.get(plain..stamped)?;
                if u32_at(option, 0) != 0x0101_080a {
                    return None;
                }
                (stamped, Some(Timestamps { value: u32_at(option, 4), echo: u32_at(option, 8) }))
            }
            0x5010 => (plain, None),
            _ => return None,
        };
        if IP == V4 && !is_good_ipv4_header(head.octets()[LINK..].first_chunk()?) {
            return None;
        }
        let end = LINK + ip.total_len();
        if end < payload_at || end > frame.len() {
            return None;
        }
        let segment = UsualSegment {
            flags: TcpFlags::ACK,
            sequence: head.sequence(),
            acknowledgment: head.acknowledgment(),
            window: head.window(),
            timestamps,
            ecn: ip.ecn(),
            len: (end - payload_at) as u32,
        };
        verify::<B, LINK, IP>(buffer, frame, payload_at..end, false)?;
        Some(Predicted { segment, payload: payload_at..end })
    }

    /// Becomes the segment of a buffer's frame if that differs from the `first` one, which this was made of, in nothing
    /// but sequence number, length and PSH, and is intact: then it is what [`Predicted::of`] would return. If not,
    /// nothing changes. `fpdu`: the octets of an FPDU that the payload may be.
    #[inline(always)]
    pub(super) fn becomes<B: Buffer, const LINK: usize, const IP: usize>(
        &mut self,
        first: &[u8],
        buffer: &B,
        frame: &[u8],
        fpdu: Option<usize>,
    ) -> Option<Intact> {
        let (tcp_at, payload_at) = (LINK + IP, self.payload.start);
        let (first, head) = (first.get(..payload_at)?, frame.get(..payload_at)?);
        if head.len() < tcp_at + tcp::HEADER_LEN || buffer.segment_count() != 1 {
            return None;
        }
        // Not the same: the packet's length, for IPv4 its number and the header's checksum, and TCP's checksum. The
        // urgent pointer means nothing.
        let same_link_and_ip = if IP == V4 {
            octets::<{ PLAIN + 2 }>(first, LINK - PLAIN) == octets(head, LINK - PLAIN)
                && (LINK == PLAIN || octets::<4>(first, 0) == octets(head, 0))
                && u32_at(first, LINK + 6) == u32_at(head, LINK + 6)
                && octets::<8>(first, LINK + 12) == octets(head, LINK + 12)
                && is_good_ipv4_header(&octets(head, LINK))
        } else {
            first[..LINK + 4] == head[..LINK + 4] && first[LINK + 6..tcp_at] == head[LINK + 6..tcp_at]
        };
        // Acknowledgment, flags, and window.
        let push = u64::from(TcpFlags::PSH.bits()) << 16;
        let state = |head: &[u8]| u64::from_be_bytes(octets(head, tcp_at + 8)) & !push;
        let same_ports = u32_at(first, tcp_at) == u32_at(head, tcp_at);
        let plain = tcp_at + tcp::HEADER_LEN;
        let same_options = if payload_at == plain + TIMESTAMPS {
            octets::<TIMESTAMPS>(first, plain) == octets(head, plain)
        } else {
            payload_at == plain
        };
        if !(same_link_and_ip & same_ports & same_options) || state(first) != state(head) {
            return None;
        }
        let end = LINK + Packet::<LINK, IP>::of(head)?.total_len();
        if end < payload_at || end > frame.len() {
            return None;
        }
        let is_fpdu = fpdu == Some(end - payload_at);
        let intact = verify::<B, LINK, IP>(buffer, frame, payload_at..end, is_fpdu)?;
        self.segment.sequence = SeqNumber(u32_at(head, tcp_at + 4));
        self.segment.len = (end - payload_at) as u32;
        self.payload.end = end;
        Some(intact)
    }
}

/// Verifies TCP's checksum of the packet with this payload, at the end of which the packet ends. `is_fpdu`: the payload
/// is an FPDU, whose CRC is wanted if it costs no pass of its own.
#[inline(always)]
fn verify<B: Buffer, const LINK: usize, const IP: usize>(
    buffer: &B,
    frame: &[u8],
    payload: Range<usize>,
    is_fpdu: bool,
) -> Option<Intact> {
    match buffer.received_checksums().tcp {
        ChecksumStatus::Good => Some(Intact { crc: None }),
        ChecksumStatus::Bad => None,
        // The addresses of the pseudo-header directly precede the octets to sum.
        ChecksumStatus::Unknown => {
            let tcp_at = LINK + IP;
            let addresses = Packet::<LINK, IP>::addresses().start;
            let pseudo_header = u64::from(tcp::PROTOCOL) + (payload.end - tcp_at) as u64;
            let (sum, crc) = if is_fpdu
                && has_one_pass()
                && let Some((covered, field)) = frame[payload.clone()].split_last_chunk::<CRC_LEN>()
            {
                // All parts have even lengths, so their sums add up.
                debug_assert!(covered.len().is_multiple_of(2));
                let (crc, sum) = crc32c_and_sum(covered);
                let rest =
                    u64::from(checksum_sum(&frame[addresses..payload.start])) + u64::from(u32::from_be_bytes(*field));
                (rest + u64::from(sum), Some(crc))
            } else {
                (u64::from(checksum_sum(&frame[addresses..payload.end])), None)
            };
            (fold_wide(pseudo_header + sum) == 0xffff).then_some(Intact { crc })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;
    use uwarp_memory::kernels::crc32c;
    use uwarp_wire::ethernet::{EthernetAddress, VlanTag};
    use uwarp_wire::fixed::{TAGGED, V6};
    use uwarp_wire::frame::Path;

    use super::*;
    use crate::link::port::ReceivedChecksums;
    use crate::ports::heap::{HeapBuffer, HeapPool};

    /// Octets of the longest payload.
    const LONGEST: usize = 1000;

    /// A frame with these headers in front of `len` octets.
    fn frame(pool: &HeapPool, template: &Template, segment: &UsualSegment) -> HeapBuffer {
        let mut octets = [0; 128 + LONGEST];
        let (headroom, payload) = octets.split_at_mut(128);
        fastrand::Rng::with_seed(u64::from(segment.sequence.0)).fill(payload);
        let payload = &payload[..segment.len as usize];
        let headers = template.prepend_usual(headroom, segment, Some(checksum_sum(payload))).expect("room for headers");
        let mut buffer = pool.alloc().expect("a buffer");
        buffer.fill(&octets[128 - headers..128 + segment.len as usize]);
        buffer
    }

    /// Looks at `second` behind `first`: in full, and as a segment that is alike.
    fn look<const LINK: usize, const IP: usize>(
        template: &Template,
        first: &HeapBuffer,
        second: &HeapBuffer,
    ) -> (Option<Predicted>, Option<Predicted>) {
        let of = |buffer: &HeapBuffer| Predicted::of::<_, LINK, IP>(buffer, buffer.data(), template);
        let (before, full) = (of(first).expect("a usual segment"), of(second));
        let mut alike = before.clone();
        // Once as what it may be, and once as an FPDU, of which the CRC is given.
        let payload = |alike: &Predicted| second.data()[alike.payload.clone()].to_vec();
        let fpdu = full.as_ref().map(|full| full.payload.len()).filter(|len| *len > 0 && len.is_multiple_of(4));
        let mut again = before.clone();
        let is_alike = alike.becomes::<_, LINK, IP>(first.data(), second, second.data(), None).is_some();
        let intact = again.becomes::<_, LINK, IP>(first.data(), second, second.data(), fpdu);
        assert_eq!((intact.is_some(), &again), (is_alike, &alike));
        if let Some(Intact { crc }) = intact {
            let is_known = second.received_checksums().tcp == ChecksumStatus::Good;
            assert_eq!(crc.is_some(), fpdu.is_some() && !is_known && has_one_pass());
            if let Some(crc) = crc {
                let octets = payload(&again);
                assert_eq!(crc, crc32c(&octets[..octets.len() - CRC_LEN]));
            }
        }
        assert!(is_alike || alike == before, "{alike:?} is no segment");
        (full.filter(|full| full.segment.is_alike(&before.segment)), is_alike.then_some(alike))
    }

    proptest! {
        #[test]
        fn a_segment_that_is_alike_is_found_to_be_what_it_is_in_full(
            v6 in any::<bool>(), tagged in any::<bool>(), stamped in any::<bool>(), ecn in 0u8..4,
            numbers in any::<[u32; 4]>(),
            lengths in (0..128u32, prop_oneof![0..128u32, (118..LONGEST as u32 / 4).prop_map(|words| 4 * words)]),
            push in any::<bool>(), offload in any::<bool>(),
            changed in prop::option::of((prop_oneof![0..96usize, 96..96 + LONGEST], 1u8..=255)),
        ) {
            let (here, there) = (EthernetAddress([2, 0, 0, 0, 0, 1]), EthernetAddress([2, 0, 0, 0, 0, 2]));
            let path = |from, to, host: u8, peer: u8| {
                let address = |number: u8| match v6 {
                    true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into(),
                    false => Ipv4Addr::new(10, 0, 0, number).into(),
                };
                Path { vlan: tagged.then_some(VlanTag(7)), ..Path::new(from, to, address(host), address(peer)) }
            };
            let own = Template::new(&path(here, there, 1, 2), 4000, 5000).expect("a template");
            let peers = Template::new(&path(there, here, 2, 1), 5000, 4000).expect("a template");
            let segment = UsualSegment {
                flags: TcpFlags::ACK,
                sequence: SeqNumber(numbers[0]),
                acknowledgment: SeqNumber(numbers[1]),
                window: numbers[2] as u16,
                timestamps: stamped.then_some(Timestamps { value: numbers[2], echo: numbers[3] }),
                ecn,
                len: lengths.0,
            };
            let flags = if push { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK };
            let next = UsualSegment { flags, sequence: SeqNumber(numbers[3]), len: lengths.1, ..segment };
            let pool = HeapPool::new(2, 256 + LONGEST, 128);
            let (first, mut second) = (frame(&pool, &peers, &segment), frame(&pool, &peers, &next));
            if let Some((place, difference)) = changed {
                let at = second.start() + place % second.data().len();
                second.storage_mut().expect("its only reference")[at] ^= difference;
            }
            if offload {
                let good = ReceivedChecksums { ip: ChecksumStatus::Good, tcp: ChecksumStatus::Good };
                second.set_received_checksums(good);
            }
            let look = match (v6, tagged) {
                (false, false) => look::<PLAIN, V4>,
                (false, true) => look::<TAGGED, V4>,
                (true, false) => look::<PLAIN, V6>,
                (true, true) => look::<TAGGED, V6>,
            };
            let (full, alike) = look(&own, &first, &second);
            // A frame that differs otherwise, as in its hop limit, may be left to the full look.
            let may_be_left = changed.is_some() && alike.is_none();
            prop_assert!(may_be_left || alike.is_some() && alike == full, "alike: {:?}, in full: {:?}", alike, full);
        }
    }
}
