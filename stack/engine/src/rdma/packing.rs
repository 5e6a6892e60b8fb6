//! The record that FPDUs are built into, one behind another, until it is handed to TCP.
//!
//! FPDUs that are posted together so share segments, as far as they fit whole (RFC 5044 §5.1), with those of TCP's last
//! record too, if nothing of it was sent. One that is posted alone still leaves at once. If the path shrinks, a record
//! that waits is cut where the new segments end, as a single FPDU that has become too long is; those built afterwards
//! fit again.

use uwarp_memory::{Turn, kernels};
use uwarp_tcp::BufferToken;
use uwarp_wire::checksum::combine;

use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::connection::running::Running;
use crate::connection::slab::BufferStore;
use crate::connection::{Connection, Record};
use crate::link::Link;
use crate::link::port::{Buffer, Port};
use crate::rdma::Rdma;
use crate::rdma::queue_pair::QueuePair;

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

/// What sending for a queue pair touches, while its connection is visited.
#[derive(Debug)]
pub(crate) struct Sending<'a, P: Port> {
    pub(crate) turn: &'a Turn<'a>,
    pub(crate) link: &'a mut Link<P>,
    pub(crate) records: &'a mut BufferStore<Record<P::Buffer>>,
    pub(crate) rdma: &'a mut Rdma,
    pub(crate) common: &'a mut Common,
    pub(crate) connection: &'a mut Connection,
    pub(crate) queue_pair: &'a mut QueuePair,
    /// The record that FPDUs go into, if one has been begun.
    pub(crate) open: Option<Open<P::Buffer>>,
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

    /// TCP's last record, if nothing of it was sent and it holds FPDUs. Markers would have to be counted from the
    /// beginning of each.
    #[inline]
    pub(super) fn tail(running: &Running, tcp: &uwarp_tcp::Connection) -> Option<Open<B>> {
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

    /// Hands TCP what was built.
    #[inline]
    pub(crate) fn push<P: Port<Buffer = B>>(
        self,
        link: &Link<P>,
        records: &mut BufferStore<Record<B>>,
        counters: &mut Counters,
        tcp: &mut uwarp_tcp::Connection,
    ) {
        let Open { place, length, pushed } = self;
        if length == pushed {
            return;
        }
        let start = link.payload_start;
        let sum = |octets: &[u8]| if link.offload_tcp { 0 } else { kernels::checksum_sum(octets) };
        match place {
            Place::New(mut buffer) => {
                buffer.set_range(start, length);
                let sum = sum(buffer.data());
                let token = records.insert(Record { length: length as u16, sum, ..Record::new(buffer) });
                tcp.push(token, length as u32);
            }
            Place::Tail(token) => {
                let Some(record) = records.get_mut(token) else {
                    return counters.cannot_be("the last record of TCP is gone");
                };
                record.buffer.set_range(start, length);
                // An FPDU's length is even, so the sums add up.
                record.sum = combine(record.sum, sum(record.buffer.data().get(pushed..).unwrap_or(&[])));
                record.length = length as u16;
                if !tcp.extend_tail((length - pushed) as u32) {
                    counters.cannot_be("a record is sent while FPDUs are built into it");
                }
            }
        }
    }
}

impl<P: Port> Sending<'_, P> {
    /// Hands TCP the open record.
    #[inline]
    pub(crate) fn push_open(&mut self) {
        if let Some(open) = self.open.take() {
            open.push(self.link, self.records, &mut self.common.counters, &mut self.connection.tcp);
        }
    }
}
