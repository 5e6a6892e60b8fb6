//! Memory for FPDUs that come in pieces: a budget for all streams of the engine.
//!
//! A stream that needs more than is left gets it from those that have waited longest for the rest of an FPDU, which end: an honest
//! peer's FPDU is whole a flight later, and whoever holds memory longer than others while it is short is the one to lose it.

use std::collections::VecDeque;

use uwarp_iwarp::Fault;

use crate::connection::Connection;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::queue_pair::QueuePair;

/// Buffers kept for reuse.
const SPARE: usize = 64;

/// Octets of a buffer that are no waste for an FPDU in pieces, however short.
const ROOMY: usize = 16 << 10;

/// The buffers for FPDUs in pieces.
#[derive(Debug)]
pub(crate) struct Gathers {
    /// Octets that those of connections take.
    octets: u64,
    /// Connections that have one.
    waiting: usize,
    /// The number of the last FPDU that began in pieces.
    last: u64,
    /// Queue pair and number of FPDUs in pieces in the order in which they began, with those that are whole.
    order: VecDeque<(u32, u64)>,
    /// Buffers that no connection uses.
    spare: Vec<Vec<u8>>,
}

impl Default for Gathers {
    fn default() -> Gathers {
        Gathers {
            octets: 0,
            waiting: 0,
            last: 0,
            order: VecDeque::with_capacity(2 * SPARE),
            spare: Vec::with_capacity(SPARE),
        }
    }
}

impl Gathers {
    /// A buffer for so many octets: a used one, unless that was grown for far more, or is more than `budget` has left.
    pub(crate) fn take(&mut self, wanted: usize, budget: u64) -> Vec<u8> {
        let gather = self.take_any();
        let taken = gather.capacity();
        if taken <= ROOMY.max(4 * wanted) && self.octets + taken as u64 <= budget {
            return gather;
        }
        self.give(gather);
        Vec::new()
    }

    /// Any buffer, for use within the turn.
    pub(crate) fn take_any(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, mut gather: Vec<u8>) {
        if gather.capacity() > 0 && self.spare.len() < SPARE {
            gather.clear();
            self.spare.push(gather);
        }
    }

    /// Takes what was put aside, which then counts no more; an empty buffer if that is nothing.
    #[cold]
    pub(crate) fn resume(&mut self, connection: &mut Connection) -> Vec<u8> {
        let gather = std::mem::take(&mut connection.gather);
        if gather.capacity() > 0 {
            self.octets -= gather.capacity() as u64;
            self.waiting -= 1;
        }
        gather
    }
}

impl<P: Port> Core<P> {
    /// Keeps what has come of an FPDU with its connection until more comes. If the budget has too little for it, others lose
    /// theirs; or the stream ends, if it has waited longest itself.
    #[cold]
    pub(crate) fn put_aside(
        &mut self,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        gather: Vec<u8>,
    ) {
        let Some(number) = connection.queue_pair.filter(|_| connection.delivers()) else {
            return self.rdma.gathers.give(gather);
        };
        let gathers = &mut self.rdma.gathers;
        if connection.gather_number == 0 {
            gathers.last += 1;
            connection.gather_number = gathers.last;
            gathers.order.push_back((number, gathers.last));
        }
        let taken = gather.capacity() as u64;
        while self.rdma.gathers.octets + taken > self.config.budgets.gather_octets {
            if !self.evict_gather(connection.gather_number) {
                drop(gather);
                return self.fail_stream(connection, queue_pair, Fault::LocalCatastrophic.into(), None);
            }
        }
        let gathers = &mut self.rdma.gathers;
        gathers.octets += taken;
        gathers.waiting += 1;
        connection.gather = gather;
        if gathers.order.len() > 2 * gathers.waiting + 2 * SPARE {
            self.tidy_gathers(connection.gather_number);
        }
    }

    /// The connection whose FPDU in pieces this is, if it is still that.
    fn gathering(&self, queue_pair: u32, gather: u64) -> Option<u32> {
        let index = self.rdma.queue_pairs.get(queue_pair as usize)?.as_ref()?.connection?;
        self.connections.table.get(index).filter(|connection| connection.gather_number == gather)?;
        Some(index)
    }

    /// Ends the stream that has waited longest for the rest of an FPDU. False if that is the one with the number `own`, or none.
    fn evict_gather(&mut self, own: u64) -> bool {
        while let Some((number, gather)) = self.rdma.gathers.order.pop_front() {
            if gather == own {
                return false;
            }
            let Some(index) = self.gathering(number, gather) else { continue };
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            self.counters.evicted += 1;
            drop(self.rdma.gathers.resume(&mut connection));
            connection.gather_number = 0;
            let mut queue_pair = self.take_queue_pair(&connection);
            self.fail_stream(&mut connection, queue_pair.as_deref_mut(), Fault::LocalCatastrophic.into(), None);
            self.give_queue_pair(queue_pair);
            Self::schedule(&mut self.connections.ready, index, &mut connection);
            self.put_back(index, connection);
            return true;
        }
        false
    }

    /// Forgets FPDUs that are whole.
    fn tidy_gathers(&mut self, own: u64) {
        let mut order = std::mem::take(&mut self.rdma.gathers.order);
        order.retain(|(number, gather)| *gather == own || self.gathering(*number, *gather).is_some());
        self.rdma.gathers.order = order;
    }
}
