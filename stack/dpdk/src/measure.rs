//! C's own loops over one of our queues, and the clock to time them: the reference for measuring this crate, and only
//! for that.

use dpdk_sys as sys;

use crate::Queue;

/// The time stamp counter.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: reads a counter.
    unsafe { sys::uwarp_ticks() }
}

/// Ticks of the counter in a nanosecond.
pub fn ticks_per_nanosecond() -> f64 {
    // SAFETY: reads EAL's measurement.
    unsafe { sys::uwarp_ticks_per_nanosecond() }
}

/// Ticks for `rounds` receive bursts of C's inline function on an idle queue; 0 if a packet arrived.
pub fn c_empty_receive(queue: &Queue, rounds: u64) -> u64 {
    let (port, _) = queue.raw_parts();
    // SAFETY: the queue is open and used by nobody else meanwhile.
    unsafe { sys::uwarp_time_rx_burst(port, queue.index(), rounds) }
}

/// Ticks for `rounds` receive bursts through a C function that is not inlined.
pub fn c_shim_empty_receive(queue: &Queue, rounds: u64) -> u64 {
    let (port, _) = queue.raw_parts();
    let mut packets = [std::ptr::null_mut(); 32];
    let start = ticks();
    for _ in 0..rounds {
        // SAFETY: as above; there is room for 32 packets.
        let count = unsafe { sys::uwarp_rx_burst(port, queue.index(), packets.as_mut_ptr(), 32) };
        assert_eq!(count, 0, "the queue is idle");
    }
    ticks() - start
}

/// Ticks for `rounds` rounds of taking and returning `batch` buffers, at most 64, with C's inline functions.
pub fn c_alloc_free(queue: &Queue, batch: u32, rounds: u64) -> u64 {
    let (_, pool) = queue.raw_parts();
    // SAFETY: the pool is live.
    unsafe { sys::uwarp_time_alloc_free(pool, batch, rounds) }
}
