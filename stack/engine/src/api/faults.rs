//! Deliberate faults: how often frames suffer.

use serde::{Deserialize, Serialize};

/// How often frames suffer, as probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Rates {
    /// The frame disappears.
    pub loss: f64,
    /// The frame comes twice.
    pub duplication: f64,
    /// The frame is overtaken by up to four later ones, or delayed by at most a millisecond.
    pub reordering: f64,
    /// One bit of the IP packet flips. If the device vouches for checksums, only the CRC detects it, which ends the
    /// stream; otherwise the checksum detects it and the segment is retransmitted.
    pub corruption: f64,
    /// An ECN-capable packet is marked as having met congestion (RFC 3168 §5: ECT becomes CE).
    pub marking: f64,
}

/// How often segments suffer, as probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Recutting {
    /// The segment is cut into up to seven pieces, or into single octets if it has at most eight.
    pub cutting: f64,
    /// The segment, or piece, is joined with following ones from the same two bursts, up to an IP packet of 65,535
    /// octets: a chain of buffers.
    pub joining: f64,
}

/// Faults in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct FaultRates {
    /// Seed of the random decisions.
    pub seed: u64,
    /// Faults of frames that we send.
    pub transmit: Rates,
    /// Faults of frames that we receive.
    pub receive: Rates,
    /// What a middlebox does to received segments, and to sent ones, which it only cuts.
    pub recutting: Recutting,
    /// Sent segments pass the middlebox unchanged.
    pub recut_received_only: bool,
}
