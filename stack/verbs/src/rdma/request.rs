//! Work requests for a queue pair.

use crate::error::PostErrorReason;
use uwarp_engine::command::Features;
use uwarp_engine::datagram::DatagramPath;
use uwarp_engine::work::{
    AtomicOperands, MAX_INLINE, MAX_RECEIVE_ENTRIES, MAX_SEND_ENTRIES, ReceiveElement, SendElement, SendFlags,
    SendOpcode, Sge,
};
use uwarp_memory::{Access, CompareSwap};
use uwarp_ring::Slot;

/// Most SGEs of a request.
pub const MAX_SGE: usize = if MAX_SEND_ENTRIES < MAX_RECEIVE_ENTRIES { MAX_SEND_ENTRIES } else { MAX_RECEIVE_ENTRIES };

/// Most regions of a Commit.
pub const MAX_COMMIT_REGIONS: usize = MAX_SEND_ENTRIES;

/// Octets of the former value that an atomic operation stores.
const ORIGINAL_LEN: u32 = 8;

/// What a send request carries.
#[derive(Clone, Copy, Debug)]
enum Payload<'a> {
    /// Registered memory, read (or, by a Read, written) when the engine processes the request.
    Entries(&'a [Sge]),
    /// Octets that are copied into the work queue now. Their memory is free when posting returns.
    Inline(&'a [u8]),
    /// [`AtomicOperands`].
    Operands([u8; AtomicOperands::LEN]),
    /// The same, and the sink of the former value: its STag, and whether it has eight octets. Its offset is the
    /// trailer.
    OperandsInto { operands: [u8; AtomicOperands::LEN], stag: u32, fits: bool },
}

/// A request for the send queue: a Send, an RDMA Write, an RDMA Read, Immediate Data, an atomic operation, a Commit, or
/// a local operation.
///
/// SGEs and inline data are copied when it is posted. The memory that SGEs name belongs to the operation until it
/// completes. Without [`signalled`](Self::signalled) a success generates no completion; the next signalled completion
/// of the queue pair also stands for all requests before it.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest<'a> {
    id: u64,
    opcode: SendOpcode,
    flags: SendFlags,
    stag: u32,
    remote_offset: u64,
    payload: Payload<'a>,
    /// What stands behind the payload in the element: the data of a Write with immediate data, the rights of a bind,
    /// the sink's offset of an atomic.
    trailer: u64,
}

impl<'a> SendRequest<'a> {
    fn new(id: u64, opcode: SendOpcode, payload: Payload<'a>) -> Self {
        Self { id, opcode, flags: SendFlags::empty(), stag: 0, remote_offset: 0, payload, trailer: 0 }
    }

    /// A Send (RFC 5040 §4.3) of registered memory, which takes the peer's next receive. The completion contains `id`.
    pub fn send(id: u64, entries: &'a [Sge]) -> Self {
        Self::new(id, SendOpcode::Send, Payload::Entries(entries))
    }

    /// A Send of a few octets that are copied now.
    pub fn send_inline(id: u64, octets: &'a [u8]) -> Self {
        Self::new(id, SendOpcode::Send, Payload::Inline(octets))
    }

    /// An RDMA Write (RFC 5040 §4.2) of registered memory to the peer's region `remote_stag`, from tagged offset
    /// `remote_offset` on.
    pub fn write(id: u64, entries: &'a [Sge], remote_stag: u32, remote_offset: u64) -> Self {
        Self { stag: remote_stag, remote_offset, ..Self::new(id, SendOpcode::Write, Payload::Entries(entries)) }
    }

    /// An RDMA Write of a few octets that are copied now.
    pub fn write_inline(id: u64, octets: &'a [u8], remote_stag: u32, remote_offset: u64) -> Self {
        Self { stag: remote_stag, remote_offset, ..Self::new(id, SendOpcode::Write, Payload::Inline(octets)) }
    }

