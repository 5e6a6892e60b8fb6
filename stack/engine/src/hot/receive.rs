//! The usual segment, from the frame to memory: in order, of a stream in full operation, with nothing to repair.

use uwarp_iwarp::framing::{CRC_LEN, LENGTH_LEN, fpdu_len};
use uwarp_memory::{Access, Turn, kernels};
use uwarp_tcp::{Events, Instant};
use uwarp_wire::ddp::{TAGGED_HEADER_LEN, UNTAGGED_HEADER_LEN};
use uwarp_wire::mpa::crc_from_octets;
use uwarp_wire::rdmap::{Control, Opcode};
use uwarp_wire::{ipv4, ipv6};

use crate::api::work::{CompletionFlags, Status};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::hot::segment::Predicted;
use crate::hot::transmit::{arm, complete};
use crate::link::port::{Buffer, Port};
use crate::link::template::{Layout, PLAIN, TAGGED};
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::Running;

impl<P: Port> Core<P> {
    /// Takes a frame if it is the predicted segment of the connection that the last frame belonged to. Writes, Sends, Reads
    /// and their responses that are whole in it are taken here; other FPDUs go to the general code. False: the general
    /// code has to take the whole frame.
    #[inline(never)]
    pub(crate) fn receive_hot(&mut self, turn: &Turn<'_>, buffer: &P::Buffer) -> bool {
        let Some(index) = self.connections.guess else { return false };
        let connection = self.connections.table.get(index);
        let Some(template) = connection.and_then(|connection| connection.template.as_ref()) else { return false };
        if template.layout() == Layout::Ipv4 {
            return self.receive_behind::<PLAIN, { ipv4::HEADER_LEN }>(turn, index, buffer);
        }
        let layout = template.layout();
        self.receive_layout(turn, index, layout, buffer)
    }

    /// The same for the other layouts.
    #[inline(never)]
    fn receive_layout(&mut self, turn: &Turn<'_>, index: u32, layout: Layout, buffer: &P::Buffer) -> bool {
        match layout {
            Layout::Ipv4 => self.receive_behind::<PLAIN, { ipv4::HEADER_LEN }>(turn, index, buffer),
            Layout::Ipv4Tagged => self.receive_behind::<TAGGED, { ipv4::HEADER_LEN }>(turn, index, buffer),
            Layout::Ipv6 => self.receive_behind::<PLAIN, { ipv6::HEADER_LEN }>(turn, index, buffer),
            Layout::Ipv6Tagged => self.receive_behind::<TAGGED, { ipv6::HEADER_LEN }>(turn, index, buffer),
        }
    }

