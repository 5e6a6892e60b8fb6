//! Open devices.

use crate::abi::{ibv_context, verbs_context};
use crate::errno::{EBUSY, EINVAL, Errno};
use crate::locks::{Lock, Locked, Rank};
use crate::process::{Process, Shape};
use crate::verbs::events::{Event, EventQueue};
use libc::c_int;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What an open device is, with the structures that C sees. Never moved.
#[repr(C)]
pub(crate) struct OpenDevice {
    /// `context` is its last field, which C holds a pointer to.
    public: verbs_context,
    pub(crate) events: EventQueue,
    /// Objects that the program made from it and that still are.
    pub(crate) objects: AtomicUsize,
    /// It is rdma_cm's, for all identifiers: it stays open.
    stays: AtomicBool,
}

/// The devices that are open, by the addresses that C holds.
static OPEN: Lock<Vec<usize>> = Lock::new(Rank::Devices, Vec::new());

/// Memory of devices that were closed. It stays mapped, as that of all objects: a stray pointer into it may be looked
/// at.
static CLOSED: Lock<Vec<usize>> = Lock::new(Rank::Freed, Vec::new());

fn open_devices() -> Locked<'static, Vec<usize>> {
    OPEN.lock()
}

/// The open device behind a pointer from C.
///
/// # Safety
/// The device is not closed while the reference is used.
pub(crate) unsafe fn get<'a>(context: *mut ibv_context) -> Result<&'a OpenDevice, Errno> {
    if context.is_null() || !open_devices().contains(&context.addr()) {
        return Err(EINVAL);
    }
    let outer = context.wrapping_byte_sub(offset_of!(OpenDevice, public) + offset_of!(verbs_context, context));
    // SAFETY: one of ours, and open.
    Ok(unsafe { &*outer.cast::<OpenDevice>() })
}

/// Puts an event of the device or its port into the queues of all that have it open.
pub(crate) fn push_to_all(event: Event) {
    for address in open_devices().iter() {
        let context: *mut ibv_context = std::ptr::with_exposed_provenance_mut(*address);
        let outer = context.wrapping_byte_sub(offset_of!(OpenDevice, public) + offset_of!(verbs_context, context));
        // SAFETY: in the list, which is locked, so open.
        unsafe { (*outer.cast::<OpenDevice>()).events.push(event) };
    }
}

/// The most Reads and atomics at once that rdma_cm's octet and the engines take.
pub(crate) const MOST_READS: c_int = 128;

/// SGEs of a datagram at most: it takes others of uwarp's for its addresses.
pub(crate) const MOST_DATAGRAM_ENTRIES: usize = uwarp::MAX_SGE - uwarp::DatagramPath::ENTRIES;

/// Bits of a queue pair's number that one program's queue pairs differ by, where the device is one of RoCE.
pub(crate) const NUMBER_BITS: u32 = 15;

/// How many queue pairs a program may have.
pub(crate) fn most_queue_pairs(process: &Process) -> usize {
    let most = process.context.config().limits.queue_pairs;
    if process.shape == Shape::Roce { most.min(1 << NUMBER_BITS) } else { most }
}

/// A number for the structures that have one and do not use it.
pub(crate) fn next_handle() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens a device, with the structures that C sees of it.
pub(crate) fn open(mut public: verbs_context) -> Result<*mut ibv_context, Errno> {
    let events = EventQueue::new()?;
    public.context.async_fd = events.fd();
    let former = CLOSED.lock().pop();
    let memory: *mut OpenDevice = match former {
        Some(address) => std::ptr::with_exposed_provenance_mut(address),
        None => Box::leak(Box::new_uninit()).as_mut_ptr(),
    };
    // SAFETY: memory of this size that nobody else uses: new, or of a device that was closed.
    let context = unsafe {
        memory.write(OpenDevice { public, events, objects: AtomicUsize::new(0), stays: AtomicBool::new(false) });
        &raw mut (*memory).public.context
    };
    open_devices().push(context.expose_provenance());
    Ok(context)
}

impl OpenDevice {
    /// The device, with one object of it, becomes that of all identifiers.
    pub(crate) fn keep(&self) {
        self.objects.fetch_sub(1, Ordering::AcqRel);
        self.stays.store(true, Ordering::Release);
    }
}

/// Closes a device. One of which the program has left an object, as perftest leaves a completion queue, stays for that
/// until the process ends. That of rdma_cm stays in any case, and has to have no object of the program: programs close
/// it when they end, and identifiers may still come.
///
/// # Safety
/// No other call uses the device any more.
pub(crate) unsafe fn close(context: *mut ibv_context) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    let open = unsafe { get(context)? };
    let (has_objects, stays) = (open.objects.load(Ordering::Acquire) > 0, open.stays.load(Ordering::Acquire));
    if has_objects && stays {
        return Err(EBUSY);
    }
    if has_objects || stays {
        return Ok(());
    }
    open_devices().retain(|address| *address != context.addr());
    let outer = (&raw const *open).cast_mut();
    // SAFETY: initialised by `open`, and not in the list any more.
    unsafe { outer.drop_in_place() };
    CLOSED.lock().push(outer.expose_provenance());
    Ok(())
}
