//! Queue pairs: what one is, and how those that there are can be found.

use crate::abi::{IBV_QPS_ERR, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_state};
use crate::errno::{EINVAL, Errno};
use crate::event_fd::Unacknowledged;
use crate::handle::{Handle, object};
use crate::locks::{Lock, Locked, Owned, Rank};
use crate::process;
use crate::verbs::builder::Builder;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::context::NUMBER_BITS;
use crate::verbs::link::Link;
pub(crate) use crate::verbs::link::PairId;
use crate::verbs::send_queue::SendQueue;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use uwarp::{Connecting, Context, EventChannel, Features, QueuePairControl, QueuePairState, ReceiveHalf};

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
    /// It sends and receives unreliable datagrams.
    pub(crate) is_of_datagrams: bool,
    /// rdma_cm identifiers that use it.
    pub(crate) identifiers: AtomicUsize,
    /// The peer that the program has named by `ibv_modify_qp`.
    pub(crate) link: Lock<Option<Link>>,
}
object!(QueuePair: ibv_qp_ex, b"qp");

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

/// The queue pairs that there are. `destroy` takes a queue pair out first, so those in the table live, and so do their
/// queues, while it is locked.
static TABLE: Lock<Table> = Lock::new(Rank::QueuePairs, Table::new());

/// The queue pairs by their numbers: events name them by uwarp's, and programs by their own.
struct Table {
    by_number: BTreeMap<u32, usize>,
    by_public: BTreeMap<u32, usize>,
    /// Where the search for a number begins, where the switch has a say in it.
    next: Option<u32>,
}

impl Table {
    const fn new() -> Table {
        Table { by_number: BTreeMap::new(), by_public: BTreeMap::new(), next: None }
    }

    /// A number for a queue pair of a program at a place on a switch, which no queue pair of its address has. One that
    /// was given back comes last. It begins at random: who looks for a queue pair of the last program at this place
    /// finds none.
    fn number_at(&mut self, place: u32) -> u32 {
        const MASK: u32 = (1 << NUMBER_BITS) - 1;
        let mut next = self.next.unwrap_or_else(|| RandomState::new().build_hasher().finish() as u32);
        let number = loop {
            let number = place << NUMBER_BITS | next & MASK;
            next = next.wrapping_add(1);
            // There are at most as many queue pairs as numbers.
            if !self.by_public.contains_key(&number) {
                break number;
            }
        };
        self.next = Some(next);
        number
    }
}

/// A number for a new queue pair as programs see it, of uwarp's, which begin at 0: 0 is what a program leaves in
/// `rdma_conn_param` that names none. Where programs name queue pairs of each other, a number says whose it is.
pub(crate) fn new_public_number(number: u32) -> Result<u32, Errno> {
    if !process::is_roce() {
        return Ok(number + 1);
    }
    let place = own_place(process::started()?);
    Ok(TABLE.lock().number_at(place))
}

/// The place of the process among those that share its addresses, from 1.
pub(crate) fn own_place(context: &Context) -> u32 {
    1 + u32::from(context.switch_place().unwrap_or(0))
}

/// The place that is in a queue pair's number.
pub(crate) fn place_of(public_number: u32) -> u32 {
    public_number >> NUMBER_BITS
}

/// Puts a queue pair into the table.
pub(crate) fn enter(handle: &Handle<QueuePair>, public_number: u32) {
    let mut table = TABLE.lock();
    let address = handle.public().expose_provenance();
    table.by_number.insert(handle.id.number, address);
    table.by_public.insert(public_number, address);
}

/// Lets events name a queue pair by another number of uwarp's, too.
pub(crate) fn enter_shadow(handle: &Handle<QueuePair>, number: u32) {
    TABLE.lock().by_number.insert(number, handle.public().expose_provenance());
}

/// Takes a queue pair out of the table, or a number of uwarp's that it had besides.
pub(crate) fn remove(number: u32, public_number: Option<u32>) {
    let mut table = TABLE.lock();
    table.by_number.remove(&number);
    if let Some(public_number) = public_number {
        table.by_public.remove(&public_number);
    }
}

/// The queue pair that a program names by its number, for a call that the program does not destroy it under.
pub(crate) fn find(public_number: u32) -> Option<*mut ibv_qp_ex> {
    TABLE.lock().by_public.get(&public_number).map(|address| std::ptr::with_exposed_provenance_mut(*address))
}

/// Does something with the queue pair that programs know by a number, if there is one; it is not destroyed meanwhile.
pub(crate) fn with_public<T>(public_number: u32, body: impl FnOnce(&Handle<QueuePair>) -> T) -> Option<T> {
    let table = TABLE.lock();
    let pair = std::ptr::with_exposed_provenance_mut(*table.by_public.get(&public_number)?);
    // SAFETY: it is in the table, so it lives as long as that is locked.
    unsafe { Handle::get(pair) }.ok().map(body)
}

/// Does something with the queue pair that has a number of uwarp's, if there is one; it is not destroyed meanwhile.
pub(crate) fn with_number<T>(number: u32, body: impl FnOnce(&Handle<QueuePair>) -> T) -> Option<T> {
    let table = TABLE.lock();
    let pair = std::ptr::with_exposed_provenance_mut(*table.by_number.get(&number)?);
    // SAFETY: it is in the table, so it lives as long as that is locked.
    unsafe { Handle::get(pair) }.ok().map(body)
}

/// Does something with the queue pair that an identifier or a link has, if it is still there; it is not destroyed
/// meanwhile.
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

/// Everything that programs of the verbs may use: nothing of it shows on the wire before it is used.
pub(crate) fn features() -> Features {
    Features { immediate: true, atomics: true, ..Features::default() }
}

/// What queue pairs that programs connect themselves agree on besides, by the version of their private data.
pub(crate) fn features_of_links() -> Features {
    Features { infiniband: true, ..features() }
}

/// How long a connection may take to come about, apart from what the acceptor's program does before it answers.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(15);
/// How long that program may take. TCP notices before if its host or process is gone.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(600);

/// Begins what ends in an event with this key. A queue pair that is in use keeps what it has.
pub(crate) fn begin(
    pair: &Handle<QueuePair>,
    channel: &EventChannel,
    key: u64,
    start: impl FnOnce(&mut QueuePairControl) -> Result<Connecting, uwarp::Error>,
) -> Result<(), Errno> {
    let mut control = pair.control();
    if control.state() != QueuePairState::Idle {
        return Err(EINVAL);
    }
    // Before the start: the outcome may come at once.
    control.attach(channel, key);
    match start(&mut control) {
        Ok(started) => drop(started),
        Err(error) => {
            control.detach();
            return Err(error.into());
        }
    }
    Ok(())
}

/// Moves it to the error state: all work is flushed, now and from now on.
pub(crate) fn fail(pair: &Handle<QueuePair>) -> Result<(), Errno> {
    let mut link = pair.link.lock();
    if let Some(shadow) = link.as_mut().and_then(Link::shadow) {
        shadow.control.flush()?;
    }
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

/// Ends the queue pair that has received in place of one that was its own peer.
pub(crate) fn destroy_shadow(base: &ibv_qp, shadow: Box<uwarp::QueuePair>) -> Result<(), Errno> {
    let uwarp::QueuePair { control, send, receive } = *shadow;
    let number = control.number();
    remove(number, None);
    drop((send, receive));
    control.destroy();
    purge(base, number)
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
