//! Communication identifiers: making, binding, resolving, moving, destroying.

use crate::abi::*;
use crate::cm::address::{self, End};
use crate::cm::channel::{self, Channel, Report};
use crate::cm::dispatch;
use crate::cm::port::{self, Binding};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::handle::{Handle, object};
use crate::process;
use crate::verbs::events::Unacknowledged;
use crate::verbs::queue_pair::{self, Pair};
use crate::verbs::{context, domain};
use libc::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use uwarp::{ConnectOptions, ConnectRequest};

/// An identifier: what a socket is for TCP.
pub(crate) struct Identifier {
    state: Mutex<State>,
    /// Events that the program has fetched and not acknowledged.
    pub(crate) events: Unacknowledged,
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
    /// The port that it is bound to.
    pub(crate) binding: Option<Binding>,
    pub(crate) stage: Stage,
    /// What `rdma_create_ep` is to make for each request of a listener.
    pub(crate) template: Option<Template>,
    /// What to connect once more if nobody listens yet.
    pub(crate) attempt: Option<Attempt>,
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`.
    pub(crate) timeout: u8,
    /// Number of the queue pair that it connects, made by the program itself or through the identifier.
    pub(crate) queue_pair: Option<u32>,
}

/// A connection that is being made.
pub(crate) struct Attempt {
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
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all identifiers share: an open device, and a domain for those that bring none.
pub(crate) struct CommonDevice {
    context: usize,
    domain: usize,
}

/// The device as rdma_cm has it open.
pub(crate) fn common_device() -> Result<&'static CommonDevice, Errno> {
    static DEVICE: OnceLock<CommonDevice> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let context = context::open()?;
    let domain = domain::allocate(context)?;
    Ok(DEVICE.get_or_init(|| CommonDevice { context: context.expose_provenance(), domain: domain.expose_provenance() }))
}

impl CommonDevice {
    pub(crate) fn context(&self) -> *mut ibv_context {
        std::ptr::with_exposed_provenance_mut(self.context)
    }

    pub(crate) fn domain(&self) -> *mut ibv_pd {
        std::ptr::with_exposed_provenance_mut(self.domain)
    }
}

/// Makes an identifier. Without a channel it gets one of its own, and waits in its calls.
pub(crate) fn create(
    channel: *mut rdma_event_channel,
    user: *mut c_void,
    space: rdma_port_space,
    state: State,
) -> Result<*mut rdma_cm_id, Errno> {
    create_with(channel, user, space, state, dispatch::register)
}

/// As [`create`]; `register` puts the identifier into the list of those that events come for.
pub(crate) fn create_with(
    channel: *mut rdma_event_channel,
    user: *mut c_void,
    space: rdma_port_space,
    state: State,
    register: impl FnOnce(u64, *mut rdma_cm_id),
) -> Result<*mut rdma_cm_id, Errno> {
    let waits = channel.is_null();
    let channel = if waits { Channel::create()? } else { channel };
    // SAFETY: the caller's pointer, or one that was just made.
    unsafe { Handle::<Channel>::get(channel)? };
    let key = dispatch::next_key();
    let public = rdma_cm_id { channel, context: user, ps: space, qp_type: IBV_QPT_RC, ..rdma_cm_id::default() };
    let inner = Identifier { state: Mutex::new(State { waits, ..state }), events: Unacknowledged::default(), key };
    let id = Handle::create(public, inner);
    register(key, id);
    Ok(id)
}

/// Sets what an identifier has once it is bound to a device.
pub(crate) fn set_device(public: *mut rdma_cm_id) -> Result<(), Errno> {
    let common = common_device()?;
    // SAFETY: one of our structures, which the program only reads.
    unsafe {
        (*public).verbs = common.context();
        (*public).port_num = 1;
        if (*public).pd.is_null() {
            (*public).pd = common.domain();
        }
    }
    Ok(())
}

/// Delivers an event to an identifier's channel.
pub(crate) fn report(id: &Handle<Identifier>, report: Report<'_>) {
    // SAFETY: the identifier's own structure, and its channel, which lives as long.
    unsafe {
        if let Ok(channel) = Handle::<Channel>::get((*id.public()).channel) {
            channel.push(report);
        }
    }
}

/// Whether an event waits in the identifier's channel.
pub(crate) fn has_event(id: &Handle<Identifier>) -> bool {
    // SAFETY: the identifier's own structure, and its channel, which lives as long.
    unsafe { Handle::<Channel>::get((*id.public()).channel).is_ok_and(|channel| channel.is_waiting()) }
}

/// For an identifier without a channel of the program: waits for the event of what was begun. Its outcome is that of the call.
pub(crate) fn complete(id: &Handle<Identifier>) -> Result<c_int, Errno> {
    if !id.lock().waits {
        return Ok(0);
    }
    // SAFETY: the identifier's own structure.
    unsafe {
        let public = &mut *id.public();
        if !public.event.is_null() {
            let event = std::mem::replace(&mut public.event, std::ptr::null_mut());
            channel::acknowledge(event)?;
        }
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
        *out = create(channel, user, space, State::default())?;
        Ok(0)
    })
}

/// Ends an identifier; its queue pair stays.
pub(crate) fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        // From here on no event is delivered to it.
        dispatch::unregister(handle.key);
        let channel = (*id).channel;
        if let Ok(events) = Handle::<Channel>::get(channel) {
            for request in events.forget(id) {
                let _ = destroy(request);
            }
        }
        if !(*id).event.is_null() {
            let event = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
            channel::acknowledge(event)?;
        }
        handle.events.wait();
        let identifier = Handle::<Identifier>::destroy(id)?;
        let state = identifier.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = state.queue_pair.and_then(queue_pair::find)
            && let Ok(pair) = Handle::<Pair>::get(pair.cast())
        {
            queue_pair::leave(pair, matches!(state.stage, Stage::Starting | Stage::Connected));
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

/// Binds an identifier to an address, or to all if it is unspecified.
pub(crate) fn bind(id: &Handle<Identifier>, wanted: SocketAddr) -> Result<(), Errno> {
    let context = process::started()?;
    let config = context.config();
    let wanted = address::without_loopback(config, wanted).ok_or(Errno(libc::EADDRNOTAVAIL))?;
    let is_any = wanted.ip().is_unspecified();
    if !is_any && !address::is_own(config, wanted.ip()) {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    let mut state = id.lock();
    if state.local.is_some() || !matches!(state.stage, Stage::New) {
        return Err(EINVAL);
    }
    let binding = port::bind(context, (wanted.port() != 0).then_some(wanted.port()), wanted.ip())?;
    let local = SocketAddr::new(wanted.ip(), binding.number());
    state.binding = Some(binding);
    state.local = Some(local);
    // SAFETY: our own structure.
    address::write(unsafe { &mut (*id.public()).route.addr }, End::Source, local);
    if !is_any {
        set_device(id.public())?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, local: *mut sockaddr) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        let (id, local) = unsafe { (Handle::<Identifier>::get(id)?, address::read(local)?) };
        bind(id, local)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointers.
        let (handle, destination) = unsafe { (Handle::<Identifier>::get(id)?, address::read(destination)?) };
        let config = process::started()?.config();
        if !source.is_null() && handle.lock().local.is_none() {
            // SAFETY: the caller's pointer.
            bind(handle, unsafe { address::read(source)? })?;
        }
        let mut state = handle.lock();
        if !matches!(state.stage, Stage::New) {
            return Err(EINVAL);
        }
        let peer = address::without_loopback(config, destination);
        let own = peer.and_then(|peer| match state.local {
            Some(local) if !local.ip().is_unspecified() => Some(local.ip()),
            _ => address::own_like(config, peer.ip()),
        });
        let (Some(peer), Some(own)) = (peer, own) else {
            drop(state);
            report(handle, Report::plain(id, RDMA_CM_EVENT_ADDR_ERROR, -libc::ENETUNREACH));
            return complete(handle);
        };
        let local = SocketAddr::new(own, state.local.map_or(0, |local| local.port()));
        state.local = Some(local);
        state.peer = Some(peer);
        drop(state);
        // SAFETY: our own structure.
        let route = unsafe { &mut (*id).route.addr };
        address::write(route, End::Source, local);
        // The program finds the address that it gave.
        address::write(route, End::Destination, destination);
        set_device(id)?;
        report(handle, Report::plain(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0));
        complete(handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's pointer.
        let handle = unsafe { Handle::<Identifier>::get(id)? };
        if handle.lock().peer.is_none() {
            return Err(EINVAL);
        }
        // The engine asks for the neighbour when it connects.
        report(handle, Report::plain(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
        complete(handle)
    })
}

/// Moves an identifier and its events to another channel; none: one of its own.
pub(crate) fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let handle = Handle::<Identifier>::get(id)?;
        let waits = to.is_null();
        let to = if waits { Channel::create()? } else { to };
        let target = Handle::<Channel>::get(to)?;
        if !(*id).event.is_null() {
            let event = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
            channel::acknowledge(event)?;
        }
        let mut state = handle.lock();
        let former = (*id).channel;
        // Events come to the new one from here on; those that wait move along.
        (*id).channel = to;
        if let Ok(former) = Handle::<Channel>::get(former) {
            former.move_to(target, id);
        }
        let had_its_own = std::mem::replace(&mut state.waits, waits);
        drop(state);
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
        match (level as u32, option as u32) {
            // A port is free at once when its identifier goes, and each family has addresses of its own; the other is a hint.
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY | RDMA_OPTION_ID_TOS) => Ok(0),
            // Its queue pair tells it to those who ask.
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) if length == 1 => {
                // SAFETY: the program's octet.
                handle.lock().timeout = unsafe { value.cast::<u8>().read() };
                Ok(0)
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => Err(EINVAL),
            _ => Err(Errno(libc::ENOSYS)),
        }
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

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    crate::errno::pointer(|| {
        let contexts = match common_device() {
            Ok(common) => vec![common.context(), std::ptr::null_mut()],
            Err(_) => vec![std::ptr::null_mut()],
        };
        if !count.is_null() {
            // SAFETY: the caller's place for the number.
            unsafe { count.write(contexts.len() as c_int - 1) };
        }
        Ok(Box::leak(contexts.into_boxed_slice()).as_mut_ptr())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    crate::errno::nothing(|| {
        if list.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: one of `rdma_get_devices`'s lists, which end in a null.
        unsafe {
            let length = if (*list).is_null() { 1 } else { 2 };
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)));
        }
        Ok(())
    });
}
