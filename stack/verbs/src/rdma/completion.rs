//! Completion queues.

use crate::error::Error;
use crate::runtime::context::{Context, Shared};
use crate::runtime::core::Core;
use crate::runtime::driver::{Backoff, at_helm, inline};
use crate::runtime::lock::lock;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uwarp_engine::command::{Command, CompletionQueueId};
use uwarp_engine::work::{Completion, URGENT_COMPLETION};
use uwarp_ring::{Bell, Consumer, Gauge, Notifier};

/// The part of a completion queue that its users share. When the last of them drops it, the engines forget the queue.
#[derive(Debug)]
pub(crate) struct CompletionQueueCore {
    pub(crate) id: CompletionQueueId,
    // Not the whole context: lingering queue pairs, which the context holds, hold this.
    core: Arc<Core>,
    notifier: Arc<Notifier>,
    entries: Mutex<Entries>,
    /// The rings of each engine that may hold completions.
    rings: Mutex<Vec<Vec<Gauge<Completion>>>>,
    /// How often completions have moved within their rings.
    purges: AtomicU64,
}

/// Completions that lay in a queue, unread, at some moment.
#[derive(Debug)]
pub(crate) struct Unread {
    core: Arc<CompletionQueueCore>,
    engine: usize,
    purges: u64,
    ends: Vec<(Gauge<Completion>, usize)>,
}

impl Unread {
    /// Those that an engine has pushed so far.
    pub(crate) fn of(core: &Arc<CompletionQueueCore>, engine: usize) -> Self {
        let purges = core.purges.load(Ordering::Acquire);
        let ends = lock(&core.rings)[engine].iter().map(|ring| (ring.clone(), ring.published())).collect();
        Self { core: Arc::clone(core), engine, purges, ends }
    }

    /// Whether some of them may still lie there.
    pub(crate) fn remain(&mut self) -> bool {
        self.ends.retain(|(ring, end)| !ring.has_passed(*end));
        // Looked at behind the cursors: completions that moved may lie behind where they did.
        if self.core.purges.load(Ordering::Acquire) != self.purges {
            *self = Self::of(&self.core, self.engine);
        }
        !self.ends.is_empty()
    }
}

/// Elements that count against the context's limit.
#[derive(Debug)]
struct Entries {
    count: usize,
    core: Arc<Core>,
}

impl Entries {
    fn take(core: &Arc<Core>, count: usize) -> Result<Self, Error> {
        let limit = core.config.limits.completion_entries;
        let more = |now: usize| now.checked_add(count).filter(|sum| *sum <= limit);
        match core.objects.completion_entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Self { count, core: Arc::clone(core) }),
            Err(_) => Err(Error::Limit { what: "element of a completion queue", field: "completion-entries", limit }),
        }
    }
}

