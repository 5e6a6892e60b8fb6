//! Queue pairs of unreliable datagrams (RoCE v2). They have no connection: a posted Send is one frame, complete once it
//! is built, and a received frame takes a receive of the queue pair that it names, or is dropped.

use uwarp_memory::{Access, AccessError, Turn};
use uwarp_tcp::Instant;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::emit_datagram;
use uwarp_wire::roce::{self, Header};
use uwarp_wire::{WireError, ipv4, ipv6};

use crate::api::command::{AsyncEvent, ConnectionEvent, DisconnectReason};
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::datagram::DatagramPath;
use crate::api::stats::DropReason;
use crate::api::work::{Completion, CompletionFlags, GRH_LEN, MAX_INLINE, SendElement, SendFlags, Sge, Status};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::net::Net;
use crate::net::fragments::fits;
use crate::net::neighbours::Resolution;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::{DatagramEnd, QueuePair, Stage};
use crate::rdma::receive_queue::ScatterError;

/// Most datagrams that a queue pair sends in a turn.
const EACH: usize = 32;

/// What datagrams leave by.
pub(crate) struct Way<'a, P: Port> {
    pub(crate) link: &'a mut Link<P>,
    pub(crate) net: &'a mut Net,
    pub(crate) common: &'a mut Common,
}

/// Why a datagram is not sent.
enum Unsent {
    /// The element is no datagram, or its memory is refused.
    Work(Status),
    /// There is no way to the receiver, or no buffer: it is lost.
    Lost,
}

impl From<AccessError> for Unsent {
    fn from(_: AccessError) -> Unsent {
        Unsent::Work(Status::LocalProtection)
    }
}

impl From<WireError> for Unsent {
    fn from(_: WireError) -> Unsent {
        Unsent::Work(Status::LocalLength)
    }
}

impl Rdma {
    /// Makes an idle queue pair one of datagrams, or gives one of these another key. Whoever asks for it knows that the
    /// number is nobody else's.
    pub(crate) fn begin_datagrams(&mut self, counters: &mut Counters, queue_pair: u32, number: u32, key: u32) {
        let Rdma { queue_pairs, datagrams, .. } = self;
        let Some(Some(queue_pair)) = queue_pairs.get_mut(queue_pair as usize) else { return };
        match &mut queue_pair.stage {
            Stage::Datagrams(end) => end.key = key,
            Stage::Idle if queue_pair.connection.is_none() => {
                queue_pair.stage = Stage::Datagrams(DatagramEnd { number, key, sequence: 0 });
                datagrams.enter(number, queue_pair.number);
            }
            // It has failed meanwhile.
            Stage::Error => {}
            Stage::Idle | Stage::Connected | Stage::Deserted => {
                counters.cannot_be("a queue pair with a connection is to send datagrams");
            }
        }
    }

    /// Sends what was posted. Gives the queue pairs that have more, for the next turn.
    pub(crate) fn send_datagrams<P: Port>(&mut self, turn: &Turn<'_>, mut way: Way<'_, P>) -> Vec<u32> {
        let mut rung = self.datagrams.take_rung();
        rung.retain(|number| {
            let mut queue_pair = self.take(Some(*number));
            let more = queue_pair
                .as_deref_mut()
                .is_some_and(|queue_pair| queue_pair.is_of_datagrams() && self.send_of(turn, &mut way, queue_pair));
            self.give(queue_pair);
            more
        });
        rung
    }

    /// Sends what was posted to one queue pair, as far as the device has room. True: there is more.
    fn send_of<P: Port>(&mut self, turn: &Turn<'_>, way: &mut Way<'_, P>, queue_pair: &mut QueuePair) -> bool {
        for _ in 0..EACH {
            let element = match queue_pair.send.peek_next() {
                None => return false,
                Some(_) if !way.link.has_room() => return true,
                Some(Err(_)) => {
                    self.fail_datagrams(way.common, queue_pair, Some(Status::LocalOperation), None);
                    return false;
                }
                Some(Ok(element)) => element,
            };
            match queue_pair.send_datagram(turn, way, &element) {
                Ok(()) | Err(Unsent::Lost) => {
                    let completion = queue_pair.send.complete_next(&element, queue_pair.number);
                    queue_pair.complete_send(&mut self.lanes, completion);
                }
                Err(Unsent::Work(status)) => self.fail_datagrams(way.common, queue_pair, Some(status), None),
            }
            self.look_for_overflow(way.common, queue_pair);
            if !queue_pair.is_of_datagrams() {
                return false;
            }
        }
        queue_pair.send.look_for_next()
    }

