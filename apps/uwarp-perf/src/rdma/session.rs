//! What both sides have: registered memory with a fixed layout, the data queue pairs, the control connection.

use super::layout::Layout;
use super::wire::{Control, Remote};
use crate::pattern::Pattern;
use anyhow::{Context as _, bail};
use std::fs::File;
use std::time::{Duration, Instant};
use uwarp::{
    Access, Completion, CompletionQueue, Config, Context, Features, FileStore, MemoryRegion, PageAdvice,
    ProtectionDomain, QueuePair, QueuePairOptions, QueuePairState, ReceiveRequest, RegionBuffer, RegionOptions,
    SendRequest, Sge, Status,
};
use uwarp_app::channel::{Channel, Event, Shape, why_disconnected};
use uwarp_app::signals::check_interrupted;

/// Longest silence of the other side.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Fruitless polls of memory or a completion queue between two checks of the connection and the signals.
const LOOK_AROUND: u32 = 1 << 14;
/// Octets that are filled or checked at once.
const PIECE: u64 = 64 << 10;
/// The features of the data connections beyond RFC 5040.
pub const FEATURES: Features = Features { atomics: true, immediate: true, commit: true, infiniband: false };
/// The control connection's messages.
pub const CONTROL: Shape = Shape { message: Control::LEN, messages: 8, work: 0 };

/// Raises the limit of queue pairs, if it is lower, to those of a test and its control connection.
pub fn allow_queue_pairs(config: &mut Config, count: u32) {
    config.limits.queue_pairs = config.limits.queue_pairs.max(count as usize + 1);
}

/// One side of a test.
pub struct Session {
    /// The context.
    pub context: Context,
    /// Owner of everything registered.
    pub domain: ProtectionDomain,
    /// Where messages lie.
    pub layout: Layout,
    /// This side's memory.
    pub memory: MemoryRegion,
    /// The other side's memory.
    pub remote: Remote,
    /// The data queue pairs.
    pub queue_pairs: Vec<QueuePair>,
    /// Completions of all of them.
    pub completions: CompletionQueue,
    /// The control connection.
    pub control: Option<Channel>,
    /// Seed of all content.
    pub seed: u64,
    /// Receives of each data queue pair.
    receives: u32,
    depth: u32,
    inline: bool,
    spins: u32,
    piece: Vec<u8>,
}

/// Receives of a data queue pair: one for the marker, and in a test of Sends one per slot.
fn receives(layout: &Layout, is_send: bool) -> u32 {
    if is_send { layout.slots + 1 } else { 1 }
}

impl Session {
    /// Registers the memory, which may be that of a file, and creates the completion queue; the queue pairs follow one
    /// by one.
    ///
    /// # Errors
    /// The context has no room for them.
    pub fn new(
        context: Context,
        layout: Layout,
        depth: u32,
        is_send: bool,
        store: Option<&File>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let domain = context.allocate_domain();
        let length = layout.len() as usize;
        let memory = match store {
            None => domain.register(RegionBuffer::zeroed(length, PageAdvice::Normal)?, Access::ALL)?,
            Some(file) => {
                let mut store = FileStore::default();
                store.add(file, 0, layout.len())?;
                domain.register(store.load()?, RegionOptions::new(Access::ALL).store(store))?
            }
        };
        let receives = receives(&layout, is_send);
        let completions =
            context.create_completion_queue(layout.qps as usize * (depth as usize + 8 + receives as usize))?;
        let inline = context.config().engine.mode == uwarp::config::EngineMode::Inline;
        Ok(Self {
            context,
            domain,
            layout,
            memory,
            remote: Remote { stag: 0, offset: 0 },
            queue_pairs: Vec::with_capacity(layout.qps as usize),
            completions,
            control: None,
            seed,
            receives,
            depth,
            inline,
            spins: 0,
            piece: vec![0; PIECE as usize],
        })
    }

    /// This side's memory, as the other side addresses it.
    pub fn own(&self) -> Remote {
        Remote { stag: self.memory.stag(), offset: self.memory.remote_offset() }
    }

    /// A data queue pair with its receives posted.
    ///
    /// # Errors
    /// The context has no room for it.
    pub fn make_queue_pair(&self, index: u32) -> anyhow::Result<QueuePair> {
        let mut queue_pair = self.domain.create_queue_pair(
            &QueuePairOptions::new(&self.completions)
                .depth(self.depth as usize + 8, self.receives as usize)
                .limits(1, 32),
        )?;
        for number in 0..self.receives {
            queue_pair
                .receive
                .post(&[ReceiveRequest::new(receive_id(index, number), &[self.receive_entry(index, number)?])])?;
        }
        Ok(queue_pair)
    }

