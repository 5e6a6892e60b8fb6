//! Searches of the whole directory, for objects whose place is unknown.
//!
//! While one runs, and for a while after it, requests for such an object are answered at once (NFS3ERR_JUKEBOX), so
//! that the threads serve other calls.

use super::attributes::of_errno;
use super::index::Key;
use super::listing;
use super::object::{Object, key_of};
use super::{Directory, RENAME_LOOKS};
use crate::metrics::Metrics;
use nfs3_types::nfs3::nfsstat3;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard, TryLockError};
use std::time::{Duration, Instant};
use uwarp_app::lock;

/// After a search of the whole directory, the next one waits this many times its duration, and at least
/// SEARCH_PAUSE_MIN.
const SEARCH_PAUSE: u32 = 20;
pub(super) const SEARCH_PAUSE_MIN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// How old a search may become while others wait for its end: most are shorter.
const SEARCH_WAIT: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 100 });
/// The pause between lookups of an object that is being renamed: a rename hides it no longer than a system call takes.
const RENAME_PAUSE: Duration = Duration::from_millis(1);

/// A running search, which ends when this value is dropped, however it ends.
struct Running<'a>(&'a Directory);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.search).running = None;
        self.0.search_over.notify_all();
    }
}

/// A rename under way. No search begins before it is over, and a lookup that misses the moved object is retried.
pub(super) struct Moving<'a> {
    directory: &'a Directory,
    _shared: RwLockReadGuard<'a, ()>,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.directory.moving.fetch_sub(1, Ordering::Release);
    }
}

impl Directory {
    /// Keep the returned value while something changes its place and the index is updated.
    ///
    /// # Errors
    /// A search is running, which must not miss what is moved, and takes long.
    pub(super) fn moving(&self) -> Result<Moving<'_>, nfsstat3> {
        self.wait_for_search();
        let shared = match self.tree.try_read() {
            Ok(shared) => shared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(nfsstat3::NFS3ERR_JUKEBOX),
        };
        self.moving.fetch_add(1, Ordering::AcqRel);
        Ok(Moving { directory: self, _shared: shared })
    }

    /// Waits for the end of a search that has just begun.
    fn wait_for_search(&self) {
        let search = lock(&self.search);
        let left = search.running.map_or(Duration::ZERO, |began| SEARCH_WAIT.saturating_sub(began.elapsed()));
        if !left.is_zero() {
            drop(self.search_over.wait_timeout_while(search, left, |search| search.running.is_some()));
        }
    }

    /// Walks to an object by its names, and retries if a rename may have hidden it.
    fn descend_again(&self, key: Key) -> Result<Option<Arc<Object>>, nfsstat3> {
        for _ in 0..RENAME_LOOKS {
            let moving = self.moving.load(Ordering::Acquire) > 0;
            let found = self.descend(key, &mut HashSet::new()).map_err(of_errno)?;
            if found.is_some() || !moving {
                return Ok(found);
            }
            std::thread::sleep(RENAME_PAUSE);
        }
        Ok(None)
    }

    /// Finds an object that has a handle but no known place: the server was restarted, or another program has moved the
    /// object. If necessary, searches the whole directory.
    ///
    /// # Errors
    /// It may exist, but cannot be searched for now.
    pub(super) fn search(&self, key: Key) -> Result<Option<Arc<Object>>, nfsstat3> {
        self.wait_for_search();
        if let Some(object) = self.descend_again(key)? {
            return Ok(Some(object));
        }
        let mut search = lock(&self.search);
        let is_known = lock(&self.index).knows(key);
        let is_given_up = search.is_given_up(key);
        if let Some((ended, took)) = search.last {
            // An object without a place after a complete search does not exist; the index learns every place since
            // then.
            if !is_known && search.whole {
                return Ok(None);
            }
            if ended.elapsed() < SEARCH_PAUSE_MIN.max(took * SEARCH_PAUSE) {
                if is_given_up || search.missed.contains(&key) {
                    return Ok(None);
                }
                search.doubt(key);
                return Err(nfsstat3::NFS3ERR_JUKEBOX);
            }
        }
        search.doubt(key);
        if search.running.is_some() {
            return if is_given_up { Ok(None) } else { Err(nfsstat3::NFS3ERR_JUKEBOX) };
        }
        search.running = Some(Instant::now());
        drop(search);
        let _running = Running(self);
        self.search_now(key)
    }

    fn search_now(&self, key: Key) -> Result<Option<Arc<Object>>, nfsstat3> {
        let _alone = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        self.exclusive.fetch_add(1, Ordering::Relaxed);
        // A rename that was under way may have recorded its place.
        if let Some(object) = self.descend(key, &mut HashSet::new()).map_err(of_errno)? {
            return Ok(Some(object));
        }
        let lost = lock(&self.index).lost();
        let start = Instant::now();
        let looked = self.look_through();
        let took = start.elapsed();
        let found = self.descend(key, &mut HashSet::new());
        let mut search = lock(&self.search);
        search.last = Some((Instant::now(), took));
        search.whole = looked == Ok(true);
        Metrics::count(&self.metrics.searches);
        looked.map_err(of_errno)?;
        let mut index = lock(&self.index);
        let still_lost = index.lost();
        for &key in lost.intersection(&still_lost).filter(|_| search.whole) {
            // One search can miss an object that is moved meanwhile, but hardly two.
            if search.missed.contains(&key) {
                index.gone(key);
            }
        }
        let is_missed = |key: &Key| search.whole && still_lost.contains(key) && index.knows(*key);
        search.missed = lost.into_iter().filter(is_missed).collect();
        if search.whole {
            search.unsure.clear();
        }
        // A place does not count if the place of its directory is unknown.
        let is_missing = matches!(found, Ok(None));
        search.unsure.retain(|other, searches| {
            *searches = searches.saturating_add(1);
            (is_missing && *other == key) || index.places(*other).is_empty()
        });
        let found = found.map_err(of_errno)?;
        let may_be = !search.whole && !search.is_given_up(key);
        if found.is_none() && may_be { Err(nfsstat3::NFS3ERR_JUKEBOX) } else { Ok(found) }
    }

    /// Learns the names of everything. Returns false if something could not be read, and an error if it may be readable
    /// soon.
    fn look_through(&self) -> Result<bool, Errno> {
        let mut whole = true;
        let mut failed = |error| match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(error),
            // What the server may not read, or what is elsewhere, is not served.
            Errno::ACCESS | Errno::XDEV => Ok(()),
            // If a name is gone, nothing failed, but a directory may have been moved.
            _ => {
                whole = false;
                Ok(())
            }
        };
        let mut directories = vec![self.root.key];
        while let Some(key) = directories.pop() {
            // Queued directories are not open: there may be more of them than descriptors.
            let names = match self.descend(key, &mut HashSet::new()) {
                Ok(Some(directory)) => listing::names(&directory).map(|names| (directory, names)),
                Ok(None) => Err(Errno::NOENT),
                Err(error) => Err(error),
            };
            let (directory, names) = match names {
                Ok(found) => found,
                Err(error) => {
                    failed(error)?;
                    continue;
                }
            };
            for name in names {
                let stat = match self.look(&directory, &name) {
                    Ok(stat) => stat,
                    Err(Errno::NOENT) => continue,
                    Err(error) => {
                        failed(error)?;
                        continue;
                    }
                };
                let found = key_of(&stat);
                lock(&self.index).learn(found, key, &name);
                if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory {
                    directories.push(found);
                }
            }
        }
        Ok(whole)
    }
}
