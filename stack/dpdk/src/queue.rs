//! One receive and transmit queue pair of a port: the path of the packets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::{fast, rte_eth_fp_ops, rte_mbuf, rte_mempool};

use crate::gate::{BurstFlag, Registered};
use crate::port::Inner;
use crate::{Capabilities, MAX_BURST, Mbuf};

/// How full the buffer pools are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLevels {
    /// Free buffers of the receive pool; the device's descriptors hold some.
    pub rx_free: u32,
    /// All buffers of the receive pool.
    pub rx_total: u32,
    /// Free buffers of the transmit pool.
    pub tx_free: u32,
    /// All buffers of the transmit pool.
    pub tx_total: u32,
}

/// A queue pair. One thread at a time may hold it.
pub struct Queue {
    /// Of a queue without flag; with one, that has them.
    operations: *const rte_eth_fp_ops,
    rx_pool: *mut rte_mempool,
    tx_pool: *mut rte_mempool,
    index: u16,
    /// Bursts ask it first. Kept by `port`.
    flag: Option<NonNull<BurstFlag>>,
    port: Arc<Inner>,
    _not_sync: PhantomData<Cell<()>>,
}

// SAFETY: a queue may be used by any thread as long as it is one at a time, which `&mut self` and the missing `Sync` see to;
// the pointers are into what `port` keeps.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) fn new(port: Arc<Inner>, index: u16) -> Queue {
        let state = port.queue(index);
        Queue {
            // SAFETY: the number is that of an open port.
            operations: unsafe { fast::operations(port.port_id()) },
            rx_pool: state.rx_pool.raw(),
            tx_pool: state.tx_pool.raw(),
            index,
            flag: state.flag.as_ref().map(Registered::pointer),
            port,
            _not_sync: PhantomData,
        }
    }

    /// The queue's number in its port.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// What the port can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    /// Whether the link is up, as the driver knows it. May make a system call: ask every millisecond, not every turn.
    pub fn link_up(&self) -> bool {
        self.port.link().up
    }

    /// The port's functions if a burst may go on; then `leave` has to follow.
    #[inline(always)]
    fn enter(&self) -> Option<*const rte_eth_fp_ops> {
        match self.flag {
            None => Some(self.operations),
            Some(flag) => {
                // SAFETY: the port keeps the flag.
                let flag = unsafe { flag.as_ref() };
                flag.enter().then(|| flag.operations())
            }
        }
    }

    #[inline(always)]
    fn leave(&self) {
        if let Some(flag) = self.flag {
            // SAFETY: as in `enter`.
            unsafe { flag.as_ref() }.leave();
        }
    }

    /// Receives as many packets as are there and as `out` has spare capacity for, at most [`MAX_BURST`]. `out` never grows its
    /// allocation. Returns how many were added.
    #[inline]
    pub fn rx_burst(&mut self, out: &mut Vec<Mbuf>) -> usize {
        let count = (out.capacity() - out.len()).min(MAX_BURST);
        let Some(operations) = self.enter() else { return 0 };
        // SAFETY: `self` is the queue's only user and the port is open. There is room for `count` packets behind the vector's
        // end, and an `Mbuf` is a pointer to a packet. The device gives its references away.
        let received = unsafe {
            let end = out.as_mut_ptr().add(out.len()).cast::<*mut rte_mbuf>();
            let received = usize::from(fast::rx_burst(operations, self.index, end, count as u16));
            out.set_len(out.len() + received);
            received
        };
        self.leave();
        received
    }

    /// Hands packets to the device from the front of `frames`, at most [`MAX_BURST`], until it takes no more. Those taken are
    /// removed; the rest stay in order. Returns how many were taken.
    #[inline]
    pub fn tx_burst(&mut self, frames: &mut VecDeque<Mbuf>) -> usize {
        if frames.is_empty() {
            return 0;
        }
        let Some(operations) = self.enter() else { return 0 };
        let (front, back) = frames.as_mut_slices();
        let mut sent = self.tx(operations, front, MAX_BURST);
        if sent == front.len() && sent < MAX_BURST && !back.is_empty() {
            sent += self.tx(operations, back, MAX_BURST - sent);
        }
        self.leave();
        frames.drain(..sent).for_each(mem::forget);
        sent
    }

    /// The first packets of the slice, as many as are returned, are the device's afterwards: they must be forgotten.
    #[inline(always)]
    fn tx(&mut self, operations: *const rte_eth_fp_ops, frames: &mut [Mbuf], most: usize) -> usize {
        let count = frames.len().min(most);
        // SAFETY: `self` is the queue's only user and the port is open; an `Mbuf` is a pointer to a packet of which we own a
        // reference.
        usize::from(unsafe {
            fast::tx_burst(operations, self.index, frames.as_mut_ptr().cast::<*mut rte_mbuf>(), count as u16)
        })
    }

    /// A fresh buffer of the transmit pool, empty, starting at [`HEADROOM`](crate::HEADROOM); `None` when the pool is empty.
    #[inline]
    pub fn alloc(&mut self) -> Option<Mbuf> {
        // SAFETY: the pool is live, and the buffer's one reference is ours.
        unsafe { NonNull::new(fast::mbuf_alloc(self.tx_pool)).map(|raw| Mbuf::from_raw(raw)) }
    }

    /// The pools' levels as this thread sees them: buffers in other threads' caches count as used. Cheap (a few loads).
    #[inline]
    pub fn pool_levels(&self) -> PoolLevels {
        let state = self.port.queue(self.index);
        // SAFETY: the pools are live, and over rings.
        unsafe {
            PoolLevels {
                rx_free: fast::pool_free_count(self.rx_pool),
                rx_total: state.rx_pool.total(),
                tx_free: fast::pool_free_count(self.tx_pool),
                tx_total: state.tx_pool.total(),
            }
        }
    }

    /// DPDK's number of the port and the transmit pool, for measuring against C.
    pub(crate) fn raw_parts(&self) -> (u16, *mut rte_mempool) {
        (self.port.port_id(), self.tx_pool)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.port.give_back(self.index);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Queue").field("port", &self.port.port_id()).field("index", &self.index).finish()
    }
}
