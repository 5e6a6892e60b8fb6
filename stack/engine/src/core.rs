//! The engine's state and the order of its turn. What each step does is in the modules beside this one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Receiver;
use hashbrown::HashMap;
use uwarp_memory::Turn;
use uwarp_ring::Doorbells;
use uwarp_tcp::{BufferToken, Instant, IsnGenerator, SynCookies};
use uwarp_wire::address::IpAddress;
use uwarp_wire::ethernet::{EthernetAddress, VlanTag};
use uwarp_wire::ipv6;

use crate::addresses::Addresses;
use crate::command::{AsyncEvent, Command, EventSink, ShutdownReport};
use crate::commits::Commits;
use crate::config::EngineConfig;
use crate::connection::Connection;
use crate::engine::{EngineChannels, EngineError, Turned};
use crate::flow::{FlowTable, KeyedHash};
use crate::guesses::Guesses;
use crate::handoff::Handoff;
use crate::icmp::ErrorLimit;
use crate::lanes::Lanes;
use crate::listener::Listener;
use crate::lookahead::DISTANCE;
use crate::neighbours::Neighbours;
use crate::path::Paths;
use crate::port::{Batch, Buffer, LinkState, Port};
use crate::queue_pair::{QueuePair, Stage};
use crate::reassembly::Reassembly;
use crate::slab::{BufferStore, Slab};
use crate::stats::{DROP_REASONS, DropReason};
use crate::waits::Waits;
use crate::wheel::Wheel;

/// How often the link is looked at.
const LINK_INTERVAL: Duration = Duration::from_millis(10);
/// Between two announcements (ANNOUNCE_INTERVAL of RFC 5227 §1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Octets of the headers of IPv6 and TCP without options.
pub(crate) const IPV6_AND_TCP: u16 = 60;
/// How often queue pairs in the error state are looked at for receives posted late.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);
/// How soon a connection that lacks buffers is tried again when nothing else happens.
const STARVED_INTERVAL: Duration = Duration::from_micros(50);
/// Gather buffers kept for reuse.
const SPARE_GATHERS: usize = 64;

/// A received frame that TCP holds out of order.
#[derive(Debug)]
pub(crate) struct HeldFrame<B> {
    pub(crate) buffer: B,
    pub(crate) payload_offset: u32,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct HeldFrames<B> {
    frames: BufferStore<HeldFrame<B>>,
    buffers: usize,
}

impl<B: Buffer> HeldFrames<B> {
    fn with_capacity(capacity: usize) -> HeldFrames<B> {
        HeldFrames { frames: BufferStore::with_capacity(capacity), buffers: 0 }
    }

    /// Buffers that they take, of which a frame that was joined on its way has several.
    pub(crate) fn len(&self) -> usize {
        self.buffers
    }

    #[inline]
    pub(crate) fn next_token(&self) -> BufferToken {
        self.frames.next_token()
    }

    pub(crate) fn insert(&mut self, frame: HeldFrame<B>) {
        self.buffers += frame.buffer.segment_count();
        self.frames.insert(frame);
    }

    pub(crate) fn remove(&mut self, token: BufferToken) -> Option<HeldFrame<B>> {
        let frame = self.frames.remove(token)?;
        self.buffers -= frame.buffer.segment_count();
        Some(frame)
    }
}

/// A record of TCP's send queue.
#[derive(Debug)]
pub(crate) struct Record<B> {
    pub(crate) buffer: B,
    /// Octets of the record; they lie at [`Core::payload_start`] of the buffer's storage.
    pub(crate) length: u32,
    /// Partial Internet checksum of the record.
    pub(crate) sum: u32,
}

/// Counters since the engine was made.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) frames_received: u64,
    pub(crate) octets_received: u64,
    pub(crate) frames_sent: u64,
    pub(crate) octets_sent: u64,
    pub(crate) fpdus_received: u64,
    pub(crate) fpdus_gathered: u64,
    pub(crate) fpdus_sent: u64,
    pub(crate) crc_errors: u64,
    pub(crate) retransmissions: u64,
    pub(crate) retransmission_copies: u64,
    /// Of connections that are gone; those that live have their own.
    pub(crate) sack_segments_walked: u64,
    pub(crate) timeouts: u64,
    pub(crate) pure_acknowledgments: u64,
    pub(crate) frames_to_be_cut: u64,
    pub(crate) resets_sent: u64,
    pub(crate) icmp_errors_sent: u64,
    pub(crate) icmp_errors_suppressed: u64,
    pub(crate) handed_off: u64,
    pub(crate) taken_over: u64,
    pub(crate) path_mtu_changes: u64,
    pub(crate) path_mtu_doubts: u64,
    pub(crate) reassembled: u64,
    pub(crate) echoes: u64,
    pub(crate) address_conflicts: u64,
    pub(crate) cookies_sent: u64,
    pub(crate) cookies_accepted: u64,
    pub(crate) cookies_wrong: u64,
    pub(crate) cookies_not_compared: u64,
    pub(crate) terminates_sent: u64,
    pub(crate) terminates_received: u64,
    pub(crate) connections_opened: u64,
    pub(crate) connections_closed: u64,
    pub(crate) completion_overflows: u64,
    pub(crate) connections_scanned: u64,
    pub(crate) neighbour_lookups: u64,
    pub(crate) octets_gathered: u64,
    pub(crate) drops: [u64; DROP_REASONS],
}

