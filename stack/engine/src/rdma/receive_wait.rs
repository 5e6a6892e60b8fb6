//! Messages that find no posted receive and wait for one.
//!
//! InfiniBand answers such a message with "receiver not ready", and the peer tries again; many programs rely on that.
//! iWARP has no such answer. It requires an error (RFC 5041 §7.2), which is what
//! [`IwarpConfig::receive_wait`](crate::config::IwarpConfig::receive_wait) puts off. Until then the stream stands
//! still, in order:
//!
//! - The message's first FPDU and the rest of its frame are put aside, like an incomplete FPDU and under its budget.
//! - TCP holds the frames behind them, under the budget for frames out of order, and lets its window close.
//! - Acknowledgments are processed, and what we send leaves. The peer's responses lie behind the message and wait.
//!
//! Posting a receive rings no doorbell, so the connection's timer looks for one: often at first, then ever less.
//!
//! Where both ends have agreed on the rules of InfiniBand, the message itself says how often it may find no receive
//! ([`NotReadyRetries`](uwarp_wire::ddp::NotReadyRetries)), and this side how long it waits each time. It waits here
//! and not where it comes from, so a message that has failed was not received. The stream ends then, and this side's
//! queue pair stays as it is, as one whose peer has gone.

use std::time::Duration;

use uwarp_iwarp::framing::{Framed, deframe};
use uwarp_iwarp::{Delivery, Fault, SendKind, Stream};
use uwarp_memory::Turn;
use uwarp_tcp::Instant;
use uwarp_wire::rdmap::ImmediateData;

use crate::api::command::AsyncEvent;
use crate::api::common::Common;
use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::api::work::{CompletionFlags, Status};
use crate::connection::phase::Phase;
use crate::connection::running::{ReceiveWait, Running};
use crate::connection::{Connection, HeldFrames};
use crate::link::port::Buffer;
use crate::rdma::Rdma;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::receive::{Failure, crc_of, invalidate_fault};
use crate::rdma::receive_queue::SharedReceiveEvent;

/// First and longest time between two looks for a receive.
pub(crate) const FIRST_LOOK: Duration = Duration::from_micros(30);
const LAST_LOOK: Duration = Duration::from_millis(10);
/// Between them, the time grows with this part of the wait so far.
const LOOK_PART: u32 = 8;
/// A process that has not looked for so long at least was stopped.
const STOPPED: Duration = Duration::from_millis(100);

impl ReceiveWait {
    /// Whether the message has waited for long enough. The peer's requests before it are answered first.
    fn is_over(&self, now: Instant, stream: &Stream) -> bool {
        let has_waited = self.limit.is_some_and(|limit| now >= self.since + limit);
        has_waited && !(self.is_agreed && stream.owes_response())
    }

    /// Takes note of a look for a receive.
    fn look(&mut self, now: Instant) {
        let stopped = self.limit.map_or(Duration::MAX, |limit| STOPPED.max(limit / 2));
        if now - self.looked > stopped {
            // This process was stopped, and so was the thread that was to post a receive.
            self.since = now;
        }
        self.looked = now;
    }
}

impl Rdma {
    /// No receive is posted for the message that has just begun: makes it wait, or says that it has failed. While it
    /// waits, the connection's timer has to look for a receive, after [`FIRST_LOOK`] for the first time.
    #[cold]
    pub(super) fn await_receive(
        &mut self,
        common: &mut Common,
        (running, ulpdu): (&mut Running, &[u8]),
        tcp: &mut uwarp_tcp::Connection,
        queue_pair: &mut QueuePair,
    ) -> Result<(), Failure> {
        let message = running.stream.await_receive();
        match running.receive_wait.filter(|wait| wait.message == message) {
            None => {
                self.report_shared_receives(queue_pair);
                let retries = running.stream.retries_of(ulpdu);
                let limit = match retries {
                    None => Some(self.config.receive_wait),
                    Some(retries) => retries.count().map(|count| queue_pair.rules().not_ready.pause * count),
                };
                let is_agreed = retries.is_some();
                if limit == Some(Duration::ZERO) && !is_agreed || !running.ending.is_open() {
                    return Err(Fault::NoBuffer.into());
                }
                common.counters.receive_waits += 1;
                let (since, looked) = (common.now, common.now);
                running.receive_wait = Some(ReceiveWait { message, since, looked, limit, is_agreed });
            }
            Some(wait) => {
                // It was reported when the wait began.
                let _ = queue_pair.receive.take_event();
                if wait.is_over(common.now, &running.stream) {
                    common.counters.receive_waits_expired += 1;
                    return Err(Fault::NoBuffer.into());
                }
                // Another queue pair was faster at the shared queue.
            }
        }
        tcp.hold_in_order(true);
        tcp.set_receive_space(0);
        Ok(())
    }

