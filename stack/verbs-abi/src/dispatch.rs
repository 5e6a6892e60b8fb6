//! The threads that carry uwarp's events to rdma_cm's identifiers, to queue pairs that programs connect themselves, and
//! to the program's channels.

use crate::abi::*;
use crate::cm::channel::Report;
use crate::cm::endings::Endings;
use crate::cm::identifier;
use crate::cm::outcome::{self, Outcome};
use crate::errno::Errno;
use crate::handle::Handle;
use crate::locks::{Lock, Rank};
use crate::process;
use crate::rc::meeting;
use crate::rsocket;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::events::Event as Asynchronous;
use crate::verbs::{context, pair, shared_receives};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use uwarp::{AsyncEvent, ChannelEvent, ConnectionChange, EventChannel};

/// The channel that all listeners and queue pairs of the process are attached to. The first call starts the threads.
pub(crate) fn channel() -> Result<&'static EventChannel, Errno> {
    static CHANNEL: OnceLock<EventChannel> = OnceLock::new();
    static MAKING: Lock<()> = Lock::new(Rank::Making, ());
    let _one = MAKING.lock();
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
                Some(ChannelEvent { key, change: ConnectionChange::Disconnected(_), .. })
                    if identifier::known().contains_key(&key) =>
                {
                    endings.hold(key, Instant::now());
                }
                Some(event) => carry(&carried, event),
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

/// Delivers what became of a listener or a connection to the identifier or the queue pair with this key, if it is still
/// there.
fn carry(channel: &EventChannel, ChannelEvent { key, change, .. }: ChannelEvent) {
    let Some(change) = meeting::carry(channel, key, change) else { return };
    let Some(change) = rsocket::carry(key, change) else { return };
    identifier::with(key, |known, id, handle| {
        let outcome = match change {
            ConnectionChange::Request(request) => return outcome::request(known, id, handle, *request),
            ConnectionChange::Established(made) => {
                let uwarp::Established { local, private_data, ird, ord, .. } = *made;
                Outcome::Established { local, private_data, ird, ord }
            }
            ConnectionChange::Rejected { private_data, .. } => Outcome::Rejected { private_data },
            ConnectionChange::Failed(reason) => {
                tracing::info!(%reason, "no connection");
                Outcome::Failed(uwarp::errno_of_failure(reason))
            }
            _ => return,
        };
        outcome::settle(id, handle, outcome);
    });
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
///
/// What finds the object holds its list until the event is in its place: who takes the object out of the list finds the
/// event there, and none comes behind that.
fn carry_asynchronous(event: &AsyncEvent) {
    match event {
        AsyncEvent::QueuePairFatal { queue_pair, .. } => {
            pair::with_number(*queue_pair, |pair| push(IBV_EVENT_QP_FATAL, pair.public().addr()));
        }
        AsyncEvent::CompletionQueueOverflow { queue, queue_pair } => {
            pair::with_number(*queue_pair, |pair| {
                // SAFETY: our own structure; the queues live as long.
                let (send, receive) = unsafe { ((*pair.public()).qp_base.send_cq, (*pair.public()).qp_base.recv_cq) };
                // SAFETY: as above.
                let receives = unsafe { Handle::<CompletionQueue>::get(receive.cast()) };
                let is_full = receives.is_ok_and(|receives| receives.target.id() == *queue);
                push(IBV_EVENT_CQ_ERR, if is_full { receive.addr() } else { send.addr() });
            });
        }
        AsyncEvent::SharedReceivesLow { queue } => {
            shared_receives::with(*queue, |address| push(IBV_EVENT_SRQ_LIMIT_REACHED, address));
        }
        AsyncEvent::LastReceiveReached { queue_pair, .. } => {
            pair::with_number(*queue_pair, |pair| push(IBV_EVENT_QP_LAST_WQE_REACHED, pair.public().addr()));
        }
        AsyncEvent::FirstMessage { queue_pair } => {
            pair::with_number(*queue_pair, |pair| {
                // Who is ready to send knows without it.
                if pair::state(pair) == IBV_QPS_RTR {
                    push(IBV_EVENT_COMM_EST, pair.public().addr());
                }
            });
        }
        AsyncEvent::SendQueueDrained { queue_pair } => {
            pair::with_number(*queue_pair, |pair| {
                let mut attributes = pair.attributes();
                // It goes on again if the program was faster.
                let wants_it = attributes.sq_draining != 0 && attributes.en_sqd_async_notify != 0;
                attributes.sq_draining = 0;
                drop(attributes);
                if wants_it {
                    push(IBV_EVENT_SQ_DRAINED, pair.public().addr());
                }
            });
        }
        AsyncEvent::DeviceFatal { cause } => {
            eprintln!("uwarp: {cause}");
            context::push_to_all(Asynchronous { kind: IBV_EVENT_DEVICE_FATAL, element: 0 });
            remove_device();
            rsocket::lose_device();
        }
        AsyncEvent::Link { up } => {
            let kind = if *up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR };
            context::push_to_all(Asynchronous { kind, element: 0 });
        }
        AsyncEvent::OctetsNotAcknowledged { queue_pair, octets } => {
            tracing::warn!(queue_pair, octets, "the connection ended before the peer had all that has completed");
        }
        _ => {}
    }
}

