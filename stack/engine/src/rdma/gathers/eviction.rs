//! Incomplete FPDUs that are evicted when their budget is used up.

use super::SPARE;
use crate::connection::Connection;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::queue_pair::QueuePair;
use uwarp_iwarp::Fault;

impl<P: Port> Core<P> {
    /// Stores an incomplete FPDU with its connection. If the budget is used up, older ones are evicted; if it is the
    /// oldest itself, its stream ends.
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

    /// The connection that holds this incomplete FPDU, if it still does.
    fn gathering(&self, queue_pair: u32, gather: u64) -> Option<u32> {
        let index = self.rdma.queue_pairs.get(queue_pair as usize)?.as_ref()?.connection?;
        self.connections.table.get(index).filter(|connection| connection.gather_number == gather)?;
        Some(index)
    }

    /// Ends the stream that has waited longest for the rest of an FPDU. False if that is number `own`, or there is
    /// none.
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
            connection.schedule(&mut self.connections.ready, index);
            self.put_back(index, connection);
            return true;
        }
        false
    }

    /// Removes complete FPDUs from the order.
    fn tidy_gathers(&mut self, own: u64) {
        let mut order = std::mem::take(&mut self.rdma.gathers.order);
        order.retain(|(number, gather)| *gather == own || self.gathering(*number, *gather).is_some());
        self.rdma.gathers.order = order;
    }
}