    /// When to look for a receive again; `None` if it is time to go on: there is one now, the message has waited too
    /// long, or nothing waits any more because the stream has ended.
    pub(crate) fn next_look(&mut self, now: Instant, connection: &mut Connection) -> Option<Instant> {
        // Only TCP may be left.
        let Phase::Running(running) = &mut connection.phase else { return None };
        let delivers = running.stream.delivers();
        let wait = running.receive_wait.as_mut().filter(|_| delivers)?;
        wait.look(now);
        let wait = *wait;
        let is_over = wait.is_over(now, &running.stream);
        let queue_pair = self.queue_pair(connection.queue_pair?)?;
        if is_over || queue_pair.receive.has_element(queue_pair.number) {
            return None;
        }
        let next = now + ((now - wait.since) / LOOK_PART).clamp(FIRST_LOOK, LAST_LOOK);
        let end = wait.limit.map(|limit| wait.since + limit).filter(|end| *end > now);
        Some(end.map_or(next, |end| end.min(next)))
    }

    /// Takes what was put aside with the message that waits.
    pub(crate) fn take_waiting(&mut self, turn: &Turn<'_>, common: &mut Common, connection: &mut Connection) {
        let crc = match &connection.phase {
            Phase::Running(running) if running.receive_markers => {
                return self.on_marked_stream(turn, common, connection, &[]);
            }
            Phase::Running(running) => crc_of(running),
            _ => {
                common.counters.count_drop(DropReason::StreamEnded);
                return self.gathers.discard(connection);
            }
        };
        let mut gather = self.gathers.resume(connection);
        connection.gather_number = 0;
        let mut queue_pair = self.take(connection.queue_pair);
        let mut at = 0;
        while at < gather.len() && !connection.gone {
            match deframe(&gather[at..], crc) {
                Framed::Fpdu { ulpdu, fpdu_len } => {
                    let contents = &gather[at..][ulpdu];
                    if !self.on_ulpdu(turn, common, connection, queue_pair.as_deref_mut(), contents) {
                        connection.withhold(gather.len() - at - fpdu_len + 1);
                        if connection.awaits_receive() {
                            break;
                        }
                    }
                    common.counters.fpdus_received += 1;
                    at += fpdu_len;
                }
                Framed::Incomplete { .. } => break,
                Framed::BadCrc { .. } => {
                    connection.withhold(gather.len() - at);
                    self.on_bad_crc(common, connection, queue_pair.as_deref_mut());
                    at = gather.len();
                }
            }
        }
        gather.drain(..at);
        self.gathers.put_aside(connection, gather);
        self.give(queue_pair);
    }

    /// Both sides have closed: nobody will take what waits.
    pub(crate) fn discard_waiting<B: Buffer>(
        &mut self,
        counters: &mut Counters,
        held: &mut HeldFrames<B>,
        connection: &mut Connection,
    ) {
        if !connection.awaits_receive() {
            return;
        }
        counters.count_drop(DropReason::StreamEnded);
        connection.tcp.hold_in_order(false);
        while let Some(waiting) = connection.tcp.take_in_order() {
            held.remove(waiting.token);
        }
        self.gathers.discard(connection);
    }
}

