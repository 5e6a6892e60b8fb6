//! DPDK's inline functions of the packet path in Rust, so that they are inlined here too.
//!
//! Each function does what the C function for the same purpose does (`rte_ethdev.h`, `rte_mbuf.h`, `rte_mempool.h` of
//! 22.11 and 24.11), without the debug checks and the receive and transmit callbacks, which nothing here installs. The
//! layouts that they rely on come from bindgen, which asserts them at compile time; the test `layout_equals_c` compares
//! them with those of the C compiler.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use crate::{
    RTE_MAX_LCORE, RTE_PKTMBUF_HEADROOM, UWARP_MBUF_EXTERNAL, UWARP_MBUF_INDIRECT, rte_eth_fp_ops, rte_mbuf,
    rte_mempool, rte_mempool_cache, rte_ring, uwarp_lcore, uwarp_mbuf_free_segment, uwarp_mbuf_raw_alloc,
    uwarp_mbuf_raw_free,
};

/// This thread's lcore is not known yet. Neither a valid number nor `LCORE_ID_ANY`.
const NOT_ASKED: u32 = u32::MAX - 1;

thread_local! {
    /// DPDK keeps this in a thread-local variable of its own, which stable Rust cannot read.
    static LCORE: Cell<u32> = const { Cell::new(NOT_ASKED) };
}

#[cold]
fn ask_lcore() -> u32 {
    // SAFETY: a thread-local variable of DPDK's.
    let lcore = unsafe { *uwarp_lcore() };
    LCORE.set(lcore);
    lcore
}

/// The calling thread's lcore number, `LCORE_ID_ANY` if it is not registered.
#[inline(always)]
pub fn lcore_id() -> u32 {
    match LCORE.get() {
        NOT_ASKED => ask_lcore(),
        lcore => lcore,
    }
}

/// Must be called on a thread after its registration changed.
pub fn lcore_changed() {
    LCORE.set(NOT_ASKED);
}

/// Makes this the calling thread's lcore, and with it that lcore's caches its own.
///
/// # Safety
/// The number is `LCORE_ID_ANY`, or that of a registered thread, and no other thread uses that lcore's caches while the
/// calling thread has it.
pub unsafe fn set_lcore(lcore: u32) {
    // SAFETY: a thread-local variable of DPDK's.
    unsafe { *uwarp_lcore() = lcore };
    LCORE.set(lcore);
}

/// Runs `work` with this as the calling thread's lcore, which then has its former one again. The two thread-local
/// variables are looked up once, which costs a library a call each.
///
/// # Safety
/// As [`set_lcore`]: nobody else uses the caches of `lcore` during `work`, and nobody those of the former one.
#[inline(always)]
pub unsafe fn with_lcore<T>(lcore: u32, work: impl FnOnce() -> T) -> T {
    struct Former<'a> {
        lcore: u32,
        place: *mut u32,
        known: &'a Cell<u32>,
    }
    impl Drop for Former<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            // SAFETY: the same thread's variable.
            unsafe { *self.place = self.lcore };
            self.known.set(self.lcore);
        }
    }
    LCORE.with(|known| {
        // SAFETY: a thread-local variable of DPDK's.
        let place = unsafe { uwarp_lcore() };
        // SAFETY: as above.
        let _former = Former { lcore: unsafe { place.replace(lcore) }, place, known };
        known.set(lcore);
        work()
    })
}

/// The device's functions and queues.
///
/// # Safety
/// `port` is below `RTE_MAX_ETHPORTS`.
#[inline(always)]
pub unsafe fn operations(port: u16) -> *const rte_eth_fp_ops {
    // SAFETY: the caller's promise; the table is static.
    unsafe { (&raw const crate::rte_eth_fp_ops).cast::<rte_eth_fp_ops>().add(usize::from(port)) }
}

/// `rte_eth_rx_burst`.
///
/// # Safety
/// `operations` is that of a port that is started (or was and is stopped), `queue` one of its queues that no other
/// thread uses now, and `packets` has room for `count` pointers.
#[inline(always)]
pub unsafe fn rx_burst(operations: *const rte_eth_fp_ops, queue: u16, packets: *mut *mut rte_mbuf, count: u16) -> u16 {
    // SAFETY: the caller's promises; ethdev fills the table for every port, with stubs for those not started.
    unsafe {
        let data = *(*operations).rxq.data.add(usize::from(queue));
        match (*operations).rx_pkt_burst {
            Some(burst) => burst(data, packets, count),
            None => 0,
        }
    }
}

