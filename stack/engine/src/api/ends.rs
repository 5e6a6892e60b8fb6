//! Plain byte streams: the application's half, and what it shares with the engine.
//!
//! Each direction is a ring of octets. The engine copies received octets into one ring, whose free space is the window
//! that TCP offers. It takes octets to send from the other as TCP wants them. So a slow reader closes the window and a
//! slow network fills the writer's ring; neither costs the engine more than the octets themselves.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
use std::sync::{Arc, OnceLock};

use uwarp_ring::{ByteConsumer, ByteProducer, Doorbells, Notifier, byte_ring};

use crate::api::command::ConnectFailure;

/// Smallest ring of a stream, in octets.
pub const MIN_STREAM_BUFFER: usize = 4 << 10;
/// Largest ring of a stream, in octets.
pub const MAX_STREAM_BUFFER: usize = 1 << 30;

/// Options of a plain stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// Most octets that wait to be sent, rounded up to a power of two.
    pub send_buffer: usize,
    /// Most octets that wait to be read, which is the largest window offered. Rounded up to a power of two.
    pub receive_buffer: usize,
    /// Delay small segments while data is unacknowledged (Nagle, RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Congestion control; `None`: the engine's default.
    pub congestion: Option<uwarp_tcp::Congestion>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions { send_buffer: 256 << 10, receive_buffer: 256 << 10, nagle: false, congestion: None }
    }
}

impl StreamOptions {
    fn rings(&self) -> ((ByteProducer, ByteConsumer), (ByteProducer, ByteConsumer)) {
        let size = |octets: usize| octets.clamp(MIN_STREAM_BUFFER, MAX_STREAM_BUFFER);
        (byte_ring(size(self.receive_buffer)), byte_ring(size(self.send_buffer)))
    }

    /// TCP's settings for such a stream.
    pub(crate) fn configure(&self, config: &mut uwarp_tcp::Config) {
        let window = self.receive_buffer.clamp(MIN_STREAM_BUFFER, MAX_STREAM_BUFFER).next_power_of_two();
        config.receive_window = window as u32;
        config.nagle = self.nagle;
        // RFC 9293 §3.6: a side that has closed may receive for as long as it likes. A stream that its application has
        // dropped has the engine's own time limit.
        config.fin_wait_2 = None;
        if let Some(congestion) = self.congestion {
            config.congestion = congestion;
        }
    }
}

/// Why a stream ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
#[repr(u8)]
pub enum StreamFailure {
    /// Nobody listens on the port, or its backlog is full.
    #[error("the connection was refused")]
    Refused = 1,
    /// No answer within the time limit of the open, the user time-out, or the keep-alive probes.
    #[error("the peer does not answer")]
    TimedOut,
    /// The next hop's hardware address could not be resolved.
    #[error("no host answers at that address: check address, prefix length and gateway")]
    Unreachable,
    /// No local port is free.
    #[error("no local TCP port is free for that peer")]
    NoPort,
    /// The local port given is in use.
    #[error("the local TCP port is in use")]
    AddressInUse,
    /// A configured limit is reached.
    #[error("the configured limit of connections is reached: raise limits")]
    Limit,
    /// The address family or value is not supported.
    #[error("the address cannot be reached from this context")]
    Address,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// This side aborted it.
    #[error("the connection was aborted on this side")]
    Aborted,
    /// The context was closed.
    #[error("the context is closed")]
    ShuttingDown,
    /// The engine failed.
    #[error("the engine failed")]
    Fatal,
}

impl StreamFailure {
    const ALL: [StreamFailure; 11] = [
        StreamFailure::Refused,
        StreamFailure::TimedOut,
        StreamFailure::Unreachable,
        StreamFailure::NoPort,
        StreamFailure::AddressInUse,
        StreamFailure::Limit,
        StreamFailure::Address,
        StreamFailure::Reset,
        StreamFailure::Aborted,
        StreamFailure::ShuttingDown,
        StreamFailure::Fatal,
    ];
}

impl From<ConnectFailure> for StreamFailure {
    fn from(failure: ConnectFailure) -> StreamFailure {
        match failure {
            ConnectFailure::Refused => StreamFailure::Refused,
            ConnectFailure::TimedOut => StreamFailure::TimedOut,
            ConnectFailure::Unreachable => StreamFailure::Unreachable,
            ConnectFailure::NoPort => StreamFailure::NoPort,
            ConnectFailure::AddressInUse => StreamFailure::AddressInUse,
            ConnectFailure::Limit => StreamFailure::Limit,
            ConnectFailure::Address | ConnectFailure::LocalAddress => StreamFailure::Address,
            ConnectFailure::ShuttingDown => StreamFailure::ShuttingDown,
            ConnectFailure::Closed
            | ConnectFailure::Reset
            | ConnectFailure::Startup
            | ConnectFailure::ReadLimits
            | ConnectFailure::ReadyToReceive
            | ConnectFailure::QueuePair
            | ConnectFailure::RequestGone => StreamFailure::Reset,
        }
    }
}

