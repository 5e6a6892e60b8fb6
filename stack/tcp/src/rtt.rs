//! Round-trip time and retransmission time-out (RFC 6298), in nanoseconds.

use core::time::Duration;

use crate::Config;
use crate::instant::Instant;

/// Clock granularity G of RFC 6298 §2.3, in ns: a poll-mode owner reads its clock about this often.
const GRANULARITY: u64 = 10_000;
/// How long a minimum is kept at least, in ns (RFC 8985 §6.2, step 1 requires a windowed minimum).
const MINIMUM_WINDOW: u64 = 10_000_000_000;

/// Estimates of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    /// SRTT; meaningless while `sampled` is false.
    smoothed: u64,
    /// RTTVAR.
    variation: u64,
    sampled: bool,
    /// Expiries of the timer since the last valid sample (RFC 6298 §5.5).
    backoff: u32,
    /// RTO without back-off, computed when one of its inputs changes, because it is read several times per segment.
    base: u64,
    /// Smallest sample of the current and of the previous window.
    minimum: [u64; 2],
    window_start: Instant,
    /// Estimate of how long the peer delays acknowledgments.
    peer_ack_delay: Micros,
    initial: Micros,
    floor: Micros,
    ceiling: Micros,
}

/// A configured time in microseconds: precise enough, and up to 71 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Micros(u32);

impl Micros {
    fn new(duration: Duration) -> Micros {
        Micros(u32::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX))
    }

    #[inline]
    fn nanos(self) -> u64 {
        u64::from(self.0) * 1000
    }
}

impl RttEstimator {
    pub(crate) fn new(config: &Config) -> RttEstimator {
        let ceiling = Micros::new(config.rto_max).max(Micros(1));
        let initial = Micros::new(config.rto_initial).clamp(Micros(1), ceiling);
        RttEstimator {
            smoothed: 0,
            variation: 0,
            base: initial.nanos(),
            sampled: false,
            backoff: 0,
            minimum: [u64::MAX; 2],
            window_start: Instant::ZERO,
            peer_ack_delay: Micros::new(config.peer_ack_delay),
            initial,
            floor: Micros::new(config.rto_min).clamp(Micros(1), ceiling),
            ceiling,
        }
    }

    /// Adds a round trip of `sample` ns to the estimates (RFC 6298 §2.2 and §2.3).
    ///
    /// `segments` were in flight. Where a window yields many samples, each gets less weight (RFC 7323 appendix G), so
    /// the estimator's memory spans several round trips.
    #[inline(always)]
    pub(crate) fn sample(&mut self, now: Instant, sample: u64, segments: usize) {
        self.backoff = 0;
        self.note_minimum(now, sample);
        if !self.sampled {
            self.sampled = true;
            self.smoothed = sample;
            self.variation = sample / 2;
        } else {
            let spread = (segments / 2).max(1).ilog2().min(8);
            let deviation = self.smoothed.abs_diff(sample);
            self.variation = self.variation - (self.variation >> (2 + spread)) + (deviation >> (2 + spread));
            self.smoothed = self.smoothed - (self.smoothed >> (3 + spread)) + (sample >> (3 + spread));
        }
        self.base = self.estimate();
    }

    /// RTO without back-off (RFC 6298 §2.3 to §2.5).
    #[inline(always)]
    fn estimate(&self) -> u64 {
        if !self.sampled {
            return self.initial.nanos();
        }
        let estimate = self.smoothed + (4 * self.variation).max(GRANULARITY);
        let estimate = estimate.max(self.smoothed + self.peer_ack_delay.nanos());
        // The floor is not above the ceiling.
        estimate.max(self.floor.nanos()).min(self.ceiling.nanos())
    }

    #[inline]
    fn note_minimum(&mut self, now: Instant, sample: u64) {
        if now.nanos_since(self.window_start) > MINIMUM_WINDOW {
            self.window_start = now;
            self.minimum = [sample, self.minimum[0]];
        } else if sample < self.minimum[0] {
            self.minimum[0] = sample;
        }
    }

    /// Smallest recent round trip; `None` before the first sample.
    #[inline]
    pub(crate) fn minimum(&self) -> Option<u64> {
        self.sampled.then(|| self.minimum[0].min(self.minimum[1]))
    }

    /// SRTT; `None` before the first sample.
    #[inline]
    pub(crate) fn smoothed(&self) -> Option<u64> {
        self.sampled.then_some(self.smoothed)
    }

    /// RTO, back-off included.
    #[inline]
    pub(crate) fn timeout(&self) -> u64 {
        if self.backoff == 0 { self.base } else { self.back_off() }
    }

    /// What neither [`RttEstimator::timeout`] nor [`RttEstimator::probe_timeout`] is ever below, whatever the samples.
    #[inline]
    pub(crate) fn least_timeout(&self) -> u64 {
        self.peer_ack_delay.min(self.floor).nanos().min(self.base)
    }

    /// RTO before any expiry of the timer.
    pub(crate) fn timeout_without_backoff(&self) -> u64 {
        self.base
    }

    fn back_off(&self) -> u64 {
        let ceiling = self.ceiling.nanos();
        self.base.checked_shl(self.backoff.min(32)).map_or(ceiling, |time| time.clamp(self.base, ceiling))
    }

