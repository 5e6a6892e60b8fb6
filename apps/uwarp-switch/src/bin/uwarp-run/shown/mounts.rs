//! The device's files in a mount namespace: an overlay of `/sys/class`, and another folder in place of `/dev`.

use anyhow::Context as _;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use std::ffi::CString;
use std::fs::{DirEntry, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use uwarp_verbs_device::{Entry, Face, NODE, NODES, files};

use super::files::write;

/// Where the kernel shows classes of devices.
const CLASSES: &str = "/sys/class";

/// Gives this process a mount namespace of its own, from which nothing gets out.
///
/// # Errors
/// The system does not allow it.
pub(super) fn enter() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("no mount namespace")?;
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).context("the root folder is no mount point")
}

/// Shows the files in this process's mount namespace.
///
/// # Errors
/// The system does not allow it, with what it was. Then nothing is changed.
pub(super) fn show(face: &Face) -> anyhow::Result<()> {
    let classes = cover_classes(&files(face))?;
    cover_nodes()?.keep();
    classes.keep();
    Ok(())
}

/// A folder over which there is an empty one, or two.
struct Cover {
    folder: &'static Path,
    /// What it has covered.
    below: OwnedFd,
    /// File systems on it.
    depth: u32,
}

impl Cover {
    fn new(folder: &'static str) -> anyhow::Result<Cover> {
        let folder = Path::new(folder);
        let below = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let below = below.with_context(|| format!("there is no {}", folder.display()))?;
        let options = CString::new("mode=755,size=4m").unwrap_or_default();
        mount("uwarp", folder, "tmpfs", MountFlags::NOSUID, Some(options.as_c_str()))
            .with_context(|| format!("nothing can be mounted on {}", folder.display()))?;
        Ok(Cover { folder, below, depth: 1 })
    }

    /// Leaves the folder covered.
    fn keep(mut self) {
        self.depth = 0;
    }

    /// A path to what is covered.
    fn below(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.below.as_raw_fd()).into()
    }

    /// Has what was covered show again in its place, unless something else is there by now.
    fn bind_all(&self) -> anyhow::Result<()> {
        let entries = self.below().read_dir().context("/proc is needed")?;
        for entry in entries {
            let entry = entry?;
            let place = self.folder.join(entry.file_name());
            if place.symlink_metadata().is_err() {
                let bound = bind(&entry, &place);
                bound.with_context(|| format!("{} cannot be mounted again", place.display()))?;
            }
        }
        Ok(())
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        for _ in 0..self.depth {
            let _ = unmount(self.folder, UnmountFlags::DETACH);
        }
    }
}

/// Shows what is at one place at another one, which is empty.
fn bind(entry: &DirEntry, to: &Path) -> anyhow::Result<()> {
    let (from, kind) = (entry.path(), entry.file_type()?);
    if kind.is_symlink() {
        symlink(from.read_link()?, to)?;
    } else if kind.is_dir() {
        std::fs::create_dir(to)?;
        mount_bind_recursive(&from, to)?;
    } else {
        File::create_new(to)?;
        mount_bind(&from, to)?;
    }
    Ok(())
}

/// Puts the files of `/sys/class` into that folder.
fn cover_classes(entries: &[Entry]) -> anyhow::Result<Cover> {
    let mut cover = Cover::new(CLASSES)?;
    let [upper, work] = ["upper", "work"].map(|name| cover.folder.join(name));
    for folder in [&upper, &work] {
        std::fs::create_dir(folder)?;
    }
    write(entries, CLASSES, &upper)?;
    let options =
        format!("lowerdir={},upperdir={},workdir={}", cover.below().display(), upper.display(), work.display());
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    if mount("uwarp", cover.folder, "overlay", flags, Some(CString::new(options)?.as_c_str())).is_ok() {
        cover.depth += 1;
        return Ok(cover);
    }
    // Kernels before 5.11 have no overlays for ordinary users, and none has an overlay of an overlay of an overlay.
    for folder in [&upper, &work] {
        std::fs::remove_dir_all(folder)?;
    }
    write(entries, CLASSES, cover.folder)?;
    cover.bind_all()?;
    Ok(cover)
}

/// Puts the character device into its folder.
fn cover_nodes() -> anyhow::Result<Cover> {
    let folder = if Path::new(NODES).is_dir() { NODES } else { "/dev" };
    let cover = Cover::new(folder)?;
    std::fs::create_dir_all(NODES)?;
    let node = Path::new(NODES).join(NODE);
    File::create_new(&node)?;
    cover.bind_all()?;
    mount_bind("/dev/null", &node).context("/dev/null cannot be mounted")?;
    Ok(cover)
}
