//! A connection for short messages: receives that are always posted, Sends that wait for a free buffer, and room for the
//! tool's own work requests on the same queue pair.

use anyhow::{Context as _, bail};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use uwarp::{
    Access, Completion, CompletionOpcode, CompletionQueue, ConnectError, ConnectOptions, Context, DisconnectReason,
    Error, Established, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest,
    Status, TerminateCode,
};

/// Set in the identifiers of this module's own requests; a tool's own must be below.
const OWN: u64 = 1 << 63;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// How a channel is made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Longest message, in octets.
    pub message: usize,
    /// Receives kept posted, and Sends that may be under way.
    pub messages: usize,
    /// Work requests of the tool's own that may be under way.
    pub work: usize,
}

/// What happened on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message came.
    Message(Vec<u8>),
    /// Immediate Data came.
    Immediate(u64),
    /// Work of the tool's own was done; or it is a Commit that failed, after which the connection goes on.
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
    /// What was met while waiting for something else.
    waiting: VecDeque<Event>,
    closed: bool,
}

impl Channel {
    /// A channel that is not connected, with its receives posted.
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
            closed: false,
        };
        for slot in 0..shape.messages {
            channel.post_receive(slot)?;
        }
        Ok(channel)
    }

    /// The queue pair, to accept with and to post work to. Its identifiers must be below 2^63, and its work signalled: each
    /// completion comes as [`Event::Done`].
    pub fn queue_pair(&mut self) -> &mut QueuePair {
        &mut self.queue_pair
    }

    fn post_receive(&mut self, slot: usize) -> anyhow::Result<()> {
        let start = slot * self.shape.message;
        let entry = self.buffers.sge(start..start + self.shape.message)?;
        self.queue_pair.post_receive(&[ReceiveRequest::new(OWN | slot as u64, &[entry])])?;
        Ok(())
    }

    /// Sends a message, when a buffer is free.
    ///
    /// # Errors
    /// The message is too long, or the connection is over.
    pub fn send(&mut self, message: &[u8]) -> anyhow::Result<()> {
        if message.len() > self.shape.message {
            bail!("a message of {} octets is longer than {}", message.len(), self.shape.message);
        }
        let slot = loop {
            if let Some(slot) = self.free.pop() {
                break slot;
            }
            let event = self.step()?;
            self.waiting.extend(event);
            if self.closed {
                bail!("the connection is over: {}", self.why_closed());
            }
        };
        let start = (self.shape.messages + slot) * self.shape.message;
        self.buffers.write(start, message)?;
        let entry = self.buffers.sge(start..start + message.len())?;
        self.queue_pair.post_send(&[SendRequest::send(OWN | slot as u64, &[entry]).signalled()])?;
        Ok(())
    }

    /// What happened, without waiting. An inline engine is turned.
    ///
    /// # Errors
    /// Work failed otherwise than by the end of the connection.
    pub fn poll(&mut self) -> anyhow::Result<Option<Event>> {
        if let Some(event) = self.waiting.pop_front() {
            return Ok(Some(event));
        }
        self.step()
    }

    /// Waits for what happens next; `None` when the time is over.
    ///
    /// # Errors
    /// Work failed otherwise than by the end of the connection, or the engine failed.
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
        self.completions.arm();
    }

    /// Reaps one completion; `None` also if it was of this module's own affairs.
    fn step(&mut self) -> anyhow::Result<Option<Event>> {
        if self.closed {
            return Ok(Some(Event::Closed));
        }
        let Some(completion) = self.completions.poll_one() else {
            return Ok(None);
        };
        match completion.status {
            Status::Success => {}
            Status::Flushed | Status::ConnectionLost => {
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

    /// Why the connection is over, as the end of a sentence.
    pub fn why_closed(&mut self) -> String {
        // The completions may be there a moment before the reason.
        let _ = self.queue_pair.wait_disconnected(Duration::from_millis(100));
        why_disconnected(&mut self.queue_pair)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }
}

/// Why a connection is over, as the end of a sentence.
pub fn why_disconnected(queue_pair: &mut QueuePair) -> String {
    let terminate = |code: TerminateCode| format!("layer {}, type {}, code {}", code.layer, code.error_type, code.code);
    match queue_pair.disconnect_reason() {
        None => "the reason is not known".to_owned(),
        Some(DisconnectReason::Local) => "it was closed here".to_owned(),
        Some(DisconnectReason::PeerClosed) => "the other side closed it".to_owned(),
        Some(DisconnectReason::PeerClosedEarly) => "the other side closed it in the middle of a message".to_owned(),
        Some(DisconnectReason::PeerTerminated(code)) => {
            format!("the other side found a fault ({})", terminate(code))
        }
        Some(DisconnectReason::LocalTerminated(code)) => {
            format!("a fault of the other side was found ({})", terminate(code))
        }
        Some(DisconnectReason::Reset) => "the other side reset it".to_owned(),
        Some(DisconnectReason::TimedOut) => "the other side does not answer any more".to_owned(),
        Some(DisconnectReason::Aborted) => "it was broken off here".to_owned(),
        Some(DisconnectReason::LocalError(status)) => format!("work failed here ({status:?})"),
        Some(other) => format!("{other:?}"),
    }
}

/// Connects a fresh queue pair, again and again while nobody answers: the server may be starting.
///
/// # Errors
/// The time is over, or the peer rejects the connection (its private data is taken to be the reason, in words).
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
        let error = match context.connect(queue_pair(&mut made), peer, options.clone()) {
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
            _ => return Err(error).context("there is no connection"),
        }
        // The engine must turn meanwhile; an inline one does so in calls only.
        let pause = Instant::now();
        while pause.elapsed() < PAUSE {
            if !context.poll() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Time for the last acknowledgment to get out of rings that disappear with this process.
const SETTLE: Duration = Duration::from_millis(50);
/// How long the other side may take to close too.
const PART: Duration = Duration::from_secs(3);

/// Closes a connection before the process ends: what was posted is carried out, both sides close, and the acknowledgment of
/// the other side's FIN gets away. A peer that never gets it would go on asking for as long as it lingers.
///
/// # Errors
/// The engine failed.
pub fn part(context: &Context, queue_pair: &mut QueuePair) -> anyhow::Result<()> {
    queue_pair.disconnect();
    if !queue_pair.wait_disconnected(PART)? {
        queue_pair.abort();
    }
    let start = Instant::now();
    while start.elapsed() < SETTLE {
        if !context.poll() {
            std::thread::yield_now();
        }
    }
    Ok(())
}
