//! The files as such: written, and whether they are there.

use anyhow::anyhow;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use uwarp_verbs_device::{Content, Entry, Face, NODE, NODES, files};

/// Writes files, which are below `base`, into the folder `root`.
pub(super) fn write(entries: &[Entry], base: &str, root: &Path) -> anyhow::Result<()> {
    for Entry { path, content } in entries {
        let path = root.join(path.strip_prefix(base)?);
        let parent = path.parent().ok_or_else(|| anyhow!("a file in no folder"))?;
        std::fs::create_dir_all(parent)?;
        match content {
            Content::Text(text) => std::fs::write(&path, text)?,
            Content::Link(to) => symlink(to, &path)?,
            Content::Folder => std::fs::create_dir_all(&path)?,
        }
    }
    Ok(())
}

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