/// `rte_eth_tx_burst`: the device owns the first packets, as many as the returned number.
///
/// # Safety
/// As [`rx_burst`], and `packets` holds `count` packets that the caller owns.
#[inline(always)]
pub unsafe fn tx_burst(operations: *const rte_eth_fp_ops, queue: u16, packets: *mut *mut rte_mbuf, count: u16) -> u16 {
    // SAFETY: as in `rx_burst`.
    unsafe {
        let data = *(*operations).txq.data.add(usize::from(queue));
        match (*operations).tx_pkt_burst {
            Some(burst) => burst(data, packets, count),
            None => 0,
        }
    }
}

/// The calling thread's cache of a pool, or null.
#[inline(always)]
unsafe fn cache_of(pool: *mut rte_mempool) -> *mut rte_mempool_cache {
    let lcore = lcore_id();
    // SAFETY: the caller gives a live pool, whose `local_cache` has an element per lcore if its caches have a size.
    unsafe {
        if lcore >= RTE_MAX_LCORE || (*pool).cache_size == 0 {
            return ptr::null_mut();
        }
        (*pool).local_cache.add(lcore as usize)
    }
}

/// The address of the objects of a cache, without making a reference to 8 KiB of them.
#[inline(always)]
unsafe fn cache_slot(cache: *mut rte_mempool_cache, index: u32) -> *mut *mut core::ffi::c_void {
    // SAFETY: the caller keeps the index within the array.
    unsafe { (&raw mut (*cache).objs).cast::<*mut core::ffi::c_void>().add(index as usize) }
}

/// `rte_pktmbuf_alloc`: an empty buffer with a reference count of 1, or null.
///
/// # Safety
/// `pool` is a live pool of packet buffers.
#[inline(always)]
pub unsafe fn mbuf_alloc(pool: *mut rte_mempool) -> *mut rte_mbuf {
    // SAFETY: the cache is this thread's own, and its first `len` objects are free buffers of the pool.
    unsafe {
        let cache = cache_of(pool);
        let mbuf = if !cache.is_null() && (*cache).len > 0 {
            let len = (*cache).len - 1;
            (*cache).len = len;
            (*cache_slot(cache, len)).cast::<rte_mbuf>()
        } else {
            let mbuf = uwarp_mbuf_raw_alloc(pool);
            if mbuf.is_null() {
                return mbuf;
            }
            mbuf
        };
        mbuf_reset(mbuf);
        mbuf
    }
}

/// `rte_pktmbuf_reset`, with `next`, `nb_segs` and `refcnt` left as the pool keeps them (null, 1, 1).
#[inline(always)]
unsafe fn mbuf_reset(mbuf: *mut rte_mbuf) {
    // SAFETY: the caller owns the buffer.
    unsafe {
        (*mbuf).pkt_len = 0;
        (*mbuf).data_len = 0;
        (*mbuf).vlan_tci = 0;
        (*mbuf).vlan_tci_outer = 0;
        (*mbuf).port = u16::MAX;
        (*mbuf).data_off =
            if (RTE_PKTMBUF_HEADROOM as u16) < (*mbuf).buf_len { RTE_PKTMBUF_HEADROOM as u16 } else { (*mbuf).buf_len };
        (*mbuf).ol_flags = 0;
        (*mbuf).packet_type = 0;
        (*mbuf).tx_offload = 0;
    }
}

/// The reference count as the atomic that it is.
///
/// # Safety
/// `mbuf` is live for as long as the reference is used.
#[inline(always)]
pub unsafe fn reference_count<'a>(mbuf: *mut rte_mbuf) -> &'a AtomicU16 {
    // SAFETY: aligned, and only ever accessed atomically once the buffer is shared.
    unsafe { AtomicU16::from_ptr(&raw mut (*mbuf).refcnt) }
}