/// Conditions to be woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Octets to read, the end of the stream, or a failure.
    pub const READABLE: Interest = Interest(1);
    /// Room to write, the outcome of an open, or a failure.
    pub const WRITABLE: Interest = Interest(2);
    /// Both.
    pub const BOTH: Interest = Interest(3);
    /// New or more urgent data of the peer (RFC 9293 §3.8.5, MUST-32), or a failure.
    pub const URGENT: Interest = Interest(4);

    pub(crate) const NONE: Interest = Interest(0);

    /// As bits, for a notifier.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The union of two.
    pub const fn and(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

const OPENING: u8 = 0;
const OPEN: u8 = 1;
const NO_BELL: u32 = u32::MAX;

/// What application and engine share besides the rings.
#[derive(Debug)]
pub struct StreamShared {
    state: AtomicU8,
    failure: AtomicU8,
    aborted: AtomicBool,
    bell: AtomicU32,
    handle: AtomicU64,
    /// End of urgent data as a position of the receive ring: ahead of the reader while urgent data is still to be read.
    urgent: AtomicUsize,
    endpoints: OnceLock<(SocketAddr, SocketAddr)>,
    notifier: OnceLock<Arc<Notifier>>,
}

impl StreamShared {
    fn new() -> StreamShared {
        StreamShared {
            state: AtomicU8::new(OPENING),
            failure: AtomicU8::new(0),
            aborted: AtomicBool::new(false),
            bell: AtomicU32::new(NO_BELL),
            handle: AtomicU64::new(u64::MAX),
            urgent: AtomicUsize::new(0),
            endpoints: OnceLock::new(),
            notifier: OnceLock::new(),
        }
    }

    /// The engine has created the connection.
    pub(crate) fn attach(&self, bell: u32, handle: u64, endpoints: (SocketAddr, SocketAddr)) {
        let _ = self.endpoints.set(endpoints);
        self.handle.store(handle, Release);
        self.bell.store(bell, Release);
    }

    /// The engine's handle of the connection, once it exists.
    pub(crate) fn handle(&self) -> Option<u64> {
        match self.handle.load(Acquire) {
            u64::MAX => None,
            handle => Some(handle),
        }
    }

    pub(crate) fn open(&self) {
        self.state.store(OPEN, Release);
    }

    /// Records a failure; the first one counts.
    pub(crate) fn fail(&self, failure: StreamFailure) {
        let _ = self.failure.compare_exchange(0, failure as u8, Release, Relaxed);
    }

    /// Urgent data ends at this position of the receive ring.
    pub(crate) fn set_urgent(&self, position: usize) {
        self.urgent.store(position, Release);
    }

    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Acquire)
    }

    /// Wakes a thread that waits for one of these conditions. Call it after publishing what it waits for.
    #[inline]
    pub(crate) fn fire(&self, interest: Interest) {
        // The application sets its notifier before it arms it, and then checks once more. Of that check and this one,
        // at least one sees what the other side stored before its fence.
        fence(SeqCst);
        if let Some(notifier) = self.notifier.get()
            && notifier.is_armed()
        {
            notifier.fire_if_armed_for(interest.0);
        }
    }
}

/// The application's half of a stream: its ends of two rings.
///
/// Reads and writes go to the rings, and ring the engine's doorbell when it has work to do. Dropping it ends the
/// stream: what was written is still sent, and a reset follows if the peer sent octets that were not read.
#[derive(Debug)]
pub struct StreamEnds {
    receive: ByteConsumer,
    send: ByteProducer,
    shared: Arc<StreamShared>,
    doorbells: Arc<Doorbells>,
    /// Wakes the engine's thread.
    waker: Option<Arc<Notifier>>,
    /// Octets read that the engine has not been notified of.
    unreported: usize,
    /// Nothing more will be written.
    finished: bool,
}

/// The engine's half of a stream.
#[derive(Debug)]
pub struct StreamSetup {
    pub(crate) receive: ByteProducer,
    pub(crate) send: ByteConsumer,
    pub(crate) shared: Arc<StreamShared>,
}

/// Makes the rings of a stream: the application's half and the engine's.
pub fn stream(options: &StreamOptions, doorbells: Arc<Doorbells>) -> (StreamEnds, StreamSetup) {
    let ((receive_in, receive_out), (send_in, send_out)) = options.rings();
    let shared = Arc::new(StreamShared::new());
    let setup = StreamSetup { receive: receive_in, send: send_out, shared: Arc::clone(&shared) };
    let ends = StreamEnds {
        receive: receive_out,
        send: send_in,
        shared,
        doorbells,
        waker: None,
        unreported: 0,
        finished: false,
    };
    (ends, setup)
}

impl StreamEnds {
    /// Sets the notifier that is fired when a condition that it is armed for occurs. Only the first call counts.
    pub fn set_notifier(&self, notifier: Arc<Notifier>) {
        let _ = self.shared.notifier.set(notifier);
    }

