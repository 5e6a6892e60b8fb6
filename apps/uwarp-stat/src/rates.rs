//! Rates between two snapshots.

use uwarp::StatsSnapshot;
use uwarp::stats::EngineStats;

/// Rates of one context's engines, in their order.
pub struct Rates {
    /// Of each engine.
    pub engines: Vec<EngineRates>,
}

/// Rates of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineRates {
    /// Share of turns with something to do, 0 to 1.
    pub busy: f64,
    /// Sleeps per second.
    pub wakeups: f64,
    /// Frames received per second.
    pub frames_in: f64,
    /// Frames sent per second.
    pub frames_out: f64,
    /// Octets received per second.
    pub octets_in: f64,
    /// Octets sent per second.
    pub octets_out: f64,
}

impl Rates {
    /// The rates between two snapshots, or since the context was opened.
    pub fn between(before: Option<&StatsSnapshot>, now: &StatsSnapshot) -> Self {
        let since = before.map_or(0, |before| before.uptime_ns);
        let seconds = now.uptime_ns.saturating_sub(since) as f64 / 1e9;
        let engines = now
            .engines
            .iter()
            .map(|engine| {
                let earlier =
                    before.and_then(|before| before.engines.iter().find(|earlier| earlier.index == engine.index));
                EngineRates::between(earlier, engine, seconds)
            })
            .collect();
        Self { engines }
    }
}

impl EngineRates {
    fn between(before: Option<&EngineStats>, now: &EngineStats, seconds: f64) -> Self {
        let gone = |count: fn(&EngineStats) -> u64| count(now).saturating_sub(before.map_or(0, count)) as f64;
        let rate = |count: fn(&EngineStats) -> u64| {
            if seconds > 0.0 { gone(count) / seconds } else { 0.0 }
        };
        let turns = gone(|stats| stats.counters.turns);
        Self {
            busy: if turns > 0.0 { gone(|stats| stats.counters.busy_turns) / turns } else { 0.0 },
            wakeups: rate(|stats| {
                stats.counters.wakeups.device + stats.counters.wakeups.doorbell + stats.counters.wakeups.timer
            }),
            frames_in: rate(|stats| stats.counters.frames_received),
            frames_out: rate(|stats| stats.counters.frames_sent),
            octets_in: rate(|stats| stats.counters.octets_received),
            octets_out: rate(|stats| stats.counters.octets_sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(uptime_ns: u64, turns: u64, busy_turns: u64, frames: u64) -> StatsSnapshot {
        let mut engine = EngineStats::default();
        engine.counters.turns = turns;
        engine.counters.busy_turns = busy_turns;
        engine.counters.frames_received = frames;
        StatsSnapshot { uptime_ns, engines: vec![engine], ..StatsSnapshot::default() }
    }

    #[test]
    fn rates_are_those_since_the_last_look() {
        let first = snapshot(2_000_000_000, 100, 50, 1000);
        let second = snapshot(4_000_000_000, 300, 100, 5000);
        let rates = Rates::between(Some(&first), &second);
        assert_eq!(rates.engines[0].busy, 0.25);
        assert_eq!(rates.engines[0].frames_in, 2000.0);
        let rates = Rates::between(None, &first);
        assert_eq!(rates.engines[0].frames_in, 500.0);
        // A reopened context has smaller counters.
        let rates = Rates::between(Some(&second), &first);
        assert_eq!(rates.engines[0].frames_in, 0.0);
    }
}
