//! Searches of the whole directory, for objects whose place is not known.

use super::attributes::of_errno;
use super::index::Key;
use super::listing;
use super::object::{Object, key_of};
use super::{Directory, locked};
use crate::metrics::Metrics;
use nfs3_types::nfs3::nfsstat3;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// After a search of the whole directory, the next one waits so many times as long as it took, and at least so long.
const SEARCH_PAUSE: u32 = 20;
pub(super) const SEARCH_PAUSE_MIN: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// Keys remembered that a search could not tell of, since it did not see everything.
const UNSURE_MAX: usize = 1000;

/// Searches of the whole directory.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// When the last one ended, and how long it took.
    pub(super) last: Option<(Instant, Duration)>,
    /// It has seen everything.
    whole: bool,
    /// Objects that had been lost before it, and that it has not found, though it has seen everything.
    missed: HashSet<Key>,
    /// What was asked for and not found by one that did not see everything.
    unsure: HashSet<Key>,
}

impl Directory {
    /// Looks through the whole directory for an object, since there is a handle of it and its place is not known: the server was
    /// started again, or others have moved it.
    ///
    /// # Errors
    /// It may exist, and cannot be looked for now.
    pub(super) fn search(&self, key: Key) -> Result<Option<Arc<Object>>, nfsstat3> {
        let mut search = locked(&self.search);
        let _alone = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        // The last search, or a rename that was under way, may have told where it is.
        if let Some(object) = self.descend(key, &mut HashSet::new()).map_err(of_errno)? {
            return Ok(Some(object));
        }
        let is_known = locked(&self.index).knows(key);
        if let Some((ended, took)) = search.last {
            // What had no place after a whole search does not exist; each place since then was learned.
            if !is_known && search.whole {
                return Ok(None);
            }
            if ended.elapsed() < SEARCH_PAUSE_MIN.max(took * SEARCH_PAUSE) {
                return if search.missed.contains(&key) { Ok(None) } else { Err(nfsstat3::NFS3ERR_JUKEBOX) };
            }
        }
        let lost = locked(&self.index).lost();
        let start = Instant::now();
        let looked = self.look_through();
        search.last = Some((Instant::now(), start.elapsed()));
        search.whole = looked == Ok(true);
        Metrics::count(&self.metrics.searches);
        looked.map_err(of_errno)?;
        let mut index = locked(&self.index);
        let still_lost = index.lost();
        for &key in lost.intersection(&still_lost).filter(|_| search.whole) {
            // A search can miss what others move meanwhile, but hardly two.
            if search.missed.contains(&key) {
                index.gone(key);
            }
        }
        let is_missed = |key: &Key| search.whole && still_lost.contains(key) && index.knows(*key);
        search.missed = lost.into_iter().filter(is_missed).collect();
        drop(index);
        let found = self.descend(key, &mut HashSet::new()).map_err(of_errno)?;
        if search.whole {
            search.unsure.clear();
        } else if found.is_none() && search.unsure.len() < UNSURE_MAX && search.unsure.insert(key) {
            // It may be where this search could not look. One more, and it counts as gone: some places may never be seen.
            return Err(nfsstat3::NFS3ERR_JUKEBOX);
        }
        Ok(found)
    }

    /// Learns the names of everything; false if something could not be looked at, and an error if that may be otherwise soon.
    fn look_through(&self) -> Result<bool, Errno> {
        let mut whole = true;
        let mut failed = |error| match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(error),
            // What the server may not read has nothing to serve, and what lies elsewhere neither.
            Errno::ACCESS | Errno::XDEV => Ok(()),
            // That it was not there any more is no failure of a name's, but a directory may have been moved.
            _ => {
                whole = false;
                Ok(())
            }
        };
        let mut directories = vec![self.root.key];
        while let Some(key) = directories.pop() {
            // Those that wait are not open: there may be more of them than descriptors.
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
                locked(&self.index).learn(found, key, &name);
                if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory {
                    directories.push(found);
                }
            }
        }
        Ok(whole)
    }
}
