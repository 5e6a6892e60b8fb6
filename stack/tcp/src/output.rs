//! What to send next.

use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::connection::Connection;
use crate::event::{BufferToken, Slice, Transmit, UsualSegment};
use crate::instant::{Instant, nanos};
use crate::position::Position;
use crate::queue::{Content, Unsent};
use crate::recovery::{Doubt, Mode};
use crate::state::Phase;

/// Blocks that fit beside a timestamp, and without one (RFC 2018 §3).
const BLOCKS_WITH_TIMESTAMP: usize = 3;
const BLOCKS: usize = 4;

/// What the windows permit for the next unsent octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fresh {
    /// So many octets may leave.
    Send(u32),
    /// There is nothing to send, or the congestion window or Nagle's algorithm forbids it.
    Wait,
    /// Nothing is in flight, and the peer's window is shut or too small: only a timer can continue.
    Shut,
}

impl Connection {
    /// Whether [`Connection::poll_transmit`] has something to give. Cheap.
    #[inline(always)]
    pub fn wants_transmit(&self, _now: Instant) -> bool {
        let owes = self.receiver.wants_ack() | self.pending.any() | self.ecn.owes();
        // Most often everything was sent and nothing is lost.
        let is_idle = self.queue.is_plain() && !self.closing && self.phase == Phase::Established;
        owes || !is_idle && self.wants_segment()
    }

    /// Whether the queue has a segment that may leave.
    fn wants_segment(&self) -> bool {
        match self.phase {
            Phase::SynSent | Phase::SynReceived { .. } => self.queue.segments().is_empty() || self.queue.lost() > 0,
            phase if phase.sends() => {
                (self.queue.lost() > 0 && self.may_send_again())
                    || self.may_send_fin()
                    || (self.queue.unsent() > 0
                        && match self.fresh() {
                            Fresh::Send(_) => true,
                            Fresh::Wait => false,
                            Fresh::Shut => self.timers.persist == Instant::NEVER,
                        })
            }
            _ => false,
        }
    }

