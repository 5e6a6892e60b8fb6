//! The headers of the usual received segment.

use std::ops::Range;

use uwarp_memory::kernels::checksum_sum;
use uwarp_tcp::UsualSegment;
use uwarp_wire::checksum::{combine, fold, is_good_ipv4_header};
use uwarp_wire::tcp::{self, SeqNumber, TcpFlags, Timestamps};
use uwarp_wire::{ethernet, ipv4};

use crate::link::port::{Buffer, ChecksumStatus};
use crate::link::template::Template;

const IP: usize = ethernet::HEADER_LEN;
const TCP: usize = IP + ipv4::HEADER_LEN;
/// Octets of all headers without options.
const PLAIN: usize = TCP + tcp::HEADER_LEN;
/// The same with the timestamp option.
const STAMPED: usize = PLAIN + 12;

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
    /// Looks at the headers of a frame: IPv4 without options or VLAN tag, from the peer of the connection with this template,
    /// intact; TCP with no flag but ACK and PSH, and no option but timestamps. `None` for any other frame.
    #[inline(always)]
    pub(super) fn of<B: Buffer>(buffer: &B, template: &Template) -> Option<Predicted> {
        let frame = buffer.data();
        let head: &[u8; PLAIN] = frame.first_chunk()?;
        // EtherType, version and length of the IP header; flags and offset of fragments, protocol.
        let kind = u32_at(head, 12) & 0xffff_ff00 == 0x0800_4500 && u32_at(head, IP + 6) & 0x3fff_00ff == 6;
        if !kind || !template.is_answered_by(head.first_chunk()?) || buffer.segment_count() != 1 {
            return None;
        }
        let (payload_at, timestamps) = match u16_at(head, TCP + 12) & !TcpFlags::PSH.bits() & 0xf1ff {
            0x8010 => {
                let option: &[u8; 12] = frame.get(PLAIN..STAMPED)?.first_chunk()?;
                if u32_at(option, 0) != 0x0101_080a {
                    return None;
                }
                (STAMPED, Some(Timestamps { value: u32_at(option, 4), echo: u32_at(option, 8) }))
            }
            0x5010 => (PLAIN, None),
            _ => return None,
        };
        let end = IP + usize::from(u16_at(head, IP + 2));
        if end < payload_at || end > frame.len() || !is_good_ipv4_header(head[IP..].first_chunk()?) {
            return None;
        }
        let good = match buffer.received_checksums().tcp {
            ChecksumStatus::Good => true,
            ChecksumStatus::Bad => false,
            // The addresses of the pseudo-header directly precede the octets to sum.
            ChecksumStatus::Unknown => {
                let pseudo_header = u32::from(tcp::PROTOCOL) + (end - TCP) as u32;
                fold(combine(pseudo_header, checksum_sum(&frame[TCP - 8..end]))) == 0xffff
            }
        };
        let segment = UsualSegment {
            flags: TcpFlags::ACK,
            sequence: SeqNumber(u32_at(head, TCP + 4)),
            acknowledgment: SeqNumber(u32_at(head, TCP + 8)),
            window: u16_at(head, TCP + 14),
            timestamps,
            ecn: head[IP + 1] & 3,
            len: (end - payload_at) as u32,
        };
        good.then_some(Predicted { segment, payload: payload_at..end })
    }
}
