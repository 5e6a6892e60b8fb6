//! Queue pairs: changing and asking.

use crate::abi::*;
use crate::dispatch;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, number};
use crate::handle::Handle;
use crate::process;
use crate::rc::{meeting, not_ready};
use crate::verbs::context::MOST_READS;
use crate::verbs::link::{Link, Stage};
use crate::verbs::pair::{self, QueuePair, fail, purge, set_state, state};
use crate::verbs::peer;
use crate::verbs::queue_pair::{REMOTE, initial};
use crate::verbs::region::OPTIONAL;
use libc::c_int;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uwarp::{Access, QueuePairChange, QueuePairControl, QueuePairState};

/// What names a peer to a queue pair or counts its packets: InfiniBand's way to connect one.
const PEER: u32 = IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN;

/// Attributes that are there for other kinds of queue pairs and devices.
const UNSUPPORTED: u32 = IBV_QP_ALT_PATH | IBV_QP_CAP | IBV_QP_RATE_LIMIT;

/// All that there are.
const KNOWN: u32 = PEER
    | UNSUPPORTED
    | IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_PATH_MIG_STATE;

/// What a queue pair may be told about access: what its peer may do, and flags of regions, which do not concern it.
const ACCESS: u32 = REMOTE
    | IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | OPTIONAL;

/// How long a reset waits for the end of the connection, for which an engine needs some microseconds if it has a CPU.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The state as programs see it. A queue pair of iWARP has none before INIT: it takes receives as soon as it is made.
fn shown(state: ibv_qp_state) -> ibv_qp_state {
    if state == IBV_QPS_RESET && !process::is_roce() { IBV_QPS_INIT } else { state }
}

/// Whether the program moves the queue pair itself, as on InfiniBand, and rdma_cm has no part in it.
fn is_own(pair: &Handle<QueuePair>) -> bool {
    process::is_roce() && pair.identifiers.load(Ordering::Acquire) == 0
}

/// What InfiniBand has a program name for a change of state, besides the state: what it must, and what it may.
fn attributes_of(now: ibv_qp_state, wanted: ibv_qp_state) -> Option<(u32, u32)> {
    const INIT: u32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    const RTR: u32 = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    const RTS: u32 = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    const MORE: u32 = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;
    const WHILE_HELD: u32 = IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_AV
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_MAX_QP_RD_ATOMIC
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_ACCESS_FLAGS
        | IBV_QP_MIN_RNR_TIMER
        | IBV_QP_PATH_MIG_STATE;
    match (now, wanted) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((INIT, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, INIT)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some((RTR, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX)),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some((RTS, MORE)),
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => Some((0, MORE)),
        (IBV_QPS_RTS, IBV_QPS_SQD) => Some((0, IBV_QP_EN_SQD_ASYNC_NOTIFY)),
        (IBV_QPS_SQD, IBV_QPS_SQD) => Some((0, WHILE_HELD)),
        _ => None,
    }
}

/// The same for a queue pair of datagrams.
fn attributes_of_datagrams(now: ibv_qp_state, wanted: ibv_qp_state) -> Option<(u32, u32)> {
    const INIT: u32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    match (now, wanted) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((INIT, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, INIT)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some((0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY)),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some((IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY)),
        (IBV_QPS_RTS, IBV_QPS_RTS) => Some((0, IBV_QP_CUR_STATE | IBV_QP_QKEY)),
        _ => None,
    }
}

/// Whether the program names what InfiniBand asks for, if it moves the queue pair itself. What moves it for rdma_cm
/// names no peer.
fn check_names(pair: &Handle<QueuePair>, wanted: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let now = state(pair);
    let (next, rest) = (if mask & IBV_QP_STATE != 0 { wanted.qp_state } else { now }, mask & !IBV_QP_STATE);
    if is_for_rdma_cm(pair, next, rest) {
        return Ok(());
    }
    if next == IBV_QPS_SQD && pair.is_of_datagrams {
        return Err(EOPNOTSUPP);
    }
    let of = if pair.is_of_datagrams { attributes_of_datagrams } else { attributes_of };
    let (required, optional) = of(now, next).ok_or(EINVAL)?;
    let is_right = rest & required == required && rest & !(required | optional) == 0;
    if is_right { Ok(()) } else { Err(EINVAL) }
}

