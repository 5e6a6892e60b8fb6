//! The connection: its parts, and the simple queries and commands of its owner.

use core::ops::Range;

use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use crate::Config;
use crate::acceptance::Challenges;
use crate::ecn::EcnState;
use crate::event::{BufferToken, Events, HeldPayload, Transmit};
use crate::info::{Counters, Info, Traffic};
use crate::instant::Instant;
use crate::position::Position;
use crate::receive::Receiver;
use crate::recovery::Doubt;
use crate::send::{Fin, Sender};
use crate::state::{CloseReason, Phase, State, StateEvent};
use crate::timers::{Liveness, Timers};
use crate::timestamps::TimestampState;

/// Distance from the predecessor's sequence numbers when a new connection's have to be moved. It exceeds any window
/// without scaling; with scaling, timestamps tell the segments apart.
const ISN_DISTANCE: u32 = 1 << 16;

/// `proposed` if it lies beyond `highest`, else the first number that is safely beyond it.
pub(crate) fn isn_beyond(highest: Position, proposed: SeqNumber) -> SeqNumber {
    if highest.near(proposed) > highest { proposed } else { (highest + ISN_DISTANCE).sequence() }
}

/// The state of a connection that has seen urgent data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Urgent {
    /// SND.UP, while something before it is unacknowledged.
    pub(crate) send: Option<Position>,
    /// RCV.UP: the furthest that was announced.
    pub(crate) receive: Option<Position>,
    /// RCV.NXT before the segment that announced it.
    pub(crate) told_at: Position,
}

/// A reset that is owed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) sequence: SeqNumber,
    /// Whether it acknowledges received data.
    pub(crate) acknowledges: bool,
    /// The octet at `sequence` was sent as a window probe. A peer that accepted it accepts a reset only behind it; one
    /// that did not, only at it (RFC 5961 §3.2). So both resets are sent.
    pub(crate) probed: bool,
}

impl Reset {
    /// Answers an acknowledgment of octets never sent (RFC 9293 §3.10.7.3 and §3.10.7.4): SEQ=SEG.ACK.
    pub(crate) fn answering(header: &TcpHeader) -> Self {
        Self { sequence: header.acknowledgment, acknowledges: false, probed: false }
    }
}

/// Segments to be sent once, independent of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pending {
    /// A reset: the answer to a segment, or the end of the connection.
    pub(crate) reset: Option<Reset>,
    /// A tail loss probe.
    pub(crate) tail_probe: bool,
    /// A window probe, or part of a record into a small window.
    pub(crate) window_probe: bool,
    /// A probe of a silent peer.
    pub(crate) keep_alive: bool,
    /// Not a segment: SND.UP is ahead, so segments that are sent may have to carry URG. It is here because fields that
    /// are tested together cost one branch.
    pub(crate) urgent: bool,
}

impl Pending {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.tail_probe | self.window_probe | self.keep_alive | self.reset.is_some()
    }

    /// Whether the next segment does not come from the queue alone.
    #[inline]
    pub(crate) fn is_unusual(&self) -> bool {
        self.urgent | self.reset.is_some()
    }
}

/// The options that both ends use, or that we offer while opening (RFC 7323, RFC 2018).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Window scaling.
    pub(crate) scaling: bool,
    /// The peer's shift count.
    peer_shift: u8,
    /// SACK may be sent and received.
    pub(crate) sack: bool,
    /// A copy of [`TimestampState::enabled`], which is in another cache line.
    pub(crate) timestamps: bool,
}

impl Options {
    fn offered(config: &Config) -> Options {
        Options { scaling: config.window_scale, peer_shift: 0, sack: config.sack, timestamps: config.timestamps }
    }

    /// The window that a header of the peer offers, in octets. RFC 7323 §2.2: that of a SYN is not scaled.
    #[inline(always)]
    pub(crate) fn offered_window(&self, field: u16, syn: bool) -> u32 {
        u32::from(field) << if syn { 0 } else { self.peer_shift }
    }
}

/// Takes no space, and aligns the next field to a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Line;

