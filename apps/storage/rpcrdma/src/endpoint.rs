//! The parts that both roles share: a queue pair with its message buffers, and work that waits for room in the send
//! queue.

mod reaper;

use crate::private_data::Agreement;
use crate::xdr::XdrError;
use reaper::Reaper;
use std::collections::VecDeque;
use std::time::Duration;
use uwarp::{
    Access, CompletionOpcode, Context, Error, FastRegion, MemoryRegion, PostErrorReason, ProtectionDomain, QueuePair,
    QueuePairOptions, QueuePairState, ReceiveRequest, RegionOptions, RegionScope, SendRequest, Sge, Status,
    Unregistered,
};

/// Elements of the send queue in addition to one per message.
const WORK_DEPTH: usize = 128;
/// The most local requests in front of a message: two fast regions, each invalidated and registered.
pub(crate) const LOCAL_REQUESTS: usize = 4;
/// Events that one look at an endpoint handles, so that a peer that sends without end does not take all of the time.
pub(crate) const EVENTS_MAX: usize = 128;
/// Octets between two buffers. If all buffers began at the same offset of a page, their first octets would share a few
/// cache lines.
const STAGGER: usize = 64;
/// The kind of work is in the bits of a work request identifier from this one on, its number below.
const KIND_SHIFT: u32 = 60;
const RECEIVE: u64 = 1;
const MESSAGE: u64 = 2;
const TRANSFER: u64 = 3;
/// The identifier of every local operation: none makes a completion unless it fails, which ends the connection.
pub(crate) const LOCAL: u64 = 4 << KIND_SHIFT;

/// Sizes of an endpoint's message buffers, and the local requests in front of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Receives, and their octets.
    pub(crate) receives: usize,
    pub(crate) receive: usize,
    /// Sends that may be under way, and the octets of each.
    pub(crate) sends: usize,
    pub(crate) send: usize,
    /// The most pieces of a [`FastRegion`] that is registered in front of a message; 0 if none is.
    pub(crate) pieces: usize,
}

/// An event of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message of `length` octets is in this receive.
    Received { slot: usize, length: usize },
    /// All messages up to the one with this tag were sent.
    Sent { tag: u64 },
    /// A Read was carried out.
    Done { tag: u64 },
    /// The connection has ended. `tag` is the Read or Write that ended it, if it was one.
    Lost { status: Status, tag: Option<u64> },
}

/// A Read or a Write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Read,
    Write,
}

/// Work that waits for room.
#[derive(Debug)]
enum Work {
    Message { octets: Vec<u8>, receive: Option<usize>, invalidate: Option<u32>, tag: u64, told: bool },
    Transfer { kind: Transfer, entry: Sge, handle: u32, offset: u64, tag: u64 },
}

/// The endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    // The order in which they are dropped: memory is freed when no queue pair uses it.
    pub(crate) queue_pair: QueuePair,
    reaper: Reaper,
    receives: MemoryRegion,
    sends: MemoryRegion,
    domain: ProtectionDomain,
    sizes: Sizes,
    /// Buffers of messages that are posted and not known to be sent, with their tags, in order.
    posted: VecDeque<(usize, u64)>,
    /// How many of the last ones are unsignalled.
    unsignalled: usize,
    /// Writes that were posted.
    writes: usize,
    /// Posted work that makes a completion, not processed yet. The completion queue has the room that [`Self::new`]
    /// computes, which is less than twice a full send queue.
    signalled: usize,
    free: Vec<usize>,
    waiting: VecDeque<Work>,
    pub(crate) agreement: Agreement,
}

impl Endpoint {
    /// A queue pair in its own protection domain, unconnected and without posted receives.
    pub(crate) fn new(context: &Context, sizes: Sizes) -> Result<Self, Error> {
        let domain = context.allocate_domain();
        let requests = if sizes.pieces > 0 { 1 + LOCAL_REQUESTS } else { 1 };
        let depth = requests * sizes.sends + WORK_DEPTH;
        let completions = context.create_completion_queue(depth + sizes.receives)?;
        let options =
            QueuePairOptions { max_sge: sizes.pieces.max(1), max_inline: 0, ..QueuePairOptions::new(&completions) };
        let queue_pair = domain.create_queue_pair(&options.depth(depth, sizes.receives))?;
        let memory = |count: usize, size: usize| vec![0; count * (size + STAGGER)];
        let receives = domain.register(memory(sizes.receives, sizes.receive), Access::LOCAL_WRITE)?;
        let sends = domain.register(memory(sizes.sends, sizes.send), Access::LOCAL_READ)?;
        let agreement = Agreement { send: 0, receive: 0, remote_invalidation: false };
        Ok(Self {
            queue_pair,
            reaper: Reaper::new(completions),
            receives,
            sends,
            domain,
            sizes,
            posted: VecDeque::with_capacity(sizes.sends),
            unsignalled: 0,
            writes: 0,
            signalled: 0,
            free: (0..sizes.sends).rev().collect(),
            waiting: VecDeque::new(),
            agreement,
        })
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&mut self, slot: usize) -> Result<(), Error> {
        let start = slot * (self.sizes.receive + STAGGER);
        let entry = self.receives.sge(start..start + self.sizes.receive)?;
        self.queue_pair.receive.post(&[ReceiveRequest::new(RECEIVE << KIND_SHIFT | slot as u64, &[entry])])?;
        Ok(())
    }

