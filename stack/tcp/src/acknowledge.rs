//! Processing acknowledgments: window, scoreboard, round-trip time, losses, congestion.

use uwarp_wire::tcp::{SackBlocks, TcpFlags, TcpHeader};

use crate::connection::Connection;
use crate::event::{BufferToken, DropReason, Events};
use crate::instant::{Instant, nanos};
use crate::position::Position;
use crate::queue::{Delivered, Fate};
use crate::recovery::{DUPLICATE_THRESHOLD, Doubt, Mode, ProbeResult, RateReduction};
use crate::send::{Fin, Sender};
use crate::state::{CloseReason, Phase, StateEvent};
use crate::timestamps::TimestampState;

impl Connection {
    /// As [`Connection::pop_acknowledged`], if there is no other record.
    #[inline(always)]
    pub fn pop_lone_acknowledged(&mut self) -> Option<BufferToken> {
        self.sender.queue.pop_lone_acknowledged()
    }

    /// Effects of an advance while nothing is lost, selectively acknowledged or in doubt.
    #[inline(never)]
    pub(crate) fn progress_plain(&mut self, now: Instant, delivered: &Delivered) -> Events {
        if !delivered.ambiguous
            && let Some(sent_at) = delivered.oldest_sent
        {
            self.sender.rtt.sample(now, now.nanos_since(sent_at), self.sender.queue.segments().len() + 1);
        } else {
            self.sender.rtt.forget_backoff();
        }
        self.sender.recovery.update(now, delivered, &self.sender.rtt, |_| false);
        self.progressed(now, delivered.octets)
    }

    /// The same for an advance over just the oldest segment, which was sent once, at `sent_at`.
    #[inline(always)]
    pub(crate) fn progress_oldest(&mut self, now: Instant, sent_at: Instant, octets: u32) -> Events {
        let round_trip = now.nanos_since(sent_at);
        self.sender.rtt.sample(now, round_trip, self.sender.queue.segments().len() + 1);
        self.sender.recovery.delivered(sent_at, self.sender.queue.unacknowledged(), round_trip);
        self.progressed(now, octets)
    }

    /// The effects on windows and timers of any advance by `octets`.
    #[inline(always)]
    fn progressed(&mut self, now: Instant, octets: u32) -> Events {
        let unacknowledged = self.sender.queue.unacknowledged();
        self.sender.recovery.advanced(unacknowledged);
        self.sender.congestion.count_marks(octets, false, unacknowledged, self.sender.queue.next());
        self.sender.congestion.acknowledged(now, octets, self.sender.rtt.smoothed().unwrap_or(0));
        self.liveness.waiting_since = now;
        self.schedule_retransmission(now);
        Events::SEND_SPACE | Events::OCTETS_ACKED
    }