/// A shutdown under way.
#[derive(Debug)]
pub(crate) struct Shutdown {
    pub(crate) until: Instant,
    /// From here on nobody waits for the acknowledgment of a mere FIN.
    pub(crate) patient_until: Instant,
    /// When frames that the device does not take are dropped, once all connections are done.
    pub(crate) drop_at: Option<Instant>,
    pub(crate) report: ShutdownReport,
    pub(crate) done: Option<crossbeam::channel::Sender<ShutdownReport>>,
}

/// Everything of an engine but its place in the memory epochs.
#[derive(Debug)]
pub(crate) struct Core<P: Port> {
    pub(crate) config: EngineConfig,
    pub(crate) port: P,
    pub(crate) now: Instant,
    pub(crate) own_mac: EthernetAddress,
    pub(crate) addresses: Addresses,
    /// The tag of all our frames.
    pub(crate) vlan: Option<VlanTag>,
    pub(crate) paths: Paths,
    pub(crate) handoff: Option<Handoff>,
    /// The frame under way came from another engine: it is not handed on again, and who asked in it was answered there.
    pub(crate) second_hand: bool,
    /// Where such a frame lies.
    pub(crate) handed_over: Vec<u8>,
    pub(crate) reassembly: Reassembly,
    /// ICMP errors that may still be sent.
    pub(crate) icmp_errors: ErrorLimit,
    /// When an address of ours was last defended, or never.
    pub(crate) defended_at: Option<Instant>,
    /// When our addresses are announced again.
    pub(crate) announce_at: Option<Instant>,
    /// When something rare is to be done: addresses, announcements.
    pub(crate) chores_at: Option<Instant>,
    /// Where payload stands in a transmit buffer: room for all headers in front.
    pub(crate) payload_start: usize,
    pub(crate) offload_tcp: bool,
    /// [`crate::port::Capabilities::segmentation_parts`].
    pub(crate) segmentation_parts: usize,
    pub(crate) tcp_config: uwarp_tcp::Config,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) events: EventSink<AsyncEvent>,
    pub(crate) connections: Slab<Connection>,
    pub(crate) flows: FlowTable,
    /// The connection that the frame under way seems to be of: found by looking ahead, or else that of the last frame.
    pub(crate) guess: Option<u32>,
    pub(crate) wheel: Wheel,
    pub(crate) fired: Vec<u32>,
    pub(crate) queue_pairs: Vec<Option<Box<QueuePair>>>,
    pub(crate) lanes: Lanes,
    pub(crate) commits: Commits,
    pub(crate) listeners: HashMap<u16, Listener>,
    /// Passive connections whose handshake is not done.
    pub(crate) half_open: u32,
    pub(crate) waits: Waits,
    pub(crate) cookies: SynCookies,
    /// Until when a cookie of ours may come back; those of other engines are in `handoff`.
    pub(crate) cookies_until: Instant,
    pub(crate) guesses: Guesses,
    pub(crate) neighbours: Neighbours,
    /// Connections that wait for a hardware address.
    pub(crate) unresolved: Vec<u32>,
    pub(crate) known_epoch: u32,
    pub(crate) held: HeldFrames<P::Buffer>,
    pub(crate) held_budget: usize,
    pub(crate) records: BufferStore<Record<P::Buffer>>,
    /// Transmit buffers that records leave alone.
    pub(crate) reserve: usize,
    /// Transmit buffers that are free at least; looked up again when it runs low.
    pub(crate) free_known: usize,
    /// Something could not be sent for lack of buffers or room.
    pub(crate) starved: bool,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) transmit_queue: VecDeque<P::Buffer>,
    pub(crate) loopback: VecDeque<P::Buffer>,
    pub(crate) rung: Vec<u32>,
    /// The device was not looked at in this turn.
    passed_over: bool,
    /// Frames that the device took in this turn.
    flushed: usize,
    /// Plain streams whose applications are to be woken at the end of the turn.
    pub(crate) news: Vec<u32>,
    /// Where chained frames are made contiguous.
    pub(crate) scratch: Vec<u8>,
    pub(crate) spare_gathers: Vec<Vec<u8>>,
    /// Octets that the buffers of connections take for FPDUs in pieces.
    pub(crate) gathering: u64,
    pub(crate) counters: Counters,
    pub(crate) isn: IsnGenerator,
    pub(crate) random: fastrand::Rng,
    pub(crate) link_up: bool,
    link_check_at: Instant,
    sweep_at: Option<Instant>,
    /// Queue pairs in the error state.
    failed: Vec<u32>,
    pub(crate) shutdown: Option<Shutdown>,
    announced: bool,
}

