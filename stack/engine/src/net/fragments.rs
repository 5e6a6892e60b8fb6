//! Fragments received and sent. Usual packets never come here.

use uwarp_memory::kernels::checksum_sum;
use uwarp_wire::frame::{
    FragmentFrame, Frame, Path, Route, TcpChecksum, TcpFrame, classify, emit_fragment, emit_packet, prepend_tcp,
};
use uwarp_wire::icmp::{self, IcmpMessage};
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::ipv6::FRAGMENT_HEADER_LEN;
use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::link::receive::Origin;
use crate::net::Net;
use crate::net::reassembly::{Taken, Whole};

/// Code of Time Exceeded: reassembly timed out (RFC 792).
const REASSEMBLY_TIME: u8 = 1;

impl Net {
    /// Takes a fragment; `octets` is its frame. Returns the frame of the packet that it completes.
    #[cold]
    pub(crate) fn take_fragment<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        frame: &FragmentFrame,
        octets: &[u8],
    ) -> Option<Vec<u8>> {
        if frame.route.destination_mac != link.own_mac {
            common.counters.count_drop(DropReason::NotForUs);
            return None;
        }
        if !self.addresses.is_own(frame.route.destination) {
            common.counters.count_drop(DropReason::WrongAddress);
            return None;
        }
        match self.reassembly.take(common.now, frame, octets) {
            Taken::Waiting => {
                let next = self.reassembly.deadline();
                self.chores_at = [self.chores_at, next].into_iter().flatten().min();
                None
            }
            Taken::Refused => {
                common.counters.count_drop(DropReason::Fragment);
                None
            }
            Taken::Problem { pointer } => {
                common.counters.count_drop(DropReason::Fragment);
                let message = |quoted| Icmp6Message::ParameterProblem { code: 0, pointer, quoted };
                self.send_error6(link, common, &frame.route, octets, message);
                None
            }
            Taken::Whole(whole) => {
                common.counters.reassembled += 1;
                let frame = frame_of(&whole);
                if frame.is_none() {
                    common.counters.count_drop(DropReason::Fragment);
                }
                frame
            }
        }
    }

    /// Drops fragments whose time limit has passed (RFC 1122 §3.3.2, RFC 8200 §4.5).
    pub(crate) fn expire_fragments<P: Port>(&mut self, link: &mut Link<P>, common: &mut Common) {
        while let Some((route, quoted)) = self.reassembly.poll_expired(common.now) {
            common.counters.count_drop(DropReason::Fragment);
            if quoted.is_empty() {
                continue;
            }
            let route = Route { ip_offset: 0, ip_len: quoted.len(), ..route };
            if route.source.is_ipv4() {
                let message = |quoted| IcmpMessage::TimeExceeded { code: REASSEMBLY_TIME, quoted };
                self.send_error4(link, common, &route, &quoted, message);
            } else {
                let message = |quoted| Icmp6Message::TimeExceeded { code: icmp6::REASSEMBLY_TIME, quoted };
                self.send_error6(link, common, &route, &quoted, message);
            }
        }
    }

    /// Sends a message of ICMP or ICMPv6 that is longer than the MTU. No segment is.
    #[cold]
    pub(crate) fn send_in_fragments<P: Port>(
        &mut self,
        link: &mut Link<P>,
        counters: &mut Counters,
        path: &Path,
        packet: &[u8],
    ) {
        let (protocol, fragment_header) =
            if path.source.is_ipv4() { (icmp::PROTOCOL, 0) } else { (icmp6::PROTOCOL, FRAGMENT_HEADER_LEN) };
        let room = usize::from(link.port.capabilities().mtu) - ip_header_len(path) - fragment_header;
        let most = room & !7;
        // RFC 7739: the identification must be unpredictable.
        let identification = self.random.u32(..);
        for (index, piece) in packet.chunks(most).enumerate() {
            let offset = index * most;
            let more = offset + piece.len() < packet.len();
            let sent = link.send_aside(counters, |room| {
                emit_fragment(room, path, protocol, identification, (offset, more), piece).ok()
            });
            if !sent {
                return;
            }
        }
    }
}

/// A segment in our own memory, which is cut into buffers, each with headers of its own.
pub(crate) struct Pieces<'a> {
    path: Path,
    header: TcpHeader,
    ecn: u8,
    payload: &'a [u8],
    /// Where in the payload the next piece begins, unless the last was cut.
    next: Option<usize>,
}

impl Pieces<'_> {
    /// Those of the segment in the frame `octets`; `None` if that does not have all its payload.
    pub(crate) fn of<'a>(frame: &TcpFrame, octets: &'a [u8]) -> Option<Pieces<'a>> {
        let payload = octets.get(frame.payload_offset..frame.payload_offset + frame.payload_len)?;
        let path = Path {
            vlan: frame.vlan,
            ..Path::new(frame.source_mac, frame.destination_mac, frame.flow.remote, frame.flow.local)
        };
        Some(Pieces { path, header: frame.header, ecn: frame.ecn, payload, next: Some(0) })
    }
}