    /// RFC 9293 §3.10.7.4, fifth check, in the states from ESTABLISHED on. `crossing`: the window is not scaled.
    pub(crate) fn process_acknowledgment(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        start: Position,
        payload_len: u32,
        crossing: bool,
    ) -> Result<Events, DropReason> {
        let before = self.sender.queue.unacknowledged();
        let acknowledgment = before.near(header.acknowledgment);
        // RFC 5961 §5.2: challenge an acknowledgment of octets never sent, or older than any window.
        if acknowledgment > self.sender.queue.highest()
            || before.since(acknowledgment) > u64::from(self.sender.window.largest)
        {
            self.challenge(now);
            return Err(DropReason::AckInvalid);
        }
        if acknowledgment < before {
            // An old acknowledgment has no effect, but the segment's text may be wanted.
            return Ok(Events::NONE);
        }
        let mut events = Events::NONE;
        let window = self.options.offered_window(header.window, crossing);
        let same_window = window == self.sender.window.octets;
        if self.sender.window.is_newer(start, acknowledgment) {
            events |= self.sender.window.update(start, acknowledgment, window);
        }
        if acknowledgment == before && self.sender.queue.segments().is_empty() {
            // A peer that answers window probes is alive (RFC 9293 §3.8.6.1).
            self.liveness.waiting_since = now;
        } else if acknowledgment == before && self.sender.is_beyond_window() {
            // So is a peer that shrank its window below what is in flight and answers its retransmissions (§3.8.6).
            self.liveness.waiting_since = now;
            self.timers.retransmit = self.timers.retransmit.min(now.after_nanos(self.retransmission_interval()));
        } else if acknowledgment == before && payload_len == 0 && self.liveness.may_withhold {
            // And one that has what it does not acknowledge yet.
            self.liveness.waiting_since = now;
        }
        let outstanding = self.sender.queue.next().octets_since(before);
        let bare =
            payload_len == 0 && acknowledgment == before && !header.flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
        let mut delivered = Delivered::new();
        if acknowledgment > before {
            self.sender.queue.acknowledge(acknowledgment, &mut delivered);
        }
        let mut duplicate = None;
        if self.options.sack && !header.options.sack.is_empty() {
            duplicate = self.process_blocks(acknowledgment, &header.options.sack, &mut delivered);
        }
        self.take_sample(now, header, &delivered);
        if acknowledgment > before {
            self.liveness.waiting_since = now;
            self.liveness.window_probes = 0;
            if self.timers.persist != Instant::NEVER {
                // The octet of a probe was accepted. If it was the last one, no data waits for the window.
                self.timers.persist = if self.sender.queue.unsent() == 0 {
                    Instant::NEVER
                } else {
                    now.after_nanos(self.window_probe_interval())
                };
            }
            self.sender.recovery.advanced(acknowledgment);
            events |= Events::SEND_SPACE;
        }
        self.detect_needless(header, acknowledgment > before, duplicate);
        if self.sender.recovery.doubt != Doubt::No {
            self.examine_timeout(&delivered, acknowledgment > before, bare);
        }
        match self.sender.recovery.probe_answered(
            acknowledgment,
            duplicate.map(|(_, right)| right),
            bare && header.options.sack.is_empty() && same_window,
        ) {
            ProbeResult::Repaired => self.respond_to_repaired_tail(outstanding),
            ProbeResult::Fine { needless: true } => self.sender.rtt.peer_delays_longer(),
            _ => {}
        }
        let found = if self.options.sack {
            // An acknowledgment that delivers nothing reveals no losses.
            delivered.octets > 0 && self.find_losses(now)
        } else {
            self.sender.count_duplicates(bare && same_window, acknowledgment > before, &mut delivered)
        };
        if found {
            self.begin_recovery(outstanding);
        }
        let echo = self.ecn.is_echo(header.flags);
        self.sender.congestion.count_marks(delivered.advanced, echo, acknowledgment, self.sender.queue.next());
        if echo {
            self.respond_to_mark(acknowledgment, outstanding);
        }
        self.sender.adjust_window(now, &delivered, acknowledgment > before, found, echo);
        if acknowledgment > before {
            self.schedule_retransmission(now);
            events |= Events::OCTETS_ACKED;
        }
        if delivered.octets > 0 {
            events |= Events::SEND_SPACE;
        }
        self.counters.sack_segments_walked += self.sender.queue.take_walked();
        events |= self.after_fin(now);
        Ok(events)
    }

    /// Takes SACK blocks into the scoreboard. Returns the duplicate that is reported (RFC 2883 §4).
    fn process_blocks(
        &mut self,
        acknowledgment: Position,
        blocks: &SackBlocks,
        delivered: &mut Delivered,
    ) -> Option<(Position, Position)> {
        let mut ranges = [(acknowledgment, acknowledgment); 4];
        let mut count = 0;
        for (range, block) in ranges.iter_mut().zip(blocks) {
            *range = (acknowledgment.near(block.left), acknowledgment.near(block.right));
            count += 1;
        }
        let ranges = &mut ranges[..count];
        let mut duplicate = None;
        if let Some(&(left, right)) = ranges.first()
            && left < right
            && right <= self.sender.queue.highest()
            && acknowledgment.since(left) <= u64::from(self.sender.window.largest)
        {
            // RFC 2883 §5: below the cumulative acknowledgment, or inside the second block.
            let inside = ranges.get(1).is_some_and(|&(start, end)| start <= left && right <= end);
            if right <= acknowledgment || inside {
                duplicate = Some((left, right));
                self.counters.duplicates_reported += 1;
            }
        }
        ranges.sort_unstable();
        for &mut (left, right) in ranges {
            // RFC 2018 §5. Ignore blocks that report octets never sent.
            if left < right && right > acknowledgment && right <= self.sender.queue.highest() {
                if self.sender.piece > 0 {
                    let sizes = (self.sender.piece.min(self.sender.mss.segment), self.sender.mss.segment);
                    self.sender.queue.cut_around(left.max(acknowledgment), right, sizes);
                }
                self.sender.queue.sack(left.max(acknowledgment), right, delivered);
            }
        }
        duplicate
    }