    /// The time until a tail loss probe (RFC 8985 §7.2).
    ///
    /// The peer's delay is always added, not only when a single segment is in flight: records may be so small that
    /// several of them do not make the peer acknowledge at once.
    #[inline(always)]
    pub(crate) fn probe_timeout(&self) -> u64 {
        if self.sampled {
            (2 * self.smoothed).saturating_add(self.peer_ack_delay.nanos()).min(self.timeout())
        } else {
            // RFC 8985 §7.2: one second without a sample; never later than the RTO.
            self.initial.nanos().min(self.timeout())
        }
    }

    /// The retransmission timer has expired (RFC 6298 §5.5).
    pub(crate) fn expired(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// The peer has acknowledged something recent, though it yields no sample.
    #[inline]
    pub(crate) fn forget_backoff(&mut self) {
        self.backoff = 0;
    }

    /// RFC 6298 §5.7: after a retransmitted SYN, data starts with a time-out of at least 3 s, or the configured one.
    pub(crate) fn syn_was_lost(&mut self) {
        self.backoff = 0;
        self.initial = Micros(3_000_000.min(self.initial.0.saturating_mul(3))).max(self.initial).min(self.ceiling);
        self.base = self.estimate();
    }

    /// A probe proved needless: the peer delays its acknowledgments for longer than estimated.
    pub(crate) fn peer_delays_longer(&mut self) {
        // No stack in use delays longer than 60 ms unless configured to, though RFC 9293 allows 500 ms.
        self.peer_ack_delay = Micros((self.peer_ack_delay.0.saturating_mul(2)).clamp(1_000, 60_000));
        self.base = self.estimate();
    }

    /// Consecutive expiries.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Variation of the round-trip time, in nanoseconds.
    pub(crate) fn variation(&self) -> u64 {
        self.variation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimator(floor_ms: u64) -> RttEstimator {
        RttEstimator::new(&Config {
            rto_min: Duration::from_millis(floor_ms),
            peer_ack_delay: Duration::ZERO,
            ..Config::default()
        })
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn first_sample_sets_srtt_and_half_as_variation() {
        let mut rtt = estimator(1);
        assert_eq!(rtt.timeout(), 1000 * MS); // RFC 6298 §2.1
        rtt.sample(Instant::ZERO, 100 * MS, 1);
        // RFC 6298 §2.2: SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!((rtt.smoothed, rtt.variation, rtt.timeout()), (100 * MS, 50 * MS, 300 * MS));
        // RFC 6298 §2.3: RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|, then SRTT = 7/8 SRTT + 1/8 R'.
        rtt.sample(Instant::ZERO, 180 * MS, 1);
        assert_eq!((rtt.smoothed, rtt.variation), (110 * MS, 57_500_000));
    }

    #[test]
    fn timeout_has_a_floor_a_ceiling_and_doubles() {
        let mut rtt = estimator(10);
        rtt.sample(Instant::ZERO, MS / 10, 1);
        assert_eq!(rtt.timeout(), 10 * MS); // RFC 6298 §2.4
        rtt.expired();
        rtt.expired();
        assert_eq!(rtt.timeout(), 40 * MS); // RFC 6298 §5.5
        for _ in 0..200 {
            rtt.expired();
        }
        assert_eq!(rtt.timeout(), 60_000 * MS); // RFC 6298 §2.5
        rtt.sample(Instant::ZERO, MS / 10, 1);
        assert_eq!(rtt.timeout(), 10 * MS); // RFC 6298 §5: a new sample ends the back-off
    }

    #[test]
    fn minimum_is_forgotten_after_its_window() {
        let mut rtt = estimator(10);
        let at = |seconds: u64| Instant::from_nanos(seconds * 1000 * MS);
        rtt.sample(at(0), 5 * MS, 1);
        rtt.sample(at(1), 9 * MS, 1);
        assert_eq!(rtt.minimum(), Some(5 * MS));
        rtt.sample(at(11), 9 * MS, 1);
        assert_eq!(rtt.minimum(), Some(5 * MS));
        rtt.sample(at(22), 8 * MS, 1);
        assert_eq!(rtt.minimum(), Some(8 * MS)); // RFC 8985 §6.2, step 1
    }

    #[test]
    fn needless_probe_makes_the_next_ones_later() {
        let mut rtt = RttEstimator::new(&Config {
            rto_min: Duration::from_millis(1),
            peer_ack_delay: Duration::from_millis(20),
            ..Config::default()
        });
        rtt.sample(Instant::ZERO, 10 * MS, 1);
        let mut times = || {
            rtt.peer_delays_longer();
            (rtt.probe_timeout(), rtt.timeout())
        };
        // The peer's delay doubles, up to 60 ms, and the time-out allows for it.
        assert_eq!(times(), (50 * MS, 50 * MS));
        assert_eq!(times(), (70 * MS, 70 * MS));
        assert_eq!(times(), (70 * MS, 70 * MS));
    }

    #[test]
    fn many_samples_in_a_window_have_less_weight_each() {
        let mut few = estimator(1);
        let mut many = estimator(1);
        few.sample(Instant::ZERO, 100 * MS, 2);
        many.sample(Instant::ZERO, 100 * MS, 2);
        few.sample(Instant::ZERO, 180 * MS, 2);
        many.sample(Instant::ZERO, 180 * MS, 64);
        assert!(many.smoothed < few.smoothed && many.smoothed > 100 * MS); // RFC 7323 appendix G
    }
}