    /// The same behind `LINK` octets of the link's header and `IP` of IP's.
    #[inline(always)]
    fn receive_behind<const LINK: usize, const IP: usize>(
        &mut self,
        turn: &Turn<'_>,
        index: u32,
        buffer: &P::Buffer,
    ) -> bool {
        let Some((connection, was_usual)) = self.connections.table.get_marked(index) else { return false };
        let Connection { phase: Phase::Running(running), template: Some(template), gather, .. } = &*connection else {
            return false;
        };
        let Some(predicted) = Predicted::of::<P::Buffer, LINK, IP>(buffer, template) else { return false };
        if running.receive_markers || !gather.is_empty() {
            return false;
        }
        let segment = &predicted.segment;
        let last = self.connections.last_segment.as_ref();
        let is_alike = last.is_some_and(|(number, last)| *number == index && segment.is_alike(last));
        if !is_alike || !connection.tcp.on_alike_segment(self.now, segment) {
            let Some(events) = connection.tcp.on_usual_segment(self.now, segment) else { return false };
            self.connections.last_segment = Some((index, *segment));
            if events.contains(Events::OCTETS_ACKED) {
                connection.acknowledged(&mut self.connections.records);
            }
        }
        self.counters.hot_received += 1;
        self.counters.frames_received += 1;
        self.counters.octets_received += buffer.data().len() as u64;
        let mut octets = buffer.data().get(predicted.payload).unwrap_or(&[]);
        if let Some(number) = connection.queue_pair
            && let Some(Some(queue_pair)) = self.rdma.queue_pairs.get_mut(number as usize)
            && !turn.has_transparent()
        {
            while !octets.is_empty() {
                let Some((fpdu, ulpdu)) = first_fpdu(octets) else { break };
                if place_write(turn, connection, queue_pair, fpdu, ulpdu).is_none() {
                    if take_other(turn, connection, queue_pair, &mut self.rdma.lanes, fpdu, ulpdu).is_none() {
                        break;
                    }
                    if queue_pair.overflowed.is_some() {
                        self.counters.fpdus_received += 1;
                        self.fail_overflowed(turn, index, &octets[fpdu.len()..]);
                        return true;
                    }
                }
                self.counters.fpdus_received += 1;
                octets = &octets[fpdu.len()..];
            }
        }
        if !octets.is_empty() {
            self.receive_rest(turn, index, octets);
            return true;
        }
        if !connection.quiet {
            connection.look_for_quiet(&mut self.rdma.queue_pairs);
        }
        // Before, the entry fired no later than any timer that ran, unless the connection is still to be served. So nothing is to be
        // done if it fires before all that the segment can have started.
        let wheel = &mut self.connections.wheel;
        let is_armed = wheel.fires_by(index, connection.tcp.soonest_timer(self.now));
        if connection.quiet && !connection.tcp.wants_transmit(self.now) {
            if !is_armed {
                arm(wheel, index, connection);
            }
            let is_in_time = |at: Instant| wheel.is_armed_for(index, at);
            debug_assert!(connection.scheduled || connection.next_deadline().is_none_or(is_in_time));
        } else {
            // It is served later in this turn, which also arms its timer.
            *was_usual &= is_armed;
            connection.schedule(&mut self.connections.ready, index);
        }
        true
    }

    /// The general code may do anything.
    #[inline]
    pub(crate) fn leave_short_ways(&mut self) {
        self.was_usual = false;
        self.connections.last_segment = None;
    }

    /// Octets of a predicted segment that are not usual.
    #[inline(never)]
    fn receive_rest(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        self.leave_short_ways();
        let Some(mut connection) = self.connections.table.take(index) else { return };
        self.on_octets(turn, index, &mut connection, octets);
        self.settle_segment(index, connection, true);
    }

    /// The completion of an FPDU before `octets` did not fit.
    #[cold]
    fn fail_overflowed(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        self.leave_short_ways();
        let Some(mut connection) = self.connections.table.take(index) else { return };
        let mut queue_pair = self.take_queue_pair(&connection);
        if let Some(queue_pair) = queue_pair.as_deref_mut() {
            self.on_overflow(&mut connection, queue_pair);
        }
        self.give_queue_pair(queue_pair);
        if !connection.gone {
            self.on_octets(turn, index, &mut connection, octets);
        }
        self.settle_segment(index, connection, true);
    }
}

/// The first FPDU of `octets` if it is whole, and its ULPDU.
#[inline(always)]
fn first_fpdu(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let ulpdu_len = usize::from(u16::from_be_bytes(*octets.first_chunk()?));
    let fpdu = octets.get(..fpdu_len(ulpdu_len))?;
    Some((fpdu, fpdu.get(LENGTH_LEN..LENGTH_LEN + ulpdu_len)?))
}

/// Places an FPDU if it is faultless and part of a Write. Otherwise nothing has changed.
#[inline(always)]
fn place_write(
    turn: &Turn<'_>,
    connection: &mut Connection,
    queue_pair: &QueuePair,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let Phase::Running(running) = &mut connection.phase else { return None };
    let header = running.stream.usual_write(ulpdu)?;
    if running.crc && !is_intact(fpdu) {
        return None;
    }
    let payload = ulpdu.get(TAGGED_HEADER_LEN..)?;
    if !payload.is_empty() {
        turn.place(queue_pair.association, header.stag.0, header.offset.0, payload, Access::REMOTE_WRITE).ok()?;
    }
    running.stream.write_received(&header);
    Some(())
}

