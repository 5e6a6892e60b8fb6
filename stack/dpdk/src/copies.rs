//! Copies of short frames for virtio-user, whose driver hands a frame over in one descriptor only if it has the sole
//! reference. Otherwise the peer first reads a table of descriptors and a header in the driver's own memory: two more
//! cache lines of another core, one after the other. A copy takes less. A frame that is kept for retransmission has
//! another reference.
//!
//! Only a frame that leaves alone is copied. Copies of the frames of a burst gain nothing.

use std::ptr::NonNull;

use dpdk_sys::{fast, rte_mempool};

use crate::pool::Pool;
use crate::{Error, HEADROOM, Mbuf};

/// The longest frame that is copied.
const LONGEST: usize = 256;
/// Octets of virtio's own header, which the driver puts in front of the frame: where a copy starts, so that the two
/// begin with a cache line.
const START: usize = 12;
/// Storage of a copy.
const ROOM: u16 = (HEADROOM + LONGEST) as u16;
/// Copies beyond those that the ring holds: what the cache of a thread keeps.
const SPARE: u32 = 512;

/// The copies for a ring of so many descriptors.
pub(crate) fn pool(descriptors: u16, numa_node: i32, memory_mib: u32) -> Result<Pool, Error> {
    Pool::take(u32::from(descriptors) + SPARE, ROOM, 0, numa_node, memory_mib)
}

/// A copy of a frame, with its offloads, if the frame is short and has other references. `None` also if no copy is
/// left: then the frame itself serves.
///
/// # Safety
/// The pool is live, and of [`pool`].
#[inline]
pub(crate) unsafe fn copy_of(pool: *mut rte_mempool, frame: &Mbuf) -> Option<Mbuf> {
    let octets = frame.data();
    if octets.len() > LONGEST || frame.segment_count() != 1 || !frame.is_shared() {
        return None;
    }
    // SAFETY: the pool is live, and the buffer's one reference is ours.
    let mut copy = unsafe { NonNull::new(fast::mbuf_alloc(pool)).map(|raw| Mbuf::from_raw(raw)) }?;
    copy.storage_mut()?.get_mut(START..)?.get_mut(..octets.len())?.copy_from_slice(octets);
    (copy.set_range(START, octets.len()) && copy.take_offloads_of(frame)).then_some(copy)
}
