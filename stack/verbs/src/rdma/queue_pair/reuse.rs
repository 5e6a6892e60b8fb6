//! Queue pairs that are fenced, flushed, reset, and destroyed at once.

use super::{LastConnection, QueuePairControl, QueuePairState, SendHalf, Stage, Unbound};
use crate::error::Error;
use crate::runtime::core::Origin;
use crossbeam::channel::bounded;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uwarp_engine::command::{Abandoned, Command, Features, Rules};
use uwarp_memory::Access;

/// How long an engine may take to forget a queue pair before that is left to it, if `linger` is less.
const FORGET_LIMIT: Duration = Duration::from_secs(1);

impl QueuePairControl {
    /// Takes the queue pair away from its engine, with what is posted.
    pub(super) fn take_back(&mut self) -> Result<Unbound, Error> {
        self.shared.check_here()?;
        let (reply, answer) = bounded(1);
        self.shared.engines[self.engine].command(Command::AbandonQueuePair { queue_pair: self.number, reply });
        let Abandoned { send_queue, receive_queue, membership } =
            self.shared.reply(self.engine, &answer)?.ok_or(Error::ContextClosed)?;
        self.drain_events();
        Ok(Unbound { send: send_queue, receive: receive_queue, membership })
    }

    /// Changes what the peer may do, see [`QueuePairChange::access`](crate::QueuePairChange#structfield.access).
    pub(super) fn set_access(&mut self, access: Access) -> Result<(), Error> {
        if self.unbound.is_none() {
            self.shared.check_here()?;
            let (done, answer) = bounded(1);
            let command = Command::SetAccess { queue_pair: self.number, access, done };
            self.shared.engines[self.engine].command(command);
            self.shared.reply(self.engine, &answer)?;
        }
        self.made.access = access;
        Ok(())
    }

    /// Changes how messages wait for receives and whether requests are held, see
    /// [`QueuePairChange`](crate::QueuePairChange).
    pub(super) fn set_rules(&mut self, rules: Rules) -> Result<(), Error> {
        if self.unbound.is_none() && rules != self.made.rules {
            self.shared.check_here()?;
            let (done, answer) = bounded(1);
            let command = Command::SetRules { queue_pair: self.number, rules, done };
            self.shared.engines[self.engine].command(command);
            self.shared.reply(self.engine, &answer)?;
        }
        self.made.rules = rules;
        Ok(())
    }

    /// Has the send queue take requests from now on, before there is a connection: they wait for it. An engine has the
    /// queue pair then, and `features` are what its connection will have.
    ///
    /// # Errors
    /// [`Error::State`] if it is not idle, and what starting the context's engines fails with.
    pub fn take_requests_early(&mut self, features: Features) -> Result<(), Error> {
        self.bind(None)?;
        self.gate.set_features(features);
        self.gate.established().store(true, Ordering::Release);
        Ok(())
    }