fn is_for_rdma_cm(pair: &Handle<QueuePair>, next: ibv_qp_state, rest: u32) -> bool {
    matches!(next, IBV_QPS_RTR | IBV_QPS_RTS)
        && !pair.is_of_datagrams
        && rest & !(IBV_QP_ACCESS_FLAGS | IBV_QP_CUR_STATE) == 0
        && pair.link.lock().is_none()
}

/// Whether all that `mask` names may be set.
fn check(pair: &Handle<QueuePair>, wanted: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let names = |flags| mask & flags != 0;
    if mask & !KNOWN != 0 {
        return Err(EINVAL);
    }
    let is_own = is_own(pair);
    if is_own {
        check_names(pair, wanted, mask)?;
    }
    // Where rdma_cm has connected the queue pair, no event says that a send queue is drained.
    let is_foreseen = is_own || wanted.en_sqd_async_notify == 0;
    if names(UNSUPPORTED) || names(IBV_QP_EN_SQD_ASYNC_NOTIFY) && !is_foreseen {
        return Err(EOPNOTSUPP);
    }
    let wrong = [
        (IBV_QP_CUR_STATE, shown(wanted.cur_qp_state) != shown(state(pair))),
        (IBV_QP_ACCESS_FLAGS, wanted.qp_access_flags & !ACCESS != 0),
        (IBV_QP_PKEY_INDEX, wanted.pkey_index != 0),
        (IBV_QP_PORT, wanted.port_num != 1),
        (IBV_QP_QKEY, !pair.is_of_datagrams),
        (IBV_QP_PATH_MTU, !(IBV_MTU_256..=IBV_MTU_4096).contains(&wanted.path_mtu)),
        (IBV_QP_TIMEOUT, wanted.timeout > 31),
        (IBV_QP_RETRY_CNT, wanted.retry_cnt > 7),
        (IBV_QP_RNR_RETRY, wanted.rnr_retry > 7),
        (IBV_QP_MIN_RNR_TIMER, wanted.min_rnr_timer > 31),
        (IBV_QP_MAX_QP_RD_ATOMIC, c_int::from(wanted.max_rd_atomic) > MOST_READS),
        (IBV_QP_MAX_DEST_RD_ATOMIC, c_int::from(wanted.max_dest_rd_atomic) > MOST_READS),
        (IBV_QP_PATH_MIG_STATE, wanted.path_mig_state != IBV_MIG_MIGRATED),
        (PEER, pair.identifiers.load(Ordering::Acquire) == 0 && !is_own),
        (IBV_QP_DEST_QPN, wanted.dest_qp_num >> 24 != 0),
    ];
    if is_own && names(IBV_QP_AV) {
        let path = peer::addresses(&wanted.ah_attr)?;
        // A stream stays where it is.
        let link = pair.link.lock();
        if state(pair) == IBV_QPS_SQD && link.as_ref().is_some_and(|link| path != (link.own.address, link.peer.address))
        {
            return Err(EINVAL);
        }
    }
    if wrong.into_iter().any(|(flags, is_wrong)| is_wrong && names(flags)) { Err(EINVAL) } else { Ok(()) }
}

/// Takes over what `mask` names of what has no effect.
fn store(to: &mut ibv_qp_attr, from: &ibv_qp_attr, mask: u32) {
    macro_rules! fields {
        ($($flag:ident: $($field:ident),+;)*) => {$(
            if mask & $flag != 0 {
                $(to.$field = from.$field;)+
            }
        )*};
    }
    fields! {
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_QKEY: qkey;
    }
}

/// The program moves its queue pair to "ready to receive" or "ready to send".
///
/// In iWARP a stream is what moves it there, and rdma_cm makes streams. A server that moves its queue pair by
/// `rdma_init_qp_attr` does so before it accepts, when rdma_cm does not know the queue pair yet: that is allowed as
/// long as no peer is named.
fn move_up(pair: &Handle<QueuePair>, now: ibv_qp_state, wanted: ibv_qp_state) -> Result<(), Errno> {
    let is_next = matches!((now, wanted), (IBV_QPS_INIT | IBV_QPS_RTR, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS));
    if pair.identifiers.load(Ordering::Acquire) == 0 && !is_next {
        tracing::warn!("a queue pair of iWARP is connected by rdma_cm alone: use the program's option for it (-R)");
        return Err(EINVAL);
    }
    // Its stream may have moved it further.
    if !matches!(now, IBV_QPS_RTS | IBV_QPS_ERR) {
        set_state(pair, wanted);
    }
    Ok(())
}