/// `rte_pktmbuf_free_seg`: returns one reference to one buffer of a chain.
///
/// # Safety
/// The caller owns the reference.
#[inline(always)]
pub unsafe fn segment_free(mbuf: *mut rte_mbuf) {
    // SAFETY: the caller owns a reference, so the buffer is live; with a count of 1 it is the only one.
    unsafe {
        if (*mbuf).ol_flags & (UWARP_MBUF_INDIRECT | UWARP_MBUF_EXTERNAL) != 0 {
            uwarp_mbuf_free_segment(mbuf);
            return;
        }
        let count = reference_count(mbuf);
        if count.load(Ordering::Acquire) != 1 {
            if count.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            count.store(1, Ordering::Relaxed);
        }
        if !(*mbuf).next.is_null() {
            (*mbuf).next = ptr::null_mut();
        }
        if (*mbuf).nb_segs != 1 {
            (*mbuf).nb_segs = 1;
        }
        let cache = cache_of((*mbuf).pool);
        if !cache.is_null() && (*cache).len < (*cache).flushthresh {
            let len = (*cache).len;
            *cache_slot(cache, len) = mbuf.cast();
            (*cache).len = len + 1;
        } else {
            uwarp_mbuf_raw_free(mbuf);
        }
    }
}

/// `rte_pktmbuf_free`: returns one reference to each buffer of a chain.
///
/// # Safety
/// The caller owns the references.
#[inline(always)]
pub unsafe fn mbuf_free(mbuf: *mut rte_mbuf) {
    // SAFETY: `next` is read before the segment is given up.
    unsafe {
        let next = (*mbuf).next;
        segment_free(mbuf);
        if !next.is_null() {
            free_rest(next);
        }
    }
}

#[cold]
unsafe fn free_rest(mut mbuf: *mut rte_mbuf) {
    while !mbuf.is_null() {
        // SAFETY: as in `mbuf_free`.
        unsafe {
            let next = (*mbuf).next;
            segment_free(mbuf);
            mbuf = next;
        }
    }
}

/// Free buffers of a pool as this thread sees them: those in the common ring and in its own cache.
///
/// # Safety
/// `pool` is a live pool over a ring (the default of `rte_pktmbuf_pool_create`).
#[inline]
pub unsafe fn pool_free_count(pool: *mut rte_mempool) -> u32 {
    // SAFETY: the pool's data is its ring; the two tails are atomics to C.
    unsafe {
        let ring = (*pool).__bindgen_anon_1.pool_data.cast::<rte_ring>();
        let produced = AtomicU32::from_ptr(&raw mut (*ring).__bindgen_anon_1.prod.tail).load(Ordering::Relaxed);
        let consumed = AtomicU32::from_ptr(&raw mut (*ring).__bindgen_anon_2.cons.tail).load(Ordering::Relaxed);
        let common = produced.wrapping_sub(consumed) & (*ring).mask;
        let cache = cache_of(pool);
        let own = if cache.is_null() { 0 } else { (*cache).len };
        (common + own).min((*pool).size)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use crate::*;

    /// The name of a field of `uwarp_layout`, and Rust's value for it.
    macro_rules! same {
        ($c:ident: $($field:ident = $value:expr),+ $(,)?) => {
            $(assert_eq!($c.$field, $value, stringify!($field));)+
        };
    }

    #[test]
    fn layout_equals_c() {
        let mut c = uwarp_layout::default();
        // SAFETY: fills the structure in.
        unsafe { uwarp_layout_fill(&mut c) };
        same!(c:
            mempool_cache_size = offset_of!(rte_mempool, cache_size),
            mempool_local_cache = offset_of!(rte_mempool, local_cache),
            mempool_pool_data = offset_of!(rte_mempool, __bindgen_anon_1),
            mempool_size = offset_of!(rte_mempool, size),
            cache_size = size_of::<rte_mempool_cache>(),
            cache_len = offset_of!(rte_mempool_cache, len),
            cache_flushthresh = offset_of!(rte_mempool_cache, flushthresh),
            cache_objs = offset_of!(rte_mempool_cache, objs),
            fp_ops_size = size_of::<rte_eth_fp_ops>(),
            fp_ops_rx_burst = offset_of!(rte_eth_fp_ops, rx_pkt_burst),
            fp_ops_tx_burst = offset_of!(rte_eth_fp_ops, tx_pkt_burst),
            fp_ops_rxq = offset_of!(rte_eth_fp_ops, rxq),
            fp_ops_txq = offset_of!(rte_eth_fp_ops, txq),
            ring_prod_tail = offset_of!(rte_ring, __bindgen_anon_1) + offset_of!(rte_ring_headtail, tail),
            ring_cons_tail = offset_of!(rte_ring, __bindgen_anon_2) + offset_of!(rte_ring_headtail, tail),
            ring_mask = offset_of!(rte_ring, mask),
        );
    }
}
