//! CUBIC (RFC 9438). Windows are in segments inside, as in the document.

use crate::Instant;

/// RFC 9438 §4.1.
const C: f64 = 0.4;
/// RFC 9438 §4.6.
const BETA: f64 = 0.7;
/// RFC 9438 §4.3: what makes the average window that of Reno.
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
    /// When this stage of congestion avoidance began.
    epoch: Option<Instant>,
    after_timeout: bool,
    /// Growth of less than one octet that is owed.
    fraction: f64,
}

impl Cubic {
    /// The new window after `octets` were acknowledged in congestion avoidance (RFC 9438 §4.2 to §4.5).
    pub(super) fn grow(&mut self, now: Instant, window: u32, octets: u32, segment: u32, rtt: u64) -> u32 {
        let size = f64::from(segment);
        let current = f64::from(window) / size;
        let acknowledged = f64::from(octets) / size;
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => {
                self.begin(current);
                self.epoch = Some(now);
                now
            }
        };
        let elapsed = now.nanos_since(epoch) as f64 / 1e9;
        let round_trip = rtt as f64 / 1e9;
        // RFC 9438 §4.3.
        let alpha = if self.estimate >= self.prior { 1.0 } else { ALPHA };
        self.estimate += alpha * acknowledged / current;
        let next = if self.at(elapsed) < self.estimate {
            self.estimate.max(current)
        } else {
            // RFC 9438 §4.2: between the current window and half as much again.
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
    }

    /// The threshold after a loss (RFC 9438 §4.6), with fast convergence (§4.7).
    pub(super) fn cut(&mut self, window: u32, flight: u32, segment: u32) -> u32 {
        let current = f64::from(window) / f64::from(segment);
        self.maximum = if current < self.maximum { current * (1.0 + BETA) / 2.0 } else { current };
        self.prior = current;
        self.epoch = None;
        self.fraction = 0.0;
        (f64::from(flight) * BETA) as u32
    }

    /// Segments have another size from now on: what is counted in them is as many octets as before.
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

    /// Time in which nothing was sent does not count (RFC 9438 §5.8).
    pub(super) fn paused(&mut self, idle: u64) {
        self.epoch = self.epoch.map(|epoch| epoch.after_nanos(idle));
    }
}
