//! Arriving segments (RFC 9293 §3.10.7), with the checks of RFC 5961 and RFC 7323.

use uwarp_wire::tcp::{TcpFlags, TcpHeader};

use crate::acceptance::is_acceptable;
use crate::connection::{Connection, Reset};
use crate::event::{BufferToken, DropReason, Events, Payload, Received, UsualSegment};
use crate::instant::{Instant, nanos};
use crate::position::Position;
use crate::queue::{Delivered, Fate};
use crate::state::{CloseReason, Phase, StateEvent};

impl Received {
    #[inline]
    fn dropped(payload_len: u32, reason: DropReason) -> Received {
        Received {
            payload: if payload_len == 0 { Payload::None } else { Payload::Discarded },
            events: Events::NONE,
            drop: Some(reason),
        }
    }

    fn event(payload_len: u32, events: Events) -> Received {
        Received { payload: if payload_len == 0 { Payload::None } else { Payload::Discarded }, events, drop: None }
    }
}

/// A round trip of the handshake is no sample from here on, ns: the peer may have answered an earlier SYN, or waited.
const LONGEST_HANDSHAKE: u64 = 1_000_000_000;
/// A peer that probes after such a silence, ns, finds the connection idle.
const LONG_SILENCE: u64 = 1_000_000_000;

impl Connection {
    /// Processes a segment of this connection.
    ///
    /// `payload_len` octets follow the header, in a buffer that the owner calls `token`; `ecn` is the ECN field of the
    /// IP header. Checksums have been verified. The owner must handle the payload at once as the result says, and then
    /// call [`Connection::take_in_order`] and [`Connection::drain_discarded`].
    #[inline]
    pub fn on_segment(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        payload_len: u32,
        ecn: u8,
        token: BufferToken,
    ) -> Received {
        if header.flags.without(TcpFlags::PSH) == TcpFlags::ACK && header.options.sack.is_empty() {
            let segment = UsualSegment {
                flags: header.flags,
                sequence: header.sequence,
                acknowledgment: header.acknowledgment,
                window: header.window,
                timestamps: header.options.timestamps,
                ecn,
                len: payload_len,
            };
            if let Some(events) = self.on_usual_segment_apart(now, &segment) {
                let payload = match payload_len {
                    0 => Payload::None,
                    len => Payload::InOrder { skip: 0, len },
                };
                return Received { payload, events, drop: None };
            }
        }
        self.traffic.segments_received += 1;
        self.on_other_segment(now, header, payload_len, ecn, token)
    }

    /// Whether the connection is open, and nothing is held, lost or being repaired, as in all that are
    /// [usual](Connection::is_usual).
    #[inline(always)]
    pub fn is_undisturbed(&self) -> bool {
        self.phase == Phase::Established
            && self.receiver.is_plain()
            && self.sender.recovery.is_plain()
            && self.sender.queue.sacked() | self.sender.queue.lost() == 0
    }

    /// The usual segment of an [undisturbed](Connection::is_undisturbed) connection: the next data, an acknowledgment
    /// of data in flight, or both.
    ///
    /// As [`Connection::on_segment`], for a segment that needs no more than this: its payload is in order, and nothing
    /// is held or discarded. `None` for any other; nothing has changed then.
    #[inline(always)]
    pub fn on_usual_segment(&mut self, now: Instant, segment: &UsualSegment) -> Option<Events> {
        debug_assert!(self.is_undisturbed());
        let payload_len = segment.len;
        if segment.sequence != self.receiver.next().sequence()
            || payload_len > self.receiver.window()
            || !self.ecn.is_plain(segment.ecn)
        {
            return None;
        }
        let unacknowledged = self.sender.queue.unacknowledged();
        let acknowledgment = unacknowledged.near(segment.acknowledgment);
        if acknowledgment < unacknowledged
            || acknowledgment > self.sender.queue.next()
            || (acknowledgment == unacknowledged && payload_len == 0)
        {
            return None;
        }
        if self.options.timestamps {
            let timestamps = segment.timestamps?;
            if self.timestamps.is_old(timestamps.value, now) {
                return None;
            }
            if self.receiver.next() <= self.receiver.last_ack_sent() {
                self.timestamps.note(timestamps.value, now);
            }
        }
        self.traffic.segments_received += 1;
        self.heard(now);
        // The sequence number is the newest possible, so SND.WL1 and SND.WL2 always permit the update.
        let window = self.options.offered_window(segment.window, false);
        let mut events = self.sender.window.update(self.receiver.next(), acknowledgment, window);
        if acknowledgment > unacknowledged {
            events |= if let Some((sent_at, octets)) = self.sender.queue.acknowledge_oldest(acknowledgment) {
                self.progress_oldest(now, sent_at, octets)
            } else {
                let mut delivered = Delivered::new();
                self.sender.queue.acknowledge(acknowledgment, &mut delivered);
                self.progress_plain(now, &delivered)
            };
        } else if self.timers.persist != Instant::NEVER {
            // A peer that answers window probes, with data too, is alive (RFC 9293 §3.8.6.1).
            self.liveness.waiting_since = now;
        }
        if payload_len > 0 {
            self.receiver.advance_in_order(now, payload_len);
        }
        Some(events)
    }