    /// Takes a datagram, the whole IP packet of one that is for an own address.
    pub(crate) fn on_datagram(&mut self, turn: &Turn<'_>, common: &mut Common, packet: &[u8]) {
        let (header, payload) = match roce::parse(packet) {
            Ok(parsed) => parsed,
            Err(WireError::InvariantCrc) => return common.counters.count_drop(DropReason::L4Checksum),
            Err(_) => return common.counters.count_drop(DropReason::Malformed),
        };
        let number = self.datagrams.find(header.destination);
        let Some(mut queue_pair) = self.take(number) else {
            return common.counters.count_drop(DropReason::NoQueuePair);
        };
        match self.place_datagram(turn, common, &mut queue_pair, (&header, &grh(packet), payload)) {
            Ok(()) => self.look_for_overflow(common, &mut queue_pair),
            Err(reason) => common.counters.count_drop(reason),
        }
        self.give(Some(queue_pair));
    }

    fn place_datagram(
        &mut self,
        turn: &Turn<'_>,
        common: &mut Common,
        queue_pair: &mut QueuePair,
        (header, grh, payload): (&Header, &[u8; GRH_LEN], &[u8]),
    ) -> Result<(), DropReason> {
        let number = queue_pair.number;
        let Stage::Datagrams(end) = queue_pair.stage else { return Err(DropReason::NoQueuePair) };
        if end.key != header.key {
            return Err(DropReason::WrongKey);
        }
        if !self.begin_receive(queue_pair) {
            return Err(DropReason::NoReceive);
        }
        let length = (GRH_LEN + payload.len()) as u32;
        if queue_pair.receive.room() < length {
            if queue_pair.receive.shared_queue().is_none() {
                queue_pair.receive.put_back();
            } else if let Some(completion) = queue_pair.receive.complete(number, 0, Status::LocalLength) {
                // It has been taken from the others that use the queue.
                queue_pair.complete_receive(&mut self.lanes, completion);
            }
            return Err(DropReason::NoReceive);
        }
        let association = queue_pair.association;
        let place =
            |target: Sge, part: &[u8]| turn.place(association, target.stag, target.offset, part, Access::LOCAL_WRITE);
        let placed = queue_pair.receive.scatter(0, grh, place);
        let placed = placed.and_then(|()| queue_pair.receive.scatter(GRH_LEN as u32, payload, place));
        if let Err(error) = placed {
            let status = match error {
                ScatterError::TooLong => Status::LocalLength,
                ScatterError::Entry(_) => Status::LocalProtection,
            };
            self.fail_datagrams(common, queue_pair, None, Some(status));
            return Ok(());
        }
        let Some(mut completion) = queue_pair.receive.complete(number, length, Status::Success) else {
            common.counters.cannot_be("a datagram was placed that has taken no receive");
            return Ok(());
        };
        completion.flags = CompletionFlags::DATAGRAM;
        completion.immediate = u64::from(header.source) << 32;
        if grh[0] >> 4 == 6 {
            completion.immediate |= Completion::IPV6_DATAGRAM;
        }
        if let Some(data) = header.immediate {
            completion.flags = completion.flags.union(CompletionFlags::IMMEDIATE);
            completion.immediate |= u64::from(data);
        }
        if header.solicited {
            completion.flags = completion.flags.union(CompletionFlags::SOLICITED);
        }
        queue_pair.complete_receive(&mut self.lanes, completion);
        Ok(())
    }

    /// This side's own work is at fault: it gets a status, and all else is flushed.
    #[cold]
    fn fail_datagrams(
        &mut self,
        common: &mut Common,
        queue_pair: &mut QueuePair,
        send: Option<Status>,
        receive: Option<Status>,
    ) {
        let status = send.or(receive).unwrap_or(Status::Fatal);
        self.flush_with(&mut common.counters, queue_pair, send.map(|status| (0, status)), receive);
        self.events.send(AsyncEvent::QueuePairFatal { queue_pair: queue_pair.number, status });
        self.end_datagrams(queue_pair, status, common.now);
    }

    /// A completion did not fit. Nothing is lost, but the queue pair cannot continue.
    fn look_for_overflow(&mut self, common: &mut Common, queue_pair: &mut QueuePair) {
        let Some(queue) = queue_pair.overflowed.take() else { return };
        if queue_pair.stage == Stage::Error {
            return;
        }
        common.counters.completion_overflows += 1;
        self.events.send(AsyncEvent::CompletionQueueOverflow { queue, queue_pair: queue_pair.number });
        self.flush_with(&mut common.counters, queue_pair, None, None);
        queue_pair.overflowed = None;
        self.end_datagrams(queue_pair, Status::CompletionQueueOverflow, common.now);
    }

