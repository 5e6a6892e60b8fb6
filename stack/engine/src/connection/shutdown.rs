//! The end of a whole engine: by a shutdown, which closes every connection, or by a failure.

use std::time::Duration;

use uwarp_tcp::{Instant, State};

use crate::api::Shutdown;
use crate::api::command::{AsyncEvent, DisconnectReason, ShutdownReport};
use crate::api::work::Status;
use crate::connection::Connection;
use crate::core::Core;
use crate::link::port::Port;

/// How long the resets at the end of a shutdown may wait for the device.
const TRANSMIT_GRACE: Duration = Duration::from_millis(50);

/// How long a shutdown waits for a mere acknowledgment of a FIN: long enough for several retransmissions.
const FIN_GRACE: Duration = Duration::from_millis(250);

impl<P: Port> Core<P> {
    /// Begins a shutdown.
    pub(crate) fn begin_shutdown(&mut self, linger: Duration, done: crossbeam::channel::Sender<ShutdownReport>) {
        let until = self.now + linger;
        let patient_until = until.min(self.now + FIN_GRACE);
        let report = ShutdownReport::default();
        self.control.shutdown = Some(Shutdown { until, patient_until, drop_at: None, report, done: Some(done) });
        for index in self.connections.table.indexes() {
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            self.disconnect_connection(&mut connection);
            connection.schedule(&mut self.connections.ready, index);
            self.put_back(index, connection);
        }
    }

    pub(crate) fn run_shutdown(&mut self) {
        let Some(shutdown) = &self.control.shutdown else { return };
        if shutdown.done.is_none() || shutdown.until > self.now {
            return;
        }
        for index in self.connections.table.indexes() {
            let Some(mut connection) = self.connections.table.take(index) else { continue };
            if !is_done(&connection) && !has_everything(&connection) {
                let left = connection.tcp.octets_pushed().saturating_sub(connection.tcp.octets_acknowledged());
                if let Some(shutdown) = &mut self.control.shutdown {
                    shutdown.report.reset += 1;
                    shutdown.report.octets_not_acknowledged += left;
                }
                connection.ends_by(DisconnectReason::Aborted);
                self.abort(&mut connection);
            }
            self.put_back(index, connection);
        }
    }

    pub(crate) fn finish_shutdown(&mut self) {
        if self.control.shutdown.as_ref().is_none_or(|shutdown| shutdown.done.is_none()) {
            return;
        }
        let Some(shutdown) = &mut self.control.shutdown else { return };
        let patient = self.now < shutdown.patient_until;
        let done = |connection: &Connection| is_done(connection) || !patient && has_everything(connection);
        if !self.connections.table.iter().all(|(_, connection)| done(connection)) {
            return;
        }
        // A device whose peer is gone takes no more frames: those left a little later are dropped.
        let drop_at = *shutdown.drop_at.get_or_insert(self.now + TRANSMIT_GRACE);
        if !self.link.is_up || drop_at <= self.now {
            self.link.transmit.queue.clear();
        }
        if !self.link.transmit.queue.is_empty() {
            return;
        }
        for index in self.connections.table.indexes() {
            if let Some(mut connection) = self.connections.table.take(index) {
                connection.gone = true;
                self.put_back(index, connection);
            }
        }
        if let Some(shutdown) = &mut self.control.shutdown
            && let Some(done) = shutdown.done.take()
        {
            let _ = done.send(shutdown.report);
        }
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        // Frames that were queued since, as answers to others, are not waited for: the device may never take them.
        self.control.shutdown.as_ref().is_some_and(|shutdown| shutdown.done.is_none())
    }

    /// Ends everything at once after a failure.
    pub(crate) fn fail(&mut self, cause: &str) {
        self.control.events.send(AsyncEvent::DeviceFatal { cause: cause.to_owned() });
        for place in 0..self.rdma.queue_pairs.len() {
            let Some(mut queue_pair) = self.rdma.queue_pairs[place].take() else { continue };
            let had_connection = queue_pair.connection.take().is_some();
            let begun = queue_pair.send.outstanding() > 0;
            self.flush_with(&mut queue_pair, begun.then_some((0, Status::Fatal)), Some(Status::Fatal));
            if had_connection {
                queue_pair.tell_end(DisconnectReason::LocalError(Status::Fatal));
            }
            self.rdma.queue_pairs[place] = Some(queue_pair);
        }
        self.rdma.lanes.settle();
        for index in self.connections.table.indexes() {
            if let Some(connection) = self.connections.table.get_mut(index) {
                connection.stream = None;
            }
        }
        let linger = Duration::ZERO;
        let until = self.now + linger;
        let report = ShutdownReport::default();
        self.control.shutdown = Some(Shutdown { until, patient_until: until, drop_at: None, report, done: None });
        self.link.transmit.queue.clear();
        self.connections.ready.clear();
        self.quiet_until = Instant::ZERO;
    }
}

/// Whether both sides have all data and both have closed; at most the acknowledgment of our FIN is missing.
#[inline]
pub(crate) fn has_everything(connection: &Connection) -> bool {
    matches!(connection.tcp.state(), State::LastAck | State::Closing)
        && connection.tcp.octets_acknowledged() == connection.tcp.octets_pushed()
}

/// Whether a shutdown need not wait for the connection: the peer has everything, our FIN included.
fn is_done(connection: &Connection) -> bool {
    connection.finished || matches!(connection.tcp.state(), State::TimeWait | State::Closed)
}
