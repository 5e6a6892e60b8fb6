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

use std::time::Duration;

use uwarp_iwarp::framing::{Framed, deframe};
use uwarp_iwarp::{Fault, Stream};
use uwarp_memory::{Turn, kernels};
use uwarp_tcp::Instant;
use uwarp_wire::rdmap::ImmediateData;

use crate::api::command::AsyncEvent;
use crate::api::work::{CompletionFlags, Status};
use crate::connection::Connection;
use crate::connection::phase::Phase;
use crate::core::Core;
use crate::link::port::Port;
use crate::rdma::Rdma;
use crate::rdma::commits::Hold;
use crate::rdma::queue_pair::QueuePair;
use crate::rdma::receive::Failure;
use crate::rdma::receive_queue::SharedReceiveEvent;
use crate::rdma::running::{Ending, ReceiveWait, Running};

/// First and longest time between two looks for a receive.
const LOOK: (Duration, Duration) = (Duration::from_micros(30), Duration::from_millis(10));
/// Between them, the time grows with this part of the wait so far.
const LOOK_PART: u32 = 8;

impl<P: Port> Core<P> {
    /// No receive is posted for the message that has just begun: makes it wait, or says that it has failed.
    #[cold]
    pub(crate) fn await_receive(
        &mut self,
        running: &mut Running,
        tcp: &mut uwarp_tcp::Connection,
        queue_pair: &mut QueuePair,
    ) -> Result<(), Failure> {
        let message = running.stream.defer();
        let limit = self.config.iwarp.receive_wait;
        match running.receive_wait.filter(|wait| wait.message == message) {
            None => {
                self.rdma.tell_shared_receives(queue_pair);
                if limit.is_zero() || running.ending != Ending::No {
                    return Err(Fault::NoBuffer.into());
                }
                self.counters.receive_waits += 1;
                running.receive_wait = Some(ReceiveWait { message, since: self.now });
            }
            Some(wait) => {
                // It was reported when the wait began.
                let _ = queue_pair.receive.take_event();
                if self.now >= wait.since + limit {
                    self.counters.receive_waits_expired += 1;
                    return Err(Fault::NoBuffer.into());
                }
                // Another queue pair was faster at the shared queue.
            }
        }
        tcp.hold_in_order(true);
        tcp.set_receive_space(0);
        if let Some(index) = queue_pair.connection {
            self.connections.wheel.arm(index, self.now + LOOK.0);
        }
        Ok(())
    }

    /// The FPDU at the start of `rest` has ended the connection, or waits for a receive.
    #[cold]
    pub(crate) fn on_interruption(
        &mut self,
        connection: &mut Connection,
        queue_pair: Option<&mut QueuePair>,
        rest: &[u8],
    ) {
        if connection.awaits_receive() {
            // It counts when it is delivered.
            self.counters.fpdus_received -= 1;
            self.start_gather(connection, queue_pair, rest, Some(rest.len()));
        }
    }

    /// A message waits: goes on with it if there is a receive now, if it has waited too long, or if nothing waits any
    /// more because the stream has ended.
    #[cold]
    pub(crate) fn look_for_receive(&mut self, turn: &Turn<'_>, index: u32, connection: &mut Connection) {
        if let Some(look_at) = self.next_look(connection) {
            return self.connections.wheel.arm(index, look_at);
        }
        connection.tcp.hold_in_order(false);
        self.take_waiting(turn, connection);
        while let Some(held) = connection.tcp.take_in_order() {
            if let Some(next) = self.connections.held.remove(held.token) {
                let from = next.payload_offset as usize;
                self.deliver(turn, index, connection, &next.buffer, from, held.skip, held.len);
            }
        }
        if !connection.awaits_receive() && !connection.gone {
            if let Phase::Running(running) = &mut connection.phase {
                running.receive_wait = None;
            }
            let space = connection.owner_space();
            connection.set_receive_space(space);
            if connection.tcp.peer_has_finished() {
                self.on_peer_fin(index, connection);
            }
        }
        connection.schedule(&mut self.connections.ready, index);
    }