    /// Updates the round-trip time (RFC 6298 §3, RFC 7323 §4.1) and the state of RACK (RFC 8985 §6.2, steps 1 to 3).
    fn take_sample(&mut self, now: Instant, header: &TcpHeader, delivered: &Delivered) {
        if delivered.octets == 0 {
            return;
        }
        if !delivered.ambiguous
            && let Some(sent_at) = delivered.oldest_sent
        {
            self.sender.rtt.sample(now, now.nanos_since(sent_at), self.sender.queue.segments().len() + 1);
        } else if delivered.advanced > 0 && self.timestamps.enabled {
            // The echo shows that this answers a recent segment, but its clock is too coarse for a sample.
            self.sender.rtt.forget_backoff();
        }
        let echo = header.options.timestamps.map(|timestamps| timestamps.echo).filter(|_| self.timestamps.enabled);
        let timestamps = self.timestamps;
        self.sender.recovery.update(now, delivered, &self.sender.rtt, |sent_at| {
            echo.is_some_and(|echo| TimestampState::precedes(echo, timestamps.value(sent_at)))
        });
    }

    /// Undoes a congestion response that was needless: the echoed timestamp shows that the original arrived (RFC 3522,
    /// RFC 4015), or every retransmission is reported as a duplicate (RFC 3708).
    fn detect_needless(&mut self, header: &TcpHeader, advanced: bool, duplicate: Option<(Position, Position)>) {
        let next = self.sender.queue.next();
        let mut needless = duplicate.is_some_and(|range| self.sender.recovery.duplicate_reported(next, range));
        if advanced
            && let Some(stamp) = self.sender.recovery.take_stamp()
            && let Some(timestamps) = header.options.timestamps
            && self.timestamps.enabled
        {
            needless |= TimestampState::precedes(timestamps.echo, stamp);
        }
        if needless {
            self.take_back();
        }
    }

    /// Nothing had been lost (RFC 4015 §3).
    fn take_back(&mut self) {
        if self.sender.congestion.undo() {
            self.counters.undone += 1;
        }
        self.sender.queue.forget_losses();
        self.sender.recovery.undone();
    }

    /// F-RTO (RFC 5682 §2.1, and §3.1 with SACK). After a time-out, the first acknowledgment is answered with new data
    /// instead of more retransmissions. If the next acknowledgment covers a segment that was sent once, before the
    /// time-out, the segments were late and not lost. `bare`: the acknowledgment neither advances nor carries anything.
    fn examine_timeout(&mut self, delivered: &Delivered, advanced: bool, bare: bool) {
        let Mode::Loss { until } = self.sender.recovery.mode else {
            self.sender.recovery.doubt = Doubt::No;
            return;
        };
        let unacknowledged = self.sender.queue.unacknowledged();
        match self.sender.recovery.doubt {
            Doubt::No => {}
            Doubt::Resent { end } if advanced => {
                // Step 2: the acknowledgment covers everything, or not even all retransmissions: the loss was real.
                self.sender.recovery.doubt = Doubt::No;
                if end <= unacknowledged && unacknowledged < until {
                    self.sender.recovery.doubt = Doubt::Testing { left: 2 };
                    if !self.may_send_fresh() {
                        self.sender.recovery.doubt = Doubt::No;
                    }
                }
            }
            // §2.1, step 2a. With SACK (§3.1) the scoreboard accepts a duplicate, and the test continues.
            Doubt::Resent { .. } if bare && !self.options.sack => self.sender.recovery.doubt = Doubt::No,
            Doubt::Resent { .. } => {}
            Doubt::Testing { .. } if delivered.original.is_some_and(|end| end <= until) => self.take_back(),
            Doubt::Testing { .. } if advanced || bare || delivered.octets > 0 => {
                // Step 3a: the losses are real.
                self.sender.recovery.doubt = Doubt::No;
                self.sender.congestion.set_window(self.sender.congestion.window().min(3 * self.sender.mss.segment));
            }
            Doubt::Testing { .. } => {}
        }
    }

    /// RFC 8985 §6.2, step 5: marks losses and schedules the next check.
    pub(crate) fn find_losses(&mut self, now: Instant) -> bool {
        let (found, again) = self.sender.recovery.detect(now, &mut self.sender.queue, &self.sender.rtt);
        self.timers.reorder = again.unwrap_or(Instant::NEVER);
        found
    }

    /// Losses were found: reduces the congestion window once for all of them (RFC 5681 §3.2, RFC 6675 §5).
    pub(crate) fn begin_recovery(&mut self, outstanding: u32) {
        if !self.sender.recovery.is_open() {
            return;
        }
        let flight = outstanding.min(self.sender.congestion.window());
        self.sender.recovery.arm_undo(true);
        self.sender.congestion.reduce(flight);
        self.ecn.reduced(self.sender.queue.next());
        self.sender.recovery.mode = Mode::Fast { until: self.sender.queue.next(), rate: RateReduction::new(flight) };
        self.sender.recovery.force = true;
        self.sender.recovery.forget_probe();
        self.timers.probe = Instant::NEVER;
        self.counters.fast_recoveries += 1;
    }

