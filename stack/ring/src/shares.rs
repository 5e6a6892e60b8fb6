//! How much of something shared each of several users has taken, and whether it runs low.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::sync::{AtomicU32, AtomicUsize};

/// The accounts of a shared queue: what each user has taken from it and not given back, of which it may have a *share*; and a
/// *limit*, below which the queue says once that it runs low.
///
/// One thread at a time takes for a user; any may give back.
#[derive(Debug)]
pub struct Shares {
    /// Fewer than so many left are reported, once; 0 is never.
    limit: AtomicUsize,
    /// Most that a user may have.
    share: u32,
    /// How much each has.
    taken: Box<[AtomicU32]>,
}

impl Shares {
    /// Accounts of so many users, each of which may have `share`, at least one.
    pub fn new(share: u32, users: u32) -> Shares {
        Shares {
            limit: AtomicUsize::new(0),
            share: share.max(1),
            taken: (0..users).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Has it told once when fewer than `limit` are left; 0 takes that back.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Release);
    }

    /// What [`set_limit`](Self::set_limit) asked for and was not told yet; 0 if nothing.
    pub fn limit(&self) -> usize {
        self.limit.load(Acquire)
    }

    /// What a user has taken and not given back.
    pub fn taken_by(&self, user: u32) -> u32 {
        self.taken.get(user as usize).map_or(0, |taken| taken.load(Relaxed))
    }

    /// Whether a user may take one more. One that has no account may.
    #[inline]
    pub fn allows(&self, user: u32) -> bool {
        self.taken_by(user) < self.share
    }

    /// The user has taken one, which leaves what `left` says. Gives whether this is the time to tell that few are left.
    #[inline]
    pub fn took(&self, user: u32, left: impl FnOnce() -> usize) -> bool {
        if let Some(taken) = self.taken.get(user as usize) {
            taken.fetch_add(1, Relaxed);
        }
        let limit = self.limit.load(Relaxed);
        // Of several that find it low at once, one says so.
        limit != 0 && left() < limit && self.limit.compare_exchange(limit, 0, AcqRel, Relaxed).is_ok()
    }

    /// `count` of what the user took are given back.
    pub fn give_back(&self, user: u32, count: u32) {
        if let Some(taken) = self.taken.get(user as usize) {
            // Not below nothing, whatever is counted.
            let _ = taken.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(count)));
        }
    }

    /// A user with this number begins, or is gone.
    pub fn forget(&self, user: u32) {
        if let Some(taken) = self.taken.get(user as usize) {
            taken.store(0, Relaxed);
        }
    }
}
