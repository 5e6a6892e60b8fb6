//! Rsockets: what one is, how they are found, and how a call waits for one.

use crate::cm::port::Binding;
use crate::errno::{EAGAIN, Errno};
use crate::locks::{Lock, Locked, Rank};
use crate::process;
use crate::rsocket::descriptor::Descriptor;
use crate::rsocket::settings::Options;
use crate::rsocket::signal::{self, Signal};
use crate::rsocket::stream::Stream;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, c_short};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use uwarp::ConnectRequest;

pub(crate) const EBADF: Errno = Errno(libc::EBADF);
pub(crate) const ENOTCONN: Errno = Errno(libc::ENOTCONN);

/// How long a call looks again and again before it sleeps: what comes soon is found without waking anybody.
const IMPATIENCE: Duration = Duration::from_micros(20);
/// How long the end of a closed connection is waited for. Meanwhile the peer may still write to this side's memory.
const LINGER: Duration = Duration::from_secs(5);

/// An rsocket.
pub(crate) struct Socket {
    pub(crate) signal: Arc<Signal>,
    state: Lock<State>,
}

/// What an rsocket has become.
pub(crate) struct State {
    /// AF_INET or AF_INET6.
    pub(crate) family: i32,
    pub(crate) options: Options,
    pub(crate) does_not_block: bool,
    pub(crate) stage: Stage,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// The port that it is bound to.
    pub(crate) binding: Option<Binding>,
    /// What went wrong, until the program is told.
    pub(crate) error: Option<Errno>,
    /// None before the program has the rsocket, whose number it is.
    pub(crate) descriptor: Option<Descriptor>,
}

/// How far an rsocket has come.
pub(crate) enum Stage {
    /// It is not connected, and may have failed to.
    New,
    Listening(Backlog),
    Connecting(Box<Stream>),
    /// Connected once. The connection may have ended.
    Open(Box<Stream>),
    Closed,
}

/// Connections of a listener that the program has not taken.
#[derive(Default)]
pub(crate) struct Backlog {
    pub(crate) most: usize,
    pub(crate) accepted: VecDeque<Arc<Socket>>,
    /// Those that there was no room for.
    pub(crate) requests: VecDeque<Box<ConnectRequest>>,
}

impl State {
    /// What poll(2) says.
    pub(crate) fn events(&self) -> c_short {
        let failed = if self.error.is_some() { POLLERR } else { 0 };
        match &self.stage {
            Stage::Listening(backlog) if !backlog.accepted.is_empty() => POLLIN,
            // It can be connected again, so it is not hung up.
            Stage::New if failed != 0 => POLLIN | POLLOUT | failed,
            Stage::New | Stage::Listening(_) | Stage::Connecting(_) => 0,
            Stage::Open(stream) => {
                let ends = &stream.ends;
                let is_at_end = ends.is_over || ends.peer;
                let mut events = failed;
                if stream.incoming.available() > 0 || is_at_end || ends.read {
                    events |= POLLIN;
                }
                if ends.is_over || ends.write || stream.room() > 0 {
                    events |= POLLOUT;
                }
                if is_at_end || ends.read {
                    events |= POLLRDHUP;
                }
                // Programs take it for the end of the data, too.
                if ends.is_over && stream.incoming.available() == 0 {
                    events |= POLLHUP;
                }
                events
            }
            Stage::Closed => POLLIN | POLLOUT | POLLHUP,
        }
    }

    /// Takes what has come. Whether anything has.
    pub(crate) fn progress(&mut self, signal: &Signal) -> bool {
        match &mut self.stage {
            Stage::Connecting(stream) | Stage::Open(stream) => stream.progress(signal),
            _ => false,
        }
    }

    /// Has the descriptor say what there is, and the next completion ring that changes it, or any that a call sleeps
    /// for. To be called before the lock is given up. Whether anything has come meanwhile.
    pub(crate) fn settle(&mut self, signal: &Signal, sleeps: Option<Wait>) -> bool {
        let mut has_come = false;
        loop {
            let events = self.events();
            let is_clear = events & (POLLIN | POLLOUT) == POLLIN | POLLOUT;
            // An armed queue of sends costs: completions that nobody waits for ring, and polls do not turn the engine.
            let for_sends = events & POLLOUT == 0 || matches!(sleeps, Some(Wait::AtMost(_)));
            if let Stage::Connecting(stream) | Stage::Open(stream) = &mut self.stage
                && (sleeps.is_some() || !is_clear)
                && stream.arm(for_sends)
                && stream.progress(signal)
            {
                has_come = true;
                continue;
            }
            if let Some(descriptor) = &mut self.descriptor {
                descriptor.show(events);
            }
            return has_come;
        }
    }

