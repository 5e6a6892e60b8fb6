//! Incomplete FPDUs that are evicted when their budget is used up.

use uwarp_iwarp::Fault;

use crate::api::common::Common;
use crate::connection::Connections;
use crate::link::port::Buffer;
use crate::rdma::Rdma;

impl Rdma {
    /// Ends the streams that have waited longest for the rest of an FPDU, until the others are within the budget.
    #[cold]
    pub(crate) fn settle_gathers<B: Buffer>(&mut self, connections: &mut Connections<B>, common: &mut Common) {
        while self.gathers.is_over_budget()
            && let Some((number, gather)) = self.gathers.order.pop_front()
        {
            let index = self.gathering(connections, number, gather);
            // The order keeps the places of those that are complete now.
            let Some(connection) = index.and_then(|index| connections.table.disturb(index)) else { continue };
            common.counters.evicted += 1;
            drop(self.gathers.resume(connection));
            connection.gather_number = 0;
            let mut queue_pair = self.take(Some(number));
            let failure = Fault::LocalCatastrophic.into();
            self.fail_stream(common, connection, queue_pair.as_deref_mut(), failure, None);
            self.give(queue_pair);
            // Its visit arms the timer anew.
            connection.schedule(&mut connections.ready);
        }
        if self.gathers.has_many_places() {
            let mut order = std::mem::take(&mut self.gathers.order);
            order.retain(|(number, gather)| self.gathering(connections, *number, *gather).is_some());
            self.gathers.order = order;
        }
    }

    /// The connection that holds this incomplete FPDU, if it still does.
    fn gathering<B: Buffer>(&self, connections: &Connections<B>, queue_pair: u32, gather: u64) -> Option<u32> {
        let index = self.queue_pairs.get(queue_pair as usize)?.as_ref()?.connection?;
        connections.table.get(index).filter(|connection| connection.gather_number == gather)?;
        Some(index)
    }
}