    /// The next segment to send, `None` if there is nothing now. Call it until `None` at the end of a batch.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        match self.next_fresh(now) {
            Some((segment, slice)) => Some(Transmit::fresh(&segment, slice)),
            None => self.poll_other(now),
        }
    }

    /// New data of an open connection with nothing else to send: what [`Connection::poll_transmit`] returns then, in
    /// fewer octets. `None`: that has to look for other segments.
    #[inline]
    pub fn next_fresh(&mut self, now: Instant) -> Option<(UsualSegment, Slice)> {
        if self.phase != Phase::Established
            || self.pending.any()
            || self.pending.urgent
            || self.ecn.owes()
            || self.queue.lost() > 0
            || self.queue.unsent() == 0
            || self.queue.is_probed()
        {
            return None;
        }
        self.restart_after_idle(now);
        let unsent = self.queue.first_unsent()?;
        let Fresh::Send(len) = self.admit(unsent.len) else { return None };
        let (sequence, slice, flags) = self.take_fresh(now, unsent, len);
        Some((self.usual(now, flags, sequence, len), slice))
    }

    /// Octets that may leave behind `segment`, which [`Connection::next_fresh`] has just returned, by
    /// [`Connection::next_alike`].
    #[inline]
    pub fn room_for_alike(&self, segment: &UsualSegment) -> u32 {
        if self.queue.unsent() == 0
            || self.nagle
            // Another acknowledgment is owed, which is to count as sent: RFC 5681 §4.2 for a peer without SACK.
            || self.receiver.wants_ack()
            || !self.recovery.is_plain()
            || segment.flags.contains(TcpFlags::CWR)
        {
            return 0;
        }
        let usable = self.window_edge().octets_since(self.queue.next());
        usable.min(self.congestion.window().saturating_sub(self.queue.in_flight()))
    }

    /// The record behind `segment`, if it may leave as one segment too: what [`Connection::next_fresh`] would return,
    /// in fewer steps. `segment` becomes its segment, and `room` is what [`Connection::room_for_alike`] has left. Since
    /// that was asked, nothing else may have happened, and `now` is the same.
    #[inline]
    pub fn next_alike(&mut self, now: Instant, segment: &mut UsualSegment, room: &mut u32) -> Option<Slice> {
        let unsent = self.queue.first_unsent()?;
        let len = unsent.len;
        if len > self.segment || len > *room {
            return None;
        }
        *room -= len;
        segment.sequence = self.queue.next().sequence();
        segment.len = len;
        let slice = self.queue.send_fresh(now, unsent, len);
        if self.queue.unsent() == 0 {
            segment.flags |= TcpFlags::PSH;
        }
        // All else that the first one did holds for this one.
        self.traffic.segments_sent += 1;
        self.traffic.octets_sent += u64::from(len);
        self.congestion.sent(self.queue.in_flight());
        Some(slice)
    }

    /// A segment with new data, as of now. The window in it counts as offered.
    #[inline(always)]
    fn usual(&mut self, now: Instant, flags: TcpFlags, sequence: Position, len: u32) -> UsualSegment {
        let segment = self.usual_headers(now, flags, sequence, len);
        self.account(now, len, false);
        segment
    }

    #[inline(always)]
    fn usual_headers(&mut self, now: Instant, flags: TcpFlags, sequence: Position, len: u32) -> UsualSegment {
        let (marks, ecn) = self.ecn.data_marks(true);
        self.traffic.segments_sent += 1;
        UsualSegment {
            flags: flags | marks | self.ecn.ack_flags(),
            sequence: sequence.sequence(),
            acknowledgment: self.receiver.next().sequence(),
            window: self.receiver.offer(false),
            timestamps: if self.stamped { self.timestamps.option(now) } else { None },
            ecn,
            len,
        }
    }

    /// Whether a record of up to [`Connection::effective_mss`] octets that is pushed now leaves at once, as one segment
    /// and the only one: then [`Connection::send_at_once`] does the same as to push it and to poll.
    #[inline(always)]
    pub fn sends_at_once(&self) -> bool {
        self.is_usual() && self.has_room_for_segment()
    }

    /// Whether the connection is open, has sent everything, and has nothing to repair, to report or to probe for. It
    /// stays so while nothing is called but [`Connection::on_usual_segment`], [`Connection::on_alike_segment`],
    /// [`Connection::send_at_once`] and [`Connection::pop_acknowledged`].
    #[inline]
    pub fn is_usual(&self) -> bool {
        self.phase == Phase::Established
            && !(self.closing | self.pending.any() | self.pending.urgent | self.ecn.owes())
            && self.queue.is_plain()
            && self.receiver.is_plain()
            && self.receiver.owes_at_most_one()
            && self.recovery.is_plain()
    }

    /// Whether the windows permit one more segment, if [`Connection::is_usual`].
    #[inline(always)]
    pub fn has_room_for_segment(&self) -> bool {
        let idle = self.queue.segments().is_empty();
        let usable = self.window_edge().octets_since(self.queue.next());
        usable >= self.segment
            && (idle || !self.nagle && self.queue.in_flight() + self.segment <= self.congestion.window())
    }

    /// Pushes a record and sends it, if [`Connection::sends_at_once`]. Its octets begin the payload of the segment, and
    /// end it.
    #[inline(always)]
    pub fn send_at_once(&mut self, now: Instant, token: BufferToken, len: u32) -> UsualSegment {
        debug_assert!(self.sends_at_once() && len > 0 && len <= self.segment);
        self.restart_after_idle(now);
        let sequence = self.queue.next();
        self.queue.push_sent(now, token, len);
        self.timers.persist = Instant::NEVER;
        let segment = self.usual_headers(now, TcpFlags::ACK | TcpFlags::PSH, sequence, len);
        self.account_plain(now, len);
        segment
    }

    /// Any segment.
    #[inline(never)]
    fn poll_other(&mut self, now: Instant) -> Option<Transmit> {
        if self.pending.is_unusual() { self.poll_unusual(now) } else { self.poll_queue(now) }
    }

    /// A reset that is due, or the next segment, which may be urgent.
    #[cold]
    fn poll_unusual(&mut self, now: Instant) -> Option<Transmit> {
        if self.pending.reset.is_some() {
            return self.send_reset(now);
        }
        let mut transmit = self.poll_queue(now)?;
        self.point_to_urgent(&mut transmit.header);
        Some(transmit)
    }

    fn poll_queue(&mut self, now: Instant) -> Option<Transmit> {
        if self.ecn.owes()
            && let Some(owed) = self.acknowledge_older(now)
        {
            return Some(owed);
        }
        match self.phase {
            Phase::Closed { .. } => return None,
            Phase::SynSent => return self.poll_syn(now, TcpFlags::SYN),
            Phase::SynReceived { .. } => {
                if let Some(syn) = self.poll_syn(now, TcpFlags::SYN | TcpFlags::ACK) {
                    return Some(syn);
                }
            }
            phase if phase.sends() => {
                if let Some(data) = self.poll_data(now) {
                    return Some(data);
                }
            }
            _ => self.pending.tail_probe = false,
        }
        if self.pending.keep_alive {
            // RFC 9293 §3.8.4: a sequence number that is already acknowledged makes the peer answer.
            self.pending.keep_alive = false;
            return Some(self.bare(now, self.queue.next() - 1));
        }
        if self.receiver.wants_ack() {
            return Some(self.bare(now, self.queue.next()));
        }
        None
    }

    /// A header as of now. The window in it counts as offered.
    #[inline(always)]
    fn header(&mut self, now: Instant, flags: TcpFlags, sequence: Position) -> TcpHeader {
        let mut header = TcpHeader::new(flags);
        header.sequence = sequence.sequence();
        if flags.contains(TcpFlags::ACK) {
            header.acknowledgment = self.receiver.next().sequence();
            if !flags.contains(TcpFlags::SYN) {
                header.flags |= self.ecn.ack_flags();
            }
        }
        header.window = self.receiver.offer(flags.contains(TcpFlags::SYN));
        if self.stamped {
            header.options.timestamps = self.timestamps.option(now);
        }
        self.traffic.segments_sent += 1;
        header
    }

    /// A pure acknowledgment, with SACK blocks if there is something to report (RFC 2018 §4).
    fn bare(&mut self, now: Instant, sequence: Position) -> Transmit {
        let mut header = self.header(now, TcpFlags::ACK, sequence);
        if self.sack && !self.receiver.is_plain() {
            let most = if self.timestamps.enabled { BLOCKS_WITH_TIMESTAMP } else { BLOCKS };
            header.options.sack = self.receiver.take_blocks(most);
        }
        self.receiver.ack_sent(self.sack, true);
        Transmit { header, payload: None, retransmission: false, ecn: 0 }
    }

    /// The acknowledgment of what was received since the last one. It is for a side that is about to abort: its peer
    /// takes for lost what is not acknowledged when the reset arrives.
    pub fn poll_owed_acknowledgment(&mut self, now: Instant) -> Option<Transmit> {
        let is_open =
            matches!(self.phase, Phase::Established | Phase::FinWait1 | Phase::FinWait2 { .. } | Phase::CloseWait);
        (is_open && self.receiver.is_ack_pending()).then(|| self.bare(now, self.queue.next()))
    }

    /// RFC 8257 §3.2: an acknowledgment of the data before a change of the marks.
    fn acknowledge_older(&mut self, now: Instant) -> Option<Transmit> {
        let (number, echo) = self.ecn.take_owed()?;
        if matches!(self.phase, Phase::Closed { .. }) {
            return None;
        }
        let older = self.receiver.next().near(number);
        let mut header = TcpHeader::new(if echo { TcpFlags::ACK | TcpFlags::ECE } else { TcpFlags::ACK });
        header.sequence = self.queue.next().sequence();
        header.acknowledgment = number;
        header.window = self.receiver.window_from(older);
        header.options.timestamps = self.timestamps.option(now);
        self.traffic.segments_sent += 1;
        Some(Transmit { header, payload: None, retransmission: false, ecn: 0 })
    }

    /// The SYN, with or without ACK, for the first time or retransmitted.
    fn poll_syn(&mut self, now: Instant, flags: TcpFlags) -> Option<Transmit> {
        let sequence = self.queue.unacknowledged();
        let retransmission = if self.queue.segments().is_empty() {
            self.queue.send_control(now, Content::Syn);
            false
        } else {
            let index = self.queue.first_lost()?;
            self.queue.send_again(now, index, 1);
            self.counters.segments_retransmitted += 1;
            true
        };
        self.timers.retransmit = now.after_nanos(self.rtt.timeout());
        let marks = self.ecn.syn_flags(flags.contains(TcpFlags::ACK), retransmission);
        let mut header = self.header(now, flags | marks, sequence);
        header.options.mss = Some(self.config.mss);
        header.options.window_scale = self.scaling.then(|| self.config.window_shift());
        header.options.sack_permitted = self.sack;
        if flags.contains(TcpFlags::ACK) {
            self.receiver.ack_sent(self.sack, true);
        }
        Some(Transmit { header, payload: None, retransmission, ecn: 0 })
    }

    /// Data and FIN: first what was lost, then probes, then what was never sent.
    fn poll_data(&mut self, now: Instant) -> Option<Transmit> {
        if self.queue.lost() > 0
            && self.may_send_again()
            && let Some(index) = self.queue.first_lost()
        {
            self.recovery.force = false;
            return self.send_again(now, index);
        }
        if self.pending.tail_probe {
            self.pending.tail_probe = false;
            if let Some(probe) = self.send_tail_probe(now) {
                return Some(probe);
            }
        }
        if self.queue.unsent() > 0 {
            if self.pending.window_probe {
                self.pending.window_probe = false;
                if let Some(probe) = self.send_window_probe(now) {
                    return Some(probe);
                }
            }
            self.restart_after_idle(now);
            if let Some(unsent) = self.queue.first_unsent() {
                match self.admit(unsent.len) {
                    Fresh::Send(len) => return Some(self.send_fresh(now, unsent, len)),
                    Fresh::Wait => {}
                    Fresh::Shut => self.schedule_window_probe(now),
                }
            }
        }
        self.pending.window_probe = false;
        if self.may_send_fin() {
            return Some(self.send_fin(now));
        }
        None
    }

    #[inline]
    fn may_send_again(&self) -> bool {
        if !self.recovery.is_open() && matches!(self.recovery.doubt, Doubt::Testing { .. }) {
            return false;
        }
        let in_flight = self.in_flight();
        let window = self.congestion.window();
        // Records may be shorter than a segment. Find the real length only where it decides.
        self.recovery.force
            || in_flight.saturating_add(self.segment) <= window
            || (in_flight < window && in_flight.saturating_add(self.queue.first_lost_len().min(self.segment)) <= window)
    }

    #[inline]
    fn may_send_fin(&self) -> bool {
        self.closing && !self.fin_sent && self.queue.unsent() == 0
    }

    /// How much of the next record may be sent.
    #[inline]
    fn fresh(&self) -> Fresh {
        self.queue.first_unsent().map_or(Fresh::Wait, |unsent| self.admit(unsent.len))
    }

    /// How much of `rest`, the unsent octets of the next record, may be sent: all of it, or one segment, if the windows
    /// permit that. Less only into a window that has no room for more (RFC 9293 §3.8.6.2.1).
    #[inline(always)]
    fn admit(&self, rest: u32) -> Fresh {
        let idle = self.queue.segments().is_empty();
        let len = rest.min(self.segment);
        let usable = self.window_edge().octets_since(self.queue.next());
        if usable < len {
            if !idle {
                return Fresh::Wait;
            }
            // Half of the largest window that the peer ever offered is worth sending, as it may never offer more.
            if usable == 0 || usable < self.largest_window / 2 {
                return Fresh::Shut;
            }
            return Fresh::Send(usable);
        }
        if !idle {
            let admitted = match self.recovery.doubt {
                Doubt::Testing { left } if !self.recovery.is_open() => left > 0,
                // Lost data goes first (RFC 6675 §4, NextSeg (1)), even where only something shorter would fit.
                _ => self.queue.lost() == 0 && self.in_flight().saturating_add(len) <= self.congestion.window(),
            };
            if !admitted {
                return Fresh::Wait;
            }
            // RFC 9293 §3.7.4: the unsent data does not fill a segment, and more may come.
            if self.nagle && self.queue.unsent() < u64::from(self.segment) && !self.closing {
                return Fresh::Wait;
            }
        }
        Fresh::Send(len)
    }

    /// Whether new data can leave now.
    pub(crate) fn may_send_fresh(&self) -> bool {
        self.phase.sends() && matches!(self.fresh(), Fresh::Send(_))
    }

    /// RFC 5681 §4.1: after an idle retransmission time-out, resets the window to the initial one.
    #[inline(always)]
    fn restart_after_idle(&mut self, now: Instant) {
        if !self.restart_after_idle || !self.queue.segments().is_empty() {
            return;
        }
        if now.nanos_since(self.last_sent) > self.rtt.timeout() {
            self.congestion.restart();
            self.last_sent = now;
        }
    }

    /// Sends the next `len` octets for the first time, from the first record that has unsent ones.
    fn send_fresh(&mut self, now: Instant, unsent: Unsent, len: u32) -> Transmit {
        let (sequence, slice, flags) = self.take_fresh(now, unsent, len);
        self.data(now, flags, sequence, Some(slice), len, !slice.whole_first_transmission && self.was_probed(sequence))
    }

    /// Takes the next `len` octets from the queue; returns where they begin, what they are, and their flags.
    #[inline(always)]
    fn take_fresh(&mut self, now: Instant, unsent: Unsent, len: u32) -> (Position, Slice, TcpFlags) {
        let sequence = self.queue.next();
        let slice = self.queue.send_fresh(now, unsent, len);
        if !self.recovery.is_open()
            && let Doubt::Testing { left } = &mut self.recovery.doubt
        {
            *left = left.saturating_sub(1);
        }
        let flags = if self.queue.unsent() == 0 { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK };
        self.timers.persist = Instant::NEVER;
        (sequence, slice, flags)
    }

    /// Whether the octet at `sequence` was sent as a window probe.
    fn was_probed(&self, sequence: Position) -> bool {
        self.queue.segments().back().is_some_and(|segment| segment.start == sequence && segment.retransmitted)
    }

    fn send_fin(&mut self, now: Instant) -> Transmit {
        let sequence = self.queue.next();
        self.queue.send_control(now, Content::Fin);
        self.fin_sent = true;
        self.data(now, TcpFlags::ACK | TcpFlags::FIN, sequence, None, 0, false)
    }

    /// Retransmits a segment of the scoreboard.
    fn send_again(&mut self, now: Instant, index: usize) -> Option<Transmit> {
        let (segment, slice) = self.queue.send_again(now, index, self.segment)?;
        let stamp = self.timestamps.enabled.then(|| self.timestamps.value(now));
        self.recovery.note_retransmission(segment.start, segment.end(), stamp, self.sack);
        self.counters.segments_retransmitted += 1;
        let (flags, len) = match segment.content {
            Content::Fin => (TcpFlags::ACK | TcpFlags::FIN, 0),
            _ => (TcpFlags::ACK | TcpFlags::PSH, segment.len),
        };
        self.counters.octets_retransmitted += u64::from(len);
        if index == 0 {
            // RFC 6298 §5.1 and §5.4: the timer runs from the oldest segment's last transmission.
            self.timers.retransmit = now.after_nanos(self.retransmission_interval());
        }
        Some(self.data(now, flags, segment.start, slice, len, true))
    }

    /// Builds a segment that takes sequence numbers, and accounts for it.
    #[inline(always)]
    fn data(
        &mut self,
        now: Instant,
        flags: TcpFlags,
        sequence: Position,
        payload: Option<Slice>,
        len: u32,
        retransmission: bool,
    ) -> Transmit {
        let (marks, ecn) = if len > 0 { self.ecn.data_marks(!retransmission) } else { (TcpFlags::NONE, 0) };
        let header = self.header(now, flags | marks, sequence);
        self.account(now, len, retransmission);
        Transmit { header, payload, retransmission, ecn }
    }

    /// Accounts for a segment that takes sequence numbers, `len` octets of payload in it.
    #[inline(always)]
    fn account(&mut self, now: Instant, len: u32, retransmission: bool) {
        self.traffic.octets_sent += u64::from(len);
        self.last_sent = now;
        self.congestion.sent(self.in_flight());
        if self.timers.retransmit == Instant::NEVER {
            // Nothing was in flight: RFC 6298 §5.1, and the user time-out starts.
            self.timers.retransmit = now.after_nanos(self.rtt.timeout());
            self.begin_waiting(now);
        }
        if !retransmission && self.sack && self.recovery.may_probe(&self.queue) {
            self.timers.probe = now.after_nanos(self.rtt.probe_timeout());
        }
        if let Mode::Fast { rate, .. } = &mut self.recovery.mode {
            rate.sent(len);
        }
        self.receiver.ack_sent(self.sack, false);
    }

    /// As [`Connection::account`], for new data while nothing is repaired or probed.
    #[inline(always)]
    fn account_plain(&mut self, now: Instant, len: u32) {
        debug_assert!(self.recovery.is_plain() && self.recovery.may_probe(&self.queue));
        self.traffic.octets_sent += u64::from(len);
        self.last_sent = now;
        self.congestion.sent(self.queue.in_flight());
        if self.timers.retransmit == Instant::NEVER {
            self.timers.retransmit = now.after_nanos(self.rtt.timeout());
            self.begin_waiting(now);
        }
        if self.sack {
            self.timers.probe = now.after_nanos(self.rtt.probe_timeout());
        }
        self.receiver.ack_sent(self.sack, false);
    }

    /// RFC 8985 §7.3: new data if the peer has room for it, else the last segment.
    fn send_tail_probe(&mut self, now: Instant) -> Option<Transmit> {
        if self.queue.segments().is_empty() {
            return None;
        }
        self.counters.tail_loss_probes += 1;
        let usable = self.window_edge().octets_since(self.queue.next());
        let unsent = self.queue.first_unsent().filter(|unsent| unsent.len.min(self.segment) <= usable);
        let (transmit, retransmission) = match unsent {
            Some(unsent) => (self.send_fresh(now, unsent, unsent.len.min(self.segment)), false),
            None => {
                let index = self.queue.last()?;
                (self.send_again(now, index)?, true)
            }
        };
        self.recovery.probe_sent(self.queue.next(), retransmission);
        self.timers.probe = Instant::NEVER;
        self.timers.retransmit = now.after_nanos(self.rtt.timeout());
        Some(transmit)
    }

    /// As much as fits into a small window, or one octet into a shut one (RFC 9293 §3.8.6.1).
    fn send_window_probe(&mut self, now: Instant) -> Option<Transmit> {
        if !self.queue.segments().is_empty() {
            return None;
        }
        let usable = self.window_edge().octets_since(self.queue.next());
        if usable > 0 {
            let unsent = self.queue.first_unsent()?;
            return Some(self.send_fresh(now, unsent, usable.min(unsent.len).min(self.segment)));
        }
        let slice = self.queue.probe_octet()?;
        let header = self.header(now, TcpFlags::ACK, self.queue.next());
        self.traffic.octets_sent += 1;
        self.receiver.ack_sent(self.sack, false);
        Some(Transmit { header, payload: Some(slice), retransmission: self.persist_backoff > 1, ecn: 0 })
    }

    /// Sets the timer for data that waits for a window while nothing in flight will bring an acknowledgment.
    fn schedule_window_probe(&mut self, now: Instant) {
        if self.timers.persist == Instant::NEVER {
            self.persist_backoff = 0;
            self.timers.persist = now.after_nanos(self.window_probe_interval());
            self.begin_waiting(now);
        }
    }

    /// RFC 9293 §3.8.6.1: the first probe after a retransmission time-out, then at growing intervals.
    pub(crate) fn window_probe_interval(&self) -> u64 {
        let timeout = self.rtt.timeout();
        let ceiling = self.longest_silence();
        timeout.checked_shl(self.persist_backoff.min(32)).map_or(ceiling, |time| time.min(ceiling))
    }

    /// RFC 6298 §5.5. For data beyond the peer's shrunken window, a retransmission is a window probe.
    pub(crate) fn retransmission_interval(&self) -> u64 {
        let timeout = self.rtt.timeout();
        if self.is_beyond_window() { timeout.min(self.longest_silence()) } else { timeout }
    }

    /// The longest silence that leaves several window probes within the user time-out: a peer that answers them stays
    /// connected.
    fn longest_silence(&self) -> u64 {
        let ceiling = nanos(self.config.rto_max);
        self.config
            .user_timeout
            .map_or(ceiling, |patience| ceiling.min((nanos(patience) / 4).max(self.rtt.timeout_without_backoff())))
    }

    /// Whether the peer has shrunk its window so far that it does not admit the oldest segment in flight (RFC 9293
    /// §3.8.6).
    pub(crate) fn is_beyond_window(&self) -> bool {
        self.queue.segments().front().is_some_and(|first| first.end() > self.window_edge())
    }

    /// Starts the user time-out, unless it is running.
    #[inline]
    fn begin_waiting(&mut self, now: Instant) {
        self.waiting_since = now;
        if self.timers.user == Instant::NEVER
            && let Some(patience) = self.config.user_timeout
        {
            self.timers.user = now.after_nanos(nanos(patience));
        }
    }
}
