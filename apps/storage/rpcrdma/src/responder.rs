//! The side that is called (RFC 8166 §3, §4).

mod call;
mod calls;
mod common;
mod ending;
mod incoming;
mod outgoing;
mod retries;
mod spare;

pub use call::{Request, Token};
pub use common::Common;
pub use ending::Over;

use crate::binding::Binding;
use crate::endpoint::{EVENTS_MAX, Endpoint, Event, Failure, Sizes};
use crate::header::{Body, CallFault, DiscardReason, Header, RdmaError, parse_call};
use crate::private_data::{DEFAULT_INLINE_THRESHOLD, PrivateData};
use crate::rpc::{OwnedAuth, Status};
use crate::walk::Part;
use call::Outgoing;
use calls::Calls;
use ending::{Ending, REASON};
use spare::Spare;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{AcceptOptions, ConnectRequest, Context, Error};

/// How a responder accepts and answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderOptions {
    /// Calls that a requester may have under way: the number of posted receives and granted credits. Fewer if the
    /// connection's part of the server's common limit is less.
    pub credits: u32,
    /// Longest message to send, in octets, 1 KiB to 256 KiB; the requester may accept less.
    pub send_size: u32,
    /// Longest message to receive, in octets, 1 KiB to 256 KiB.
    pub receive_size: u32,
    /// Invalidate an STag with a reply if the requester allows it.
    pub remote_invalidation: bool,
    /// The most octets of a call's Read chunks together; more is refused with ERR_CHUNK (RFC 8166 §8.1.4).
    pub longest_call: u64,
    /// Octets that the chunks of all calls under way on the connection may take, at least `longest_call`; less if the
    /// connection's part of the server's common limit is less. Further calls wait.
    pub memory: u64,
    /// RDMA Reads that may be outstanding.
    pub reads: u16,
    /// Limit on accepting.
    pub timeout: Duration,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            credits: 32,
            send_size: 4096,
            receive_size: 4096,
            remote_invalidation: true,
            longest_call: 65 << 20,
            memory: 130 << 20,
            reads: 16,
            timeout: Duration::from_secs(10),
        }
    }
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The server's verifier.
    pub verifier: OwnedAuth,
    /// How the call ended.
    pub status: Status,
    /// The results of a success; each eligible item is a part of its own.
    pub results: Vec<Part>,
}

impl Answer {
    /// A success.
    pub fn success(results: Vec<Part>) -> Self {
        Self { verifier: OwnedAuth::default(), status: Status::Success, results }
    }

    /// Anything else.
    pub fn failure(status: Status) -> Self {
        Self { verifier: OwnedAuth::default(), status, results: Vec::new() }
    }
}

/// Counters of a responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponderStats {
    /// Messages received.
    pub received: u64,
    /// Calls handed to the application.
    pub calls: u64,
    /// Replies sent.
    pub replies: u64,
    /// RDMA_ERRORs sent.
    pub errors: u64,
    /// Messages dropped.
    pub discarded: u64,
    /// Why the last one was.
    pub last_discard: Option<DiscardReason>,
    /// Octets read from the requester's chunks.
    pub read: u64,
    /// Octets written into the requester's chunks.
    pub written: u64,
    /// Replies in a Reply chunk.
    pub long_replies: u64,
    /// The most octets that chunks of calls have taken at any time.
    pub memory_peak: u64,
}

/// One connection of a server.
///
/// One thread owns it. [`poll`](Self::poll) returns calls, which [`answer`](Self::answer) answers in any order. Calls
/// of unknown programs or versions, or with unreadable arguments, are answered without the application.
pub struct Responder {
    endpoint: Endpoint,
    bindings: Arc<[Arc<dyn Binding>]>,
    options: ResponderOptions,
    peer: SocketAddr,
    common: Arc<Common>,
    /// The connection's part of the common limit, updated by each [`poll`](Self::poll).
    part: usize,
    calls: Calls,
    outgoing: VecDeque<Outgoing>,
    /// XIDs of the last replies with Writes, oldest first.
    written: VecDeque<u32>,
    /// Number of the next reply.
    serial: u64,
    spare: Spare,
    /// A received message, and one to send.
    received: Vec<u8>,
    message: Vec<u8>,
    ending: Ending,
    stats: ResponderStats,
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Responder")
            .field("peer", &self.peer)
            .field("over", &self.ending.over)
            .finish_non_exhaustive()
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.common.leave();
    }
}

