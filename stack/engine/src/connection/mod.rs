//! Connections: TCP below, the phases of iWARP or a plain stream above.

use std::ops::Range;

use uwarp_tcp::{BufferToken, Instant};
use uwarp_wire::address::FlowKey;

use crate::api::command::DisconnectReason;
use crate::connection::phase::Phase;
use crate::connection::slab::BufferStore;
use crate::connection::streaming::Streaming;
use crate::link::port::Buffer;
use crate::link::template::Template;

mod buffers;
pub(crate) mod ending;
pub(crate) mod flow;
pub(crate) mod guesses;
pub(crate) mod listener;
pub(crate) mod lookahead;
pub(crate) mod path;
pub(crate) mod phase;
mod plain;
mod ready;
mod resolution;
pub(crate) mod running;
mod segment;
pub(crate) mod shares;
pub(crate) mod shutdown;
pub(crate) mod slab;
mod snapshot;
pub(crate) mod startup;
pub(crate) mod streaming;
mod table;
pub(crate) mod time_wait;
mod transmit;
pub(crate) mod wheel;

pub(crate) use buffers::{HeldFrame, HeldFrames, Record};
pub(crate) use segment::drop_reason;
pub(crate) use table::{Connections, Opening};

/// A connection. Rare fields first, then those that each segment touches, then TCP's: see [`Connection::places`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Connection {
    /// An MPA start-up frame that TCP does not have yet.
    pub(crate) startup_frame: Option<Vec<u8>>,
    /// Why it ends. The first reason counts.
    pub(crate) end: Option<DisconnectReason>,
    /// Octets of an incomplete FPDU.
    pub(crate) gather: Vec<u8>,
    /// Its number among incomplete FPDUs, see [`Gathers`](crate::rdma::gathers::Gathers); 0 if there is none.
    pub(crate) gather_number: u64,
    pub(crate) flow: FlowKey,
    /// Its place in the table.
    pub(crate) index: u32,
    /// It is in the ready list.
    pub(crate) scheduled: bool,
    /// Our FIN was acknowledged.
    pub(crate) finished: bool,
    /// It is removed when it is put back.
    pub(crate) gone: bool,
    pub(crate) next_hop: NextHop,
    /// Nothing waits for an acknowledgment, a response or a buffer: a received segment that needs no answer leaves
    /// nothing to do.
    pub(crate) quiet: bool,
    /// Largest segment, in octets of payload, that has arrived since the path MTU was last lowered.
    pub(crate) confirmed: u32,
    /// Number of the queue pair, once bound.
    pub(crate) queue_pair: Option<u32>,
    pub(crate) phase: Phase,
    /// The plain stream that it is, or was before MPA took over. In [`Phase::Stream`] it is missing only once the
    /// engine has failed.
    pub(crate) stream: Option<Streaming>,
    pub(crate) tcp: uwarp_tcp::Connection,
}

/// Where a connection's frames go.
#[derive(Debug)]
pub(crate) struct NextHop {
    /// The peer is this engine: frames take the internal loop.
    pub(crate) to_self: bool,
    /// The connection waits for the hardware address.
    pub(crate) unresolved: bool,
    /// The hardware address, valid while `epoch` is the neighbour table's.
    pub(crate) mac: [u8; 6],
    pub(crate) epoch: u32,
    /// Headers of the connection's segments, valid as long as `mac` is.
    pub(crate) template: Option<Template>,
}