/// Ends the connection of a queue pair.
fn end(control: &mut QueuePairControl) -> Result<(), Errno> {
    if !matches!(control.state(), QueuePairState::Idle | QueuePairState::Disconnected) {
        control.flush()?;
        if !control.wait_disconnected(END_LIMIT)? {
            return Err(Errno(libc::ETIMEDOUT));
        }
    }
    Ok(())
}

/// Makes a queue pair like new, from any state.
fn reset(pair: &Handle<QueuePair>) -> Result<(), Errno> {
    // SAFETY: our own structure.
    let base = unsafe { &(*pair.public()).qp_base };
    if let Some(link) = pair.link.lock().as_mut() {
        // Nothing begins meanwhile.
        link.stage = Stage::Over;
    }
    end(&mut pair.control())?;
    let link = pair.link.lock().take();
    if let Some(mut shadow) = link.and_then(|mut link| link.take_shadow()) {
        end(&mut shadow.control)?;
        shadow.control.reset(&mut shadow.send)?;
        {
            let mut sender = pair.send.lock();
            let mut control = pair.control();
            control.reset(&mut sender.queue.half)?;
            control.exchange_receives(&mut shadow.control)?;
        }
        pair::destroy_shadow(base, shadow)?;
    }
    {
        // In this order: a program may have a section of the send queue open.
        let mut sender = pair.send.lock();
        pair.control().reset(&mut sender.queue.half)?;
    }
    // As drivers of hardware do. Nothing is locked here: a thread with a section of a completion queue may post in it.
    purge(base, pair.id.number)?;
    {
        let queue = &mut pair.send.lock().queue;
        queue.reset();
        if pair.is_of_datagrams { queue.close() } else { queue.open() }
    }
    let mut attributes = pair.attributes();
    *attributes = initial(attributes.cap);
    set_state(pair, IBV_QPS_RESET);
    Ok(())
}

