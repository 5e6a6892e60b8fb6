//! The threads that carry uwarp's events to the program's channels.

use crate::abi::*;
use crate::cm::channel::Report;
use crate::cm::connect::{self, Outcome};
use crate::cm::endings::Endings;
use crate::cm::identifier::{self, Identifier};
use crate::cm::port;
use crate::errno::Errno;
use crate::handle::Handle;
use crate::process;
use crate::verbs::completion::Queue;
use crate::verbs::events::Event as Asynchronous;
use crate::verbs::{context, queue_pair, shared_receives};
use libc::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use uwarp::{AsyncEvent, ChannelEvent, ConnectFailure, ConnectionChange, EventChannel};

/// The identifiers that events may come for, by key. It is locked while an event is delivered, so that an identifier that was
/// taken out gets none any more.
static IDENTIFIERS: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);

fn identifiers<T>(with: impl FnOnce(&mut HashMap<u64, usize>) -> T) -> T {
    with(IDENTIFIERS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// A key that no identifier has had.
pub(crate) fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn register(key: u64, id: *mut rdma_cm_id) {
    identifiers(|known| known.insert(key, id.expose_provenance()));
}

pub(crate) fn unregister(key: u64) {
    identifiers(|known| known.remove(&key));
}

/// The channel that all listeners and queue pairs of the process are attached to. The first call starts the threads.
pub(crate) fn channel() -> Result<&'static EventChannel, Errno> {
    static CHANNEL: OnceLock<EventChannel> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(channel) = CHANNEL.get() {
        return Ok(channel);
    }
    let context = process::started()?;
    let channel = EventChannel::new()?;
    let carried = channel.clone();
    spawn("uwarp-cm", move || {
        let mut endings = Endings::default();
        while let Ok(event) = carried.next(endings.patience()) {
            match event {
                Some(ChannelEvent { key, change: ConnectionChange::Disconnected(_), .. }) => {
                    endings.hold(key, Instant::now());
                }
                Some(event) => carry(event.key, event.change),
                None => {}
            }
            for key in endings.ripe(Instant::now(), has_unread_successes) {
                with_identifier(key, |id, handle| connect::settle(id, handle, Outcome::Disconnected));
            }
        }
    })?;
    let events = context.events();
    spawn("uwarp-async", move || {
        while let Ok(Some(event)) = events.wait(Duration::MAX) {
            carry_asynchronous(&event);
        }
    })?;
    Ok(CHANNEL.get_or_init(|| channel))
}

/// Does something with the identifier of a key, if it is still there; it does not go meanwhile.
pub(crate) fn with_identifier(key: u64, body: impl FnOnce(*mut rdma_cm_id, &Handle<Identifier>)) {
    identifiers(|known| {
        let Some(address) = known.get(&key).copied() else { return };
        let id: *mut rdma_cm_id = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: it is in the list, so it lives as long as the list is locked.
        if let Ok(handle) = unsafe { Handle::<Identifier>::get(id) } {
            body(id, handle);
        }
    });
}

/// Whether completions of an identifier's queue pair that succeeded are unread.
fn has_unread_successes(key: u64) -> bool {
    let mut number = None;
    with_identifier(key, |_, handle| number = handle.lock().queue_pair);
    number.is_some_and(queue_pair::has_unread_successes)
}

/// Starts a thread that takes no signals: they belong to the program's own.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    // SAFETY: sets of signals on the stack, and the calling thread's mask, which is put back.
    unsafe {
        let (mut all, mut former) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut former);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, std::ptr::null_mut());
        spawned?;
    }
    Ok(())
}