    /// An RDMA Read (RFC 5040 §4.4) from the peer's region `remote_stag`, tagged offset `remote_offset`, into `sink`.
    /// An iWARP Read has one sink: a slice of one SGE, such as `&[sge]`.
    pub fn read(id: u64, sink: &'a [Sge], remote_stag: u32, remote_offset: u64) -> Self {
        Self { stag: remote_stag, remote_offset, ..Self::new(id, SendOpcode::Read, Payload::Entries(sink)) }
    }

    /// Immediate Data (RFC 7306 §6): `data` comes, as
    /// [`Completion::immediate_data`](crate::Completion::immediate_data), with the completion of the peer's next
    /// receive, whose memory stays untouched. On the wire it is a big-endian number. Both sides must have agreed on
    /// [`Features::immediate`]; [`solicited`](Self::solicited) applies. The 32 bits of a program written for verbs are
    /// a number below 2^32.
    pub fn immediate(id: u64, data: u64) -> Self {
        Self { remote_offset: data, ..Self::new(id, SendOpcode::Immediate, Payload::Entries(&[])) }
    }

    /// A datagram of registered memory, for a queue pair that
    /// [`begin_datagrams`](crate::QueuePairControl::begin_datagrams) was called of. `entries` begins with the
    /// [`DatagramPath::entries`] of `path`, which count as entries of the request. It completes when the frame is
    /// built, and it may be lost. A message that is longer than the port's MTU allows ends the queue pair.
    pub fn datagram(id: u64, path: &DatagramPath, entries: &'a [Sge]) -> Self {
        let (stag, remote_offset) = (path.stag(), path.remote_offset());
        Self { stag, remote_offset, ..Self::new(id, SendOpcode::Datagram, Payload::Entries(entries)) }
    }

    /// A datagram of octets that are copied now. `octets` begins with the [`DatagramPath::block`] of `path`, which
    /// counts as inline data.
    pub fn datagram_inline(id: u64, path: &DatagramPath, octets: &'a [u8]) -> Self {
        let (stag, remote_offset) = (path.stag(), path.remote_offset());
        Self { stag, remote_offset, ..Self::new(id, SendOpcode::Datagram, Payload::Inline(octets)) }
    }

    /// Appends immediate data to a Write, as one request with one completion. The peer gets the data when all of the
    /// Write is in its memory. Both leave in one TCP segment if they fit. It takes as much of the send queue as another
    /// SGE.
    ///
    /// A Send has the low 32 bits of `data` beside its octets, and both take one receive. Both sides must have agreed
    /// on [`Features::infiniband`]. No effect on other operations.
    pub fn with_immediate(mut self, data: u64) -> Self {
        match self.opcode {
            SendOpcode::Write => {
                self.opcode = SendOpcode::WriteImmediate;
                self.trailer = data;
            }
            SendOpcode::Send => {
                self.opcode = SendOpcode::SendImmediate;
                self.remote_offset = data;
            }
            _ => {}
        }
        self
    }

    /// FetchAdd (RFC 7306 §5.1.1): adds `add` to the eight octets at `remote_offset` of the peer's region, in the
    /// peer's byte order. The former value is [`Completion::original_value`](crate::Completion::original_value). Both
    /// sides must have agreed on [`Features::atomics`], the address must be a multiple of eight at the peer, and the
    /// region needs the right `REMOTE_ATOMIC`. It takes one of the slots of reads (ORD).
    pub fn fetch_add(id: u64, remote_stag: u32, remote_offset: u64, add: u64) -> Self {
        Self::fetch_add_masked(id, remote_stag, remote_offset, add, 0)
    }

    /// As [`fetch_add`](Self::fetch_add), for several fields in one word. A bit of `mask` marks the most significant
    /// bit of a field, whose carry is dropped.
    pub fn fetch_add_masked(id: u64, remote_stag: u32, remote_offset: u64, add: u64, mask: u64) -> Self {
        // The fields that a FetchAdd does not use have these values (RFC 7306 §5.2.1).
        let operands = AtomicOperands { add_swap: add, add_swap_mask: mask, compare: 0, compare_mask: u64::MAX };
        Self::atomic(id, SendOpcode::FetchAdd, remote_stag, remote_offset, operands)
    }