/// One TCP connection. See the crate's documentation for how to drive it.
///
/// With many connections, the cost of a segment is the cache lines of its connection. So the order of the fields
/// matters, here and in the parts. Rare fields are at both ends or on the heap. Between them, from the start of a line
/// on, are those that each segment touches ([`Connection::places`]).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Connection {
    /// Also touched by each segment, if timestamps are in use.
    pub(crate) timestamps: TimestampState,
    /// Position of the first octet that we send.
    stream_start: Position,
    pub(crate) config: Config,
    pub(crate) challenges: Challenges,
    pub(crate) counters: Counters,
    /// `None` until urgent data is sent or announced.
    pub(crate) urgent: Option<Box<Urgent>>,
    line: Line,
    pub(crate) phase: Phase,
    pub(crate) pending: Pending,
    pub(crate) options: Options,
    pub(crate) traffic: Traffic,
    pub(crate) liveness: Liveness,
    pub(crate) timers: Timers,
    pub(crate) ecn: EcnState,
    pub(crate) receiver: Receiver,
    /// Rare fields are at its end.
    pub(crate) sender: Sender,
}

impl Connection {
    fn new(config: &Config, phase: Phase, isn: SeqNumber, peer_isn: SeqNumber, now: Instant) -> Connection {
        let initial = Position::first(isn);
        let mut connection = Connection {
            timestamps: TimestampState::new(config),
            stream_start: initial + 1,
            config: *config,
            challenges: Challenges::new(config, now),
            counters: Counters::default(),
            urgent: None,
            line: Line,
            phase,
            pending: Pending::default(),
            options: Options::offered(config),
            traffic: Traffic::default(),
            liveness: Liveness::new(now),
            timers: Timers::default(),
            ecn: EcnState::new(config, initial),
            receiver: Receiver::new(config, peer_isn),
            sender: Sender::new(config, initial, Position::first(peer_isn), now),
        };
        connection.measure(true);
        connection
    }

    /// Opens a connection actively: SYN-SENT. [`Connection::poll_transmit`] returns the SYN first.
    pub fn connect(config: &Config, isn: SeqNumber, now: Instant) -> Connection {
        Connection::new(config, Phase::SynSent, isn, SeqNumber(0), now)
    }

    /// Answers a SYN that a listener received: SYN-RECEIVED. [`Connection::poll_transmit`] returns the SYN with ACK
    /// first. Data in the SYN is not accepted; the peer retransmits it.
    pub fn accept(config: &Config, syn: &TcpHeader, isn: SeqNumber, now: Instant) -> Connection {
        let mut connection = Connection::new(config, Phase::SynReceived, isn, syn.sequence, now);
        connection.learn_peer(syn, now);
        connection
    }

    /// A connection whose SYN with ACK was sent earlier without keeping state, with the number `isn`.
    pub(crate) fn accept_answered(config: &Config, syn: &TcpHeader, isn: SeqNumber, now: Instant) -> Connection {
        let mut connection = Connection::accept(config, syn, isn, now);
        connection.poll_transmit(now);
        connection.sender.queue.forget_times();
        connection
    }

    /// Takes the peer's capabilities from its SYN (RFC 9293 §3.7.1, RFC 7323 §2.2 and §3.2, RFC 2018 §2).
    pub(crate) fn learn_peer(&mut self, syn: &TcpHeader, now: Instant) {
        let options = &syn.options;
        self.options.sack &= options.sack_permitted;
        self.timestamps.enabled &= options.timestamps.is_some();
        self.options.timestamps = self.timestamps.enabled;
        if let Some(timestamps) = options.timestamps
            && self.timestamps.enabled
        {
            self.timestamps.note(timestamps.value, now);
        }
        self.ecn.learn(syn.flags, self.phase == Phase::SynReceived);
        self.options.scaling &= options.window_scale.is_some();
        // RFC 7323 §2.3: a shift above 14 counts as 14.
        self.options.peer_shift = if self.options.scaling { options.window_scale.unwrap_or(0).min(14) } else { 0 };
        self.receiver.synchronise(syn.sequence, if self.options.scaling { self.config.window_shift() } else { 0 });
        self.sender.mss.learn_peer(options.mss);
        self.sender.window.learn_peer(self.receiver.initial(), self.options.offered_window(syn.window, true));
        self.measure(true);
    }

    /// Computes the payload of a data segment.
    fn measure(&mut self, opening: bool) {
        self.sender.mss.measure(self.timestamps.enabled);
        self.sender.congestion.set_segment(&self.config, self.sender.mss.segment, opening);
    }

