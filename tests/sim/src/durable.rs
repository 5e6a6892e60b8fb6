//! Durable regions over stores that lose all that was not synced, and Commits of them (draft-talpey-rdma-commit).

use std::io;
use std::sync::{Arc, Mutex};

use uwarp_engine::command::Features;
use uwarp_engine::rig::{Pair, World};
use uwarp_engine::work::{Completion, SendElement, SendOpcode, Sge, Status};
use uwarp_memory::{Access, Committer, DomainId, Registration, Scope, Store, TaggedBase};

use crate::pairs::element;

/// The features of a side that commits.
pub const COMMIT: Features = Features { atomics: true, immediate: true, commit: true };

/// A store that keeps what was synced apart from what was only written, and fails when told to.
#[derive(Default)]
struct Disk {
    /// What would be found after a loss of power.
    safe: Vec<u8>,
    cache: Vec<(u64, Vec<u8>)>,
    error: Option<io::ErrorKind>,
    /// Syncs say that they are done, and are not.
    lies: bool,
}

/// What a test holds of such a store.
#[derive(Clone, Default)]
pub struct Shadow(Arc<Mutex<Disk>>);

impl Shadow {
    /// A store of so many octets, all zero.
    pub fn of(length: usize) -> Shadow {
        let shadow = Shadow::default();
        shadow.0.lock().expect("not poisoned").safe = vec![0; length];
        shadow
    }

    /// What would be found after a loss of power.
    ///
    /// # Panics
    /// If the store has.
    pub fn safe(&self) -> Vec<u8> {
        self.0.lock().expect("not poisoned").safe.clone()
    }

    /// Lets writes fail from now on, or not any more.
    ///
    /// # Panics
    /// If the store has.
    pub fn fail(&self, error: Option<io::ErrorKind>) {
        self.0.lock().expect("not poisoned").error = error;
    }

    /// Whether syncs say that they are done, and are not.
    ///
    /// # Panics
    /// If the store has.
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
/// If the table is full.
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

/// What is told of work: its number, how it ended, the status of its Commit.
pub fn statuses(done: &[Completion]) -> Vec<(u64, Status, Option<u32>)> {
    done.iter().map(|one| (one.id, one.status, one.commit_status())).collect()
}
