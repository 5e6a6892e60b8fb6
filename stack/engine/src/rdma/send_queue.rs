//! The send queue: elements between posting and completion.

use crate::api::work::{
    AtomicOperands, Completion, CompletionFlags, CompletionOpcode, MAX_SEND_ENTRIES, MalformedElement, SendElement,
    SendFlags, SendOpcode, Sge, Status, entry_at,
};
use crate::rdma::element::UsualElement;
use std::collections::VecDeque;
use uwarp_memory::AccessError;
use uwarp_ring::{Consumer, Slot};
use uwarp_wire::ddp::{Stag, TaggedOffset};
use uwarp_wire::rdmap::{CommitRegion, CommitRequest};

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Consumer<Slot>,
    signal_all: bool,
    complete_on_ack: bool,
    /// Slots from the head of the ring to the element that is being cut or comes next.
    begun: usize,
    /// Slots released since the queue was made.
    released: u64,
    /// The element being cut.
    current: Option<CurrentSend>,
    /// Reads, atomics and commits completed whose elements have not been retired yet.
    reads_done: u32,
    /// What the atomics among them found, and how the commits ended; at most as many as may be outstanding.
    originals: VecDeque<u64>,
    /// Where the former values of the atomics that are outstanding go, if to memory; in the order of their responses.
    sinks: VecDeque<Option<Sge>>,
    /// Ends, in octets of the TCP stream, of begun elements that complete when acknowledged.
    ends: VecDeque<u64>,
    /// Elements completed.
    pub(crate) completed: u64,
}

/// The element being cut: its head, and how far its entries are used up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentSend {
    pub(crate) element: SendElement,
    pub(crate) entry: usize,
    /// Octets of the message before `entry`.
    pub(crate) before: u32,
}

impl SendQueue {
    /// A queue over a ring, empty.
    pub(crate) fn new(ring: Consumer<Slot>, signal_all: bool, complete_on_ack: bool) -> SendQueue {
        SendQueue {
            signal_all,
            complete_on_ack,
            begun: 0,
            released: 0,
            current: None,
            reads_done: 0,
            originals: VecDeque::new(),
            sinks: VecDeque::new(),
            // Never more than there are slots, and never grown on the way.
            ends: VecDeque::with_capacity(if complete_on_ack { ring.capacity() } else { 0 }),
            completed: 0,
            ring,
        }
    }

    /// The ring, with what has not completed.
    pub(crate) fn into_ring(self) -> Consumer<Slot> {
        self.ring
    }

    /// Whether every Send and Write waits for its acknowledgment.
    pub(crate) fn completes_on_ack(&self) -> bool {
        self.complete_on_ack
    }

    /// Whether an element is being cut.
    pub(crate) fn is_cutting(&self) -> bool {
        self.current.is_some()
    }