/// Whether the CRC of an FPDU is right.
#[inline(always)]
fn is_intact(fpdu: &[u8]) -> bool {
    let parts = fpdu.split_last_chunk::<CRC_LEN>();
    parts.is_some_and(|(covered, field)| kernels::crc32c(covered) == crc_from_octets(*field))
}

/// Takes an FPDU if it is faultless and part of a usual Send, or a usual Read or response. Otherwise no state has changed.
#[inline(never)]
fn take_other(
    turn: &Turn<'_>,
    connection: &mut Connection,
    queue_pair: &mut QueuePair,
    lanes: &mut Lanes,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let Phase::Running(running) = &mut connection.phase else { return None };
    let acknowledged = connection.tcp.octets_acknowledged();
    if place_send(turn, running, queue_pair, lanes, acknowledged, fpdu, ulpdu).is_none()
        && place_response(turn, running, queue_pair, lanes, acknowledged, fpdu, ulpdu).is_none()
    {
        take_read_request(turn, running, queue_pair, fpdu, ulpdu)?;
        connection.quiet = false;
    }
    Some(())
}

/// Places an FPDU if it is faultless and part of a usual Send, whose receive completes with the last one, behind own work that is
/// done with `acknowledged` octets of our stream. Otherwise no state has changed; memory may have been written, which the general
/// code writes once more.
fn place_send(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    lanes: &mut Lanes,
    acknowledged: u64,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let header = running.stream.usual_send(ulpdu)?;
    let payload = ulpdu.get(UNTAGGED_HEADER_LEN..)?;
    let waits_for_commit = !(queue_pair.written.is_empty() && queue_pair.held.is_empty());
    if waits_for_commit || running.crc && !is_intact(fpdu) {
        return None;
    }
    let begins = !queue_pair.receive.is_begun();
    if begins && !queue_pair.receive.begin_own(queue_pair.number) {
        return None;
    }
    let association = queue_pair.association;
    let placed = queue_pair.receive.scatter(header.message_offset, payload, |target, part| {
        turn.place(association, target.stag, target.offset, part, Access::LOCAL_WRITE)
    });
    if placed.is_err() {
        if begins {
            queue_pair.receive.put_back();
        }
        return None;
    }
    running.stream.send_received(&header, payload.len() as u32);
    if header.last {
        let length = header.message_offset + payload.len() as u32;
        let mut completion = queue_pair.receive.complete(queue_pair.number, length, Status::Success)?;
        if header.control == Control::new(Opcode::SendSolicited) {
            completion.flags = CompletionFlags::SOLICITED;
        }
        // Own work that this segment may have acknowledged completes first.
        complete(lanes, acknowledged, queue_pair);
        queue_pair.complete_receive(lanes, completion);
    }
    Some(())
}

/// Places an FPDU if it is faultless and the whole response to a Read, and completes the Read. Otherwise nothing has changed.
#[inline(never)]
fn place_response(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    lanes: &mut Lanes,
    acknowledged: u64,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let header = running.stream.usual_response(ulpdu)?;
    if running.crc && !is_intact(fpdu) {
        return None;
    }
    let payload = ulpdu.get(TAGGED_HEADER_LEN..)?;
    turn.place(queue_pair.association, header.stag.0, header.offset.0, payload, Access::LOCAL_WRITE).ok()?;
    running.stream.response_received();
    queue_pair.send.read_done();
    complete(lanes, acknowledged, queue_pair);
    Some(())
}

/// Takes an FPDU if it is faultless and a Read of memory that the peer may read. Otherwise nothing has changed.
#[inline(never)]
fn take_read_request(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &QueuePair,
    fpdu: &[u8],
    ulpdu: &[u8],
) -> Option<()> {
    let read = running.stream.usual_read_request(ulpdu)?;
    if running.crc && !is_intact(fpdu) {
        return None;
    }
    let (stag, offset, length) = (read.request.source_stag.0, read.request.source_offset.0, read.request.length);
    turn.check(queue_pair.association, stag, offset, u64::from(length), Access::REMOTE_READ).ok()?;
    running.stream.read_request_received(read);
    Some(())
}
