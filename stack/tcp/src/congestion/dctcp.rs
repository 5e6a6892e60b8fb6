//! DCTCP (RFC 8257): reduces the window in proportion to the marked octets. It grows, and responds to losses, as Reno
//! does.

use crate::position::Position;

/// 1 as a fixed-point number.
const ONE: u64 = 1 << 20;
/// The weight of a new estimate is 1/16 (RFC 8257 §4.2).
const GAIN_SHIFT: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Dctcp {
    /// DCTCP.Alpha: the fraction of octets that is marked, in units of 1/ONE.
    alpha: u64,
    /// DCTCP.BytesAcked and DCTCP.BytesMarked.
    acknowledged: u64,
    marked: u64,
    /// DCTCP.WindowEnd.
    window_end: Position,
    /// As for Reno: acknowledged octets that have not grown the window yet.
    pub(super) owed: u32,
}

impl Dctcp {
    pub(super) fn new(initial: Position) -> Dctcp {
        // RFC 8257 §3.3: begin with 1, or a new connection would not slow down at its first mark.
        Dctcp { alpha: ONE, acknowledged: 0, marked: 0, window_end: initial, owed: 0 }
    }

    /// RFC 8257 §3.3, steps 1 to 8. `octets` up to `acknowledgment` were acknowledged; `next` is SND.NXT.
    pub(super) fn count(&mut self, octets: u32, marked: bool, acknowledgment: Position, next: Position) {
        self.acknowledged += u64::from(octets);
        if marked {
            self.marked += u64::from(octets);
        }
        if acknowledgment <= self.window_end || self.acknowledged == 0 {
            return;
        }
        let part = self.marked * ONE / self.acknowledged;
        // Round so that any mark raises alpha, and alpha can still fall to 0.
        self.alpha = self.alpha - self.alpha.div_ceil(1 << GAIN_SHIFT) + part.div_ceil(1 << GAIN_SHIFT);
        self.alpha = self.alpha.min(ONE);
        self.window_end = next;
        (self.acknowledged, self.marked) = (0, 0);
    }

    /// The window after a mark (RFC 8257 §3.3, step 9): cwnd * (1 - alpha / 2).
    pub(super) fn cut(&mut self, window: u32) -> u32 {
        self.owed = 0;
        window - (u64::from(window) * self.alpha / (2 * ONE)) as u32
    }
}

#[cfg(test)]
mod tests {
    use uwarp_wire::tcp::SeqNumber;

    use super::*;

    /// Windows of ten acknowledgments of 1000 octets, of which the first `marked` have an echo.
    fn windows(dctcp: &mut Dctcp, count: u32, marked: u32) {
        for _ in 0..count {
            let start = dctcp.window_end;
            for index in 0..10 {
                let at = start + (index + 1) * 1000;
                dctcp.count(1000, index < marked, at + 1, start + 10_000);
            }
            dctcp.window_end = start + 10_000;
        }
    }

    fn alpha(dctcp: &Dctcp) -> f64 {
        dctcp.alpha as f64 / ONE as f64
    }

    #[test]
    fn first_mark_halves_the_window() {
        let mut dctcp = Dctcp::new(Position::first(SeqNumber(0)));
        assert_eq!(dctcp.cut(100_000), 50_000); // RFC 8257 §3.3: alpha begins with 1
    }

    #[test]
    fn alpha_follows_the_marks() {
        let mut dctcp = Dctcp::new(Position::first(SeqNumber(0)));
        // The estimate of each window has a weight of 1/16: without marks alpha is (15/16)^n.
        let mut end = dctcp.window_end;
        for window in 1..=8 {
            dctcp.count(10_000, false, end + 1, end + 10_000);
            end = end + 10_000;
            assert!((alpha(&dctcp) - 0.9375_f64.powi(window)).abs() < 1e-4, "{window}: {}", alpha(&dctcp));
        }
        for _ in 0..200 {
            dctcp.count(3_000, true, end, end);
            dctcp.count(7_000, false, end + 1, end + 10_000);
            end = end + 10_000;
        }
        // RFC 8257 §3.3: M is the marked fraction.
        assert!((alpha(&dctcp) - 0.3).abs() < 1e-3, "{}", alpha(&dctcp));
        assert!((84_900..85_100).contains(&dctcp.cut(100_000)));
        for _ in 0..400 {
            dctcp.count(10_000, false, end + 1, end + 10_000);
            end = end + 10_000;
        }
        assert_eq!((dctcp.alpha, dctcp.cut(100_000)), (0, 100_000));
    }

    #[test]
    fn estimate_changes_once_a_window() {
        let mut dctcp = Dctcp::new(Position::first(SeqNumber(0)));
        windows(&mut dctcp, 1, 0);
        let after = dctcp.alpha;
        let end = dctcp.window_end;
        dctcp.count(1000, true, end, end + 10_000);
        assert_eq!(dctcp.alpha, after);
        dctcp.count(1000, true, end + 1, end + 10_000);
        assert!(dctcp.alpha > after);
    }
}
