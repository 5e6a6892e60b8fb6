//! A connection: its queue pair, its memory, and what the messages on it mean.

use crate::errno::{EIO, Errno};
use crate::rsocket::incoming::Incoming;
use crate::rsocket::maps::Maps;
use crate::rsocket::outgoing::{CONTROLS, Outgoing};
use crate::rsocket::protocol::{Introduction, MESSAGE_LEN, Map, Message, Target};
use crate::rsocket::settings::Sizes;
use crate::rsocket::signal::Signal;
use std::sync::Arc;
use uwarp::{
    Access, Completion, CompletionQueue, Context, DisconnectReason, MemoryRegion, PageAdvice, ProtectionDomain,
    QueuePair, QueuePairOptions, QueuePairState, ReceiveRequest, RegionBuffer, SendRequest, Sge,
};

/// Entries of the list of targets: the peer has the ring's halves by turns.
pub(crate) const TARGETS: usize = 2;
/// Receives beyond the credits, for messages that take none. A peer has few of them under way, and this side reads them
/// in every call.
const SPARE_RECEIVES: usize = 16;
/// The longest request without memory: an entry of the list of maps.
const INLINE: usize = Map::LEN;
/// Completions that are taken at once.
const BATCH: usize = 16;

/// What a completed request was: the upper half of its number. The lower half is its octets.
const OF_DATA: u64 = 0;
const OF_CONTROL: u64 = 1 << 32;
const OF_MAP: u64 = 2 << 32;
const OF_DIRECT: u64 = 3 << 32;
const KINDS: u64 = 3 << 32;

/// How far each direction has come to its end.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// The program reads no more.
    pub(crate) read: bool,
    /// The program writes no more.
    pub(crate) write: bool,
    /// The peer sends no more.
    pub(crate) peer: bool,
    /// Nothing goes either way any more.
    pub(crate) is_over: bool,
}

/// A connection, from the attempt to make it on.
pub(crate) struct Stream {
    pair: QueuePair,
    queues: Queues,
    /// The ring of what comes in, the lists that the peer writes to, and room for messages.
    inbound: MemoryRegion,
    /// The ring of what goes out.
    outbound: MemoryRegion,
    pub(crate) domain: ProtectionDomain,
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    pub(crate) maps: Maps,
    pub(crate) ends: Ends,
    sizes: Sizes,
    targets: Targets,
    /// The queue pair takes requests.
    is_established: bool,
}

/// The completion queues of a connection, and whether a completion of each rings.
struct Queues {
    sends: CompletionQueue,
    receives: CompletionQueue,
    has_armed_sends: bool,
    has_armed_receives: bool,
}

/// The lists of targets of both sides.
struct Targets {
    /// The entry of the own list that comes next.
    next: usize,
    /// The peer's list, and its next entry to fill.
    of_peer: Target,
    next_of_peer: u32,
}

impl Stream {
    /// A connection that is not made yet.
    ///
    /// # Errors
    /// What cannot be had of the context: memory, or one more object.
    pub(crate) fn new(context: &Context, sizes: Sizes, signal: &Arc<Signal>) -> Result<Stream, Errno> {
        let receives = usize::from(sizes.credits) + SPARE_RECEIVES;
        let requests = usize::from(sizes.requests) + 2 * CONTROLS;
        let sends = context.create_completion_queue_with(requests, Arc::clone(signal) as _)?;
        let received = context.create_completion_queue_with(receives, Arc::clone(signal) as _)?;
        let domain = context.allocate_domain();
        let options =
            QueuePairOptions::new(&sends).receive_cq(&received).depth(requests, receives).limits(TARGETS, INLINE);
        let pair = domain.create_queue_pair(&options)?;
        let register = |octets, access| {
            let memory = RegionBuffer::zeroed(octets, PageAdvice::Normal)?;
            domain.register(memory, access).map_err(|unregistered| Errno::from(unregistered.error))
        };
        let lists = TARGETS * Target::LEN + usize::from(sizes.maps) * Map::LEN;
        let inbound = sizes.receive_buffer + lists + receives * MESSAGE_LEN;
        let mut stream = Stream {
            inbound: register(inbound, Access::REMOTE_WRITE | Access::LOCAL_WRITE)?,
            outbound: register(sizes.send_buffer, Access::LOCAL_READ)?,
            incoming: Incoming::new(sizes.receive_buffer, sizes.credits),
            outgoing: Outgoing::new(sizes.send_buffer, sizes.requests.into()),
            maps: Maps::default(),
            ends: Ends::default(),
            targets: Targets { next: 0, of_peer: Target::default(), next_of_peer: 1 },
            is_established: false,
            queues: Queues { sends, receives: received, has_armed_sends: false, has_armed_receives: false },
            pair,
            domain,
            sizes,
        };
        for slot in 0..receives {
            stream.post_receive(slot)?;
        }
        Ok(stream)
    }