    /// When to look for a receive again; `None` if it is time to go on.
    fn next_look(&mut self, connection: &Connection) -> Option<Instant> {
        let Phase::Running(running) = &connection.phase else { return None };
        let wait = running.receive_wait.filter(|_| running.stream.delivers())?;
        let queue_pair = self.rdma.queue_pair(connection.queue_pair?)?;
        let until = wait.since + self.config.iwarp.receive_wait;
        if self.now >= until || queue_pair.receive.has_element(queue_pair.number) {
            return None;
        }
        let waited = self.now - wait.since;
        Some(until.min(self.now + (waited / LOOK_PART).clamp(LOOK.0, LOOK.1)))
    }

    /// Takes what was put aside with the message that waits.
    fn take_waiting(&mut self, turn: &Turn<'_>, connection: &mut Connection) {
        let crc = match &connection.phase {
            Phase::Running(running) if running.receive_markers => return self.on_marked_stream(turn, connection, &[]),
            Phase::Running(running) => running.crc.then_some(kernels::crc32c as fn(&[u8]) -> u32),
            _ => return self.give_gather(connection),
        };
        let mut gather = self.rdma.gathers.resume(connection);
        connection.gather_number = 0;
        let mut queue_pair = self.take_queue_pair(connection);
        let mut at = 0;
        while at < gather.len() && !connection.gone {
            match deframe(&gather[at..], crc) {
                Framed::Fpdu { ulpdu, fpdu_len } => {
                    self.on_ulpdu(turn, connection, queue_pair.as_deref_mut(), &gather[at..][ulpdu]);
                    if connection.awaits_receive() {
                        break;
                    }
                    self.counters.fpdus_received += 1;
                    at += fpdu_len;
                }
                Framed::Incomplete { .. } => break,
                Framed::BadCrc { .. } => {
                    self.on_bad_crc(connection, queue_pair.as_deref_mut());
                    at = gather.len();
                }
            }
        }
        gather.drain(..at);
        if gather.is_empty() || connection.gone {
            self.rdma.gathers.give(gather);
        } else {
            let Core { rdma, connections, counters, now, .. } = self;
            rdma.put_aside(connections, counters, *now, connection, queue_pair.as_deref_mut(), gather);
        }
        self.give_queue_pair(queue_pair);
    }

    /// Both sides have closed: nobody will take what waits.
    pub(crate) fn discard_waiting(&mut self, connection: &mut Connection) {
        if !connection.awaits_receive() {
            return;
        }
        connection.tcp.hold_in_order(false);
        while let Some(held) = connection.tcp.take_in_order() {
            self.connections.held.remove(held.token);
        }
        self.give_gather(connection);
    }

    fn give_gather(&mut self, connection: &mut Connection) {
        let gather = self.rdma.gathers.resume(connection);
        self.rdma.gathers.give(gather);
    }
}

impl Rdma {
    /// Takes a receive for a new message. False: none is posted; `await_receive` is next.
    #[inline]
    pub(crate) fn begin_receive(&mut self, queue_pair: &mut QueuePair) -> bool {
        let begun = queue_pair.receive.begin(queue_pair.number);
        if begun {
            self.tell_shared_receives(queue_pair);
        }
        begun
    }

    /// Reports what taking a receive has done to the shared queue.
    #[inline]
    fn tell_shared_receives(&mut self, queue_pair: &mut QueuePair) {
        if let Some((queue, news)) = queue_pair.receive.take_event() {
            self.events.send(match news {
                SharedReceiveEvent::Low => AsyncEvent::SharedReceivesLow { queue },
                SharedReceiveEvent::Share => {
                    AsyncEvent::SharedReceivesExceeded { queue, queue_pair: queue_pair.number }
                }
            });
        }
    }

    /// Immediate Data takes a receive and leaves its memory alone: the data goes into the completion (RFC 7306 §6.3).
    pub(crate) fn on_immediate(
        &mut self,
        turn: &Turn<'_>,
        now: Instant,
        queue_pair: &mut QueuePair,
        stream: &Stream,
        data: ImmediateData,
        solicited: bool,
    ) {
        let hold = if queue_pair.written.is_empty() { Hold::Free } else { self.commit_written(turn, now, queue_pair) };
        if let Some(mut completion) = queue_pair.receive.complete(queue_pair.number, 0, Status::Success) {
            completion.flags = CompletionFlags::IMMEDIATE;
            if solicited {
                completion.flags = completion.flags.union(CompletionFlags::SOLICITED);
            }
            completion.immediate = data.0;
            self.tell_receive(queue_pair, stream, completion, hold);
        }
    }
}
