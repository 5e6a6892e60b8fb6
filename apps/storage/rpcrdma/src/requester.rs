//! The side that calls (RFC 8166 §3, §4).

mod attempts;
mod call;
mod calls;
mod pending;
mod registration;

use crate::binding::Binding;
use crate::credits::Credits;
use crate::endpoint::{EVENTS_MAX, Endpoint, Event, Failure, Sizes};
use crate::header::{Body, DiscardReason, RdmaError, parse_reply};
use crate::plan::Limits;
use crate::private_data::{DEFAULT_INLINE_THRESHOLD, PrivateData};
use attempts::Attempts;
pub use call::{Call, CallError, CallId, Finished, Refused, Reply};
use calls::Calls;
use pending::{Pending, Verdict};
pub use registration::Registration;
use registration::{FastRegions, PIECES};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{ConnectOptions, Connecting, Context, Error, Established};

/// How a requester connects and sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequesterOptions {
    /// The most calls under way; the responder may grant fewer. As many receives are posted.
    pub credits: u32,
    /// Longest message to send, in octets, 1 KiB to 256 KiB; the responder may accept less.
    pub send_size: u32,
    /// Longest message to receive, in octets, 1 KiB to 256 KiB.
    pub receive_size: u32,
    /// Let the responder invalidate an STag with its reply.
    pub remote_invalidation: bool,
    /// Most octets of a chunk's segment; a longer chunk has several.
    pub segment: u32,
    /// RDMA Reads of the responder that are served concurrently.
    pub reads: u16,
    /// How the memory of calls is registered.
    pub registration: Registration,
    /// Limit on each attempt to connect.
    pub connect_timeout: Duration,
    /// How long to try to reconnect a lost connection before the calls fail. A connection that ends within a second and
    /// without a reply does not count as one. Zero: do not reconnect.
    pub reconnect: Duration,
}

impl Default for RequesterOptions {
    fn default() -> Self {
        Self {
            credits: 32,
            send_size: 4096,
            receive_size: 4096,
            remote_invalidation: true,
            segment: 1 << 30,
            reads: 16,
            registration: Registration::default(),
            connect_timeout: Duration::from_secs(10),
            reconnect: Duration::from_secs(30),
        }
    }
}

impl RequesterOptions {
    fn private_data(&self) -> PrivateData {
        PrivateData {
            remote_invalidation: self.remote_invalidation,
            send_size: self.send_size,
            receive_size: self.receive_size,
        }
    }

    fn sizes(&self) -> Sizes {
        let credits = self.credits.max(1) as usize;
        let octets = |size: u32| size.max(DEFAULT_INLINE_THRESHOLD) as usize;
        Sizes {
            receives: credits,
            receive: octets(self.receive_size),
            // With few credits, have a few more buffers than calls, so that not every message has to be signalled.
            sends: credits.max(SENDS),
            send: octets(self.send_size),
            pieces: match self.registration {
                Registration::Each => 0,
                Registration::Together => PIECES,
            },
        }
    }
}

/// Counters of a requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterStats {
    /// Calls sent, including those sent again.
    pub sent: u64,
    /// Calls that ended with a reply of any kind.
    pub replies: u64,
    /// RDMA_ERRORs received.
    pub errors: u64,
    /// Messages dropped.
    pub discarded: u64,
    /// Why the last one was.
    pub last_discard: Option<DiscardReason>,
    /// Replies that invalidated an STag; with [`Registration::Together`] also those to cancelled calls.
    pub invalidated: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Calls sent again after a lost connection.
    pub resent: u64,
    /// Replies that granted no credit, which RFC 8166 §3.3.1 forbids; they count as a grant of one.
    pub zero_grants: u64,
    /// Connections that were ended because abandoned calls held all credits, and as many invalid replies had arrived as
    /// there were such calls.
    pub exhausted: u64,
}

/// The connection.
#[derive(Debug)]
enum Link {
    Up(Box<Endpoint>),
    Connecting(Box<Endpoint>, Connecting),
    /// Between two attempts.
    Down {
        again: Instant,
    },
    /// For good.
    Closed,
}

/// The fewest buffers for calls: one message in a quarter of them, plus one, is signalled.
const SENDS: usize = 32;
/// Polls for the end of a call before the clock is read, which takes as long.
const LOOKS: u32 = 256;

