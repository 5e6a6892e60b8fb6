//! Loss detection and repair: RACK and tail loss probes (RFC 8985), proportional rate reduction (RFC 6937), and undoing
//! needless responses (RFC 3522, 3708, 4015, 5682).
//!
//! RACK replaces the rules of RFC 6675 §4 (IsLost). Its reordering window is zero once three segments behind a gap are
//! reported (DupThresh), so it finds the same losses, and also lost retransmissions and tails. For peers without SACK,
//! duplicates are counted as in RFC 5681 §3.2 and 6582.

use std::collections::VecDeque;

use crate::instant::Instant;
use crate::position::Position;
use crate::queue::{Delivered, Fate, SendQueue};
use crate::rtt::RttEstimator;

#[cfg(test)]
mod tests;

/// DupThresh of RFC 5681 §3.2 and RFC 8985 §6.2.
pub(crate) const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries for which a grown reordering window is kept (RFC 8985 §6.2, step 4).
const WINDOW_PERSISTENCE: u8 = 16;

/// Whether losses are being repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// No.
    Open,
    /// Fast recovery, until everything sent before it began is acknowledged.
    Fast { until: Position, rate: RateReduction },
    /// After a time-out, until everything sent before it is acknowledged.
    Loss { until: Position },
}

/// Proportional rate reduction (RFC 6937 §3) with the slow-start reduction bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateReduction {
    /// prr_delivered.
    delivered: u64,
    /// prr_out.
    sent: u64,
    /// RecoverFS.
    flight: u64,
}

impl RateReduction {
    pub(crate) fn new(flight: u32) -> RateReduction {
        RateReduction { delivered: 0, sent: 0, flight: u64::from(flight.max(1)) }
    }

    /// `len` octets were sent during recovery.
    #[inline]
    pub(crate) fn sent(&mut self, len: u32) {
        self.sent += u64::from(len);
    }

    /// The window after an acknowledgment of `delivered` octets. `progress`: the cumulative acknowledgment advanced and
    /// no further loss was found.
    pub(crate) fn window(
        &mut self,
        delivered: u32,
        in_flight: u32,
        threshold: u32,
        segment: u32,
        progress: bool,
    ) -> u32 {
        self.delivered += u64::from(delivered);
        let (in_flight, threshold) = (u64::from(in_flight), u64::from(threshold));
        let room = if in_flight > threshold {
            (self.delivered * threshold).div_ceil(self.flight).saturating_sub(self.sent)
        } else {
            let limit = self.delivered.saturating_sub(self.sent).max(u64::from(delivered));
            (limit + if progress { u64::from(segment) } else { 0 }).min(threshold - in_flight)
        };
        u32::try_from(in_flight + room).unwrap_or(u32::MAX)
    }
}

/// An open tail loss probe (RFC 8985 §7.1).
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// TLP.end_seq.
    end: Position,
    /// TLP.is_retrans.
    retransmission: bool,
}

/// Whether a time-out may have been spurious (F-RTO, RFC 5682): the numbers are the steps of its algorithm. Used only
/// without timestamps; with them the first acknowledgment decides (RFC 3522).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    No,
    /// Step 2: the oldest segment, which ends at `end`, was retransmitted; waiting for its acknowledgment.
    Resent {
        end: Position,
    },
    /// Step 3: this many segments of new data may be sent whatever the congestion window says, and nothing is
    /// retransmitted before the next acknowledgment.
    Testing {
        left: u8,
    },
}

/// What an acknowledgment reveals about an open probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Pending,
    /// Nothing was lost. `needless`: the octets that the probe retransmitted had arrived.
    Fine {
        needless: bool,
    },
    /// The probe repaired a loss, which no other event will show.
    Repaired,
}

/// A retransmitted range, and how many retransmissions of it are not yet reported as duplicates.
#[derive(Clone, Copy, Debug)]
struct SentAgain {
    start: Position,
    end: Position,
    times: u32,
}

