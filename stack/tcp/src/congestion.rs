//! Congestion control: how much may be in flight.
//!
//! Slow start and the response to losses and time-outs are common to all algorithms (RFC 5681). The algorithm decides
//! how the window grows in congestion avoidance and how far it is reduced. Lengths are in octets.

mod cubic;
mod dctcp;
#[cfg(test)]
mod tests;

use crate::position::Position;
use crate::{Config, Congestion, Instant};
use cubic::Cubic;
use dctcp::Dctcp;

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    /// Acknowledged octets that have not grown the window yet.
    Reno {
        acknowledged: u32,
    },
    Cubic(Cubic),
    Dctcp(Dctcp),
}

/// What to restore if a response was needless.
#[derive(Clone, Copy, Debug)]
struct Saved {
    window: u32,
    threshold: u32,
    algorithm: Algorithm,
}

/// The congestion control state of one connection: the fields that each segment touches.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Controller {
    window: u32,
    threshold: u32,
    segment: u32,
    /// Octets in flight at the last transmission, and the window then.
    used: (u32, u32),
    /// The algorithm is DCTCP, which examines each acknowledgment.
    counts_marks: bool,
    rare: Box<Rare>,
}

/// State of congestion avoidance, losses and marks: unused while the window is never filled.
#[derive(Debug)]
struct Rare {
    algorithm: Algorithm,
    saved: Option<Saved>,
    /// The initial window.
    initial: u32,
    /// [`Controller::frame`].
    frame: u32,
}

/// The upper bound of the window: the largest window that TCP can offer (RFC 7323 §2.3).
const LARGEST: u32 = 1 << 30;

impl Controller {
    /// A window of `initial_window_segments` segments of `segment` octets (RFC 6928 §2).
    pub(crate) fn new(config: &Config, segment: u32, start: Position) -> Controller {
        let initial = initial_window(config, segment);
        Controller {
            window: initial,
            threshold: u32::MAX,
            segment,
            used: (0, initial),
            counts_marks: config.congestion == Congestion::Dctcp,
            rare: Box::new(Rare {
                algorithm: match config.congestion {
                    Congestion::Reno => Algorithm::Reno { acknowledged: 0 },
                    Congestion::Cubic => Algorithm::Cubic(Cubic::default()),
                    Congestion::Dctcp => Algorithm::Dctcp(Dctcp::new(start)),
                },
                saved: None,
                initial,
                frame: 0,
            }),
        }
    }

    /// Octets of heap in use.
    pub(crate) fn heap(&self) -> usize {
        size_of_val(&*self.rare)
    }

    /// cwnd.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Most octets that leave at once, in one frame that the device cuts into segments; 0 if it cuts none.
    #[inline]
    pub(crate) fn frame(&self) -> u32 {
        self.rare.frame
    }

    /// Sets [`Controller::frame`].
    #[inline]
    pub(crate) fn set_frame(&mut self, octets: u32) {
        self.rare.frame = octets;
    }

    /// ssthresh.
    #[inline]
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Sets the segment size, initially or when it changes.
    pub(crate) fn set_segment(&mut self, config: &Config, segment: u32, opening: bool) {
        let saved = self.rare.saved.as_mut().map(|saved| &mut saved.algorithm);
        for algorithm in [Some(&mut self.rare.algorithm), saved].into_iter().flatten() {
            if let Algorithm::Cubic(cubic) = algorithm {
                cubic.resize(self.segment, segment);
            }
        }
        self.segment = segment;
        self.rare.initial = initial_window(config, segment);
        if opening {
            self.window = self.rare.initial;
        }
        self.window = self.window.max(segment);
    }

    /// RFC 6928 §2: the initial window is one segment if the SYN was lost.
    pub(crate) fn syn_was_lost(&mut self) {
        self.window = self.segment;
    }

    /// Something was sent, which makes `in_flight` octets.
    #[inline]
    pub(crate) fn sent(&mut self, in_flight: u32) {
        self.used = (in_flight, self.window);
    }

    /// `octets` were acknowledged outside fast recovery. A window that was not full at the last transmission says
    /// nothing about the network and does not grow (RFC 7661 §4.3 and §4.4).
    #[inline]
    pub(crate) fn acknowledged(&mut self, now: Instant, octets: u32, rtt: u64) {
        let (in_flight, window) = self.used;
        if self.window < self.threshold {
            if in_flight.saturating_mul(2) < window {
                return;
            }
            // RFC 5681 §3.1, counting octets (RFC 3465) instead of acknowledgments, since a poll-mode peer acknowledges
            // a whole batch at once.
            let growth = octets.min(self.threshold - self.window);
            self.window = (self.window + growth).min(LARGEST);
            if growth < octets {
                self.avoid(now, octets - growth, rtt);
            }
        } else if in_flight.saturating_add(2 * self.segment) >= window
            // Less than a frame may stay free, as the next one leaves whole.
            || in_flight.saturating_add(self.rare.frame.min(window / 2)) >= window
        {
            self.avoid(now, octets, rtt);
        }
    }