impl Connection {
    /// Whether it is usual: its next message is its own work or a response, whose FPDUs are records of TCP right away
    /// and leave if there is room. The short ways send only for such connections, and leave them so.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        let Phase::Running(running) = &self.phase else { return false };
        !(self.gone | self.next_hop.to_self)
            && self.stream.is_none()
            && self.startup_frame.is_none()
            && self.next_hop.template.is_some()
            && running.may_begin()
            && !running.transmits_markers()
            && !running.stream.owes_ready_to_receive()
            && running.stream.may_send_messages()
            && self.tcp.is_usual()
    }

    /// Whether received octets still count: the stream is in full operation and has not ended.
    pub(crate) fn delivers(&self) -> bool {
        matches!(&self.phase, Phase::Running(running) if running.stream.delivers())
    }

    /// Whether a message of the peer waits for a receive, and with it everything behind it.
    #[inline]
    pub(crate) fn awaits_receive(&self) -> bool {
        self.tcp.holds_in_order()
    }

    /// Whether both ends have agreed on the rules of InfiniBand.
    pub(crate) fn has_rules_of_infiniband(&self) -> bool {
        matches!(&self.phase, Phase::Running(running) if running.stream.features().infiniband)
    }

    /// Whether a message of the peer has waited for a receive for as long as it says itself, if it fails now.
    pub(crate) fn has_waited_in_vain(&self) -> bool {
        matches!(&self.phase, Phase::Running(running) if running.receive_wait.is_some_and(|wait| wait.is_agreed))
    }

    /// Whether acknowledgments say that octets are placed, on both sides.
    pub(crate) fn acknowledges_placed(&self) -> bool {
        match &self.phase {
            Phase::Running(running) => running.acknowledges_placed,
            Phase::Closing(closing) => closing.acknowledges_placed,
            _ => false,
        }
    }

    /// The last `octets` that TCP has handed out begin with the last octet of an FPDU that is not placed. They are not
    /// acknowledged if that would say that they are.
    #[cold]
    pub(crate) fn withhold(&mut self, octets: usize) {
        if self.acknowledges_placed() && !self.tcp.withholds() {
            self.tcp.withhold(u32::try_from(octets).unwrap_or(u32::MAX));
        }
    }

    /// Addresses of the fields here that a usual segment touches, without TCP's.
    #[inline]
    pub(crate) fn places(&self) -> Range<usize> {
        std::ptr::from_ref(&self.flow).addr()..std::ptr::from_ref(&self.tcp).addr()
    }

    /// Octets of memory that it takes: itself, its phase, TCP's lists, and an incomplete FPDU.
    pub(crate) fn memory(&self) -> usize {
        let own = size_of::<Connection>() - size_of::<uwarp_tcp::Connection>();
        own + self.tcp.memory() + self.phase.memory() + self.gather.capacity()
    }

    /// The peer has acknowledged more: buffers come back, inbound reads give up their slots.
    #[inline(always)]
    pub(crate) fn acknowledged<B: Buffer>(&mut self, records: &mut BufferStore<Record<B>>) {
        match self.tcp.pop_lone_acknowledged() {
            Some(token) => self.free_record(records, token),
            None => self.free_records(records),
        }
        if let Phase::Running(running) = &mut self.phase {
            running.stream.acknowledged(self.tcp.octets_acknowledged());
        }
    }

    #[inline(never)]
    fn free_records<B: Buffer>(&mut self, records: &mut BufferStore<Record<B>>) {
        while let Some(token) = self.tcp.pop_acknowledged() {
            self.free_record(records, token);
        }
    }

    #[inline(always)]
    fn free_record<B: Buffer>(&mut self, records: &mut BufferStore<Record<B>>, token: BufferToken) {
        // The records of plain streams are not placed where a buffer was kept.
        let is_kept = |record: &Record<B>| self.queue_pair.is_some() && !record.buffer.is_shared();
        let largest = |record: &Record<B>| u32::from(record.length.min(record.segment));
        if let Some(largest) = records.discard(token, |record| (largest(record), is_kept(record))) {
            self.confirmed = self.confirmed.max(largest.min(self.tcp.effective_mss()));
        }
    }

    /// Records why the connection ends, unless a reason is known already.
    pub(crate) fn ends_by(&mut self, reason: DisconnectReason) {
        self.end.get_or_insert(reason);
    }

    /// When the connection needs attention at the latest.
    #[inline(always)]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match (self.tcp.deadline(), self.phase.deadline()) {
            (Some(tcp), Some(own)) => Some(tcp.min(own)),
            (tcp, own) => tcp.or(own),
        }
    }
}