/// State needed to undo a response.
#[derive(Debug, Default)]
struct Undo {
    /// Timestamp of the first retransmission: an echo of an earlier one shows that the original arrived (RFC 3522).
    stamp: Option<u32>,
    /// Retransmissions that may have been needed (RFC 3708 §3), in the order of the sequence space.
    needed: VecDeque<SentAgain>,
    /// Something was retransmitted.
    retransmitted: bool,
    /// Fast recovery, not a time-out: late segments were reordered.
    fast: bool,
    /// There is a response that may be undone.
    armed: bool,
}

impl Undo {
    /// Clears everything but keeps the memory for the next response.
    fn reset(&mut self) {
        let mut needed = std::mem::take(&mut self.needed);
        needed.clear();
        *self = Undo { needed, ..Undo::default() };
    }

    /// `start .. end` was retransmitted.
    fn note(&mut self, start: Position, end: Position) {
        let place = self.needed.partition_point(|range| (range.start, range.end) < (start, end));
        match self.needed.get_mut(place) {
            Some(range) if (range.start, range.end) == (start, end) => range.times += 1,
            _ => self.needed.insert(place, SentAgain { start, end, times: 1 }),
        }
    }

    /// `left .. right` arrived twice, in one segment or in several that the peer reports together. Returns whether
    /// every retransmission is now known to be needless. A duplicate of anything else was made by the network, and says
    /// nothing about the response (RFC 3708 §3).
    fn duplicate(&mut self, left: Position, right: Position) -> bool {
        let first = self.needed.partition_point(|range| range.start < left);
        let (mut kept, mut index) = (first, first);
        let mut found = false;
        while let Some(mut range) = self.needed.get(index).copied()
            && range.start < right
        {
            // Of a range that ends behind `right`, some was needed.
            if range.end <= right {
                found = true;
                range.times -= 1;
            }
            if range.times > 0 {
                self.needed[kept] = range;
                kept += 1;
            }
            index += 1;
        }
        self.needed.drain(kept..index);
        found && self.needed.is_empty()
    }
}

/// First the fields that each segment touches, then the rare ones.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Recovery {
    /// RACK.xmit_ts and RACK.end_seq of the segment sent last among the delivered ones.
    sent_at: Instant,
    end: Position,
    /// RACK.rtt in ns.
    rtt: u64,
    /// Duplicate acknowledgments from a peer without SACK.
    pub(crate) duplicates: u32,
    reordering_seen: bool,
    /// `probe` is open.
    probing: bool,
    /// `duplicate_round` has not ended.
    in_round: bool,
    /// The next retransmission is sent whatever the congestion window says.
    pub(crate) force: bool,
    /// The discriminant comes first: only it is touched in the usual case.
    pub(crate) mode: Mode,
    /// Not [`Doubt::No`] in [`Mode::Loss`] alone.
    pub(crate) doubt: Doubt,
    probe: Probe,
    /// RACK.dsack_round.
    duplicate_round: Position,
    /// `None` until there was a response.
    undo: Option<Box<Undo>>,
    /// RACK.reo_wnd_mult.
    multiplier: u8,
    /// RACK.reo_wnd_persist.
    persistence: u8,
}

impl Recovery {
    pub(crate) fn new(initial: Position) -> Recovery {
        Recovery {
            mode: Mode::Open,
            sent_at: Instant::ZERO,
            end: initial,
            rtt: 0,
            reordering_seen: false,
            multiplier: 1,
            persistence: 0,
            in_round: false,
            duplicate_round: initial,
            probing: false,
            probe: Probe { end: initial, retransmission: false },
            duplicates: 0,
            force: false,
            doubt: Doubt::No,
            undo: None,
        }
    }

