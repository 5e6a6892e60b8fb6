//! The namespaces of an ordinary user's other programs. The kernel refuses programs of different user namespaces each
//! other's memory, by which MPI and UCX copy within a host, so programs that would see the same share theirs.

use super::files::{below, is_shown};
use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{getgid, getuid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{File, Metadata};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uwarp_verbs_device::{Face, NODES};

/// Beside the character device: from where the namespaces were made, and by whom.
const ORIGIN: &str = ".origin";
/// How long a program that makes namespaces may keep the next one waiting.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where this process is, and whom it runs as: who is there, too, may share its namespaces.
pub(super) fn origin() -> anyhow::Result<String> {
    let (mounts, root) = (std::fs::metadata("/proc/self/ns/mnt").context("/proc is needed")?, std::fs::metadata("/")?);
    let place = |file: &Metadata| format!("{}:{}", file.dev(), file.ino());
    Ok(format!("{} {} {} {}\n", place(&mounts), place(&root), getuid(), getgid()))
}

/// Leaves word of the origin in namespaces that are being made.
pub(super) fn mark(origin: &str) -> anyhow::Result<()> {
    std::fs::write(Path::new(NODES).join(ORIGIN), origin).context("the namespaces cannot be marked")
}

/// Lets one program at a time look for namespaces and make them, until the value is dropped or the program runs.
pub(super) fn lock(folder: Option<&Path>) -> Option<File> {
    let file = File::open(folder?).ok()?;
    let start = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if start.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(file)
}

/// Moves this process, which has to have one thread, into the namespaces of another program that show the files.
/// Returns whether there are some.
pub(super) fn join(face: &Face) -> anyhow::Result<bool> {
    let (origin, own) = (origin()?, std::fs::metadata("/proc/self/ns/user")?.ino());
    for process in processes()? {
        // Only this user's processes can be looked into. They may end meanwhile.
        let is_elsewhere = std::fs::metadata(process.join("ns/user")).is_ok_and(|user| user.ino() != own);
        let root = process.join("root");
        let mark = below(&root, NODES).join(ORIGIN);
        if is_elsewhere
            && std::fs::read_to_string(mark).is_ok_and(|text| text == origin)
            && has_current_folder(&root)
            && is_shown(face, &root)
        {
            return enter(&process).map(|()| true);
        }
    }
    Ok(false)
}

/// Whether this process's folder has the same path there. A file system may have been mounted since.
fn has_current_folder(root: &Path) -> bool {
    let number = |path: &Path| std::fs::metadata(path).map(|folder| (folder.dev(), folder.ino())).ok();
    let current = std::env::current_dir().ok();
    current.is_some_and(|current| number(&current).is_some_and(|here| number(&below(root, &current)) == Some(here)))
}

fn processes() -> anyhow::Result<impl Iterator<Item = PathBuf>> {
    let entries = std::fs::read_dir("/proc").context("/proc is needed")?.flatten();
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    Ok(entries.filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path()))
}

/// Moves this process into another one's user and mount namespace, and back to its folder.
pub(super) fn enter(process: &Path) -> anyhow::Result<()> {
    // Joining a mount namespace leads to its root.
    let current = std::env::current_dir().context("the current folder has no path")?;
    let open = |kind: &str| File::open(process.join("ns").join(kind));
    let [user, mounts] = [open("user")?, open("mnt")?];
    move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)).context("the user namespace")?;
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount)).context("the mount namespace")?;
    std::env::set_current_dir(&current).with_context(|| format!("{} is out of reach", current.display()))
}