    /// Whether nothing is outstanding. It looks at the ring, which nobody has done if TCP wanted nothing. What is
    /// posted later comes with a doorbell.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.ring.known() == 0 && self.ring.available() == 0
    }

    /// As [`SendQueue::is_idle`], as of the last look at the ring.
    #[inline]
    pub(crate) fn is_known_idle(&self) -> bool {
        self.ring.known() == 0
    }

    /// How many slots, since the queue was made, lie before the element that is being cut or comes next.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.released + self.begun as u64
    }

    /// The [`SendQueue::position`] at which everything posted so far is begun.
    pub(crate) fn end(&mut self) -> u64 {
        self.released + self.ring.available() as u64
    }

    /// As [`SendQueue::end`], when no response can come any more: only what comes before the first element not begun
    /// that asks for one or, with `stop_at_fence`, that has a fence.
    pub(crate) fn end_unanswered(&mut self, stop_at_fence: bool) -> u64 {
        let posted = self.ring.available();
        let mut at = self.begun;
        while at < posted
            && let Some(Ok(element)) = self.ring.peek(at).map(SendElement::decode)
        {
            if element.opcode.awaits_response() || stop_at_fence && element.flags.contains(SendFlags::FENCE) {
                break;
            }
            at += element.slots();
        }
        self.released + at as u64
    }

    /// Slots from the head to the first element that was not begun.
    pub(crate) fn begun(&self) -> usize {
        self.begun
    }

    /// Whether there is an element that was not begun, as of the last look.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.ring.known() > self.begun
    }

    /// Whether there is an element that was not begun.
    #[inline(always)]
    pub(crate) fn look_for_next(&mut self) -> bool {
        self.has_next() || self.ring.available() > self.begun
    }

    /// The element that comes next, if none is being cut.
    #[inline]
    pub(crate) fn peek_next(&mut self) -> Option<Result<SendElement, MalformedElement>> {
        if self.ring.known() <= self.begun && self.ring.available() <= self.begun {
            return None;
        }
        let element = self.ring.peek(self.begun).map(SendElement::decode)?;
        // A poster publishes all slots of an element together.
        match element {
            Ok(element) if self.ring.known() < self.begun + element.slots() => Some(Err(MalformedElement)),
            other => Some(other),
        }
    }

    /// Whether one element was not begun, no more are posted behind it, and none is being cut.
    #[inline(always)]
    pub(crate) fn has_lone(&mut self) -> bool {
        self.ring.available() == self.begun + 1 && self.current.is_none()
    }

    /// The element of [`SendQueue::has_lone`] if it is a usual one of at most `most` octets.
    #[inline(always)]
    pub(crate) fn lone(&self, most: u32) -> Option<UsualElement<'_>> {
        let slot = self.ring.peek(self.begun)?;
        UsualElement::is_in(slot, most).then(|| UsualElement::of(slot))
    }

    /// As [`SendQueue::finish_whole`], for the element of [`SendQueue::lone`], which has these flags.
    #[inline(always)]
    pub(crate) fn finish_lone(
        &mut self,
        flags: SendFlags,
        number: u32,
        position: impl FnOnce() -> u64,
    ) -> Option<Completion> {
        const ASKS: SendFlags = SendFlags::SIGNALLED.union(SendFlags::COMPLETE_ON_ACK);
        if self.begun > 0 || self.signal_all | self.complete_on_ack || flags.0 & ASKS.0 != 0 {
            return self.finish_next(number, position());
        }
        self.released += 1;
        self.ring.release(1);
        self.completed += 1;
        None
    }

    #[inline(never)]
    fn finish_next(&mut self, number: u32, position: u64) -> Option<Completion> {
        let element = self.peek_next()?.ok()?;
        self.finish_whole(&element, number, position)
    }

    /// The next element is now being cut.
    #[inline]
    pub(crate) fn begin(&mut self, element: SendElement) {
        self.current = Some(CurrentSend { element, entry: 0, before: 0 });
    }

    /// Entry `index` of an element, which is being cut or comes next.
    #[inline]
    pub(crate) fn entry(&self, element: &SendElement, index: usize) -> Option<Sge> {
        entry_of(&self.ring, self.begun, element, index)
    }

    /// The piece of registered memory that holds octets `offset .. offset + length` of the current element's message,
    /// if they lie in the entry that the last [`SendQueue::gather`] has come to.
    #[inline]
    pub(crate) fn piece(&self, offset: u32, length: u32) -> Option<Sge> {
        let current = self.current.as_ref()?;
        let entry = entry_of(&self.ring, self.begun, &current.element, current.entry)?;
        let skip = offset - current.before;
        let is_inside = skip <= entry.length && length <= entry.length - skip;
        is_inside.then_some(Sge { stag: entry.stag, length, offset: entry.offset.wrapping_add(u64::from(skip)) })
    }

    /// The registered memory from octet `offset` of the current element's message on, up to the end of an entry: the
    /// one that the last [`SendQueue::gather`] has come to. `None` if the octet is not in that one.
    pub(crate) fn rest_of_entry(&self, offset: u32) -> Option<Sge> {
        let current = self.current.as_ref()?;
        let entry = entry_of(&self.ring, self.begun, &current.element, current.entry)?;
        let skip = offset.checked_sub(current.before).filter(|skip| *skip < entry.length)?;
        let offset = entry.offset.wrapping_add(u64::from(skip));
        Some(Sge { stag: entry.stag, length: entry.length - skip, offset })
    }

    /// Calls `take` with the pieces of registered memory that hold octets `offset .. offset + length` of the current
    /// element's message, in order. Pieces are asked for with rising offsets.
    /// `Bounds`: there are not so many octets, and what left would not be the message.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        offset: u32,
        length: u32,
        mut take: impl FnMut(Sge) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let Some(current) = &mut self.current else { return Err(AccessError::Bounds) };
        let (mut offset, mut left) = (offset, length);
        while left > 0 {
            let entry = entry_of(&self.ring, self.begun, &current.element, current.entry);
            let entry = entry.ok_or(AccessError::Bounds)?;
            let skip = offset - current.before;
            if skip >= entry.length {
                current.entry += 1;
                current.before += entry.length;
                continue;
            }
            let part = left.min(entry.length - skip);
            take(Sge { stag: entry.stag, length: part, offset: entry.offset.wrapping_add(u64::from(skip)) })?;
            offset += part;
            left -= part;
        }
        Ok(())
    }

    /// Copies all inline data of the element that comes next, or is current. Its slots are posted as one.
    #[inline]
    pub(crate) fn copy_inline_of(&self, element: &SendElement, out: &mut [u8]) -> Result<(), AccessError> {
        for index in 0..element.slots() {
            let slot = self.ring.peek(self.begun + index).ok_or(AccessError::Bounds)?;
            SendElement::copy_inline(slot, index, out);
        }
        Ok(())
    }

    /// Copies octets from `offset` on of the current element's inline data. As [`SendQueue::gather`].
    pub(crate) fn copy_inline(&self, offset: u32, out: &mut [u8]) -> Result<(), AccessError> {
        let current = self.current.ok_or(AccessError::Bounds)?;
        let mut whole = [0u8; crate::api::work::MAX_INLINE];
        let length = (current.element.length as usize).min(whole.len());
        self.copy_inline_of(&current.element, &mut whole[..length])?;
        let from = (offset as usize).min(length);
        let part = out.len().min(length - from);
        out[..part].copy_from_slice(&whole[from..from + part]);
        Ok(())
    }

    /// The current element is built and ends at `position` octets of TCP's stream. False: there is none, a defect.
    #[inline]
    pub(crate) fn finish(&mut self, position: u64) -> bool {
        let Some(current) = self.current.take() else { return false };
        if self.waits_for_ack(&current.element) {
            self.ends.push_back(position);
        }
        self.begun += current.element.slots();
        true
    }

    /// As [`SendQueue::finish`], for the next element, which was built at once. If it is complete already, it is taken
    /// out; gives its completion then, if one is wanted.
    #[inline(always)]
    pub(crate) fn finish_whole(&mut self, element: &SendElement, number: u32, position: u64) -> Option<Completion> {
        let waits = self.waits_for_ack(element);
        if self.begun == 0 && !waits && !element.opcode.awaits_response() {
            return self.take_out(element, number, Status::Success, 0);
        }
        if waits {
            self.ends.push_back(position);
        }
        self.begun += element.slots();
        None
    }

    /// Takes the oldest element out, which is complete. Gives its completion, if one is wanted.
    #[inline]
    fn take_out(&mut self, element: &SendElement, number: u32, status: Status, original: u64) -> Option<Completion> {
        self.released += element.slots() as u64;
        self.ring.release(element.slots());
        self.completed += 1;
        let signalled = self.signal_all || element.flags.contains(SendFlags::SIGNALLED) || !status.is_success();
        signalled.then(|| Completion { immediate: original, ..completion_of(element, number, status) })
    }

    /// Takes the element out that comes next. It is complete, and so is all before it.
    pub(crate) fn complete_next(&mut self, element: &SendElement, number: u32) -> Option<Completion> {
        self.take_out(element, number, Status::Success, 0)
    }

    /// The first slot of the element that comes next.
    pub(crate) fn next_slot(&self) -> Option<&Slot> {
        self.ring.peek(self.begun)
    }

    #[inline]
    fn waits_for_ack(&self, element: &SendElement) -> bool {
        !element.opcode.awaits_response()
            && (self.complete_on_ack || element.flags.contains(SendFlags::COMPLETE_ON_ACK))
    }

    /// A read has completed.
    #[inline]
    pub(crate) fn read_done(&mut self) {
        self.reads_done += 1;
    }

    /// An atomic was begun; what stood in the peer's memory before goes there.
    pub(crate) fn expect_original(&mut self, sink: Option<Sge>) {
        self.sinks.push_back(sink);
    }

    /// Where the former value of the atomic goes whose response came.
    pub(crate) fn take_sink(&mut self) -> Option<Sge> {
        self.sinks.pop_front().flatten()
    }

    /// An atomic has completed; this stood in the peer's memory before.
    pub(crate) fn atomic_done(&mut self, original: u64) {
        self.reads_done += 1;
        self.originals.push_back(original);
    }

    /// A commit has completed with this status.
    pub(crate) fn commit_done(&mut self, status: u32) {
        self.atomic_done(u64::from(status));
    }

    /// Copies octets from `offset` on of the Commit Request that the current element asks for. As
    /// [`SendQueue::gather`].
    pub(crate) fn copy_commit_request(&self, identifier: u32, offset: u32, out: &mut [u8]) -> Result<(), AccessError> {
        let current = self.current.ok_or(AccessError::Bounds)?;
        let mut whole = [0; CommitRequest::emit_len(MAX_SEND_ENTRIES)];
        let mut regions = [CommitRegion { stag: Stag(0), length: 0, offset: TaggedOffset(0) }; MAX_SEND_ENTRIES];
        let mut count = 0;
        while let Some(entry) = self.entry(&current.element, count) {
            regions[count] =
                CommitRegion { stag: Stag(entry.stag), length: entry.length, offset: TaggedOffset(entry.offset) };
            count += 1;
        }
        let length = CommitRequest::emit(identifier, &regions[..count], &mut whole);
        let from = (offset as usize).min(length);
        let part = out.len().min(length - from);
        out[..part].copy_from_slice(&whole[from..from + part]);
        Ok(())
    }

    /// The operands of an atomic, the element that comes next, and where the former value goes, if to memory.
    pub(crate) fn atomic_operands(&self, element: &SendElement) -> Option<(AtomicOperands, Option<Sge>)> {
        if !element.flags.contains(SendFlags::INLINE) {
            return None;
        }
        let mut octets = [0; AtomicOperands::LEN + AtomicOperands::SINK_LEN];
        let octets = octets.get_mut(..element.length as usize)?;
        self.copy_inline_of(element, octets).ok()?;
        let (operands, sink) = octets.split_first_chunk()?;
        let sink = match sink {
            [] => None,
            sink => Some(AtomicOperands::sink_from_octets(sink.try_into().ok()?)),
        };
        Some((AtomicOperands::from_octets(operands), sink))
    }

    /// The immediate data of a Write with Immediate, the element that comes next.
    pub(crate) fn immediate_of(&self, element: &SendElement) -> Option<u64> {
        if !element.flags.contains(SendFlags::INLINE) {
            let last = usize::from(element.entries).checked_sub(1)?;
            return Some(self.entry(element, last)?.offset);
        }
        let mut octets = [0; crate::api::work::MAX_INLINE];
        let octets = octets.get_mut(..element.length as usize)?;
        self.copy_inline_of(element, octets).ok()?;
        octets.last_chunk().map(|last| u64::from_le_bytes(*last))
    }

    /// Takes the oldest element out if it is complete, `acknowledged` octets of the TCP stream being acknowledged.
    /// Gives its completion, if one is wanted.
    #[inline]
    pub(crate) fn retire(&mut self, number: u32, acknowledged: u64) -> Option<Option<Completion>> {
        if self.begun == 0 {
            return None;
        }
        let element = self.ring.peek(0).and_then(|slot| SendElement::decode(slot).ok())?;
        let (mut original, mut status) = (0, Status::Success);
        if element.opcode.awaits_response() {
            if self.reads_done == 0 {
                return None;
            }
            self.reads_done -= 1;
            if element.opcode != SendOpcode::Read {
                original = self.originals.pop_front().unwrap_or_default();
            }
            if matches!(element.opcode, SendOpcode::Commit | SendOpcode::WriteCommit) && original != 0 {
                status = Status::CommitFailed;
            }
        } else if self.waits_for_ack(&element) {
            if self.ends.front().is_none_or(|end| *end > acknowledged) {
                return None;
            }
            self.ends.pop_front();
        }
        self.begun -= element.slots();
        Some(self.take_out(&element, number, status, original))
    }

    /// Slots posted and not completed.
    pub(crate) fn outstanding(&mut self) -> usize {
        self.ring.available()
    }

    /// Takes the oldest element out unfinished; `None` when the queue is empty.
    pub(crate) fn flush_one(&mut self, number: u32, status: Status) -> Option<Completion> {
        let available = self.ring.available();
        if available == 0 {
            self.current = None;
            self.begun = 0;
            self.reads_done = 0;
            self.originals.clear();
            self.sinks.clear();
            self.ends.clear();
            return None;
        }
        let decoded = self.ring.peek(0).map(SendElement::decode)?;
        let (completion, slots) = match decoded {
            Ok(element) => (completion_of(&element, number, status), element.slots().min(available)),
            // Its identifier cannot be trusted, but it stands in the same word.
            Err(MalformedElement) => {
                let id = self.ring.peek(0).map_or(0, |slot| slot.0[1]);
                let (queue_pair, opcode, flags) = (number, CompletionOpcode::Send, CompletionFlags::default());
                let status = Status::LocalOperation;
                (Completion { id, queue_pair, length: 0, invalidated: 0, opcode, status, flags, immediate: 0 }, 1)
            }
        };
        if self.begun == 0 {
            self.current = None;
        }
        self.begun = self.begun.saturating_sub(slots);
        self.released += slots as u64;
        self.ring.release(slots);
        self.completed += 1;
        Some(completion)
    }
}

