//! A connection for short messages: receives, Sends that wait for a free buffer, and room for the tool's own work
//! requests on the same queue pair.
//!
//! # Flow control
//! A receive holds its message until the tool takes it, and is then posted again. So at most [`Shape::messages`]
//! messages wait at any time, also while a Send waits. Nothing else limits a peer's Sends: a protocol must not let one
//! side have more messages under way than the other side has receives. A peer that sends more ends its own connection,
//! by the fault "no buffer available" (RFC 5041 §7.2).

use anyhow::{Context as _, bail};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use uwarp::{
    Access, Completion, CompletionOpcode, CompletionQueue, ConnectError, ConnectOptions, Context, DisconnectReason,
    Error, Established, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
    Status, TcpStream, TcpStreamOptions, TerminateCode,
};

/// Set in the identifiers of this module's own requests; the tool's own must be lower.
const OWN: u64 = 1 << 63;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// How long [`Channel::send`] waits for a buffer. A peer whose engine works frees one within milliseconds.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How often a waiting Send checks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// How a channel is made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Longest message, in octets.
    pub message: usize,
    /// Receives, and Sends that may be under way.
    pub messages: usize,
    /// The tool's own work requests that may be under way.
    pub work: usize,
}

/// An event of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message arrived.
    Message(Vec<u8>),
    /// Immediate Data arrived.
    Immediate(u64),
    /// Work of the tool's own completed. This includes a failed Commit, after which the connection continues.
    Done(Completion),
    /// The peer closed the connection, or it was lost.
    Closed,
}

/// The channel.
pub struct Channel {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    /// Receive buffers, then send buffers.
    buffers: MemoryRegion,
    shape: Shape,
    /// Send buffers that are free.
    free: Vec<usize>,
    /// Completions that arrived while a Send waited: at most one per receive and work request.
    waiting: VecDeque<Completion>,
    /// Messages among them.
    queued: usize,
    most_queued: usize,
    closed: bool,
}

