//! The threads that carry uwarp's events to the program's channels.

use crate::abi::*;
use crate::cm::channel::Report;
use crate::cm::endings::Endings;
use crate::cm::outcome::{self, Outcome};
use crate::cm::{identifier, port};
use crate::errno::Errno;
use crate::handle::Handle;
use crate::process;
use crate::verbs::completion::Queue;
use crate::verbs::events::Event as Asynchronous;
use crate::verbs::{context, pair, shared_receives};
use libc::c_int;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use uwarp::{AsyncEvent, ChannelEvent, ConnectFailure, ConnectionChange, EventChannel};

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
    process::spawn("uwarp-cm", move || {
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
                identifier::with(key, |_, id, handle| outcome::settle(id, handle, Outcome::Disconnected));
            }
        }
    })?;
    let events = context.events();
    process::spawn("uwarp-async", move || {
        while let Ok(Some(event)) = events.wait(Duration::MAX) {
            carry_asynchronous(&event);
        }
    })?;
    Ok(CHANNEL.get_or_init(|| channel))
}

/// Whether completions of an identifier's queue pair that succeeded are unread.
fn has_unread_successes(key: u64) -> bool {
    let mut number = None;
    identifier::with(key, |_, _, handle| number = handle.lock().queue_pair);
    number.is_some_and(pair::has_unread_successes)
}

/// Delivers what became of a listener or a connection to the identifier with this key, if it is still there.
fn carry(key: u64, change: ConnectionChange) {
    let key = match &change {
        ConnectionChange::Request(request) => port::listening(key, request.peer().ip()).unwrap_or(key),
        _ => key,
    };
    identifier::with(key, |known, id, handle| {
        let outcome = match change {
            ConnectionChange::Request(request) => return outcome::request(known, id, handle, *request),
            ConnectionChange::Established(made) => {
                Outcome::Established { private_data: made.private_data, ird: made.ird, ord: made.ord }
            }
            ConnectionChange::Rejected { private_data, .. } => Outcome::Rejected { private_data },
            ConnectionChange::Failed(reason) => Outcome::Failed(errno_of(&reason)),
            _ => return,
        };
        outcome::settle(id, handle, outcome);
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
    for key in identifier::keys() {
        identifier::with(key, |_, id, handle| {
            if handle.lock().local.is_some() {
                identifier::report(handle, Report::plain(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0));
            }
        });
    }
}

/// Delivers an asynchronous event to the device that its object was made from, or to all.
fn carry_asynchronous(event: &AsyncEvent) {
    let (kind, element): (_, Option<usize>) = match event {
        AsyncEvent::QueuePairFatal { queue_pair, .. } => {
            (IBV_EVENT_QP_FATAL, pair::find(*queue_pair).map(|pair| pair.public().addr()))
        }
        AsyncEvent::CompletionQueueOverflow { queue, queue_pair } => {
            let full = pair::find(*queue_pair).map(|pair| {
                // SAFETY: our own structure; the queues live as long.
                let (send, receive) = unsafe { ((*pair.public()).qp_base.send_cq, (*pair.public()).qp_base.recv_cq) };
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
            (IBV_EVENT_QP_LAST_WQE_REACHED, pair::find(*queue_pair).map(|pair| pair.public().addr()))
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
        AsyncEvent::OctetsNotAcknowledged { queue_pair, octets } => {
            return tracing::warn!(
                queue_pair,
                octets,
                "the connection ended before the peer had all that has completed"
            );
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