/// A requester with one connection, which it restores when it is lost.
///
/// One thread owns it. [`start`](Self::start) starts calls, and [`poll`](Self::poll) returns finished ones in any
/// order; [`call`](Self::call) does both. These methods turn an inline engine.
pub struct Requester {
    context: Context,
    peer: SocketAddr,
    options: RequesterOptions,
    bindings: Vec<Arc<dyn Binding>>,
    link: Link,
    fast_regions: FastRegions,
    credits: Credits,
    calls: Calls,
    /// How many calls the application waits for.
    outstanding: usize,
    /// XIDs of calls that wait for a credit, oldest first.
    waiting: VecDeque<u32>,
    finished: VecDeque<Finished>,
    /// A received message, and one to send.
    received: Vec<u8>,
    message: Vec<u8>,
    attempts: Attempts,
    stats: RequesterStats,
}

impl std::fmt::Debug for Requester {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let link = match self.link {
            Link::Up(_) => "up",
            Link::Connecting(..) => "connecting",
            Link::Down { .. } => "down",
            Link::Closed => "closed",
        };
        let mut out = formatter.debug_struct("Requester");
        out.field("peer", &self.peer).field("link", &link).field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}

impl Requester {
    /// Connects, and waits until the connection is established. `bindings` are those of the programs to be called.
    ///
    /// # Errors
    /// Those of [`Context::connect`].
    pub fn connect(
        context: &Context,
        peer: SocketAddr,
        bindings: Vec<Arc<dyn Binding>>,
        options: RequesterOptions,
    ) -> Result<Self, Error> {
        let (mut endpoint, connecting) = begin(context, peer, &options)?;
        let established = connecting.wait(&mut endpoint.queue_pair.control)?;
        let mut requester = Self::assemble(context, peer, bindings, options);
        requester.up(Box::new(endpoint), &established);
        Ok(requester)
    }

    /// Starts to connect without waiting. Calls can be started at once, and are sent when the connection is
    /// established. Attempts continue for [`RequesterOptions::reconnect`].
    ///
    /// # Errors
    /// The context has no room for another queue pair or its memory.
    pub fn start_connect(
        context: &Context,
        peer: SocketAddr,
        bindings: Vec<Arc<dyn Binding>>,
        options: RequesterOptions,
    ) -> Result<Self, Error> {
        let (endpoint, connecting) = begin(context, peer, &options)?;
        let mut requester = Self::assemble(context, peer, bindings, options);
        requester.link = Link::Connecting(Box::new(endpoint), connecting);
        Ok(requester)
    }

    fn assemble(
        context: &Context,
        peer: SocketAddr,
        bindings: Vec<Arc<dyn Binding>>,
        options: RequesterOptions,
    ) -> Self {
        Self {
            context: context.clone(),
            peer,
            credits: Credits::new(options.credits),
            options,
            bindings,
            link: Link::Closed,
            fast_regions: FastRegions::default(),
            calls: Calls::new(fastrand::u32(..)),
            outstanding: 0,
            waiting: VecDeque::new(),
            finished: VecDeque::new(),
            received: Vec::new(),
            message: Vec::new(),
            attempts: Attempts::new(),
            stats: RequesterStats::default(),
        }
    }

    /// A connection is established.
    fn up(&mut self, mut endpoint: Box<Endpoint>, established: &Established) {
        endpoint.agreement = self.options.private_data().agree(PrivateData::parse(&established.private_data));
        self.link = Link::Up(endpoint);
        self.credits = Credits::new(self.options.credits);
        self.attempts.succeeded();
        self.stats.connections += 1;
        self.send_waiting();
    }

    /// Its counters.
    pub fn stats(&self) -> RequesterStats {
        self.stats
    }

    /// Calls that have not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The calls that may be under way now, as granted by the responder.
    pub fn credits(&self) -> Credits {
        self.credits
    }

    /// The parameters of the connection, while there is one.
    pub fn agreement(&self) -> Option<crate::private_data::Agreement> {
        match &self.link {
            Link::Up(endpoint) => Some(endpoint.agreement),
            _ => None,
        }
    }

