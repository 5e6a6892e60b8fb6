//! Memory for incomplete FPDUs, and for those that wait for a receive: a budget for all streams of the engine.
//!
//! If the budget is used up, the streams that have waited longest for the rest of an FPDU end. An honest peer's FPDU is
//! complete a flight later, so it is right to take memory from those that hold it longest.

mod eviction;

use std::collections::VecDeque;

use crate::connection::Connection;

/// Buffers kept for reuse.
const SPARE: usize = 64;

/// A buffer up to this size may hold any FPDU, however short.
const ROOMY: usize = 16 << 10;

/// The buffers for incomplete FPDUs.
#[derive(Debug)]
pub(crate) struct Gathers {
    /// Most octets of the buffers that connections hold.
    budget: u64,
    /// Octets of the buffers that connections hold.
    octets: u64,
    /// Connections that hold one.
    waiting: usize,
    /// Number of the latest incomplete FPDU.
    last: u64,
    /// Queue pairs and numbers of incomplete FPDUs in the order of their beginning, with some that are complete now.
    order: VecDeque<(u32, u64)>,
    /// Buffers that no connection uses.
    spare: Vec<Vec<u8>>,
}

impl Gathers {
    pub(crate) fn new(budget: u64) -> Gathers {
        Gathers {
            budget,
            octets: 0,
            waiting: 0,
            last: 0,
            order: VecDeque::with_capacity(2 * SPARE),
            spare: Vec::with_capacity(SPARE),
        }
    }

    /// A buffer for `wanted` octets: a used one, unless it is far too large or exceeds what the budget has left.
    pub(crate) fn take(&mut self, wanted: usize) -> Vec<u8> {
        let gather = self.take_any();
        let taken = gather.capacity();
        if taken <= ROOMY.max(4 * wanted) && self.octets + taken as u64 <= self.budget {
            return gather;
        }
        self.give(gather);
        Vec::new()
    }

    /// Any buffer, for use within the turn.
    pub(crate) fn take_any(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Returns a buffer.
    pub(crate) fn give(&mut self, mut gather: Vec<u8>) {
        if gather.capacity() > 0 && self.spare.len() < SPARE {
            gather.clear();
            self.spare.push(gather);
        }
    }

    /// Takes a connection's incomplete FPDU, or what waits for a receive, which then no longer counts; an empty buffer
    /// if there is none.
    #[cold]
    pub(crate) fn resume(&mut self, connection: &mut Connection) -> Vec<u8> {
        let gather = std::mem::take(&mut connection.gather);
        if gather.capacity() > 0 {
            self.octets -= gather.capacity() as u64;
            self.waiting -= 1;
        }
        gather
    }

    /// Drops what [`Gathers::resume`] gives.
    #[cold]
    pub(crate) fn discard(&mut self, connection: &mut Connection) {
        let gather = self.resume(connection);
        self.give(gather);
    }

    /// Stores an incomplete FPDU, or what waits for a receive, with its connection, unless that has ended.
    /// [`Rdma::settle_gathers`](crate::rdma::Rdma::settle_gathers) holds the budget.
    #[cold]
    pub(crate) fn put_aside(&mut self, connection: &mut Connection, gather: Vec<u8>) {
        let stays = !gather.is_empty() && !connection.gone && connection.delivers();
        let Some(number) = connection.queue_pair.filter(|_| stays) else { return self.give(gather) };
        if connection.gather_number == 0 {
            self.last += 1;
            connection.gather_number = self.last;
            self.order.push_back((number, self.last));
        }
        self.octets += gather.capacity() as u64;
        self.waiting += 1;
        connection.gather = gather;
    }

    /// Whether [`Rdma::settle_gathers`](crate::rdma::Rdma::settle_gathers) has work.
    #[inline]
    pub(crate) fn unsettled(&self) -> bool {
        self.is_over_budget() || self.has_many_places()
    }

    #[inline]
    fn is_over_budget(&self) -> bool {
        self.octets > self.budget
    }

    /// Whether the order has many places of FPDUs that are complete.
    #[inline]
    fn has_many_places(&self) -> bool {
        self.order.len() > 2 * self.waiting + 2 * SPARE
    }
}
