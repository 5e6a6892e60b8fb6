//! Which paths are the device's.

use std::ffi::CStr;
use uwarp_verbs_device::{DEVICE_CLASS, NODE_CLASS, NODES};

/// The character device.
pub(crate) const NODE_PATH: &CStr = c"/dev/infiniband/uverbs0";

/// What a path means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The character device.
    Node,
    /// One of the device's folders, or what is in one of them.
    Folder,
}

impl Place {
    /// That of a path, if it is one of the device's. Only absolute paths are, and `..` is taken as any other name.
    pub(crate) fn of(path: &[u8]) -> Option<Place> {
        if path.first() != Some(&b'/') {
            return None;
        }
        if names(path).eq(names(NODE_PATH.to_bytes())) {
            return Some(Place::Node);
        }
        let folders = [DEVICE_CLASS, NODE_CLASS, NODES].into_iter();
        let mut around = folders.filter(|folder| {
            let mut names = names(path);
            self::names(folder.as_bytes()).all(|name| names.next() == Some(name))
        });
        around.next().map(|_| Place::Folder)
    }
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|octet| *octet == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_paths_are_found_however_they_are_spelled() {
        for path in ["/sys/class/infiniband", "/sys/class/infiniband/uwarp0/ports/1", "/sys//class/./infiniband_verbs/"]
        {
            assert_eq!(Place::of(path.as_bytes()), Some(Place::Folder), "{path}");
        }
        for path in ["/dev/infiniband", "/dev/infiniband/uverbs1", "/dev/infiniband/uverbs0/x"] {
            assert_eq!(Place::of(path.as_bytes()), Some(Place::Folder), "{path}");
        }
        assert_eq!(Place::of(b"/dev//infiniband/uverbs0"), Some(Place::Node));
        assert_eq!(NODE_PATH.to_str().unwrap(), format!("{NODES}/{}", uwarp_verbs_device::NODE));
    }

    #[test]
    fn no_other_path_is_the_devices() {
        for path in [
            "",
            "/",
            "/sys/class",
            "/sys/class/net/infiniband",
            "/sys/class/infiniband_mad",
            "sys/class/infiniband",
            "dev/infiniband/uverbs0",
            "/dev/null",
            "/x/dev/infiniband/uverbs0",
        ] {
            assert_eq!(Place::of(path.as_bytes()), None, "{path}");
        }
    }
}
