//! The end of a whole engine: by a shutdown, which closes every connection, or by a failure.

use std::time::Duration;

use crossbeam::channel::Sender;
use uwarp_tcp::{Instant, State};
use uwarp_wire::address::FlowKey;

use crate::api::Shutdown;
use crate::api::command::{DisconnectReason, ShutdownReport};
use crate::api::common::Common;
use crate::connection::phase::{Phase, Reader};
use crate::connection::{Connection, Connections};
use crate::link::Link;
use crate::link::port::{Buffer, Port};

/// How long the resets at the end of a shutdown may wait for the device.
const TRANSMIT_GRACE: Duration = Duration::from_millis(50);

/// How long a shutdown waits for a mere acknowledgment of a FIN: long enough for several retransmissions.
const FIN_GRACE: Duration = Duration::from_millis(250);

impl Shutdown {
    /// A shutdown that gives connections `linger` to end in order.
    pub(crate) fn new(now: Instant, linger: Duration, done: Option<Sender<ShutdownReport>>) -> Shutdown {
        let until = now + linger;
        let patient_until = until.min(now + FIN_GRACE);
        Shutdown { until, patient_until, drop_at: None, report: ShutdownReport::default(), done }
    }

    /// Resets the connections that have taken too long.
    pub(crate) fn run<P: Port>(
        &mut self,
        link: &mut Link<P>,
        connections: &mut Connections<P::Buffer>,
        common: &mut Common,
    ) {
        if self.done.is_none() || self.until > common.now {
            return;
        }
        let Connections { table, ending, .. } = connections;
        for (index, connection) in table.disturb_all() {
            if !is_done(connection) && !connection.finished && !has_everything(connection) {
                let left = connection.tcp.octets_pushed().saturating_sub(connection.tcp.octets_acknowledged());
                self.report.reset += 1;
                self.report.octets_not_acknowledged += left;
                connection.ends_by(DisconnectReason::Aborted);
                connection.abort(link, common);
                ending.push((index, None));
            }
        }
    }

    /// Whether all connections and frames are done. Then the connections end, and the report is due.
    pub(crate) fn is_over<P: Port>(
        &mut self,
        link: &mut Link<P>,
        connections: &mut Connections<P::Buffer>,
        now: Instant,
    ) -> bool {
        let (patient, over) = (now < self.patient_until, now >= self.until);
        let done = |connection: &Connection| {
            is_done(connection) || !patient && has_everything(connection) || over && connection.finished
        };
        if self.done.is_none() || !connections.table.iter().all(|(_, connection)| done(connection)) {
            return false;
        }
        // A device whose peer is gone takes no more frames: those left a little later are dropped.
        let drop_at = *self.drop_at.get_or_insert(now + TRANSMIT_GRACE);
        if !link.is_up || drop_at <= now {
            link.drop_waiting();
        }
        if !link.transmit.queue.is_empty() {
            return false;
        }
        let Connections { table, ending, .. } = connections;
        for (index, connection) in table.disturb_all() {
            connection.gone = true;
            ending.push((index, None));
        }
        true
    }

    /// Reports the end.
    pub(crate) fn report(&mut self) {
        if let Some(done) = self.done.take() {
            let _ = done.send(self.report);
        }
    }
}

impl<B: Buffer> Connections<B> {
    /// Whether the flow's connection is left to TCP, and the peer, which is not silent, has not closed it yet.
    pub(crate) fn closes(&self, flow: &FlowKey, now: Instant) -> bool {
        let connection = self.find(flow).and_then(|index| self.table.get(index));
        connection.is_some_and(|connection| {
            matches!(connection.phase, Phase::Closing(_)) && !is_done(connection) && !connection.tcp.is_silent(now)
        })
    }

    /// The engine has failed: no connection gets anything done any more.
    pub(crate) fn fail_all(&mut self) {
        self.table.disturb_all().for_each(|(_, connection)| connection.stream = None);
        self.opening.is_closed = true;
        self.ready.clear();
    }
}

/// Whether both sides have all data and both have closed; at most the acknowledgment of our FIN is missing.
#[inline]
pub(crate) fn has_everything(connection: &Connection) -> bool {
    matches!(connection.tcp.state(), State::LastAck | State::Closing)
        && connection.tcp.octets_acknowledged() == connection.tcp.octets_pushed()
}

/// Whether a shutdown need not wait for the connection: the peer has everything, our FIN included. That of RDMA closes
/// when it has delivered everything; before, a reset of its acknowledgments would take back what waits for a receive.
fn is_done(connection: &Connection) -> bool {
    let is_stream = match &connection.phase {
        Phase::Stream(_) => true,
        Phase::Closing(closing) => closing.reader != Reader::None,
        _ => false,
    };
    connection.finished && is_stream || matches!(connection.tcp.state(), State::TimeWait | State::Closed)
}
