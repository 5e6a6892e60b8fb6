//! Buffers that TCP holds: received out of order, or sent and not acknowledged.

use uwarp_tcp::BufferToken;

use crate::connection::slab::BufferStore;
use crate::link::SHARE;
use crate::link::port::{BURST, Buffer};
use crate::link::receive::Origin;

/// A received frame that TCP holds out of order.
#[derive(Debug)]
pub(crate) struct HeldFrame<B> {
    pub(crate) buffer: B,
    pub(crate) payload_offset: u32,
    pub(crate) origin: Origin,
}

/// What is held of one origin.
#[derive(Debug)]
struct Taken {
    buffers: usize,
    /// Most buffers.
    budget: usize,
}

/// All frames that TCP holds out of order.
#[derive(Debug)]
pub(crate) struct HeldFrames<B> {
    frames: BufferStore<HeldFrame<B>>,
    received: Taken,
    copies: Taken,
}

impl<B: Buffer> HeldFrames<B> {
    /// With the most buffers for frames as they were received, and for copies.
    pub(crate) fn new(received: usize, copies: usize) -> HeldFrames<B> {
        let frames = BufferStore::with_capacity(received + copies + BURST);
        let [received, copies] = [received, copies].map(|budget| Taken { buffers: 0, budget });
        HeldFrames { frames, received, copies }
    }

    fn taken(&mut self, origin: Origin) -> &mut Taken {
        match origin {
            Origin::Frame => &mut self.received,
            Origin::Copy { .. } => &mut self.copies,
        }
    }

    /// Buffers in use. A frame that was joined on its way has several.
    pub(crate) fn len(&self) -> usize {
        self.received.buffers + self.copies.buffers
    }

    /// Whether a frame of `buffers` buffers may be held for a connection that already holds `own` frames: no connection
    /// holds more than [`SHARE`] times what it leaves to others. Those whose applications post no receive (`waits`)
    /// leave half of the budget to connections that repair losses.
    #[inline]
    pub(crate) fn fits(&self, origin: Origin, buffers: usize, own: usize, waits: bool) -> bool {
        let taken = match origin {
            Origin::Frame => &self.received,
            Origin::Copy { may_wait: true } => &self.copies,
            Origin::Copy { may_wait: false } => return false,
        };
        taken.buffers + buffers + own / SHARE <= taken.budget >> u32::from(waits)
    }

    #[inline]
    pub(crate) fn next_token(&self) -> BufferToken {
        self.frames.next_token()
    }

    pub(crate) fn faults(&self) -> u64 {
        self.frames.faults()
    }

    pub(crate) fn insert(&mut self, frame: HeldFrame<B>) {
        self.taken(frame.origin).buffers += frame.buffer.segment_count();
        self.frames.insert(frame);
    }

    /// Takes a frame out. `None` cannot be, and is counted.
    pub(crate) fn remove(&mut self, token: BufferToken) -> Option<HeldFrame<B>> {
        let frame = self.frames.remove(token)?;
        self.taken(frame.origin).buffers -= frame.buffer.segment_count();
        Some(frame)
    }
}

/// A record of TCP's send queue.
#[derive(Debug)]
pub(crate) struct Record<B> {
    pub(crate) buffer: B,
    /// Octets of the record, which begin at [`Link::payload_start`](crate::link::Link::payload_start) of the buffer's
    /// storage.
    pub(crate) length: u16,
    /// Octets of each segment but the last if the device cuts the record; [`u16::MAX`]: it is one segment.
    pub(crate) segment: u16,
    /// Partial Internet checksum of the record; 0 if the device computes checksums.
    pub(crate) sum: u32,
}

impl<B> Record<B> {
    /// A record of one segment that is still to be built.
    #[inline(always)]
    pub(crate) fn new(buffer: B) -> Record<B> {
        Record { buffer, length: 0, segment: u16::MAX, sum: 0 }
    }
}