impl Channel {
    /// An unconnected channel with posted receives.
    ///
    /// # Errors
    /// The context has no room for another queue pair or region.
    pub fn new(context: &Context, domain: &ProtectionDomain, shape: Shape) -> anyhow::Result<Self> {
        let depth = shape.messages + shape.work;
        let completions = context.create_completion_queue(2 * (depth + shape.messages))?;
        let queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions).depth(depth, shape.messages))?;
        let buffers = domain.register(vec![0; 2 * shape.messages * shape.message], Access::LOCAL_WRITE)?;
        let mut channel = Self {
            queue_pair,
            completions,
            buffers,
            shape,
            free: (0..shape.messages).collect(),
            waiting: VecDeque::new(),
            queued: 0,
            most_queued: 0,
            closed: false,
        };
        for slot in 0..shape.messages {
            channel.post_receive(slot)?;
        }
        Ok(channel)
    }

    /// The queue pair, for accepting and for posting work. The work must be signalled, with identifiers below 2^63:
    /// each completion is returned as [`Event::Done`].
    pub fn queue_pair(&mut self) -> &mut QueuePair {
        &mut self.queue_pair
    }

    fn post_receive(&mut self, slot: usize) -> anyhow::Result<()> {
        let start = slot * self.shape.message;
        let entry = self.buffers.sge(start..start + self.shape.message)?;
        self.queue_pair.receive.post(&[ReceiveRequest::new(OWN | slot as u64, &[entry])])?;
        Ok(())
    }

    /// The most messages that have ever waited behind a Send; at most [`Shape::messages`].
    pub fn most_queued(&self) -> usize {
        self.most_queued
    }

    /// Sends a message. Waits up to ten seconds for a free buffer: see [`send_within`](Self::send_within).
    ///
    /// # Errors
    /// As [`send_within`](Self::send_within).
    pub fn send(&mut self, message: &[u8]) -> anyhow::Result<()> {
        self.send_within(message, SEND_LIMIT)
    }

    /// Sends a message. It waits up to `limit` for a free buffer, and then aborts the connection: the peer accepts
    /// nothing. Messages that arrive meanwhile are kept for [`poll`](Self::poll). It turns an inline engine.
    ///
    /// # Errors
    /// The message is too long, the connection has ended, the time is up, or the user interrupts the wait.
    pub fn send_within(&mut self, message: &[u8], limit: Duration) -> anyhow::Result<()> {
        if message.len() > self.shape.message {
            bail!("a message of {} octets exceeds the limit of {}", message.len(), self.shape.message);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.wait_for_buffer(limit)?,
        };
        let start = (self.shape.messages + slot) * self.shape.message;
        self.buffers.write(start, message)?;
        let entry = self.buffers.sge(start..start + message.len())?;
        self.queue_pair.send.post(&[SendRequest::send(OWN | slot as u64, &[entry]).signalled()])?;
        Ok(())
    }

    fn wait_for_buffer(&mut self, limit: Duration) -> anyhow::Result<usize> {
        let start = Instant::now();
        while !self.closed {
            // This ends soon: no receive is posted here, so the number of completions is limited.
            while let Some(completion) = self.completions.poll_one() {
                self.put_aside(completion)?;
            }
            if let Some(slot) = self.free.pop() {
                return Ok(slot);
            }
            crate::signals::check_interrupted()?;
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                self.queue_pair.control.abort();
                self.closed = true;
                bail!("the other side has taken no message for {limit:?}: the connection was aborted");
            }
            self.completions.wait(left.min(LOOK))?;
        }
        bail!("the connection is over: {}", self.why_closed())
    }

    /// Keeps a completion that arrives while a Send waits, unless it frees a buffer.
    fn put_aside(&mut self, completion: Completion) -> anyhow::Result<()> {
        let is_receive = completion.opcode == CompletionOpcode::Receive;
        if completion.id & OWN != 0 && !is_receive {
            self.take(completion)?;
        } else if is_over(completion.status) {
            self.closed = true;
        } else {
            self.waiting.push_back(completion);
            self.queued += usize::from(is_receive);
            self.most_queued = self.most_queued.max(self.queued);
        }
        Ok(())
    }

    /// The next event, without waiting. It turns an inline engine.
    ///
    /// # Errors
    /// Work failed for another reason than the end of the connection.
    pub fn poll(&mut self) -> anyhow::Result<Option<Event>> {
        if let Some(completion) = self.waiting.pop_front() {
            self.queued -= usize::from(completion.opcode == CompletionOpcode::Receive);
            return self.take(completion);
        }
        if self.closed {
            return Ok(Some(Event::Closed));
        }
        match self.completions.poll_one() {
            Some(completion) => self.take(completion),
            None => Ok(None),
        }
    }

    /// Waits for the next event; `None` after a time-out.
    ///
    /// # Errors
    /// Work failed for another reason than the end of the connection, or the engine failed.
    pub fn next(&mut self, timeout: Duration) -> anyhow::Result<Option<Event>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.completions.wait(left)? {
                return Ok(None);
            }
        }
    }

    /// Makes the next event raise the file descriptor of [`as_fd`](AsFd::as_fd). Poll once more before waiting for it.
    pub fn arm(&mut self) {
        self.completions.take_events();
        self.completions.arm();
    }

    /// The event of a completion; `None` if it only frees a buffer.
    fn take(&mut self, completion: Completion) -> anyhow::Result<Option<Event>> {
        match completion.status {
            Status::Success => {}
            status if is_over(status) => {
                self.closed = true;
                return Ok(Some(Event::Closed));
            }
            Status::CommitFailed if completion.id & OWN == 0 => {}
            status => bail!("a request failed: {status:?}"),
        }
        if completion.id & OWN == 0 {
            return Ok(Some(Event::Done(completion)));
        }
        // Below the number of messages, see the identifiers above.
        let slot = (completion.id & !OWN) as usize;
        if completion.opcode == CompletionOpcode::Receive {
            if let Some(data) = completion.immediate_data() {
                self.post_receive(slot)?;
                return Ok(Some(Event::Immediate(data)));
            }
            let mut message = vec![0; completion.length as usize];
            self.buffers.read(slot * self.shape.message, &mut message)?;
            self.post_receive(slot)?;
            return Ok(Some(Event::Message(message)));
        }
        self.free.push(slot);
        Ok(None)
    }

    /// Why the connection ended, to complete a sentence.
    pub fn why_closed(&mut self) -> String {
        // The completions may arrive slightly before the reason.
        let _ = self.queue_pair.control.wait_disconnected(Duration::from_millis(100));
        why_disconnected(&mut self.queue_pair)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }
}

