//! What has to be on the disk before its call is answered.

use super::attributes::of_errno;
use super::object::Object;
use super::{Directory, lock_number, locked};
use crate::metrics::Metrics;
use nfs3_types::nfs3::nfsstat3;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

impl Directory {
    /// Opens what syncs this object, before it is changed: what could not be synced afterwards is not done.
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

    /// Brings to the disk what was changed of an object.
    pub(super) fn sync(&self, object: &Object, data_only: bool) -> Result<(), nfsstat3> {
        // An error is told to one of those who sync at the same time. The others must see the new verifier.
        let _alone = locked(&self.syncs[lock_number(object.key)]);
        let synced = match object.writer.get() {
            // An error in the background is told to descriptors that were open then, or to the next one that is opened.
            Some(writer) if data_only => rustix::fs::fdatasync(writer),
            Some(writer) => rustix::fs::fsync(writer),
            None => match object.reader() {
                Ok(reader) => rustix::fs::fsync(reader),
                // Its mode keeps out the user of a server that is not root's.
                Err(Errno::ACCESS) => return self.sync_all(object),
                // That it cannot be opened says nothing of what was written.
                Err(error) => return Err(of_errno(error)),
            },
        };
        #[cfg(test)]
        locked(&self.synced).push(object.key.inode);
        self.told(synced)
    }

    /// Brings everything of the file system to the disk, which is the only way for an object without a descriptor of its own.
    /// Linux 5.8 is the first to tell of what could not be written.
    fn sync_all(&self, object: &Object) -> Result<(), nfsstat3> {
        let root = self.root.reader().map_err(of_errno)?;
        // All of these have the root's descriptor, and an error is told to one of them, too.
        let (own, of_root) = (lock_number(object.key), lock_number(self.root.key));
        let _alone = (own != of_root).then(|| locked(&self.syncs[of_root]));
        let synced = rustix::fs::syncfs(root);
        #[cfg(test)]
        locked(&self.synced).push(0);
        self.told(synced)
    }

    fn told(&self, synced: Result<(), Errno>) -> Result<(), nfsstat3> {
        #[cfg(test)]
        let synced = if self.fail_sync.load(Ordering::Relaxed) { Err(Errno::IO) } else { synced };
        synced.map_err(|error| {
            // The system tells this once, and then takes lost data for written: clients have to send it again.
            self.verifier.fetch_add(1, Ordering::AcqRel);
            Metrics::count(&self.metrics.failed_syncs);
            tracing::error!("what was written to an object is lost: {error}");
            of_errno(error)
        })
    }

    /// The word by which clients see that uncommitted data may be lost.
    pub(super) fn verifier(&self) -> [u8; 8] {
        self.verifier.load(Ordering::Acquire).to_be_bytes()
    }
}
