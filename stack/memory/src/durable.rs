//! Durable regions: a [`Store`] keeps their octets, so they survive the loss of everything that was not synced.
//!
//! The memory of such a region is ordinary memory, and engines place octets there as in any other. A *commit* names a
//! range of it. The region's [`Committer`], which runs in a thread of its own, copies the range to the store, syncs it,
//! and only then answers. So an engine never waits for a device. And a store never sees memory that changes: it gets a
//! copy, with a state of each octet since the commit was requested.
//!
//! A committer may also be left to the engines
//! ([`Registration::commit_in_engines`](crate::Registration::commit_in_engines)). Then no thread has to wake up, but an
//! engine waits for the store. It calls the store between its turns, so a store may do anything, even deregister
//! regions.
//!
//! Commits that accumulate while the store is busy share one sync, and each octet that several of them name is written
//! once. Engines limit how much one stream may have here at a time.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use crossbeam::sync::{Parker, Unparker};

use crate::buffer::RegionBuffer;
use crate::epoch::current_thread;
use crate::shared_bytes;

/// Most commits that share a sync.
const BATCH: usize = 1024;
/// Octets that are copied at once.
const CHUNK: usize = 64 << 10;
/// What writing a few octets counts for, when an engine limits its writes in a turn.
const LEAST: u64 = 4 << 10;

/// Storage for the octets of a durable region.
pub trait Store: Send {
    /// Writes octets at `offset` of the region.
    ///
    /// # Errors
    /// The device's error.
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()>;

    /// Makes all that was written durable: when it returns, those octets survive a power failure.
    ///
    /// # Errors
    /// The device's error. Nothing written since the last success counts as durable then.
    fn sync(&mut self) -> io::Result<()>;
}

/// How a commit ended. The document defines success only; the other values are this product's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum CommitStatus {
    /// All octets requested are durable.
    Success = 0,
    /// The device failed. All later commits of the region fail too, until it is registered again.
    Failure = 1,
    /// The device is read-only. Like `Failure`, this stays.
    ReadOnly = 2,
    /// The device or a quota is full.
    NoSpace = 3,
    /// The request lists more than this side accepts.
    Limit = 4,
    /// The time limit passed. The commit may be tried again.
    Transient = 5,
    /// The region is not durable, and the configuration says to report that.
    Unsupported = 6,
}

impl CommitStatus {
    /// The value on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The status with this value, if this product defines it.
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

    /// Whether further attempts would fail too.
    const fn stays(self) -> bool {
        matches!(self, CommitStatus::Failure | CommitStatus::ReadOnly)
    }
}

/// The answer to one commit of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitReply {
    /// The requester's key.
    pub key: u64,
    /// The result.
    pub status: CommitStatus,
    /// Octets of the range.
    pub length: u64,
}

/// The mailbox for an engine's commit replies.
#[derive(Clone)]
pub struct CommitMailbox(Arc<Mailbox>);

struct Mailbox {
    replies: Sender<CommitReply>,
    /// Wakes the engine if it sleeps.
    waker: Option<Waker>,
    /// Octets that the engine's commits have written; octets shared by several commits count once.
    octets_written: AtomicU64,
}

impl CommitMailbox {
    /// A mailbox, and the end that the engine reads. `waker` is called after each batch of replies.
    pub fn new(waker: Option<Waker>) -> (CommitMailbox, Receiver<CommitReply>) {
        let (replies, receiver) = unbounded();
        (CommitMailbox(Arc::new(Mailbox { replies, waker, octets_written: AtomicU64::new(0) })), receiver)
    }

    /// A stream of the engine that requests commits.
    pub fn stream(&self) -> CommitStream {
        CommitStream(Arc::new(Asking { mailbox: Arc::clone(&self.0), first_wanted: AtomicU64::new(0) }))
    }

    /// Octets that commits of the engine have written to stores or, in persistent memory, written back.
    pub fn octets_written(&self) -> u64 {
        self.0.octets_written.load(Relaxed)
    }

    /// Counts octets that the engine itself has written back.
    pub fn count_written(&self, octets: u64) {
        self.0.octets_written.fetch_add(octets, Relaxed);
    }
}

impl fmt::Debug for CommitMailbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CommitMailbox").finish_non_exhaustive()
    }
}

/// A stream for which an engine requests commits, and which may abandon them.
#[derive(Clone)]
pub struct CommitStream(Arc<Asking>);

struct Asking {
    mailbox: Arc<Mailbox>,
    /// Commits with smaller keys are abandoned.
    first_wanted: AtomicU64,
}

impl CommitStream {
    /// Abandons the stream's commits with keys below `key`: those that have not begun are neither executed nor
    /// answered.
    pub fn abandon_before(&self, key: u64) {
        self.0.first_wanted.fetch_max(key, Relaxed);
    }
}

impl fmt::Debug for CommitStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CommitStream").field("first_wanted", &self.0.first_wanted).finish_non_exhaustive()
    }
}

struct Job {
    /// Octets of the region.
    offset: u64,
    length: u64,
    key: u64,
    stream: CommitStream,
}

