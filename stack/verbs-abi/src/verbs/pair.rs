//! Queue pairs: what one is, and how those that there are can be found.

use crate::abi::{ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_state};
use crate::event_fd::Unacknowledged;
use crate::handle::{Handle, object};
use crate::verbs::builder::Builder;
use crate::verbs::completion::Queue;
use crate::verbs::send_queue::SendQueue;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uwarp::{QueuePairControl, ReceiveHalf};
use uwarp_ring::BiasedLock;

/// A queue pair. Its two work queues have locks of their own, so that a thread that posts receives does not wait for
/// one that sends.
pub(crate) struct Pair {
    pub(crate) control: Mutex<QueuePairControl>,
    pub(crate) send: BiasedLock<Sender>,
    pub(crate) receive: BiasedLock<ReceiveHalf>,
    /// The queue pair was made for `ibv_wr_start` and what belongs to it.
    pub(crate) has_builder: bool,
    pub(crate) asynchronous: Unacknowledged,
    /// What the program said when it was made, as far as it asks for it again.
    pub(crate) caps: ibv_qp_cap,
    pub(crate) signal_all: bool,
    /// The limits of Reads that the connection has.
    pub(crate) reads: AtomicU32,
    /// How long it waits for an acknowledgment, as the program said to rdma_cm; TCP goes by its own time-outs.
    pub(crate) timeout: AtomicU8,
    /// rdma_cm identifiers that use it.
    pub(crate) identifiers: AtomicUsize,
}
object!(Pair: ibv_qp_ex, b"qp");

/// What posts to the send queue.
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    /// What `ibv_wr_start` has begun.
    pub(crate) builder: Builder,
}

impl Pair {
    /// What connects it.
    pub(crate) fn control(&self) -> MutexGuard<'_, QueuePairControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_reads(&self, ird: u16, ord: u16) {
        self.reads.store(u32::from(ird) << 16 | u32::from(ord), Ordering::Relaxed);
    }
}

/// The queue pairs that there are, by number: programs may connect one that rdma_cm did not make, and events name it
/// so.
static BY_NUMBER: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

pub(crate) fn by_number() -> MutexGuard<'static, BTreeMap<u32, usize>> {
    BY_NUMBER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue pair with a number; it is not destroyed while the reference is used.
pub(crate) fn find(number: u32) -> Option<&'static Handle<Pair>> {
    let pair = std::ptr::with_exposed_provenance_mut(*by_number().get(&number)?);
    // SAFETY: from the list of those that live.
    unsafe { Handle::get(pair) }.ok()
}

/// Whether completions of work that succeeded lie unread in the queues of a queue pair, which is not destroyed
/// meanwhile.
pub(crate) fn has_unread_successes(number: u32) -> bool {
    let pairs = by_number();
    let Some(address) = pairs.get(&number) else { return false };
    let pair: *const ibv_qp = std::ptr::with_exposed_provenance(*address);
    // SAFETY: from the list of those that live, and so are its queues.
    let queues = unsafe { [(*pair).send_cq, (*pair).recv_cq] };
    queues.into_iter().any(|queue| {
        // SAFETY: as above.
        unsafe { Handle::<Queue>::get(queue.cast()) }.is_ok_and(|queue| queue.lock().has_successes(number))
    })
}

/// Sets the state that the program sees.
pub(crate) fn set_state(pair: &Handle<Pair>, state: ibv_qp_state) {
    // SAFETY: our own structure; the program only reads the state.
    unsafe { (*pair.public()).qp_base.state = state };
}

pub(crate) fn state(pair: &Handle<Pair>) -> ibv_qp_state {
    // SAFETY: our own structure.
    unsafe { (*pair.public()).qp_base.state }
}

/// An identifier of rdma_cm connects the queue pair.
pub(crate) fn join(pair: &Handle<Pair>) {
    pair.identifiers.fetch_add(1, Ordering::AcqRel);
}

/// The identifier goes; a connection that is still there ends with it.
pub(crate) fn leave(pair: &Handle<Pair>, is_connected: bool) {
    pair.identifiers.fetch_sub(1, Ordering::AcqRel);
    if is_connected {
        pair.control().disconnect();
    }
}
