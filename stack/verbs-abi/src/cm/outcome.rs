//! What becomes of connections, as the program hears of it; who is refused tries again before that.

use crate::abi::*;
use crate::cm::address::{self, End};
use crate::cm::channel::Report;
use crate::cm::endpoint;
use crate::cm::identifier::{self, Attempt, Identifier, Known, Stage, State, report};
use crate::errno::{EINVAL, Errno};
use crate::handle::Handle;
use crate::locks::{Lock, Locked, Rank};
use crate::process;
use crate::verbs::context::MOST_READS;
use crate::verbs::pair::{self, QueuePair};
use libc::c_int;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uwarp::{ConnectRequest, QueuePairState};

/// How often a connection is refused before the program is told, and the pause between two attempts. Servers such as
/// perftest's listen anew for each connection, and count on clients that take longer to resolve an address than they do
/// for that.
pub(crate) const MOST_REFUSALS: u32 = 20;
const REFUSAL_PAUSE: Duration = Duration::from_millis(10);

/// Begins to connect a queue pair for the identifier with this key.
pub(crate) fn start(pair: &Handle<QueuePair>, key: u64, attempt: &Attempt) -> Result<(), Errno> {
    let context = process::started()?;
    let Attempt { channel, peer, options, .. } = attempt;
    pair::begin(pair, channel, key, |control| context.start_connect(control, *peer, options.clone()))
}

/// Keys of the identifiers that were refused, and when each connects again. One thread answers them in order, and runs
/// while there are some: perftest takes the server's first queue pair to be connected with the client's first.
static REFUSED: Lock<VecDeque<(Instant, u64)>> = Lock::new(Rank::Refused, VecDeque::new());

fn refused() -> Locked<'static, VecDeque<(Instant, u64)>> {
    REFUSED.lock()
}

/// Connects once more, a little later. False: it was tried often enough.
fn try_again(handle: &Handle<Identifier>, state: &mut State) -> bool {
    let Some(attempt) = state.attempt.as_mut().filter(|attempt| attempt.refusals > 0) else { return false };
    attempt.refusals -= 1;
    let mut refused = refused();
    refused.push_back((Instant::now() + REFUSAL_PAUSE, handle.key));
    if refused.len() == 1 && process::spawn("uwarp-retry", answer_refusals).is_err() {
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
    identifier::with(key, |_, id, handle| {
        let again = {
            let state = handle.lock();
            match (state.queue_pair, &state.attempt) {
                (Some(id), Some(attempt)) if matches!(state.stage, Stage::Starting) => {
                    pair::with(id, |pair| start(pair, handle.key, attempt)).unwrap_or(Err(EINVAL))
                }
                _ => Err(EINVAL),
            }
        };
        if again.is_err() {
            handle.lock().attempt = None;
            settle(id, handle, Outcome::Failed(libc::ECONNREFUSED));
        }
    });
}

/// What uwarp says about an identifier, told to the program.
pub(crate) enum Outcome {
    Established { local: SocketAddr, private_data: Vec<u8>, ird: u16, ord: u16 },
    Rejected { private_data: Vec<u8> },
    Failed(c_int),
    Disconnected,
}

/// Delivers an outcome.
pub(crate) fn settle(id: *mut rdma_cm_id, handle: &Handle<Identifier>, outcome: Outcome) {
    conclude(id, handle, handle.lock(), outcome);
}

/// Ends a connection, or the attempt to make one.
pub(crate) fn disconnect(
    id: *mut rdma_cm_id,
    handle: &Handle<Identifier>,
    mut state: Locked<'_, State>,
) -> Result<(), Errno> {
    let disconnected = |id| {
        pair::with(id, |pair| {
            let mut control = pair.control();
            control.disconnect();
            control.state()
        })
    };
    let now = state.queue_pair.and_then(disconnected).ok_or(EINVAL)?;
    if matches!(state.stage, Stage::Starting) {
        state.attempt = None;
        state.gives_up = true;
        if now == QueuePairState::Idle {
            // It was refused, and nothing but a pause would end.
            conclude(id, handle, state, Outcome::Disconnected);
        }
    }
    Ok(())
}

fn conclude(id: *mut rdma_cm_id, handle: &Handle<Identifier>, mut state: Locked<'_, State>, outcome: Outcome) {
    let never_was = match outcome {
        Outcome::Failed(_) | Outcome::Rejected { .. } => true,
        Outcome::Disconnected => state.gives_up,
        Outcome::Established { .. } => false,
    };
    let outcome = match outcome {
        // Of an attempt that the program has ended: it knows.
        _ if matches!(state.stage, Stage::Ended) => return,
        Outcome::Failed(_) | Outcome::Rejected { .. } if state.gives_up => Outcome::Disconnected,
        outcome => outcome,
    };
    let queue_pair = state.queue_pair;
    let mut event = Report::plain(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    let private;
    match outcome {
        Outcome::Established { local, private_data, ird, ord } => {
            state.stage = Stage::Connected;
            // The engine has chosen the port, unless the program has bound one.
            state.local = Some(local);
            // SAFETY: our own structure, whose identifier lives.
            address::write(unsafe { &mut (*id).route.addr }, End::Source, local);
            queue_pair.and_then(|id| {
                pair::with(id, |pair| {
                    let mut attributes = pair.attributes();
                    (attributes.max_dest_rd_atomic, attributes.max_rd_atomic) = (octet(ird), octet(ord));
                    // The program may have given it up meanwhile.
                    if pair::state(pair) != IBV_QPS_ERR {
                        pair::set_state(pair, IBV_QPS_RTS);
                    }
                })
            });
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
                libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => RDMA_CM_EVENT_UNREACHABLE,
                _ => RDMA_CM_EVENT_CONNECT_ERROR,
            };
        }
        Outcome::Disconnected => {
            state.stage = Stage::Ended;
            queue_pair.and_then(|id| {
                pair::with(id, |pair| {
                    // It is idle if the program has reset it meanwhile.
                    if pair.control().state() != QueuePairState::Idle {
                        pair::set_state(pair, IBV_QPS_ERR);
                    }
                })
            });
        }
    }
    if never_was {
        // As rdma_cm does it: the program finds its receives flushed.
        if let Some(Err(errno)) = queue_pair.and_then(|id| pair::with(id, pair::fail)) {
            tracing::warn!(errno = errno.0, "the queue pair of a connection that failed could not be flushed");
        }
    }
    drop(state);
    report(handle, event);
}

/// A limit in the eight bits that the program has for it.
fn octet(limit: u16) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX)
}

/// What this side may serve and have outstanding, by what a peer says in its request: (IRD, ORD).
pub(crate) fn reads_of(request: &ConnectRequest) -> (u16, u16) {
    let most = MOST_READS as u16;
    (request.ord().unwrap_or(most).min(most), request.ird().unwrap_or(most).min(most))
}

/// A peer's request becomes an identifier, and an event of the listener.
pub(crate) fn request(
    known: &mut Known,
    listener: *mut rdma_cm_id,
    handle: &Handle<Identifier>,
    request: ConnectRequest,
) {
    let (ird, ord) = reads_of(&request);
    let private_data = request.private_data().to_vec();
    // SAFETY: the listener's structure; it lives while its event is delivered.
    let made = unsafe { endpoint::child(known, &*listener, request) };
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