impl Job {
    fn is_wanted(&self) -> bool {
        self.key >= self.stream.0.first_wanted.load(Relaxed)
    }

    fn octets(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.length)
    }
}

/// The way to a durable region's committer, which the slot of the table points to.
pub struct Durable {
    jobs: Sender<Job>,
    /// Declared after `jobs`: the thread that its drop wakes finds the channel closed.
    sleeper: Sleeper,
    /// The committer, if engines execute the commits. Usually one engine works, and others with the same region wait
    /// for it.
    own: OnceLock<Arc<Own>>,
}

/// A committer's thread, which sleeps while there is nothing to do.
struct Sleeper(Unparker);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// A committer that engines execute.
struct Own {
    committer: Mutex<Committer>,
    /// The thread inside ([`current_thread`]), or 0: the store that it calls may come back here.
    worker: AtomicUsize,
    /// The store itself has deregistered the region; the thread inside must finish what is left.
    finish: AtomicBool,
}

impl Own {
    /// Writes up to `most` octets, and syncs when a batch is complete. False if nothing is left, or this very thread is
    /// inside already.
    fn work(&self, most: u64) -> bool {
        if self.is_inside() {
            return false;
        }
        let mut committer = self.committer.lock().unwrap_or_else(PoisonError::into_inner);
        self.worker.store(current_thread(), Relaxed);
        let mut more = committer.step_guarded(most);
        while more && self.finish.load(Relaxed) {
            more = committer.step_guarded(u64::MAX);
        }
        self.worker.store(0, Relaxed);
        more
    }

    fn is_inside(&self) -> bool {
        self.worker.load(Relaxed) == current_thread()
    }
}

/// A durable region's committer, for an engine that must execute a commit. It does not keep the region alive.
#[derive(Clone)]
pub struct EngineCommitter(Weak<Own>);

impl EngineCommitter {
    /// Writes up to `most` octets of waiting commits; syncs and answers a batch when all of it is written. The thread
    /// waits for the store. Call it outside of turns, since the store may deregister regions. False if nothing is left.
    pub fn work(&self, most: u64) -> bool {
        self.0.upgrade().is_some_and(|own| own.work(most))
    }
}

impl PartialEq for EngineCommitter {
    fn eq(&self, other: &EngineCommitter) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl fmt::Debug for EngineCommitter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EngineCommitter").finish_non_exhaustive()
    }
}

impl Durable {
    /// Leaves the committer to the engines; returns it if they have one.
    pub(crate) fn own(&self, committer: Committer) -> Result<(), Committer> {
        let mut committer = Some(committer);
        self.own.get_or_init(|| {
            let committer = committer.take().unwrap_or_else(|| unreachable!("initialised once"));
            Arc::new(Own {
                committer: Mutex::new(committer),
                worker: AtomicUsize::new(0),
                finish: AtomicBool::new(false),
            })
        });
        committer.map_or(Ok(()), Err)
    }

    /// The committer, if the engine that requests a commit also executes it.
    pub fn engine_committer(&self) -> Option<EngineCommitter> {
        self.own.get().map(|own| EngineCommitter(Arc::downgrade(own)))
    }

    /// Requests that `length` octets from `offset` of the region on become durable. The reply comes to the mailbox of
    /// `stream` with `key`, unless the stream abandons the commit before it begins. There is no limit on the length.
    ///
    /// # Errors
    /// [`CommitStatus::Failure`]: there will be no reply, because the committer is gone.
    pub fn commit(&self, offset: u64, length: u64, key: u64, stream: &CommitStream) -> Result<(), CommitStatus> {
        let job = Job { offset, length, key, stream: stream.clone() };
        self.jobs.send(job).map_err(|_| CommitStatus::Failure)?;
        self.sleeper.0.unpark();
        Ok(())
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        // What was asked for is carried out, as a committer with a thread of its own does.
        let Some(own) = self.own.get() else { return };
        if own.is_inside() {
            own.finish.store(true, Relaxed);
        } else {
            while own.work(u64::MAX) {}
        }
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Durable").field("waiting", &self.jobs.len()).finish_non_exhaustive()
    }
}

/// Executes the commits of one durable region. It runs in a thread of its own ([`run`](Self::run)), or a test calls
/// [`work`](Self::work).
pub struct Committer {
    jobs: Receiver<Job>,
    parker: Parker,
    /// Keeps the octets alive, beyond the registration if a commit is under way.
    memory: Arc<RegionBuffer>,
    store: Box<dyn Store>,
    chunk: Box<[u8]>,
    /// Commits under way that will share a sync.
    batch: Vec<(Job, CommitStatus)>,
    /// Ranges of the region still to be written for them, the last first. They do not overlap.
    ranges: Vec<Range<u64>>,
    /// The status of all commits until the region is registered again.
    broken: Option<CommitStatus>,
}

/// The two ends of a durable region over `memory`.
pub(crate) fn durable(memory: Arc<RegionBuffer>, store: Box<dyn Store>) -> (Durable, Committer) {
    let (sender, jobs) = unbounded();
    let parker = Parker::new();
    let sleeper = Sleeper(parker.unparker().clone());
    let committer = Committer {
        jobs,
        parker,
        memory,
        store,
        chunk: vec![0; CHUNK].into(),
        batch: Vec::new(),
        ranges: Vec::new(),
        broken: None,
    };
    (Durable { jobs: sender, sleeper, own: OnceLock::new() }, committer)
}

