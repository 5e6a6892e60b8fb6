//! Listening, connecting, accepting, rejecting, disconnecting.

use crate::abi::*;
use crate::cm::channel::Report;
use crate::cm::dispatch;
use crate::cm::endpoint;
use crate::cm::identifier::{Attempt, Identifier, Stage, State, complete, has_event, report};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::handle::Handle;
use crate::process;
use crate::verbs::context::MOST_READS;
use crate::verbs::queue_pair::{self, Pair};
use libc::{c_int, c_void};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uwarp::{AcceptOptions, ConnectOptions, Features, ReadyToReceiveKinds};

/// How long a connection may take to come about.
const START_LIMIT: Duration = Duration::from_secs(15);
/// Requests that wait where the program does not say how many may.
const BACKLOG: usize = 128;

/// How often a connection is refused before the program is told, and the pause between two attempts. Servers such as perftest's
/// listen anew for each connection, and count on clients that take longer to resolve an address than they do for that.
const MOST_REFUSALS: u32 = 20;
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// Begins to connect a queue pair; the outcome comes with the key.
fn start(pair: &Handle<Pair>, key: u64, peer: SocketAddr, options: ConnectOptions) -> Result<(), Errno> {
    let context = process::started()?;
    let mut control = pair.control();
    let control = control.as_mut().ok_or(EINVAL)?;
    control.attach(dispatch::channel()?, key);
    drop(context.start_connect(control, peer, options)?);
    Ok(())
}

/// Keys of the identifiers that were refused, and when each connects again. One thread answers them in order, and runs while
/// there are some: perftest takes the server's first queue pair to be connected with the client's first.
static REFUSED: Mutex<VecDeque<(Instant, u64)>> = Mutex::new(VecDeque::new());

fn refused() -> MutexGuard<'static, VecDeque<(Instant, u64)>> {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects once more, a little later. False: it was tried often enough.
fn try_again(handle: &Handle<Identifier>, state: &mut State) -> bool {
    let Some(attempt) = state.attempt.as_mut().filter(|attempt| attempt.refusals > 0) else { return false };
    attempt.refusals -= 1;
    let mut refused = refused();
    refused.push_back((Instant::now() + REFUSAL_PAUSE, handle.key));
    if refused.len() == 1 && dispatch::spawn("uwarp-retry", answer_refusals).is_err() {
        refused.pop_back();
        return false;
    }
    true
}

fn answer_refusals() {
    while let Some((at, key)) = { refused().front().copied() } {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        connect_again(key);
        // Only now, so that nobody starts a second thread meanwhile.
        let mut refused = refused();
        refused.pop_front();
        if refused.is_empty() {
            return;
        }
    }
}

fn connect_again(key: u64) {
    dispatch::with_identifier(key, |id, handle| {
        let again = {
            let state = handle.lock();
            let pair = state.queue_pair.and_then(queue_pair::find).filter(|_| matches!(state.stage, Stage::Starting));
            // SAFETY: from the list of those that live.
            let pair = pair.and_then(|pair| unsafe { Handle::<Pair>::get(pair.cast()).ok() });
            match (pair, &state.attempt) {
                (Some(pair), Some(attempt)) => start(pair, key, attempt.peer, attempt.options.clone()),
                _ => Err(EINVAL),
            }
        };
        if again.is_err() {
            handle.lock().attempt = None;
            settle(id, handle, Outcome::Failed(libc::ECONNREFUSED));
        }
    });
}

/// Everything that programs of the verbs may use: nothing of it shows on the wire before it is used.
fn features() -> Features {
    Features { immediate: true, atomics: true, ..Features::default() }
}

/// What a program says about a connection; nothing counts as nothing to say.
struct Wishes {
    private_data: Vec<u8>,
    ird: u16,
    ord: u16,
    queue_pair: u32,
}