impl Entries {
    /// As many as `count` from now on.
    fn exchange(&mut self, count: usize) -> Result<(), Error> {
        let limit = self.core.config.limits.completion_entries;
        let others = |now: usize| (now - self.count).checked_add(count).filter(|sum| *sum <= limit);
        match self.core.objects.completion_entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, others) {
            Ok(_) => {
                self.count = count;
                Ok(())
            }
            Err(_) => Err(Error::Limit { what: "element of a completion queue", field: "completion-entries", limit }),
        }
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        self.core.objects.completion_entries.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl CompletionQueueCore {
    pub(crate) fn context_id(&self) -> u64 {
        self.core.id
    }
}

impl Drop for CompletionQueueCore {
    fn drop(&mut self) {
        for engine in &self.core.engines {
            engine.command(Command::RemoveCompletionQueue { queue: self.id });
        }
        // The engines forget this queue before they learn of the next one with its number.
        self.core.objects.completion_queues.put(self.id.0);
    }
}

/// A queue of completions, filled by the engines and emptied by one thread.
///
/// It has a lane for each engine. The order of completions is guaranteed only within a queue pair. Each lane holds as
/// many completions as the queue's depth. One that does not fit puts its queue pair into the error state and raises
/// [`AsyncEvent::CompletionQueueOverflow`](crate::AsyncEvent::CompletionQueueOverflow). So make the queue at least as
/// deep as all send and receive queues that use it together.
///
/// Queue pairs keep what they need of it: dropping it early loses only its completions.
#[derive(Debug)]
pub struct CompletionQueue {
    target: CompletionTarget,
    shared: Arc<Shared>,
    lanes: Vec<Consumer<Completion>>,
    /// Rings that follow those of `lanes`, in order, with their engines: they come when those are empty and the engine
    /// has left them.
    replacements: Vec<(usize, Consumer<Completion>)>,
    /// The lane to begin with, and the engine to turn, so that a busy engine does not starve the others.
    next: usize,
    depth: usize,
    /// Empty polls in a row since the last completion. Wraps around.
    empty_polls: u32,
    /// The same since a turn last had something to do.
    idle_polls: u32,
    /// So many of these before the core is yielded.
    patience: u32,
    inline: bool,
    /// A poll in vain turns an engine with a thread.
    poll_turns: bool,
}

/// Empty polls of a threaded queue before the core is yielded, while nobody else wants it.
const MOST_PATIENCE: u32 = 256;
/// The same behind a yield of which somebody else has made use.
const LEAST_PATIENCE: u32 = 8;
/// A yield that took longer has let somebody else run.
const YIELD_TIME: Duration = Duration::from_micros(2);
/// Turns of an engine in one poll, at most.
const MOST_TURNS: usize = 4;

/// What a queue pair has to know of its completion queue. A program that shares a queue between threads makes queue
/// pairs by a clone of this, while one of them polls.
#[derive(Clone, Debug)]
pub struct CompletionTarget {
    core: Arc<CompletionQueueCore>,
}

impl CompletionTarget {
    /// What events call this queue.
    pub fn id(&self) -> CompletionQueueId {
        self.core.id
    }

    pub(crate) fn core(&self) -> &Arc<CompletionQueueCore> {
        &self.core
    }
}

impl Deref for CompletionQueue {
    type Target = CompletionTarget;

    fn deref(&self) -> &CompletionTarget {
        &self.target
    }
}

impl Context {
    /// A new completion queue that holds at least `depth` completions of each engine.
    pub fn create_completion_queue(&self, depth: usize) -> Result<CompletionQueue, Error> {
        let notifier = Notifier::new().map_err(Error::system("no event file descriptor for a completion queue"))?;
        CompletionQueue::create(self.shared(), depth, notifier)
    }

    /// A new completion queue that has no file descriptor: its events ring a bell. It can be polled and armed, but
    /// nobody can wait for it: [`wait`](CompletionQueue::wait) fails, and [`as_fd`](AsFd::as_fd) panics.
    pub fn create_completion_queue_with(&self, depth: usize, bell: Arc<dyn Bell>) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(self.shared(), depth, Notifier::with_bell(bell))
    }
}