    /// [`Connection::on_usual_segment`] for any connection, out of line.
    #[inline(never)]
    pub fn on_usual_segment_apart(&mut self, now: Instant, segment: &UsualSegment) -> Option<Events> {
        if self.is_undisturbed() { self.on_usual_segment(now, segment) } else { None }
    }

    /// The segment behind the one that [`Connection::on_usual_segment`] has taken with the same `now`, if nothing else
    /// has happened since and the two differ in sequence number and length alone. False: that function has to take it.
    #[inline(always)]
    pub fn on_alike_segment(&mut self, now: Instant, segment: &UsualSegment) -> bool {
        let next = self.receiver.next();
        if segment.sequence != next.sequence() || segment.len == 0 || segment.len > self.receiver.window() {
            return false;
        }
        self.traffic.segments_received += 1;
        self.sender.window.advance(next);
        self.receiver.advance_in_order(now, segment.len);
        true
    }

    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.liveness.last_received = now;
        if self.liveness.is_probed() {
            self.keep_alive_answered(now);
        }
    }

    fn on_other_segment(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        payload_len: u32,
        ecn: u8,
        token: BufferToken,
    ) -> Received {
        match self.phase {
            Phase::Closed { .. } => Received::dropped(payload_len, DropReason::Closed),
            Phase::SynSent => self.in_syn_sent(now, header, payload_len),
            _ => self.in_synchronised(now, header, payload_len, ecn, token),
        }
    }

    /// RFC 9293 §3.10.7.3.
    fn in_syn_sent(&mut self, now: Instant, header: &TcpHeader, payload_len: u32) -> Received {
        let initial = self.sender.queue.unacknowledged();
        let acknowledges = header.flags.contains(TcpFlags::ACK);
        let acknowledgment = initial.near(header.acknowledgment);
        // First: check the ACK bit.
        if acknowledges && (acknowledgment <= initial || acknowledgment > self.sender.queue.highest()) {
            if !header.flags.contains(TcpFlags::RST) {
                self.pending.reset = Some(Reset::answering(header));
            }
            return Received::dropped(payload_len, DropReason::AckInvalid);
        }
        // Second: check the RST bit. Only a reset that acknowledges our SYN is valid (RFC 5961 §3.2).
        if header.flags.contains(TcpFlags::RST) {
            if !acknowledges {
                return Received::dropped(payload_len, DropReason::ResetInvalid);
            }
            self.finish(StateEvent::ReceiveReset, CloseReason::Reset);
            return Received::event(payload_len, Events::RESET | Events::CLOSED);
        }
        // Fourth: check the SYN bit.
        if !header.flags.contains(TcpFlags::SYN) {
            return Received::dropped(payload_len, DropReason::Unexpected);
        }
        self.learn_peer(header, now);
        self.heard(now);
        if !acknowledges {
            // Simultaneous open: retransmit our SYN, now with an ACK (RFC 9293 §3.5, figure 7).
            self.enter(StateEvent::ReceiveSyn, Phase::SynReceived);
            self.resend_syn();
            return Received::event(payload_len, Events::NONE);
        }
        self.sender.window.opened(acknowledgment);
        self.enter(StateEvent::ReceiveSynAck, Phase::Established);
        self.receiver.acks.owe();
        self.syn_acknowledged(now, header, acknowledgment);
        Received::event(payload_len, Events::ESTABLISHED | Events::SEND_SPACE)
    }

    /// Retransmits the SYN as soon as possible.
    fn resend_syn(&mut self) {
        if !self.sender.queue.segments().is_empty() {
            self.sender.queue.set_fate(0, Fate::Lost);
        }
    }

    /// Our SYN arrived: the first round-trip sample, if it was sent once, or if the timestamp shows that the peer
    /// answers the last one. If it was lost and there is no sample, data starts with a time-out of 3 s.
    fn syn_acknowledged(&mut self, now: Instant, header: &TcpHeader, acknowledgment: Position) {
        let mut delivered = Delivered::new();
        self.sender.queue.acknowledge(acknowledgment, &mut delivered);
        if delivered.ambiguous {
            let was_lost = self.sender.rtt.backoff() > 0;
            let last = delivered.newest.filter(|_| self.counters.retransmissions > 0);
            let answered = last.filter(|(sent_at, ..)| self.timestamps.answers(header, *sent_at));
            let sample = answered.map(|(sent_at, ..)| now.nanos_since(sent_at));
            match sample.filter(|sample| *sample < LONGEST_HANDSHAKE) {
                Some(sample) => self.sender.rtt.sample(now, sample, 1),
                None if was_lost => self.sender.rtt.syn_was_lost(),
                None => {}
            }
            if was_lost {
                self.sender.congestion.syn_was_lost();
            }
        } else if let Some(sent_at) = delivered.oldest_sent {
            self.sender.rtt.sample(now, now.nanos_since(sent_at), 1);
        }
        self.sender.recovery.complete();
        self.open_timers(now);
    }

    /// RFC 9293 §3.10.7.4.
    fn in_synchronised(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        payload_len: u32,
        ecn: u8,
        token: BufferToken,
    ) -> Received {
        let flags = header.flags;
        let next = self.receiver.next();
        let start = next.near(header.sequence);
        // The crossing SYN with ACK of a simultaneous open begins before the window; only its ACK matters.
        let crossing = matches!(self.phase, Phase::SynReceived)
            && flags.contains(TcpFlags::SYN)
            && start == self.receiver.initial();
        // RFC 7323 §5.3, R1: before the sequence number is checked. Resets are exempt (§5.2). A SYN is challenged
        // whatever it carries (RFC 5961 §4.2): a peer that has restarted may no longer offer timestamps.
        let exempt = flags.contains(TcpFlags::RST) || (flags.contains(TcpFlags::SYN) && !crossing);
        if self.timestamps.enabled && !exempt {
            match header.options.timestamps {
                None => return Received::dropped(payload_len, DropReason::NoTimestamp),
                Some(timestamps) if self.timestamps.is_old(timestamps.value, now) => {
                    self.answer_unacceptable(now, payload_len > 0 || flags.sequence_len() > 0);
                    return Received::dropped(payload_len, DropReason::OldTimestamp);
                }
                Some(_) => {}
            }
        }
        if crossing {
            self.ecn.learn_again(flags);
        }
        let (start, flags) = if crossing { (start + 1, flags.without(TcpFlags::SYN)) } else { (start, flags) };
        if crossing && !flags.contains(TcpFlags::ACK) && !flags.contains(TcpFlags::RST) {
            // The peer has not seen our answer. By the echo it learns which SYN that is for (RFC 7323 §4.3, rule 2).
            if let Some(timestamps) = header.options.timestamps {
                self.timestamps.note(timestamps.value, now);
            }
            self.resend_syn();
            return Received::dropped(payload_len, DropReason::Duplicate);
        }
        // First: check the sequence number.
        let data_end = start + payload_len;
        let end = data_end + flags.sequence_len();
        if !self.is_acceptable(start, end) {
            self.look_for_probe(now, header, start, end);
            return self.unacceptable(now, flags, start, data_end, end, payload_len);
        }
        // Second: check the RST bit (RFC 5961 §3.2).
        if flags.contains(TcpFlags::RST) {
            if matches!(self.phase, Phase::TimeWait { .. }) {
                // RFC 1337 §3, fix 1: an old duplicate makes the peer reset a connection that it has forgotten. That
                // must not end TIME-WAIT, which protects the next connection from further duplicates. RFC 9293 would
                // close here.
                return Received::dropped(payload_len, DropReason::ResetInvalid);
            }
            if start != next {
                self.challenge(now);
                return Received::dropped(payload_len, DropReason::ResetChallenged);
            }
            self.finish(StateEvent::ReceiveReset, CloseReason::Reset);
            return Received::event(payload_len, Events::RESET | Events::CLOSED);
        }
        // Fourth: check the SYN bit (RFC 5961 §4.2).
        if flags.contains(TcpFlags::SYN) {
            return self.challenge_syn(now, payload_len);
        }
        // Fifth: check the ACK bit.
        if !flags.contains(TcpFlags::ACK) {
            return Received::dropped(payload_len, DropReason::NoAck);
        }
        let mut events = Events::NONE;
        if matches!(self.phase, Phase::SynReceived) {
            match self.establish(now, header, crossing) {
                Ok(happened) => events |= happened,
                Err(reason) => return Received::dropped(payload_len, reason),
            }
        }
        match self.process_acknowledgment(now, header, start, payload_len, crossing) {
            Ok(happened) => events |= happened,
            Err(reason) => return Received::dropped(payload_len, reason),
        }
        if matches!(self.phase, Phase::Closed { .. }) {
            return Received::event(payload_len, events);
        }
        // RFC 7323 §4.3, rule 2, only for segments that were neither refused above nor forged with a guessed
        // acknowledgment (RFC 5961 §5.2). An older timestamp gets here only if the stored one is outdated (§5.5).
        if let Some(timestamps) = header.options.timestamps
            && self.timestamps.enabled
            && start <= self.receiver.last_ack_sent()
        {
            self.timestamps.note(timestamps.value, now);
        }
        self.heard(now);
        // Sixth: check the URG bit, also with a shut window (§3.4, MUST-66), where only probes and acknowledgments get
        // this far.
        if flags.contains(TcpFlags::URG) {
            events |= self.take_urgent(next.near(header.sequence), header.urgent);
        }
        if payload_len > 0 && self.phase.receives() {
            self.take_mark(flags, ecn);
        }
        // Seventh and eighth: the segment text and the FIN.
        self.process_text(now, start, data_end, flags.contains(TcpFlags::FIN), token, events)
    }

    #[inline]
    fn is_acceptable(&self, start: Position, end: Position) -> bool {
        is_acceptable(self.receiver.next(), self.receiver.edge(), start, end)
    }

    /// A keep-alive probe of the peer (RFC 9293 §3.8.4) shows that it is alive. Each end may lose all answers to its
    /// own probes.
    fn look_for_probe(&mut self, now: Instant, header: &TcpHeader, start: Position, end: Position) {
        let next = self.receiver.next();
        let acknowledgment = self.sender.queue.unacknowledged().near(header.acknowledgment);
        let is_probe = start + 1 == next
            && end <= next
            && header.flags.contains(TcpFlags::ACK)
            && !header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST)
            && acknowledgment >= self.sender.queue.unacknowledged()
            && acknowledgment <= self.sender.queue.highest();
        if !is_probe || matches!(self.phase, Phase::TimeWait { .. }) {
            return;
        }
        let silence = now.nanos_since(self.liveness.last_received);
        let is_idle = self.sender.queue.segments().is_empty() && self.timers.persist == Instant::NEVER;
        if is_idle && silence >= LONG_SILENCE {
            // Our own keep-alive would do it, and may never have a reason to probe.
            self.release_idle_memory();
        }
        self.heard(now);
    }

    fn unacceptable(
        &mut self,
        now: Instant,
        flags: TcpFlags,
        start: Position,
        data_end: Position,
        end: Position,
        payload_len: u32,
    ) -> Received {
        if flags.contains(TcpFlags::RST) {
            return Received::dropped(payload_len, DropReason::ResetInvalid);
        }
        if flags.contains(TcpFlags::SYN) {
            return self.challenge_syn(now, payload_len);
        }
        let reason = if end <= self.receiver.next() { DropReason::Duplicate } else { DropReason::OutsideWindow };
        if reason == DropReason::Duplicate {
            self.receiver.note_duplicate(start, data_end);
        }
        if flags.contains(TcpFlags::FIN)
            && let Phase::TimeWait { until } = &mut self.phase
        {
            // RFC 9293 §3.10.7.4, eighth check: a retransmitted FIN restarts TIME-WAIT.
            *until = now.after_nanos(nanos(self.config.time_wait));
        }
        self.answer_unacceptable(now, start < end);
        Received::dropped(payload_len, reason)
    }

    /// RFC 5961 §4.2: challenges a SYN whatever its number. In TIME-WAIT the owner may accept it as a new connection
    /// (RFC 6191).
    fn challenge_syn(&mut self, now: Instant, payload_len: u32) -> Received {
        let reason = if matches!(self.phase, Phase::TimeWait { .. }) {
            DropReason::SynInTimeWait
        } else {
            DropReason::SynChallenged
        };
        self.challenge(now);
        Received::dropped(payload_len, reason)
    }

    /// Acknowledges a segment that cannot be used. One that takes sequence numbers comes from a peer that needs the
    /// answer. Answers to others are rate-limited, or two confused ends would answer each other for ever.
    fn answer_unacceptable(&mut self, now: Instant, takes_sequence: bool) {
        if takes_sequence {
            self.receiver.acks.owe();
        } else {
            self.challenge(now);
        }
    }

    /// Sends a challenge (RFC 5961 §3.2), rate-limited (§7).
    pub(crate) fn challenge(&mut self, now: Instant) {
        if self.challenges.admit(now) {
            self.receiver.acks.owe();
        }
    }

    /// SYN-RECEIVED: an acknowledgment of our SYN opens the connection (RFC 9293 §3.10.7.4, fifth check).
    fn establish(&mut self, now: Instant, header: &TcpHeader, crossing: bool) -> Result<Events, DropReason> {
        let initial = self.sender.queue.unacknowledged();
        let acknowledgment = initial.near(header.acknowledgment);
        if acknowledgment <= initial || acknowledgment > self.sender.queue.highest() {
            self.pending.reset = Some(Reset::answering(header));
            return Err(DropReason::AckInvalid);
        }
        self.enter(StateEvent::SynAcknowledged, Phase::Established);
        // RFC 9293 §3.10.7.4: SND.WND from this segment, the first with a scaled window.
        let window = self.options.offered_window(header.window, crossing);
        self.sender.window.update(self.receiver.next().near(header.sequence), acknowledgment, window);
        self.syn_acknowledged(now, header, initial + 1);
        if crossing {
            self.receiver.acks.owe();
        }
        if self.sender.is_closing() {
            self.enter(StateEvent::Close, Phase::FinWait1);
        }
        Ok(Events::ESTABLISHED | Events::SEND_SPACE)
    }

    /// Data in the window: processes its mark, and CWR from the peer (RFC 3168 §6.1.3, RFC 8257 §3.2).
    fn take_mark(&mut self, flags: TcpFlags, field: u8) {
        let pending = self.receiver.is_ack_pending();
        let (changed, marked) = self.ecn.received(flags, field, self.receiver.next(), pending);
        self.counters.ecn_marks += u32::from(marked);
        if changed {
            self.receiver.acks.owe();
        }
    }

    fn process_text(
        &mut self,
        now: Instant,
        start: Position,
        end: Position,
        fin: bool,
        token: BufferToken,
        mut events: Events,
    ) -> Received {
        if !self.phase.receives() {
            // CLOSE-WAIT and later: the peer has declared its stream complete.
            let drop = (start < end).then_some(DropReason::DataAfterFin);
            if start < end || fin {
                self.receiver.acks.owe();
            }
            let payload = if start < end { Payload::Discarded } else { Payload::None };
            return Received { payload, events, drop };
        }
        if start == end && !fin {
            return Received { payload: Payload::None, events, drop: None };
        }
        let (payload, drop) = self.receiver.accept(now, start, end, fin, token);
        if self.receiver.finished() {
            events |= self.peer_has_closed(now);
        } else if let Phase::FinWait2 { until } = &mut self.phase
            && let Some(patience) = self.config.fin_wait_2
        {
            *until = now.after_nanos(nanos(patience));
        }
        Received { payload, events, drop }
    }

    /// The peer's FIN and everything before it were received (RFC 9293 §3.10.7.4, eighth check).
    pub(crate) fn peer_has_closed(&mut self, now: Instant) -> Events {
        match self.phase {
            Phase::Established => self.enter(StateEvent::ReceiveFin, Phase::CloseWait),
            Phase::FinWait1 => self.enter(StateEvent::ReceiveFin, Phase::Closing),
            _ => {
                self.wait_for_late_segments(StateEvent::ReceiveFin, now);
                return Events::PEER_FIN | Events::TIME_WAIT;
            }
        }
        Events::PEER_FIN
    }

    /// Enters TIME-WAIT.
    pub(crate) fn wait_for_late_segments(&mut self, event: StateEvent, now: Instant) {
        let until = now.after_nanos(nanos(self.config.time_wait));
        self.enter(event, Phase::TimeWait { until });
        self.ecn.stop();
        self.timers.stop();
        self.sender.queue.shrink();
        self.receiver.reassembly.shrink();
        self.ecn.shrink();
    }
}
