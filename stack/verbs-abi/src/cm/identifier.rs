//! Communication identifiers: making, moving, destroying, and the list of them.

use crate::abi::*;
use crate::cm::address::End;
use crate::cm::channel::{self, Channel, Report};
use crate::cm::lookup;
use crate::cm::port::Binding;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::event_fd::Unacknowledged;
use crate::handle::{Handle, object};
use crate::locks::{Lock, Locked, Rank};
use crate::process;
use crate::verbs::pair::{self, PairId};
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use uwarp::{ConnectOptions, ConnectRequest, EventChannel};

/// An identifier: what a socket is for TCP.
pub(crate) struct Identifier {
    state: Lock<State>,
    /// Events that the program has fetched and not acknowledged.
    pub(crate) events: Arc<Unacknowledged>,
    /// By which the events of uwarp name it; never another's.
    pub(crate) key: u64,
}
object!(Identifier: rdma_cm_id, b"id");

/// What an identifier has become.
#[derive(Default)]
pub(crate) struct State {
    /// It was made without a channel: calls wait for their event, and it owns its channel.
    pub(crate) waits: bool,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// `RDMA_OPTION_ID_AFONLY`: all addresses are those of one version of IP.
    pub(crate) one_version: bool,
    /// The port that it is bound to.
    pub(crate) binding: Option<Binding>,
    pub(crate) stage: Stage,
    /// What `rdma_create_ep` is to make for each request of a listener.
    pub(crate) template: Option<Template>,
    /// What to connect once more if nobody listens yet.
    pub(crate) attempt: Option<Attempt>,
    /// The program has disconnected before there was an outcome.
    pub(crate) gives_up: bool,
    /// What `rdma_resolve_addrinfo` has found, or is looking for.
    pub(crate) lookup: Lookup,
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`.
    pub(crate) timeout: Option<u8>,
    /// The queue pair that it connects, made by the program itself or through the identifier.
    pub(crate) queue_pair: Option<PairId>,
}

/// A question by `rdma_resolve_addrinfo`. There is one at a time.
#[derive(Clone, Copy, Default)]
pub(crate) enum Lookup {
    #[default]
    None,
    Asked,
    /// The answer waits for `rdma_query_addrinfo`.
    Answered(*mut rdma_addrinfo),
}

/// A connection that is being made.
pub(crate) struct Attempt {
    /// Where its outcome is reported.
    pub(crate) channel: &'static EventChannel,
    pub(crate) peer: SocketAddr,
    pub(crate) options: ConnectOptions,
    /// How often it may be refused before the program is told.
    pub(crate) refusals: u32,
}

/// What `rdma_get_request` makes for a new connection.
#[derive(Clone, Copy)]
pub(crate) struct Template {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) queue_pair: ibv_qp_init_attr,
}

/// How far a connection has come.
#[derive(Default)]
pub(crate) enum Stage {
    #[default]
    New,
    Listening,
    /// A peer wants to connect.
    Requested(Box<ConnectRequest>),
    /// The outcome will be an event.
    Starting,
    Connected,
    /// Over, or refused.
    Ended,
}

impl Identifier {
    pub(crate) fn lock(&self) -> Locked<'_, State> {
        self.state.lock()
    }
}

/// The identifiers that events may come for, by key.
pub(crate) type Known = BTreeMap<u64, usize>;

/// It is locked while an event is delivered, so that an identifier that was taken out gets none any more.
static KNOWN: Lock<Known> = Lock::new(Rank::Identifiers, Known::new());

pub(crate) fn known() -> Locked<'static, Known> {
    KNOWN.lock()
}

pub(crate) fn keys() -> Vec<u64> {
    known().keys().copied().collect()
}

/// Does something with the identifier of a key, if it is still there; it does not go meanwhile.
pub(crate) fn with(key: u64, body: impl FnOnce(&mut Known, *mut rdma_cm_id, &Handle<Identifier>)) {
    let mut known = known();
    let Some(address) = known.get(&key).copied() else { return };
    let id: *mut rdma_cm_id = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: it is in the list, so it lives as long as the list is locked.
    if let Ok(handle) = unsafe { Handle::<Identifier>::get(id) } {
        body(&mut known, id, handle);
    }
}

/// Makes an identifier. Without a channel it gets one of its own, and waits in its calls.
pub(crate) fn create(
    known: &mut Known,
    channel: *mut rdma_event_channel,
    user: *mut c_void,
    space: rdma_port_space,
    state: State,
) -> Result<*mut rdma_cm_id, Errno> {
    let waits = channel.is_null();
    let channel = if waits { Channel::create()? } else { channel };
    // SAFETY: the caller's pointer, or one that was just made.
    unsafe { Handle::<Channel>::get(channel)? };
    let key = process::next_key();
    let public = rdma_cm_id { channel, context: user, ps: space, qp_type: IBV_QPT_RC, ..rdma_cm_id::default() };
    let inner =
        Identifier { state: Lock::new(Rank::Identifier, State { waits, ..state }), events: Arc::default(), key };
    let id = Handle::create(public, inner);
    known.insert(key, id.expose_provenance());
    Ok(id)
}

/// Delivers an event to an identifier's channel.
pub(crate) fn report(id: &Handle<Identifier>, report: Report<'_>) {
    // SAFETY: the identifier's own structure, and its channel, which lives as long.
    unsafe {
        if let Ok(channel) = Handle::<Channel>::get((*id.public()).channel) {
            channel.push(report, &id.events);
        }
    }
}

/// Whether an event waits in the identifier's channel.
pub(crate) fn has_event(id: &Handle<Identifier>) -> bool {
    // SAFETY: the identifier's own structure, and its channel, which lives as long.
    unsafe { Handle::<Channel>::get((*id.public()).channel).is_ok_and(|channel| channel.is_waiting()) }
}

/// Acknowledges the event that an identifier without a channel of the program has at hand.
fn acknowledge(public: &mut rdma_cm_id) -> Result<(), Errno> {
    let event = std::mem::replace(&mut public.event, std::ptr::null_mut());
    if event.is_null() { Ok(()) } else { channel::acknowledge(event) }
}

/// For an identifier without a channel of the program: waits for the event of what was begun. Its outcome is that of
/// the call.
pub(crate) fn complete(id: &Handle<Identifier>) -> Result<c_int, Errno> {
    if !id.lock().waits {
        return Ok(0);
    }
    // SAFETY: the identifier's own structure.
    unsafe {
        let public = &mut *id.public();
        acknowledge(public)?;
        public.event = Handle::<Channel>::get(public.channel)?.next()?;
        settle_request(&*public.event)?;
        let event = &*public.event;
        match event.status {
            0 => Ok(0),
            _ if event.event == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.abs())),
        }
    }
}

/// A request that is fetched from a listener that waits in its calls: the new identifier waits too.
pub(crate) fn settle_request(event: &rdma_cm_event) -> Result<(), Errno> {
    if event.event != RDMA_CM_EVENT_CONNECT_REQUEST {
        return Ok(());
    }
    // SAFETY: the event's identifiers.
    unsafe {
        let waits = Handle::<Identifier>::get(event.listen_id)?.lock().waits;
        if waits {
            migrate(event.id, std::ptr::null_mut())?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    user: *mut c_void,
    space: rdma_port_space,
) -> c_int {
    minus_one(|| {
        process::process()?;
        // SAFETY: the caller's pointer.
        let out = unsafe { out.as_mut().ok_or(EINVAL)? };
        if space != RDMA_PS_TCP {
            tracing::warn!(space, "iWARP has the port space of TCP only");
            return Err(EOPNOTSUPP);
        }
        *out = create(&mut known(), channel, user, space, State::default())?;
        Ok(0)
    })
}

/// Ends an identifier; its queue pair stays.
pub(crate) fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        // From here on no event is delivered to it.
        known().remove(&handle.key);
        let channel = (*id).channel;
        if let Ok(events) = Handle::<Channel>::get(channel) {
            for request in events.forget(id) {
                let _ = destroy(request);
            }
        }
        acknowledge(&mut *id)?;
        handle.events.wait();
        let identifier = Handle::<Identifier>::destroy(id)?;
        let state = identifier.state.into_inner();
        let is_connected = matches!(state.stage, Stage::Starting | Stage::Connected);
        state.queue_pair.and_then(|id| pair::with(id, |pair| pair::leave(pair, is_connected)));
        if let Lookup::Answered(answer) = state.lookup {
            lookup::free(answer)?;
        }
        if state.waits {
            channel::destroy(channel)?;
        }
        // Listeners stop, requests are rejected, ports are free.
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| destroy(id).map(|()| 0))
}

/// Moves an identifier and its events to another channel; none: one of its own.
pub(crate) fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        let waits = to.is_null();
        let to = if waits { Channel::create()? } else { to };
        let target = Handle::<Channel>::get(to)?;
        acknowledge(&mut *id)?;
        // No event is delivered meanwhile: it would come to the former channel behind those that move.
        let known = known();
        let mut state = handle.lock();
        let former = (*id).channel;
        // Events come to the new one from here on; those that wait move along.
        (*id).channel = to;
        if let Ok(former) = Handle::<Channel>::get(former) {
            former.move_to(target, id);
        }
        let had_its_own = std::mem::replace(&mut state.waits, waits);
        drop((state, known));
        if had_its_own {
            channel::destroy(former)?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    minus_one(|| migrate(id, to).map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: libc::size_t,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        if value.is_null() {
            return Err(EINVAL);
        }
        let octets = match (level as u32, option as u32) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY) => size_of::<c_int>(),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_ACK_TIMEOUT) => 1,
            _ => return Err(Errno(libc::ENOSYS)),
        };
        if length != octets {
            return Err(EINVAL);
        }
        // A port is free at once when its identifier goes, and the type of service is a hint.
        match option as u32 {
            RDMA_OPTION_ID_AFONLY => {
                // SAFETY: the program's number.
                handle.lock().one_version = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            }
            // Its queue pair tells it to those who ask.
            RDMA_OPTION_ID_ACK_TIMEOUT => {
                // SAFETY: the program's octet.
                handle.lock().timeout = Some(unsafe { value.cast::<u8>().read() });
            }
            _ => {}
        }
        Ok(0)
    })
}

fn port_of(id: *mut rdma_cm_id, end: End) -> u16 {
    // SAFETY: the caller's pointer.
    unsafe {
        let Ok(handle) = Handle::<Identifier>::get(id) else { return 0 };
        let state = handle.lock();
        let address = match end {
            End::Source => state.local,
            End::Destination => state.peer,
        };
        address.map_or(0, |address| address.port().to_be())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port_of(id, End::Source)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port_of(id, End::Destination)
}
