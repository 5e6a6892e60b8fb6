//! The headers of the usual received segment.

use std::ops::Range;

use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::UsualSegment;
use uwarp_wire::checksum::{fold_wide, is_good_ipv4_header};
use uwarp_wire::ipv4;
use uwarp_wire::tcp::{self, SeqNumber, TcpFlags, Timestamps};

use crate::link::port::{Buffer, ChecksumStatus};
use crate::link::template::Template;

/// Octets of the aligned timestamp option.
const TIMESTAMPS: usize = 12;

/// A predicted segment in its frame.
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
fn u16_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(octets(frame, at))
}

#[inline(always)]
fn u32_at(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets(frame, at))
}

impl Predicted {
    /// Looks at the headers of a frame, which are of the template's layout: `LINK` octets of the link's header and `IP` of IP's,
    /// without options. `None` unless it is from the peer of the connection with this template, and intact, and TCP has no
    /// flag but ACK and PSH, and no option but timestamps.
    #[inline(always)]
    pub(super) fn of<B: Buffer, const LINK: usize, const IP: usize>(
        buffer: &B,
        template: &Template,
    ) -> Option<Predicted> {
        let frame = buffer.data();
        let tcp_at = LINK + IP;
        let plain = tcp_at + tcp::HEADER_LEN;
        let stamped = plain + TIMESTAMPS;
        let head = frame.get(..plain)?;
        // EtherType, and version and length of the header; then for IPv4 the flags and offset of fragments, and the protocol.
        let kind = if IP == ipv4::HEADER_LEN {
            u32_at(head, LINK - 2) & 0xffff_ff00 == 0x0800_4500 && u32_at(head, LINK + 6) & 0x3fff_00ff == 6
        } else {
            u32_at(head, LINK - 2) & 0xffff_f000 == 0x86dd_6000 && head[LINK + 6] == tcp::PROTOCOL
        };
        if !kind || !template.is_answered_by::<LINK, IP>(head) || buffer.segment_count() != 1 {
            return None;
        }
        let (payload_at, timestamps) = match u16_at(head, tcp_at + 12) & !TcpFlags::PSH.bits() & 0xf1ff {
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
        let (end, ecn) = if IP == ipv4::HEADER_LEN {
            if !is_good_ipv4_header(head[LINK..].first_chunk()?) {
                return None;
            }
            (LINK + usize::from(u16_at(head, LINK + 2)), head[LINK + 1] & 3)
        } else {
            // The traffic class lies across the first two octets (RFC 8200 §3).
            (tcp_at + usize::from(u16_at(head, LINK + 4)), head[LINK + 1] >> 4 & 3)
        };
        if end < payload_at || end > frame.len() {
            return None;
        }
        let good = match buffer.received_checksums().tcp {
            ChecksumStatus::Good => true,
            ChecksumStatus::Bad => false,
            // The addresses of the pseudo-header directly precede the octets to sum.
            ChecksumStatus::Unknown => {
                let addresses = tcp_at - if IP == ipv4::HEADER_LEN { 8 } else { 32 };
                let pseudo_header = u64::from(tcp::PROTOCOL) + (end - tcp_at) as u64;
                fold_wide(pseudo_header + u64::from(checksum_sum(&frame[addresses..end]))) == 0xffff
            }
        };
        let segment = UsualSegment {
            flags: TcpFlags::ACK,
            sequence: SeqNumber(u32_at(head, tcp_at + 4)),
            acknowledgment: SeqNumber(u32_at(head, tcp_at + 8)),
            window: u16_at(head, tcp_at + 14),
            timestamps,
            ecn,
            len: (end - payload_at) as u32,
        };
        good.then_some(Predicted { segment, payload: payload_at..end })
    }
}
