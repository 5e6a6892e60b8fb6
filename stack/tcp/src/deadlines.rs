//! What happens when a timer of a connection expires.

use core::time::Duration;

use crate::KeepAlive;
use crate::connection::Connection;
use crate::event::Events;
use crate::instant::{Instant, nanos};
use crate::queue::Fate;
use crate::recovery::{Doubt, Mode};
use crate::state::{CloseReason, Phase, StateEvent};

impl Connection {
    /// When to call [`Connection::on_deadline`]; `None` if only a segment or the owner can cause activity. It may be
    /// earlier than any visible effect.
    #[inline(always)]
    pub fn deadline(&self) -> Option<Instant> {
        let mut earliest = self.timers.earliest().min(self.receiver.acks.at());
        if let Phase::TimeWait { until } | Phase::FinWait2 { until } = self.phase {
            earliest = earliest.min(until);
        }
        earliest.finite()
    }

    /// A time before which no timer expires that [`Connection::on_usual_segment`] or [`Connection::send_at_once`] has
    /// started at `now`, or starts later while nothing else is called but they.
    #[inline]
    pub fn soonest_timer(&self, now: Instant) -> Instant {
        // They start timers of delayed acknowledgment, retransmission and probe, which run for so long at least, and
        // rarely those of keep-alive and of the user.
        let soonest = now.after_nanos(self.receiver.acks.delay().min(self.sender.rtt.least_timeout()));
        let keep_alive = self.config.keep_alive.map_or(Instant::NEVER, |probes| now.after_nanos(nanos(probes.idle)));
        let user = self.config.user_timeout.map_or(Instant::NEVER, |patience| now.after_nanos(nanos(patience)));
        soonest.min(keep_alive).min(user).min(self.timers.keep_alive).min(self.timers.user)
    }

    /// Handles the timers that are due by `now`; then [`Connection::poll_transmit`] may have a segment. An early call
    /// is harmless.
    pub fn on_deadline(&mut self, now: Instant) -> Events {
        match self.phase {
            Phase::Closed { .. } => return Events::NONE,
            Phase::TimeWait { until } if now >= until => {
                self.finish(StateEvent::WaitOver, CloseReason::Finished);
                return Events::CLOSED;
            }
            Phase::FinWait2 { until } if now >= until => {
                self.finish(StateEvent::WaitOver, CloseReason::TimedOut);
                return Events::CLOSED | Events::TIMED_OUT;
            }
            _ => {}
        }
        self.receiver.acks.expire(now);
        if now >= self.timers.user && self.user_timeout_expired(now) {
            return self.give_up();
        }
        if now >= self.timers.reorder {
            let outstanding = self.sender.outstanding();
            if self.find_losses(now) {
                self.begin_recovery(outstanding);
            }
        }
        if now >= self.timers.probe {
            self.timers.probe = Instant::NEVER;
            if self.sender.recovery.may_probe(&self.sender.queue) && !self.sender.queue.segments().is_empty() {
                // RFC 8985 §7.3: the retransmission timer restarts after the probe.
                self.pending.tail_probe = true;
                self.timers.retransmit = now.after_nanos(self.sender.rtt.timeout());
            }
        }
        if now >= self.timers.retransmit && self.retransmission_expired(now) {
            return self.give_up();
        }
        if now >= self.timers.persist {
            self.pending.window_probe = true;
            self.liveness.window_probes = self.liveness.window_probes.saturating_add(1);
            self.timers.persist = now.after_nanos(self.window_probe_interval());
        }
        if now >= self.timers.keep_alive && self.keep_alive_expired(now) {
            return self.give_up();
        }
        Events::NONE
    }

    /// The peer does not answer: closes, with a reset in case the peer still receives.
    fn give_up(&mut self) -> Events {
        let reset = match self.phase {
            Phase::SynSent => None,
            _ => Some(self.last_reset()),
        };
        self.finish(StateEvent::TimeOut, CloseReason::TimedOut);
        self.pending.reset = reset;
        Events::TIMED_OUT | Events::CLOSED
    }

    /// The connection is open: starts the timers that always run.
    pub(crate) fn open_timers(&mut self, now: Instant) {
        self.timers.retransmit = Instant::NEVER;
        self.timers.keep_alive =
            self.config.keep_alive.map_or(Instant::NEVER, |keep_alive| now.after_nanos(nanos(keep_alive.idle)));
    }

