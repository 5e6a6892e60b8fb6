//! The device: receive bursts, frames that wait for it, headers, segmentation, packets of other engines' flows.

use std::collections::VecDeque;
use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::ethernet::{EthernetAddress, VlanTag};

use crate::link::handoff::Handoff;
use crate::link::port::{Buffer, Port};

pub mod handoff;
pub(crate) mod hash;
pub mod port;
pub(crate) mod receive;
mod state;
pub(crate) mod template;
pub(crate) mod transmit;

/// A holder of a shared pool takes at most this many times what is free. So one alone can have four fifths of the pool,
/// and however many hold buffers, some are left for the next. Nobody has to count shares or give anything back.
pub(crate) const SHARE: usize = 4;
/// Most octets of payload in a frame, so that its length fits its field behind any headers.
pub(crate) const FRAME_OCTETS: usize = 65_535 - 120;
/// How often the link's state is read.
const LINK_INTERVAL: Duration = Duration::from_millis(10);
/// How long a check that is due is put off if there is work.
const LINK_DELAY: Duration = Duration::from_micros(100);

/// The state of this room: the device, and what is between it and the engine.
#[derive(Debug)]
pub(crate) struct Link<P: Port> {
    pub(crate) port: P,
    pub(crate) own_mac: EthernetAddress,
    /// The tag of all our frames.
    pub(crate) vlan: Option<VlanTag>,
    pub(crate) is_up: bool,
    /// When the link's state is read again.
    pub(crate) check_at: Instant,
    /// The check that is due was put off already.
    pub(crate) check_is_late: bool,
    /// The other engines of the context, if there are any.
    pub(crate) handoff: Option<Handoff>,
    /// Frames from us to ourselves.
    pub(crate) loopback: VecDeque<P::Buffer>,
    /// Memory in which chained frames are made contiguous.
    pub(crate) scratch: Vec<u8>,
    /// This turn left out the receive burst.
    pub(crate) passed_over: bool,
    /// Offset of the payload in a transmit buffer: room for all headers in front.
    pub(crate) payload_start: usize,
    pub(crate) offload_tcp: bool,
    /// Most octets of payload in a frame that the device cuts into segments; 0 if it cuts none.
    pub(crate) frame_octets: u32,
    pub(crate) transmit: Transmit<P::Buffer>,
}

/// The transmit queue, and the account of transmit buffers.
#[derive(Debug)]
pub(crate) struct Transmit<B> {
    /// Frames that the device has not taken yet.
    pub(crate) queue: VecDeque<B>,
    /// Frames in the queue beyond which no more are made.
    pub(crate) backlog: usize,
    /// Most frames of one connection in this turn.
    pub(crate) frames_each: u32,
    /// Connections that had more to send in this turn than that.
    pub(crate) greedy: u32,
    /// Frames that the device has taken in this turn.
    pub(crate) flushed: usize,
    /// Those that it had taken before, or that were dropped.
    pub(crate) taken: u64,
    /// Transmit buffers that records must leave free.
    pub(crate) reserve: usize,
    /// Transmit buffers that are known to be free; read again when it runs low.
    pub(crate) free_known: usize,
}

impl<P: Port> Link<P> {
    /// A transmit buffer, the reserve included: for what must be sent.
    #[inline(always)]
    pub(crate) fn alloc(&mut self) -> Option<P::Buffer> {
        let buffer = self.port.alloc();
        self.transmit.free_known = self.transmit.free_known.saturating_sub(1);
        if buffer.is_none() {
            self.transmit.free_known = 0;
        }
        buffer
    }

    /// Whether at least `count` transmit buffers are free.
    #[inline]
    pub(crate) fn has_free(&mut self, count: usize) -> bool {
        if self.transmit.free_known >= count {
            return true;
        }
        self.transmit.free_known = self.port.transmit_free();
        self.transmit.free_known >= count
    }

    /// Whether a connection that holds `held` transmit buffers may take another. The reserve stays free, and no
    /// connection takes more than [`SHARE`] times what it leaves to others.
    #[inline(always)]
    pub(crate) fn has_share(&mut self, held: usize) -> bool {
        self.has_free(self.transmit.reserve + 1 + held / SHARE)
    }

    /// Segments of so many octets that one frame of a connection takes: one, or more if the device cuts it. `to_self`:
    /// it does not reach the device.
    #[inline]
    pub(crate) fn segments_of_frame(&self, octets: usize, tcp: &mut uwarp_tcp::Connection, to_self: bool) -> usize {
        if self.frame_octets == 0 || to_self {
            return 1;
        }
        (tcp.leave_in_frames(self.frame_octets, octets as u32) as usize / octets.max(1)).max(1)
    }

    /// Whether more frames may be made: the device keeps up.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.transmit.queue.len() < self.transmit.backlog
    }

    /// Gives the device one more frame, behind those that wait; returns how many it took.
    #[inline(always)]
    pub(crate) fn send(&mut self, frame: P::Buffer) -> usize {
        if !self.transmit.queue.is_empty() {
            return self.queue_and_flush(frame);
        }
        match self.port.tx_one(frame) {
            Ok(()) => {
                self.transmit.flushed += 1;
                1
            }
            Err(frame) => self.queue_and_flush(frame),
        }
    }

    #[inline(never)]
    fn queue_and_flush(&mut self, frame: P::Buffer) -> usize {
        self.transmit.queue.push_back(frame);
        self.flush()
    }

    /// Drops what the device has not taken. Nobody waits for it any more.
    pub(crate) fn drop_waiting(&mut self) {
        self.transmit.taken += self.transmit.queue.len() as u64;
        self.transmit.queue.clear();
    }

    /// Gives frames to the device; returns how many it took.
    #[inline(always)]
    pub(crate) fn flush(&mut self) -> usize {
        let before = self.transmit.flushed;
        while !self.transmit.queue.is_empty() {
            let taken = self.port.tx_burst(&mut self.transmit.queue);
            self.transmit.flushed += taken;
            if taken == 0 {
                break;
            }
        }
        self.transmit.flushed - before
    }
}

/// The octets of a frame in one piece: its own, or a copy in `scratch` if it is a chain.
#[inline]
pub(crate) fn contiguous<'a, B: Buffer>(buffer: &'a B, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if buffer.segment_count() == 1 {
        return buffer.data();
    }
    scratch.clear();
    buffer.segments().for_each(|part| scratch.extend_from_slice(part));
    scratch
}
