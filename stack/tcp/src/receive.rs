//! The receiving half: the next expected octet, the offered window, and when to acknowledge.

use uwarp_wire::tcp::{SackBlock, SackBlocks, SeqNumber};

use crate::Config;
use crate::event::{BufferToken, DropReason, HeldPayload, Payload};
use crate::instant::{Instant, nanos};
use crate::position::Position;
use crate::reassembly::{Offered, Reassembly, Run};

/// A peer without SACK counts duplicate acknowledgments, so up to this many in a batch are not merged (RFC 5681 §3.2
/// needs three).
const DUPLICATES_OWED: u8 = 4;

/// Segments in order that are each acknowledged at once after one was out of order or a duplicate. A sender that has
/// just repaired a loss has a small window: if only every second segment were acknowledged, losing one acknowledgment
/// could cause a time-out.
const QUICK: u8 = 16;

#[derive(Debug)]
pub(crate) struct Receiver {
    /// IRS.
    initial: Position,
    /// RCV.NXT.
    next: Position,
    /// The highest right edge ever offered: data before it is accepted.
    edge: Position,
    /// The owner's free space.
    space: u32,
    /// Our shift count, once negotiated.
    shift: u8,
    /// Position of the peer's FIN; beyond all data until it arrives.
    fin: Position,
    pub(crate) reassembly: Reassembly,
    /// Send an acknowledgment at the end of the batch.
    ack_now: bool,
    /// Further acknowledgments that must not be merged with it.
    duplicates_owed: u8,
    /// Segments with data since the last acknowledgment.
    unacknowledged: u32,
    /// Segments that are still acknowledged at once.
    quick: u8,
    /// When a delayed acknowledgment is due.
    pub(crate) ack_at: Instant,
    /// RCV.NXT in the last segment sent (Last.ACK.sent of RFC 7323 §4.3).
    last_ack_sent: Position,
    most: u32,
    ack_every: u32,
    /// In ns: up to 4 s, where RFC 9293 §3.8.6.3 allows half of one.
    ack_delay: u32,
    budget: u32,
    /// Two segments' worth of octets: more than a segment brings unless the device has joined several.
    pair: u32,
    /// A segment's worth of window, below which the edge does not move (RFC 9293 §3.8.6.2.2).
    step: u32,
}

impl Receiver {
    pub(crate) fn new(config: &Config, initial: SeqNumber) -> Receiver {
        let initial = Position::first(initial);
        let most = config.receive_window.clamp(1, 1 << 30);
        Receiver {
            initial,
            next: initial + 1,
            edge: initial + 1,
            space: most,
            shift: 0,
            fin: Position::LAST,
            reassembly: Reassembly::default(),
            ack_now: false,
            duplicates_owed: 0,
            unacknowledged: 0,
            quick: 0,
            ack_at: Instant::NEVER,
            last_ack_sent: initial + 1,
            most,
            ack_every: config.ack_every.max(1),
            ack_delay: u32::try_from(nanos(config.delayed_ack)).unwrap_or(u32::MAX),
            budget: config.out_of_order_budget,
            pair: 2 * u32::from(config.mss.max(64) - 12),
            step: u32::from(config.mss.max(64) - 12).min(most / 2).max(1),
        }
    }

    /// The peer's SYN arrived. `shift` is our negotiated window shift, or 0 without scaling.
    pub(crate) fn synchronise(&mut self, initial: SeqNumber, shift: u8) {
        let edge = self.edge.since(self.next);
        self.initial = Position::first(initial);
        self.next = self.initial + 1;
        self.last_ack_sent = self.next;
        self.edge = self.next + u32::try_from(edge).unwrap_or(0);
        self.shift = shift;
    }

    /// IRS.
    pub(crate) fn initial(&self) -> Position {
        self.initial
    }

    /// RCV.NXT.
    #[inline]
    pub(crate) fn next(&self) -> Position {
        self.next
    }

    /// The right edge that the peer may send up to.
    #[inline]
    pub(crate) fn edge(&self) -> Position {
        self.edge
    }

    /// The delay of an acknowledgment, in ns.
    #[inline]
    pub(crate) fn ack_delay(&self) -> u64 {
        u64::from(self.ack_delay)
    }

    /// RCV.NXT in the last segment sent.
    #[inline]
    pub(crate) fn last_ack_sent(&self) -> Position {
        self.last_ack_sent
    }

    /// Whether the peer's FIN and everything before it were received.
    pub(crate) fn finished(&self) -> bool {
        self.next > self.fin
    }

    /// Stream octets received in order.
    pub(crate) fn octets(&self) -> u64 {
        // The SYN and the FIN take a number each.
        self.next.since(self.initial + 1) - u64::from(self.finished())
    }