    /// Whether the network was seen to reorder.
    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Whether losses are being repaired.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open)
    }

    /// Where that begins which is rare.
    #[inline]
    pub(crate) fn rare_place(&self) -> usize {
        core::ptr::from_ref(&self.mode).addr() + size_of::<u64>()
    }

    /// Whether nothing is being repaired, probed or counted, so the fast path applies.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_open() && !self.probing && self.duplicates == 0
    }

    /// RFC 8985 §6.2, steps 1 to 3. `echo_is_older`: the echoed timestamp is older than the segment's last
    /// transmission.
    #[inline]
    pub(crate) fn update(
        &mut self,
        now: Instant,
        delivered: &Delivered,
        rtt: &RttEstimator,
        echo_is_older: impl Fn(Instant) -> bool,
    ) {
        self.reordering_seen |= delivered.reordered;
        let Some((sent_at, end, retransmitted)) = delivered.newest else { return };
        let round_trip = now.nanos_since(sent_at);
        if retransmitted && (echo_is_older(sent_at) || rtt.minimum().is_some_and(|minimum| round_trip < minimum)) {
            // It answers an earlier transmission.
            return;
        }
        self.delivered(sent_at, end, round_trip);
    }

    /// RFC 8985 §6.2, step 2: the segment sent last among those delivered.
    #[inline]
    pub(crate) fn delivered(&mut self, sent_at: Instant, end: Position, round_trip: u64) {
        self.rtt = round_trip;
        if (sent_at, end) > (self.sent_at, self.end) {
            self.sent_at = sent_at;
            self.end = end;
        }
    }

    /// RFC 8985 §6.2, step 4.
    pub(crate) fn reordering_window(&self, queue: &SendQueue, rtt: &RttEstimator) -> u64 {
        if !self.reordering_seen && (!self.is_open() || queue.sacked_segments() >= DUPLICATE_THRESHOLD) {
            return 0;
        }
        let minimum = rtt.minimum().unwrap_or(0);
        (minimum / 4).saturating_mul(u64::from(self.multiplier)).min(rtt.smoothed().unwrap_or(0))
    }

    /// RFC 8985 §6.2, step 5: marks losses. Returns whether there are any, and when to check again.
    pub(crate) fn detect(
        &mut self,
        now: Instant,
        queue: &mut SendQueue,
        rtt: &RttEstimator,
    ) -> (bool, Option<Instant>) {
        let patience = self.rtt.saturating_add(self.reordering_window(queue, rtt));
        queue.overtake((self.sent_at, self.end));
        let mut found = false;
        while let Some((index, sent_at)) = queue.oldest_overtaken()
            && sent_at.after_nanos(patience) <= now
        {
            queue.set_fate(index, Fate::Lost);
            found = true;
        }
        let again = queue.newest_overtaken().map(|sent_at| sent_at.after_nanos(patience));
        (found, again)
    }

    /// RFC 8985 §6.3: marks losses when the retransmission timer expires.
    pub(crate) fn mark_on_timeout(&mut self, now: Instant, queue: &mut SendQueue, rtt: &RttEstimator, sack: bool) {
        let window = self.reordering_window(queue, rtt);
        for index in 0..queue.segments().len() {
            let segment = queue.segments()[index];
            let due = segment.sent_at.after_nanos(self.rtt.saturating_add(window));
            // Without SACK nothing else would ever find the other losses (RFC 5681 §3.1).
            if segment.fate == Fate::InFlight && (index == 0 || !sack || due <= now) {
                queue.set_fate(index, Fate::Lost);
            }
        }
    }

    /// The peer reported `left .. right` as a duplicate (RFC 8985 §6.2, step 4). `next` is SND.NXT. Returns whether
    /// every retransmission is now known to have been needless (RFC 3708).
    pub(crate) fn duplicate_reported(&mut self, next: Position, (left, right): (Position, Position)) -> bool {
        if !self.in_round {
            self.in_round = true;
            self.duplicate_round = next;
            self.multiplier = self.multiplier.saturating_add(1);
            self.persistence = WINDOW_PERSISTENCE;
        }
        self.undo.as_mut().is_some_and(|undo| undo.duplicate(left, right))
    }

    /// SND.UNA has advanced.
    #[inline]
    pub(crate) fn advanced(&mut self, unacknowledged: Position) {
        self.duplicates = 0;
        if self.in_round {
            self.end_round(unacknowledged);
        }
    }

    /// A separate call, because it reads a cache line that the usual segment does not touch. If it were inlined, the
    /// compiler would read that line whether a round has ended or not.
    #[cold]
    #[inline(never)]
    fn end_round(&mut self, unacknowledged: Position) {
        self.in_round = unacknowledged < self.duplicate_round;
    }

    /// A response begins that may have to be undone.
    pub(crate) fn arm_undo(&mut self, fast: bool) {
        let undo = self.undo.get_or_insert_default();
        undo.reset();
        (undo.fast, undo.armed) = (fast, true);
    }

    /// There is nothing left to undo.
    pub(crate) fn forget_undo(&mut self) {
        if let Some(undo) = &mut self.undo {
            undo.reset();
        }
    }

    /// `start .. end` was retransmitted with this timestamp. Retransmissions outside a response do not belong to the
    /// last one. Without `sack` no duplicate will be reported (RFC 2883), so the range is not kept.
    pub(crate) fn note_retransmission(&mut self, start: Position, end: Position, stamp: Option<u32>, sack: bool) {
        if self.is_open() {
            return;
        }
        if let Some(undo) = self.undo.as_mut().filter(|undo| undo.armed) {
            if sack {
                undo.note(start, end);
            }
            if !undo.retransmitted {
                undo.retransmitted = true;
                undo.stamp = stamp;
            }
        }
    }

    /// Timestamp of the first retransmission of this response. Returned once, to the first acknowledgment that
    /// advances.
    pub(crate) fn take_stamp(&mut self) -> Option<u32> {
        self.undo.as_mut().and_then(|undo| undo.stamp.take())
    }

    /// The response was undone. A needless fast retransmission means reordering that RFC 8985 §6.2, step 3 cannot see,
    /// because the late segments were sent twice.
    pub(crate) fn undone(&mut self) {
        self.reordering_seen |= self.undo.as_ref().is_some_and(|undo| undo.fast);
        self.forget_undo();
        self.mode = Mode::Open;
        self.doubt = Doubt::No;
        self.force = false;
    }

    /// Recovery is complete.
    pub(crate) fn complete(&mut self) {
        self.mode = Mode::Open;
        self.doubt = Doubt::No;
        self.force = false;
        self.persistence = self.persistence.saturating_sub(1);
        if self.persistence == 0 {
            self.multiplier = 1;
        }
    }

    /// Frees memory that a response has left behind, once it is over.
    pub(crate) fn shrink(&mut self) {
        if self.is_open() {
            self.undo = None;
        }
    }

    /// Octets of heap in use.
    pub(crate) fn heap(&self) -> usize {
        let undo = self.undo.as_deref();
        undo.map_or(0, |undo| size_of::<Undo>() + undo.needed.capacity() * size_of::<SentAgain>())
    }

    /// Whether a probe may be scheduled (RFC 8985 §7.2).
    #[inline]
    pub(crate) fn may_probe(&self, queue: &SendQueue) -> bool {
        self.is_open() && !self.probing && queue.sacked() == 0 && queue.lost() == 0
    }

    /// A probe was sent that ends at `end`.
    pub(crate) fn probe_sent(&mut self, end: Position, retransmission: bool) {
        self.probing = true;
        self.probe = Probe { end, retransmission };
    }

    /// RFC 8985 §7.4.2. `duplicate_of`: the end of a duplicate that the acknowledgment reports; `bare`: it acknowledges
    /// nothing new, carries no data and no SACK block.
    #[inline]
    pub(crate) fn probe_answered(
        &mut self,
        acknowledged: Position,
        duplicate_of: Option<Position>,
        bare: bool,
    ) -> ProbeResult {
        let probe = self.probe;
        if !self.probing || acknowledged < probe.end {
            return ProbeResult::Pending;
        }
        let result = if !probe.retransmission {
            ProbeResult::Fine { needless: false }
        } else if duplicate_of == Some(probe.end) {
            ProbeResult::Fine { needless: true }
        } else if acknowledged > probe.end {
            ProbeResult::Repaired
        } else if bare {
            ProbeResult::Fine { needless: true }
        } else {
            return ProbeResult::Pending;
        };
        self.probing = false;
        result
    }

    /// A time-out ends an open probe.
    pub(crate) fn forget_probe(&mut self) {
        self.probing = false;
    }
}
