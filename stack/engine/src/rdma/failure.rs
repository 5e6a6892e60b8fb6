//! The end of a stream by a fault, a Terminate or an overflow, and the flush of posted work.

use uwarp_iwarp::fault::LocalStatus;
use uwarp_iwarp::terminate::{ReceivedTerminate, RemoteStatus};
use uwarp_iwarp::{Fault, Message};

use crate::api::command::{AsyncEvent, ConnectionEvent, DisconnectReason, EventSink, TerminateCode};
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::work::Status;
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::connection::running::{Ending, Limit, Outgoing, Source};
use crate::rdma::Rdma;
use crate::rdma::choose::Refused;
use crate::rdma::commits::Commits;
use crate::rdma::lanes::Lanes;
use crate::rdma::queue_pair::{QueuePair, Stage};
use crate::rdma::receive::{Failure, read_fault};

impl QueuePair {
    /// Completes all posted work in order, as flushed. The send element at slot `send.0` from the head and the oldest
    /// receive get their own status. Completions that do not fit wait in the backlog of their lane.
    pub(crate) fn flush(
        &mut self,
        lanes: &mut Lanes,
        commits: &mut Commits,
        events: &EventSink<AsyncEvent>,
        counters: &mut Counters,
        send: Option<(usize, Status)>,
        receive: Option<Status>,
    ) {
        let was_flushed = std::mem::replace(&mut self.stage, Stage::Error) == Stage::Error;
        let head = self.send.position() - self.send.begun() as u64;
        let failing = send.map(|(at, status)| (head + at as u64, status));
        loop {
            let at = self.send.position() - self.send.begun() as u64;
            let status = failing.filter(|(place, _)| *place == at).map_or(Status::Flushed, |(_, status)| status);
            let Some(completion) = self.send.flush_one(self.number, status) else { break };
            if !lanes.push(self.send_completions, completion) {
                counters.completion_overflows += 1;
            }
        }
        if !self.held.is_empty() {
            self.flush_held(lanes, counters);
        }
        self.written.clear();
        self.waiting_commits.clear();
        commits.abandon(self.number);
        let mut status = receive.unwrap_or(Status::Flushed);
        while let Some(completion) = self.receive.flush_one(self.number, status) {
            if !lanes.push(self.receive_completions, completion) {
                counters.completion_overflows += 1;
            }
            status = Status::Flushed;
        }
        if let Some(queue) = self.receive.shared_queue().filter(|_| !was_flushed) {
            events.send(AsyncEvent::LastReceiveReached { queue, queue_pair: self.number });
        }
    }
}

impl Rdma {
    /// Flushes a queue pair by its number.
    pub(crate) fn flush(&mut self, counters: &mut Counters, number: u32) {
        let Rdma { queue_pairs, lanes, commits, events, .. } = self;
        if let Some(Some(queue_pair)) = queue_pairs.get_mut(number as usize) {
            queue_pair.flush(lanes, commits, events, counters, None, None);
        }
    }

    /// The peer of a queue pair that outlives it has gone, or is given up. Work that is posted fails, and the queue
    /// pair with it; without such, it waits for some.
    pub(crate) fn desert(&mut self, common: &mut Common, number: u32, reason: DisconnectReason) {
        let Rdma { queue_pairs, lanes, commits, events, .. } = self;
        let Some(Some(queue_pair)) = queue_pairs.get_mut(number as usize) else { return };
        queue_pair.stage = Stage::Deserted;
        // Requests that are held fail when the queue goes on.
        let is_begun = queue_pair.send.begun() > 0 || queue_pair.send.is_cutting();
        if is_begun || !queue_pair.rules().holds_sends && queue_pair.send.outstanding() > 0 {
            let first = Some((0, Status::PeerGone));
            queue_pair.flush(lanes, commits, events, &mut common.counters, first, None);
        }
        // Who hears of the end may take it for all: what waits for completions is woken first.
        lanes.settle();
        if queue_pair.stage == Stage::Error {
            queue_pair.report(ConnectionEvent::Disconnected(reason));
            self.sweep_soon(number, common.now);
        }
    }

