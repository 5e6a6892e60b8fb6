//! Deliberate faults and packet capture around a port, switchable at run time.

use serde::{Deserialize, Serialize};

/// How often frames suffer, as probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Rates {
    /// The frame disappears.
    pub loss: f64,
    /// The frame comes twice.
    pub duplication: f64,
    /// The frame is overtaken by later ones.
    pub reordering: f64,
    /// One bit of the frame flips.
    pub corruption: f64,
}

/// Faults in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct FaultRates {
    /// Seed of the dice.
    pub seed: u64,
    /// What befalls frames that we send.
    pub transmit: Rates,
    /// What befalls frames that we receive.
    pub receive: Rates,
}
