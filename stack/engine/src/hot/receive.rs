//! The usual segment, from the frame to memory: in order, of a stream in full operation, with nothing to repair.

use uwarp_iwarp::framing::{CRC_LEN, LENGTH_LEN, fpdu_len};
use uwarp_memory::{Access, Turn, kernels};
use uwarp_tcp::Events;
use uwarp_wire::ddp::{TAGGED_HEADER_LEN, UNTAGGED_HEADER_LEN};
use uwarp_wire::mpa::crc_from_octets;
use uwarp_wire::rdmap::{Control, Opcode};

use crate::api::work::{CompletionFlags, Status};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::hot::segment::Predicted;
use crate::link::port::{Buffer, Port};
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::Running;

impl<P: Port> Core<P> {
    /// Takes a frame if it is the predicted segment of the connection that the last frame belonged to. Writes and Sends that are
    /// whole in it are placed here; other FPDUs go to the general code. False: the general code has to take the whole frame.
    #[inline]
    pub(crate) fn receive_hot(&mut self, turn: &Turn<'_>, buffer: &P::Buffer) -> bool {
        let Some(index) = self.connections.guess else { return false };
        let Some(connection) = self.connections.table.get_mut(index) else { return false };
        let Connection { phase: Phase::Running(running), template: Some(template), gather, .. } = &*connection else {
            return false;
        };
        let Some(predicted) = Predicted::of(buffer, template) else { return false };
        if running.receive_markers || !gather.is_empty() {
            return false;
        }
        let Some(events) = connection.tcp.on_usual_segment(self.now, &predicted.segment) else { return false };
        self.counters.hot_received += 1;
        if events.contains(Events::OCTETS_ACKED) {
            connection.acknowledged(&mut self.connections.records);
        }
        let mut octets = buffer.data().get(predicted.payload).unwrap_or(&[]);
        if let Phase::Running(running) = &mut connection.phase
            && let Some(number) = connection.queue_pair
            && let Some(Some(queue_pair)) = self.rdma.queue_pairs.get_mut(number as usize)
            && !turn.has_transparent()
        {
            while !octets.is_empty()
                && let Some(length) = place_fpdu(turn, running, queue_pair, &mut self.rdma.lanes, octets)
            {
                self.counters.fpdus_received += 1;
                octets = &octets[length..];
                if queue_pair.overflowed.is_some() {
                    self.fail_overflowed(turn, index, octets);
                    return true;
                }
            }
        }
        if !octets.is_empty() {
            self.receive_rest(turn, index, octets);
        } else if connection.quiet && !connection.tcp.wants_transmit(self.now) {
            if let Some(deadline) = connection.next_deadline() {
                self.connections.wheel.arm(index, deadline);
            }
        } else {
            Self::schedule(&mut self.connections.ready, index, connection);
        }
        true
    }

    /// Octets of a predicted segment that are not usual.
    #[inline(never)]
    fn receive_rest(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        self.was_usual = false;
        let Some(mut connection) = self.connections.table.take(index) else { return };
        self.on_octets(turn, index, &mut connection, octets);
        self.settle_segment(index, connection, true);
    }

    /// The completion of an FPDU before `octets` did not fit.
    #[cold]
    fn fail_overflowed(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        self.was_usual = false;
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

/// Places the first FPDU of `octets` if it is whole, faultless, and part of a Write or a usual Send; returns its length.
/// Otherwise no state has changed.
#[inline(always)]
fn place_fpdu(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    lanes: &mut Lanes,
    octets: &[u8],
) -> Option<usize> {
    let ulpdu_len = usize::from(u16::from_be_bytes(*octets.first_chunk()?));
    let length = fpdu_len(ulpdu_len);
    let fpdu = octets.get(..length)?;
    let ulpdu = fpdu.get(LENGTH_LEN..LENGTH_LEN + ulpdu_len)?;
    let Some(header) = running.stream.usual_write(ulpdu) else {
        place_send(turn, running, queue_pair, lanes, fpdu, ulpdu)?;
        return Some(length);
    };
    if running.crc && !is_intact(fpdu) {
        return None;
    }
    let payload = ulpdu.get(TAGGED_HEADER_LEN..)?;
    if !payload.is_empty() {
        turn.place(queue_pair.association, header.stag.0, header.offset.0, payload, Access::REMOTE_WRITE).ok()?;
    }
    running.stream.write_received(&header);
    Some(length)
}

/// Whether the CRC of an FPDU is right.
#[inline(always)]
fn is_intact(fpdu: &[u8]) -> bool {
    let parts = fpdu.split_last_chunk::<CRC_LEN>();
    parts.is_some_and(|(covered, field)| kernels::crc32c(covered) == crc_from_octets(*field))
}

/// Places part of a Send in its receive, which completes with the last one. `None`: it is another case. Memory may have been
/// written then, which the general code writes once more.
fn place_send(
    turn: &Turn<'_>,
    running: &mut Running,
    queue_pair: &mut QueuePair,
    lanes: &mut Lanes,
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
        queue_pair.complete_receive(lanes, completion);
    }
    Some(())
}
