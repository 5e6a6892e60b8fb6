//! The monitor socket, which lets another process inspect this one.
//!
//! It is a Unix socket in the user's run-time directory, named by process id. Each line that a client writes, whatever
//! its contents, is answered with one line of JSON: a [`StatsSnapshot`]. Threaded engines answer at once, an inline
//! engine when its application polls. The client's side is here too: [`sockets`], [`query`]. A killed process leaves
//! its socket behind, and a context that opens later removes it.

use crate::error::Error;
use crate::runtime::core::Core;
use crate::runtime::lock::lock;
use crate::stats::StatsSnapshot;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, test_kill_process};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uwarp_ring::Notifier;

/// How long a client may take to write a line or to read an answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Least age of a socket that counts as left behind: a new one exists for a moment before it is served.
const LEFTOVER_AGE: Duration = Duration::from_secs(10);
/// Longest line that is accepted from a client.
const LONGEST_LINE: usize = 4096;

/// The thread that serves the socket. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct Monitor {
    path: PathBuf,
    stop: Arc<Notifier>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The directory of the monitor sockets: `uwarp` in `XDG_RUNTIME_DIR`, or `uwarp-UID` in the directory for temporary
/// files.
pub fn runtime_directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if Path::new(&directory).is_absolute() => PathBuf::from(directory).join("uwarp"),
        _ => std::env::temp_dir().join(format!("uwarp-{}", rustix::process::getuid().as_raw())),
    }
}

