//! CUBIC (RFC 9438). Windows are in segments internally, as in the document.

use crate::Instant;

/// RFC 9438 §4.1.
const C: f64 = 0.4;
/// RFC 9438 §4.6.
const BETA: f64 = 0.7;
/// RFC 9438 §4.3: makes the average window equal to that of Reno.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cubic {
    /// W_max; zero before the first loss.
    maximum: f64,
    /// cwnd_prior.
    prior: f64,
    /// W_est.
    estimate: f64,
    /// K in seconds.
    inflection: f64,
    /// t in ns: the duration of this stage of congestion avoidance, counting only time in which the window was full.
    elapsed: u64,
    /// When the window was last found full; `None` before this stage begins.
    used_at: Option<Instant>,
    after_timeout: bool,
    /// Owed growth of less than one octet.
    fraction: f64,
}

impl Cubic {
    /// The new window after `octets` were acknowledged in congestion avoidance, while the window was full (RFC 9438
    /// §4.2 to §4.5).
    pub(super) fn grow(&mut self, now: Instant, window: u32, octets: u32, segment: u32, rtt: u64) -> u32 {
        let size = f64::from(segment);
        let current = f64::from(window) / size;
        let acknowledged = f64::from(octets) / size;
        match self.used_at {
            // Time in which the window is not the limit does not count (RFC 9438 §4.2 and §5.8). While it is the limit,
            // each round trip brings an acknowledgment. In a longer gap it was not, until the data acknowledged now was
            // sent.
            Some(used_at) => self.elapsed += now.nanos_since(used_at).min(rtt),
            None => self.begin(current),
        }
        self.used_at = Some(now);
        let elapsed = self.elapsed as f64 / 1e9;
        let round_trip = rtt as f64 / 1e9;
        // RFC 9438 §4.3.
        let alpha = if self.estimate >= self.prior { 1.0 } else { ALPHA };
        self.estimate += alpha * acknowledged / current;
        let next = if self.at(elapsed) < self.estimate {
            self.estimate.max(current)
        } else {
            // RFC 9438 §4.2: between the current window and 1.5 times that.
            let target = self.at(elapsed + round_trip).clamp(current, 1.5 * current);
            current + (target - current) / current * acknowledged
        };
        let grown = next * size + self.fraction;
        self.fraction = grown.fract();
        grown as u32
    }

    /// W_cubic (RFC 9438 §4.2, equation 1).
    fn at(&self, elapsed: f64) -> f64 {
        let distance = elapsed - self.inflection;
        C * distance * distance * distance + self.maximum
    }

    fn begin(&mut self, current: f64) {
        if self.after_timeout || self.maximum < current {
            // RFC 9438 §4.8, and §4.10 for a slow start that ended without a loss.
            self.maximum = current;
            self.inflection = 0.0;
        } else {
            self.inflection = ((self.maximum - current) / C).cbrt();
        }
        self.after_timeout = false;
        self.estimate = current;
        self.elapsed = 0;
    }

    /// The threshold after a loss (RFC 9438 §4.6), with fast convergence (§4.7).
    pub(super) fn cut(&mut self, window: u32, flight: u32, segment: u32) -> u32 {
        let current = f64::from(window) / f64::from(segment);
        self.maximum = if current < self.maximum { current * (1.0 + BETA) / 2.0 } else { current };
        self.prior = current;
        self.used_at = None;
        self.fraction = 0.0;
        (f64::from(flight) * BETA) as u32
    }

    /// Rescales counts of segments to a new segment size, so that they mean the same octets.
    pub(super) fn resize(&mut self, from: u32, to: u32) {
        let ratio = f64::from(from) / f64::from(to);
        for windows in [&mut self.maximum, &mut self.prior, &mut self.estimate] {
            *windows *= ratio;
        }
        self.inflection *= ratio.cbrt();
    }

    pub(super) fn timeout(&mut self) {
        self.after_timeout = true;
    }
}
