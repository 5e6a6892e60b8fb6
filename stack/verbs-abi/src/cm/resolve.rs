//! Binding and resolving: what gives an identifier its addresses and its device.

use crate::abi::*;
use crate::cm::address::{self, End};
use crate::cm::channel::Report;
use crate::cm::identifier::{Identifier, Stage, complete, report};
use crate::cm::port;
use crate::errno::{EINVAL, Errno, minus_one, nothing, pointer};
use crate::handle::Handle;
use crate::locks::{Lock, Rank};
use crate::process;
use crate::verbs::domain::Domain;
use crate::verbs::{context, device, domain, open};
use libc::c_int;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// What all identifiers share: an open device, and a domain for those that bring none.
pub(crate) struct CommonDevice {
    context: usize,
    domain: usize,
}

/// The device as rdma_cm has it open.
pub(crate) fn common_device() -> Result<&'static CommonDevice, Errno> {
    static DEVICE: OnceLock<CommonDevice> = OnceLock::new();
    static MAKING: Lock<()> = Lock::new(Rank::Making, ());
    let _one = MAKING.lock();
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let context = open::open()?;
    let domain = domain::allocate(context)?;
    // SAFETY: just made. The domain is in use as long as the process runs.
    unsafe {
        context::get(context)?.keep();
        Handle::<Domain>::get(domain)?.users.fetch_add(1, Ordering::AcqRel);
    }
    Ok(DEVICE.get_or_init(|| CommonDevice { context: context.expose_provenance(), domain: domain.expose_provenance() }))
}

impl CommonDevice {
    fn context(&self) -> *mut ibv_context {
        std::ptr::with_exposed_provenance_mut(self.context)
    }

    fn domain(&self) -> *mut ibv_pd {
        std::ptr::with_exposed_provenance_mut(self.domain)
    }

    /// Sets what an identifier has once it is bound to a device.
    pub(crate) fn give_to(&self, public: *mut rdma_cm_id) {
        // SAFETY: one of our structures, which the program only reads.
        unsafe {
            (*public).verbs = self.context();
            (*public).port_num = 1;
            if (*public).pd.is_null() {
                (*public).pd = self.domain();
            }
        }
    }
}

/// Binds an identifier to an address, or to all if it is unspecified.
pub(crate) fn bind(id: &Handle<Identifier>, wanted: SocketAddr) -> Result<(), Errno> {
    let context = process::started()?;
    let wanted = address::without_loopback(context, wanted).ok_or(Errno(libc::EADDRNOTAVAIL))?;
    let is_any = wanted.ip().is_unspecified();
    if !is_any && !address::is_own(context, wanted.ip()) {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    let mut state = id.lock();
    if state.local.is_some() || !matches!(state.stage, Stage::New) {
        return Err(EINVAL);
    }
    let binding = port::bind(context, (wanted.port() != 0).then_some(wanted.port()), wanted.ip(), state.one_version)?;
    let local = SocketAddr::new(wanted.ip(), binding.number());
    state.binding = Some(binding);
    state.local = Some(local);
    // SAFETY: our own structure.
    address::write(unsafe { &mut (*id.public()).route.addr }, End::Source, local);
    if !is_any {
        common_device()?.give_to(id.public());
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
        let context = process::started()?;
        if !source.is_null() && handle.lock().local.is_none() {
            // SAFETY: the caller's pointer.
            bind(handle, unsafe { address::read(source)? })?;
        }
        let mut state = handle.lock();
        if !matches!(state.stage, Stage::New) {
            return Err(EINVAL);
        }
        // An IPv4 address may come as one of IPv6.
        let named = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let peer = address::without_loopback(context, named);
        let own = peer.and_then(|peer| match state.local {
            Some(local) if !local.ip().is_unspecified() => Some(local.ip()),
            _ => address::own_like(context, peer.ip()),
        });
        let own = own.filter(|own| own.is_ipv4() == named.is_ipv4());
        let (Some(peer), Some(own)) = (peer, own) else {
            drop(state);
            tracing::info!(%destination, "unreachable: there is no own address of that version of IP");
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
        common_device()?.give_to(id);
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

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let context = common_device().ok().map(CommonDevice::context);
        // SAFETY: the caller's place for the number.
        Ok(unsafe { device::list(context, count) })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: one of `rdma_get_devices`'s.
    nothing(|| unsafe { device::free(list) });
}