    /// Accepts a call, and sends it as soon as a credit is free.
    ///
    /// # Errors
    /// The call can never be sent (RFC 8166 §4.5.4); it is returned.
    pub fn start(&mut self, call: Call) -> Result<CallId, Box<Refused>> {
        let id = self.calls.next_id();
        let mut pending = self.calls.blank();
        pending.begin(id, call, &self.bindings)?;
        match &self.link {
            Link::Up(endpoint) => {
                if let Err(error) = pending.plan(&limits(&self.options, endpoint)) {
                    return Err(Box::new(Refused { error: error.into(), call: pending.call }));
                }
            }
            Link::Closed => return Err(Box::new(Refused { error: CallError::Lost, call: pending.call })),
            _ => {}
        }
        self.calls.insert(pending);
        self.outstanding += 1;
        self.waiting.push_back(id.xid);
        self.send_waiting();
        Ok(id)
    }

    /// Ends a call without waiting for its reply. The peer loses access to its memory at once (RFC 8166 §8.1.4), and
    /// the call is returned as [`Finished`]. If the responder is using its chunks, that breaks the connection, which is
    /// then restored for the other calls; [`abandon`](Self::abandon) avoids this. The same happens with
    /// [`Registration::Together`] if the registration was not executed yet. The call keeps its credit until its reply
    /// arrives. If invalid replies have arrived instead for it and for all others that hold a credit, the connection is
    /// restored for the waiting calls.
    pub fn cancel(&mut self, id: CallId) {
        let Some(pending) = self.dismiss(id) else { return };
        pending.release();
        if pending.is_sent() {
            // The reply will arrive, take a receive, and free the credit.
            let finished = pending.finish(Err(CallError::Cancelled));
            self.finished.push_back(finished);
        } else {
            self.waiting.retain(|waiting| *waiting != id.xid);
            if let Some(mut pending) = self.calls.remove(id.xid) {
                self.finished.push_back(pending.finish(Err(CallError::Cancelled)));
            }
        }
        self.send_waiting();
    }

    /// Forgets a call: its memory stays registered until the reply has arrived, and is freed then. It yields no
    /// [`Finished`].
    pub fn abandon(&mut self, id: CallId) {
        let Some(pending) = self.dismiss(id) else { return };
        if !pending.is_sent() {
            self.waiting.retain(|waiting| *waiting != id.xid);
            self.calls.remove(id.xid);
        }
        self.send_waiting();
    }

    /// The application no longer waits for a call. `None` if it did not before.
    fn dismiss(&mut self, id: CallId) -> Option<&mut Pending> {
        let pending = self.calls.get_mut(id.xid).filter(|pending| pending.id == id && pending.wanted)?;
        pending.wanted = false;
        self.outstanding -= 1;
        Some(pending)
    }

    /// A call has ended; reports it if the application waits for it.
    fn end(&mut self, mut pending: Box<Pending>, outcome: Result<Reply, CallError>) {
        if pending.wanted {
            self.outstanding -= 1;
            self.finished.push_back(pending.finish(outcome));
        }
        self.calls.reuse(pending);
    }

    /// The next call that has ended, without waiting.
    pub fn poll(&mut self) -> Option<Finished> {
        for _ in 0..EVENTS_MAX {
            if !self.finished.is_empty() || !self.drive() {
                break;
            }
        }
        self.finished.pop_front()
    }