    fn end_datagrams(&mut self, queue_pair: &mut QueuePair, status: Status, now: Instant) {
        // Who hears of the end may take it for all: what waits for completions is woken first.
        self.lanes.settle();
        queue_pair.report(ConnectionEvent::Disconnected(DisconnectReason::LocalError(status)));
        self.sweep_soon(queue_pair.number, now);
    }
}

impl QueuePair {
    /// Sends the element that comes next.
    fn send_datagram<P: Port>(
        &mut self,
        turn: &Turn<'_>,
        Way { link, net, common }: &mut Way<'_, P>,
        element: &SendElement,
    ) -> Result<(), Unsent> {
        let path = self.send.next_slot().and_then(|slot| DatagramPath::of(element, slot));
        let (Some(path), Stage::Datagrams(end)) = (path, &mut self.stage) else {
            return Err(Unsent::Work(Status::LocalOperation));
        };
        let header = Header {
            destination: path.number,
            source: end.number,
            key: path.key,
            sequence: end.sequence,
            solicited: element.flags.contains(SendFlags::SOLICITED),
            immediate: path.immediate,
        };
        end.sequence = end.sequence.wrapping_add(1);
        let length = element.payload_len() as usize;
        let to_self = net.addresses.loops_back(path.destination);
        let mac = way_to(link, net, common, &path, to_self)?;
        let headers = link.path(EthernetAddress(mac), path.source, path.destination);
        if length > usize::from(u16::MAX) || !fits(link, &headers, header.datagram_len(length)) {
            return Err(Unsent::Work(Status::LocalLength));
        }
        let Some(mut buffer) = link.alloc() else {
            common.counters.count_drop(DropReason::NoTransmitBuffer);
            return Err(Unsent::Lost);
        };
        let start = link.payload_start;
        let room = buffer.storage_mut().and_then(|storage| storage.get_mut(start..)).ok_or(WireError::NoRoom)?;
        let length = emit_datagram(room, &headers, &header, length, |room| {
            self.copy_datagram(turn, element, room).map_err(Unsent::from)
        })?;
        buffer.set_range(start, length);
        link.enqueue(&mut common.counters, buffer, to_self);
        Ok(())
    }
}

impl QueuePair {
    /// Copies the payload of a datagram, the element that comes next. `out` has its length.
    fn copy_datagram(&self, turn: &Turn<'_>, element: &SendElement, out: &mut [u8]) -> Result<(), AccessError> {
        if element.flags.contains(SendFlags::INLINE) {
            let mut whole = [0; MAX_INLINE];
            let whole = whole.get_mut(..element.length as usize).ok_or(AccessError::Bounds)?;
            self.send.copy_inline_of(element, whole)?;
            out.copy_from_slice(whole.get(DatagramPath::BLOCK_LEN..).ok_or(AccessError::Bounds)?);
            return Ok(());
        }
        let mut rest = out;
        for index in DatagramPath::ENTRIES..usize::from(element.entries) {
            let Sge { stag, length, offset } = self.send.entry(element, index).ok_or(AccessError::Bounds)?;
            let parts = rest.split_at_mut_checked(length as usize);
            let (part, behind) = parts.ok_or(AccessError::Bounds)?;
            if !part.is_empty() {
                turn.gather(self.association, stag, offset, part, Access::LOCAL_READ)?;
            }
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(AccessError::Bounds) }
    }
}

/// The hardware address that leads to a datagram's receiver. Nobody waits for one that is not known yet.
fn way_to<P: Port>(
    link: &mut Link<P>,
    net: &mut Net,
    common: &mut Common,
    path: &DatagramPath,
    to_self: bool,
) -> Result<[u8; 6], Unsent> {
    if !net.addresses.is_own(path.source) || path.source.is_ipv4() != path.destination.is_ipv4() {
        return Err(Unsent::Lost);
    }
    if to_self {
        return Ok(link.own_mac.0);
    }
    match net.neighbours.resolve(common.now, net.addresses.next_hop(path.destination)) {
        Resolution::Known(mac) => Ok(mac),
        Resolution::Pending | Resolution::Full => {
            net.flush_requests(link, &mut common.counters);
            Err(Unsent::Lost)
        }
    }
}

/// What stands in front of a received datagram, in place of InfiniBand's global route header: the IP header, one of
/// IPv4 at the end.
fn grh(packet: &[u8]) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let is_ipv4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let length = if is_ipv4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    if let (Some(place), Some(header)) = (grh.get_mut(GRH_LEN - length..), packet.get(..length)) {
        place.copy_from_slice(header);
    }
    grh
}
