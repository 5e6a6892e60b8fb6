//! What each user may have of what there is for all.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::MAX_CLIENTS;

/// The users who may connect.
#[derive(Clone, Debug)]
pub(super) struct Users {
    /// The switch's own.
    own: u32,
    allowed: BTreeSet<u32>,
}

impl Users {
    pub(super) fn new(own: u32, allowed: &[u32]) -> Users {
        Users { own, allowed: allowed.iter().copied().collect() }
    }

    /// Who can stop the switch anyway.
    pub(super) fn is_master(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own
    }

    pub(super) fn may_connect(&self, uid: u32) -> bool {
        self.is_master(uid) || self.allowed.contains(&uid)
    }

    /// The most places of a user: root and the switch's own user may have all, and each other one the same share, so
    /// that none of them takes all.
    pub(super) fn share(&self, uid: u32) -> usize {
        if self.is_master(uid) { MAX_CLIENTS } else { (MAX_CLIENTS / (self.allowed.len() + 1)).max(1) }
    }
}

/// The entry that makes way: the oldest of the user with most. Entries are given from the oldest on.
pub(super) fn oldest_of_most(uids: &[u32]) -> Option<usize> {
    let mut counts = BTreeMap::new();
    for uid in uids {
        *counts.entry(*uid).or_insert(0) += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    uids.iter().position(|uid| *uid == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_users_share_the_places_and_the_switchs_own_may_have_all() {
        let users = Users::new(1000, &[1001, 1002, 1002]);
        for (uid, may_connect, share) in
            [(0, true, 256), (1000, true, 256), (1001, true, 85), (1002, true, 85), (1003, false, 85)]
        {
            assert_eq!((users.may_connect(uid), users.share(uid)), (may_connect, share), "{uid}");
        }
        let many: Vec<u32> = (1..1000).collect();
        assert_eq!(Users::new(1000, &many).share(7), 1);
    }

    #[test]
    fn who_floods_makes_way_for_others() {
        assert_eq!(oldest_of_most(&[7, 8, 8, 9]), Some(1));
        assert_eq!(oldest_of_most(&[8, 7, 7, 7]), Some(1));
        assert_eq!(oldest_of_most(&[]), None);
    }
}