/// Delivers what became of a listener or a connection to the identifier with this key, if it is still there.
fn carry(key: u64, change: ConnectionChange) {
    identifiers(|known| {
        let key = match &change {
            ConnectionChange::Request(request) => port::listening(key, request.peer().ip()).unwrap_or(key),
            _ => key,
        };
        let Some(address) = known.get(&key).copied() else { return };
        let id: *mut rdma_cm_id = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: it is in the list, so it lives as long as the list is locked.
        let Ok(handle) = (unsafe { Handle::<Identifier>::get(id) }) else { return };
        let outcome = match change {
            ConnectionChange::Request(request) => {
                return connect::request(id, handle, *request, |key, id| {
                    known.insert(key, id.expose_provenance());
                });
            }
            ConnectionChange::Established(made) => {
                Outcome::Established { private_data: made.private_data, ird: made.ird, ord: made.ord }
            }
            ConnectionChange::Rejected { private_data, .. } => Outcome::Rejected { private_data },
            ConnectionChange::Failed(reason) => Outcome::Failed(errno_of(&reason)),
            _ => return,
        };
        connect::settle(id, handle, outcome);
    });
}

fn errno_of(reason: &ConnectFailure) -> c_int {
    match reason {
        ConnectFailure::Refused => libc::ECONNREFUSED,
        ConnectFailure::Closed | ConnectFailure::Reset => libc::ECONNRESET,
        ConnectFailure::TimedOut => libc::ETIMEDOUT,
        ConnectFailure::Unreachable => libc::EHOSTUNREACH,
        _ => libc::EPROTO,
    }
}

/// Tells every identifier that has an address that its device is gone: what it waits for will not come.
fn remove_device() {
    identifiers(|known| {
        for address in known.values() {
            let id: *mut rdma_cm_id = std::ptr::with_exposed_provenance_mut(*address);
            // SAFETY: it is in the list, so it lives as long as the list is locked.
            if let Ok(handle) = unsafe { Handle::<Identifier>::get(id) }
                && handle.lock().local.is_some()
            {
                identifier::report(handle, Report::plain(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
            }
        }
    });
}

/// Delivers an asynchronous event to the device that its object was made from, or to all.
fn carry_asynchronous(event: &AsyncEvent) {
    let (kind, element): (_, Option<usize>) = match event {
        AsyncEvent::QueuePairFatal { queue_pair, .. } => {
            (IBV_EVENT_QP_FATAL, queue_pair::find(*queue_pair).map(|qp| qp.addr()))
        }
        AsyncEvent::CompletionQueueOverflow { queue, queue_pair } => {
            let full = queue_pair::find(*queue_pair).map(|qp| {
                // SAFETY: from the list of those that live, and so are its queues.
                let (send, receive) = unsafe { ((*qp).send_cq, (*qp).recv_cq) };
                // SAFETY: as above.
                let receives = unsafe { Handle::<Queue>::get(receive.cast()) };
                if receives.is_ok_and(|receives| receives.lock().id() == *queue) { receive.addr() } else { send.addr() }
            });
            (IBV_EVENT_CQ_ERR, full)
        }
        AsyncEvent::SharedReceivesLow { queue } => {
            (IBV_EVENT_SRQ_LIMIT_REACHED, shared_receives::find(*queue).map(|queue| queue.addr()))
        }
        AsyncEvent::LastReceiveReached { queue_pair, .. } => {
            (IBV_EVENT_QP_LAST_WQE_REACHED, queue_pair::find(*queue_pair).map(|qp| qp.addr()))
        }
        AsyncEvent::DeviceFatal { cause } => {
            eprintln!("uwarp: {cause}");
            context::push_to_all(Asynchronous { kind: IBV_EVENT_DEVICE_FATAL, element: 0 });
            return remove_device();
        }
        AsyncEvent::Link { up } => {
            let kind = if *up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR };
            return context::push_to_all(Asynchronous { kind, element: 0 });
        }
        _ => return,
    };
    if let Some(element) = element {
        // The first field of each object is its context.
        let context: *const *mut ibv_context = std::ptr::with_exposed_provenance(element);
        // SAFETY: the object's memory stays mapped; its device may be closed by now, which `get` sees.
        if let Ok(open) = unsafe { context::get(*context) } {
            open.events.push(Asynchronous { kind, element });
        }
    }
}