impl Wishes {
    /// # Safety
    /// `parameters` is null or the program's.
    unsafe fn read(parameters: *const rdma_conn_param, offered: (u16, u16)) -> Result<Wishes, Errno> {
        // SAFETY: as the caller promises.
        let Some(parameters) = (unsafe { parameters.as_ref() }) else {
            return Ok(Wishes { private_data: Vec::new(), ird: offered.0, ord: offered.1, queue_pair: 0 });
        };
        let length = usize::from(parameters.private_data_len);
        let private_data = if length == 0 {
            Vec::new()
        } else if parameters.private_data.is_null() {
            return Err(EINVAL);
        } else {
            // SAFETY: the program's octets.
            unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), length) }.to_vec()
        };
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
fn pair_of(public: &rdma_cm_id, number: u32) -> Result<&'static Handle<Pair>, Errno> {
    let qp = if public.qp.is_null() { queue_pair::find(number).ok_or(EINVAL)? } else { public.qp };
    // SAFETY: of the program's structure, or from the list of those that live.
    unsafe { Handle::<Pair>::get(qp.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        let mut state = handle.lock();
        let Some(binding) = &state.binding else { return Err(EINVAL) };
        let context = process::started()?;
        if !matches!(state.stage, Stage::New) {
            return Err(EINVAL);
        }
        let most = context.config().limits.backlog;
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(BACKLOG).min(most);
        binding.listen(context, backlog, handle.key)?;
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
            timeout: START_LIMIT,
            features: features(),
            local_port: (local.port() != 0).then_some(local.port()),
            local_address: Some(local.ip()),
            ..ConnectOptions::default()
        }
        // Responders of many programs speak first; a peer that does not know this start-up is connected without it.
        .prefer_peer_to_peer(ReadyToReceiveKinds::ALL);
        start(pair, handle.key, peer, options.clone())?;
        state.attempt = Some(Attempt { peer, options, refusals: MOST_REFUSALS });
        queue_pair::join(pair);
        pair.timeout.store(state.timeout, Ordering::Relaxed);
        // SAFETY: our own structures.
        state.queue_pair = Some(unsafe { (*pair.public()).qp_base.qp_num });
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
            timeout: START_LIMIT,
            features: features(),
            ..AcceptOptions::default()
        };
        {
            let mut control = pair.control();
            let control = control.as_mut().ok_or(EINVAL)?;
            control.attach(dispatch::channel()?, handle.key);
            drop(request.start_accept(control, options)?);
        }
        queue_pair::join(pair);
        pair.timeout.store(state.timeout, Ordering::Relaxed);
        // SAFETY: our own structures.
        state.queue_pair = Some(unsafe { (*pair.public()).qp_base.qp_num });
        state.stage = Stage::Starting;
        // As with a device: the queue pair takes work from here on.
        queue_pair::set_state(pair, IBV_QPS_RTS);
        drop(state);
        complete(handle)
    })
}

/// What this side may serve and have outstanding, by what a peer says in its request: (IRD, ORD).
pub(crate) fn reads_of(request: &uwarp::ConnectRequest) -> (u16, u16) {
    let most = MOST_READS as u16;
    (request.ord().unwrap_or(most).min(most), request.ird().unwrap_or(most).min(most))
}

fn reject(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> Result<(), Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        let octets = match usize::from(length) {
            0 => Vec::new(),
            _ if private_data.is_null() => return Err(EINVAL),
            length => std::slice::from_raw_parts(private_data.cast::<u8>(), length).to_vec(),
        };
        let mut state = handle.lock();
        match std::mem::take(&mut state.stage) {
            Stage::Requested(request) => {
                state.stage = Stage::Ended;
                request.reject(&octets)?;
                // A program that leaves now, without the exit handler, must not take the answer along: the engine answers the
                // second call after it has ended the turn that sent it.
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
            let pair = state.queue_pair.and_then(queue_pair::find).ok_or(EINVAL)?;
            // SAFETY: from the list of those that live.
            let pair = unsafe { Handle::<Pair>::get(pair.cast())? };
            if let Some(control) = pair.control().as_mut() {
                control.disconnect();
            }
        }
        complete(handle)
    })
}