    /// As [`QueuePair::flush`], for one that is taken out of the table.
    pub(crate) fn flush_with(
        &mut self,
        counters: &mut Counters,
        queue_pair: &mut QueuePair,
        send: Option<(usize, Status)>,
        receive: Option<Status>,
    ) {
        queue_pair.flush(&mut self.lanes, &mut self.commits, &self.events, counters, send, receive);
    }
}

impl Rdma {
    /// Ends a stream because this side found a fault.
    #[cold]
    pub(crate) fn fail_stream(
        &mut self,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        failure: Failure,
        ulpdu: Option<&[u8]>,
    ) {
        let Some(running) = connection.phase.running(&mut common.counters) else { return };
        if running.stream.state().flushes() {
            // The first fault counts (RFC 5040 §7.1 (4)), and its time limit must not be restarted.
            return;
        }
        let message = running.stream.fail(failure.fault, ulpdu);
        self.end_by_fault(common, connection, queue_pair, failure, message);
    }

    /// As [`Rdma::fail_stream`], with a Terminate that is built already; `None` if none is to be sent.
    #[cold]
    pub(crate) fn end_by_fault(
        &mut self,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        failure: Failure,
        message: Option<Message>,
    ) {
        let row = failure.fault.row();
        let code = TerminateCode { layer: row.layer, error_type: row.error_type, code: row.code };
        connection.ends_by(DisconnectReason::LocalTerminated(code));
        if let Some(queue_pair) = queue_pair {
            // What was sent before this in the turn, or acknowledged in it, has succeeded.
            queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
            if connection.has_waited_in_vain() && failure.fault == Fault::NoBuffer && queue_pair.outlives_peer() {
                // It fails where it comes from.
                return self.close_by_terminate(common, connection, message);
            }
            let send = failure.send.filter(|_| queue_pair.send.begun() > 0).map(|status| (0, status));
            let was_flushed = queue_pair.stage == Stage::Error;
            self.flush_with(&mut common.counters, queue_pair, send, failure.receive);
            if !was_flushed {
                self.announce_fatal(queue_pair, connection, failure);
            }
        }
        self.close_by_terminate(common, connection, message);
    }

    /// Has a Terminate of this side end the stream; `None` if none is to be sent.
    fn close_by_terminate(&self, common: &mut Common, connection: &mut Connection, message: Option<Message>) {
        connection.quiet = false;
        let Some(running) = connection.phase.running(&mut common.counters) else { return };
        running.limit = Limit::Close(common.now + self.config.terminate_drain);
        running.outgoing = None;
        // Nothing can be sent after our FIN.
        let may_say = std::mem::replace(&mut running.ending, Ending::Closed) != Ending::Closed;
        if message.is_some() && may_say {
            running.terminate = message;
        } else if running.terminate.is_none() {
            // Otherwise an earlier fault's Terminate is still to be sent, and FIN follows it.
            connection.close_tcp(common.now);
        }
    }

    /// Reports that a queue pair went to the error state: with the status of the work that failed, or else why the
    /// stream ended.
    fn announce_fatal(&self, queue_pair: &QueuePair, connection: &Connection, failure: Failure) {
        let status = failure.receive.or(failure.send).unwrap_or(match (connection.end, failure.fault.local_status()) {
            (Some(DisconnectReason::LocalError(status)), _) => status,
            (_, LocalStatus::Fatal) => Status::Fatal,
            _ => Status::PeerProtocol,
        });
        self.events.send(AsyncEvent::QueuePairFatal { queue_pair: queue_pair.number, status });
    }

    /// What comes next cannot be carried out.
    #[cold]
    pub(crate) fn fail_refused(
        &mut self,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        refused: Refused,
    ) {
        let Some(running) = connection.phase.running(&mut common.counters) else { return };
        let (fault, message) = match refused {
            Refused::Work(status) => return self.fail_work(common, connection, queue_pair, status),
            Refused::Answer(fault) => (fault, running.stream.fail_atomic(fault)),
            Refused::Memory(error) => match running.outgoing.take() {
                Some(Outgoing { source: Source::Response { .. }, message, .. }) => {
                    let fault = read_fault(error);
                    (fault, running.stream.fail_response(fault, &message))
                }
                _ => return self.fail_work(common, connection, queue_pair, Status::LocalProtection),
            },
        };
        let failure = Failure { fault, receive: None, send: None };
        self.end_by_fault(common, connection, Some(queue_pair), failure, message);
    }

