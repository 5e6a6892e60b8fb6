//! The sending half: what is queued, how much of it may be sent, and what became of what was sent.

mod mss;
mod window;

use crate::Config;
use crate::congestion::Controller;
use crate::instant::Instant;
use crate::position::Position;
use crate::queue::{SendQueue, Unsent};
use crate::recovery::{Doubt, Recovery};
use crate::rtt::RttEstimator;
pub(crate) use mss::DEFAULT_MSS;
use mss::Mss;
use window::PeerWindow;

/// What the windows permit for the next unsent octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fresh {
    /// So many octets may leave.
    Send(u32),
    /// There is nothing to send, or the congestion window or Nagle's algorithm forbids it.
    Wait,
    /// Nothing is in flight, and the peer's window is shut or too small: only a timer can continue.
    Shut,
}

/// Our FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fin {
    /// More records may follow.
    NotYet,
    /// The owner has closed: it follows the pushed records.
    Queued,
    /// It was sent, at least once.
    Sent,
}

/// All fields but those at its end are touched by each segment.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Sender {
    pub(crate) congestion: Controller,
    pub(crate) window: PeerWindow,
    pub(crate) mss: Mss,
    /// [`Config::send_ahead`].
    ahead: u32,
    /// [`Config::nagle`], which can be changed.
    pub(crate) nagle: bool,
    /// [`Config::restart_after_idle`].
    restart_after_idle: bool,
    pub(crate) fin: Fin,
    pub(crate) last_sent: Instant,
    pub(crate) rtt: RttEstimator,
    pub(crate) queue: SendQueue,
    /// Rare fields are at its end.
    pub(crate) recovery: Recovery,
    /// Octets of each segment that the device cuts out of a frame.
    pub(crate) piece: u32,
}

impl Sender {
    /// `initial`: ISS; `peer_initial`: IRS, as far as it is known.
    pub(crate) fn new(config: &Config, initial: Position, peer_initial: Position, now: Instant) -> Sender {
        Sender {
            congestion: Controller::new(config, u32::from(DEFAULT_MSS), initial),
            window: PeerWindow::new(peer_initial, initial),
            mss: Mss::new(config),
            ahead: config.send_ahead,
            nagle: config.nagle,
            restart_after_idle: config.restart_after_idle,
            fin: Fin::NotYet,
            last_sent: now,
            rtt: RttEstimator::new(config),
            queue: SendQueue::new(initial),
            recovery: Recovery::new(initial),
            piece: 0,
        }
    }

