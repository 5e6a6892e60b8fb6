//! Regions whose octets can be made durable: kept in a [`Store`] so that they survive the loss of everything that was not
//! written through.
//!
//! The memory of such a region is ordinary memory. Engines place octets there as in any other; a *commit* names a range of
//! it, and the region's [`Committer`], which runs in a thread of its own, copies the range to the store, syncs it, and only
//! then answers. So an engine never waits for a device, and a store never sees memory that changes while it works: what it
//! gets is a copy, some state of each octet since the commit was asked for.
//!
//! A committer may also be left to the engines ([`Registration::commit_in_engines`](crate::Registration::commit_in_engines)): nobody
//! has to be woken then, and an engine does wait.
//!
//! Commits that have gathered while the store was busy share one sync.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use crossbeam::channel::{Receiver, Sender, TryRecvError, TrySendError, bounded, unbounded};
use crossbeam::sync::{Parker, Unparker};

use crate::buffer::RegionBuffer;
use crate::shared_bytes;

/// Commits that may wait for a region's committer. Beyond it they are refused as [`CommitStatus::Transient`].
const QUEUE: usize = 1024;
/// Octets that are copied at once.
const CHUNK: usize = 64 << 10;

/// Where the octets of a durable region are kept.
pub trait Store: Send {
    /// Writes octets to their place: `offset` is that in the region.
    ///
    /// # Errors
    /// What the device says.
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()>;

    /// Makes all that was written durable: when it returns, those octets survive the loss of power.
    ///
    /// # Errors
    /// What the device says. Nothing that was written since the last success counts as durable then.
    fn sync(&mut self) -> io::Result<()>;
}

/// How a commit ended. The document defines success only; the other values are this product's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum CommitStatus {
    /// Everything asked for is durable.
    Success = 0,
    /// The device failed. All later commits of the region end so until it is registered anew.
    Failure = 1,
    /// The device cannot be written. As `Failure`, this stays.
    ReadOnly = 2,
    /// The device or a quota is full.
    NoSpace = 3,
    /// The request lists more than this side takes.
    Limit = 4,
    /// Not now: the time limit is over, or too many commits wait. It may be tried again.
    Transient = 5,
    /// The region is not durable, and this side was told to say so.
    Unsupported = 6,
}

impl CommitStatus {
    /// The value on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The status with this value, if it is one of ours.
    pub const fn from_code(code: u32) -> Option<CommitStatus> {
        Some(match code {
            0 => CommitStatus::Success,
            1 => CommitStatus::Failure,
            2 => CommitStatus::ReadOnly,
            3 => CommitStatus::NoSpace,
            4 => CommitStatus::Limit,
            5 => CommitStatus::Transient,
            6 => CommitStatus::Unsupported,
            _ => return None,
        })
    }

    fn of(error: &io::Error) -> CommitStatus {
        use io::ErrorKind as K;
        match error.kind() {
            K::ReadOnlyFilesystem | K::PermissionDenied => CommitStatus::ReadOnly,
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => CommitStatus::NoSpace,
            K::Interrupted | K::WouldBlock | K::TimedOut | K::OutOfMemory | K::ResourceBusy => CommitStatus::Transient,
            _ => CommitStatus::Failure,
        }
    }

    /// Whether it says something about the device that another attempt would not change.
    const fn stays(self) -> bool {
        matches!(self, CommitStatus::Failure | CommitStatus::ReadOnly)
    }
}

/// The answer to one commit of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReply {
    /// What the asker called it.
    pub key: u64,
    /// How it ended.
    pub status: CommitStatus,
}

/// Where an engine has its commits answered to.
#[derive(Clone)]
pub struct CommitMailbox(Arc<Mailbox>);

struct Mailbox {
    replies: Sender<CommitReply>,
    /// Wakes the engine, if it sleeps.
    waker: Option<Waker>,
}

impl CommitMailbox {
    /// A mailbox and the end that the engine reads. `waker` is called after each batch of replies.
    pub fn new(waker: Option<Waker>) -> (CommitMailbox, Receiver<CommitReply>) {
        let (replies, receiver) = unbounded();
        (CommitMailbox(Arc::new(Mailbox { replies, waker })), receiver)
    }
}

impl fmt::Debug for CommitMailbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CommitMailbox").finish_non_exhaustive()
    }
}

struct Job {
    /// Octets of the region.
    offset: u64,
    length: u64,
    key: u64,
    mailbox: CommitMailbox,
}

/// A durable region's way to its committer: what the slot of the table points to.
pub struct Durable {
    jobs: Sender<Job>,
    /// Behind `jobs`, so that who is woken as the last thing finds that there is nobody any more.
    sleeper: Sleeper,
    /// Commits that were sent and are not answered.
    waiting: Arc<AtomicU32>,
    /// The committer, if engines carry commits out themselves. Mostly one engine does; its peers of the same region wait for it.
    own: OnceLock<Mutex<Committer>>,
}

/// A committer's thread, which sleeps while there is nothing to do.
struct Sleeper(Unparker);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

