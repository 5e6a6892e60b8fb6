//! The usual segment, from the frame to memory: in order, of a stream in full operation, with nothing to repair.

use uwarp_iwarp::framing::{CRC_LEN, LENGTH_LEN, fpdu_len};
use uwarp_memory::{Access, Turn, kernels};
use uwarp_tcp::Events;
use uwarp_wire::mpa::crc_from_octets;

use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::hot::segment::Predicted;
use crate::link::port::{Buffer, Port};
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::Running;

impl<P: Port> Core<P> {
    /// Takes a frame if it is the predicted segment of the connection that the last frame belonged to. Writes that are whole
    /// in it are placed here; other FPDUs go to the general code. False: the general code has to take the whole frame.
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
            && let Some(Some(queue_pair)) = self.rdma.queue_pairs.get(number as usize)
            && !turn.has_transparent()
        {
            while !octets.is_empty()
                && let Some(length) = place_write(turn, running, queue_pair, octets)
            {
                self.counters.fpdus_received += 1;
                octets = &octets[length..];
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

    /// Octets of a predicted segment that are not Writes.
    #[inline(never)]
    fn receive_rest(&mut self, turn: &Turn<'_>, index: u32, octets: &[u8]) {
        let Some(mut connection) = self.connections.table.take(index) else { return };
        self.on_octets(turn, index, &mut connection, octets);
        self.settle_segment(index, connection, true);
    }
}

/// Places the first FPDU of `octets` if it is part of a Write, whole, and faultless; returns its length. Otherwise nothing
/// has changed.
#[inline(always)]
fn place_write(turn: &Turn<'_>, running: &mut Running, queue_pair: &QueuePair, octets: &[u8]) -> Option<usize> {
    let ulpdu_len = usize::from(u16::from_be_bytes(*octets.first_chunk()?));
    let length = fpdu_len(ulpdu_len);
    let fpdu = octets.get(..length)?;
    let ulpdu = fpdu.get(LENGTH_LEN..LENGTH_LEN + ulpdu_len)?;
    let header = running.stream.usual_write(ulpdu)?;
    if running.crc {
        let (covered, field) = fpdu.split_last_chunk::<CRC_LEN>()?;
        if kernels::crc32c(covered) != crc_from_octets(*field) {
            return None;
        }
    }
    let payload = ulpdu.get(uwarp_wire::ddp::TAGGED_HEADER_LEN..)?;
    if !payload.is_empty() {
        turn.place(queue_pair.association, header.stag.0, header.offset.0, payload, Access::REMOTE_WRITE).ok()?;
    }
    running.stream.write_received(&header);
    Some(length)
}