    /// The queue pair, to be connected.
    pub(crate) fn control(&mut self) -> &mut uwarp::QueuePairControl {
        &mut self.pair.control
    }

    /// Where the list of maps begins in the inbound memory; that of targets is before it.
    fn maps_at(&self) -> usize {
        self.sizes.receive_buffer + TARGETS * Target::LEN
    }

    fn slot_at(&self, slot: usize) -> usize {
        self.maps_at() + usize::from(self.sizes.maps) * Map::LEN + slot * MESSAGE_LEN
    }

    /// The private data that introduces this side to the peer.
    pub(crate) fn introduction(&self) -> Introduction {
        let place = |offset: usize, length: usize| Target {
            address: self.inbound.remote_offset() + offset as u64,
            key: self.inbound.stag(),
            length: length as u32,
        };
        Introduction {
            credits: self.sizes.credits,
            maps: self.sizes.maps,
            targets: place(self.sizes.receive_buffer, TARGETS),
            data: place(0, self.incoming.half()),
        }
    }

    /// What the peer has said of itself.
    pub(crate) fn meet(&mut self, peer: &Introduction) {
        self.targets.of_peer = peer.targets;
        self.outgoing.set_limit(peer.credits);
        self.outgoing.set_target(peer.data);
        // Its list of maps is behind that of targets.
        let maps = u64::from(peer.targets.length) * Target::LEN as u64;
        self.maps.meet(Target { address: peer.targets.address + maps, length: peer.maps.into(), ..peer.targets });
        self.targets.next = 1;
    }

    /// The connection is made.
    pub(crate) fn establish(&mut self) {
        self.is_established = true;
    }