impl<P: Port> Link<P> {
    /// The next piece, in a buffer of its own, which may be of the reserve: a piece may acknowledge what fills the rest
    /// of the pool. `None` also if there is no buffer, which is counted.
    pub(crate) fn next_piece(
        &mut self,
        counters: &mut Counters,
        pieces: &mut Pieces<'_>,
    ) -> Option<(TcpFrame, P::Buffer, Origin)> {
        let at = pieces.next.take()?;
        let most = self.port.capabilities().data_room - self.payload_start;
        let end = pieces.payload.len().min(at + most);
        let is_last = end == pieces.payload.len();
        let may_wait = self.has_free(self.transmit.reserve + 1);
        let Some(mut buffer) = self.alloc() else {
            counters.count_drop(DropReason::NoTransmitBuffer);
            return None;
        };
        let header = header_of_piece(pieces.header, at, is_last);
        let piece = &pieces.payload[at..end];
        let written = write_piece(&mut buffer, self.payload_start, pieces, &header, piece);
        let frame = written.and_then(|()| classify(buffer.data(), buffer.total_len()).ok());
        let Some(Frame::Tcp(frame)) = frame else {
            counters.cannot_be("a piece of a segment is none, or does not fit into a buffer");
            return None;
        };
        pieces.next = (!is_last).then_some(end);
        Some((frame, buffer, Origin::Copy { may_wait }))
    }
}

fn write_piece<B: Buffer>(
    buffer: &mut B,
    start: usize,
    of: &Pieces<'_>,
    header: &TcpHeader,
    piece: &[u8],
) -> Option<()> {
    let storage = buffer.storage_mut()?;
    storage.get_mut(start..start + piece.len())?.copy_from_slice(piece);
    let checksum = TcpChecksum::Full { payload_sum: checksum_sum(piece) };
    let headers = prepend_tcp(&mut storage[..start], &of.path, header, of.ecn, piece.len(), checksum).ok()?;
    buffer.set_range(start - headers, headers + piece.len());
    Some(())
}

/// Turns a reassembled packet into a frame again.
fn frame_of(whole: &Whole) -> Option<Vec<u8>> {
    let Route { source, destination, source_mac, destination_mac, vlan, .. } = whole.route;
    let path = Path {
        vlan,
        hop_limit: whole.hop_limit,
        dscp: whole.traffic_class >> 2,
        ..Path::new(source_mac, destination_mac, source, destination)
    };
    let mut frame = vec![0; path.headers_len() + whole.payload.len()];
    let ecn = whole.traffic_class & 3;
    emit_packet(&mut frame, &path, ecn, whole.protocol, &whole.payload).ok()?;
    Some(frame)
}

/// Whether an upper-layer packet leaves in one piece.
pub(crate) fn fits<P: Port>(link: &Link<P>, path: &Path, l4_len: usize) -> bool {
    ip_header_len(path) + l4_len <= usize::from(link.port.capabilities().mtu)
}

fn ip_header_len(path: &Path) -> usize {
    if path.source.is_ipv4() { uwarp_wire::ipv4::HEADER_LEN } else { uwarp_wire::ipv6::HEADER_LEN }
}

/// The header for the piece that begins `at` octets into a segment's payload. `last`: it is the segment's last piece.
fn header_of_piece(mut header: TcpHeader, at: usize, last: bool) -> TcpHeader {
    if at > 0 {
        // A SYN occupies the sequence number before the first octet.
        let ahead = at as u32 + u32::from(header.flags.contains(TcpFlags::SYN));
        header.sequence += ahead;
        // The pointer counts from the sequence number, which has moved. Zero means none.
        header.urgent = header.urgent.saturating_sub(u16::try_from(ahead).unwrap_or(u16::MAX));
        header.flags = header.flags.without(TcpFlags::SYN);
    }
    if !last {
        header.flags = header.flags.without(TcpFlags::FIN | TcpFlags::PSH);
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_wire::tcp::SeqNumber;

    /// Every piece says of urgent data what the segment said: its end is at the same sequence number, or is told no
    /// more by what lies behind it.
    #[test]
    fn pieces_say_what_the_segment_did() {
        let all = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::PSH | TcpFlags::URG | TcpFlags::ACK;
        let sequence = SeqNumber(u32::MAX - 1000);
        for flags in [all, all.without(TcpFlags::SYN)] {
            let segment = TcpHeader { sequence, urgent: 2500, ..TcpHeader::new(flags) };
            let syn = u32::from(flags.contains(TcpFlags::SYN));
            assert_eq!(header_of_piece(segment, 0, true), segment);
            for (at, urgent) in [(1460, 2500 - 1460 - syn as u16), (2920, 0), (70_000, 0)] {
                let piece = header_of_piece(segment, at, false);
                assert_eq!((piece.sequence, piece.urgent), (sequence + (at as u32 + syn), urgent));
                assert_eq!(piece.flags, TcpFlags::URG | TcpFlags::ACK);
                let last = header_of_piece(segment, at, true);
                assert_eq!(last.flags, all.without(TcpFlags::SYN));
            }
            let first = TcpHeader { flags: flags.without(TcpFlags::FIN | TcpFlags::PSH), ..segment };
            assert_eq!(header_of_piece(segment, 0, false), first);
        }
    }
}
