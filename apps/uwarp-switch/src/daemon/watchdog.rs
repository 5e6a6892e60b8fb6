//! Looks after the thread of DPDK that serves the devices' sockets. It waits for the rest of a message, and for room
//! for an answer, as long as a client likes, and serves nobody meanwhile.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uwarp_app::lock;

use anyhow::Context as _;
use crossbeam::channel::{RecvTimeoutError, Sender, bounded};
use uwarp_dpdk::guard;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(250);

/// A client is cut off if so many of the last looks have found the thread waiting for it: after a second, since a busy
/// machine starves honest clients for a while.
const MOST_HELD: usize = 5;
/// The looks that count.
const LOOKS: usize = 16;

/// For which sockets the thread waited at the last looks.
#[derive(Debug, Default)]
struct Looks(VecDeque<Option<PathBuf>>);

impl Looks {
    /// Records a look, and gives whether the client of that socket is to be cut off. Its looks are forgotten then. A
    /// client that lets the thread go on now and then, or takes turns with a second one, is cut off too.
    fn condemn(&mut self, held: Option<&Path>) -> bool {
        self.0.truncate(LOOKS - 1);
        self.0.push_front(held.map(Path::to_owned));
        let Some(path) = held else { return false };
        let is_condemned = self.0.iter().flatten().filter(|seen| *seen == path).count() >= MOST_HELD;
        if is_condemned {
            self.0.retain(|seen| seen.as_deref() != Some(path));
        }
        is_condemned
    }
}

/// The watchdog. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct Watchdog {
    _alive: Sender<()>,
    found: Arc<Mutex<Vec<PathBuf>>>,
}

impl Watchdog {
    /// Watches over the guarded sockets.
    pub(super) fn start() -> anyhow::Result<Watchdog> {
        let (alive, over) = bounded::<()>(0);
        let found = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&found);
        let body = move || {
            let mut server: Option<PathBuf> = None;
            let mut looks = Looks::default();
            while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // DPDK starts the thread with the first device. Version 24.11 ends it with the last one.
                server = server.filter(|thread| is_server(thread)).or_else(find_server);
                let held = server.as_deref().and_then(descriptor_in_use).and_then(guard::connection);
                let is_condemned = looks.condemn(held.as_deref());
                if let (true, Some(path)) = (is_condemned, held) {
                    guard::cut(&path);
                    lock(&list).push(path);
                }
            }
        };
        std::thread::Builder::new().name("uwarp-watchdog".to_owned()).spawn(body).context("no thread to watch with")?;
        Ok(Watchdog { _alive: alive, found })
    }

    /// The sockets whose clients it has cut off since the last call.
    pub(super) fn take_found(&self) -> Vec<PathBuf> {
        std::mem::take(&mut lock(&self.found))
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

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: [usize; 0] = [];

    /// At which of these looks, each by the letter of a client or a dash, one is cut off.
    fn condemned(looks: &str) -> Vec<usize> {
        let mut seen = Looks::default();
        let held = looks.split("").filter(|letter| !letter.is_empty());
        let paths = held.map(|letter| (letter != "-").then(|| PathBuf::from(letter)));
        paths.enumerate().filter_map(|(at, path)| seen.condemn(path.as_deref()).then_some(at)).collect()
    }

    #[test]
    fn client_that_holds_the_thread_up_for_five_of_sixteen_looks_is_cut_off() {
        assert_eq!(condemned("aaaa"), NEVER);
        assert_eq!(condemned("aaaaa"), [4]);
        assert_eq!(condemned("abababababab"), [8, 9], "they take turns");
        assert_eq!(condemned("a---a---a---a--a"), [15], "it lets the thread go on now and then");
        assert_eq!(condemned("a---a---a---a---a"), NEVER, "the first look no longer counts");
        assert_eq!(condemned("a----a----a----a----a----a"), NEVER, "a busy machine starves honest clients for a while");
        assert_eq!(condemned("aaaaaaaaaa"), [4, 9], "a new connection starts afresh");
    }
}