    /// Changes the state along the table.
    pub(crate) fn enter(&mut self, event: StateEvent, phase: Phase) {
        debug_assert_eq!(self.phase.state().after(event), Some(phase.state()), "{} {event:?}", self.phase.state());
        self.phase = phase;
    }

    /// Ends the connection: nothing is sent or received any more, and all tokens can be drained.
    pub(crate) fn finish(&mut self, event: StateEvent, reason: CloseReason) {
        self.enter(event, Phase::Closed { reason });
        self.sender.queue.stop();
        self.receiver.stop();
        self.timers = Timers::default();
        self.pending = Pending::default();
        self.urgent = None;
    }

    /// Whether a segment starts behind a gap, so that its payload could only be held. For an owner that has no buffers
    /// left and treats such payload as lost.
    #[inline]
    pub fn is_ahead(&self, header: &TcpHeader) -> bool {
        self.receiver.next().near(header.sequence) > self.receiver.next()
    }

    /// For an owner that cannot take data for a while. With `true`, later payload is held even if it continues the
    /// stream, and [`Connection::take_in_order`] returns nothing. With `false`, `take_in_order` returns what was held.
    ///
    /// Data held in order is acknowledged, so the owner cannot discard it. The window bounds it: see
    /// [`Connection::set_receive_space`]. The end of the stream is still reported when it arrives
    /// ([`crate::Events::PEER_FIN`]), before the data that is held.
    pub fn hold_in_order(&mut self, hold: bool) {
        self.receiver.reassembly.set_holding(hold);
    }

    /// Whether the owner has called [`Connection::hold_in_order`].
    #[inline]
    pub fn holds_in_order(&self) -> bool {
        self.receiver.reassembly.is_holding()
    }

    /// For an owner whose acknowledgments mean more than arrival. Takes the last `octets` that were handed out in order
    /// back from what is acknowledged, before an acknowledgment of them has left. The owner keeps them.
    ///
    /// The peer retransmits them, and its copies are dropped. What comes behind them is held as if it were ahead of a
    /// gap, the peer's FIN included. [`Connection::release`] ends that.
    pub fn withhold(&mut self, octets: u32) {
        self.receiver.withhold(octets);
    }

    /// Whether octets are withheld ([`Connection::withhold`]).
    #[inline]
    pub fn withholds(&self) -> bool {
        self.receiver.reassembly.withheld() > 0
    }

    /// For an owner whose peer withholds acknowledgments without limit ([`Connection::withhold`]): the user time-out
    /// does not end a peer that answers retransmissions, and they do not become too rare for that.
    pub fn expect_withholding(&mut self) {
        self.liveness.may_withhold = true;
    }

    /// Acknowledges what was withheld. Returns what happened: the peer's FIN may have become part of the stream. Then
    /// call [`Connection::take_in_order`].
    pub fn release(&mut self, now: Instant) -> Events {
        if !self.withholds() {
            return Events::NONE;
        }
        self.receiver.release();
        if self.receiver.finished() && self.phase.receives() { self.peer_has_closed(now) } else { Events::NONE }
    }

    /// Whether the peer's FIN and all data before it have arrived.
    pub fn peer_has_finished(&self) -> bool {
        self.receiver.finished()
    }

    /// The next held payload that has become part of the stream. Call it until `None` after each
    /// [`Connection::on_segment`] that returned data in order, and before the next one.
    #[inline]
    pub fn take_in_order(&mut self) -> Option<HeldPayload> {
        self.receiver.take()
    }

    /// Returns a held buffer that is not needed: a duplicate, beyond the budget, or of a closed connection.
    #[inline]
    pub fn drain_discarded(&mut self) -> Option<BufferToken> {
        self.receiver.reassembly.pop_discarded()
    }

    /// Caps the window at the owner's free space, in octets, from now on. An earlier, larger offer stays valid: octets
    /// within it may still arrive.
    #[inline]
    pub fn set_receive_space(&mut self, octets: u32) {
        if octets != self.receiver.space() {
            self.receiver.set_space(octets, self.phase.receives());
        }
    }

    /// Appends a record of `len` octets in the buffer `token`. It is sent as one segment if it is no longer than
    /// [`Connection::effective_mss`] at that time, and in segments of that size otherwise.
    ///
    /// The owner bounds what it pushes by [`Connection::send_space`]. Records pushed after [`Connection::close`] are
    /// not sent; their tokens are returned at the end.
    #[inline]
    pub fn push(&mut self, token: BufferToken, len: u32) {
        debug_assert!(!self.sender.is_closing(), "a record after the FIN");
        if self.sender.is_closing() {
            self.sender.queue.refuse(token);
        } else {
            self.sender.queue.push(token, len);
        }
    }

