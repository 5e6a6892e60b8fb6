//! The messages between writer and target by Sends, as JSON: everything except data.

use crate::layout::Geometry;
use serde::{Deserialize, Serialize};

/// Prefix of the private data of both MPA frames: the protocol and its version. [`auth`](crate::auth) defines the rest.
pub const GREETING: &[u8] = b"uwarp-log 3";
/// Octets of a message at most.
pub const MAX_MESSAGE: usize = 1024;

/// Where the region is at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Its STag.
    pub stag: u32,
    /// Tagged offset of its first octet.
    pub offset: u64,
}

/// A writer's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTarget {
    /// The first message after the proofs. Answered by [`ToClient::Welcome`].
    Hello {
        /// A commit failed: register the region anew, from its file.
        renew: bool,
    },
    /// Requests to become the log's writer. Answered by [`ToClient::Claimed`] or [`ToClient::Refused`].
    Claim {
        /// Which writer this is: later ones have greater numbers.
        epoch: u64,
        /// Most targets have admitted this writer with this epoch, so no other writer has it.
        established: bool,
        /// The log.
        log: u64,
        /// How many targets it has.
        replicas: u32,
    },
    /// The target has everything that the log had when it joined: from now on its copy counts in recovery.
    Joined {
        /// The log.
        log: u64,
        /// How many targets it has.
        replicas: u32,
    },
    /// The slots from this one on are empty, and will stay so: they can be taken back. Answered by
    /// [`ToClient::Region`].
    Shrunk {
        /// Slots that are left.
        slots: u32,
    },
}

/// A target's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// The state of the target.
    Welcome {
        /// The log; 0 if the target belongs to none yet.
        log: u64,
        /// The latest writer that was let in.
        epoch: u64,
        /// Sizes of the region. Only admitted writers learn where it is.
        geometry: Geometry,
    },
    /// The writer is admitted, and every other one no longer is: their STag is invalid. A claim on another connection
    /// gets a new STag; a repeated claim on the same connection keeps its own.
    Claimed {
        /// With this epoch.
        epoch: u64,
        /// Sizes of the region, which the previous writer may have changed since the welcome.
        geometry: Geometry,
        /// Where it is.
        window: Window,
    },
    /// The writer is not let in.
    Refused {
        /// In words.
        reason: String,
        /// The other writer's epoch, if that is the reason.
        epoch: u64,
    },
    /// Requests slots back, so that no more than these remain. It may be sent at any time, and is repeated behind each
    /// [`Claimed`](Self::Claimed) until [`ToTarget::Shrunk`] has arrived.
    Shrink {
        /// Slots that would be left.
        slots: u32,
    },
    /// The new region. The former one is invalid.
    Region {
        /// Sizes.
        geometry: Geometry,
        /// Where it is.
        window: Window,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_message_fits() {
        let geometry = Geometry { segment: u32::MAX, entries: u32::MAX, slots: u32::MAX };
        let window = Window { stag: u32::MAX, offset: u64::MAX };
        let claimed = ToClient::Claimed { epoch: u64::MAX, geometry, window };
        assert!(serde_json::to_vec(&claimed).unwrap().len() < MAX_MESSAGE);
    }
}