    /// Copies a message out of its receive. Even an untrusted peer can no longer change it there, but the buffer is
    /// needed for the next message.
    pub(crate) fn message(&self, slot: usize, length: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        out.resize(length.min(self.sizes.receive), 0);
        self.receives.read(slot * (self.sizes.receive + STAGGER), out)
    }

    /// Registers memory for this connection alone (RFC 8166 §8.1.1).
    ///
    /// # Errors
    /// Those of [`ProtectionDomain::register`]; the memory is returned with them.
    pub(crate) fn register(&self, octets: Vec<u8>, access: Access) -> Result<MemoryRegion, Kept> {
        let options = RegionOptions::new(access).scope(RegionScope::QueuePair(&self.queue_pair.control));
        self.domain.register(octets, options).map_err(|Unregistered { buffer, error }| Kept {
            // It was made of one.
            octets: buffer.into_vec().unwrap_or_default(),
            error,
        })
    }

    /// A region that is registered by work requests, with the number of pieces from the sizes.
    pub(crate) fn allocate_fast_region(&self) -> Result<FastRegion, Error> {
        self.domain.allocate_fast_region(self.sizes.pieces)
    }

    /// Whether a message, and the local operations in front of it, would be posted at once. The send queue has room for
    /// those of every message that may be under way.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.is_empty() && !self.free.is_empty()
    }

    /// Posts at most [`LOCAL_REQUESTS`] local operations in front of a message that there is room for.
    pub(crate) fn post_local(&mut self, requests: &[SendRequest<'_>]) -> Result<(), Error> {
        self.queue_pair.send.post(requests)?;
        Ok(())
    }

    /// Sends a message when its turn comes. With an STag, it invalidates that STag of the peer (RFC 5040 §4.3). With
    /// `told`, an event returns `tag` when the message's buffer is free again, by which time all earlier transfers are
    /// complete, too. Without it, the event of a later message may cover this one.
    ///
    /// The receive, if given, is posted just before the message, for the peer's answer to it (RFC 8166 §3.3.1). If it
    /// were posted earlier, a peer that accepts nothing could make ever more messages wait for it.
    ///
    /// # Errors
    /// The message is longer than agreed, or the queue pair refuses it.
    pub(crate) fn send(
        &mut self,
        octets: &[u8],
        mut receive: Option<usize>,
        invalidate: Option<u32>,
        tag: u64,
        told: bool,
    ) -> Result<(), Failure> {
        if octets.len() > self.agreement.send as usize {
            return Err(Failure::Message);
        }
        if self.waiting.is_empty() {
            match self.post_message(octets, &mut receive, invalidate, tag, told) {
                Err(Failure::Full) => {}
                other => return other,
            }
        }
        self.waiting.push_back(Work::Message { octets: octets.to_vec(), receive, invalidate, tag, told });
        self.post_waiting()
    }

    /// Reads or writes the peer's memory when its turn comes.
    pub(crate) fn transfer(
        &mut self,
        kind: Transfer,
        entry: Sge,
        handle: u32,
        offset: u64,
        tag: u64,
    ) -> Result<(), Failure> {
        self.waiting.push_back(Work::Transfer { kind, entry, handle, offset, tag });
        self.post_waiting()
    }

    fn post_message(
        &mut self,
        octets: &[u8],
        receive: &mut Option<usize>,
        invalidate: Option<u32>,
        tag: u64,
        told: bool,
    ) -> Result<(), Failure> {
        let Some(&slot) = self.free.last() else { return Err(Failure::Full) };
        // The send queue may still be full. Then the message is posted later, without the receive.
        if let Some(slot) = receive.take() {
            self.post_receive(slot)?;
        }
        let start = slot * (self.sizes.send + STAGGER);
        self.sends.write(start, octets)?;
        let entry = [self.sends.sge(start..start + octets.len())?];
        let mut request = SendRequest::send(MESSAGE << KIND_SHIFT | slot as u64, &entry);
        // Signal occasionally in any case, so that buffers are returned.
        let signalled = told || self.unsignalled >= self.sizes.sends / 4;
        if signalled {
            request = request.signalled();
        }
        if let Some(stag) = invalidate {
            request = request.invalidate(stag);
        }
        self.post(request, signalled)?;
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        self.free.pop();
        self.posted.push_back((slot, tag));
        Ok(())
    }

    /// A message and those before it were sent. Returns its tag.
    fn sent(&mut self, slot: usize) -> u64 {
        while let Some((free, tag)) = self.posted.pop_front() {
            self.free.push(free);
            if free == slot {
                return tag;
            }
        }
        0
    }

    fn post(&mut self, request: SendRequest<'_>, signalled: bool) -> Result<(), Failure> {
        if signalled && self.signalled == self.sizes.sends + WORK_DEPTH {
            return Err(Failure::Full);
        }
        match self.queue_pair.send.post(&[request]) {
            Ok(_) => {
                self.signalled += usize::from(signalled);
                Ok(())
            }
            Err(error) if error.reason == PostErrorReason::Full => Err(Failure::Full),
            Err(error) => Err(Failure::Verbs(error.into())),
        }
    }

    /// Posts waiting work in order, as far as there is room.
    fn post_waiting(&mut self) -> Result<(), Failure> {
        while let Some(mut work) = self.waiting.pop_front() {
            let posted = match &mut work {
                Work::Message { octets, receive, invalidate, tag, told } => {
                    self.post_message(octets, receive, *invalidate, *tag, *told)
                }
                Work::Transfer { kind, entry, handle, offset, tag } => {
                    let (id, entries) = (TRANSFER << KIND_SHIFT | *tag, [*entry]);
                    let (request, signalled) = match kind {
                        Transfer::Read => (SendRequest::read(id, &entries, *handle, *offset), true),
                        // The message behind the Writes reports their completion. But a send queue full of Writes must
                        // report when it has room again.
                        Transfer::Write => {
                            let signalled = (self.writes + 1).is_multiple_of(WORK_DEPTH / 2);
                            (SendRequest::write(id, &entries, *handle, *offset), signalled)
                        }
                    };
                    let posted = self.post(if signalled { request.signalled() } else { request }, signalled);
                    // Count it only if it was posted: otherwise the signal would be lost with a Write that found no
                    // room.
                    self.writes += usize::from(posted.is_ok() && matches!(kind, Transfer::Write));
                    posted
                }
            };
            match posted {
                Ok(()) => {}
                Err(Failure::Full) => {
                    self.waiting.push_front(work);
                    return Ok(());
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// The next event, without waiting. An inline engine is turned unless something is left of its last turn.
    pub(crate) fn poll(&mut self) -> Result<Option<Event>, Failure> {
        let Some(completion) = self.reaper.next() else {
            let lost = self.reaper.has_polled_in_vain() && self.is_over();
            return Ok(lost.then_some(Event::Lost { status: Status::Flushed, tag: None }));
        };
        let low = completion.id & ((1 << KIND_SHIFT) - 1);
        let is_transfer = completion.id >> KIND_SHIFT == TRANSFER;
        if !completion.status.is_success() {
            return Ok(Some(Event::Lost { status: completion.status, tag: is_transfer.then_some(low) }));
        }
        let slot = low as usize;
        if completion.opcode == CompletionOpcode::Receive {
            return Ok(Some(Event::Received { slot, length: completion.length as usize }));
        }
        self.signalled -= 1;
        let event = if is_transfer { Event::Done { tag: low } } else { Event::Sent { tag: self.sent(slot) } };
        if !self.waiting.is_empty() {
            self.post_waiting()?;
        }
        Ok(Some(event))
    }

    /// Whether all requested work was posted.
    pub(crate) fn has_posted_all(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the connection has ended without work that could report it: a responder whose requester uses all its
    /// credits has neither receives nor replies posted.
    fn is_over(&mut self) -> bool {
        self.queue_pair.control.state() == QueuePairState::Disconnected
    }

    /// Waits until something happens, or until the time-out.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        self.reaper.wait(timeout)
    }
}

/// Memory that could not be registered, and why.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) octets: Vec<u8>,
    pub(crate) error: Error,
}

/// Why an endpoint cannot go on.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No room now.
    Full,
    /// A message is longer than was agreed.
    Message,
    /// The queue pair or its memory.
    Verbs(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Verbs(error)
    }
}

impl From<Kept> for Failure {
    fn from(kept: Kept) -> Self {
        Self::Verbs(kept.error)
    }
}

impl From<XdrError> for Failure {
    fn from(_: XdrError) -> Self {
        Self::Message
    }
}

#[cfg(test)]
mod tests {
    use super::reaper::BATCH;
    use super::*;
    use uwarp::{AcceptOptions, Config, ConnectOptions, ListenOptions};

    /// Two endpoints that are connected, with one message to be sent at a time, and their contexts.
    fn connected() -> ([Context; 2], Endpoint, Endpoint) {
        let config =
            |address| uwarp_middlebox::behind(Config::without_device(address).unwrap().without_monitor().inline());
        let (here, there) = Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap();
        let mut listener = there.listen(20_049, ListenOptions::default()).unwrap();
        let sizes = Sizes { receives: 2, receive: 1024, sends: 1, send: 1024, pieces: 0 };
        let [mut one, mut other] = [&here, &there].map(|context| Endpoint::new(context, sizes).unwrap());
        let peer = there.socket_address(20_049);
        let mut connecting = here.start_connect(&mut one.queue_pair.control, peer, ConnectOptions::default()).unwrap();
        let request = loop {
            assert!(connecting.poll(&mut one.queue_pair.control).unwrap().is_none());
            if let Some(request) = listener.try_next().unwrap() {
                break request;
            }
        };
        request.accept(&mut other.queue_pair.control, AcceptOptions::default()).unwrap();
        while connecting.poll(&mut one.queue_pair.control).unwrap().is_none() {
            other.poll().unwrap();
        }
        for endpoint in [&mut one, &mut other] {
            endpoint.agreement.send = 1024;
        }
        ([here, there], one, other)
    }

    /// As many messages may wait as an endpoint has receives. The next call finds no receive.
    #[test]
    fn a_receive_is_posted_with_the_message_that_it_is_behind() {
        let (_contexts, mut one, mut other) = connected();
        for slot in 0..2 {
            other.post_receive(slot).unwrap();
            one.send(&[7; 10], Some(slot), None, 1 + slot as u64, false).unwrap();
        }
        let waiting: Vec<_> = one.waiting.iter().collect();
        assert!(matches!(waiting[..], [Work::Message { receive: Some(1), .. }]), "{waiting:?}");
        // Both messages arrive, and the messages sent in return find both receives.
        let (mut arrived, mut found) = (0, 0);
        while found < 2 {
            if let Some(Event::Received { length, .. }) = other.poll().unwrap() {
                assert_eq!(length, 10);
                arrived += 1;
                other.send(&[8; 20], None, None, 9, true).unwrap();
            }
            if let Some(Event::Received { slot, length }) = one.poll().unwrap() {
                assert_eq!((slot, length), (found, 20));
                found += 1;
            }
        }
        assert_eq!(arrived, 2);
    }

    /// More Reads than the send queue holds, while nothing reaps their completions.
    #[test]
    fn completions_have_room_in_their_queue() {
        const READS: usize = 1000;
        let ([here, there], mut one, mut other) = connected();
        let source = other.register(vec![7; 8], Access::REMOTE_READ).unwrap();
        let sink = one.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
        one.post_receive(0).unwrap();
        for _ in 0..READS {
            let entry = sink.sge(0..8).unwrap();
            one.transfer(Transfer::Read, entry, source.stag(), source.remote_offset(), 5).unwrap();
        }
        let (mut done, mut received) = (0, 0);
        while (done, received) != (READS, 1) {
            for _ in 0..1000 {
                here.poll();
                there.poll();
            }
            if done == 0 {
                other.send(&[7; 10], None, None, 1, false).unwrap();
            }
            // A batch of completions, which makes room for as many more.
            for _ in 0..BATCH {
                match one.poll().unwrap() {
                    Some(Event::Done { tag: 5 }) => done += 1,
                    Some(Event::Received { slot: 0, length: 10 }) => received += 1,
                    other => assert_eq!(other, None),
                }
            }
            other.poll().unwrap();
        }
    }

    /// A Write that finds the queue full is retried. Only posted ones count towards the next signalled one.
    #[test]
    fn every_sixty_fourth_write_that_is_posted_is_signalled() {
        const WRITES: usize = 1000;
        let (_contexts, mut endpoint, mut other) = connected();
        let source = endpoint.register(vec![7; 8], Access::LOCAL_READ).unwrap();
        let sink = other.register(vec![0; 8], Access::REMOTE_WRITE).unwrap();
        let entry = source.sge(0..8).unwrap();
        let (stag, offset) = (sink.stag(), sink.remote_offset());
        for _ in 0..WRITES {
            endpoint.transfer(Transfer::Write, entry, stag, offset, 0).unwrap();
        }
        assert_eq!(endpoint.writes + endpoint.waiting.len(), WRITES);
        assert!(!endpoint.waiting.is_empty(), "there are more than the queue takes");
        let mut signals = 0;
        while signals < WRITES / (WORK_DEPTH / 2) {
            match endpoint.poll().unwrap() {
                Some(event) => {
                    assert_eq!(event, Event::Done { tag: 0 });
                    signals += 1;
                    assert_eq!(endpoint.writes + endpoint.waiting.len(), WRITES);
                }
                None => assert_eq!(other.poll().unwrap(), None),
            }
        }
        assert!(endpoint.waiting.is_empty());
    }
}