/// Entry `index` of the element whose first slot is slot `first` of the ring.
#[inline]
fn entry_of(ring: &Consumer<Slot>, first: usize, element: &SendElement, index: usize) -> Option<Sge> {
    if index >= usize::from(element.entries) {
        return None;
    }
    let (slot, place) = SendElement::entry_place(index);
    Some(entry_at(ring.peek(first + slot)?, place))
}

fn completion_of(element: &SendElement, number: u32, status: Status) -> Completion {
    Completion {
        id: element.id,
        queue_pair: number,
        length: element.payload_len(),
        invalidated: 0,
        opcode: match element.opcode {
            SendOpcode::Send | SendOpcode::SendInvalidate => CompletionOpcode::Send,
            SendOpcode::SendImmediate | SendOpcode::Datagram => CompletionOpcode::Send,
            SendOpcode::Write | SendOpcode::WriteImmediate => CompletionOpcode::Write,
            SendOpcode::Immediate => CompletionOpcode::Immediate,
            SendOpcode::Read => CompletionOpcode::Read,
            SendOpcode::FetchAdd => CompletionOpcode::FetchAdd,
            SendOpcode::CompareSwap => CompletionOpcode::CompareSwap,
            SendOpcode::Bind => CompletionOpcode::Bind,
            SendOpcode::LocalInvalidate => CompletionOpcode::LocalInvalidate,
            SendOpcode::Commit | SendOpcode::WriteCommit => CompletionOpcode::Commit,
        },
        status,
        flags: CompletionFlags::default(),
        immediate: 0,
    }
}