impl<P: Port> Core<P> {
    pub(crate) fn new(mut config: EngineConfig, port: P, channels: EngineChannels) -> Result<Core<P>, EngineError> {
        let capabilities = port.capabilities().clone();
        let mut random = fastrand::Rng::with_seed(config.seed);
        let addresses = Addresses::new(&config, capabilities.mac, &mut random).map_err(EngineError::Config)?;
        if addresses.has_ipv6() && capabilities.mtu < ipv6::MINIMUM_MTU {
            return Err(EngineError::Config("the device's MTU is below 1280, which IPv6 needs"));
        }
        if config.ephemeral_ports.0 == 0 || config.ephemeral_ports.0 > config.ephemeral_ports.1 {
            return Err(EngineError::Config("the range of ports for active opens is empty"));
        }
        if capabilities.mtu < 576 {
            return Err(EngineError::Config("the device's MTU is below 576"));
        }
        if channels.doorbells.count() < config.limits.doorbells() {
            return Err(EngineError::Config("there are fewer doorbells than queue pairs and connections"));
        }
        // Ethernet with a tag, IPv6, and the longest TCP header.
        let payload_start = capabilities.headroom.max(18 + 40 + 60);
        let mss = capabilities.mtu - 40;
        if payload_start + usize::from(mss) > capabilities.data_room {
            return Err(EngineError::Config("transmit buffers are too small for the device's MTU"));
        }
        let mut tcp_config = config.tcp;
        tcp_config.mss = tcp_config.mss.min(mss);
        let levels = port.pool_levels();
        let held_budget = config.budgets.out_of_order.unwrap_or(levels.receive_total / 2).max(4) as usize;
        let reserve = config.budgets.transmit_reserve.unwrap_or((levels.transmit_total / 8).clamp(8, 256)) as usize;
        let secret = config.secret;
        let hash = KeyedHash::new(secret);
        let fixed = config.neighbours.iter().map(|(address, mac)| ((*address).into(), *mac));
        let neighbours = Neighbours::new(config.limits.neighbours as usize, fixed, hash);
        let transmit_buffers = levels.transmit_total as usize;
        let backlog = config.budgets.transmit_backlog as usize;
        let time_wait = config.limits.time_wait as usize;
        let queue_pairs = (0..config.limits.queue_pairs).map(|_| None).collect();
        config.budgets.transmit_backlog = config.budgets.transmit_backlog.max(8);
        Ok(Core {
            own_mac: EthernetAddress(capabilities.mac),
            addresses,
            vlan: config.vlan.map(VlanTag),
            paths: Paths::new(hash),
            handoff: channels.handoff,
            second_hand: false,
            handed_over: Vec::new(),
            reassembly: Reassembly::new(config.limits.reassembly_octets as usize),
            icmp_errors: ErrorLimit::new(config.limits.icmp_errors),
            defended_at: None,
            announce_at: None,
            chores_at: None,
            payload_start,
            offload_tcp: capabilities.transmit_tcp_checksum,
            segmentation_parts: capabilities.segmentation_parts,
            tcp_config,
            doorbells: channels.doorbells,
            commands: channels.commands,
            events: channels.events,
            connections: Slab::new(),
            flows: FlowTable::new(hash),
            guess: None,
            wheel: Wheel::new(),
            fired: Vec::new(),
            queue_pairs,
            lanes: Lanes::default(),
            commits: Commits::new(channels.waker, &config.iwarp),
            listeners: HashMap::new(),
            half_open: 0,
            waits: Waits::new(hash, time_wait),
            cookies: SynCookies::new(config.cookie_secret),
            cookies_until: Instant::ZERO,
            guesses: Guesses::new(hash),
            known_epoch: neighbours.epoch(),
            neighbours,
            unresolved: Vec::new(),
            held: HeldFrames::with_capacity(held_budget + crate::port::BURST),
            held_budget,
            records: BufferStore::with_capacity(transmit_buffers),
            reserve,
            free_known: 0,
            starved: false,
            ready: VecDeque::with_capacity(64),
            transmit_queue: VecDeque::with_capacity(2 * backlog + 64),
            loopback: VecDeque::new(),
            rung: Vec::with_capacity(64),
            passed_over: false,
            flushed: 0,
            news: Vec::with_capacity(64),
            scratch: Vec::with_capacity(70_000),
            spare_gathers: Vec::with_capacity(SPARE_GATHERS),
            gathering: 0,
            counters: Counters::default(),
            isn: IsnGenerator::new(secret),
            random,
            link_up: true,
            link_check_at: Instant::ZERO,
            sweep_at: None,
            failed: Vec::new(),
            shutdown: None,
            announced: false,
            now: Instant::ZERO,
            port,
            config,
        })
    }