    /// The oldest octet in flight has changed: RFC 6298 §5.2 and §5.3, RFC 8985 §7.2.
    #[inline(always)]
    pub(crate) fn schedule_retransmission(&mut self, now: Instant) {
        if self.sender.queue.segments().is_empty() {
            self.timers.retransmit = Instant::NEVER;
            self.timers.probe = Instant::NEVER;
            self.timers.reorder = Instant::NEVER;
            return;
        }
        self.timers.retransmit = now.after_nanos(self.sender.rtt.timeout());
        self.timers.probe = if self.options.sack && self.sender.recovery.may_probe(&self.sender.queue) {
            now.after_nanos(self.sender.rtt.probe_timeout())
        } else {
            Instant::NEVER
        };
    }

    /// Whether the user time-out has really expired; rearms it if not.
    fn user_timeout_expired(&mut self, now: Instant) -> bool {
        let Some(patience) = self.config.user_timeout else {
            self.timers.user = Instant::NEVER;
            return false;
        };
        if self.sender.queue.segments().is_empty() && self.timers.persist == Instant::NEVER {
            self.timers.user = Instant::NEVER;
            return false;
        }
        let over = self.liveness.waiting_since.after_nanos(nanos(patience));
        if now < over {
            self.timers.user = over;
            return false;
        }
        // Retransmissions or probes that were due long ago have not been sent, so this host was suspended. The peer may
        // have answered since, or was suspended as well: probe it first.
        let patience = nanos(patience);
        let slept = now >= self.timers.retransmit.min(self.timers.persist).after_nanos(patience / 2);
        if slept {
            self.liveness.waiting_since = now;
            self.timers.user = now.after_nanos(patience);
        }
        !slept
    }

    /// RFC 6298 §5.4 to §5.7. Returns whether to close the connection.
    fn retransmission_expired(&mut self, now: Instant) -> bool {
        self.timers.retransmit = Instant::NEVER;
        let Some(first) = self.sender.queue.segments().front() else { return false };
        if self.phase == Phase::SynSent || matches!(self.phase, Phase::SynReceived) {
            if self.sender.rtt.backoff() >= self.config.syn_retries {
                return true;
            }
            self.counters.timeouts += 1;
            self.sender.rtt.expired();
            self.sender.queue.set_fate(0, Fate::Lost);
            return false;
        }
        self.counters.timeouts += 1;
        let first_end = first.end();
        if first.fate == Fate::Sacked {
            // RFC 2018 §8: the peer holds the next octet but does not acknowledge it, so it has discarded what it
            // reported.
            self.sender.queue.forget_sacks();
        }
        let flight = self.sender.outstanding().min(self.sender.congestion.window());
        // RFC 5681 §3.1, equation 4, for data that this timer has already retransmitted. An acknowledgment in between
        // makes it a new time-out where timestamps tell what it answers. Without them the back-off remains (RFC 6298
        // §5.5), and the remaining data counts as retransmitted.
        let repeated = matches!(self.sender.recovery.mode, Mode::Loss { .. }) && self.sender.rtt.backoff() > 0;
        // RFC 5682 §2.1, step 1: a time-out of data that was already retransmitted says nothing.
        let again = matches!(self.sender.recovery.mode, Mode::Loss { .. });
        self.sender.recovery.doubt =
            if again || self.timestamps.enabled { Doubt::No } else { Doubt::Resent { end: first_end } };
        if !repeated {
            self.sender.recovery.arm_undo(false);
        }
        self.sender.congestion.timeout(flight, !repeated);
        self.ecn.reduced(self.sender.queue.next());
        self.sender.rtt.expired();
        self.sender.recovery.mark_on_timeout(now, &mut self.sender.queue, &self.sender.rtt, self.options.sack);
        self.sender.recovery.mode = Mode::Loss { until: self.sender.queue.next() };
        self.sender.recovery.duplicates = 0;
        self.sender.recovery.force = true;
        self.sender.recovery.forget_probe();
        self.pending.tail_probe = false;
        self.timers.probe = Instant::NEVER;
        self.timers.reorder = Instant::NEVER;
        // The retransmission rearms the timer; this does so if none can be sent.
        self.timers.retransmit = now.after_nanos(self.retransmission_interval());
        false
    }

