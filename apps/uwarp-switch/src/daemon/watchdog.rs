//! Looks after the thread of DPDK that serves the devices' sockets. It waits for the rest of a message, and for room
//! for an answer, as long as a client likes, and serves nobody meanwhile.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use rustix::net::{Shutdown, shutdown};

use super::device;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(250);

/// A client is cut off if so many of the last looks have found the thread waiting for it: after a second, since a busy
/// machine starves honest clients for a while. A client that lets the thread go on now and then, or takes turns with a
/// second one, is cut off too.
const MOST_HELD: usize = 5;
/// The looks that count.
const LOOKS: usize = 16;

/// The watchdog. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct Watchdog {
    _alive: Sender<()>,
    found: Arc<Mutex<Vec<PathBuf>>>,
}

impl Watchdog {
    /// Watches over the sockets in `directory`.
    pub(super) fn start(directory: &Path) -> anyhow::Result<Watchdog> {
        let (alive, over) = bounded::<()>(0);
        let found = Arc::new(Mutex::new(Vec::new()));
        let (list, directory) = (Arc::clone(&found), directory.to_owned());
        let body = move || {
            let mut server: Option<PathBuf> = None;
            let mut looks = VecDeque::<Option<PathBuf>>::new();
            while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // DPDK starts the thread with the first device. Version 24.11 ends it with the last one.
                server = server.filter(|thread| is_server(thread)).or_else(find_server);
                let held = server.as_deref().and_then(descriptor_in_use);
                let held = held.and_then(|descriptor| connection(descriptor, &directory));
                looks.truncate(LOOKS - 1);
                looks.push_front(held.as_ref().map(|(_, path)| path.clone()));
                if let Some((connection, path)) = held
                    && looks.iter().flatten().filter(|seen| **seen == path).count() >= MOST_HELD
                {
                    let _ = shutdown(&connection, Shutdown::Both);
                    looks.retain(|seen| seen.as_ref() != Some(&path));
                    list.lock().unwrap_or_else(PoisonError::into_inner).push(path);
                }
            }
        };
        std::thread::Builder::new().name("uwarp-watchdog".to_owned()).spawn(body).context("no thread to watch with")?;
        Ok(Watchdog { _alive: alive, found })
    }

    /// The sockets whose clients it has cut off since the last call.
    pub(super) fn take_found(&self) -> Vec<PathBuf> {
        std::mem::take(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The folder of the thread in /proc.
fn find_server() -> Option<PathBuf> {
    let threads = fs::read_dir("/proc/self/task").ok()?.flatten().map(|entry| entry.path());
    threads.into_iter().find(|thread| is_server(thread))
}

/// Whether a thread is DPDK's: "vhost-events", or "dpdk-vhost-evt" from version 24 on.
fn is_server(thread: &Path) -> bool {
    fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.contains("vhost-ev"))
}

/// The descriptor that the thread reads or writes right now, if its system call is none that waits for all.
fn descriptor_in_use(thread: &Path) -> Option<i32> {
    let text = fs::read_to_string(thread.join("syscall")).ok()?;
    let mut words = text.split_ascii_whitespace();
    words.next().filter(|word| *word != "running")?;
    // Where a list of descriptors is given, this is an address, and no descriptor.
    i32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
}

/// A connection on one of the sockets of a directory, by its number.
fn connection(number: i32, directory: &Path) -> Option<(OwnedFd, PathBuf)> {
    let (connection, path) = device::socket_of(number)?;
    (path.parent() == Some(directory)).then_some((connection, path))
}