    /// CmpSwap (RFC 7306 §5.1.2): if the eight octets at `remote_offset` of the peer's region equal `compare`, they
    /// become `swap`. Otherwise like [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(id: u64, remote_stag: u32, remote_offset: u64, compare: u64, swap: u64) -> Self {
        let operands = CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX };
        Self::compare_swap_masked(id, remote_stag, remote_offset, &operands)
    }

    /// As [`compare_swap`](Self::compare_swap), for some bits only.
    pub fn compare_swap_masked(id: u64, remote_stag: u32, remote_offset: u64, operands: &CompareSwap) -> Self {
        let operands = AtomicOperands {
            add_swap: operands.swap,
            add_swap_mask: operands.swap_mask,
            compare: operands.compare,
            compare_mask: operands.compare_mask,
        };
        Self::atomic(id, SendOpcode::CompareSwap, remote_stag, remote_offset, operands)
    }

    /// Has an atomic operation store the former value in `sink`, too, in this machine's octet order: eight octets of a
    /// region with the right `LOCAL_WRITE`, as verbs have it. They are there before the completion, and without one
    /// before those of later work. It takes one more slot of the send queue. Other operations ignore it.
    pub fn original_into(mut self, sink: Sge) -> Self {
        if let Payload::Operands(operands) | Payload::OperandsInto { operands, .. } = self.payload {
            self.payload = Payload::OperandsInto { operands, stag: sink.stag, fits: sink.length == ORIGINAL_LEN };
            self.trailer = sink.offset;
        }
        self
    }

    fn atomic(id: u64, opcode: SendOpcode, stag: u32, remote_offset: u64, operands: AtomicOperands) -> Self {
        Self { stag, remote_offset, ..Self::new(id, opcode, Payload::Operands(operands.to_octets())) }
    }

    /// RDMA Commit (draft-talpey-rdma-commit §3.2): asks the peer to make octets of its memory durable. The peer
    /// answers when they are. `regions` names them by SGEs with the peer's STags and tagged offsets: up to
    /// [`MAX_COMMIT_REGIONS`], and what fits a segment. Each needs `REMOTE_WRITE`. It covers what this queue pair wrote
    /// before. The result is [`Completion::commit_status`](crate::Completion::commit_status); a failure completes with
    /// [`Status::CommitFailed`](crate::Status::CommitFailed), and the connection continues. Both sides must have agreed
    /// on [`Features::commit`]. It takes one of the slots of Reads (ORD).
    pub fn commit(id: u64, regions: &'a [Sge]) -> Self {
        Self::new(id, SendOpcode::Commit, Payload::Entries(regions))
    }

    /// Appends to a Write a Commit of what it writes, as one request, which completes with the Commit. Both leave in
    /// one TCP segment if they fit. No effect on other operations.
    pub fn with_commit(mut self) -> Self {
        if self.opcode == SendOpcode::Write {
            self.opcode = SendOpcode::WriteCommit;
        }
        self
    }

    /// Invalidates an STag of this side: that of a [`MemoryWindow`](crate::MemoryWindow) or
    /// [`FastRegion`](crate::FastRegion) bound to this queue pair, or of a region registered for it alone. (The peer
    /// can do the same by a Send with Invalidate, RFC 5040 §5.3.) It takes its turn in the posted work; nothing is
    /// sent. Reads that are still to place data there fail: use a [`fence`](Self::fenced). It fails with
    /// [`Status::LocalProtection`](crate::Status::LocalProtection), which ends the connection, if the STag is invalid,
    /// is used by other queue pairs, or has bound windows.
    pub fn local_invalidate(id: u64, stag: u32) -> Self {
        Self { stag, ..Self::new(id, SendOpcode::LocalInvalidate, Payload::Entries(&[])) }
    }

    /// Binds the window that expects `stag` to memory, see [`SendOpcode::Bind`].
    pub(crate) fn bind(id: u64, stag: u32, base: u64, pieces: &'a [Sge], access: Access) -> Self {
        let trailer = SendElement::rights_entry(access).offset;
        Self { stag, remote_offset: base, trailer, ..Self::new(id, SendOpcode::Bind, Payload::Entries(pieces)) }
    }

    /// Asks for a completion on success. A failure always generates one.
    pub fn signalled(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SIGNALLED);
        self
    }

    /// Makes a Send or Immediate Data raise a solicited event at the peer (RFC 5040 §4.3). No effect on other
    /// operations.
    pub fn solicited(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SOLICITED);
        self
    }

    /// Makes a Send invalidate the peer's STag when it is delivered (Send with Invalidate). No effect on other
    /// operations.
    pub fn invalidate(mut self, peer_stag: u32) -> Self {
        if self.opcode == SendOpcode::Send {
            self.opcode = SendOpcode::SendInvalidate;
            self.stag = peer_stag;
        }
        self
    }

    /// Starts this request only when all earlier Reads and atomics of the queue pair have completed.
    pub fn fenced(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::FENCE);
        self
    }

    /// Completes this request when the peer's TCP has acknowledged it, instead of when its memory may be reused.
    pub fn complete_on_ack(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::COMPLETE_ON_ACK);
        self
    }

    /// The slot of the most common request, a Send or Write of one SGE. `None`: [`element`](Self::element) has to look.
    #[inline]
    pub(crate) fn usual_slot(&self, limits: &SendLimits) -> Option<Slot> {
        match self.payload {
            Payload::Entries([entry]) if self.opcode.is_send_or_write() && limits.entries > 0 => {
                Some(SendElement::encode_one(self.opcode, self.flags, self.id, self.stag, self.remote_offset, *entry))
            }
            _ => None,
        }
    }

    /// Checks the request against a queue pair's limits and returns the head of its element.
    #[inline]
    pub(crate) fn element(&self, limits: &SendLimits) -> Result<(SendElement, &[Sge], &[u8]), PostErrorReason> {
        let mut flags = self.flags;
        let (entries, inline): (&[Sge], &[u8]) = match &self.payload {
            Payload::Entries(entries) => (entries, &[]),
            Payload::Inline(octets) => (&[], octets),
            Payload::Operands(operands) | Payload::OperandsInto { operands, .. } => (&[], operands),
        };
        let length = match self.payload {
            Payload::Operands(_) => {
                flags = flags.union(SendFlags::INLINE);
                AtomicOperands::LEN as u32
            }
            Payload::OperandsInto { fits, .. } => {
                if !fits {
                    return Err(PostErrorReason::AtomicSink);
                }
                flags = flags.union(SendFlags::INLINE);
                (AtomicOperands::LEN + AtomicOperands::SINK_LEN) as u32
            }
            // Their octets are the peer's.
            Payload::Entries(_) if self.opcode == SendOpcode::Commit => 0,
            Payload::Entries(entries) if self.opcode == SendOpcode::Datagram => {
                if entries.len() > limits.entries {
                    return Err(PostErrorReason::TooManySges { limit: limits.entries });
                }
                // The first ones are addresses.
                total_length(entries.get(DatagramPath::ENTRIES..).unwrap_or(&[]))?
            }
            Payload::Entries(_) => {
                if entries.len() > limits.entries {
                    return Err(PostErrorReason::TooManySges { limit: limits.entries });
                }
                if self.opcode == SendOpcode::Read && entries.len() != 1 {
                    return Err(PostErrorReason::ReadSink);
                }
                total_length(entries)?
            }
            Payload::Inline(octets) => {
                if self.opcode == SendOpcode::Read {
                    return Err(PostErrorReason::InlineRead);
                }
                if octets.len() > limits.inline.min(self.most_inline()) {
                    return Err(PostErrorReason::InlineTooLong { limit: limits.inline });
                }
                flags = flags.union(SendFlags::INLINE);
                octets.len() as u32
            }
        };
        let element = SendElement {
            id: self.id,
            opcode: self.opcode,
            flags,
            stag: self.stag,
            remote_offset: self.remote_offset,
            length,
            // The queue pair's limit is far below 256; a longer list of a Commit is refused below.
            entries: u8::try_from(entries.len()).unwrap_or(u8::MAX),
        };
        if !self.opcode.is_send_or_write() {
            return Ok((self.rare(element, limits)?, entries, inline));
        }
        Ok((element, entries, inline))
    }

    const fn most_inline(&self) -> usize {
        if matches!(self.opcode, SendOpcode::WriteImmediate) { MAX_INLINE - 8 } else { MAX_INLINE }
    }

    /// Checks and completes the element of a less common operation.
    fn rare(&self, element: SendElement, limits: &SendLimits) -> Result<SendElement, PostErrorReason> {
        match self.opcode {
            SendOpcode::Immediate | SendOpcode::WriteImmediate if !limits.features.immediate => {
                return Err(PostErrorReason::NotAgreed { feature: "immediate data" });
            }
            SendOpcode::SendImmediate if !limits.features.infiniband => {
                return Err(PostErrorReason::NotAgreed { feature: "immediate data beside the octets of a Send" });
            }
            SendOpcode::Commit | SendOpcode::WriteCommit if !limits.features.commit => {
                return Err(PostErrorReason::NotAgreed { feature: "RDMA Commit" });
            }
            SendOpcode::Commit if !(1..=MAX_COMMIT_REGIONS).contains(&usize::from(element.entries)) => {
                return Err(PostErrorReason::CommitRegions { limit: MAX_COMMIT_REGIONS });
            }
            SendOpcode::FetchAdd | SendOpcode::CompareSwap if !limits.features.atomics => {
                return Err(PostErrorReason::NotAgreed { feature: "atomic operations" });
            }
            _ => {}
        }
        Ok(match self.opcode {
            SendOpcode::WriteImmediate if element.flags.contains(SendFlags::INLINE) => {
                SendElement { length: element.length + 8, ..element }
            }
            SendOpcode::WriteImmediate | SendOpcode::Bind if usize::from(element.entries) >= MAX_SEND_ENTRIES => {
                return Err(PostErrorReason::TooManySges { limit: MAX_SEND_ENTRIES - 1 });
            }
            SendOpcode::WriteImmediate | SendOpcode::Bind => SendElement { entries: element.entries + 1, ..element },
            _ => element,
        })
    }

    /// Encodes the request's slots, from what [`element`](Self::element) returned.
    #[inline]
    pub(crate) fn encode(&self, element: &SendElement, entries: &[Sge], inline: &[u8], mut write: impl FnMut(Slot)) {
        if matches!(self.opcode, SendOpcode::WriteImmediate | SendOpcode::Bind)
            || matches!(self.payload, Payload::OperandsInto { .. })
        {
            return self.encode_with_trailer(element, write);
        }
        for index in 0..element.slots() {
            write(element.encode(entries, inline, index));
        }
    }

    /// Encodes a request with a trailer, which follows its entries or inline data.
    #[cold]
    fn encode_with_trailer(&self, element: &SendElement, mut write: impl FnMut(Slot)) {
        let mut entries = [Sge::default(); MAX_SEND_ENTRIES];
        let mut inline = [0; MAX_INLINE];
        match self.payload {
            Payload::Entries(own) => {
                entries[..own.len()].copy_from_slice(own);
                entries[own.len()] = SendElement::immediate_entry(self.trailer);
            }
            Payload::Inline(own) => {
                inline[..own.len()].copy_from_slice(own);
                inline[own.len()..own.len() + 8].copy_from_slice(&self.trailer.to_le_bytes());
            }
            Payload::Operands(operands) => inline[..AtomicOperands::LEN].copy_from_slice(&operands),
            Payload::OperandsInto { operands, stag, .. } => {
                let sink = Sge { stag, length: ORIGINAL_LEN, offset: self.trailer };
                let (first, behind) = inline.split_at_mut(AtomicOperands::LEN);
                first.copy_from_slice(&operands);
                behind[..AtomicOperands::SINK_LEN].copy_from_slice(&AtomicOperands::sink_octets(sink));
            }
        }
        for index in 0..element.slots() {
            write(element.encode(
                &entries[..usize::from(element.entries)],
                if element.flags.contains(SendFlags::INLINE) { &inline[..element.length as usize] } else { &[] },
                index,
            ));
        }
    }
}