    /// The peer has answered a keep-alive probe.
    pub(crate) fn keep_alive_answered(&mut self, now: Instant) {
        self.liveness.answered();
        self.timers.keep_alive =
            self.config.keep_alive.map_or(Instant::NEVER, |keep_alive| now.after_nanos(nanos(keep_alive.idle)));
    }

    /// RFC 9293 §3.8.4. Returns whether to close the connection.
    fn keep_alive_expired(&mut self, now: Instant) -> bool {
        let keep_alive = match self.config.keep_alive {
            Some(keep_alive) => keep_alive,
            None if self.liveness.link_doubtful => KeepAlive::default(),
            None => {
                self.timers.keep_alive = Instant::NEVER;
                return false;
            }
        };
        if !self.liveness.is_probed() && !self.liveness.link_doubtful {
            let silent_at = self.liveness.last_received.after_nanos(nanos(keep_alive.idle));
            if now < silent_at {
                self.timers.keep_alive = silent_at;
                return false;
            }
        }
        if !self.sender.queue.segments().is_empty() || self.timers.persist != Instant::NEVER {
            // Data in flight, or a window probe, tests the peer just as well; the user time-out bounds it.
            self.timers.keep_alive = now.after_nanos(nanos(keep_alive.interval));
            return false;
        }
        if self.liveness.keep_alive_probes >= keep_alive.probes {
            return true;
        }
        if !self.liveness.is_probed() {
            self.release_idle_memory();
        }
        self.liveness.keep_alive_probes += 1;
        self.pending.keep_alive = true;
        self.timers.keep_alive = now.after_nanos(nanos(keep_alive.interval));
        false
    }

    /// Changes [`Config::user_timeout`](crate::Config::user_timeout) and
    /// [`Config::keep_alive`](crate::Config::keep_alive). The peer's silence so far does not count.
    pub fn set_patience(&mut self, user_timeout: Option<Duration>, keep_alive: Option<KeepAlive>, now: Instant) {
        (self.config.user_timeout, self.config.keep_alive) = (user_timeout, keep_alive);
        self.liveness.waiting_since = now;
        let waits = !self.sender.queue.segments().is_empty() || self.timers.persist != Instant::NEVER;
        let user = user_timeout.filter(|_| waits);
        self.timers.user = user.map_or(Instant::NEVER, |patience| now.after_nanos(nanos(patience)));
        self.keep_alive_answered(now);
    }

    /// Lets the peer be silent for so long: no data stays unacknowledged for longer, and keep-alive goes on for as long
    /// without an answer. Its probes come `interval` apart, unless that is less than before.
    pub fn extend_patience(&mut self, patience: Duration, interval: Duration, now: Instant) {
        let keep_alive = self.config.keep_alive.map(|usual| {
            let interval = usual.interval.max(interval.min(patience));
            let probes = nanos(patience).div_ceil(nanos(interval).max(1));
            KeepAlive { interval, probes: u32::try_from(probes).unwrap_or(u32::MAX), ..usual }
        });
        self.set_patience(Some(patience), keep_alive, now);
    }

    /// The link went down, or came up again: probes the peer at once instead of at the next time-out. Data in flight is
    /// retransmitted from its first segment on, a shut window is probed, and a silent connection sends a keep-alive
    /// probe. The congestion window is unchanged.
    pub fn link_lost(&mut self, now: Instant) {
        match self.phase {
            Phase::Closed { .. } | Phase::TimeWait { .. } | Phase::SynSent | Phase::SynReceived => {}
            _ if !self.sender.queue.segments().is_empty() => {
                if self.sender.queue.segments()[0].fate == Fate::InFlight {
                    self.sender.queue.set_fate(0, Fate::Lost);
                }
                self.sender.recovery.force = true;
                self.sender.recovery.doubt = Doubt::No;
            }
            _ if self.timers.persist != Instant::NEVER => self.pending.window_probe = true,
            _ => {
                self.liveness.link_doubtful = true;
                self.timers.keep_alive = now;
                self.keep_alive_expired(now);
            }
        }
    }
}