    /// Token and length of the last record, if none of it was sent. The owner may append octets to its buffer and then
    /// call [`Connection::extend_tail`].
    #[inline]
    pub fn unsent_tail(&self) -> Option<(BufferToken, u32)> {
        if self.sender.is_closing() { None } else { self.sender.queue.unsent_tail() }
    }

    /// Extends the last record by `octets` that the owner has appended to its buffer. This is for byte streams: small
    /// writes fill segments while they wait for a window or for Nagle's algorithm.
    ///
    /// Returns false, and changes nothing, if there is no such record: some of it was sent (a window probe of one octet
    /// counts), or [`Connection::close`] was called. The owner then pushes a new record.
    #[inline]
    pub fn extend_tail(&mut self, octets: u32) -> bool {
        !self.sender.is_closing() && self.sender.queue.extend_tail(octets)
    }

    /// Switches Nagle's algorithm (RFC 9293 §3.7.4 requires that an application can). Data that it held back is sent by
    /// the next [`Connection::poll_transmit`].
    pub fn set_nagle(&mut self, on: bool) {
        self.sender.nagle = on;
    }

    /// Changes [`Config::fin_wait_2`] for waits that begin from now on.
    pub fn set_fin_wait_2(&mut self, patience: Option<core::time::Duration>) {
        self.config.fin_wait_2 = patience;
    }

    /// Buffers that the connection holds of its owner's: records that were pushed and not given back.
    #[inline]
    pub fn records(&self) -> usize {
        self.sender.queue.records()
    }

    /// Received buffers that are held, nearly always out of order (see [`Connection::hold_in_order`]).
    #[inline]
    pub fn out_of_order_buffers(&self) -> usize {
        self.receiver.reassembly.len()
    }

    /// Octets of new records that are wanted now; 0 for none. At least one record is wanted whenever nothing is left to
    /// send, so an owner that pulls its work by this never stalls, and the window stays full.
    #[inline]
    pub fn send_space(&self) -> u32 {
        if self.sender.is_closing() || !matches!(self.phase, Phase::Established | Phase::CloseWait) {
            return 0;
        }
        self.sender.space()
    }

    /// The oldest record if the peer has acknowledged all of it. Its buffer belongs to the owner again.
    #[inline]
    pub fn pop_acknowledged(&mut self) -> Option<BufferToken> {
        self.sender.queue.pop_acknowledged()
    }

    /// Any remaining record, oldest first, acknowledged or not, once the connection is closed. Before that, the same as
    /// [`Connection::pop_acknowledged`].
    pub fn pop_any(&mut self) -> Option<BufferToken> {
        match self.phase {
            Phase::Closed { .. } => self.sender.queue.pop_record(),
            _ => self.sender.queue.pop_acknowledged(),
        }
    }

    /// Position of the first octet that we send.
    pub(crate) fn stream_start(&self) -> Position {
        self.stream_start
    }

    /// Stream octets pushed so far: the position behind the last record.
    pub fn octets_pushed(&self) -> u64 {
        self.sender.queue.end().since(self.stream_start)
    }

    /// Stream octets that the peer has acknowledged. A record that ends at or before this position has arrived.
    #[inline]
    pub fn octets_acknowledged(&self) -> u64 {
        self.sender.queue.unacknowledged().min(self.sender.queue.end()).since(self.stream_start)
    }

    /// Whether the peer is silent: three time-outs in a row, and nothing received for half a second. One with a closed
    /// window answers retransmissions, which are rare then, but does not take what they bring.
    pub fn is_silent(&self, now: Instant) -> bool {
        let silence = if self.sender.is_beyond_window() { 2 * self.longest_silence() } else { 500_000_000 };
        self.sender.rtt.backoff() >= 3 && now >= self.liveness.last_received.after_nanos(silence)
    }