    /// The part of the turn that looks for something to do: true if there is some that may touch memory.
    #[inline]
    pub(crate) fn collect(&mut self, now: Instant, batch: &mut Batch<P::Buffer>) -> bool {
        self.now = now;
        self.counters.turns += 1;
        self.port.set_now(now);
        if !self.announced {
            self.announced = true;
            self.announce_twice();
            self.chores_at = Some(now);
        }
        self.flushed = 0;
        let mut busy = self.run_commands();
        self.doorbells.take(|number| self.rung.push(number as u32));
        // Posted work leaves first: a look at a device that has nothing takes as long as a frame. But only every other turn,
        // so that who posts all the time hears his peer all the same.
        self.passed_over = !self.rung.is_empty() && !self.passed_over;
        if !self.passed_over {
            busy |= self.port.rx_burst(batch) > 0;
        }
        if self.wheel.due(now) {
            self.wheel.advance(now, &mut self.fired);
        }
        if now >= self.link_check_at {
            self.check_link();
        }
        busy || !self.rung.is_empty()
            || !self.fired.is_empty()
            || !self.ready.is_empty()
            || !self.loopback.is_empty()
            || self.neighbours.deadline().is_some_and(|at| at <= now)
            || self.chores_at.is_some_and(|at| at <= now)
            || self.waits.deadline().is_some_and(|at| at <= now)
            || self.sweep_at.is_some_and(|at| at <= now)
            || self.handoff.as_mut().is_some_and(Handoff::has_frames)
            || self.known_epoch != self.neighbours.epoch()
            || self.shutdown.is_some()
            || self.commits.unsettled(now)
            || self.lanes.unsettled()
    }

