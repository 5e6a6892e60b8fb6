//! The record that FPDUs are built into, one behind another, until it is handed to TCP.
//!
//! FPDUs that are posted together so share segments, as far as they fit whole (RFC 5044 §5.1), with those of TCP's last
//! record too, if nothing of it was sent. One that is posted alone still leaves at once. If the path shrinks, a record that
//! waits is cut where the new segments end, as a single FPDU that has become too long is; those built afterwards fit again.

use uwarp_memory::{Turn, kernels};
use uwarp_tcp::BufferToken;
use uwarp_wire::checksum::combine;

use crate::connection::phase::Phase;
use crate::connection::slab::BufferStore;
use crate::connection::{Connection, Record};
use crate::core::Core;
use crate::link::port::{Buffer, Port};
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::running::Running;

/// What came of pulling work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulled {
    /// There is nothing (more) that may be sent now.
    Dry,
    /// There is more, but the budget of this turn is used up.
    More,
    /// There is more, but buffers are short.
    Starved,
    /// There is more, and what the connection holds has to be acknowledged first.
    Held,
}

/// The record.
#[derive(Debug)]
pub(crate) struct Open<B> {
    place: Place<B>,
    /// Octets that it holds.
    length: usize,
    /// How many of them TCP has.
    pushed: usize,
}

#[derive(Debug)]
enum Place<B> {
    /// A buffer that TCP does not know.
    New(B),
    /// TCP's last record.
    Tail(BufferToken),
}

impl<B: Buffer> Open<B> {
    /// An empty one.
    #[inline]
    pub(crate) fn new(buffer: B) -> Open<B> {
        Open::begun(buffer, 0)
    }

    /// One that holds so many octets, of which TCP has none.
    #[inline]
    pub(crate) fn begun(buffer: B, length: usize) -> Open<B> {
        Open { place: Place::New(buffer), length, pushed: 0 }
    }

    /// TCP's last record, if nothing of it was sent and it holds FPDUs. Markers would have to be counted from the beginning
    /// of each.
    #[inline]
    fn tail(running: &Running, tcp: &uwarp_tcp::Connection) -> Option<Open<B>> {
        let (token, length) = tcp.unsent_tail()?;
        let takes_more =
            tcp.octets_pushed() - u64::from(length) >= running.transmit_start && !running.transmits_markers();
        let length = length as usize;
        takes_more.then_some(Open { place: Place::Tail(token), length, pushed: length })
    }

    /// Octets that it holds.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Whether TCP does not know its buffer.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.place, Place::New(_))
    }

    /// Its buffer, if TCP does not know that, and the octets that it holds.
    #[inline]
    pub(crate) fn into_new(self) -> Option<(B, usize)> {
        match self.place {
            Place::New(buffer) => Some((buffer, self.length)),
            Place::Tail(_) => None,
        }
    }

    /// Octets that it holds and TCP does not have.
    #[inline]
    pub(crate) fn built(&self) -> u64 {
        (self.length - self.pushed) as u64
    }

    /// Where the next FPDU goes; the payload of a record begins at `start` of its buffer.
    #[inline]
    pub(crate) fn room<'a>(
        &'a mut self,
        records: &'a mut BufferStore<Record<B>>,
        start: usize,
    ) -> Option<&'a mut [u8]> {
        let buffer = match &mut self.place {
            Place::New(buffer) => buffer,
            Place::Tail(token) => &mut records.get_mut(*token)?.buffer,
        };
        buffer.storage_mut()?.get_mut(start + self.length..)
    }

    /// An FPDU of `octets` was built there.
    #[inline]
    pub(crate) fn add(&mut self, octets: usize) {
        self.length += octets;
    }
}

impl<P: Port> Core<P> {
    /// Builds FPDUs while TCP takes them. `open`: the record that has been begun.
    #[inline]
    pub(crate) fn pull(
        &mut self,
        turn: &Turn<'_>,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        open: &mut Option<Open<P::Buffer>>,
    ) -> Pulled {
        let Phase::Running(running) = &connection.phase else { return Pulled::Dry };
        if open.is_none() {
            *open = Open::tail(running, &connection.tcp);
        }
        let pulled = self.fill(turn, connection, queue_pair, open);
        if pulled == Pulled::Dry {
            self.send_open(connection, open.take());
        } else {
            self.push_open(connection, open.take());
        }
        pulled
    }

    /// Hands TCP what was built.
    #[inline]
    pub(crate) fn push_open(&mut self, connection: &mut Connection, open: Option<Open<P::Buffer>>) {
        let Some(Open { place, length, pushed }) = open else { return };
        if length == pushed {
            return;
        }
        let start = self.link.payload_start;
        let sum = |octets: &[u8]| if self.link.offload_tcp { 0 } else { kernels::checksum_sum(octets) };
        match place {
            Place::New(mut buffer) => {
                buffer.set_range(start, length);
                let sum = sum(buffer.data());
                let token = self.connections.records.insert(Record { buffer, length: length as u32, sum });
                connection.tcp.push(token, length as u32);
            }
            Place::Tail(token) => {
                let Some(record) = self.connections.records.get_mut(token) else { return };
                record.buffer.set_range(start, length);
                // An FPDU's length is even, so the sums add up.
                record.sum = combine(record.sum, sum(record.buffer.data().get(pushed..).unwrap_or(&[])));
                record.length = length as u32;
                let extended = connection.tcp.extend_tail((length - pushed) as u32);
                debug_assert!(extended, "nothing is sent while FPDUs are built");
            }
        }
    }
}
