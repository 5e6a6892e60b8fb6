//! What has to be on the disk before its call is answered.

use super::attributes::of_errno;
use super::object::Object;
use super::{Directory, lock_number, locked};
use crate::metrics::Metrics;
use nfs3_types::nfs3::nfsstat3;
#[cfg(test)]
use rustix::io::Errno;
use std::sync::atomic::Ordering;

impl Directory {
    /// Brings to the disk what was changed of an object.
    pub(super) fn sync(&self, object: &Object, data_only: bool) -> Result<(), nfsstat3> {
        // An error is told to one of those who sync at the same time. The others must see the new verifier.
        let _alone = locked(&self.syncs[lock_number(object.key)]);
        let synced = match object.writer.get() {
            // An error in the background is told to descriptors that were open then, or to the next one that is opened.
            Some(writer) if data_only => rustix::fs::fdatasync(writer),
            Some(writer) => rustix::fs::fsync(writer),
            // That it cannot be opened says nothing of what was written.
            None => rustix::fs::fsync(object.reader().map_err(of_errno)?),
        };
        #[cfg(test)]
        locked(&self.synced).push(object.key.inode);
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