    /// Whether the owner has closed.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.fin != Fin::NotYet
    }

    /// The first position beyond the peer's window.
    #[inline]
    pub(crate) fn window_edge(&self) -> Position {
        self.queue.unacknowledged() + self.window.octets
    }

    /// Octets that the peer's window admits behind SND.NXT.
    #[inline]
    pub(crate) fn usable_window(&self) -> u32 {
        self.window_edge().octets_since(self.queue.next())
    }

    /// Octets from SND.UNA to SND.NXT.
    pub(crate) fn outstanding(&self) -> u32 {
        self.queue.next().octets_since(self.queue.unacknowledged())
    }

    /// Octets in flight. Each duplicate acknowledgment of a peer without SACK counts as one delivered segment (RFC 6582
    /// §3.2, step 3).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        if self.recovery.duplicates == 0 {
            return self.queue.in_flight();
        }
        self.queue.in_flight().saturating_sub(self.recovery.duplicates.saturating_mul(self.mss.segment))
    }

    /// Octets of new records that are wanted while the connection is open.
    #[inline]
    pub(crate) fn space(&self) -> u32 {
        let by_congestion = self.congestion.window().saturating_sub(self.in_flight());
        let wanted = u64::from(self.usable_window().min(by_congestion)) + u64::from(self.ahead);
        let unsent = self.queue.unsent();
        if unsent == 0 {
            return u32::try_from(wanted).unwrap_or(u32::MAX).max(self.mss.segment);
        }
        u32::try_from(wanted.saturating_sub(unsent)).unwrap_or(u32::MAX)
    }

    /// Whether the windows permit one more segment, while nothing is queued and nothing is repaired.
    #[inline(always)]
    pub(crate) fn has_room_for_segment(&self) -> bool {
        let idle = self.queue.segments().is_empty();
        self.usable_window() >= self.mss.segment
            && (idle || !self.nagle && self.queue.in_flight() + self.mss.segment <= self.congestion.window())
    }

    #[inline]
    pub(crate) fn may_retransmit(&self) -> bool {
        if !self.recovery.is_open() && matches!(self.recovery.doubt, Doubt::Testing { .. }) {
            return false;
        }
        let in_flight = self.in_flight();
        let window = self.congestion.window();
        // Records may be shorter than a segment. Find the real length only where it decides.
        self.recovery.force
            || in_flight.saturating_add(self.mss.segment) <= window
            || (in_flight < window
                && in_flight.saturating_add(self.queue.first_lost_len().min(self.mss.segment)) <= window)
    }

    #[inline]
    pub(crate) fn may_send_fin(&self) -> bool {
        self.fin == Fin::Queued && self.queue.unsent() == 0
    }

    /// How much of the next record may be sent.
    #[inline]
    pub(crate) fn fresh(&self) -> Fresh {
        self.queue.first_unsent().map_or(Fresh::Wait, |unsent| self.admit(&unsent))
    }

    /// Whether a record, longer than a segment, is one for a frame that the device cuts, as the next new data.
    #[inline]
    fn is_for_frame(&self, unsent: &Unsent) -> bool {
        unsent.len <= self.congestion.frame() && unsent.is_whole() && self.recovery.is_plain() && self.queue.lost() == 0
    }

    /// Whether the next record, longer than a segment, may leave as a whole now, in a frame that the device cuts.
    #[inline]
    pub(crate) fn admits_frame(&self, unsent: &Unsent) -> bool {
        self.is_for_frame(unsent)
            && unsent.len <= self.usable_window()
            && self.queue.in_flight().saturating_add(unsent.len) <= self.congestion.window()
    }

    /// Whether the next record, longer than a segment, waits until it may leave as a whole: at least two segments are
    /// in flight, which the peer acknowledges (RFC 9293 §3.8.6.3), and the windows have room for the record by then.
    #[inline]
    fn waits_for_room(&self, unsent: &Unsent) -> bool {
        let window = self.congestion.window().min(self.window.octets);
        self.is_for_frame(unsent)
            && self.queue.in_flight() >= 2 * self.mss.segment
            && unsent.len <= window
            && !self.admits_frame(unsent)
    }

    /// How much of the next record may be sent: all that is left of it, or one segment, if the windows permit that.
    /// Less only into a window that has no room for more (RFC 9293 §3.8.6.2.1).
    #[inline(always)]
    pub(crate) fn admit(&self, unsent: &Unsent) -> Fresh {
        if unsent.len > self.mss.segment && self.waits_for_room(unsent) {
            return Fresh::Wait;
        }
        let idle = self.queue.segments().is_empty();
        let len = unsent.len.min(self.mss.segment);
        let usable = self.usable_window();
        if usable < len {
            if !idle {
                return Fresh::Wait;
            }
            // Half of the largest window that the peer ever offered is worth sending, as it may never offer more.
            if usable == 0 || usable < self.window.largest / 2 {
                return Fresh::Shut;
            }
            return Fresh::Send(usable);
        }
        if !idle {
            let admitted = match self.recovery.doubt {
                Doubt::Testing { left } if !self.recovery.is_open() => left > 0,
                // Lost data goes first (RFC 6675 §4, NextSeg (1)), even where only something shorter would fit.
                _ => self.queue.lost() == 0 && self.in_flight().saturating_add(len) <= self.congestion.window(),
            };
            if !admitted {
                return Fresh::Wait;
            }
            // RFC 9293 §3.7.4: the unsent data does not fill a segment, and more may come.
            if self.nagle && self.queue.unsent() < u64::from(self.mss.segment) && !self.is_closing() {
                return Fresh::Wait;
            }
        }
        Fresh::Send(len)
    }

    /// RFC 5681 §4.1: after an idle retransmission time-out, resets the window to the initial one.
    #[inline(always)]
    pub(crate) fn restart_if_idle(&mut self, now: Instant) {
        if !self.restart_after_idle || !self.queue.segments().is_empty() {
            return;
        }
        if now.nanos_since(self.last_sent) > self.rtt.timeout() {
            self.congestion.restart();
            self.last_sent = now;
        }
    }

    /// How much of a segment of the scoreboard is retransmitted at once: of a frame what the device has made a segment.
    #[inline]
    pub(crate) fn retransmission_limit(&self, len: u32) -> u32 {
        let segment = self.mss.segment;
        if len > segment && self.piece > 0 { self.piece.min(segment) } else { segment }
    }

    /// Index of the segment with the highest sequence number that can be sent as a probe. The last segment of a frame
    /// becomes an entry of its own.
    pub(crate) fn cut_off_last_segment(&mut self) -> Option<usize> {
        let index = self.queue.last()?;
        let len = self.queue.segments()[index].len;
        let limit = self.retransmission_limit(len);
        if len <= limit {
            return Some(index);
        }
        let rest = len % limit;
        self.queue.cut(index, len - if rest > 0 { rest } else { limit });
        Some(index + 1)
    }

    /// Whether the octet at `sequence` was sent as a window probe.
    pub(crate) fn was_probed(&self, sequence: Position) -> bool {
        self.queue.segments().back().is_some_and(|segment| segment.start == sequence && segment.retransmitted)
    }

    /// Whether the peer has shrunk its window so far that it does not admit the oldest segment in flight (RFC 9293
    /// §3.8.6).
    pub(crate) fn is_beyond_window(&self) -> bool {
        self.queue.segments().front().is_some_and(|first| first.end() > self.window_edge())
    }
}
