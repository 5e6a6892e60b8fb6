//! The places of the directory's objects, by the key in their handles.

use std::collections::{HashMap, HashSet};

/// Identifies an object for as long as it exists, whatever its name: its inode number and its birth time, since numbers
/// are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Inode.
    pub inode: u64,
    /// Birth in nanoseconds since 1970; zero if the file system does not store it.
    pub born: u64,
}

/// A name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parent: Key,
    pub(super) name: Box<[u8]>,
}

/// The names of the objects that have been seen; none for a lost one. It may lag behind changes by other programs, so
/// users of a place must check what is there.
#[derive(Debug, Default)]
pub(super) struct Index {
    places: HashMap<Key, Vec<Place>>,
}

impl Index {
    /// An object was seen under this name.
    pub(super) fn learn(&mut self, key: Key, parent: Key, name: &[u8]) {
        let places = self.places.entry(key).or_default();
        if !places.iter().any(|place| place.parent == parent && *place.name == *name) {
            places.push(Place { parent, name: name.into() });
        }
    }

    /// The object no longer has this name. An object without any name is lost but still known: other programs may have
    /// moved it.
    pub(super) fn forget(&mut self, key: Key, parent: Key, name: &[u8]) {
        if let Some(places) = self.places.get_mut(&key) {
            places.retain(|place| place.parent != parent || *place.name != *name);
        }
    }

    /// An object no longer exists, unless it has been seen again meanwhile.
    pub(super) fn gone(&mut self, key: Key) {
        if self.places.get(&key).is_some_and(Vec::is_empty) {
            self.places.remove(&key);
        }
    }

    /// Whether it has been seen and is not known to be gone.
    pub(super) fn knows(&self, key: Key) -> bool {
        self.places.contains_key(&key)
    }

    /// Objects that have been seen and have no known place.
    pub(super) fn lost(&self) -> HashSet<Key> {
        self.places.iter().filter(|(_, places)| places.is_empty()).map(|(&key, _)| key).collect()
    }

    /// Its names, the one seen last first.
    pub(super) fn places(&self, key: Key) -> Vec<Place> {
        self.places.get(&key).map(|places| places.iter().rev().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_as_many_places_as_links() {
        let (root, file) = (Key { inode: 2, born: 0 }, Key { inode: 9, born: 5 });
        let mut index = Index::default();
        for name in [&b"a"[..], b"b", b"a"] {
            index.learn(file, root, name);
        }
        let names =
            |index: &Index| -> Vec<Vec<u8>> { index.places(file).iter().map(|place| place.name.to_vec()).collect() };
        assert_eq!(names(&index), [b"b", b"a"]);
        index.forget(file, root, b"b");
        assert_eq!(names(&index), [b"a"]);
        index.forget(file, root, b"a");
        assert!(names(&index).is_empty() && index.knows(file));
        assert_eq!(index.lost(), HashSet::from([file]));
        index.learn(file, root, b"c");
        index.gone(file);
        assert_eq!(names(&index), [b"c"], "it was seen again");
        index.forget(file, root, b"c");
        index.gone(file);
        assert!(!index.knows(file) && index.places.is_empty());
    }
}
