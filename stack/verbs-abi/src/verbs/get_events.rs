//! Events that the program fetches and acknowledges: those of completion queues, and asynchronous ones.

use crate::abi::*;
use crate::errno::{EINVAL, Errno, nothing};
use crate::event_fd::{Attempt, Unacknowledged, fetch, unless_ending};
use crate::handle::Handle;
use crate::verbs::channel::Channel;
use crate::verbs::completion::CompletionQueue;
use crate::verbs::context;
use crate::verbs::events::Event;
use crate::verbs::pair::QueuePair;
use crate::verbs::shared_receives::SharedQueue;
use libc::{c_int, c_uint, c_void};

/// Takes the event of a queue of a channel, if one has any.
fn take(channel: &Channel, is_counted: bool) -> Result<Option<*mut ibv_cq>, Errno> {
    channel.take(is_counted, |public| {
        // SAFETY: the queue is in the channel, and who destroys it takes it out of there first.
        if let Ok(queue) = unsafe { Handle::<CompletionQueue>::get(public.cast()) } {
            queue.events.fetched();
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    fetch(|is_counted| {
        // SAFETY: the caller's pointers.
        unsafe {
            let channel = Handle::<Channel>::get(channel)?;
            if cq.is_null() || cq_context.is_null() {
                return Err(EINVAL);
            }
            let Some(queue) = unless_ending(|| take(channel, is_counted))? else {
                return Ok(Attempt::Nothing(channel.fd()));
            };
            *cq = queue;
            *cq_context = (*queue).cq_context;
        }
        Ok(Attempt::Fetched)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        let queue = unsafe { Handle::<CompletionQueue>::get(cq.cast())? };
        queue.events.acknowledged(u64::from(events));
        Ok(())
    });
}

/// Counts the events about an object that the program has fetched.
fn fetched_of<'a>(event: Event) -> Option<&'a Unacknowledged> {
    let element = event.element;
    // SAFETY: objects are looked at by the word in front of them, which stays mapped.
    unsafe {
        match event.kind {
            IBV_EVENT_CQ_ERR => Handle::<CompletionQueue>::get(std::ptr::with_exposed_provenance_mut(element))
                .ok()
                .map(|queue| &queue.asynchronous),
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_QP_LAST_WQE_REACHED => Handle::<QueuePair>::get(std::ptr::with_exposed_provenance_mut(element))
                .ok()
                .map(|pair| &pair.asynchronous),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                Handle::<SharedQueue>::get(std::ptr::with_exposed_provenance_mut(element))
                    .ok()
                    .map(|queue| &queue.asynchronous)
            }
            _ => None,
        }
    }
}

fn count(event: Event) {
    if let Some(fetched) = fetched_of(event) {
        fetched.fetched();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int {
    fetch(|is_counted| {
        // SAFETY: the caller's pointers.
        unsafe {
            let open = context::get(context)?;
            if out.is_null() {
                return Err(EINVAL);
            }
            let Some(event) = unless_ending(|| open.events.take(is_counted, count))? else {
                return Ok(Attempt::Nothing(open.events.fd()));
            };
            let mut answer = ibv_async_event { event_type: event.kind, ..ibv_async_event::default() };
            if event.element == 0 {
                answer.element.port_num = 1;
            } else {
                answer.element.qp = std::ptr::with_exposed_provenance_mut(event.element);
            }
            *out = answer;
        }
        Ok(Attempt::Fetched)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    nothing(|| {
        // SAFETY: the caller's event, as it was fetched.
        let event = unsafe {
            let event = event.as_ref().ok_or(EINVAL)?;
            Event { kind: event.event_type, element: event.element.qp.addr() }
        };
        if let Some(fetched) = fetched_of(event) {
            fetched.acknowledged(1);
        }
        Ok(())
    });
}