    /// Ends sending: the queued data is sent, then a FIN (RFC 9293 §3.10.4). Receiving continues.
    pub fn close(&mut self, now: Instant) {
        if self.sender.is_closing() {
            return;
        }
        match self.phase {
            Phase::SynSent => self.finish(StateEvent::Close, CloseReason::Aborted),
            // RFC 9293 §3.10.4: queued until ESTABLISHED.
            Phase::SynReceived => self.sender.fin = Fin::Queued,
            Phase::Established => {
                self.sender.fin = Fin::Queued;
                self.enter(StateEvent::Close, Phase::FinWait1);
            }
            Phase::CloseWait => {
                self.sender.fin = Fin::Queued;
                self.enter(StateEvent::Close, Phase::LastAck);
            }
            _ => return,
        }
        self.liveness.last_received = self.liveness.last_received.max(now);
    }

    /// Aborts the connection and returns the reset for the peer, if one is due (RFC 9293 §3.10.5). If the octet of a
    /// window probe is unacknowledged, [`Connection::poll_transmit`] returns a second one.
    pub fn abort(&mut self, now: Instant) -> Option<Transmit> {
        let reset = match self.phase {
            Phase::SynReceived | Phase::Established | Phase::FinWait1 | Phase::FinWait2 { .. } | Phase::CloseWait => {
                Some(self.last_reset())
            }
            Phase::Closed { .. } => return None,
            _ => None,
        };
        self.finish(StateEvent::Abort, CloseReason::Aborted);
        self.pending.reset = reset;
        self.send_reset(now)
    }

    /// The reset of a connection that we abort.
    pub(crate) fn last_reset(&self) -> Reset {
        let next = self.sender.queue.next();
        Reset { sequence: next.sequence(), acknowledges: true, probed: self.sender.queue.highest() > next }
    }

    /// Sends a reset that is owed.
    pub(crate) fn send_reset(&mut self, now: Instant) -> Option<Transmit> {
        let mut reset = self.pending.reset.take()?;
        if reset.probed {
            self.pending.reset = Some(Reset { probed: false, ..reset });
            reset.sequence += 1;
        }
        let mut header = TcpHeader::new(TcpFlags::RST);
        header.sequence = reset.sequence;
        if reset.acknowledges {
            header.flags |= TcpFlags::ACK;
            header.acknowledgment = self.receiver.next().sequence();
            header.options.timestamps = self.timestamps.option(now);
        }
        self.traffic.segments_sent += 1;
        Some(Transmit { header, payload: None, retransmission: false, ecn: 0 })
    }

    /// Payload octets that a data segment may carry now (Eff.snd.MSS of RFC 9293 §3.7.1, less options).
    #[inline]
    pub fn effective_mss(&self) -> u32 {
        self.sender.mss.segment
    }

    /// Lets records of up to `most` octets leave as a whole, each in one frame that the device cuts into segments of
    /// `piece` octets, at most [`Connection::effective_mss`]. A record leaves so if the windows have room for all of it
    /// and nothing is repaired; else it leaves in segments. So gives how long a record should be now: at most half of
    /// either window. The scoreboard has one entry for it until the peer acknowledges parts.
    #[inline]
    pub fn leave_in_frames(&mut self, most: u32, piece: u32) -> u32 {
        self.sender.congestion.set_frame(most);
        self.sender.piece = piece;
        most.min(self.sender.congestion.window().min(self.sender.window.octets) / 2)
    }

    /// Sets the path's MSS, counted like [`Config::mss`]: its MTU without the fixed IP and TCP headers. Larger segments
    /// in flight are retransmitted as smaller ones (RFC 1191 §6.4).
    pub fn set_path_mss(&mut self, mss: u16) {
        let before = self.sender.mss.segment;
        if !self.sender.mss.set_path(&self.config, mss) {
            return;
        }
        self.measure(matches!(self.phase, Phase::SynSent | Phase::SynReceived));
        // A frame is longer than any segment, and was cut into those that fitted before.
        let shrinks = self.sender.mss.segment < before;
        if shrinks && self.sender.queue.lose_larger_than(self.sender.mss.segment) {
            self.sender.recovery.force = true;
            self.sender.recovery.doubt = Doubt::No;
        }
    }

    /// Whether the octet (or SYN or FIN) at `sequence` is sent and unacknowledged: an ICMP error must quote such a
    /// number to be believed (RFC 5927 §4.1).
    pub fn is_in_flight(&self, sequence: SeqNumber) -> bool {
        let (first, next) = (self.sender.queue.unacknowledged(), self.sender.queue.next());
        let sequence = first.near(sequence);
        first <= sequence && sequence < next
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.phase.state()
    }

