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
