//! A folder of files, to which a preloaded library leads a program that no namespace can show them to.

use super::files::{is_shown, write};
use anyhow::Context as _;
use rustix::fs::Mode;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use uwarp::switch::own_socket;
use uwarp_verbs_device::{Content, Entry, Face, NODE, NODES, files};

/// The library that leads there, beside uwarp's others.
pub(crate) const LIBRARY: &str = "libuwarp_files.so";

/// Writes the files below the user's run-time directory, unless they are there already. The folder stays: programs that
/// see the same share it, and it has a few KiB.
///
/// # Errors
/// There is no such directory, or nothing can be written there.
pub(super) fn folder(face: &Face) -> anyhow::Result<PathBuf> {
    let socket = own_socket().context("no run-time directory: set XDG_RUNTIME_DIR")?;
    let around = socket.parent().context("no run-time directory")?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(Mode::RWXU.bits())
        .create(around)
        .with_context(|| format!("the directory {} cannot be made", around.display()))?;
    // What the library takes off paths has to have no links.
    let around = around.canonicalize()?;
    let place = around.join(format!("files-{:016x}", number(face)));
    if !is_shown(face, &place) {
        put(face, &around, &place).with_context(|| format!("no files can be written in {}", around.display()))?;
    }
    Ok(place)
}

/// Makes a new folder and gives it its name, so that nobody sees a part of it.
fn put(face: &Face, around: &Path, place: &Path) -> anyhow::Result<()> {
    let new = tempfile::Builder::new().prefix("files-").tempdir_in(around)?;
    let node = Entry { path: Path::new(NODES).join(NODE), content: Content::Link("/dev/null".to_owned()) };
    write(&[files(face), vec![node]].concat(), "/", new.path())?;
    // Something else may have that name, or somebody else have made the same meanwhile.
    match std::fs::rename(new.path(), place) {
        Err(_) if is_shown(face, place) => (),
        Err(error) => return Err(error.into()),
        Ok(()) => drop(new.keep()),
    }
    Ok(())
}

/// A number that differs with what is shown.
fn number(face: &Face) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{face:?}").hash(&mut hasher);
    hasher.finish()
}