    /// Sets the notifier that wakes the engine's thread when there is work for it.
    pub fn set_waker(&mut self, waker: Arc<Notifier>) {
        self.waker = Some(waker);
    }

    /// Whether the connection was ever open.
    pub fn is_open(&self) -> bool {
        self.shared.state.load(Acquire) == OPEN
    }

    /// Why the stream ended, if not in order.
    pub fn failure(&self) -> Option<StreamFailure> {
        match self.shared.failure.load(Acquire) {
            // The engine was gone before the stream began.
            0 if !self.is_open() && self.receive.is_closed() => Some(StreamFailure::ShuttingDown),
            0 => None,
            code => StreamFailure::ALL.get(usize::from(code) - 1).copied(),
        }
    }

    /// Local and remote address, once the engine has started to connect.
    pub fn endpoints(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.shared.endpoints.get().copied()
    }

    /// The engine's handle of the connection, once it exists.
    pub fn handle(&self) -> Option<u64> {
        self.shared.handle()
    }

    /// Identifies the stream in commands that may precede its handle.
    pub fn shared(&self) -> &Arc<StreamShared> {
        &self.shared
    }

    /// Octets that can be read now.
    pub fn readable(&mut self) -> usize {
        self.receive.available()
    }

    /// Octets from the reader's position to the end of urgent data, received or not; `None` if no unread urgent data is
    /// known (RFC 9293 §3.8.5, MUST-33).
    pub fn urgent_remaining(&mut self) -> Option<NonZeroUsize> {
        // In this order: octets found after the end are all that there will be.
        let closed = self.receive.is_closed();
        let ahead = self.shared.urgent.load(Acquire).wrapping_sub(self.receive.position());
        // No peer can announce urgent data so far ahead, so the reader is past its end.
        let ahead = if ahead > isize::MAX as usize { 0 } else { ahead };
        NonZeroUsize::new(if closed { ahead.min(self.receive.available()) } else { ahead })
    }

    /// Octets that can be written now; 0 after [`finish`](Self::finish).
    pub fn writable(&mut self) -> usize {
        if self.finished { 0 } else { self.send.free() }
    }

    /// Reads received octets, as many as are there and fit `out`.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let count = self.receive.read(out);
        self.unreported += count;
        // The engine sees the free space itself when it receives. It needs a notification only when the peer might be
        // waiting for the window. A quarter of the ring at a time is enough: then the engine knows an emptied ring to
        // be at least three quarters free.
        if self.unreported >= self.receive.capacity() / 4 {
            self.unreported = 0;
            self.ring();
        }
        count
    }

    /// Whether the peer has closed and everything that it sent was read.
    pub fn is_at_end(&mut self) -> bool {
        self.receive.is_closed() && self.receive.available() == 0
    }

    /// Writes octets to be sent; returns how many fitted.
    #[inline]
    pub fn write(&mut self, octets: &[u8]) -> usize {
        if self.finished {
            return 0;
        }
        let count = self.send.write(octets);
        if count > 0 {
            self.ring();
        }
        count
    }

    /// Ends writing: FIN follows what was written. Reading continues (RFC 9293 §3.6).
    pub fn finish(&mut self) {
        if !self.finished {
            self.finished = true;
            self.send.close();
            self.ring();
        }
    }

    /// Whether [`finish`](Self::finish) was called.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Ends reading as well.
    pub fn leave(&mut self) {
        self.finished = true;
        self.send.close();
        self.receive.close();
        self.ring();
    }

    /// Aborts the connection: unsent octets are lost, and the peer gets a reset.
    pub fn abort(&mut self) {
        self.shared.aborted.store(true, Release);
        self.ring();
    }

    #[inline]
    fn ring(&self) {
        let bell = self.shared.bell.load(Acquire);
        if bell != NO_BELL {
            self.doorbells.ring(bell as usize);
            if let Some(waker) = &self.waker {
                waker.fire_if_armed();
            }
        }
    }
}

impl Drop for StreamEnds {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A stream that a peer opened to a listener.
///
/// Dropping it instead of taking it resets the connection.
#[derive(Debug)]
pub struct IncomingStream {
    ends: Option<StreamEnds>,
    /// Index of the engine that has the connection.
    pub engine: u16,
    /// Remote address.
    pub peer: SocketAddr,
    /// Local address.
    pub local: SocketAddr,
    waiting: Arc<AtomicU32>,
}

impl IncomingStream {
    pub(crate) fn new(
        ends: StreamEnds,
        engine: u16,
        (local, peer): (SocketAddr, SocketAddr),
        waiting: Arc<AtomicU32>,
    ) -> IncomingStream {
        waiting.fetch_add(1, Relaxed);
        IncomingStream { ends: Some(ends), engine, peer, local, waiting }
    }

    /// Accepts the stream.
    pub fn take(mut self) -> Option<StreamEnds> {
        self.ends.take()
    }
}

impl Drop for IncomingStream {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Relaxed);
        if let Some(mut ends) = self.ends.take() {
            ends.abort();
        }
    }
}
