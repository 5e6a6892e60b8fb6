//! How much of a shared queue each user has taken, and whether the queue runs low.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::sync::{AtomicU32, AtomicUsize};

/// The accounts of a shared queue: what each user has taken and not returned, bounded by its *share*; and a *limit*,
/// below which the queue reports once that it runs low.
///
/// At most one thread at a time takes for a user; any thread may return.
#[derive(Debug)]
pub struct Shares {
    /// Report, once, when fewer than this many are left; 0 disables the report.
    limit: AtomicUsize,
    /// Most that a user may have.
    share: u32,
    /// How much each has.
    taken: Box<[AtomicU32]>,
}

impl Shares {
    /// Accounts of `users` users, each of which may have `share`, at least one.
    pub fn new(share: u32, users: u32) -> Shares {
        Shares {
            limit: AtomicUsize::new(0),
            share: share.max(1),
            taken: (0..users).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Requests one report when fewer than `limit` are left; 0 cancels the request.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Release);
    }

    /// The limit of [`set_limit`](Self::set_limit) that is still to be reported; 0 if there is none.
    pub fn limit(&self) -> usize {
        self.limit.load(Acquire)
    }

    /// What a user has taken and not returned.
    pub fn taken_by(&self, user: u32) -> u32 {
        self.taken.get(user as usize).map_or(0, |taken| taken.load(Relaxed))
    }

    /// Whether a user may take one more. A user without an account may.
    #[inline]
    pub fn allows(&self, user: u32) -> bool {
        self.taken_by(user) < self.share
    }

    /// The user has taken one; `left` counts the remaining ones. Returns whether to report now that few are left.
    #[inline]
    pub fn took(&self, user: u32, left: impl FnOnce() -> usize) -> bool {
        if let Some(taken) = self.taken.get(user as usize) {
            taken.fetch_add(1, Relaxed);
        }
        let limit = self.limit.load(Relaxed);
        // If several users find it low at once, one of them reports it.
        limit != 0 && left() < limit && self.limit.compare_exchange(limit, 0, AcqRel, Relaxed).is_ok()
    }

    /// Returns `count` of what the user took.
    pub fn give_back(&self, user: u32, count: u32) {
        if let Some(taken) = self.taken.get(user as usize) {
            // Not below nothing, whatever is counted.
            let _ = taken.fetch_update(AcqRel, Relaxed, |now| Some(now.saturating_sub(count)));
        }
    }

    /// Resets the account of this number when a user begins or ends.
    pub fn forget(&self, user: u32) {
        if let Some(taken) = self.taken.get(user as usize) {
            taken.store(0, Relaxed);
        }
    }
}