    /// How long a call waits; none: without a limit.
    fn limit(&self, wait: Wait) -> Option<Duration> {
        match wait {
            Wait::ToReceive | Wait::ToSend if self.does_not_block => Some(Duration::ZERO),
            Wait::ToReceive => self.options.receive_limit,
            Wait::ToSend => self.options.send_limit,
            Wait::Not => Some(Duration::ZERO),
            Wait::AtMost(limit) => Some(limit),
        }
    }
}

/// How a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// As the rsocket's mode and its limit for receiving say.
    ToReceive,
    /// As the rsocket's mode and its limit for sending say.
    ToSend,
    /// Not at all.
    Not,
    /// Until sends have completed, for so long at most, whatever the mode.
    AtMost(Duration),
}

impl Socket {
    /// One that is new and has no number.
    pub(crate) fn new(family: i32) -> Arc<Socket> {
        let state = State {
            family,
            options: Options::default(),
            does_not_block: false,
            stage: Stage::New,
            local: None,
            peer: None,
            binding: None,
            error: None,
            descriptor: None,
        };
        let socket = Arc::new(Socket { signal: Signal::new(), state: Lock::new(Rank::Rsocket, state) });
        let count = {
            let mut table = TABLE.lock();
            table.by_key.insert(socket.signal.key, Arc::clone(&socket));
            table.by_key.len()
        };
        signal::reserve(count);
        socket
    }

    /// Gives an rsocket its number.
    ///
    /// # Errors
    /// EMFILE and the like: there is no descriptor left.
    pub(crate) fn give_number(self: &Arc<Self>, closes_on_exec: bool) -> Result<RawFd, Errno> {
        let descriptor = Descriptor::new(closes_on_exec)?;
        let number = descriptor.number();
        self.change(|state| state.descriptor = Some(descriptor));
        TABLE.lock().by_number.insert(number, Arc::clone(self));
        Ok(number)
    }

