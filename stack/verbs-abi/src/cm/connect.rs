//! Listening, connecting, accepting, rejecting, disconnecting.

use crate::abi::*;
use crate::cm::identifier::{Attempt, Identifier, Stage, State, complete, has_event};
use crate::cm::outcome::{self, MOST_REFUSALS, reads_of, start};
use crate::cm::{endpoint, resolve};
use crate::dispatch;
use crate::errno::{EINVAL, Errno, minus_one};
use crate::handle::Handle;
use crate::process;
use crate::verbs::context::MOST_READS;
use crate::verbs::pair::{self, QueuePair};
use libc::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use uwarp::{AcceptOptions, ConnectOptions, QueuePairState, ReadyToReceiveKinds};

/// How long an acceptance waits for the engine, which takes some microseconds if it has a CPU.
const ENGINE_LIMIT: Duration = Duration::from_secs(1);
/// Requests that wait where the program does not say how many may.
const BACKLOG: usize = 128;

/// What a program says about a connection; nothing counts as nothing to say.
struct Wishes {
    private_data: Vec<u8>,
    ird: u16,
    ord: u16,
    /// Of a queue pair that the identifier has not made; 0: none.
    queue_pair: u32,
}

/// Private data.
///
/// # Safety
/// `from` is null or points to as many octets.
unsafe fn octets(from: *const c_void, length: u8) -> Result<Vec<u8>, Errno> {
    match usize::from(length) {
        0 => Ok(Vec::new()),
        _ if from.is_null() => Err(EINVAL),
        // SAFETY: as the caller promises.
        length => Ok(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.to_vec()),
    }
}

impl Wishes {
    /// # Safety
    /// `parameters` is null or the program's.
    unsafe fn read(parameters: *const rdma_conn_param, offered: (u16, u16)) -> Result<Wishes, Errno> {
        // SAFETY: as the caller promises.
        let Some(parameters) = (unsafe { parameters.as_ref() }) else {
            return Ok(Wishes { private_data: Vec::new(), ird: offered.0, ord: offered.1, queue_pair: 0 });
        };
        // SAFETY: the program's octets.
        let private_data = unsafe { octets(parameters.private_data, parameters.private_data_len)? };
        let limit =
            |value: u8, most: u16| if value == u8::MAX { most } else { u16::from(value).min(MOST_READS as u16) };
        Ok(Wishes {
            private_data,
            ird: limit(parameters.responder_resources, offered.0),
            ord: limit(parameters.initiator_depth, offered.1),
            queue_pair: parameters.qp_num,
        })
    }
}

/// The queue pair of a connection: the identifier's, or the one whose number the program gives.
fn pair_of(public: &rdma_cm_id, number: u32) -> Result<&'static Handle<QueuePair>, Errno> {
    let qp = if public.qp.is_null() { pair::find(number).ok_or(EINVAL)? } else { public.qp.cast() };
    // SAFETY: the program's, which it does not destroy while it connects it.
    unsafe { Handle::<QueuePair>::get(qp) }
}

