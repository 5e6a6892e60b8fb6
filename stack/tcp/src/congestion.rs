//! Congestion control: how much may be in flight.
//!
//! Slow start, the reaction to losses and to time-outs are common (RFC 5681); how the window grows in congestion avoidance
//! and how far it is cut is the algorithm's. Lengths in octets.

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
    /// Octets acknowledged that have not made the window grow yet.
    Reno {
        acknowledged: u32,
    },
    Cubic(Cubic),
    Dctcp(Dctcp),
}

/// What is put back if a reaction was needless.
#[derive(Clone, Copy, Debug)]
struct Saved {
    window: u32,
    threshold: u32,
    algorithm: Algorithm,
}

/// The state of congestion control of one connection: what each segment touches.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Controller {
    window: u32,
    threshold: u32,
    segment: u32,
    /// Octets in flight when something was sent last, and the window then.
    used: (u32, u32),
    /// The algorithm is DCTCP, which looks at each acknowledgment.
    counts_marks: bool,
    rare: Box<Rare>,
}

/// What congestion avoidance, losses and marks are about: not needed as long as a window is never used up.
#[derive(Debug)]
struct Rare {
    algorithm: Algorithm,
    saved: Option<Saved>,
    /// The initial window.
    initial: u32,
}

/// A bound for the window that no calculation can pass: the largest window that TCP can offer (RFC 7323 §2.3).
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

    /// ssthresh.
    #[inline]
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// The segment size is known, or has changed, before or during the connection.
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

    /// `octets` were acknowledged outside of fast recovery. A window that was not used at the last transmission says nothing
    /// about the network and does not grow (RFC 7661 §4.3 and §4.4).
    #[inline]
    pub(crate) fn acknowledged(&mut self, now: Instant, octets: u32, rtt: u64) {
        let (in_flight, window) = self.used;
        if self.window < self.threshold {
            if in_flight.saturating_mul(2) < window {
                return;
            }
            // RFC 5681 §3.1, with the octets counted (RFC 3465) and not the acknowledgments, since a poll-mode peer
            // acknowledges a batch at once.
            let growth = octets.min(self.threshold - self.window);
            self.window = (self.window + growth).min(LARGEST);
            if growth < octets {
                self.avoid(now, octets - growth, rtt);
            }
        } else if in_flight.saturating_add(2 * self.segment) >= window {
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

    /// Something was lost with `flight` octets in flight: what the window shall come down to (RFC 5681 §3.2, RFC 9438 §4.6).
    /// The window itself is brought there by the caller's rate reduction.
    pub(crate) fn reduce(&mut self, flight: u32) {
        self.save();
        self.cut(flight);
    }

    /// For DCTCP: `octets` up to `acknowledgment` were acknowledged, with an echo of marks or without; `next` is SND.NXT.
    #[inline]
    pub(crate) fn count_marks(&mut self, octets: u32, echo: bool, acknowledgment: Position, next: Position) {
        if self.counts_marks
            && let Algorithm::Dctcp(dctcp) = &mut self.rare.algorithm
        {
            dctcp.count(octets, echo, acknowledgment, next);
        }
    }

    /// The network has marked what was in flight, `flight` octets: the window comes down at once (RFC 3168 §6.1.2, RFC 9438
    /// §4.6, RFC 8257 §3.3). It stays at two segments at least, as after a loss. A mark is no guess, so there is nothing to
    /// take back.
    pub(crate) fn marked(&mut self, flight: u32) {
        self.rare.saved = None;
        if let Algorithm::Dctcp(dctcp) = &mut self.rare.algorithm {
            self.threshold = dctcp.cut(self.window).max(2 * self.segment);
        } else {
            self.cut(flight);
        }
        self.window = self.window.min(self.threshold);
    }

    /// The retransmission timer expired (RFC 5681 §3.1, RFC 9438 §4.8). `first`: not a repetition for the same data, which
    /// leaves the threshold as it is.
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
            // RFC 8257 §3.5: DCTCP takes a loss as any other does.
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

    /// Nothing had been lost: as if nothing had happened (RFC 4015 §3).
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

/// RFC 6928 §2: 10 segments, and no more than 14,600 octets unless two segments are more; scaled by the configuration.
fn initial_window(config: &Config, segment: u32) -> u32 {
    let segments = config.initial_window_segments.max(1);
    segments.saturating_mul(segment).min(segments.saturating_mul(1460).max(2 * segment)).clamp(segment, LARGEST)
}
