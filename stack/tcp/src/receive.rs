//! The receiving half: the next expected octet, the offered window, and what is acknowledged.

mod acks;

use uwarp_wire::tcp::{SackBlock, SackBlocks, SeqNumber};

use crate::Config;
use crate::event::{BufferToken, DropReason, HeldPayload, Payload};
use crate::instant::Instant;
use crate::position::Position;
use crate::reassembly::{Offered, Reassembly, Run};
use acks::Acks;

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
    pub(crate) acks: Acks,
    /// RCV.NXT in the last segment sent (Last.ACK.sent of RFC 7323 §4.3).
    last_ack_sent: Position,
    /// [`Config::receive_window`].
    most: u32,
    /// [`Config::out_of_order_budget`].
    budget: u32,
    /// What the window may be: the free space, as far as the limits allow.
    offerable: u32,
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
            acks: Acks::new(config),
            last_ack_sent: initial + 1,
            most,
            budget: config.out_of_order_budget,
            offerable: most.min(0xffff),
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
        self.offerable = self.space.min(self.most).min(0xffff << shift);
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

    /// The window for a segment with data that is sent now. Moves the offered edge if that is worthwhile.
    #[inline(always)]
    pub(crate) fn offer_with_data(&mut self) -> u16 {
        if (self.next + self.offerable).since(self.edge) >= u64::from(self.step) {
            return self.offer(false);
        }
        // The edge stays, and was offered before.
        (self.edge.since(self.next) >> self.shift) as u16
    }

    /// The window for a segment that is sent now, unscaled on a SYN. Moves the offered edge.
    #[inline(never)]
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
        self.offerable = octets.min(self.most).min(0xffff << self.shift);
        if !update {
            return;
        }
        // A window update is worth a segment when the peer's window is running out and the update doubles it.
        let left = self.edge.octets_since(self.next);
        let new = self.offerable;
        if left <= self.most / 2 && new / 2 >= left && new - left >= self.step {
            self.acks.owe();
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
        let withheld = self.reassembly.withheld();
        if fin && self.fin == Position::LAST && end <= self.edge && end >= self.next + withheld {
            self.fin = end;
            self.reassembly.end_at(end);
        }
        let result = if start >= end {
            // RFC 5681 §4.2: a bare FIN ahead of a gap is out of order, too.
            if fin && end > self.next {
                self.acks.owe();
            }
            (Payload::None, None)
        } else if withheld > 0 && start < self.next + withheld {
            self.accept_again(start, wanted, self.next + withheld, token)
        } else if wanted <= self.next {
            self.acks.owe();
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
                self.acks.owe();
            }
            self.accept_in_order(now, start, wanted, token)
        } else if start >= wanted {
            self.acks.owe();
            (Payload::Discarded, Some(DropReason::OutsideWindow))
        } else {
            self.accept_ahead(start, wanted, 0, token)
        };
        if self.next == self.fin {
            // The FIN takes one sequence number, and is acknowledged at once.
            self.next = self.fin + 1;
            self.acks.owe();
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
        self.acks.owe();
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
        self.acks.in_order(now, len);
    }

    /// A payload that begins with octets that the owner has up to `reached`, and that are not acknowledged. They are
    /// not reported as duplicates either, which would tell the peer that they have arrived.
    #[cold]
    fn accept_again(
        &mut self,
        start: Position,
        end: Position,
        reached: Position,
        token: BufferToken,
    ) -> (Payload, Option<DropReason>) {
        if end <= reached {
            self.acks.owe();
            return (Payload::Discarded, Some(DropReason::Duplicate));
        }
        self.accept_ahead(reached, end, reached.octets_since(start), token)
    }

    fn accept_ahead(
        &mut self,
        start: Position,
        end: Position,
        skip: u32,
        token: BufferToken,
    ) -> (Payload, Option<DropReason>) {
        self.acks.out_of_order();
        match self.reassembly.offer(start, end, skip, token, self.budget) {
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
            self.acks.repeated();
        }
    }

    /// Withholds the acknowledgment of the last `octets` that the owner has taken.
    #[cold]
    pub(crate) fn withhold(&mut self, octets: u32) {
        debug_assert_eq!(self.reassembly.withheld(), 0, "octets are withheld already");
        self.next = self.reassembly.withhold(self.next.min(self.fin), octets, self.last_ack_sent);
    }

    /// Acknowledges what was withheld.
    #[cold]
    pub(crate) fn release(&mut self) {
        self.next = self.reassembly.release(self.next);
        if self.next == self.fin {
            self.next = self.fin + 1;
        }
        self.acks.owe();
    }

    /// Ends receiving: discards held data and sends no further acknowledgment.
    pub(crate) fn stop(&mut self) {
        self.reassembly.clear();
        self.acks.stop();
    }

    /// A segment with ACK is sent. `sack`: the peer understands SACK; `reported`: this segment carries the blocks.
    #[inline(always)]
    pub(crate) fn ack_sent(&mut self, sack: bool, reported: bool) {
        self.last_ack_sent = self.next;
        if self.acks.sent() {
            self.owed_ack_sent(sack, reported);
        }
    }

    #[inline(never)]
    fn owed_ack_sent(&mut self, sack: bool, reported: bool) {
        if sack {
            // A segment with data has no room for blocks: a pure acknowledgment carries them.
            self.acks.all_sent(!reported && self.reassembly.reports());
        } else {
            self.acks.one_sent();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_with_data_offers_what_any_other_offers() {
        let mut random = fastrand::Rng::with_seed(9);
        for shift in 0..8 {
            let config = Config { receive_window: 1 << random.u32(8..22), ..Config::default() };
            let mut receivers = [(); 2].map(|()| Receiver::new(&config, SeqNumber(0)));
            receivers.iter_mut().for_each(|receiver| receiver.synchronise(SeqNumber(u32::MAX - 10_000), shift));
            for _ in 0..5_000 {
                let (space, taken) = (random.u32(0..1 << 22), random.u32(..));
                let sets_space = random.u32(0..4) == 0;
                for receiver in &mut receivers {
                    if sets_space {
                        receiver.set_space(space, false);
                    }
                    receiver.advance_in_order(Instant::ZERO, taken % 3_000 % (receiver.window() + 1));
                }
                let [one, other] = &mut receivers;
                assert_eq!(one.offer_with_data(), other.offer(false));
                assert_eq!((one.edge, one.next), (other.edge, other.next));
            }
        }
    }
}
