//! The one switch that puts a middlebox in front of every port that tests make: the variable [`MIDDLEBOX`] says which
//! percentage of segments it cuts, both ways, and joins with those behind them. `scripts/test middlebox` sets it.
//!
//! Every test passes its configurations through [`behind`], begins its faults with [`faults`], and ends them with
//! [`standing`]. The hosts of simulated networks ([`uwarp_testkit::rig`]) and the tools (`--recut`) read the same
//! variable. The library never does.
#![forbid(unsafe_code)]

use uwarp::{Config, FaultOptions};
pub use uwarp_testkit::rig::{MIDDLEBOX, is_skipped};

/// No faults but the middlebox's, if there is one.
pub fn faults() -> FaultOptions {
    let recut = uwarp_testkit::rig::middlebox().map_or(0.0, |middlebox| 100.0 * middlebox.cutting);
    FaultOptions { recut, ..FaultOptions::default() }
}

/// The faults of a test that wants none: nothing, or the middlebox.
pub fn standing() -> Option<FaultOptions> {
    Some(faults()).filter(|faults| faults.recut > 0.0)
}

/// The same configuration, behind the middlebox if there is one.
pub fn behind(mut config: Config) -> Config {
    config.faults = standing();
    config
}