/// Says what the peer may do. When this returns, nothing is placed any more that is refused now.
fn set_access(pair: &Handle<QueuePair>, flags: u32) -> Result<(), Errno> {
    let rights = [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let given = rights.into_iter().filter(|(flag, _)| flags & flag != 0);
    let access = given.fold(Access::LOCAL_READ, |rights, (_, right)| rights | right);
    let change = QueuePairChange { access: Some(access), ..QueuePairChange::default() };
    let mut link = pair.link.lock();
    if let Some(shadow) = link.as_mut().and_then(Link::shadow) {
        shadow.control.modify(change)?;
    }
    pair.control().modify(change)?;
    pair.attributes().qp_access_flags = flags;
    Ok(())
}

/// Gives a queue pair of datagrams its key, and from "ready to receive" on, has datagrams with that key delivered.
fn set_key(pair: &Handle<QueuePair>, key: u32, is_ready: bool) -> Result<(), Errno> {
    if let Some(limits) = &mut pair.send.lock().queue.datagrams {
        limits.key = key;
    }
    if is_ready {
        // SAFETY: our own structure.
        let number = unsafe { (*pair.public()).qp_base.qp_num };
        pair.control().begin_datagrams(number, key)?;
    }
    Ok(())
}

/// Moves a queue pair of datagrams to a state between its reset and its end. The attributes that belong to that have
/// been looked at.
fn move_datagrams(pair: &Handle<QueuePair>, wanted: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    // Whose thread carries events.
    dispatch::channel()?;
    let is_ready = matches!(wanted.qp_state, IBV_QPS_RTR | IBV_QPS_RTS);
    let key = if mask & IBV_QP_QKEY != 0 { wanted.qkey } else { pair.attributes().qkey };
    set_key(pair, key, is_ready)?;
    if wanted.qp_state == IBV_QPS_RTS {
        pair.send.lock().queue.open();
    }
    set_state(pair, wanted.qp_state);
    Ok(())
}

/// Has a queue pair that is ready to send begin with no request any more, or go on. `notify`: whether the program wants
/// the event that says when all that was begun has completed.
fn hold(pair: &Handle<QueuePair>, holds_sends: bool, notify: u8) -> Result<(), Errno> {
    {
        // Before the engine says that nothing is left, which may be at once.
        let mut attributes = pair.attributes();
        (attributes.sq_draining, attributes.en_sqd_async_notify) = (holds_sends.into(), notify);
    }
    set_state(pair, if holds_sends { IBV_QPS_SQD } else { IBV_QPS_RTS });
    let change = QueuePairChange { holds_sends: Some(holds_sends), ..QueuePairChange::default() };
    pair.control().modify(change)?;
    Ok(())
}

/// Moves a queue pair to a state.
fn move_to(pair: &Handle<QueuePair>, wanted: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let now = state(pair);
    match wanted.qp_state {
        IBV_QPS_RESET => reset(pair)?,
        IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS if pair.is_of_datagrams => move_datagrams(pair, wanted, mask)?,
        IBV_QPS_INIT if matches!(now, IBV_QPS_RESET | IBV_QPS_INIT) => {
            if is_own(pair) {
                meeting::listen(dispatch::channel()?)?;
            }
            set_state(pair, IBV_QPS_INIT);
        }
        IBV_QPS_RTR if is_own(pair) && mask & IBV_QP_DEST_QPN != 0 => {
            meeting::meet(pair, dispatch::channel()?, wanted)?
        }
        IBV_QPS_RTS if is_own(pair) && mask & IBV_QP_SQ_PSN != 0 => meeting::open(pair),
        IBV_QPS_RTS if is_own(pair) && now == IBV_QPS_SQD => hold(pair, false, 0)?,
        IBV_QPS_SQD if is_own(pair) && now == IBV_QPS_SQD => (),
        IBV_QPS_SQD if is_own(pair) => {
            let notify = if mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 { wanted.en_sqd_async_notify } else { 0 };
            hold(pair, true, notify)?;
        }
        IBV_QPS_RTR | IBV_QPS_RTS => move_up(pair, now, wanted.qp_state)?,
        IBV_QPS_SQD if matches!(now, IBV_QPS_RTS | IBV_QPS_SQD) => {
            pair.control().disconnect();
            set_state(pair, IBV_QPS_SQD);
        }
        IBV_QPS_ERR => {
            fail(pair)?;
            // What is posted now is flushed.
            pair.send.lock().queue.open();
        }
        _ => return Err(EINVAL),
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, wanted: *mut ibv_qp_attr, mask: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        let (pair, wanted) = unsafe { (Handle::<QueuePair>::get(qp.cast())?, wanted.as_ref().ok_or(EINVAL)?) };
        let mask = mask as u32;
        check(pair, wanted, mask)?;
        if mask & (IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER) != 0 {
            not_ready::set(pair, wanted, mask)?;
        }
        if mask & IBV_QP_STATE != 0 {
            move_to(pair, wanted, mask)?;
        }
        if mask & (IBV_QP_STATE | IBV_QP_QKEY) == IBV_QP_QKEY {
            set_key(pair, wanted.qkey, matches!(state(pair), IBV_QPS_RTR | IBV_QPS_RTS))?;
        }
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            set_access(pair, wanted.qp_access_flags)?;
        }
        store(&mut pair.attributes(), wanted, mask);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    out: *mut ibv_qp_attr,
    _mask: c_int,
    out_made: *mut ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's pointers.
        unsafe {
            let pair = Handle::<QueuePair>::get(qp.cast())?;
            let base = (*pair.public()).qp_base;
            let attributes = *pair.attributes();
            let state = shown(base.state);
            *out.as_mut().ok_or(EINVAL)? = ibv_qp_attr { qp_state: state, cur_qp_state: state, ..attributes };
            *out_made.as_mut().ok_or(EINVAL)? = ibv_qp_init_attr {
                qp_context: base.qp_context,
                send_cq: base.send_cq,
                recv_cq: base.recv_cq,
                srq: base.srq,
                cap: attributes.cap,
                qp_type: base.qp_type,
                sq_sig_all: c_int::from(pair.signal_all),
            };
        }
        Ok(())
    })
}