    /// Makes the queue pair one of unreliable datagrams (RoCE v2), or gives it another key. It receives from now on,
    /// and takes [`SendRequest::datagram`](crate::SendRequest::datagram): nothing else of the send queue's may be
    /// posted. `number` is its number on the network, 24 bits, and no other queue pair of its addresses may have it. On
    /// a switch the upper nine bits are the context's [`switch_place`](crate::Context::switch_place) and one: others
    /// are not passed on.
    ///
    /// A received datagram takes a receive, or is lost. Its memory begins with [`GRH_LEN`](crate::GRH_LEN) octets that
    /// say where it came from, and its completion has a
    /// [`datagram_source`](crate::Completion::datagram_source).
    ///
    /// # Errors
    /// [`Error::State`] if it has had a connection, and what starting the context's engines fails with.
    pub fn begin_datagrams(&mut self, number: u32, key: u32) -> Result<(), Error> {
        if !self.made.is_of_datagrams {
            self.bind(None)?;
        }
        self.shared.check_here()?;
        let (done, answer) = bounded(1);
        self.shared.engines[self.engine].command(Command::BeginDatagrams {
            queue_pair: self.number,
            number,
            key,
            done,
        });
        self.shared.reply(self.engine, &answer)?;
        if !self.made.is_of_datagrams {
            self.made.is_of_datagrams = true;
            self.state = QueuePairState::Connected;
            self.gate.established().store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Exchanges the receive queues of two queue pairs that no engine has, with where their completions go. So one can
    /// be connected to itself: over a second one, which receives in its place. Completions name that one.
    ///
    /// # Errors
    /// [`Error::State`] if an engine has either, [`Error::Argument`] if they are of different protection domains.
    pub fn exchange_receives(&mut self, other: &mut QueuePairControl) -> Result<(), Error> {
        if (self.shared.id, self.domain) != (other.shared.id, other.domain) {
            return Err(Error::argument("the other queue pair", "of another protection domain", "use one of the same"));
        }
        let state = if self.unbound.is_none() { self.state() } else { other.state() };
        let (Some(own), Some(others)) = (&mut self.unbound, &mut other.unbound) else {
            return Err(Error::State { state: state.name(), expected: "reset the queue pair, or create a new one" });
        };
        std::mem::swap(&mut own.receive, &mut others.receive);
        std::mem::swap(&mut self.made.receive_slots, &mut other.made.receive_slots);
        std::mem::swap(&mut self.shared_receives, &mut other.shared_receives);
        std::mem::swap(&mut self.completion_queues[1], &mut other.completion_queues[1]);
        Ok(())
    }

    /// Connects no more, and ends the attempt that is under way. The queue pair stays as one whose peer has gone, and
    /// what was posted early fails
    /// ([`QueuePairChange::outlives_peer`](crate::QueuePairChange#structfield.outlives_peer)). Nothing happens to one
    /// that is connected.
    pub fn give_up_peer(&mut self) {
        if self.unbound.is_none() {
            self.shared.engines[self.engine].command(Command::GiveUpPeer { queue_pair: self.number });
        }
    }

    /// Moves the queue pair to its end, whether it has a connection or not: what was posted is flushed, and so is what
    /// is posted from now on. A connection ends as by [`abort`](Self::abort). [`reset`](Self::reset) makes the queue
    /// pair like new. This does not wait, see [`wait_disconnected`](Self::wait_disconnected).
    ///
    /// # Errors
    /// The queue pair was idle, so nothing has started the context's engines, and they cannot be started.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.state() == QueuePairState::Idle {
            self.bind(None)?;
            self.state = QueuePairState::Disconnecting;
        }
        if self.state != QueuePairState::Disconnected {
            self.abort();
        }
        // Nothing is carried out any more, so nothing has to be agreed on.
        self.gate.set_features(Features { atomics: true, immediate: true, commit: true, infiniband: true });
        // Without a connection the engine would never say so.
        self.gate.established().store(true, Ordering::Release);
        Ok(())
    }

    /// Makes a queue pair whose connection has failed or ended like new: idle, with the same number and nothing posted.
    /// It can connect or accept again, on any engine. `send` is its send queue.
    ///
    /// # Errors
    /// [`Error::State`] while it has a connection: [`abort`](Self::abort) that, and wait for its end.
    /// [`Error::Argument`] for another queue pair's send queue.
    pub fn reset(&mut self, send: &mut SendHalf) -> Result<(), Error> {
        self.drain_events();
        if !matches!(self.state, QueuePairState::Idle | QueuePairState::Disconnected) {
            let expected = "end the connection first, or destroy the queue pair";
            return Err(Error::State { state: self.state.name(), expected });
        }
        if !send.is_of(&self.gate) {
            return Err(Error::argument("the send half", "of another queue pair", "use that of the same one"));
        }
        let mut unbound = match self.unbound.take() {
            Some(unbound) => unbound,
            None => self.take_back()?,
        };
        for ring in [&mut unbound.send, &mut unbound.receive] {
            let posted = ring.available();
            ring.release(posted);
        }
        self.unbound = Some(unbound);
        (self.state, self.last) = (QueuePairState::Idle, LastConnection::default());
        self.made.is_of_datagrams = false;
        self.made.access = Access::ALL;
        self.made.rules = Rules { outlives_peer: self.made.rules.outlives_peer, ..Rules::default() };
        send.close();
        Ok(())
    }

    /// Ends the queue pair at once: nothing of it completes any more. Its connection closes behind what was sent, or is
    /// reset if a message is half sent.
    ///
    /// This returns when the peer has closed, too, as it does behind all that it receives, and the last frames are with
    /// the device, or delivered by a switch: the process may end at once. It waits for at most the configuration's
    /// `linger`, and not for a peer that does not answer three retransmissions. TCP then goes on, for up to 30 s, as
    /// long as the process lives. (By another thread than that of an inline context, the engine forgets the queue pair
    /// when it turns next.)
    pub fn destroy(mut self) {
        self.is_destroyed = true;
        if self.unbound.is_some() {
            return self.shared.objects.queue_pairs.put(self.number);
        }
        let (reply, abandoned) = bounded(1);
        self.shared.engines[self.engine].command(Command::AbandonQueuePair { queue_pair: self.number, reply });
        let limit = self.shared.config.linger.max(FORGET_LIMIT);
        // An engine that does not answer in time does so later. The number rests as that of any other.
        let stage = match self.shared.receive(&abandoned, Origin::One(self.engine), Instant::now().checked_add(limit)) {
            Ok(_) => {
                self.shared.deliver();
                self.unread()
            }
            Err(_) => Stage::Abandoned { abandoned },
        };
        self.shared.linger(self.lingering(stage));
    }
}