impl Responder {
    /// Accepts a connection for these programs. `common` is shared by the server's connections.
    ///
    /// # Errors
    /// Those of [`ConnectRequest::accept`].
    pub fn accept(
        context: &Context,
        request: ConnectRequest,
        bindings: Arc<[Arc<dyn Binding>]>,
        options: ResponderOptions,
        common: Arc<Common>,
    ) -> Result<Self, Error> {
        let credits = options.credits.max(1) as usize;
        let octets = |size: u32| size.max(DEFAULT_INLINE_THRESHOLD) as usize;
        let sizes = Sizes {
            receives: credits,
            receive: octets(options.receive_size),
            sends: credits,
            send: octets(options.send_size),
            pieces: 0,
        };
        let mut endpoint = Endpoint::new(context, sizes)?;
        for slot in 0..credits {
            endpoint.post_receive(slot)?;
        }
        let own = PrivateData {
            remote_invalidation: options.remote_invalidation,
            send_size: options.send_size,
            receive_size: options.receive_size,
        };
        endpoint.agreement = own.agree(PrivateData::parse(request.private_data()));
        let peer = request.peer();
        let accept = AcceptOptions {
            // The responder's memory is never read (RFC 8166 §3.1). It offers one Read even so: 0 would refuse a
            // peer that insists on some.
            ird: 1,
            ord: options.reads,
            ..AcceptOptions::default().private_data(own.to_octets()).timeout(options.timeout)
        };
        request.accept(&mut endpoint.queue_pair.control, accept)?;
        common.join();
        Ok(Self {
            endpoint,
            bindings,
            peer,
            common,
            part: 0,
            calls: Calls::new(credits),
            outgoing: VecDeque::new(),
            written: VecDeque::new(),
            serial: 0,
            spare: Spare::new(),
            received: Vec::new(),
            message: Vec::new(),
            ending: Ending::default(),
            stats: ResponderStats::default(),
            options,
        })
    }

    /// The requester's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Its counters.
    pub fn stats(&self) -> ResponderStats {
        self.stats
    }

    /// Calls that the application has received and not answered.
    pub fn outstanding(&self) -> usize {
        self.calls.given()
    }

    /// The parameters of the connection.
    pub fn agreement(&self) -> crate::private_data::Agreement {
        self.endpoint.agreement
    }

    /// Memory of this length for a result, with arbitrary contents: reused memory, if there is some.
    pub fn buffer(&mut self, length: usize) -> Vec<u8> {
        self.spare.buffer(length)
    }

    /// Memory of an item of a reply that has been sent, with the item still in it: for servers that send the same data
    /// repeatedly. Unclaimed memory is reused for [`buffer`](Self::buffer).
    pub fn reclaim(&mut self) -> Option<Vec<u8>> {
        self.spare.reclaim()
    }

