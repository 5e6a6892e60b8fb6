//! What is known of the objects that were searched for.

use super::index::Key;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The most remembered keys of which an incomplete search could not decide.
const UNSURE_MAX: usize = 1000;
/// This many incomplete searches make a key count as gone: some places may never be readable.
const UNSURE_SEARCHES: u32 = 2;

/// The state of searches of the whole directory.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// When the running search began.
    pub(super) running: Option<Instant>,
    /// When the last one ended, and how long it took.
    pub(super) last: Option<(Instant, Duration)>,
    /// It has seen everything.
    pub(super) whole: bool,
    /// Objects that were lost before the last search, which saw everything and did not find them.
    pub(super) missed: HashSet<Key>,
    /// Requested objects without a place, with the number of searches since then, none of which saw everything.
    pub(super) unsure: HashMap<Key, u32>,
}

impl Search {
    /// It was requested, and may be where the last searches could not look.
    pub(super) fn doubt(&mut self, key: Key) {
        if self.unsure.len() < UNSURE_MAX {
            self.unsure.entry(key).or_default();
        }
    }

    /// Whether to stop answering "try again later" for it, which would promise an answer (RFC 1813 §2.6,
    /// NFS3ERR_JUKEBOX). It is searched for when the pause is over.
    pub(super) fn is_given_up(&self, key: Key) -> bool {
        self.unsure.get(&key).is_some_and(|searches| *searches >= UNSURE_SEARCHES)
    }
}