impl Durable {
    /// Leaves the committer to the engines; gives it back if they have one.
    pub(crate) fn own(&self, committer: Committer) -> Result<(), Committer> {
        self.own.set(Mutex::new(committer)).map_err(|own| own.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether who asks for a commit has to carry it out, too, by [`work`](Self::work).
    pub fn is_of_engines(&self) -> bool {
        self.own.get().is_some()
    }

    /// Carries out the commits that wait, if the committer was left to the engines. The calling thread waits for the store.
    pub fn work(&self) {
        if let Some(own) = self.own.get() {
            own.lock().unwrap_or_else(PoisonError::into_inner).work_guarded();
        }
    }

    /// Asks for `length` octets from `offset` of the region on to be made durable; the answer comes to `mailbox` as `key`.
    ///
    /// # Errors
    /// Why there will be no answer: too many commits wait, or the committer is gone.
    pub fn commit(&self, offset: u64, length: u64, key: u64, mailbox: &CommitMailbox) -> Result<(), CommitStatus> {
        let job = Job { offset, length, key, mailbox: mailbox.clone() };
        self.waiting.fetch_add(1, Relaxed);
        self.jobs.try_send(job).map_err(|error| {
            self.waiting.fetch_sub(1, Relaxed);
            match error {
                TrySendError::Full(_) => CommitStatus::Transient,
                TrySendError::Disconnected(_) => CommitStatus::Failure,
            }
        })?;
        self.sleeper.0.unpark();
        Ok(())
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        // What was asked for is carried out, as a committer with a thread of its own does.
        self.work();
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Durable").field("waiting", &self.waiting.load(Relaxed)).finish_non_exhaustive()
    }
}

/// Carries out the commits of one durable region. It runs in a thread of its own ([`run`](Self::run)), or a test calls
/// [`work`](Self::work) when it wants to.
pub struct Committer {
    jobs: Receiver<Job>,
    parker: Parker,
    waiting: Arc<AtomicU32>,
    /// Keeps the octets, which outlive the registration if a commit is under way.
    memory: Arc<RegionBuffer>,
    store: Box<dyn Store>,
    chunk: Vec<u8>,
    batch: Vec<(Job, CommitStatus)>,
    /// What stays until the region is registered anew.
    broken: Option<CommitStatus>,
}

/// A durable region's two ends, over `memory`.
pub(crate) fn durable(memory: Arc<RegionBuffer>, store: Box<dyn Store>) -> (Durable, Committer) {
    let (sender, jobs) = bounded(QUEUE);
    let waiting = Arc::new(AtomicU32::new(0));
    let parker = Parker::new();
    let sleeper = Sleeper(parker.unparker().clone());
    let committer = Committer {
        jobs,
        parker,
        waiting: Arc::clone(&waiting),
        memory,
        store,
        chunk: vec![0; CHUNK],
        batch: Vec::with_capacity(QUEUE),
        broken: None,
    };
    (Durable { jobs: sender, sleeper, waiting, own: OnceLock::new() }, committer)
}

impl Committer {
    /// Carries out commits until the region is deregistered, and all that were asked for before.
    pub fn run(mut self) {
        // The channel's own wait looks around for some microseconds before it sleeps. An engine that shares the CPU would stand still
        // for them, just when there is an answer to send.
        loop {
            match self.jobs.try_recv() {
                Ok(job) => {
                    self.batch.push((job, CommitStatus::Success));
                    self.work();
                }
                Err(TryRecvError::Empty) => self.parker.park(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    /// As [`work`](Self::work), in an engine, which must not end with a store that panics: commits that nobody answers run into
    /// their time limit, and there is no further success.
    fn work_guarded(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            self.broken = Some(CommitStatus::Failure);
        }
    }

    /// Carries out the commits that wait, and gives their number.
    pub fn work(&mut self) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        while batch.len() < QUEUE
            && let Ok(job) = self.jobs.try_recv()
        {
            batch.push((job, CommitStatus::Success));
        }
        let mut written = false;
        for (job, status) in &mut batch {
            *status = match self.broken {
                Some(status) => status,
                None => self.write(job),
            };
            written |= *status == CommitStatus::Success;
        }
        if written && let Err(error) = self.store.sync() {
            // What the store had taken may be lost, and a further sync would not say so (on Linux a failed one leaves the
            // pages clean): the region is not to be relied on any more.
            let failed = if CommitStatus::of(&error) == CommitStatus::ReadOnly {
                CommitStatus::ReadOnly
            } else {
                CommitStatus::Failure
            };
            self.broken.get_or_insert(failed);
            for (_, status) in batch.iter_mut().filter(|(_, status)| *status == CommitStatus::Success) {
                *status = failed;
            }
        }
        let count = batch.len();
        self.waiting.fetch_sub(count as u32, Relaxed);
        for (job, status) in batch.drain(..) {
            // An engine that is gone does not want to know.
            let _ = job.mailbox.0.replies.send(CommitReply { key: job.key, status });
            if let Some(waker) = &job.mailbox.0.waker {
                waker.wake_by_ref();
            }
        }
        self.batch = batch;
        count
    }

    fn write(&mut self, job: &Job) -> CommitStatus {
        let (mut at, end) = (job.offset, job.offset.saturating_add(job.length).min(self.memory.len() as u64));
        while at < end {
            let length = (end - at).min(CHUNK as u64) as usize;
            let chunk = &mut self.chunk[..length];
            // SAFETY: within the buffer, which lives as long as this; engines and peers may change it meanwhile, which this
            // copy tolerates.
            unsafe { shared_bytes::load(self.memory.start().add(at as usize), chunk) };
            if let Err(error) = self.store.write(at, chunk) {
                let status = CommitStatus::of(&error);
                if status.stays() {
                    self.broken = Some(status);
                }
                return status;
            }
            at += length as u64;
        }
        CommitStatus::Success
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Committer")
            .field("waiting", &self.jobs.len())
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