/// Limits of a queue pair's send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) entries: usize,
    pub(crate) inline: usize,
    /// The features agreed with the peer.
    pub(crate) features: Features,
}

/// A request for the receive queue: memory for the peer's next Send.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct ReceiveRequest<'a> {
    id: u64,
    entries: &'a [Sge],
}

impl<'a> ReceiveRequest<'a> {
    /// A receive into registered memory with local write access, filled in the order of the SGEs. The completion
    /// contains `id`. Without SGEs it takes an empty Send.
    pub fn new(id: u64, entries: &'a [Sge]) -> Self {
        Self { id, entries }
    }

    pub(crate) fn element(&self, limit: usize) -> Result<(ReceiveElement, &'a [Sge]), PostErrorReason> {
        if self.entries.len() > limit {
            return Err(PostErrorReason::TooManySges { limit });
        }
        let element =
            ReceiveElement { id: self.id, length: total_length(self.entries)?, entries: self.entries.len() as u8 };
        Ok((element, self.entries))
    }
}

fn total_length(entries: &[Sge]) -> Result<u32, PostErrorReason> {
    entries.iter().try_fold(0_u32, |total, entry| total.checked_add(entry.length).ok_or(PostErrorReason::TooLong))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Features = Features { atomics: true, immediate: true, commit: true, infiniband: true };
    const LIMITS: SendLimits = SendLimits { entries: 4, inline: 100, features: ALL };

    fn sges(count: usize, length: u32) -> Vec<Sge> {
        vec![Sge { stag: 7, length, offset: 0 }; count]
    }

    #[test]
    fn limits_are_checked_before_anything_is_posted() {
        let five = sges(5, 1);
        let request = SendRequest::send(1, &five);
        assert_eq!(request.element(&LIMITS).unwrap_err(), PostErrorReason::TooManySges { limit: 4 });
        let octets = [0; 101];
        assert_eq!(
            SendRequest::send_inline(1, &octets).element(&LIMITS).unwrap_err(),
            PostErrorReason::InlineTooLong { limit: 100 }
        );
        let two = sges(2, u32::MAX);
        assert_eq!(SendRequest::write(1, &two, 1, 0).element(&LIMITS).unwrap_err(), PostErrorReason::TooLong);
        assert_eq!(SendRequest::read(1, &two, 1, 0).element(&LIMITS).unwrap_err(), PostErrorReason::ReadSink);
        assert_eq!(ReceiveRequest::new(1, &five).element(4).unwrap_err(), PostErrorReason::TooManySges { limit: 4 });
    }

    #[test]
    fn immediate_data_takes_eight_octets_of_what_may_be_inline() {
        let limits = SendLimits { inline: MAX_INLINE, ..LIMITS };
        let octets = [0; MAX_INLINE];
        let write = |length: usize| SendRequest::write_inline(1, &octets[..length], 1, 0);
        assert!(write(MAX_INLINE).element(&limits).is_ok());
        assert!(write(MAX_INLINE - 8).with_immediate(5).element(&limits).is_ok());
        let refused = write(MAX_INLINE - 7).with_immediate(5).element(&limits).unwrap_err();
        assert!(matches!(refused, PostErrorReason::InlineTooLong { .. }));
    }

    #[test]
    fn immediate_data_stands_behind_entries_or_inline_data() {
        let two = sges(2, 5);
        for (request, slots) in [
            (SendRequest::write(1, &two, 1, 0).with_immediate(u64::MAX - 1), 2),
            (SendRequest::write_inline(1, b"0123456789abcdefghijklm", 1, 0).with_immediate(u64::MAX - 1), 1),
            (SendRequest::write_inline(1, b"0123456789abcdefghijklmnopq", 1, 0).with_immediate(u64::MAX - 1), 2),
        ] {
            let (element, ..) = request.element(&LIMITS).unwrap();
            let mut written = Vec::new();
            request.encode_with_trailer(&element, |slot| written.push(slot));
            assert_eq!(written.len(), slots);
            assert_eq!(SendElement::decode(&written[0]), Ok(element));
            if element.entries == 3 {
                assert_eq!(element.payload_len(), 10);
                let (slot, place) = SendElement::entry_place(2);
                let last = uwarp_engine::work::entry_at(&written[slot], place);
                assert_eq!(last, SendElement::immediate_entry(u64::MAX - 1));
            } else {
                assert_eq!(element.payload_len() + 8, element.length);
                let mut out = vec![0; element.length as usize];
                written.iter().enumerate().for_each(|(index, slot)| SendElement::copy_inline(slot, index, &mut out));
                assert_eq!(out.last_chunk(), Some(&(u64::MAX - 1).to_le_bytes()));
                assert!(out.starts_with(b"0123456789abcdefghijklm"));
            }
        }
        let most = sges(MAX_SEND_ENTRIES, 1);
        let limits = SendLimits { entries: MAX_SEND_ENTRIES, ..LIMITS };
        let error = SendRequest::write(1, &most, 1, 0).with_immediate(1).element(&limits).unwrap_err();
        assert_eq!(error, PostErrorReason::TooManySges { limit: MAX_SEND_ENTRIES - 1 });
    }

    #[test]
    fn what_was_not_agreed_is_not_posted() {
        let limits = SendLimits { features: Features::default(), ..LIMITS };
        let region = sges(1, 1);
        for request in [
            SendRequest::immediate(1, 2),
            SendRequest::write(1, &[], 1, 0).with_immediate(2),
            SendRequest::send(1, &region).with_immediate(2),
            SendRequest::fetch_add(1, 2, 3, 4),
            SendRequest::compare_swap(1, 2, 3, 4, 5),
            SendRequest::commit(1, &region),
            SendRequest::write(1, &[], 1, 0).with_commit(),
        ] {
            assert!(request.element(&LIMITS).is_ok());
            assert!(matches!(request.element(&limits), Err(PostErrorReason::NotAgreed { .. })));
        }
    }

    #[test]
    fn a_commit_lists_regions_of_any_size_and_not_too_many() {
        let regions = sges(MAX_COMMIT_REGIONS, u32::MAX);
        let request = SendRequest::commit(1, &regions);
        let (element, entries, _) = request.element(&LIMITS).unwrap();
        assert_eq!((element.length, usize::from(element.entries), entries.len()), (0, 62, 62));
        for count in [0, MAX_COMMIT_REGIONS + 1, 256, 257] {
            let error = SendRequest::commit(1, &sges(count, 1)).element(&LIMITS).unwrap_err();
            assert_eq!(error, PostErrorReason::CommitRegions { limit: MAX_COMMIT_REGIONS }, "{count}");
        }
    }

    #[test]
    fn invalidate_changes_sends_only() {
        let (element, ..) = SendRequest::send(1, &[]).invalidate(9).element(&LIMITS).unwrap();
        assert_eq!((element.opcode, element.stag), (SendOpcode::SendInvalidate, 9));
        let (element, ..) = SendRequest::write(1, &[], 5, 6).invalidate(9).element(&LIMITS).unwrap();
        assert_eq!((element.opcode, element.stag), (SendOpcode::Write, 5));
    }

    #[test]
    fn inline_data_are_marked() {
        let request = SendRequest::send_inline(3, b"abc");
        let (element, _, inline) = request.element(&LIMITS).unwrap();
        assert!(element.flags.contains(SendFlags::INLINE));
        assert_eq!((element.length, inline), (3, b"abc".as_slice()));
    }
}
