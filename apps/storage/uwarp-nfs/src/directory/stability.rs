//! What must be synced before its call is answered.

use super::attributes::of_errno;
use super::object::{Closing, Object};
use super::{Directory, lock_number};
use crate::metrics::Metrics;
use nfs3_types::nfs3::nfsstat3;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use uwarp_app::lock;

impl Directory {
    /// Opens the descriptor for syncing this object before it is changed: a change that could not be synced afterwards
    /// is not made.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn prepare_sync(&self, object: &Object) -> Result<(), nfsstat3> {
        if object.writer.get().is_some() || !matches!(object.kind, FileType::RegularFile | FileType::Directory) {
            return Ok(());
        }
        let opened = match object.reader() {
            Err(Errno::ACCESS) => self.root.reader(),
            opened => opened,
        };
        opened.map(drop).map_err(of_errno)
    }

    /// Syncs the changes of an object.
    pub(super) fn sync(&self, object: &Object, data_only: bool) -> Result<(), nfsstat3> {
        // The system reports an error to only one of several concurrent syncs. The others must see the new verifier.
        let _alone = lock(&self.syncs[lock_number(object.key)]);
        // Before the sync: what is written meanwhile needs another one.
        object.is_unsynced.store(false, Ordering::Relaxed);
        let synced = match object.writer.get() {
            // The system reports a background error to descriptors that were open at that time, or to the next one that
            // is opened.
            Some(writer) if data_only => rustix::fs::fdatasync(writer),
            Some(writer) => rustix::fs::fsync(writer),
            None => match object.reader() {
                Ok(reader) => rustix::fs::fsync(reader),
                // The file's mode excludes the user of a server that is not root.
                Err(Errno::ACCESS) => return self.sync_all(object),
                // A failure to open says nothing about the written data.
                Err(error) => return Err(of_errno(error)),
            },
        };
        #[cfg(test)]
        lock(&self.synced).push(object.key.inode);
        self.told(synced)
    }

    /// Syncs the whole file system, the only way for an object without a descriptor of its own. Linux 5.8 and later
    /// report here what could not be written.
    fn sync_all(&self, object: &Object) -> Result<(), nfsstat3> {
        let root = self.root.reader().map_err(of_errno)?;
        // All of these use the root's descriptor, and an error is reported to only one of them, too.
        let (own, of_root) = (lock_number(object.key), lock_number(self.root.key));
        let _alone = (own != of_root).then(|| lock(&self.syncs[of_root]));
        let synced = rustix::fs::syncfs(root);
        #[cfg(test)]
        lock(&self.synced).push(0);
        self.told(synced)
    }

    /// Closes the files that no call has written since this was last called, and those that were removed: a program
    /// that is open for writing cannot be run here, and a removed file keeps its space while it is open. A file that
    /// this process may not open again stays open.
    pub fn close_unused(&self) {
        let closing = lock(&self.open).take_unused(|object| self.switches || object.is_writable());
        self.close(closing);
    }

    /// Closes descriptors with data that may not be synced. A descriptor that is opened later may not report what could
    /// not be written, so it is learned now, and the verifier tells the clients.
    pub(super) fn close(&self, closing: Vec<Closing>) {
        for Closing { key, writer } in closing {
            let _alone = lock(&self.syncs[lock_number(key)]);
            let synced = rustix::fs::fsync(&writer);
            #[cfg(test)]
            lock(&self.synced).push(key.inode);
            let _ = self.told(synced);
        }
    }

    fn told(&self, synced: Result<(), Errno>) -> Result<(), nfsstat3> {
        #[cfg(test)]
        let synced = if self.fail_sync.load(Ordering::Relaxed) { Err(Errno::IO) } else { synced };
        synced.map_err(|error| {
            // The system reports this once, and then considers lost data written: clients must send it again.
            self.verifier.fetch_add(1, Ordering::AcqRel);
            Metrics::count(&self.metrics.failed_syncs);
            tracing::error!("data written to an object is lost: {error}");
            of_errno(error)
        })
    }

    /// The verifier by which clients see that uncommitted data may be lost.
    pub(super) fn verifier(&self) -> [u8; 8] {
        self.verifier.load(Ordering::Acquire).to_be_bytes()
    }
}