    /// The part of the turn that does it.
    pub(crate) fn work(&mut self, turn: &Turn<'_>, batch: &mut Batch<P::Buffer>) {
        self.starved = false;
        self.free_known = 0;
        let guesses = self.look_ahead(batch);
        for (place, frame) in batch.drain(..).enumerate() {
            self.guess = guesses.get(place).copied().flatten().or(self.guess);
            if !guesses.is_empty() {
                self.look_ahead_at(&guesses, place + DISTANCE);
            }
            self.receive_frame(turn, frame);
        }
        // Frames that this very loop adds wait for the next turn.
        for _ in 0..self.loopback.len() {
            if let Some(frame) = self.loopback.pop_front() {
                self.receive_frame(turn, frame);
            }
        }
        if self.handoff.is_some() {
            self.run_handoff(turn);
        }
        if !self.fired.is_empty() {
            self.run_timers(turn);
        }
        self.run_waits();
        self.run_doorbells();
        if self.commits.unsettled(self.now) {
            self.run_commits(turn);
        }
        if self.chores_at.is_some_and(|at| at <= self.now) {
            self.run_chores();
        }
        if self.neighbours.unsettled(self.now) || self.known_epoch != self.neighbours.epoch() {
            self.run_neighbours();
        }
        if self.sweep_at.is_some_and(|at| at <= self.now) {
            self.sweep();
        }
        if self.shutdown.is_some() {
            self.run_shutdown();
        }
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            self.serve(turn, index);
        }
        if self.shutdown.is_some() {
            self.finish_shutdown();
        }
        if self.lanes.unsettled() {
            self.lanes.settle();
        }
        self.tell_news();
    }

    /// Gives frames to the device.
    #[inline]
    pub(crate) fn flush(&mut self) {
        while !self.transmit_queue.is_empty() {
            let taken = self.port.tx_burst(&mut self.transmit_queue);
            self.flushed += taken;
            self.counters.frames_sent += taken as u64;
            if taken == 0 {
                break;
            }
        }
    }

    /// See [`crate::Engine::ring_here`].
    #[inline]
    pub(crate) fn ring_here(&mut self, number: u32) -> bool {
        if self.rung.last() == Some(&number) {
            return true;
        }
        let room = self.rung.len() < self.rung.capacity();
        if room {
            self.rung.push(number);
        }
        room
    }

    /// What the caller of the turn needs to know.
    #[inline]
    pub(crate) fn turned(&mut self, worked: bool, received: usize) -> Turned {
        let transmitted = self.flushed;
        // Frames that wait for a link are no reason to spin either.
        let backlog = self.link_up && !self.transmit_queue.is_empty() || !self.loopback.is_empty();
        // Connections that could not go on for lack of buffers or room are no reason to spin on virtual time.
        let more = !self.ready.is_empty();
        let busy = received > 0
            || transmitted > 0
            || backlog
            || worked && !more
            || more && !self.starved
            || self.commits.is_busy();
        if busy {
            self.counters.busy_turns += 1;
        }
        Turned { received, transmitted, busy }
    }

    /// See [`crate::Engine::next_deadline`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut next = self.wheel.next_deadline();
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |known| known.min(at)));
            }
        };
        consider(self.neighbours.deadline());
        consider(self.chores_at);
        consider(self.waits.deadline());
        consider(self.sweep_at);
        consider(self.commits.deadline());
        if let Some(shutdown) = &self.shutdown {
            let patient = Some(shutdown.patient_until).filter(|at| *at > self.now);
            consider(shutdown.drop_at.or(patient).or(Some(shutdown.until)));
        }
        consider(self.port.next_arrival());
        if !self.ready.is_empty() && self.starved {
            consider(Some(self.now + STARVED_INTERVAL));
        }
        next
    }

    /// Puts a connection on the ready list.
    #[inline]
    pub(crate) fn schedule(ready: &mut VecDeque<u32>, index: u32, connection: &mut Connection) {
        if !connection.scheduled {
            connection.scheduled = true;
            ready.push_back(index);
        }
    }

    /// Puts the connection at `index` on the ready list.
    pub(crate) fn schedule_index(&mut self, index: u32) {
        if let Some(connection) = self.connections.get_mut(index) {
            Self::schedule(&mut self.ready, index, connection);
        }
    }

    #[inline]
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.counters.drops[reason as usize] += 1;
    }

    /// A transmit buffer, any: for what must go out.
    #[inline]
    pub(crate) fn alloc(&mut self) -> Option<P::Buffer> {
        let buffer = self.port.alloc();
        self.free_known = self.free_known.saturating_sub(1);
        if buffer.is_none() {
            self.free_known = 0;
        }
        buffer
    }

    /// Whether at least `count` transmit buffers are free.
    #[inline]
    pub(crate) fn has_free(&mut self, count: usize) -> bool {
        if self.free_known >= count {
            return true;
        }
        self.free_known = self.port.transmit_free();
        self.free_known >= count
    }

    /// Whether more frames may be made: the device has not fallen behind.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.transmit_queue.len() < self.config.budgets.transmit_backlog as usize
    }

    /// A buffer for an FPDU in pieces.
    pub(crate) fn take_gather(&mut self) -> Vec<u8> {
        self.spare_gathers.pop().unwrap_or_default()
    }

    pub(crate) fn give_gather(&mut self, mut gather: Vec<u8>) {
        if gather.capacity() > 0 && self.spare_gathers.len() < SPARE_GATHERS {
            gather.clear();
            self.spare_gathers.push(gather);
        }
    }

    /// The queue pair with this number.
    pub(crate) fn queue_pair(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.queue_pairs.get_mut(number as usize)?.as_deref_mut()
    }

    /// TCP's settings for a connection to an address: the header of IPv6 is longer (RFC 9293 §3.7.1).
    pub(crate) fn tcp_config_for(&self, remote: IpAddress) -> uwarp_tcp::Config {
        let mut config = self.tcp_config;
        if !remote.is_ipv4() {
            config.mss = config.mss.min(self.port.capabilities().mtu - IPV6_AND_TCP);
        }
        config
    }

    fn check_link(&mut self) {
        self.link_check_at = self.now + LINK_INTERVAL;
        let up = self.port.link() == LinkState::Up;
        if up == self.link_up {
            return;
        }
        self.link_up = up;
        self.events.send(AsyncEvent::Link { up });
        if up {
            self.announce_twice();
            return;
        }
        // A survivor learns of a dead peer by probing at once, not at the next keep-alive.
        let now = self.now;
        for index in self.connections.indexes() {
            if let Some(connection) = self.connections.get_mut(index) {
                connection.tcp.link_lost(now);
                Self::schedule(&mut self.ready, index, connection);
            }
        }
    }

    fn run_doorbells(&mut self) {
        while let Some(number) = self.rung.pop() {
            if let Some(index) = number.checked_sub(self.config.limits.queue_pairs) {
                self.schedule_index(index);
                continue;
            }
            let Some(queue_pair) = self.queue_pair(number) else { continue };
            match queue_pair.connection {
                Some(index) => self.schedule_index(index),
                None if queue_pair.stage == Stage::Error => {
                    self.flush_queue_pair_number(number);
                }
                None => {}
            }
        }
    }

    fn run_timers(&mut self, turn: &Turn<'_>) {
        while let Some(index) = self.fired.pop() {
            self.on_timer(turn, index);
        }
    }

    fn run_neighbours(&mut self) {
        self.neighbours.on_deadline(self.now);
        self.flush_requests();
        while let Some(address) = self.neighbours.poll_unreachable() {
            self.on_unreachable(address);
        }
        if self.known_epoch != self.neighbours.epoch() {
            self.known_epoch = self.neighbours.epoch();
            while let Some(index) = self.unresolved.pop() {
                self.counters.connections_scanned += 1;
                if let Some(connection) = self.connections.get_mut(index) {
                    connection.unresolved = false;
                    Self::schedule(&mut self.ready, index, connection);
                }
            }
        }
    }

    /// Flushes what was posted to queue pairs in the error state without a doorbell.
    fn sweep(&mut self) {
        let mut failed = std::mem::take(&mut self.failed);
        failed.retain(|number| {
            let in_error = self.queue_pair(*number).is_some_and(|queue_pair| queue_pair.stage == Stage::Error);
            if in_error {
                self.flush_queue_pair_number(*number);
            }
            in_error
        });
        self.sweep_at = (!failed.is_empty()).then(|| self.now + SWEEP_INTERVAL);
        self.failed = failed;
    }

    /// Looks at a queue pair in the error state from now on, now and then.
    pub(crate) fn sweep_soon(&mut self, number: u32) {
        if !self.failed.contains(&number) {
            self.failed.push(number);
        }
        if self.sweep_at.is_none() {
            self.sweep_at = Some(self.now + SWEEP_INTERVAL);
        }
    }
}

/// The octets of a frame in one piece: its own, or a copy in `scratch` if it is a chain.
#[inline]
pub(crate) fn contiguous<'a, B: Buffer>(buffer: &'a B, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if buffer.segment_count() == 1 {
        return buffer.data();
    }
    scratch.clear();
    for index in 0..buffer.segment_count() {
        scratch.extend_from_slice(buffer.segment(index).unwrap_or(&[]));
    }
    scratch
}