impl CompletionQueue {
    fn create(shared: &Arc<Shared>, depth: usize, notifier: Notifier) -> Result<Self, Error> {
        shared.check_open()?;
        // Queue pairs that were dropped hold theirs until the engine has forgotten them.
        shared.reap_lingering();
        check_depth(shared, depth)?;
        let entries = Entries::take(shared.core(), depth * shared.engines.len())?;
        let limit = shared.config.limits.completion_queues;
        let number = shared.objects.completion_queues.take().ok_or(Error::Limit {
            what: "completion queue",
            field: "completion-queues",
            limit,
        })?;
        let notifier = Arc::new(notifier);
        let id = CompletionQueueId(number);
        let core = Arc::new(CompletionQueueCore {
            id,
            core: Arc::clone(shared.core()),
            notifier: Arc::clone(&notifier),
            entries: Mutex::new(entries),
            rings: Mutex::default(),
            purges: AtomicU64::new(0),
        });
        let lanes: Vec<Consumer<Completion>> = shared
            .engines
            .iter()
            .map(|engine| {
                let (producer, consumer) = uwarp_ring::ring(depth);
                engine.command(Command::AddCompletionQueue {
                    queue: id,
                    lane: producer,
                    notifier: Arc::clone(&notifier),
                });
                consumer
            })
            .collect();
        *lock(&core.rings) = lanes.iter().map(|lane| vec![lane.gauge()]).collect();
        shared.waiters.add(&notifier);
        let inline = shared.is_inline();
        let shared = Arc::clone(shared);
        let poll_turns = !inline && shared.config.engine.poll_turns == Some(true);
        let replacements = Vec::new();
        Ok(Self {
            target: CompletionTarget { core },
            shared,
            lanes,
            replacements,
            next: 0,
            depth,
            empty_polls: 1,
            idle_polls: 0,
            patience: MOST_PATIENCE,
            inline,
            poll_turns,
        })
    }

    /// Least number of completions that each lane holds.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Changes the depth. What lies in the queue stays and is polled first, also if that is more than the new depth.
    ///
    /// # Errors
    /// The depth is not allowed, or the context's limit of completions would be exceeded. The queue is as it was.
    pub fn resize(&mut self, depth: usize) -> Result<(), Error> {
        self.shared.check_open()?;
        check_depth(&self.shared, depth)?;
        self.advance();
        lock(&self.target.core.entries).exchange(depth * self.shared.engines.len())?;
        let mut rings = lock(&self.target.core.rings);
        for (engine, rings) in rings.iter_mut().enumerate() {
            let (lane, consumer) = uwarp_ring::ring(depth);
            rings.retain(|ring| !ring.is_abandoned());
            rings.push(consumer.gauge());
            self.shared.engines[engine].command(Command::ReplaceLane { queue: self.target.core.id, lane });
            self.replacements.push((engine, consumer));
        }
        self.depth = depth;
        Ok(())
    }

    /// Removes the completions of a queue pair, and returns how many there were. To be called when the queue pair is
    /// gone, for programs that expect none of it then.
    pub fn purge(&mut self, queue_pair: u32) -> usize {
        // Before anything moves: see `Unread::remain`.
        self.target.core.purges.fetch_add(1, Ordering::AcqRel);
        let rings = self.lanes.iter_mut().chain(self.replacements.iter_mut().map(|(_, ring)| ring));
        rings.map(|ring| ring.retain(|completion| completion.queue_pair != queue_pair)).sum()
    }

    /// Whether completions of work of a queue pair that succeeded lie in the queue.
    pub fn has_successes(&mut self, queue_pair: u32) -> bool {
        let mut rings = self.lanes.iter_mut().chain(self.replacements.iter_mut().map(|(_, ring)| ring));
        rings.any(|ring| {
            let of_it = |one: &Completion| one.queue_pair == queue_pair && one.status.is_success();
            (0..ring.available()).any(|index| ring.peek(index).is_some_and(of_it))
        })
    }

    /// Goes on to the rings that follow.
    #[cold]
    fn advance(&mut self) {
        for (engine, lane) in self.lanes.iter_mut().enumerate() {
            // In this order: what is in a ring that the engine has left is all.
            while lane.is_closed()
                && lane.available() == 0
                && let Some(next) = self.replacements.iter().position(|(of, _)| *of == engine)
            {
                *lane = self.replacements.remove(next).1;
            }
        }
    }