/// The sockets of a process's contexts, in the order in which they were opened.
pub fn sockets(pid: u32) -> Vec<PathBuf> {
    let prefix = pid.to_string();
    let mut found: Vec<(u64, PathBuf)> = all_sockets()
        .into_iter()
        .filter_map(|path| {
            let stem = path.file_stem()?.to_str()?;
            let rest = stem.strip_prefix(&prefix)?;
            let number = match rest.strip_prefix('-') {
                Some(number) => number.parse().ok()?,
                None if rest.is_empty() => 1,
                None => return None,
            };
            Some((number, path))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// All monitor sockets of this user, including those of dead processes.
pub fn all_sockets() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(runtime_directory()) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    found.sort();
    found
}

/// Gets a snapshot from a context.
pub fn query(socket: &Path) -> std::io::Result<StatsSnapshot> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    stream.write_all(b"stats\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
}

impl Monitor {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, Error> {
        let (path, directory) = match &core.config.monitor.socket {
            Some(path) => (path.clone(), None),
            None => (default_path(core.id)?, Some(runtime_directory())),
        };
        // A socket with this name was left behind by a dead process with our id, or with the same configured path.
        if is_stale(&path) {
            let _ = fs::remove_file(&path);
        }
        let listener = UnixListener::bind(&path).map_err(Error::system(
            "the monitor socket cannot be made (monitor.socket names its path, monitor.enabled = false does without)",
        ))?;
        listener.set_nonblocking(true).map_err(Error::system("the monitor socket cannot be polled"))?;
        let stop = Arc::new(Notifier::new().map_err(Error::system("no event file descriptor for the monitor"))?);
        let served = Arc::clone(core);
        let stopping = Arc::clone(&stop);
        let body = move || {
            if let Some(directory) = directory {
                sweep(&directory);
            }
            serve(&listener, &stopping, &served);
        };
        let builder = std::thread::Builder::new().name("uwarp-monitor".to_owned());
        let thread = uwarp_dpdk::with_signals_blocked(|| builder.spawn(body))
            .map_err(Error::system("the monitor's thread cannot be started"))?;
        Ok(Self { path, stop, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Monitor {
    /// Removes the socket and ends the thread. May be called again.
    pub(crate) fn stop(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = fs::remove_file(&self.path);
            self.stop.fire();
            let _ = thread.join();
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn default_path(context: u64) -> Result<PathBuf, Error> {
    let directory = runtime_directory();
    match fs::DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // In a shared directory for temporary files, another user could have created it.
            let metadata = fs::symlink_metadata(&directory)
                .map_err(Error::system("the run-time directory cannot be looked at"))?;
            if !metadata.is_dir() || metadata.uid() != rustix::process::getuid().as_raw() {
                return Err(Error::argument(
                    "the run-time directory",
                    directory.display(),
                    "it belongs to somebody else, so set XDG_RUNTIME_DIR",
                ));
            }
        }
        Err(error) => {
            return Err(Error::system("the run-time directory cannot be made")(error));
        }
    }
    let pid = std::process::id();
    Ok(directory.join(match context {
        1 => format!("{pid}.sock"),
        number => format!("{pid}-{number}.sock"),
    }))
}

/// Whether a path is a socket that nobody serves.
fn is_stale(path: &Path) -> bool {
    // Non-blocking, in case a stopped process serves it.
    let connected = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
    };
    // The kernel also refuses to connect to a file that is no socket. That belongs to somebody.
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        && connected() == Err(Errno::CONNREFUSED)
}

/// Removes sockets that killed processes left behind. Those of other PID namespaces look dead as well, but answer.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let pid =
            path.file_stem().and_then(|stem| stem.to_str()?.split('-').next()?.parse().ok().and_then(Pid::from_raw));
        let is_dead = pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        let modified = || fs::symlink_metadata(&path).ok()?.modified().ok()?.elapsed().ok();
        if is_dead && modified().is_some_and(|age| age >= LEFTOVER_AGE) && is_stale(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn serve(listener: &UnixListener, stop: &Notifier, core: &Core) {
    loop {
        let mut watched = [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        if !watched[1].revents().is_empty() {
            return;
        }
        // One client at a time is enough for people with a tool, and a slow one has a time limit.
        if let Ok((stream, _)) = listener.accept() {
            let _ = converse(stream, stop, core);
        }
    }
}

fn converse(mut stream: UnixStream, stop: &Notifier, core: &Core) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    // Short, so that a silent client does not delay the end of the context.
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let is_stopping = || {
        let mut stopping = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        poll(&mut stopping, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
    };
    let (mut part, mut line, mut since) = ([0; LONGEST_LINE], 0, Instant::now());
    loop {
        let count = match stream.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(error) => return Err(error),
        };
        for octet in &part[..count] {
            line += 1;
            if line > LONGEST_LINE {
                return Ok(());
            }
            if *octet == b'\n' {
                // Nor does one that asks repeatedly.
                if is_stopping() {
                    return Ok(());
                }
                let mut answer = serde_json::to_vec(&core.snapshot(false))?;
                answer.push(b'\n');
                stream.write_all(&answer)?;
                (line, since) = (0, Instant::now());
            }
        }
        if is_stopping() || since.elapsed() > CLIENT_TIMEOUT {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

    #[test]
    fn what_the_killed_have_left_is_taken_away_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let dead =
            std::process::Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id())).unwrap();
        let path = |name: String| directory.path().join(name);
        let make = |name: String, is_old: bool| {
            let listener = UnixListener::bind(path(name.clone())).unwrap();
            if is_old {
                let old = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
                let times =
                    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification: old };
                utimensat(CWD, path(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            }
            listener
        };
        for leftover in [format!("{dead}.sock"), format!("{dead}-2.sock")] {
            drop(make(leftover, true));
        }
        // Perhaps about to be served; of one that lives; of another PID namespace; no context's; no socket.
        drop(make(format!("{dead}-3.sock"), false));
        drop(make(format!("{}.sock", std::process::id()), true));
        let _served = make(format!("{dead}-4.sock"), true);
        drop(make("mine.sock".to_owned(), true));
        let no_socket = format!("{dead}-5.sock");
        let file = fs::File::create(path(no_socket.clone())).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let is_kept = [
            no_socket,
            format!("{dead}-3.sock"),
            format!("{}.sock", std::process::id()),
            format!("{dead}-4.sock"),
            "mine.sock".to_owned(),
        ];
        sweep(directory.path());
        let left: std::collections::BTreeSet<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(left, is_kept.into());
    }
}