impl Connection {
    /// What has waited for a receive was taken, and the octets behind it.
    pub(crate) fn end_receive_wait(&mut self) {
        if let Phase::Running(running) = &mut self.phase {
            running.receive_wait = None;
        }
        let space = self.owner_space();
        self.set_receive_space(space);
    }
}

impl Rdma {
    /// Takes a receive for a new message. False: none is posted; `await_receive` is next.
    #[inline]
    pub(crate) fn begin_receive(&mut self, queue_pair: &mut QueuePair) -> bool {
        let begun = queue_pair.receive.begin(queue_pair.number);
        if begun {
            self.report_shared_receives(queue_pair);
        }
        begun
    }

    /// Reports what taking a receive has done to the shared queue.
    #[inline]
    fn report_shared_receives(&mut self, queue_pair: &mut QueuePair) {
        if let Some((queue, news)) = queue_pair.receive.take_event() {
            self.events.send(match news {
                SharedReceiveEvent::Low => AsyncEvent::SharedReceivesLow { queue },
                SharedReceiveEvent::Share => {
                    AsyncEvent::SharedReceivesExceeded { queue, queue_pair: queue_pair.number }
                }
            });
        }
    }

    /// Reports the peer's first message or request. What only opens the stream is none.
    #[cold]
    pub(super) fn report_first(&self, running: &mut Running, queue_pair: u32, delivery: &Delivery<'_>) {
        let opens = match delivery {
            Delivery::ReadyToReceive { .. } | Delivery::Terminate(_) => true,
            Delivery::Write { payload, .. } => payload.is_empty(),
            Delivery::ReadRequest(read) => read.request.length == 0,
            _ => false,
        };
        if !running.receive_markers && !opens {
            running.receives_long = false;
            self.events.send(AsyncEvent::FirstMessage { queue_pair });
        }
    }

    /// The last octets of a Send were placed.
    #[inline]
    pub(super) fn complete_receive(
        &mut self,
        common: &mut Common,
        turn: &Turn<'_>,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        kind: SendKind,
        length: u32,
    ) -> Result<(), Failure> {
        // Before an STag is made invalid, which may be that of what was written.
        let hold = self.hold_for(turn, common.now, queue_pair);
        if let Some(stag) = kind.invalidates() {
            let shared = queue_pair.domain_is_shared();
            turn.invalidate(queue_pair.association, stag.0, shared)
                .map_err(|error| Failure::from(invalidate_fault(error)))?;
        }
        let Some(mut completion) = queue_pair.receive.complete(queue_pair.number, length, Status::Success) else {
            common.counters.cannot_be("a message ends that has taken no receive");
            return Ok(());
        };
        if kind.is_solicited() {
            completion.flags = completion.flags.union(CompletionFlags::SOLICITED);
        }
        if let Some(stag) = kind.invalidates() {
            completion.flags = completion.flags.union(CompletionFlags::INVALIDATED);
            completion.invalidated = stag.0;
        }
        if let Some(data) = kind.immediate() {
            completion.flags = completion.flags.union(CompletionFlags::IMMEDIATE).union(CompletionFlags::WITH_SEND);
            completion.immediate = data.into();
        }
        self.deliver_receive(queue_pair, stream, completion, hold);
        Ok(())
    }

    /// Immediate Data takes a receive and leaves its memory alone: the data goes into the completion (RFC 7306 §6.3).
    pub(crate) fn on_immediate(
        &mut self,
        common: &mut Common,
        turn: &Turn<'_>,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        (data, solicited): (ImmediateData, bool),
    ) {
        let hold = self.hold_for(turn, common.now, queue_pair);
        let Some(mut completion) = queue_pair.receive.complete(queue_pair.number, 0, Status::Success) else {
            return common.counters.cannot_be("a message ends that has taken no receive");
        };
        completion.flags = CompletionFlags::IMMEDIATE;
        if solicited {
            completion.flags = completion.flags.union(CompletionFlags::SOLICITED);
        }
        completion.immediate = data.0;
        self.deliver_receive(queue_pair, stream, completion, hold);
    }
}