    /// How the connection ended; `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed { reason } => Some(reason),
            _ => None,
        }
    }

    /// Whether `header` is a SYN that may start a new connection between the same endpoints while this one is in
    /// TIME-WAIT (RFC 6191 §2; RFC 9293 §3.10.7.4, fourth check). The owner then drops this connection and accepts the
    /// SYN with an initial sequence number beyond the old one's.
    pub fn admits_new_incarnation(&self, header: &TcpHeader) -> bool {
        matches!(self.phase, Phase::TimeWait { .. }) && self.timestamps.admits(header, self.receiver.next())
    }

    /// An initial sequence number for a new connection between the same endpoints: `proposed` if it lies beyond
    /// everything that this one has sent, else the next number that does (RFC 9293 §3.10.7.4, fourth check; RFC 6191
    /// §2).
    pub fn isn_beyond(&self, proposed: SeqNumber) -> SeqNumber {
        isn_beyond(self.sender.queue.highest(), proposed)
    }

    /// Frees memory that a busy period has left behind. Happens by itself when a keep-alive finds the connection idle.
    pub fn release_idle_memory(&mut self) {
        self.sender.queue.shrink();
        self.sender.recovery.shrink();
        self.receiver.reassembly.shrink();
        self.ecn.shrink();
        self.forget_urgent();
    }

    /// Octets of memory in use, including the value itself.
    pub fn memory(&self) -> usize {
        let heap = self.sender.congestion.heap()
            + self.sender.queue.heap()
            + self.ecn.heap()
            + self.receiver.reassembly.heap();
        let rare = self.sender.recovery.heap() + self.urgent.as_deref().map_or(0, size_of_val);
        size_of::<Connection>() + heap + rare
    }

    /// Address range of the fields that every usual segment touches, for prefetching. It reads none of them.
    #[inline]
    pub fn places(&self) -> Range<usize> {
        core::ptr::from_ref(&self.line).addr()..self.sender.recovery.rare_place()
    }

    /// The address range of the further fields that a segment touches, depending on the connection's options.
    #[inline]
    pub fn further_places(&self) -> Range<usize> {
        let start = core::ptr::from_ref(&self.timestamps).addr();
        start..start + if self.options.timestamps { size_of::<TimestampState>() } else { 0 }
    }

    /// The buffer that will be returned next, for prefetching.
    #[inline]
    pub fn oldest_record(&self) -> Option<BufferToken> {
        self.sender.queue.oldest()
    }

    /// The counters of rare events, without the rest of [`Info`].
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A snapshot for people and tests.
    pub fn info(&self) -> Info {
        let (rtt, queue, recovery) = (&self.sender.rtt, &self.sender.queue, &self.sender.recovery);
        Info {
            state: self.state(),
            smoothed_rtt_ns: rtt.smoothed().unwrap_or(0),
            rtt_variation_ns: rtt.variation(),
            minimum_rtt_ns: rtt.minimum().unwrap_or(0),
            retransmission_timeout_ns: rtt.timeout(),
            backoff: rtt.backoff(),
            congestion_window: self.sender.congestion.window(),
            slow_start_threshold: self.sender.congestion.threshold(),
            send_window: self.sender.window.octets,
            receive_window: self.receiver.window(),
            effective_mss: self.sender.mss.segment,
            in_flight: queue.in_flight(),
            selectively_acknowledged: queue.sacked(),
            lost: queue.lost(),
            unsent: queue.unsent(),
            out_of_order_buffers: self.receiver.reassembly.len() as u64,
            reordering_window_ns: recovery.reordering_window(queue, rtt),
            reordering_seen: recovery.reordering_seen(),
            octets_acknowledged: self.octets_acknowledged(),
            octets_received: self.receiver.octets(),
            traffic: self.traffic,
            counters: self.counters,
            window_scale: self.options.scaling,
            ecn: self.ecn.enabled(),
            timestamps: self.timestamps.enabled,
            sack: self.options.sack,
        }
    }

    /// Panics if the parts of the connection do not agree with each other. For tests.
    #[doc(hidden)]
    pub fn check(&self) {
        if matches!(self.phase, Phase::Closed { .. }) {
            return;
        }
        self.sender.queue.check();
        self.receiver.reassembly.check(self.receiver.next());
    }
}