    /// The peer has echoed a mark: one response per window, for marks and losses together (RFC 3168 §6.1.2).
    fn respond_to_mark(&mut self, acknowledgment: Position, outstanding: u32) {
        if !self.sender.recovery.is_open() || !self.ecn.is_news(acknowledgment) {
            return;
        }
        self.sender.congestion.marked(outstanding.min(self.sender.congestion.window()));
        self.ecn.reduced(self.sender.queue.next());
        self.counters.ecn_reactions += 1;
    }

    /// RFC 8985 §7.4.2: a probe repaired the loss of the last segment, but the network was congested.
    fn respond_to_repaired_tail(&mut self, outstanding: u32) {
        if self.sender.recovery.is_open() {
            self.sender.congestion.reduce(outstanding.min(self.sender.congestion.window()));
            self.sender.congestion.recovered();
            // Evidence that an earlier response was needless does not apply to this one.
            self.sender.recovery.forget_undo();
            self.ecn.reduced(self.sender.queue.next());
            self.counters.fast_recoveries += 1;
        }
    }

    /// Our FIN may have been acknowledged.
    fn after_fin(&mut self, now: Instant) -> Events {
        if self.sender.fin != Fin::Sent || self.sender.queue.unacknowledged() <= self.sender.queue.end() {
            return Events::NONE;
        }
        match self.phase {
            Phase::FinWait1 => {
                let until = self.config.fin_wait_2.map_or(Instant::NEVER, |patience| now.after_nanos(nanos(patience)));
                self.enter(StateEvent::FinAcknowledged, Phase::FinWait2 { until });
                Events::FIN_ACKED
            }
            Phase::Closing => {
                self.wait_for_late_segments(StateEvent::FinAcknowledged, now);
                Events::FIN_ACKED | Events::TIME_WAIT
            }
            Phase::LastAck => {
                self.finish(StateEvent::FinAcknowledged, CloseReason::Finished);
                Events::FIN_ACKED | Events::CLOSED
            }
            _ => Events::NONE,
        }
    }
}

impl Sender {
    /// For a peer without SACK: RFC 5681 §3.2 and RFC 6582 §3.2. Returns whether a loss was found.
    fn count_duplicates(&mut self, duplicate: bool, advanced: bool, delivered: &mut Delivered) -> bool {
        if advanced {
            if let Mode::Fast { until, .. } = self.recovery.mode
                && self.queue.unacknowledged() < until
            {
                // A partial acknowledgment: the next segment is lost, too.
                return self.lose_first();
            }
            return false;
        }
        if !duplicate || self.queue.segments().is_empty() {
            return false;
        }
        self.recovery.duplicates = self.recovery.duplicates.saturating_add(1);
        delivered.octets += self.mss.segment;
        if self.recovery.is_open() && self.recovery.duplicates == DUPLICATE_THRESHOLD {
            return self.lose_first();
        }
        false
    }

    /// The oldest segment is lost. Returns false if it was known to be, or has arrived.
    fn lose_first(&mut self) -> bool {
        match self.queue.segments().front() {
            Some(segment) if segment.fate == Fate::InFlight => {
                // The rest of a frame may have arrived.
                let (len, limit) = (segment.len, self.retransmission_limit(segment.len));
                if len > limit {
                    self.queue.cut(0, limit);
                }
                self.queue.set_fate(0, Fate::Lost);
                self.recovery.force = true;
                true
            }
            _ => false,
        }
    }

    /// Updates the congestion window after an acknowledgment, and ends a recovery. No growth on an acknowledgment with
    /// an ECN echo (RFC 3168 §6.1.2).
    fn adjust_window(&mut self, now: Instant, delivered: &Delivered, advanced: bool, found: bool, echo: bool) {
        let unacknowledged = self.queue.unacknowledged();
        let in_flight = self.in_flight();
        match &mut self.recovery.mode {
            Mode::Open => {
                if advanced && !echo {
                    let rtt = self.rtt.smoothed().unwrap_or(0);
                    self.congestion.acknowledged(now, delivered.octets, rtt);
                }
            }
            Mode::Fast { until, .. } if unacknowledged >= *until => {
                self.congestion.recovered();
                self.recovery.complete();
            }
            Mode::Fast { rate, .. } => {
                if delivered.octets > 0 {
                    let threshold = self.congestion.threshold();
                    let window =
                        rate.window(delivered.octets, in_flight, threshold, self.mss.segment, advanced && !found);
                    self.congestion.set_window(window);
                }
            }
            Mode::Loss { until } => {
                if unacknowledged >= *until {
                    self.recovery.complete();
                }
                if advanced {
                    let rtt = self.rtt.smoothed().unwrap_or(0);
                    self.congestion.acknowledged(now, delivered.octets, rtt);
                }
            }
        }
    }
}
