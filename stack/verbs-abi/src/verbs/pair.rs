//! Queue pairs: what one is, and how those that there are can be found.

use crate::abi::{IBV_QPS_ERR, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_state};
use crate::errno::Errno;
use crate::event_fd::Unacknowledged;
use crate::handle::{Handle, object};
use crate::locks::{Lock, Locked, Owned, Rank};
use crate::verbs::builder::Builder;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::send_queue::SendQueue;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use uwarp::{QueuePairControl, ReceiveHalf};

/// A queue pair. Its two work queues have locks of their own, so that a thread that posts receives does not wait for
/// one that sends.
pub(crate) struct QueuePair {
    pub(crate) id: PairId,
    pub(crate) control: Lock<QueuePairControl>,
    pub(crate) send: Owned<Sender>,
    pub(crate) receive: Owned<ReceiveHalf>,
    /// The queue pair was made for `ibv_wr_start` and what belongs to it.
    pub(crate) has_builder: bool,
    pub(crate) asynchronous: Unacknowledged,
    /// What the program has set and asks for again, with what its connection has agreed on. Its state is in the
    /// structure that C sees.
    pub(crate) attributes: Lock<ibv_qp_attr>,
    pub(crate) signal_all: bool,
    /// rdma_cm identifiers that use it.
    pub(crate) identifiers: AtomicUsize,
}
object!(QueuePair: ibv_qp_ex, b"qp");

/// What an identifier of rdma_cm knows its queue pair by. It never names another one, while numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairId {
    /// uwarp's number.
    pub(crate) number: u32,
    /// As C sees it.
    pub(crate) handle: u32,
}

/// What posts to the send queue.
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    /// What `ibv_wr_start` has begun.
    pub(crate) builder: Builder,
}

impl QueuePair {
    /// What connects it.
    pub(crate) fn control(&self) -> Locked<'_, QueuePairControl> {
        self.control.lock()
    }

    /// What the program has set, and what the connection has agreed on.
    pub(crate) fn attributes(&self) -> Locked<'_, ibv_qp_attr> {
        self.attributes.lock()
    }
}

/// The queue pairs that there are, by uwarp's number: programs may connect one that rdma_cm did not make, and events
/// name it so. `destroy` takes a queue pair out first, so those in the list live, and so do their queues, while it is
/// locked.
static BY_NUMBER: Lock<BTreeMap<u32, usize>> = Lock::new(Rank::QueuePairs, BTreeMap::new());

pub(crate) fn by_number() -> Locked<'static, BTreeMap<u32, usize>> {
    BY_NUMBER.lock()
}

/// The queue pair that a program names by its number, for a call that the program does not destroy it under.
pub(crate) fn find(public_number: u32) -> Option<*mut ibv_qp_ex> {
    let number = public_number.checked_sub(1)?;
    by_number().get(&number).map(|address| std::ptr::with_exposed_provenance_mut(*address))
}

/// Does something with the queue pair that has a number of uwarp's, if there is one; it is not destroyed meanwhile.
pub(crate) fn with_number<T>(number: u32, body: impl FnOnce(&Handle<QueuePair>) -> T) -> Option<T> {
    let pairs = by_number();
    let pair = std::ptr::with_exposed_provenance_mut(*pairs.get(&number)?);
    // SAFETY: it is in the list, so it lives as long as the list is locked.
    unsafe { Handle::get(pair) }.ok().map(body)
}

/// Does something with an identifier's queue pair, if it is still there; it is not destroyed meanwhile.
pub(crate) fn with<T>(id: PairId, body: impl FnOnce(&Handle<QueuePair>) -> T) -> Option<T> {
    with_number(id.number, |pair| (pair.id == id).then(|| body(pair))).flatten()
}

/// Whether completions of work that succeeded may lie unread in the queues of an identifier's queue pair. It waits for
/// nobody who polls: a section lasts as long as a program likes.
pub(crate) fn has_unread_successes(id: PairId) -> bool {
    let has_some = with(id, |pair| {
        // SAFETY: our own structure.
        let queues = unsafe { [(*pair.public()).qp_base.send_cq, (*pair.public()).qp_base.recv_cq] };
        queues.into_iter().any(|queue| {
            // SAFETY: a queue lives as long as its queue pairs.
            unsafe { Handle::<CompletionQueue>::get(queue.cast()) }
                .is_ok_and(|queue| queue.may_have_successes(id.number))
        })
    });
    has_some == Some(true)
}

/// Sets the state that the program sees.
pub(crate) fn set_state(pair: &Handle<QueuePair>, state: ibv_qp_state) {
    // SAFETY: our own structure; the program only reads the state.
    unsafe { (*pair.public()).qp_base.state = state };
}

pub(crate) fn state(pair: &Handle<QueuePair>) -> ibv_qp_state {
    // SAFETY: our own structure.
    unsafe { (*pair.public()).qp_base.state }
}

/// Moves it to the error state: all work is flushed, now and from now on.
pub(crate) fn fail(pair: &Handle<QueuePair>) -> Result<(), Errno> {
    pair.control().flush()?;
    set_state(pair, IBV_QPS_ERR);
    Ok(())
}

/// Takes a queue pair's completions out of its queues. Nothing of it completes any more.
pub(crate) fn purge(base: &ibv_qp, number: u32) -> Result<(), Errno> {
    for queue in [base.send_cq, base.recv_cq] {
        // SAFETY: a queue is not destroyed before its queue pairs.
        unsafe { Handle::<CompletionQueue>::get(queue.cast())? }.lock().purge(number);
    }
    Ok(())
}

/// An identifier of rdma_cm connects the queue pair.
pub(crate) fn join(pair: &Handle<QueuePair>) {
    pair.identifiers.fetch_add(1, Ordering::AcqRel);
}

/// The identifier goes; a connection that is still there ends with it.
pub(crate) fn leave(pair: &Handle<QueuePair>, is_connected: bool) {
    pair.identifiers.fetch_sub(1, Ordering::AcqRel);
    if is_connected {
        pair.control().disconnect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::ibv_destroy_qp;
    use crate::testing::Device;
    use std::ptr::null_mut;

    #[test]
    fn an_identifier_does_not_find_another_queue_pair_with_the_same_number() {
        let device = Device::open();
        let qp = device.queue_pair(device.queue(null_mut()));
        // SAFETY: it lives.
        let id = unsafe { Handle::<QueuePair>::get(qp.cast()) }.unwrap().id;
        assert_eq!(with(id, |pair| pair.public().addr()), Some(qp.addr()));
        assert_eq!(with(PairId { handle: id.handle + 1, ..id }, |_| ()), None);
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
        assert_eq!(with(id, |_| ()), None);
    }
}
