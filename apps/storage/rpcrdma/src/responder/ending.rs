//! How a responder's connection ends.

use std::time::{Duration, Instant};
use uwarp::DisconnectReason;

/// The longest wait for the reason of a connection's end, without blocking the application's other connections.
pub(super) const REASON: Duration = Duration::from_millis(100);
/// The fewest checks for the reason, however much time passes between them: an application that was busy elsewhere has
/// not waited.
pub(super) const LOOKS: u32 = 64;

/// A responder's connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended")]
pub struct Over {
    /// Why, as far as it is known.
    pub reason: Option<DisconnectReason>,
}

/// An ended connection. The reason arrives slightly later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) seen: Instant,
    /// Fruitless checks for the reason.
    pub(super) looks: u32,
    /// The call that has ended it is known.
    pub(super) is_convicted: bool,
}

/// How near the connection is to its end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// No more calls are passed to the application.
    pub(super) stopped: bool,
    /// The connection is to end when all answers are posted.
    pub(super) leaving: bool,
    /// The connection has ended for a reason that is not known yet.
    pub(super) lost: Option<Loss>,
    pub(super) over: Option<Over>,
}

impl Ending {
    /// Whether the connection has ended, for a known reason or not.
    pub(super) fn has_ended(&self) -> bool {
        self.over.is_some() || self.lost.is_some()
    }
}
