//! What to send next.

use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::connection::Connection;
use crate::event::{BufferToken, Slice, Transmit, UsualSegment};
use crate::instant::{Instant, nanos};
use crate::position::Position;
use crate::queue::{Content, Unsent};
use crate::recovery::{Doubt, Mode};
use crate::send::{Fin, Fresh};
use crate::state::Phase;

/// Blocks that fit beside a timestamp, and without one (RFC 2018 §3).
const BLOCKS_WITH_TIMESTAMP: usize = 3;
const BLOCKS: usize = 4;

impl Connection {
    /// Whether [`Connection::poll_transmit`] has something to give. Cheap.
    #[inline(always)]
    pub fn wants_transmit(&self) -> bool {
        let owes = self.receiver.acks.is_owed() | self.pending.any() | self.ecn.owes();
        // Most often everything was sent and nothing is lost.
        let is_idle = self.sender.queue.is_plain() && !self.sender.is_closing() && self.phase == Phase::Established;
        owes || !is_idle && self.wants_segment()
    }

    /// As [`Connection::wants_transmit`], if [`Connection::is_usual`] but for an acknowledgment.
    #[inline(always)]
    pub fn wants_acknowledgment(&self) -> bool {
        self.receiver.acks.is_owed()
    }

    /// Whether the queue has a segment that may leave.
    fn wants_segment(&self) -> bool {
        match self.phase {
            Phase::SynSent | Phase::SynReceived => {
                self.sender.queue.segments().is_empty() || self.sender.queue.lost() > 0
            }
            phase if phase.sends() => {
                (self.sender.queue.lost() > 0 && self.sender.may_retransmit())
                    || self.sender.may_send_fin()
                    || (self.sender.queue.unsent() > 0
                        && match self.sender.fresh() {
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
    /// fewer octets. `None`: that has to look for other segments. A segment with more than
    /// [`Connection::effective_mss`] octets is a frame for a device that cuts it, see [`Connection::leave_in_frames`].
    #[inline]
    pub fn next_fresh(&mut self, now: Instant) -> Option<(UsualSegment, Slice)> {
        if self.phase != Phase::Established
            || self.pending.any()
            || self.pending.urgent
            || self.ecn.owes()
            || self.sender.queue.lost() > 0
            || self.sender.queue.unsent() == 0
            || self.sender.queue.is_probed()
        {
            return None;
        }
        self.sender.restart_if_idle(now);
        let unsent = self.sender.queue.first_unsent()?;
        let len = if unsent.len > self.sender.mss.segment && self.leaves_as_frame(&unsent) {
            unsent.len
        } else {
            let Fresh::Send(len) = self.sender.admit(&unsent) else { return None };
            len
        };
        let (sequence, slice, flags) = self.take_fresh(now, unsent, len);
        Some((self.usual(now, flags, sequence, len), slice))
    }

    /// Whether the next record, longer than a segment, leaves as a whole. CWR is for one segment only (RFC 3168
    /// §6.1.2), and a device that cuts may copy it to all.
    #[inline(never)]
    fn leaves_as_frame(&self, unsent: &Unsent) -> bool {
        !self.ecn.announces() && self.sender.admits_frame(unsent)
    }

    /// Octets that may leave behind `segment`, which [`Connection::next_fresh`] has just returned, by
    /// [`Connection::next_alike`].
    #[inline]
    pub fn room_for_alike(&self, segment: &UsualSegment) -> u32 {
        if self.sender.queue.unsent() == 0
            || self.sender.nagle
            // Another acknowledgment is owed, which is to count as sent: RFC 5681 §4.2 for a peer without SACK.
            || self.receiver.acks.is_owed()
            || !self.sender.recovery.is_plain()
            || segment.flags.contains(TcpFlags::CWR)
        {
            return 0;
        }
        let usable = self.sender.usable_window();
        usable.min(self.sender.congestion.window().saturating_sub(self.sender.queue.in_flight()))
    }

    /// The record behind `segment`, if it may leave as one segment or frame too: what [`Connection::next_fresh`] would
    /// return, in fewer steps. `segment` becomes its segment, and `room` is what [`Connection::room_for_alike`] has
    /// left. Since that was asked, nothing else may have happened, and `now` is the same.
    // Inlined, so that what it returns need not be in memory.
    #[inline(always)]
    pub fn next_alike(&mut self, now: Instant, segment: &mut UsualSegment, room: &mut u32) -> Option<Slice> {
        let unsent = self.sender.queue.first_unsent()?;
        let len = unsent.len;
        let is_frame = || len <= self.sender.congestion.frame() && unsent.is_whole();
        if len > *room || len > self.sender.mss.segment && !is_frame() {
            return None;
        }
        *room -= len;
        segment.sequence = self.sender.queue.next().sequence();
        segment.len = len;
        let slice = self.sender.queue.send_fresh(now, unsent, len);
        if self.sender.queue.unsent() == 0 {
            segment.flags |= TcpFlags::PSH;
        }
        // All else that the first one did holds for this one.
        self.traffic.segments_sent += 1;
        self.traffic.octets_sent += u64::from(len);
        self.sender.congestion.sent(self.sender.queue.in_flight());
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
            window: self.receiver.offer_with_data(),
            timestamps: if self.options.timestamps { self.timestamps.option(now) } else { None },
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
        self.is_undisturbed()
            && !(self.sender.is_closing() | self.pending.any() | self.pending.urgent | self.ecn.owes())
            && self.sender.queue.is_plain()
            && self.receiver.acks.is_at_most_one()
    }

    /// Whether the windows permit one more segment, if [`Connection::is_usual`].
    #[inline(always)]
    pub fn has_room_for_segment(&self) -> bool {
        self.sender.has_room_for_segment()
    }

    /// Pushes a record and sends it, if [`Connection::sends_at_once`]. Its octets begin the payload of the segment, and
    /// end it.
    #[inline(always)]
    pub fn send_at_once(&mut self, now: Instant, token: BufferToken, len: u32) -> UsualSegment {
        debug_assert!(self.sends_at_once() && len > 0 && len <= self.sender.mss.segment);
        self.sender.restart_if_idle(now);
        let sequence = self.sender.queue.next();
        self.sender.queue.push_sent(now, token, len);
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
            Phase::SynReceived => {
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
            return Some(self.bare(now, self.sender.queue.next() - 1));
        }
        if self.receiver.acks.is_owed() {
            return Some(self.bare(now, self.sender.queue.next()));
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
        if self.options.timestamps {
            header.options.timestamps = self.timestamps.option(now);
        }
        self.traffic.segments_sent += 1;
        header
    }

    /// A pure acknowledgment, with SACK blocks if there is something to report (RFC 2018 §4).
    fn bare(&mut self, now: Instant, sequence: Position) -> Transmit {
        let mut header = self.header(now, TcpFlags::ACK, sequence);
        if self.options.sack && !self.receiver.is_plain() {
            let most = if self.timestamps.enabled { BLOCKS_WITH_TIMESTAMP } else { BLOCKS };
            header.options.sack = self.receiver.take_blocks(most);
        }
        self.receiver.ack_sent(self.options.sack, true);
        Transmit { header, payload: None, retransmission: false, ecn: 0 }
    }

    /// The acknowledgment of what was received since the last one. It is for a side that is about to abort: its peer
    /// takes for lost what is not acknowledged when the reset arrives.
    pub fn poll_owed_acknowledgment(&mut self, now: Instant) -> Option<Transmit> {
        let is_open =
            matches!(self.phase, Phase::Established | Phase::FinWait1 | Phase::FinWait2 { .. } | Phase::CloseWait);
        (is_open && self.receiver.is_ack_pending()).then(|| self.bare(now, self.sender.queue.next()))
    }

    /// RFC 8257 §3.2: an acknowledgment of the data before a change of the marks.
    fn acknowledge_older(&mut self, now: Instant) -> Option<Transmit> {
        let (number, echo) = self.ecn.take_owed()?;
        if matches!(self.phase, Phase::Closed { .. }) {
            return None;
        }
        let older = self.receiver.next().near(number);
        let mut header = TcpHeader::new(if echo { TcpFlags::ACK | TcpFlags::ECE } else { TcpFlags::ACK });
        header.sequence = self.sender.queue.next().sequence();
        header.acknowledgment = number;
        header.window = self.receiver.window_from(older);
        header.options.timestamps = self.timestamps.option(now);
        self.traffic.segments_sent += 1;
        Some(Transmit { header, payload: None, retransmission: false, ecn: 0 })
    }

    /// The SYN, with or without ACK, for the first time or retransmitted.
    fn poll_syn(&mut self, now: Instant, flags: TcpFlags) -> Option<Transmit> {
        let sequence = self.sender.queue.unacknowledged();
        let retransmission = if self.sender.queue.segments().is_empty() {
            self.sender.queue.send_control(now, Content::Syn);
            false
        } else {
            let index = self.sender.queue.first_lost()?;
            self.sender.queue.retransmit(now, index, 1);
            self.counters.retransmissions += 1;
            true
        };
        self.timers.retransmit = now.after_nanos(self.sender.rtt.timeout());
        let marks = self.ecn.syn_flags(flags.contains(TcpFlags::ACK), retransmission);
        let mut header = self.header(now, flags | marks, sequence);
        header.options.mss = Some(self.config.mss);
        header.options.window_scale = self.options.scaling.then(|| self.config.window_shift());
        header.options.sack_permitted = self.options.sack;
        if flags.contains(TcpFlags::ACK) {
            self.receiver.ack_sent(self.options.sack, true);
        }
        Some(Transmit { header, payload: None, retransmission, ecn: 0 })
    }

    /// Data and FIN: first what was lost, then probes, then what was never sent.
    fn poll_data(&mut self, now: Instant) -> Option<Transmit> {
        if self.sender.queue.lost() > 0
            && self.sender.may_retransmit()
            && let Some(index) = self.sender.queue.first_lost()
        {
            self.sender.recovery.force = false;
            return self.retransmit(now, index);
        }
        if self.pending.tail_probe {
            self.pending.tail_probe = false;
            if let Some(probe) = self.send_tail_probe(now) {
                return Some(probe);
            }
        }
        if self.sender.queue.unsent() > 0 {
            if self.pending.window_probe {
                self.pending.window_probe = false;
                if let Some(probe) = self.send_window_probe(now) {
                    return Some(probe);
                }
            }
            self.sender.restart_if_idle(now);
            if let Some(unsent) = self.sender.queue.first_unsent() {
                match self.sender.admit(&unsent) {
                    Fresh::Send(len) => return Some(self.send_fresh(now, unsent, len)),
                    Fresh::Wait => {}
                    Fresh::Shut => self.schedule_window_probe(now),
                }
            }
        }
        self.pending.window_probe = false;
        if self.sender.may_send_fin() {
            return Some(self.send_fin(now));
        }
        None
    }

    /// Whether new data can leave now.
    pub(crate) fn may_send_fresh(&self) -> bool {
        self.phase.sends() && matches!(self.sender.fresh(), Fresh::Send(_))
    }

    /// Sends the next `len` octets for the first time, from the first record that has unsent ones.
    fn send_fresh(&mut self, now: Instant, unsent: Unsent, len: u32) -> Transmit {
        let (sequence, slice, flags) = self.take_fresh(now, unsent, len);
        self.data(
            now,
            flags,
            sequence,
            Some(slice),
            len,
            !slice.whole_first_transmission && self.sender.was_probed(sequence),
        )
    }

    /// Takes the next `len` octets from the queue; returns where they begin, what they are, and their flags.
    #[inline(always)]
    fn take_fresh(&mut self, now: Instant, unsent: Unsent, len: u32) -> (Position, Slice, TcpFlags) {
        let sequence = self.sender.queue.next();
        let slice = self.sender.queue.send_fresh(now, unsent, len);
        if !self.sender.recovery.is_open()
            && let Doubt::Testing { left } = &mut self.sender.recovery.doubt
        {
            *left = left.saturating_sub(1);
        }
        let flags = if self.sender.queue.unsent() == 0 { TcpFlags::ACK | TcpFlags::PSH } else { TcpFlags::ACK };
        self.timers.persist = Instant::NEVER;
        (sequence, slice, flags)
    }

    fn send_fin(&mut self, now: Instant) -> Transmit {
        let sequence = self.sender.queue.next();
        self.sender.queue.send_control(now, Content::Fin);
        self.sender.fin = Fin::Sent;
        self.data(now, TcpFlags::ACK | TcpFlags::FIN, sequence, None, 0, false)
    }

    /// Retransmits a segment of the scoreboard.
    fn retransmit(&mut self, now: Instant, index: usize) -> Option<Transmit> {
        let limit = self.sender.retransmission_limit(self.sender.queue.segments().get(index)?.len);
        let (segment, slice) = self.sender.queue.retransmit(now, index, limit)?;
        let stamp = self.timestamps.enabled.then(|| self.timestamps.value(now));
        self.sender.recovery.note_retransmission(segment.start, segment.end(), stamp, self.options.sack);
        self.counters.retransmissions += 1;
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
        self.sender.last_sent = now;
        self.sender.congestion.sent(self.sender.in_flight());
        if self.timers.retransmit == Instant::NEVER {
            // Nothing was in flight: RFC 6298 §5.1, and the user time-out starts.
            self.timers.retransmit = now.after_nanos(self.sender.rtt.timeout());
            self.begin_waiting(now);
        }
        if !retransmission && self.options.sack && self.sender.recovery.may_probe(&self.sender.queue) {
            self.timers.probe = now.after_nanos(self.sender.rtt.probe_timeout());
        }
        if let Mode::Fast { rate, .. } = &mut self.sender.recovery.mode {
            rate.sent(len);
        }
        self.receiver.ack_sent(self.options.sack, false);
    }

    /// As [`Connection::account`], for new data while nothing is repaired or probed.
    #[inline(always)]
    fn account_plain(&mut self, now: Instant, len: u32) {
        debug_assert!(self.sender.recovery.is_plain() && self.sender.recovery.may_probe(&self.sender.queue));
        self.traffic.octets_sent += u64::from(len);
        self.sender.last_sent = now;
        self.sender.congestion.sent(self.sender.queue.in_flight());
        if self.timers.retransmit == Instant::NEVER {
            self.timers.retransmit = now.after_nanos(self.sender.rtt.timeout());
            self.begin_waiting(now);
        }
        if self.options.sack {
            self.timers.probe = now.after_nanos(self.sender.rtt.probe_timeout());
        }
        self.receiver.ack_sent(self.options.sack, false);
    }

    /// RFC 8985 §7.3: new data if the peer has room for it, else the last segment.
    fn send_tail_probe(&mut self, now: Instant) -> Option<Transmit> {
        if self.sender.queue.segments().is_empty() {
            return None;
        }
        self.counters.tail_loss_probes += 1;
        let usable = self.sender.usable_window();
        let unsent =
            self.sender.queue.first_unsent().filter(|unsent| unsent.len.min(self.sender.mss.segment) <= usable);
        let (transmit, retransmission) = match unsent {
            Some(unsent) => (self.send_fresh(now, unsent, unsent.len.min(self.sender.mss.segment)), false),
            None => {
                let index = self.sender.cut_off_last_segment()?;
                (self.retransmit(now, index)?, true)
            }
        };
        self.sender.recovery.probe_sent(self.sender.queue.next(), retransmission);
        self.timers.probe = Instant::NEVER;
        self.timers.retransmit = now.after_nanos(self.sender.rtt.timeout());
        Some(transmit)
    }

    /// As much as fits into a small window, or one octet into a shut one (RFC 9293 §3.8.6.1).
    fn send_window_probe(&mut self, now: Instant) -> Option<Transmit> {
        if !self.sender.queue.segments().is_empty() {
            return None;
        }
        let usable = self.sender.usable_window();
        if usable > 0 {
            let unsent = self.sender.queue.first_unsent()?;
            return Some(self.send_fresh(now, unsent, usable.min(unsent.len).min(self.sender.mss.segment)));
        }
        let slice = self.sender.queue.probe_octet()?;
        let header = self.header(now, TcpFlags::ACK, self.sender.queue.next());
        self.traffic.octets_sent += 1;
        self.receiver.ack_sent(self.options.sack, false);
        Some(Transmit { header, payload: Some(slice), retransmission: self.liveness.window_probes > 1, ecn: 0 })
    }

    /// Sets the timer for data that waits for a window while nothing in flight will bring an acknowledgment.
    fn schedule_window_probe(&mut self, now: Instant) {
        if self.timers.persist == Instant::NEVER {
            self.liveness.window_probes = 0;
            self.timers.persist = now.after_nanos(self.window_probe_interval());
            self.begin_waiting(now);
        }
    }

    /// RFC 9293 §3.8.6.1: the first probe after a retransmission time-out, then at growing intervals.
    pub(crate) fn window_probe_interval(&self) -> u64 {
        let timeout = self.sender.rtt.timeout();
        let ceiling = self.longest_silence();
        timeout.checked_shl(u32::from(self.liveness.window_probes.min(32))).map_or(ceiling, |time| time.min(ceiling))
    }

    /// RFC 6298 §5.5. For data beyond the peer's shrunken window, a retransmission is a window probe; for data that the
    /// peer may withhold the acknowledgment of, it asks whether the peer is there.
    pub(crate) fn retransmission_interval(&self) -> u64 {
        let timeout = self.sender.rtt.timeout();
        let is_probe = self.sender.is_beyond_window() || self.liveness.may_withhold;
        if is_probe { timeout.min(self.longest_silence()) } else { timeout }
    }

    /// The longest silence that leaves several window probes within the user time-out: a peer that answers them stays
    /// connected.
    pub(crate) fn longest_silence(&self) -> u64 {
        let ceiling = nanos(self.config.rto_max);
        self.config.user_timeout.map_or(ceiling, |patience| {
            ceiling.min((nanos(patience) / 4).max(self.sender.rtt.timeout_without_backoff()))
        })
    }

    /// Starts the user time-out, unless it is running.
    #[inline]
    fn begin_waiting(&mut self, now: Instant) {
        self.liveness.waiting_since = now;
        if self.timers.user == Instant::NEVER
            && let Some(patience) = self.config.user_timeout
        {
            self.timers.user = now.after_nanos(nanos(patience));
        }
    }
}
