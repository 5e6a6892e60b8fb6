//! Whether the files are there.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use uwarp_verbs_device::{Content, Face, NODE, NODES, files};

/// Whether a process with this root sees these files.
pub(super) fn is_shown(face: &Face, root: &Path) -> bool {
    let is_same = |path: PathBuf, content: &Content| match content {
        Content::Text(text) => std::fs::read_to_string(path).is_ok_and(|found| found == *text),
        Content::Link(to) => std::fs::read_link(path).is_ok_and(|found| found == Path::new(to)),
        Content::Folder => path.is_dir(),
    };
    let mut entries = files(face).into_iter();
    entries.all(|entry| is_same(below(root, &entry.path), &entry.content)) && has_node(root)
}

/// Whether a process with this root sees the character device.
pub(super) fn has_node(root: &Path) -> bool {
    let file = below(root, Path::new(NODES).join(NODE)).metadata();
    file.is_ok_and(|file| file.file_type().is_char_device())
}

/// A path as a process with this root means it.
pub(super) fn below(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    root.join(path.strip_prefix("/").unwrap_or(path))
}