    pub(crate) fn is_established(&self) -> bool {
        self.is_established
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), Errno> {
        let at = self.slot_at(slot);
        let entry = self.inbound.sge(at..at + MESSAGE_LEN)?;
        match self.pair.receive.post(&[ReceiveRequest::new(slot as u64, &[entry])]) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.reason.into()),
        }
    }

    /// Takes completions, and tells the peer what is due. Whether anything came.
    pub(crate) fn progress(&mut self, signal: &Signal) -> bool {
        if signal.take_ring() {
            (self.queues.has_armed_receives, self.queues.has_armed_sends) = (false, false);
        }
        let mut has_come = false;
        let mut batch = [Completion::default(); BATCH];
        loop {
            let count = self.queues.receives.poll(&mut batch);
            for completion in &batch[..count] {
                self.received(completion);
            }
            has_come |= count > 0;
            if count < BATCH {
                break;
            }
        }
        loop {
            let count = self.queues.sends.poll(&mut batch);
            for completion in &batch[..count] {
                self.sent(completion);
            }
            has_come |= count > 0;
            if count < BATCH {
                break;
            }
        }
        self.take_target();
        self.send_maps();
        self.report();
        has_come
    }

    fn received(&mut self, completion: &Completion) {
        if !completion.status.is_success() {
            // The reason follows, as the end of the connection.
            return;
        }
        let slot = completion.id as usize;
        let at = self.slot_at(slot);
        let mut word = [0; MESSAGE_LEN];
        let is_message = completion.length as usize == MESSAGE_LEN && self.inbound.read(at, &mut word).is_ok();
        let message = if is_message { Message::from_word(u32::from_ne_bytes(word)) } else { None };
        let taken = message.ok_or(EIO).and_then(|message| self.take(message));
        if taken.and_then(|()| self.post_receive(slot)).is_err() {
            tracing::warn!(word = ?word, length = completion.length, "a peer broke the protocol of rsockets");
            self.pair.control.abort();
        }
    }

    fn take(&mut self, message: Message) -> Result<(), Errno> {
        match message {
            Message::Data(octets) => self.incoming.arrived(octets)?,
            Message::Credits(limit) => self.outgoing.set_limit(limit),
            Message::Mapped(_) => self.incoming.message_without_data(),
            Message::KeepAlive => {}
            Message::Disconnect => {
                self.ends.peer = true;
                self.ends.is_over = true;
            }
            Message::Shutdown => {
                self.ends.peer = true;
                self.ends.is_over |= self.ends.write;
            }
        }
        Ok(())
    }

    fn sent(&mut self, completion: &Completion) {
        let octets = completion.id as u32 as usize;
        match completion.id & KINDS {
            OF_CONTROL => self.outgoing.control_completed(),
            OF_MAP => self.outgoing.completed(0, 2),
            OF_DIRECT => self.outgoing.completed(octets, 1),
            _ => self.outgoing.completed(octets, 2),
        }
    }

    /// Goes on to the next target if the last is used up and the peer has written another.
    fn take_target(&mut self) {
        let at = self.sizes.receive_buffer + self.targets.next * Target::LEN;
        let mut entry = [0; Target::LEN];
        // The peer's engine writes the last octets last, and those are the length.
        let is_new = |length: u32| length != 0;
        if self.outgoing.needs_target()
            && self.inbound.load_acquire_u32(at + Target::LEN - size_of::<u32>()).is_ok_and(is_new)
            && self.inbound.read(at, &mut entry).is_ok()
            // The peer writes it again only when it is used up.
            && self.inbound.write(at, &[0; Target::LEN]).is_ok()
        {
            self.outgoing.set_target(Target::from_memory(&entry));
            self.targets.next = (self.targets.next + 1) % TARGETS;
        }
    }

    /// Whether requests can be posted.
    fn is_open(&self) -> bool {
        self.is_established && !self.ends.is_over
    }

    /// Tells the peer of memory and credits that are free again.
    fn report(&mut self) {
        if !self.is_open() || !self.incoming.is_report_due() || !self.outgoing.has_control() {
            return;
        }
        let report = self.incoming.report();
        let message = Message::Credits(report.limit);
        let Some(half) = report.half else { return self.send_control(message, None) };
        let memory = Target {
            address: self.inbound.remote_offset() + half as u64,
            key: self.inbound.stag(),
            length: self.incoming.half() as u32,
        };
        let at = self.targets.of_peer.address + u64::from(self.targets.next_of_peer) * Target::LEN as u64;
        self.targets.next_of_peer = (self.targets.next_of_peer + 1) % self.targets.of_peer.length.max(1);
        self.send_control(message, Some((at, memory)));
    }

    /// Sends a message without data, behind a new entry of the peer's list of targets if there is one.
    fn send_control(&mut self, message: Message, entry: Option<(u64, Target)>) {
        self.outgoing.send_control();
        let octets = message.to_octets();
        let send = SendRequest::send_inline(OF_CONTROL, &octets).signalled();
        let posted = match entry {
            None => self.pair.send.post(&[send]),
            Some((at, target)) => {
                let entry = target.to_memory();
                self.pair.send.post(&[SendRequest::write_inline(0, &entry, self.targets.of_peer.key, at), send])
            }
        };
        note(posted.is_ok());
    }

    /// Tells the peer of the end of one direction or both. False: it cannot be told yet.
    pub(crate) fn announce(&mut self, end: Message) -> bool {
        let may = !self.is_open() || self.outgoing.has_control();
        if self.is_open() && may {
            self.send_control(end, None);
        }
        may
    }

    /// Writes entries of the peer's list of maps that it does not have yet. All are there if there is none left.
    fn send_maps(&mut self) {
        while self.is_open()
            && self.outgoing.has_credit()
            && let Some((index, map)) = self.maps.next_unsent()
        {
            let entry = map.to_memory();
            let message = Message::Mapped(index).to_octets();
            let list = self.maps.of_peer();
            let at = list.address + u64::from(index) * Map::LEN as u64;
            let write = SendRequest::write_inline(0, &entry, list.key, at);
            let posted = self.pair.send.post(&[write, SendRequest::send_inline(OF_MAP, &message).signalled()]);
            note(posted.is_ok());
            self.outgoing.send_map();
        }
    }

    /// Octets of data that can be sent at once.
    pub(crate) fn room(&self) -> usize {
        if self.is_open() && !self.maps.has_unsent() { self.outgoing.room() } else { 0 }
    }

    /// Octets that can be written at once into the peer's maps.
    pub(crate) fn direct_room(&self) -> usize {
        if self.is_open() && !self.maps.has_unsent() { self.outgoing.direct_room() } else { 0 }
    }

    /// Copies octets into the ring, behind `at` octets that are not sent yet either.
    fn stage(&mut self, at: usize, octets: &[u8]) {
        let mut done = 0;
        while done < octets.len() {
            let (place, count) = self.outgoing.place(at + done, octets.len() - done);
            // Within the ring.
            note(self.outbound.write(place, &octets[done..done + count]).is_ok());
            done += count;
        }
    }

    /// The entries of the ring that the next octets have.
    fn staged(&self, octets: usize) -> ([Sge; 2], usize) {
        let (start, first) = self.outgoing.place(0, octets);
        let entry = |range: std::ops::Range<usize>| self.outbound.sge(range).unwrap_or_default();
        let entries = [entry(start..start + first), entry(0..octets - first)];
        (entries, if first < octets { 2 } else { 1 })
    }

    /// Sends the pieces, which have as many octets as there is room for at most, as one message.
    pub(crate) fn send<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut octets = 0;
        for piece in pieces {
            self.stage(octets, piece);
            octets += piece.len();
        }
        let (entries, count) = self.staged(octets);
        let target = self.outgoing.send(octets);
        self.take_target();
        let message = Message::Data(octets as u32).to_octets();
        let write = SendRequest::write(0, &entries[..count], target.key, target.address);
        let send = SendRequest::send_inline(OF_DATA | octets as u64, &message).signalled();
        note(self.pair.send.post(&[write, send]).is_ok());
        octets
    }

    /// Writes octets, as many as there is direct room for at most, into memory of the peer's program.
    pub(crate) fn write_directly(&mut self, octets: &[u8], key: u32, address: u64) {
        self.stage(0, octets);
        let (entries, count) = self.staged(octets.len());
        self.outgoing.send_directly(octets.len());
        let write = SendRequest::write(OF_DIRECT | octets.len() as u64, &entries[..count], key, address).signalled();
        note(self.pair.send.post(&[write]).is_ok());
    }

    /// Octets were read.
    pub(crate) fn consume(&mut self, octets: usize) {
        self.incoming.consume(octets);
        self.report();
    }

    /// Lets what was posted leave now if the calling thread turns the engine.
    pub(crate) fn flush(&mut self) {
        self.pair.send.turn_after_post();
    }

    /// Copies what can be read, behind `skipped` octets of it. How many octets that were.
    pub(crate) fn peek(&mut self, skipped: usize, out: &mut [u8]) -> usize {
        let most = out.len().min(self.incoming.available() - skipped);
        let mut done = 0;
        while done < most {
            let (place, count) = self.incoming.next(skipped + done, most - done);
            // Within the ring.
            note(self.inbound.read(place, &mut out[done..done + count]).is_ok());
            done += count;
        }
        most
    }

    /// The map of the peer's program at an offset, as the peer has written it.
    pub(crate) fn map_at(&self, offset: u64) -> Option<Map> {
        let mut entry = [0; Map::LEN];
        (0..usize::from(self.sizes.maps)).find_map(|index| {
            self.inbound.read(self.maps_at() + index * Map::LEN, &mut entry).ok()?;
            let map = Map::from_memory(&entry);
            offset.checked_sub(map.offset).is_some_and(|within| within < map.memory.length.into()).then_some(map)
        })
    }

    /// Rings at the next completion that matters. One that came before is not announced: see
    /// [`progress`](Self::progress). Whether anything was armed.
    pub(crate) fn arm(&mut self, for_sends: bool) -> bool {
        let queues = &mut self.queues;
        let is_new = !queues.has_armed_receives || for_sends && !queues.has_armed_sends;
        if !std::mem::replace(&mut queues.has_armed_receives, true) {
            queues.receives.arm();
        }
        if for_sends && !std::mem::replace(&mut queues.has_armed_sends, true) {
            queues.sends.arm();
        }
        is_new
    }

    /// Whether the connection is over, or never was.
    pub(crate) fn is_disconnected(&mut self) -> bool {
        matches!(self.pair.control.state(), QueuePairState::Idle | QueuePairState::Disconnected)
    }

    /// Whether everything that was sent has completed.
    pub(crate) fn is_idle(&self) -> bool {
        self.outgoing.is_idle(self.sizes.requests.into())
    }

    /// The connection is over. The error, if it was no proper end.
    pub(crate) fn end(&mut self, reason: DisconnectReason) -> Option<Errno> {
        let was_over = std::mem::replace(&mut self.ends.is_over, true);
        match reason {
            _ if was_over => None,
            // A process that has ended has closed without a word.
            DisconnectReason::Local | DisconnectReason::PeerClosed => None,
            DisconnectReason::TimedOut => Some(Errno(libc::ETIMEDOUT)),
            _ => Some(Errno(libc::ECONNRESET)),
        }
    }
}

/// What cannot fail has a place for the case that it does.
fn note(is_done: bool) {
    debug_assert!(is_done, "requests, memory and room were counted");
    if !is_done {
        tracing::error!("a request of an rsocket was not posted");
    }
}