/// Whether work failed because its connection ended.
fn is_over(status: Status) -> bool {
    status == Status::Flushed
}

/// Why a connection ended, to complete a sentence.
pub fn why_disconnected(queue_pair: &mut QueuePair) -> String {
    let terminate = |code: TerminateCode| format!("layer {}, type {}, code {}", code.layer, code.error_type, code.code);
    match queue_pair.control.disconnect_reason() {
        None => "the reason is unknown".to_owned(),
        Some(DisconnectReason::Local) => "it was closed here".to_owned(),
        Some(DisconnectReason::PeerClosed) => "the other side closed it".to_owned(),
        Some(DisconnectReason::PeerClosedEarly) => "the other side closed it in the middle of a message".to_owned(),
        Some(DisconnectReason::PeerTerminated(code)) => {
            format!("the other side reported a fault ({})", terminate(code))
        }
        Some(DisconnectReason::LocalTerminated(code)) => {
            format!("this side found a fault in what the other side sent ({})", terminate(code))
        }
        Some(DisconnectReason::Reset) => "the other side reset it".to_owned(),
        Some(DisconnectReason::TimedOut) => "the other side stopped answering".to_owned(),
        Some(DisconnectReason::Aborted) => "it was aborted here".to_owned(),
        Some(DisconnectReason::LocalError(status)) => format!("work failed here ({status:?})"),
        Some(other) => format!("{other:?}"),
    }
}

/// Connects a fresh queue pair, and retries while nobody answers: the server may be starting.
///
/// # Errors
/// The time is up, or the peer rejects the connection (its private data is shown as the reason).
pub fn connect<Made>(
    context: &Context,
    peer: SocketAddr,
    options: &ConnectOptions,
    patience: Duration,
    mut make: impl FnMut() -> anyhow::Result<Made>,
    queue_pair: impl Fn(&mut Made) -> &mut QueuePair,
) -> anyhow::Result<(Made, Established)> {
    let start = Instant::now();
    loop {
        let mut made = make()?;
        let error = match context.connect(&mut queue_pair(&mut made).control, peer, options.clone()) {
            Ok(established) => return Ok((made, established)),
            Err(error) => error,
        };
        match &error {
            Error::Connect { reason: ConnectError::Rejected { private_data, .. }, .. } => {
                let reason = crate::output::printable(&String::from_utf8_lossy(private_data));
                bail!(
                    "{peer} rejects the connection: {}",
                    if reason.is_empty() { "no reason given" } else { &*reason }
                );
            }
            Error::Connect {
                reason:
                    ConnectError::Refused | ConnectError::Unreachable | ConnectError::TimedOut(_) | ConnectError::Closed,
                ..
            } if start.elapsed() < patience && !crate::signals::interrupted() => {}
            _ => return Err(error).context("cannot connect"),
        }
        pause(context);
    }
}

/// Connects a plain stream, and retries while nobody answers.
///
/// # Errors
/// The time is up, or the user interrupts.
pub fn connect_stream(
    context: &Context,
    server: SocketAddr,
    options: &TcpStreamOptions,
    patience: Duration,
) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_with(context, server, options) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > patience || crate::signals::interrupted() => {
                return Err(error).with_context(|| format!("cannot connect to {server}"));
            }
            Err(_) => pause(context),
        }
    }
}

/// Waits before the next attempt. The engine must turn meanwhile; an inline one turns only in calls.
fn pause(context: &Context) {
    let start = Instant::now();
    while start.elapsed() < PAUSE {
        if !context.poll() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Time for the last acknowledgment to leave rings that disappear with this process.
const SETTLE: Duration = Duration::from_millis(50);
/// How long the other side may take to close, too.
const PART: Duration = Duration::from_secs(3);

/// Closes a connection before the process ends: posted work is executed, both sides close, and the acknowledgment of
/// the other side's FIN is sent. Without it the peer would retransmit its FIN for as long as it lingers.
///
/// # Errors
/// The engine failed.
pub fn part(context: &Context, queue_pair: &mut QueuePair) -> anyhow::Result<()> {
    queue_pair.control.disconnect();
    if !queue_pair.control.wait_disconnected(PART)? {
        queue_pair.control.abort();
    }
    let start = Instant::now();
    while start.elapsed() < SETTLE {
        if !context.poll() {
            std::thread::yield_now();
        }
    }
    Ok(())
}