    /// Waits for the next call that ends; `None` after a time-out. The time starts after a few hundred fruitless polls,
    /// so a short call does not pay for reading the clock.
    ///
    /// # Errors
    /// The context or its engine is gone.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Finished>, Error> {
        let mut deadline = None;
        loop {
            let looks = if timeout.is_zero() || !matches!(self.link, Link::Up(_)) { 1 } else { LOOKS };
            for _ in 0..looks {
                if let Some(finished) = self.poll() {
                    return Ok(Some(finished));
                }
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now().checked_add(timeout));
            if !self.wait(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Makes a call and waits for its end. A time-out cancels it. Other calls that end meanwhile are kept for
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// The context or its engine is gone.
    pub fn call(&mut self, call: Call, timeout: Duration) -> Result<Finished, Error> {
        let deadline = Instant::now().checked_add(timeout);
        let id = match self.start(call) {
            Ok(id) => id,
            Err(refused) => {
                let Refused { error, call } = *refused;
                let id = self.calls.refused_id();
                return Ok(Finished { id, outcome: Err(error), arguments: call.arguments, rooms: call.rooms });
            }
        };
        loop {
            for _ in 0..EVENTS_MAX {
                if self.finished.iter().any(|finished| finished.id == id) || !self.drive() {
                    break;
                }
            }
            if let Some(at) = self.finished.iter().position(|finished| finished.id == id)
                && let Some(finished) = self.finished.remove(at)
            {
                return Ok(finished);
            }
            if !self.wait(deadline)? {
                self.cancel(id);
            }
        }
    }

    /// Waits until there is something to do; false after a time-out.
    fn wait(&mut self, deadline: Option<Instant>) -> Result<bool, Error> {
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(false);
        }
        match &mut self.link {
            Link::Up(endpoint) => {
                endpoint.wait(left)?;
            }
            // Once closed, all calls have ended, and nothing will arrive.
            Link::Closed => return Ok(false),
            Link::Connecting(..) | Link::Down { .. } => {
                if !self.context.poll() {
                    std::thread::sleep(left.min(Duration::from_micros(200)));
                }
            }
        }
        Ok(true)
    }

    /// One step; false if there was nothing to do.
    fn drive(&mut self) -> bool {
        match &mut self.link {
            Link::Up(endpoint) => match endpoint.poll() {
                Ok(None) => false,
                Ok(Some(event)) => {
                    self.take(event);
                    true
                }
                Err(_) => {
                    self.lose();
                    true
                }
            },
            Link::Closed => false,
            Link::Down { again } => {
                if Instant::now() < *again {
                    return false;
                }
                match begin(&self.context, self.peer, &self.options) {
                    Ok((endpoint, connecting)) => self.link = Link::Connecting(Box::new(endpoint), connecting),
                    Err(_) => self.pause(),
                }
                true
            }
            Link::Connecting(endpoint, connecting) => match connecting.poll(&mut endpoint.queue_pair.control) {
                Ok(None) => false,
                Ok(Some(established)) => {
                    if let Link::Connecting(endpoint, _) = std::mem::replace(&mut self.link, Link::Closed) {
                        self.up(endpoint, &established);
                    }
                    true
                }
                Err(_) => {
                    self.pause();
                    true
                }
            },
        }
    }

    /// Another attempt later, or none.
    fn pause(&mut self) {
        match self.attempts.next(self.options.reconnect) {
            Some(again) => self.link = Link::Down { again },
            None => self.give_up(),
        }
    }

    fn give_up(&mut self) {
        self.link = Link::Closed;
        self.waiting.clear();
        for pending in self.calls.take_all() {
            self.end(pending, Err(CallError::Lost));
        }
    }

    /// The connection has ended: sent and unanswered calls are sent again on the next one (RFC 8166 §4.5.5), in the
    /// same order.
    fn lose(&mut self) {
        // The queue pair ends first, then its memory is deregistered.
        self.link = Link::Closed;
        self.fast_regions = FastRegions::default();
        let mut again: Vec<CallId> = Vec::new();
        self.calls.retain(|pending| {
            pending.release();
            // No reply to a cancelled call is needed.
            if pending.is_sent() && pending.wanted {
                again.push(pending.id);
            }
            pending.unsend();
            pending.wanted
        });
        again.sort_unstable_by_key(|&id| std::cmp::Reverse(id));
        for id in again {
            self.waiting.push_front(id.xid);
            self.stats.resent += 1;
        }
        let now = Instant::now();
        let was_of_use = self.attempts.lost(now);
        if self.options.reconnect.is_zero() {
            self.give_up();
        } else if was_of_use {
            self.link = Link::Down { again: now };
        } else {
            self.pause();
        }
    }

    /// Sends waiting calls as far as there are credits. If there are none and will be none, reconnects.
    fn send_waiting(&mut self) {
        while self.credits.available() > 0
            && let Link::Up(endpoint) = &mut self.link
            && endpoint.has_room()
            && let Some(xid) = self.waiting.pop_front()
        {
            let Some(pending) = self.calls.get_mut(xid) else { continue };
            let limits = limits(&self.options, endpoint);
            self.message.clear();
            let fast_regions = match self.options.registration {
                Registration::Each => None,
                Registration::Together => Some(&mut self.fast_regions),
            };
            let prepared = pending
                .prepare(endpoint, fast_regions, &limits, self.credits.requested(), &mut self.message)
                .and_then(|()| match endpoint.send(&self.message, None, None, 0, false) {
                    Ok(()) => Ok(()),
                    Err(Failure::Verbs(error)) => Err(CallError::Verbs(error)),
                    Err(Failure::Full | Failure::Message) => Err(CallError::Lost),
                });
            match prepared {
                Ok(()) => {
                    self.credits.sent();
                    self.stats.sent += 1;
                }
                Err(error) => {
                    // Revoke whatever was registered for it (RFC 8166 §4.5.4).
                    if let Some(mut pending) = self.calls.remove(xid) {
                        pending.release();
                        self.end(pending, Err(error));
                    }
                }
            }
        }
        if self.is_exhausted() && matches!(self.link, Link::Up(_)) {
            tracing::warn!(peer = %self.peer, "invalid replies have used up all credits: reconnecting");
            self.stats.exhausted += 1;
            self.lose();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Received { slot, length } => {
                let Link::Up(endpoint) = &mut self.link else { return };
                let copied = endpoint.message(slot, length, &mut self.received);
                // Before the credit is freed, so that there is a receive for every reply (§3.3.1).
                if copied.and_then(|()| endpoint.post_receive(slot)).is_err() {
                    return self.lose();
                }
                if let Err(reason) = self.reply() {
                    self.stats.discarded += 1;
                    self.stats.last_discard = Some(reason);
                    self.attempts.wrong += 1;
                }
                self.send_waiting();
            }
            // There may be room again.
            Event::Sent { .. } => self.send_waiting(),
            Event::Done { .. } => {}
            Event::Lost { .. } => self.lose(),
        }
    }

    /// Whether the connection has become useless. An invalid reply is dropped silently (RFC 8166 §4.5), so its call
    /// keeps its credit until another reply arrives, which may be never. No call can proceed when abandoned calls hold
    /// all credits and an invalid reply has arrived for each. Ending the connection then loses no reply that the
    /// application waits for, and the next one has credits.
    fn is_exhausted(&self) -> bool {
        self.attempts.wrong > 0
            && !self.waiting.is_empty()
            && self.outstanding == self.waiting.len()
            && self.credits.available() == 0
            && self.attempts.wrong >= u64::from(self.credits.in_flight())
    }

    /// Looks at a received message.
    fn reply(&mut self) -> Result<(), DiscardReason> {
        let (header, at) = parse_reply(&self.received)?;
        let pending = self.calls.get_mut(header.xid).filter(|pending| pending.is_sent());
        let pending = pending.ok_or(DiscardReason::Unexpected)?;
        let verdict = match &header.body {
            Body::Error { error, .. } => {
                self.stats.errors += 1;
                Verdict::Error(match *error {
                    RdmaError::Version { low, high } => CallError::Version { low, high },
                    RdmaError::Chunk => CallError::Chunk,
                })
            }
            Body::Message(chunks) => pending.verdict(chunks, Some(&self.received[at..]))?,
            Body::NoMessage(chunks) => pending.verdict(chunks, None)?,
        };
        if header.credits == 0 {
            if self.stats.zero_grants == 0 {
                tracing::warn!(peer = %self.peer, "the responder grants no credit; assuming a grant of one");
            }
            self.stats.zero_grants += 1;
        }
        self.credits.replied(header.credits);
        let Some(mut pending) = self.calls.remove(header.xid) else { return Ok(()) };
        self.stats.replies += 1;
        self.attempts.is_answered = true;
        self.stats.invalidated += u64::from(pending.was_invalidated());
        // Return or examine nothing that the peer can still change (§4.4.1, §8.1.3).
        pending.release();
        pending.give_back(&mut self.fast_regions);
        let outcome = if pending.wanted {
            pending.outcome(verdict, &self.received[at..], &self.bindings)
        } else {
            // Nobody reads it.
            Err(CallError::Cancelled)
        };
        self.end(pending, outcome);
        Ok(())
    }
}

/// What a message may take over a connection.
fn limits(options: &RequesterOptions, endpoint: &Endpoint) -> Limits {
    Limits {
        send: endpoint.agreement.send as usize,
        receive: endpoint.agreement.receive as usize,
        segment: options.segment.max(1),
    }
}

/// A new queue pair that connects.
fn begin(context: &Context, peer: SocketAddr, options: &RequesterOptions) -> Result<(Endpoint, Connecting), Error> {
    let sizes = options.sizes();
    let mut endpoint = Endpoint::new(context, sizes)?;
    for slot in 0..sizes.receives {
        endpoint.post_receive(slot)?;
    }
    let connect = ConnectOptions {
        ird: options.reads,
        // A requester reads nothing (RFC 8166 §3.1).
        ord: 0,
        timeout: options.connect_timeout,
        ..ConnectOptions::default().private_data(options.private_data().to_octets())
    };
    let connecting = context.start_connect(&mut endpoint.queue_pair.control, peer, connect)?;
    Ok((endpoint, connecting))
}