    /// Moves completions to `out`, oldest first for each queue pair, and returns how many. An inline context's engine
    /// is turned first if this is its thread.
    #[inline]
    pub fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.inline {
            inline::turn(self.shared.id);
        }
        let mut count = self.reap(out);
        if count == 0 && !self.replacements.is_empty() {
            self.advance();
            count = self.reap(out);
        }
        if count == 0 && self.poll_turns && !out.is_empty() {
            count = self.turn_and_reap(out);
        }
        if count > 0 {
            (self.empty_polls, self.idle_polls) = (0, 0);
        } else if !self.inline {
            self.empty_polls = self.empty_polls.wrapping_add(1);
            self.idle_polls += 1;
            if self.idle_polls >= self.patience {
                self.yield_core();
            }
        }
        count
    }

    /// Gives the core to others. With more pollers than cores, the one that we wait for may be waiting for this core:
    /// then the next yield comes soon. But not to the engine's own thread while that turns: it would never see that the
    /// application polls, and stand back.
    #[cold]
    fn yield_core(&mut self) {
        self.idle_polls = 0;
        let begun = Instant::now();
        std::thread::yield_now();
        let is_wanted = begun.elapsed() > YIELD_TIME;
        let turns_itself = self.shared.engines[self.next].helm().take_as_usual().is_some();
        self.patience = match (turns_itself, is_wanted) {
            (true, true) => LEAST_PATIENCE,
            (true, false) => MOST_PATIENCE.min(2 * self.patience),
            (false, _) => MOST_PATIENCE,
        };
    }

    /// Turns an engine that has a thread, if nobody does so now, until there is a completion or nothing to do. Whoever
    /// armed the queue is about to wait, and not to poll: then it is left to the thread.
    fn turn_and_reap(&mut self, out: &mut [Completion]) -> usize {
        let mut count = 0;
        let mut empty_polls = self.empty_polls;
        for _ in 0..MOST_TURNS {
            let engine = &self.shared.engines[self.next];
            if self.target.core.notifier.is_armed() || !at_helm::turn_for_application(engine.helm(), empty_polls) {
                break;
            }
            // The core is given to others when there is nothing to do, not in the middle of a message.
            self.idle_polls = 0;
            count = self.reap(out);
            if count > 0 {
                break;
            }
            empty_polls = empty_polls.max(1);
        }
        count
    }

    #[inline]
    fn reap(&mut self, out: &mut [Completion]) -> usize {
        if let [lane] = self.lanes.as_mut_slice() {
            return lane.pop_batch(out);
        }
        if !self.replacements.is_empty() {
            self.advance();
        }
        let lanes = self.lanes.len();
        let mut count = 0;
        for step in 0..lanes {
            let lane = (self.next + step) % lanes;
            count += self.lanes[lane].pop_batch(&mut out[count..]);
            if count == out.len() {
                break;
            }
        }
        self.next = (self.next + 1) % lanes;
        count
    }

    /// Takes one completion, if there is one.
    #[inline]
    pub fn poll_one(&mut self) -> Option<Completion> {
        let mut one = [Completion::default()];
        (self.poll(&mut one) == 1).then(|| one[0])
    }

    fn has_completions(&mut self) -> bool {
        if !self.replacements.is_empty() {
            self.advance();
        }
        self.lanes.iter_mut().any(|lane| lane.available() > 0)
    }

    /// Makes the next completion an event, once: it raises the file descriptor of [`as_fd`](AsFd::as_fd) until
    /// [`take_events`](Self::take_events). Poll once more after arming and before waiting for the descriptor: what
    /// arrived before is not announced. Arming leaves earlier events alone.
    pub fn arm(&mut self) {
        self.target.core.notifier.arm();
        self.call_threads();
    }

    /// As [`arm`](Self::arm), for the next completion that the peer asked a solicited event for (RFC 5040 §5.3) or that
    /// is no success; others leave the file descriptor alone. If the queue is armed for any completion, it stays so.
    pub fn arm_solicited(&mut self) {
        self.target.core.notifier.arm_also(URGENT_COMPLETION);
        self.call_threads();
    }

    /// Who arms the queue is about to wait.
    fn call_threads(&self) {
        if self.poll_turns {
            self.shared.engines.iter().for_each(|engine| engine.helm().call());
        }
    }

    /// Takes the events that were raised since the last time, and returns how many: at most one for each time that the
    /// queue was armed. The file descriptor is not readable afterwards.
    pub fn take_events(&mut self) -> u64 {
        self.target.core.notifier.drain_all()
    }

    /// Waits until there is a completion, or the time is over (false). It arms the queue and takes events. An inline
    /// context turns its engine meanwhile, which only the thread that opened it can do.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let deadline = Instant::now().checked_add(timeout);
        if self.inline {
            return self.wait_inline(deadline);
        }
        loop {
            if self.has_completions() {
                return Ok(true);
            }
            self.shared.check_alive()?;
            self.arm();
            if self.has_completions() {
                return Ok(true);
            }
            self.shared.check_alive()?;
            let remaining = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if remaining.is_zero() {
                return Ok(false);
            }
            // A limit on each sleep, so that not even a defect makes it endless.
            self.core
                .notifier
                .wait(Some(remaining.min(Duration::from_secs(1))))
                .map_err(Error::system("waiting for a completion failed"))?;
        }
    }

    fn wait_inline(&mut self, deadline: Option<Instant>) -> Result<bool, Error> {
        self.shared.check_here()?;
        let found = inline::turn_until(Backoff::new(&self.shared.config.engine), deadline, || {
            if self.has_completions() {
                return Ok(Some(()));
            }
            self.shared.check_alive().map(|()| None)
        })?;
        Ok(found.is_some())
    }

    /// As [`poll`](Self::poll), but waits for a completion; 0 after the time limit. Completions found after a wait are
    /// taken without another turn of an inline engine.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub fn wait_for(&mut self, out: &mut [Completion], timeout: Duration) -> Result<usize, Error> {
        match self.poll(out) {
            0 if self.wait(timeout)? => {
                (self.empty_polls, self.idle_polls) = (0, 0);
                Ok(self.reap(out))
            }
            count => Ok(count),
        }
    }

    /// Waits for one completion; `None` after the time limit.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.poll_one() {
            return Ok(Some(completion));
        }
        Ok(if self.wait(timeout)? { self.poll_one() } else { None })
    }
}