/// Puts an event into the device that the object at this address was made from. The object lives.
fn push(kind: ibv_event_type, element: usize) {
    // The first field of each object is its context.
    let context: *const *mut ibv_context = std::ptr::with_exposed_provenance(element);
    // SAFETY: the object lives, and its device is not closed before it.
    if let Ok(open) = unsafe { context::get(*context) } {
        open.events.push(Asynchronous { kind, element });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::*;
    use crate::testing::{Device, errno};
    use crate::verbs::pair::QueuePair;
    use crate::verbs::shared_receives::SharedQueue;
    use libc::c_int;
    use std::ptr::{null_mut, with_exposed_provenance_mut};
    use uwarp::Status;

    /// Fetches an event, and has another thread destroy its object, which waits for the acknowledgment. The event comes
    /// again then, as soon as nothing finds the object any more.
    fn destroy_meanwhile<T: 'static>(
        event: &AsyncEvent,
        object: *mut T,
        destroy: unsafe extern "C" fn(*mut T) -> c_int,
        is_there: impl Fn() -> bool,
    ) {
        let device: *mut *mut ibv_context = object.cast();
        carry_asynchronous(event);
        let mut fetched = ibv_async_event::default();
        // SAFETY: the test's own objects; the first field of each is its context.
        let context = unsafe { *device };
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_get_async_event(context, &raw mut fetched) }, 0);
        let address = object.expose_provenance();
        // SAFETY: as above.
        let destroyer = std::thread::spawn(move || unsafe { destroy(with_exposed_provenance_mut(address)) });
        let start = Instant::now();
        while is_there() {
            assert!(start.elapsed() < Duration::from_secs(10), "it is found until its last event is acknowledged");
            std::thread::yield_now();
        }
        carry_asynchronous(event);
        // SAFETY: as above.
        unsafe { ibv_ack_async_event(&raw mut fetched) };
        assert_eq!(destroyer.join().unwrap(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_get_async_event(context, &raw mut fetched) }, -1);
        assert_eq!(errno(), libc::EAGAIN);
    }

    #[test]
    fn no_event_comes_of_an_object_that_is_being_destroyed() {
        let device = Device::open();
        let qp = device.queue_pair(device.queue(null_mut()));
        // SAFETY: it lives.
        let number = unsafe { Handle::<QueuePair>::get(qp.cast()) }.unwrap().id.number;
        let fatal = AsyncEvent::QueuePairFatal { queue_pair: number, status: Status::Fatal };
        destroy_meanwhile(&fatal, qp, ibv_destroy_qp, || pair::with_number(number, |_| ()).is_some());

        let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        let mut wanted = ibv_srq_init_attr { attr, ..ibv_srq_init_attr::default() };
        // SAFETY: the test's own objects.
        let (srq, queue) = unsafe {
            let srq = ibv_create_srq(device.pd, &raw mut wanted);
            (srq, Handle::<SharedQueue>::get(srq).unwrap().lock().id())
        };
        destroy_meanwhile(&AsyncEvent::SharedReceivesLow { queue }, srq, ibv_destroy_srq, || {
            let mut is_there = false;
            shared_receives::with(queue, |_| is_there = true);
            is_there
        });
    }
}
