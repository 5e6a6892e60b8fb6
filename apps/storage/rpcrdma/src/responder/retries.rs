//! Calls that ended a connection.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Connections that are remembered.
const REMEMBERED: usize = 64;

/// Calls whose RDMA operations ended their connection. A server answers their retries with ERR_CHUNK, so as not to lose
/// the next connection, too (RFC 8166 §4.5.3). There is one for all connections of a server.
///
/// A refused Read identifies its call. A Write does not: it completes when it is sent, and the peer refuses it later.
/// Then all calls that were answered with Writes are suspects, and one that has been a suspect twice is refused. The
/// guilty one is the first of them that is retried, because the replies before it have reached the requester.
#[derive(Debug, Default)]
pub(super) struct Retries {
    all: Mutex<VecDeque<Suspects>>,
    /// How many of them there are. Every call checks this, and usually it is zero.
    count: AtomicUsize,
}

/// Of one connection.
#[derive(Debug)]
struct Suspects {
    peer: IpAddr,
    xids: Vec<u32>,
    /// There is one, and it did it.
    certain: bool,
}

impl Retries {
    /// Records the call that has ended a connection.
    pub(super) fn convict(&self, peer: IpAddr, xid: u32) {
        self.remember(Suspects { peer, xids: vec![xid], certain: true });
    }

    /// Records calls of which one may have ended a connection.
    pub(super) fn suspect(&self, peer: IpAddr, xids: Vec<u32>) {
        if !xids.is_empty() {
            self.remember(Suspects { peer, xids, certain: false });
        }
    }

    fn remember(&self, suspects: Suspects) {
        let mut all = self.lock();
        if all.len() == REMEMBERED {
            all.pop_front();
        }
        all.push_back(suspects);
        self.count.store(all.len(), Ordering::Release);
    }

    /// Whether this call ends connections; true once.
    pub(super) fn breaks(&self, peer: IpAddr, xid: u32) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut all = self.lock();
        let of_it = |suspects: &&Suspects| suspects.peer == peer && suspects.xids.contains(&xid);
        let guilty = all.iter().filter(of_it).map(|suspects| if suspects.certain { 2 } else { 1 }).sum::<u32>() > 1;
        if guilty {
            all.retain(|suspects| !of_it(&suspects));
            self.count.store(all.len(), Ordering::Release);
        }
        guilty
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Suspects>> {
        // Each change is complete even if a thread panicked.
        self.all.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_guilty_for_certain_or_after_two_connections() {
        let retries = Retries::default();
        let [here, there] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        retries.suspect(here, vec![]);
        retries.convict(here, 1);
        assert!(!retries.breaks(there, 1) && !retries.breaks(here, 2));
        assert!(retries.breaks(here, 1));
        assert!(!retries.breaks(here, 1), "once");
        retries.suspect(here, vec![1, 2, 3]);
        assert!(!retries.breaks(here, 2), "it may have been another");
        retries.suspect(here, vec![2, 3]);
        assert!(!retries.breaks(there, 2) && !retries.breaks(here, 1));
        assert!(retries.breaks(here, 2));
        assert!(!retries.breaks(here, 3), "it was in bad company");
        for xid in 0..2 * REMEMBERED as u32 {
            retries.convict(here, xid);
        }
        assert!(!retries.breaks(here, 0), "forgotten");
        assert!(retries.breaks(here, REMEMBERED as u32));
    }
}