    /// The memory of receive `number` of a queue pair: its slot.
    fn receive_entry(&self, index: u32, number: u32) -> anyhow::Result<Sge> {
        self.entry(self.layout.inward(index, number))
    }

    /// Posts a receive again.
    ///
    /// # Errors
    /// The connection has ended.
    #[inline]
    pub fn post_receive(&mut self, index: u32, number: u32) -> anyhow::Result<()> {
        let entry = self.receive_entry(index, number)?;
        self.queue_pairs[index as usize].receive.post(&[ReceiveRequest::new(receive_id(index, number), &[entry])])?;
        Ok(())
    }

    /// A message's memory on this side.
    ///
    /// # Errors
    /// It is outside of the region.
    #[inline]
    pub fn entry(&self, start: u64) -> anyhow::Result<Sge> {
        let start = start as usize;
        Ok(self.memory.sge(start..start + self.layout.size as usize)?)
    }

    /// Posts an empty Send, which arrives after everything posted before it.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn post_marker(&mut self, index: u32) -> anyhow::Result<()> {
        self.queue_pairs[index as usize].send.post(&[SendRequest::send(MARKER, &[])])?;
        Ok(())
    }

    /// Reaps completions of the data queue pairs; turns an inline engine.
    ///
    /// # Errors
    /// Work failed; or, checked occasionally, the other side is gone or the user has interrupted the tool.
    #[inline]
    pub fn reap(&mut self, out: &mut [Completion]) -> anyhow::Result<usize> {
        let count = self.completions.poll(out);
        if count == 0 {
            self.idle()?;
        }
        if let Some(failed) = out[..count].iter().find(|completion| !completion.status.is_success()) {
            return Err(self.failure(failed));
        }
        Ok(count)
    }

    #[cold]
    fn failure(&mut self, completion: &Completion) -> anyhow::Error {
        let found = self
            .queue_pairs
            .iter_mut()
            .enumerate()
            .find(|(_, queue_pair)| queue_pair.control.number() == completion.queue_pair);
        match (found, completion.status) {
            (Some((index, queue_pair)), Status::Flushed) => {
                // The completions may arrive slightly before the reason.
                let _ = queue_pair.control.wait_disconnected(Duration::from_millis(100));
                anyhow::anyhow!("the connection of queue pair {index} has ended: {}", why_disconnected(queue_pair))
            }
            (_, status) => anyhow::anyhow!("{:?} failed: {status:?}", completion.opcode),
        }
    }

    /// Turns an inline engine. Call it in a loop that watches memory.
    ///
    /// # Errors
    /// Checked occasionally: the other side is gone, or the user has interrupted the tool.
    #[inline]
    pub fn turn(&mut self) -> anyhow::Result<()> {
        if self.inline {
            self.context.poll();
        }
        self.idle()
    }

    /// Counts fruitless polls, and runs the checks after many of them.
    #[inline]
    fn idle(&mut self) -> anyhow::Result<()> {
        self.spins += 1;
        // Powers of two: the remainder is computed every turn.
        let patience: u32 = if self.inline { 2048 } else { 256 };
        if self.spins & (patience - 1) == 0 {
            // The other side may be waiting for this core; on a machine with dedicated cores nothing else wants it.
            std::thread::yield_now();
        }
        if self.spins >= LOOK_AROUND {
            self.spins = 0;
            self.look_around()?;
        }
        Ok(())
    }

    /// Whether it is time to check for a message on the control connection.
    #[inline]
    pub fn is_time_to_look(&self) -> bool {
        self.spins.is_multiple_of(LOOK_AROUND / 16)
    }

    #[cold]
    fn look_around(&mut self) -> anyhow::Result<()> {
        check_interrupted()?;
        for (index, queue_pair) in self.queue_pairs.iter_mut().enumerate() {
            if queue_pair.control.state() == QueuePairState::Disconnected {
                bail!("the connection of queue pair {index} has ended: {}", why_disconnected(queue_pair));
            }
        }
        Ok(())
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn tell(&mut self, message: Control) -> anyhow::Result<()> {
        self.control.as_mut().context(NO_CONTROL)?.send(&message.to_octets())
    }

    /// Sends a farewell and lets the server close: the side that closes last knows that the other has received
    /// everything.
    ///
    /// # Errors
    /// The connection was lost before.
    pub fn leave(&mut self) -> anyhow::Result<()> {
        self.tell(Control::Bye)?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.context.poll();
            let control = self.control.as_mut().context(NO_CONTROL)?;
            let mut open = control.queue_pair().control.state() != QueuePairState::Disconnected;
            for queue_pair in &mut self.queue_pairs {
                open |= queue_pair.control.state() != QueuePairState::Disconnected;
            }
            if !open {
                break;
            }
            if !self.inline {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// The next control message, if there is one.
    ///
    /// # Errors
    /// The connection has ended, or the message is not part of this protocol.
    pub fn hear(&mut self) -> anyhow::Result<Option<Control>> {
        let Some(event) = self.control.as_mut().context(NO_CONTROL)?.poll()? else {
            return Ok(None);
        };
        match event {
            Event::Message(octets) => octets
                .first_chunk()
                .and_then(Control::from_octets)
                .map(Some)
                .context("the other side sent a message that this version does not know"),
            Event::Done(_) => Ok(None),
            Event::Immediate(_) => bail!("the other side sent Immediate Data on the control connection"),
            Event::Closed => {
                let why = self.control.as_mut().context(NO_CONTROL)?.why_closed();
                bail!("the control connection has ended: {why}")
            }
        }
    }

    /// Waits for the next control message.
    ///
    /// # Errors
    /// It does not arrive in time, or as [`hear`](Self::hear).
    pub fn wait_message(&mut self) -> anyhow::Result<Control> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.hear()? {
                return Ok(message);
            }
            self.turn()?;
            if start.elapsed() > PATIENCE {
                bail!("the other side has sent nothing for {PATIENCE:?}");
            }
        }
    }

    /// Waits for a specific control message.
    ///
    /// # Errors
    /// Another one arrives; one that reports wrong data becomes an error with that text.
    pub fn expect(&mut self, expected: Control) -> anyhow::Result<()> {
        match self.wait_message()? {
            message if message == expected => Ok(()),
            Control::Wrong { queue_pair, message, position } => {
                bail!("the server received octet {position} of message {message} of queue pair {queue_pair} wrong")
            }
            other => bail!("the other side sent {other:?} instead of {expected:?}"),
        }
    }

    /// The content of a message.
    pub fn pattern(&self, index: u32, message: u64) -> Pattern {
        Pattern::new(self.seed, index, message)
    }

    /// Writes a message's contents to this side's memory.
    ///
    /// # Errors
    /// It is outside of the region.
    pub fn fill(&mut self, start: u64, pattern: Pattern) -> anyhow::Result<()> {
        let mut position = 0;
        while position < self.layout.size {
            let length = (self.layout.size - position).min(PIECE);
            let piece = &mut self.piece[..length as usize];
            pattern.fill(position, piece);
            self.memory.write((start + position) as usize, piece)?;
            position += length;
        }
        Ok(())
    }

    /// Compares this side's memory with a message's contents; returns the position of the first wrong octet.
    ///
    /// # Errors
    /// The memory is outside of the region.
    pub fn compare(&mut self, start: u64, pattern: Pattern, len: u64) -> anyhow::Result<Option<u64>> {
        let mut position = 0;
        while position < len {
            let length = (len - position).min(PIECE);
            let piece = &mut self.piece[..length as usize];
            self.memory.read((start + position) as usize, piece)?;
            if let Err(wrong) = pattern.check(position, piece) {
                return Ok(Some(wrong));
            }
            position += length;
        }
        Ok(None)
    }

    /// Number of receives of each data queue pair.
    pub fn receives(&self) -> u32 {
        self.receives
    }
}

const NO_CONTROL: &str = "there is no control connection yet";

/// Identifier of a marker.
pub const MARKER: u64 = u64::MAX;

/// Identifier of a receive: its queue pair and its slot.
pub fn receive_id(index: u32, number: u32) -> u64 {
    u64::from(index) << 32 | u64::from(number)
}

/// The queue pair and the number in a receive's identifier.
#[inline]
pub fn parse_receive_id(id: u64) -> (u32, u32) {
    ((id >> 32) as u32, id as u32)
}