    /// The element at the head of what is not begun fails: it gets `status`, the rest is flushed, the stream ends.
    #[cold]
    fn fail_work(
        &mut self,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        status: Status,
    ) {
        queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
        let Some(running) = connection.phase.running(&mut common.counters) else { return };
        let fault = Fault::LocalCatastrophic;
        let message = running.stream.fail(fault, None);
        connection.ends_by(DisconnectReason::LocalError(status));
        let failure = Failure { fault, receive: None, send: None };
        let at = queue_pair.send.begun();
        let was_flushed = queue_pair.stage == Stage::Error;
        self.flush_with(&mut common.counters, queue_pair, Some((at, status)), None);
        if !was_flushed {
            self.announce_fatal(queue_pair, connection, failure);
        }
        self.end_by_fault(common, connection, Some(queue_pair), failure, message);
    }

    /// The peer's Terminate: the oldest outstanding work is what it speaks of, as far as can be told.
    #[cold]
    pub(crate) fn on_peer_terminate(
        &mut self,
        common: &mut Common,
        connection: &mut Connection,
        queue_pair: &mut QueuePair,
        terminate: &ReceivedTerminate,
    ) {
        common.counters.terminates_received += 1;
        let message = &terminate.terminate;
        let code = TerminateCode { layer: message.layer.code(), error_type: message.error_type, code: message.code };
        let is_infiniband = connection.has_rules_of_infiniband();
        let status = match terminate.status() {
            RemoteStatus::RemoteAccess => Status::RemoteAccess,
            RemoteStatus::ReceiverNotReady if is_infiniband => Status::ReceiverNotReady,
            RemoteStatus::RemoteInvalidRequest if is_infiniband => Status::RemoteInvalidRequest,
            _ => Status::RemoteOperation,
        };
        connection.ends_by(DisconnectReason::PeerTerminated(code));
        self.events.send(AsyncEvent::PeerTerminated { queue_pair: queue_pair.number, code });
        if connection.acknowledges_placed() {
            // So does the peer, and what its Terminate acknowledges has succeeded.
            queue_pair.retire(&mut self.lanes, connection.tcp.octets_acknowledged());
        }
        let began = queue_pair.send.begun() > 0 || queue_pair.send.is_cutting();
        // Without a request of ours, the peer has failed by one of its own, which disturbs nobody.
        if began || !(is_infiniband && queue_pair.outlives_peer()) {
            self.flush_with(&mut common.counters, queue_pair, began.then_some((0, status)), None);
        }
        if let Phase::Running(running) = &mut connection.phase {
            running.limit = Limit::Close(common.now + self.config.terminate_drain);
            running.outgoing = None;
            running.terminate = None;
            running.ending = Ending::Closed;
        }
        connection.close_tcp(common.now);
    }

    /// A completion did not fit. Nothing is lost, but the queue pair cannot continue.
    #[cold]
    pub(crate) fn on_overflow(&mut self, common: &mut Common, connection: &mut Connection, queue_pair: &mut QueuePair) {
        let Some(queue) = queue_pair.overflowed.take() else { return };
        if queue_pair.stage == Stage::Error {
            return;
        }
        common.counters.completion_overflows += 1;
        let number = queue_pair.number;
        self.events.send(AsyncEvent::CompletionQueueOverflow { queue, queue_pair: number });
        connection.ends_by(DisconnectReason::LocalError(Status::CompletionQueueOverflow));
        let Some(running) = connection.phase.running(&mut common.counters) else { return };
        let fault = Fault::LocalCatastrophic;
        let message = running.stream.fail(fault, None);
        let failure = Failure { fault, receive: None, send: None };
        self.end_by_fault(common, connection, Some(queue_pair), failure, message);
        queue_pair.overflowed = None;
    }
}