impl AsFd for CompletionQueue {
    /// Readable when a completion came after [`arm`](CompletionQueue::arm), until
    /// [`take_events`](CompletionQueue::take_events).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.target.core.notifier.as_fd()
    }
}

fn check_depth(shared: &Shared, depth: usize) -> Result<(), Error> {
    let most = shared.config.limits.completion_depth;
    if (1..=most).contains(&depth) {
        return Ok(());
    }
    let choose = format!("choose 1 to {most} (limits.completion-depth)");
    Err(Error::argument("the completion queue's depth", depth, choose))
}

#[cfg(test)]
mod tests {
    use crate::{Config, Context, Error};

    #[test]
    fn elements_of_all_queues_together_have_a_limit() {
        let config = |address| Config::without_device(address).unwrap().without_monitor();
        let mut first = config("10.0.0.1/24");
        first.limits.completion_entries = 100;
        let (context, _peer) = Context::pair_in_process(first, config("10.0.0.2/24")).unwrap();
        for _ in 0..10 {
            let most = context.create_completion_queue(60).unwrap();
            let refused = context.create_completion_queue(41).unwrap_err();
            assert!(matches!(refused, Error::Limit { field: "completion-entries", limit: 100, .. }), "{refused}");
            let rest = context.create_completion_queue(40).unwrap();
            drop((most, rest));
        }
    }

    #[test]
    fn numbers_of_dropped_queues_are_used_again() {
        let config = |address| Config::without_device(address).unwrap().without_monitor();
        let mut first = config("10.0.0.1/24");
        first.limits.completion_queues = 8;
        let (context, _peer) = Context::pair_in_process(first, config("10.0.0.2/24")).unwrap();
        // Each engine's list of lanes is as long as the highest number.
        for _ in 0..100 {
            let queue = context.create_completion_queue(4).unwrap();
            assert!(queue.core().id.0 < 8);
        }
    }
}