    /// Whether nothing is held and nothing has to be reported, so the fast path applies.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.reassembly.is_plain() && self.fin == Position::LAST
    }

    /// The window for a segment that is sent now, unscaled on a SYN. Moves the offered edge.
    #[inline(always)]
    pub(crate) fn offer(&mut self, syn: bool) -> u16 {
        let shift = if syn { 0 } else { self.shift };
        let space = self.space.min(self.most).min(0xffff << shift);
        let candidate = self.next + space;
        // RFC 9293 §3.8.6.2.2: the edge moves by a worthwhile step or not at all, and never back.
        let limit = if candidate > self.edge && candidate.since(self.edge) >= u64::from(self.step) {
            candidate
        } else {
            self.edge
        };
        // Rounding down may show the peer up to one unit less than before (RFC 7323 §2.4); data within any earlier
        // offer is still accepted.
        let field = (limit.since(self.next) >> shift).min(0xffff) as u16;
        self.edge = self.edge.max(self.next + (u32::from(field) << shift));
        field
    }

    /// The window field of an acknowledgment older than RCV.NXT. The edge stays where it is.
    pub(crate) fn window_from(&self, acknowledgment: Position) -> u16 {
        (self.edge.since(acknowledgment) >> self.shift).min(0xffff) as u16
    }

    /// Whether something was received in order since the last acknowledgment.
    pub(crate) fn is_ack_pending(&self) -> bool {
        self.next > self.last_ack_sent
    }

    /// The window offered now, in octets.
    pub(crate) fn window(&self) -> u32 {
        self.edge.octets_since(self.next)
    }

    /// The owner's free space.
    #[inline]
    pub(crate) fn space(&self) -> u32 {
        self.space
    }

    /// The next held payload that has become part of the stream.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<HeldPayload> {
        self.reassembly.take(self.next)
    }

    /// Caps what is offered from now on. With `update`, sends a window update if the peer may be waiting for one.
    #[inline]
    pub(crate) fn set_space(&mut self, octets: u32, update: bool) {
        self.space = octets;
        if !update {
            return;
        }
        // A window update is worth a segment when the peer's window is running out and the update doubles it.
        let left = self.edge.octets_since(self.next);
        let new = octets.min(self.most).min(0xffff << self.shift);
        if left <= self.most / 2 && new / 2 >= left && new - left >= self.step {
            self.ack_now = true;
        }
    }

    /// Takes a payload `start .. end` that lies in the window at least in part, or the FIN behind it.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        start: Position,
        end: Position,
        fin: bool,
        token: BufferToken,
    ) -> (Payload, Option<DropReason>) {
        let limit = self.fin.min(self.edge);
        let wanted = end.min(limit);
        if fin && self.fin == Position::LAST && end <= self.edge && end >= self.next {
            self.fin = end;
            self.reassembly.end_at(end);
        }
        let result = if start >= end {
            // RFC 5681 §4.2: a bare FIN ahead of a gap is out of order, too.
            self.ack_now |= fin && end > self.next;
            (Payload::None, None)
        } else if wanted <= self.next {
            self.ack_now = true;
            let reason = if end <= self.next {
                self.note_duplicate(start, end);
                DropReason::Duplicate
            } else if end > self.fin {
                DropReason::DataAfterFin
            } else {
                DropReason::OutsideWindow
            };
            (Payload::Discarded, Some(reason))
        } else if start <= self.next {
            if start < self.next {
                self.note_duplicate(start, self.next);
                self.ack_now = true;
            }
            self.accept_in_order(now, start, wanted, token)
        } else if start >= wanted {
            self.ack_now = true;
            (Payload::Discarded, Some(DropReason::OutsideWindow))
        } else {
            self.accept_ahead(start, wanted, token)
        };
        if self.next == self.fin {
            // The FIN takes one sequence number, and is acknowledged at once.
            self.next = self.fin + 1;
            self.ack_now = true;
        }
        result
    }

    fn accept_in_order(
        &mut self,
        now: Instant,
        start: Position,
        end: Position,
        token: BufferToken,
    ) -> (Payload, Option<DropReason>) {
        let skip = self.next.octets_since(start);
        if self.reassembly.is_empty() {
            let len = end.octets_since(self.next);
            self.advance_in_order(now, len);
            return (Payload::InOrder { skip, len }, None);
        }
        // RFC 5681 §4.2: a segment that fills a gap is acknowledged at once.
        self.ack_now = true;
        if self.reassembly.has_deliverable(self.next) {
            // The owner has not taken earlier data: keep the order.
            self.reassembly.offer(self.next, end, skip, token, u32::MAX);
            self.next = self.reassembly.reach(self.next);
            return (Payload::Held, None);
        }
        let len = end.octets_since(self.next);
        self.reassembly.drop_before(end);
        self.next = self.reassembly.reach(end);
        (Payload::InOrder { skip, len }, None)
    }

    /// The usual case: `len` octets that continue the stream, nothing held.
    #[inline(always)]
    pub(crate) fn advance_in_order(&mut self, now: Instant, len: u32) {
        self.next = self.next + len;
        // RFC 9293 §3.8.6.3: at least every second full-sized segment. A device that joins segments hides their number.
        self.unacknowledged = self.unacknowledged.saturating_add(if len >= self.pair { self.ack_every } else { 1 });
        if self.unacknowledged >= self.ack_every || self.quick > 0 {
            self.quick = self.quick.saturating_sub(1);
            self.ack_now = true;
        } else if self.ack_at == Instant::NEVER {
            self.ack_at = now.after_nanos(u64::from(self.ack_delay));
        }
    }

    fn accept_ahead(&mut self, start: Position, end: Position, token: BufferToken) -> (Payload, Option<DropReason>) {
        // RFC 5681 §4.2: out of order is acknowledged at once.
        self.ack_now = true;
        self.quick = QUICK;
        self.duplicates_owed = self.duplicates_owed.saturating_add(1).min(DUPLICATES_OWED);
        match self.reassembly.offer(start, end, 0, token, self.budget) {
            Offered::Held => (Payload::Held, None),
            Offered::Duplicate => {
                self.reassembly.note_duplicate(Run { start, end });
                (Payload::Discarded, Some(DropReason::Duplicate))
            }
            Offered::OverBudget => (Payload::Discarded, Some(DropReason::OutOfOrderBudget)),
        }
    }

    /// `start .. end` is a duplicate: reports it (RFC 2883 §4), and acknowledges at once.
    pub(crate) fn note_duplicate(&mut self, start: Position, end: Position) {
        if start < end {
            self.reassembly.note_duplicate(Run { start, end });
            // The acknowledgment of the original may have been lost.
            self.quick = QUICK;
        }
    }

    /// Acknowledge at the end of the batch.
    #[inline]
    pub(crate) fn acknowledge_now(&mut self) {
        self.ack_now = true;
    }

    /// The delayed acknowledgment is due.
    pub(crate) fn expire_delay(&mut self, now: Instant) {
        if now >= self.ack_at {
            self.ack_at = Instant::NEVER;
            self.ack_now = true;
        }
    }

    /// Ends receiving: discards held data and sends no further acknowledgment.
    pub(crate) fn stop(&mut self) {
        self.reassembly.clear();
        self.ack_at = Instant::NEVER;
        self.ack_now = false;
        self.duplicates_owed = 0;
    }

    /// Whether a pure acknowledgment is due.
    #[inline]
    pub(crate) fn wants_ack(&self) -> bool {
        self.ack_now
    }

    /// Whether one segment says all that is to be acknowledged, see [`Receiver::ack_sent`].
    #[inline]
    pub(crate) fn owes_at_most_one(&self) -> bool {
        self.duplicates_owed <= 1
    }

    /// A segment with ACK is sent. `sack`: the peer understands SACK; `reported`: this segment carries the blocks.
    #[inline(always)]
    pub(crate) fn ack_sent(&mut self, sack: bool, reported: bool) {
        self.last_ack_sent = self.next;
        self.unacknowledged = 0;
        self.ack_at = Instant::NEVER;
        if self.ack_now {
            self.owed_ack_sent(sack, reported);
        }
    }

    #[inline(never)]
    fn owed_ack_sent(&mut self, sack: bool, reported: bool) {
        if sack {
            // A segment with data has no room for blocks: a pure acknowledgment carries them.
            self.ack_now = !reported && self.reassembly.reports();
            self.duplicates_owed = 0;
        } else {
            self.duplicates_owed = self.duplicates_owed.saturating_sub(1);
            self.ack_now = self.duplicates_owed > 0;
            self.reassembly.take_duplicate();
        }
    }

    /// The blocks for an acknowledgment: the duplicate first (RFC 2883 §4), then the runs, the latest first (RFC 2018
    /// §4).
    pub(crate) fn take_blocks(&mut self, most: usize) -> SackBlocks {
        let mut blocks = SackBlocks::NONE;
        let runs = self.reassembly.take_duplicate().into_iter().chain(self.reassembly.runs().iter().copied());
        for run in runs.take(most) {
            blocks.push(SackBlock { left: run.start.sequence(), right: run.end.sequence() });
        }
        blocks
    }
}
