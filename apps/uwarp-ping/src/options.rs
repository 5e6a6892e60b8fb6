//! What both sides of a ping know.

use crate::advert;
use uwarp_app::channel::Shape;

/// What a ping is like, on both sides.
pub struct Options {
    /// The server's port.
    pub port: u16,
    /// Rounds; 0 has no end.
    pub rounds: u64,
    /// Octets of the text.
    pub size: usize,
    /// Check what comes back.
    pub verify: bool,
    /// Print the text.
    pub verbose: bool,
    /// Ask for markers.
    pub markers: bool,
}

/// rping keeps one receive and one Send posted; more are harmless.
pub const SHAPE: Shape = Shape { message: advert::LEN, messages: 4, work: 4 };
