//! The timers of a connection. Deadlines that each segment would only postpone are not updated: when such a timer
//! expires, it checks what has happened since, and continues.

use crate::instant::Instant;

/// The deadline of each timer, `Instant::NEVER` if it is stopped. The receiving half has the timer of delayed
/// acknowledgments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    /// Retransmission (RFC 6298).
    pub(crate) retransmit: Instant,
    /// Tail loss probe (RFC 8985 §7).
    pub(crate) probe: Instant,
    /// End of the reordering window (RFC 8985 §6.2).
    pub(crate) reorder: Instant,
    /// Window probe (RFC 9293 §3.8.6.1).
    pub(crate) persist: Instant,
    /// User time-out; lazy.
    pub(crate) user: Instant,
    /// Keep-alive; lazy.
    pub(crate) keep_alive: Instant,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            retransmit: Instant::NEVER,
            probe: Instant::NEVER,
            reorder: Instant::NEVER,
            persist: Instant::NEVER,
            user: Instant::NEVER,
            keep_alive: Instant::NEVER,
        }
    }
}

impl Timers {
    /// Stops all of them.
    pub(crate) fn stop(&mut self) {
        *self = Timers::default();
    }

    #[inline]
    pub(crate) fn earliest(&self) -> Instant {
        self.retransmit.min(self.probe).min(self.reorder).min(self.persist).min(self.user).min(self.keep_alive)
    }
}

/// Signs of life of the peer, and what was done for lack of them. The user time-out and keep-alive are counted from
/// here when their timers expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Liveness {
    pub(crate) last_received: Instant,
    /// Start of the wait for the acknowledgment of the oldest octet, or for a sign of life while the peer's window is
    /// shut.
    pub(crate) waiting_since: Instant,
    /// Keep-alive probes without an answer.
    pub(crate) keep_alive_probes: u32,
    /// Window probes since the window was shut, or an acknowledgment advanced.
    pub(crate) window_probes: u8,
    /// The link went down: probe the peer even if keep-alive is off.
    pub(crate) link_doubtful: bool,
    /// The peer may have what it does not acknowledge, for as long as it likes.
    pub(crate) may_withhold: bool,
}

impl Liveness {
    pub(crate) fn new(now: Instant) -> Liveness {
        Liveness {
            last_received: now,
            waiting_since: now,
            keep_alive_probes: 0,
            window_probes: 0,
            link_doubtful: false,
            may_withhold: false,
        }
    }

    /// Whether keep-alive probes are unanswered.
    #[inline]
    pub(crate) fn is_probed(&self) -> bool {
        self.keep_alive_probes != 0
    }

    /// The peer has answered a keep-alive probe.
    pub(crate) fn answered(&mut self) {
        self.keep_alive_probes = 0;
        self.link_doubtful = false;
    }
}
