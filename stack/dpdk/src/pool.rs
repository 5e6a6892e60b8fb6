//! Pools of packet buffers, which outlive every buffer.
//!
//! An [`Mbuf`](crate::Mbuf) knows its pool but does not keep it alive: counting references would cost on every packet.
//! Instead, the pool of a closed port is kept. It goes to the next port that needs one like it, once all its buffers
//! are back. It is freed only when memory is short and it has been full for a second.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dpdk_sys::{self as sys, rte_mempool};

use crate::lock::lock;
use crate::{Error, HEADROOM};

/// A pool is freed no sooner than this after it was first seen full and unused: the thread that returned the last
/// buffer may still be inside that call.
const REST: Duration = Duration::from_secs(1);

/// A buffer pool that no port uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedPool {
    /// Its free buffers.
    pub free: u32,
    /// All of its buffers.
    pub total: u32,
}

struct Entry {
    raw: NonNull<rte_mempool>,
    buffers: u32,
    data_room: u16,
    shift: u16,
    numa_node: i32,
    used: bool,
    full_since: Option<Instant>,
}

// SAFETY: a pool belongs to no thread.
unsafe impl Send for Entry {}

static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

fn pools() -> MutexGuard<'static, Vec<Entry>> {
    lock(&POOLS)
}

/// A pool in use. Dropping it leaves it to the next user.
#[derive(Debug)]
pub(crate) struct Pool {
    raw: NonNull<rte_mempool>,
    buffers: u32,
}

// SAFETY: as for `Entry`; any number of threads may use the common part of a pool.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A full pool of `buffers` buffers with storage of `data_room` octets each, headroom included, which begins
    /// `shift` octets, a multiple of eight, behind the start of a cache line.
    pub(crate) fn take(
        buffers: u32,
        data_room: u16,
        shift: u16,
        numa_node: i32,
        memory_mib: u32,
    ) -> Result<Pool, Error> {
        let mut pools = pools();
        let like = |entry: &&mut Entry| {
            !entry.used
                && entry.buffers == buffers
                && entry.data_room == data_room
                && entry.shift == shift
                && entry.numa_node == numa_node
                && entry.is_full()
        };
        if let Some(entry) = pools.iter_mut().find(like) {
            entry.used = true;
            entry.full_since = None;
            return Ok(Pool { raw: entry.raw, buffers });
        }
        let raw = match create(buffers, data_room, shift, numa_node) {
            Some(raw) => raw,
            None => {
                free_unused(&mut pools);
                create(buffers, data_room, shift, numa_node).ok_or_else(|| Error::OutOfMemory {
                    what: format!("{buffers} packet buffers of {} octets", usize::from(data_room) - HEADROOM),
                    memory_mib,
                })?
            }
        };
        pools.push(Entry { raw, buffers, data_room, shift, numa_node, used: true, full_since: None });
        Ok(Pool { raw, buffers })
    }

    pub(crate) fn raw(&self) -> *mut rte_mempool {
        self.raw.as_ptr()
    }

    /// How many buffers the pool has.
    pub(crate) fn total(&self) -> u32 {
        self.buffers
    }

    /// Free buffers, counting every thread's cache.
    pub(crate) fn free(&self) -> u32 {
        // SAFETY: the pool is live.
        unsafe { sys::rte_mempool_avail_count(self.raw()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut pools = pools();
        if let Some(entry) = pools.iter_mut().find(|entry| entry.raw == self.raw) {
            entry.used = false;
        }
    }
}

impl Entry {
    fn free(&self) -> u32 {
        // SAFETY: the pool is live while it is in the list.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }

    fn is_full(&self) -> bool {
        self.free() == self.buffers
    }
}

fn create(buffers: u32, data_room: u16, shift: u16, numa_node: i32) -> Option<NonNull<rte_mempool>> {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let name = CString::new(format!("uwarp_{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed))).ok()?;
    // DPDK requires a cache to be less than two thirds of the pool, since it may hold half as much again. A quarter
    // keeps most of a small pool available to every thread.
    let cache = (buffers / 8).min(256);
    // The private area, which nobody uses, is between a buffer's header and its storage, and shifts that.
    // SAFETY: the name is copied.
    NonNull::new(unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, cache, shift, data_room, numa_node) })
}

fn free_unused(pools: &mut Vec<Entry>) {
    // Memory is short, which is rare: wait until unused pools have rested.
    let now = Instant::now();
    for entry in pools.iter_mut().filter(|entry| !entry.used) {
        entry.full_since = if entry.is_full() { entry.full_since.or(Some(now)) } else { None };
    }
    if pools.iter().any(|entry| entry.full_since.is_some()) {
        std::thread::sleep(REST);
    }
    pools.retain(|entry| {
        let free = !entry.used && entry.full_since.is_some() && entry.is_full();
        if free {
            // SAFETY: no port uses the pool, and all of its buffers have been back for a second: nobody has a pointer
            // into it.
            unsafe { sys::rte_mempool_free(entry.raw.as_ptr()) };
        }
        !free
    });
}

/// The pools that no port uses.
pub(crate) fn unused() -> Vec<UnusedPool> {
    pools()
        .iter()
        .filter(|entry| !entry.used)
        .map(|entry| UnusedPool { free: entry.free(), total: entry.buffers })
        .collect()
}

/// Returns the buffers in the calling thread's caches to the pools. Call it before a thread is unregistered.
pub(crate) fn flush_caches() {
    for entry in pools().iter() {
        // SAFETY: the pool is live, the cache this thread's own.
        unsafe { sys::uwarp_mempool_cache_flush(entry.raw.as_ptr()) };
    }
}