/// The connection of an identifier without a queue pair is the program's affair, as on InfiniBand; on iWARP there is none.
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

/// What uwarp says about an identifier, told to the program.
pub(crate) enum Outcome {
    Established { private_data: Vec<u8>, ird: u16, ord: u16 },
    Rejected { private_data: Vec<u8> },
    Failed(c_int),
    Disconnected,
}

/// Delivers an outcome.
pub(crate) fn settle(id: *mut rdma_cm_id, handle: &Handle<Identifier>, outcome: Outcome) {
    let mut state = handle.lock();
    // SAFETY: from the list of those that live.
    let pair =
        state.queue_pair.and_then(queue_pair::find).and_then(|pair| unsafe { Handle::<Pair>::get(pair.cast()).ok() });
    let mut event = Report::plain(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    let private;
    match outcome {
        Outcome::Established { private_data, ird, ord } => {
            state.stage = Stage::Connected;
            if let Some(pair) = pair {
                pair.set_reads(ird, ord);
                queue_pair::set_state(pair, IBV_QPS_RTS);
            }
            private = private_data;
            event.kind = RDMA_CM_EVENT_ESTABLISHED;
            event.private_data = &private;
            event.responder_resources = octet(ird);
            event.initiator_depth = octet(ord);
        }
        Outcome::Rejected { private_data } => {
            state.stage = Stage::Ended;
            private = private_data;
            event.kind = RDMA_CM_EVENT_REJECTED;
            event.status = -libc::ECONNREFUSED;
            event.private_data = &private;
        }
        Outcome::Failed(libc::ECONNREFUSED) if try_again(handle, &mut state) => return,
        Outcome::Failed(errno) => {
            state.stage = Stage::Ended;
            event.status = -errno;
            event.kind = match errno {
                libc::ECONNREFUSED | libc::ECONNRESET => RDMA_CM_EVENT_REJECTED,
                libc::ETIMEDOUT | libc::EHOSTUNREACH => RDMA_CM_EVENT_UNREACHABLE,
                _ => RDMA_CM_EVENT_CONNECT_ERROR,
            };
        }
        Outcome::Disconnected => {
            state.stage = Stage::Ended;
            if let Some(pair) = pair {
                queue_pair::set_state(pair, IBV_QPS_ERR);
            }
        }
    }
    drop(state);
    report(handle, event);
}

/// A limit in the eight bits that the program has for it.
pub(crate) fn octet(limit: u16) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX)
}

/// A peer's request becomes an identifier, and an event of the listener.
pub(crate) fn request(
    listener: *mut rdma_cm_id,
    handle: &Handle<Identifier>,
    request: uwarp::ConnectRequest,
    register: impl FnOnce(u64, *mut rdma_cm_id),
) {
    let (ird, ord) = reads_of(&request);
    let private_data = request.private_data().to_vec();
    // SAFETY: the listener's structure; it lives while its event is delivered.
    let made = unsafe { endpoint::child(&*listener, request, register) };
    match made {
        Ok(id) => {
            let mut event = Report::plain(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            event.listener = listener;
            event.private_data = &private_data;
            event.responder_resources = octet(ird);
            event.initiator_depth = octet(ord);
            report(handle, event);
        }
        // Dropped, so rejected.
        Err(errno) => tracing::warn!(errno = errno.0, "a connection request could not be delivered"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(_: *mut rdma_cm_id, _: *mut sockaddr, _: *mut c_void) -> c_int {
    minus_one(|| Err(EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    _: *mut rdma_cm_id,
    _: *mut rdma_cm_join_mc_attr_ex,
    _: *mut c_void,
) -> c_int {
    minus_one(|| Err(EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(_: *mut rdma_cm_id, _: *mut sockaddr) -> c_int {
    minus_one(|| Err(EOPNOTSUPP))
}
