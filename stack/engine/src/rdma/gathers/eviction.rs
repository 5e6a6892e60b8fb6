//! Incomplete FPDUs that are evicted when their budget is used up.

use super::SPARE;
use crate::api::counters::Counters;
use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::QueuePair;
use uwarp_iwarp::Fault;
use uwarp_tcp::Instant;

impl Rdma {
    /// Stores an incomplete FPDU with its connection. If the budget is used up, older ones are evicted; if it is the
    /// oldest itself, its stream ends.
    #[cold]
    pub(crate) fn put_aside<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        counters: &mut Counters,
        now: Instant,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        gather: Vec<u8>,
    ) {
        let Some(number) = connection.queue_pair.filter(|_| connection.delivers()) else {
            return self.gathers.give(gather);
        };
        let gathers = &mut self.gathers;
        if connection.gather_number == 0 {
            gathers.last += 1;
            connection.gather_number = gathers.last;
            gathers.order.push_back((number, gathers.last));
        }
        let taken = gather.capacity() as u64;
        while self.gathers.octets + taken > self.gathers.budget {
            if !self.evict_gather(connections, counters, now, connection.gather_number) {
                drop(gather);
                return self.fail_stream(counters, now, connection, queue_pair, Fault::LocalCatastrophic.into(), None);
            }
        }
        let gathers = &mut self.gathers;
        gathers.octets += taken;
        gathers.waiting += 1;
        connection.gather = gather;
        if gathers.order.len() > 2 * gathers.waiting + 2 * SPARE {
            self.tidy_gathers(connections, connection.gather_number);
        }
    }

    /// The connection that holds this incomplete FPDU, if it still does.
    fn gathering<B: Buffer>(&self, connections: &Connections<B>, queue_pair: u32, gather: u64) -> Option<u32> {
        let index = self.queue_pairs.get(queue_pair as usize)?.as_ref()?.connection?;
        connections.table.get(index).filter(|connection| connection.gather_number == gather)?;
        Some(index)
    }

    /// Ends the stream that has waited longest for the rest of an FPDU. False if that is number `own`, or there is
    /// none.
    fn evict_gather<B: Buffer>(
        &mut self,
        connections: &mut Connections<B>,
        counters: &mut Counters,
        now: Instant,
        own: u64,
    ) -> bool {
        while let Some((number, gather)) = self.gathers.order.pop_front() {
            if gather == own {
                return false;
            }
            let index = self.gathering(connections, number, gather);
            let Some((index, connection)) = index.and_then(|index| Some((index, connections.table.get_mut(index)?)))
            else {
                continue;
            };
            counters.evicted += 1;
            drop(self.gathers.resume(connection));
            connection.gather_number = 0;
            let mut queue_pair = self.take(connection.queue_pair);
            let failure = Fault::LocalCatastrophic.into();
            self.fail_stream(counters, now, connection, queue_pair.as_deref_mut(), failure, None);
            self.give(queue_pair);
            // Its visit arms the timer anew.
            connection.schedule(&mut connections.ready, index);
            return true;
        }
        false
    }

    /// Removes complete FPDUs from the order.
    fn tidy_gathers<B: Buffer>(&mut self, connections: &Connections<B>, own: u64) {
        let mut order = std::mem::take(&mut self.gathers.order);
        order.retain(|(number, gather)| *gather == own || self.gathering(connections, *number, *gather).is_some());
        self.gathers.order = order;
    }
}
