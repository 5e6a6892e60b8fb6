//! What a queue pair knows of the peer that its program has named, and how far their stream is.

use crate::locks::{Lock, Rank};
use crate::process;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::time::Instant;

/// What a queue pair is known by from elsewhere. It never names another one, while numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairId {
    /// uwarp's number.
    pub(crate) number: u32,
    /// As C sees it.
    pub(crate) handle: u32,
}

/// A queue pair on the network: the address that its GID is of, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End {
    pub(crate) address: IpAddr,
    pub(crate) number: u32,
}

/// Who begins the stream.
pub(crate) enum Role {
    Initiator,
    Responder,
    /// The queue pair is its own peer. This one receives in its place.
    Itself(Box<uwarp::QueuePair>),
}

/// How far the stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// For the peer's request, or until it is time for one of our own.
    Waiting(Instant),
    Starting,
    /// There is a stream, or there was one.
    Joined,
    /// The peer was given up.
    Over,
}

/// A queue pair's way to the peer that its program has named. It lives from "ready to receive" to the next reset.
pub(crate) struct Link {
    /// By which events name it; never another's.
    pub(crate) key: u64,
    pub(crate) own: End,
    pub(crate) peer: End,
    /// Differs for each link, so that who is asked for a stream knows a new life of a queue pair from the last one.
    pub(crate) life: u64,
    pub(crate) role: Role,
    /// Reads and atomics of the peer that are taken at once.
    pub(crate) ird: u16,
    pub(crate) stage: Stage,
    /// Attempts that came to nothing.
    pub(crate) failures: u32,
    /// Since when requests of the program have waited for the stream.
    pub(crate) waits_since: Option<Instant>,
}

/// The queue pairs of links, by their keys.
static BY_KEY: Lock<BTreeMap<u64, PairId>> = Lock::new(Rank::Links, BTreeMap::new());

impl Link {
    pub(crate) fn new(id: PairId, own: End, peer: End, role: Role, ird: u16) -> Link {
        let key = process::next_key();
        BY_KEY.lock().insert(key, id);
        // The standard library's seeds for its tables are random.
        let life = RandomState::new().build_hasher().finish();
        let stage = Stage::Waiting(Instant::now());
        Link { key, own, peer, life, role, ird, stage, failures: 0, waits_since: None }
    }

    /// The queue pair that receives in place of one that is its own peer.
    pub(crate) fn shadow(&mut self) -> Option<&mut uwarp::QueuePair> {
        match &mut self.role {
            Role::Itself(shadow) => Some(shadow),
            Role::Initiator | Role::Responder => None,
        }
    }

    /// Takes that queue pair out.
    pub(crate) fn take_shadow(&mut self) -> Option<Box<uwarp::QueuePair>> {
        match std::mem::replace(&mut self.role, Role::Responder) {
            Role::Itself(shadow) => Some(shadow),
            other => {
                self.role = other;
                None
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        BY_KEY.lock().remove(&self.key);
    }
}

/// The queue pair of the link with this key, if there is one.
pub(crate) fn pair_of(key: u64) -> Option<PairId> {
    BY_KEY.lock().get(&key).copied()
}