    pub(crate) fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }

    /// Does something, and wakes those who wait.
    pub(crate) fn change<T>(&self, body: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = body(&mut state);
            state.settle(&self.signal, None);
            result
        };
        self.signal.wake();
        result
    }

    /// What poll(2) says now.
    pub(crate) fn look(&self) -> c_short {
        let _inside = self.signal.enter();
        let mut state = self.lock();
        let has_come = state.progress(&self.signal) | state.settle(&self.signal, None);
        let events = state.events();
        drop(state);
        if has_come {
            self.signal.wake();
        }
        events
    }

    /// Waits until `attempt` has an answer: none means that something has to happen first.
    ///
    /// # Errors
    /// That of the answer. EAGAIN: it may not wait, or no longer. EINTR: see [`Signal::sleep`]; a wait of a limit of
    /// its own goes on then.
    pub(crate) fn until<T>(
        &self,
        wait: Wait,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let _inside = self.signal.enter();
        let mut begun = None;
        loop {
            let count = self.signal.count();
            let mut state = self.lock();
            let has_come = state.progress(&self.signal);
            let answer = attempt(&mut state);
            let limit = state.limit(wait);
            let is_final = answer.is_some() || limit == Some(Duration::ZERO);
            let waited = if is_final { Duration::ZERO } else { begun.get_or_insert_with(Instant::now).elapsed() };
            let looks_again = !is_final && waited < IMPATIENCE;
            let has_come_late = !looks_again && state.settle(&self.signal, (!is_final).then_some(wait));
            drop(state);
            if has_come | has_come_late {
                // Others may wait for what this call has found.
                self.signal.wake();
            }
            match answer {
                Some(answer) => return answer,
                None if is_final => return Err(EAGAIN),
                None if looks_again => std::hint::spin_loop(),
                None if has_come_late => {}
                None => {
                    let left = limit.map(|limit| limit.saturating_sub(waited));
                    if left == Some(Duration::ZERO) {
                        return Err(EAGAIN);
                    }
                    match self.signal.sleep(count, left) {
                        Err(errno) if !matches!(wait, Wait::AtMost(_)) => return Err(errno),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// The rsockets that there are.
static TABLE: Lock<Table> = Lock::new(Rank::Rsockets, Table { by_number: BTreeMap::new(), by_key: BTreeMap::new() });

struct Table {
    by_number: BTreeMap<RawFd, Arc<Socket>>,
    by_key: BTreeMap<u64, Arc<Socket>>,
}

/// The rsocket with a number.
///
/// # Errors
/// EBADF: there is none.
pub(crate) fn find(number: RawFd) -> Result<Arc<Socket>, Errno> {
    TABLE.lock().by_number.get(&number).cloned().ok_or(EBADF)
}

/// The rsockets among these numbers, in their order.
pub(crate) fn find_all(numbers: impl Iterator<Item = RawFd>) -> Vec<Option<Arc<Socket>>> {
    let table = TABLE.lock();
    numbers.map(|number| table.by_number.get(&number).cloned()).collect()
}

/// The rsocket that events of uwarp name by a key.
pub(crate) fn with_key(key: u64) -> Option<Arc<Socket>> {
    TABLE.lock().by_key.get(&key).cloned()
}

/// All of them.
pub(crate) fn all() -> Vec<Arc<Socket>> {
    TABLE.lock().by_key.values().cloned().collect()
}

/// Takes an rsocket out of the table, and what it was. Its number is free then.
///
/// # Errors
/// EBADF: another thread was first.
pub(crate) fn remove(socket: &Socket) -> Result<Stage, Errno> {
    let (stage, descriptor) = {
        let mut state = socket.lock();
        state.binding = None;
        (std::mem::replace(&mut state.stage, Stage::Closed), state.descriptor.take())
    };
    if matches!(stage, Stage::Closed) {
        return Err(EBADF);
    }
    {
        let mut table = TABLE.lock();
        table.by_key.remove(&socket.signal.key);
        if let Some(descriptor) = &descriptor {
            table.by_number.remove(&descriptor.number());
        }
    }
    drop(descriptor);
    socket.signal.wake();
    Ok(stage)
}

/// Connections that were closed, and when they are given up.
static LINGERING: Lock<Vec<(u64, Instant, Box<Stream>)>> = Lock::new(Rank::Rsockets, Vec::new());

/// Ends a connection, and keeps its memory until the peer has heard of it.
pub(crate) fn linger(key: u64, mut stream: Box<Stream>) {
    stream.control().disconnect();
    if !stream.is_disconnected() {
        LINGERING.lock().push((key, Instant::now() + LINGER, stream));
    }
}

/// A connection that was closed is over.
pub(crate) fn forget(key: u64) {
    let is_other = |(other, ..): &(u64, Instant, Box<Stream>)| *other != key;
    let over: Vec<_> = {
        let mut lingering = LINGERING.lock();
        let all = std::mem::take(&mut *lingering);
        let (kept, over) = all.into_iter().partition(is_other);
        *lingering = kept;
        over
    };
    drop(over);
}

/// Gives up what has lingered long enough, and says when the next is given up.
fn give_up() -> Option<Duration> {
    let now = Instant::now();
    let (due, next) = {
        let lingering = LINGERING.lock();
        let due: Vec<u64> = lingering.iter().filter(|(_, end, _)| *end <= now).map(|(key, ..)| *key).collect();
        (due, lingering.iter().map(|(_, end, _)| *end).filter(|end| *end > now).min())
    };
    due.into_iter().for_each(forget);
    // A connection that begins to linger meanwhile calls nobody.
    Some(next.map_or(LINGER, |next| next.saturating_duration_since(now)))
}

/// Starts the thread that looks after rsockets while no thread of the program is in a call of theirs.
pub(crate) fn start_caretaker() -> Result<(), Errno> {
    static STARTED: OnceLock<()> = OnceLock::new();
    static MAKING: Lock<()> = Lock::new(Rank::Making, ());
    let _one = MAKING.lock();
    if STARTED.get().is_some() {
        return Ok(());
    }
    process::spawn("uwarp-rsocket", || {
        loop {
            let socket = signal::next_call(give_up()).and_then(with_key);
            if let Some(socket) = socket {
                socket.signal.answer();
                socket.look();
            }
        }
    })?;
    STARTED.get_or_init(|| ());
    Ok(())
}