    /// Keeps the memory of arguments for the next call.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.spare.put(buffer);
    }

    /// The next call, without waiting. It turns an inline engine. It may return before everything received is
    /// processed: a requester whose calls are refused without the application must leave time to others.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn poll(&mut self) -> Result<Option<Request>, Over> {
        for _ in 0..EVENTS_MAX {
            if let Some(request) = self.give() {
                return Ok(Some(request));
            }
            if let Some(over) = self.ending.over {
                return Err(over);
            }
            match self.endpoint.poll() {
                Ok(None) if !self.conclude() => return Ok(None),
                Ok(None) => {}
                // Other work under way is flushed.
                Ok(Some(_)) if self.ending.lost.is_some() => {}
                Ok(Some(event)) => {
                    if self.take(event).is_err() {
                        self.close();
                    }
                    self.leave();
                }
                Err(_) => self.close(),
            }
        }
        // Nothing else may come before this call is answered.
        Ok(self.give())
    }

    /// A call that is complete, if the application may have another.
    fn give(&mut self) -> Option<Request> {
        if self.has_part() && !self.ending.stopped { self.calls.give() } else { None }
    }

    /// Waits for the next call; `None` after a time-out.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Request>, Over> {
        let mut deadline = None;
        loop {
            if let Some(request) = self.poll()? {
                return Ok(Some(request));
            }
            // Do not read the clock for a call that is already there.
            let deadline = *deadline.get_or_insert_with(|| Instant::now().checked_add(timeout));
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            let waited = match self.ending.lost {
                Some(_) => self.endpoint.queue_pair.control.wait_disconnected(left.min(REASON)).map(drop),
                None => self.endpoint.wait(left),
            };
            if waited.is_err() {
                self.ending.over = Some(Over { reason: None });
            }
        }
    }

    /// Whether another call may be passed to the application. The memory kept for reuse follows the part.
    fn has_part(&mut self) -> bool {
        let part = self.common.part();
        if part != self.part {
            self.part = part;
            self.spare.limit(part, usize::try_from(self.memory_limit()).unwrap_or(usize::MAX));
        }
        self.calls.given() + self.outgoing.len() < self.credits() as usize
    }

    /// Calls that the requester may have under way.
    fn credits(&self) -> u32 {
        u32::try_from(self.part).unwrap_or(u32::MAX).min(self.options.credits.max(1))
    }

    /// Octets that chunks may take, at least those of the longest call.
    fn memory_limit(&self) -> u64 {
        let part = self.options.longest_call.saturating_mul(self.part as u64);
        self.options.memory.min(part).max(self.options.longest_call)
    }

    /// Whether replies have been sent whose memory is still in use.
    pub fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Accepts no more calls, so that those accepted can be answered before the connection ends. The requester sends
    /// the others again over its next connection.
    pub fn stop_taking(&mut self) {
        self.ending.stopped = true;
    }

    /// Ends the connection after the answers given so far. Later ones are not possible: there are no more calls.
    ///
    /// Answers may wait for room in the send queue. Then a later [`poll`](Self::poll) or [`next`](Self::next) ends the
    /// connection.
    pub fn disconnect(&mut self) {
        self.stop_taking();
        self.ending.leaving = true;
        self.leave();
    }

    fn leave(&mut self) {
        if self.ending.leaving && self.endpoint.has_posted_all() {
            self.ending.leaving = false;
            self.endpoint.queue_pair.control.disconnect();
        }
    }

    /// Ends the connection behind the posted work, to signal that a reply is lost (RFC 8166 §4.5.4).
    fn close(&mut self) {
        self.endpoint.queue_pair.control.disconnect();
        self.end();
    }

    fn end(&mut self) {
        // If the connection has already ended, its reason is reported when it arrives.
        if !self.ending.has_ended() {
            self.ending.over = Some(Over { reason: self.endpoint.queue_pair.control.disconnect_reason() });
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            // Do not read from the requester for calls that will not be executed.
            Event::Received { .. } if self.ending.stopped => {
                self.stats.received += 1;
                Ok(())
            }
            Event::Received { slot, length } => {
                self.stats.received += 1;
                let mut message = std::mem::take(&mut self.received);
                let taken = self.endpoint.message(slot, length, &mut message);
                let looked_at = taken.map_err(Failure::from).and_then(|()| self.call(slot, &message));
                self.received = message;
                looked_at
            }
            Event::Done { tag } => self.pulled(tag),
            Event::Sent { tag } => {
                self.sent(tag);
                Ok(())
            }
            Event::Lost { status, tag } => {
                self.lose(status, tag);
                Ok(())
            }
        }
    }

    /// Looks at a received message.
    fn call(&mut self, slot: usize, message: &[u8]) -> Result<(), Failure> {
        match parse_call(message) {
            Ok((header, at)) => {
                if self.common.retries.breaks(self.peer.ip(), header.xid) {
                    // The call that ended the last connection would also end this one (§4.5.3).
                    return self.refuse(slot, header.xid, crate::header::VERSION, RdmaError::Chunk);
                }
                self.begin(slot, header, &message[at..])
            }
            Err(CallFault::Discard(reason)) => {
                self.stats.discarded += 1;
                self.stats.last_discard = Some(reason);
                Ok(self.endpoint.post_receive(slot)?)
            }
            Err(CallFault::Answer { xid, version, error }) => self.refuse(slot, xid, version, error),
        }
    }

    /// Answers with an RDMA_ERROR.
    fn refuse(&mut self, slot: usize, xid: u32, version: u32, error: RdmaError) -> Result<(), Failure> {
        self.calls.remove(slot);
        self.stats.errors += 1;
        let header = Header { xid, credits: self.credits(), body: Body::Error { version, error } };
        self.message.clear();
        header.encode(&mut self.message);
        let tag = self.next_serial();
        self.endpoint.send(&self.message, Some(slot), None, tag, false)?;
        self.resume()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

#[cfg(test)]
mod tests;