    fn avoid(&mut self, now: Instant, octets: u32, rtt: u64) {
        match &mut self.rare.algorithm {
            Algorithm::Reno { acknowledged } | Algorithm::Dctcp(Dctcp { owed: acknowledged, .. }) => {
                // RFC 5681 §3.1, equation 3 in octets: one segment a window.
                *acknowledged += octets;
                if *acknowledged >= self.window {
                    *acknowledged -= self.window;
                    self.window = (self.window + self.segment).min(LARGEST);
                }
                *acknowledged = (*acknowledged).min(self.window);
            }
            Algorithm::Cubic(cubic) => {
                self.window = cubic.grow(now, self.window, octets, self.segment, rtt).clamp(self.segment, LARGEST);
            }
        }
    }

    /// A loss was found with `flight` octets in flight: sets the target of the window (RFC 5681 §3.2, RFC 9438 §4.6).
    /// The caller's rate reduction brings the window there.
    pub(crate) fn reduce(&mut self, flight: u32) {
        self.save();
        self.cut(flight);
    }

    /// For DCTCP: `octets` up to `acknowledgment` were acknowledged, with or without an echo of marks; `next` is
    /// SND.NXT.
    #[inline]
    pub(crate) fn count_marks(&mut self, octets: u32, echo: bool, acknowledgment: Position, next: Position) {
        if self.counts_marks
            && let Algorithm::Dctcp(dctcp) = &mut self.rare.algorithm
        {
            dctcp.count(octets, echo, acknowledgment, next);
        }
    }

    /// The network has marked some of the `flight` octets in flight: reduces the window at once (RFC 3168 §6.1.2, RFC
    /// 9438 §4.6, RFC 8257 §3.3). As after a loss, it keeps at least two segments. A mark is certain, so this is never
    /// undone.
    pub(crate) fn marked(&mut self, flight: u32) {
        self.rare.saved = None;
        if let Algorithm::Dctcp(dctcp) = &mut self.rare.algorithm {
            self.threshold = dctcp.cut(self.window).max(2 * self.segment);
        } else {
            self.cut(flight);
        }
        self.window = self.window.min(self.threshold);
    }

    /// The retransmission timer expired (RFC 5681 §3.1, RFC 9438 §4.8). `first`: the first time for this data; a
    /// repetition keeps the threshold.
    pub(crate) fn timeout(&mut self, flight: u32, first: bool) {
        if first {
            self.save();
            self.cut(flight);
            if let Algorithm::Cubic(cubic) = &mut self.rare.algorithm {
                cubic.timeout();
            }
        }
        self.window = self.segment;
    }

    fn save(&mut self) {
        self.rare.saved =
            Some(Saved { window: self.window, threshold: self.threshold, algorithm: self.rare.algorithm });
    }

    fn cut(&mut self, flight: u32) {
        let lowest = 2 * self.segment;
        self.threshold = match &mut self.rare.algorithm {
            // RFC 8257 §3.5: DCTCP treats a loss as Reno does.
            Algorithm::Reno { acknowledged } | Algorithm::Dctcp(Dctcp { owed: acknowledged, .. }) => {
                *acknowledged = 0;
                (flight / 2).max(lowest)
            }
            Algorithm::Cubic(cubic) => cubic.cut(self.window, flight, self.segment).max(lowest),
        };
    }

    /// Sets the window during recovery.
    #[inline]
    pub(crate) fn set_window(&mut self, window: u32) {
        self.window = window.clamp(self.segment, LARGEST);
    }

    /// Recovery is over: continue from the threshold.
    pub(crate) fn recovered(&mut self) {
        self.window = self.threshold.clamp(self.segment, LARGEST);
    }

    /// Undoes a response: no loss had occurred (RFC 4015 §3).
    pub(crate) fn undo(&mut self) -> bool {
        let Some(saved) = self.rare.saved.take() else { return false };
        self.window = self.window.max(saved.window);
        self.threshold = self.threshold.max(saved.threshold);
        self.rare.algorithm = saved.algorithm;
        true
    }

    /// Nothing was sent for longer than a retransmission time-out (RFC 5681 §4.1).
    pub(crate) fn restart(&mut self) {
        self.window = self.window.min(self.rare.initial);
    }
}

/// RFC 6928 §2: 10 segments, and no more than 14,600 octets unless two segments are more. The configuration scales it.
fn initial_window(config: &Config, segment: u32) -> u32 {
    let segments = config.initial_window_segments.max(1);
    segments.saturating_mul(segment).min(segments.saturating_mul(1460).max(2 * segment)).clamp(segment, LARGEST)
}
