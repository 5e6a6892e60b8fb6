//! Durable regions over stores that lose unsynced writes, and Commits of them (draft-talpey-rdma-commit).

use std::io;
use std::sync::{Arc, Mutex};

use uwarp_engine::command::Features;
use uwarp_engine::work::{Completion, SendElement, SendOpcode, Sge, Status};
use uwarp_memory::{Access, Committer, DomainId, Registration, Scope, Store, TaggedBase};
use uwarp_testkit::rig::{Pair, World};

use crate::pairs::element;

/// The features of a side that commits.
pub const COMMIT: Features = Features { atomics: true, immediate: true, commit: true, infiniband: false };

/// A store that separates synced from unsynced data, and fails on request.
#[derive(Default)]
struct Disk {
    /// Its contents after a power failure.
    safe: Vec<u8>,
    cache: Vec<(u64, Vec<u8>)>,
    error: Option<io::ErrorKind>,
    /// Syncs report success without syncing.
    lies: bool,
}

/// A test's handle of such a store.
#[derive(Clone, Default)]
pub struct Shadow(Arc<Mutex<Disk>>);

impl Shadow {
    /// A store of `length` octets, all zero.
    pub fn of(length: usize) -> Shadow {
        let shadow = Shadow::default();
        shadow.0.lock().expect("not poisoned").safe = vec![0; length];
        shadow
    }

    /// Its contents after a power failure.
    ///
    /// # Panics
    /// The store panicked.
    pub fn safe(&self) -> Vec<u8> {
        self.0.lock().expect("not poisoned").safe.clone()
    }

    /// Makes writes fail from now on, or succeed again.
    ///
    /// # Panics
    /// The store panicked.
    pub fn fail(&self, error: Option<io::ErrorKind>) {
        self.0.lock().expect("not poisoned").error = error;
    }

    /// Sets whether syncs report success without syncing.
    ///
    /// # Panics
    /// The store panicked.
    pub fn lie(&self, lies: bool) {
        self.0.lock().expect("not poisoned").lies = lies;
    }
}

impl Store for Shadow {
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().expect("not poisoned");
        if let Some(kind) = disk.error {
            return Err(kind.into());
        }
        disk.cache.push((offset, octets.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut disk = self.0.lock().expect("not poisoned");
        if disk.lies {
            return Ok(());
        }
        let cache = std::mem::take(&mut disk.cache);
        for (offset, octets) in cache {
            disk.safe[offset as usize..][..octets.len()].copy_from_slice(&octets);
        }
        Ok(())
    }
}

/// A durable region of host `host`, its committer and its store.
///
/// # Panics
/// The table is full.
pub fn durable(world: &World, host: usize, length: usize, transparent: bool) -> (Registration, Committer, Shadow) {
    let shadow = Shadow::of(length);
    let (region, committer) = world.hosts[host]
        .regions
        .register_durable(
            vec![0; length],
            Access::ALL,
            Scope::Domain(DomainId(1)),
            TaggedBase::Zero,
            Box::new(shadow.clone()),
            transparent,
        )
        .expect("the table has room");
    (region, committer, shadow)
}

/// Posts a Commit of regions of the peer; false if the queue is full.
pub fn post_commit(pair: &mut Pair, id: u64, regions: &[Sge]) -> bool {
    let element = SendElement { entries: regions.len() as u8, ..element(id, SendOpcode::Commit) };
    pair.post(element, regions, &[])
}

/// Posts a Write with its Commit.
pub fn post_write_commit(pair: &mut Pair, id: u64, source: Sge, target: (u32, u64)) -> bool {
    pair.post_simple(id, SendOpcode::WriteCommit, Some(source), target)
}

/// The completions of work: number, status, and status of the Commit.
pub fn statuses(done: &[Completion]) -> Vec<(u64, Status, Option<u32>)> {
    done.iter().map(|one| (one.id, one.status, one.commit_status())).collect()
}