impl Committer {
    /// Executes commits until the region is deregistered, and all that were requested before.
    pub fn run(mut self) {
        // The channel's own wait spins for some microseconds before it sleeps. That would delay an engine on the same
        // CPU just when it has an answer to send.
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

    /// Executes waiting commits, as many as share a sync, and returns how many were answered.
    pub fn work(&mut self) -> usize {
        self.gather();
        while self.write_some(u64::MAX) {}
        self.finish()
    }

    /// Writes up to `most` octets of waiting commits, in an engine. False if nothing is left.
    ///
    /// A store that panics must not end the engine; after a panic no commit succeeds.
    fn step_guarded(&mut self, most: u64) -> bool {
        let step = || {
            if self.ranges.is_empty() {
                self.gather();
            }
            if !self.write_some(most) {
                self.finish();
            }
        };
        if catch_unwind(AssertUnwindSafe(step)).is_err() {
            self.ranges.clear();
            self.broken = Some(CommitStatus::Failure);
            self.answer();
        }
        !(self.batch.is_empty() && self.jobs.is_empty())
    }

    /// Moves waiting commits into the batch, and computes what must be written for them.
    fn gather(&mut self) {
        while self.batch.len() < BATCH
            && let Ok(job) = self.jobs.try_recv()
        {
            self.batch.push((job, CommitStatus::Success));
        }
        self.batch.retain(|(job, _)| job.is_wanted());
        self.batch.sort_unstable_by_key(|(job, _)| job.offset);
        let end = self.memory.len() as u64;
        for (job, _) in &self.batch {
            let octets = job.octets();
            match self.ranges.last_mut() {
                Some(last) if octets.start <= last.end => last.end = last.end.max(octets.end.min(end)),
                _ => self.ranges.push(octets.start..octets.end.min(end)),
            }
        }
        self.ranges.reverse();
    }

    /// Writes up to `most` octets of the batch; false if that was the rest.
    fn write_some(&mut self, most: u64) -> bool {
        let mut left = most;
        while let Some(range) = self.ranges.last_mut() {
            if self.broken.is_some() {
                self.ranges.clear();
                break;
            }
            let part = range.start..range.end.min(range.start.saturating_add(left.min(CHUNK as u64)));
            range.start = part.end;
            if range.is_empty() {
                self.ranges.pop();
            }
            if !part.is_empty() {
                left = left.saturating_sub((part.end - part.start).max(LEAST));
                self.write(part);
            }
            if left == 0 {
                break;
            }
        }
        !self.ranges.is_empty()
    }

    /// Writes at most [`CHUNK`] octets. An error applies to all commits that include some of them.
    fn write(&mut self, part: Range<u64>) {
        let chunk = &mut self.chunk[..(part.end - part.start) as usize];
        // SAFETY: within the buffer, which lives as long as this; engines and peers may change it meanwhile, which this
        // copy tolerates.
        unsafe { shared_bytes::load(self.memory.start().add(part.start as usize), chunk) };
        let is_of_part = |job: &Job| job.offset < part.end && part.start < job.octets().end;
        if let Some((job, _)) = self.batch.iter().find(|(job, _)| is_of_part(job)) {
            job.stream.0.mailbox.octets_written.fetch_add(chunk.len() as u64, Relaxed);
        }
        if let Err(error) = self.store.write(part.start, chunk) {
            let failed = CommitStatus::of(&error);
            if failed.stays() {
                self.broken = Some(failed);
            }
            for (_, status) in self.batch.iter_mut().filter(|(job, _)| is_of_part(job)) {
                *status = failed.max(*status);
            }
        }
    }

    /// Syncs what was written and answers the batch; returns its size.
    fn finish(&mut self) -> usize {
        let written = self.broken.is_none() && self.batch.iter().any(|(_, status)| *status == CommitStatus::Success);
        if written && let Err(error) = self.store.sync() {
            // Octets that the store had accepted may be lost, and another sync would not report that: on Linux a failed
            // one leaves the pages clean. So the region cannot be relied on any more.
            let failed = if CommitStatus::of(&error) == CommitStatus::ReadOnly {
                CommitStatus::ReadOnly
            } else {
                CommitStatus::Failure
            };
            self.broken = Some(failed);
        }
        self.answer()
    }

    /// Answers the batch; returns its size.
    fn answer(&mut self) -> usize {
        let count = self.batch.len();
        for (job, status) in self.batch.drain(..) {
            let status = match (status, self.broken) {
                (CommitStatus::Success, Some(broken)) => broken,
                (status, _) => status,
            };
            let mailbox = &job.stream.0.mailbox;
            // An engine that is gone needs no reply.
            let _ = mailbox.replies.send(CommitReply { key: job.key, status, length: job.length });
            if let Some(waker) = &mailbox.waker {
                waker.wake_by_ref();
            }
        }
        count
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