/// A queue pair tells whoever asks how long it waits for acknowledgments, as the program said to rdma_cm. TCP goes by
/// its own time-outs.
fn set_timeout(pair: &Handle<QueuePair>, state: &State) {
    if let Some(timeout) = state.timeout {
        pair.attributes().timeout = timeout;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        if handle.lock().local.is_none() {
            resolve::bind(handle, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        }
        let mut state = handle.lock();
        let context = process::started()?;
        if !matches!(state.stage, Stage::New) {
            return Err(EINVAL);
        }
        let most = context.config().limits.backlog;
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(BACKLOG).min(most);
        let binding = state.binding.as_mut().ok_or(EINVAL)?;
        binding.listen(context, dispatch::channel()?, backlog, handle.key)?;
        state.stage = Stage::Listening;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    minus_one(|| {
        let most = MOST_READS as u16;
        // SAFETY: the caller's pointers.
        let (handle, wishes) = unsafe { (Handle::<Identifier>::get(id)?, Wishes::read(parameters, (most, most))?) };
        // SAFETY: our own structure.
        let pair = pair_of(unsafe { &*id }, wishes.queue_pair)?;
        let mut state = handle.lock();
        let (Some(peer), Some(local)) = (state.peer, state.local) else { return Err(EINVAL) };
        if !matches!(state.stage, Stage::New) {
            return Err(EINVAL);
        }
        let options = ConnectOptions {
            private_data: wishes.private_data,
            ird: wishes.ird,
            ord: wishes.ord,
            timeout: pair::START_LIMIT,
            answer_timeout: Some(pair::ANSWER_LIMIT),
            features: pair::features(),
            local_port: (local.port() != 0).then_some(local.port()),
            local_address: Some(local.ip()),
            ..ConnectOptions::default()
        }
        // Responders of many programs speak first; a peer that does not know this start-up is connected without it.
        .prefer_peer_to_peer(ReadyToReceiveKinds::ALL);
        let attempt = Attempt { channel: dispatch::channel()?, peer, options, refusals: MOST_REFUSALS };
        start(pair, handle.key, &attempt)?;
        state.attempt = Some(attempt);
        pair::join(pair);
        set_timeout(pair, &state);
        state.queue_pair = Some(pair.id);
        state.stage = Stage::Starting;
        drop(state);
        complete(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        let mut state = handle.lock();
        let Stage::Requested(request) = &state.stage else { return Err(EINVAL) };
        let offered = reads_of(request);
        // SAFETY: the caller's pointer.
        let wishes = unsafe { Wishes::read(parameters, offered)? };
        // SAFETY: our own structure.
        let pair = pair_of(unsafe { &*id }, wishes.queue_pair)?;
        let Stage::Requested(request) = std::mem::take(&mut state.stage) else { return Err(EINVAL) };
        state.stage = Stage::Ended;
        let options = AcceptOptions {
            private_data: wishes.private_data,
            ird: wishes.ird,
            ord: wishes.ord,
            timeout: pair::START_LIMIT,
            features: pair::features(),
            ..AcceptOptions::default()
        };
        pair::begin(pair, dispatch::channel()?, handle.key, |control| request.start_accept(control, options))?;
        pair::join(pair);
        set_timeout(pair, &state);
        state.queue_pair = Some(pair.id);
        state.stage = Stage::Starting;
        // As with a device: the queue pair takes work from here on. Once the lock is free, an end may be reported.
        pair::set_state(pair, IBV_QPS_RTS);
        drop(state);
        await_acceptance(pair);
        complete(handle)
    })
}

/// Waits until the engine has carried the acceptance out, or has found the peer gone, which an event reports.
fn await_acceptance(pair: &Handle<QueuePair>) {
    let end = Instant::now() + ENGINE_LIMIT;
    while pair.control().state() == QueuePairState::Connecting && Instant::now() < end {
        std::thread::yield_now();
    }
}

fn reject(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> Result<(), Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        let octets = octets(private_data, length)?;
        let mut state = handle.lock();
        match std::mem::take(&mut state.stage) {
            Stage::Requested(request) => {
                state.stage = Stage::Ended;
                request.reject(&octets)?;
                // A program that leaves now, without the exit handler, must not take the answer along: the engine
                // answers the second call after it has ended the turn that sent it.
                let context = process::started()?;
                context.stats();
                context.stats();
                Ok(())
            }
            other => {
                state.stage = other;
                Err(EINVAL)
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> c_int {
    minus_one(|| reject(id, private_data, length).map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> c_int {
    minus_one(|| reject(id, private_data, length).map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        {
            let state = handle.lock();
            match state.stage {
                Stage::Starting | Stage::Connected => {}
                // The peer was first. Of an identifier without a channel, the event of that may still wait.
                Stage::Ended if state.queue_pair.is_some() => {
                    drop(state);
                    return if has_event(handle) { complete(handle) } else { Ok(0) };
                }
                _ => return Err(EINVAL),
            }
            outcome::disconnect(id, handle, state)?;
        }
        complete(handle)
    })
}

/// The connection of an identifier without a queue pair is the program's affair, as on InfiniBand; on iWARP there is
/// none.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's pointer.
    minus_one(|| unsafe { Handle::<Identifier>::get(id).and(Err(EINVAL)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _: ibv_event_type) -> c_int {
    // Nothing is waited for that a program could say better.
    // SAFETY: the caller's pointer.
    minus_one(|| unsafe { Handle::<Identifier>::get(id).map(|_| 0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let handle = Handle::<Identifier>::get(listener)?;
            let out = out.as_mut().ok_or(EINVAL)?;
            let template = {
                let state = handle.lock();
                if !state.waits || !matches!(state.stage, Stage::Listening) {
                    return Err(EINVAL);
                }
                state.template
            };
            complete(handle)?;
            let event = std::mem::replace(&mut (*listener).event, std::ptr::null_mut());
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                (*listener).event = event;
                return Err(EINVAL);
            }
            let id = (*event).id;
            if let Some(template) = template
                && let Err(errno) = endpoint::create_queue_pair(id, template.pd, template.queue_pair)
            {
                (*listener).event = event;
                return Err(errno);
            }
            // The new identifier has its request at hand until it is answered.
            (*id).event = event;
            *out = id;
        }
        Ok(0)
    })
}
