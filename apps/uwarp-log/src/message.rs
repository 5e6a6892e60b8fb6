//! What writer and target tell each other by Sends, as JSON: everything that is not data.

use crate::layout::Geometry;
use serde::{Deserialize, Serialize};

/// How the private data of both ends' MPA frames begins: the protocol and its version. [`auth`](crate::auth) has the rest.
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

/// What a writer says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTarget {
    /// The first message behind the proofs. Answered by [`ToClient::Welcome`].
    Hello {
        /// A commit failed: the region is to be registered anew, from its file.
        renew: bool,
    },
    /// Asks to be the log's writer. Answered by [`ToClient::Claimed`] or [`ToClient::Refused`].
    Claim {
        /// Which writer this is: later ones have greater numbers.
        epoch: u64,
        /// Most targets have let this writer in with this epoch, so nobody else has it.
        established: bool,
        /// The log.
        log: u64,
        /// How many targets it has.
        replicas: u32,
    },
    /// The target has all that the log had when it was begun with: from now on what it has counts in recovery.
    Joined {
        /// The log.
        log: u64,
        /// How many targets it has.
        replicas: u32,
    },
    /// Nothing lies in slots from this one on, and nothing will: they can be taken back. Answered by [`ToClient::Region`].
    Shrunk {
        /// Slots that are left.
        slots: u32,
    },
}

/// What a target says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToClient {
    /// What there is.
    Welcome {
        /// The log; 0 if none has begun here.
        log: u64,
        /// The latest writer that was let in.
        epoch: u64,
        /// Sizes of the region. Where it is, only those learn who are let in.
        geometry: Geometry,
    },
    /// The writer is let in, and every other one is not any more: their STag is invalid. A claim on another connection gets an
    /// STag that nobody was told of, and one on the same connection the one that it has.
    Claimed {
        /// With this epoch.
        epoch: u64,
        /// Sizes of the region, which the writer before may have changed since the welcome.
        geometry: Geometry,
        /// Where it is.
        window: Window,
    },
    /// The writer is not let in.
    Refused {
        /// In words.
        reason: String,
        /// The writer that was, if that is why.
        epoch: u64,
    },
    /// Asks for slots to be given back, so that no more than these are left. May be said at any time, and is said again behind
    /// each [`Claimed`](Self::Claimed) until [`ToTarget::Shrunk`] has come.
    Shrink {
        /// Slots that would be left.
        slots: u32,
    },
    /// The region as it is now. The former one is gone.
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
