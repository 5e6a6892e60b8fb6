//! Keeps EAL's interrupt thread out of a device while a burst is inside it.
//!
//! When a memif peer disappears, EAL's interrupt thread unmaps memory that a burst on another thread may be copying to
//! or from. The driver checks the connection only once, at the top of the burst, so that burst ends in a segmentation
//! fault. The same thread resets the rings of a packed virtio-user device when its peer returns, after waiting one
//! millisecond for bursts to end. And a connecting port is stopped and started, or recreated, for its next peer. One
//! gate solves all three: the shim's `epoll_wait` takes precedence over libc's. When it returns events to the interrupt
//! thread, the gate closes before the thread can handle them. It opens when the thread asks for more.
//!
//! - An engine sets its flag, and reads the gate. If the gate is closed, it clears the flag and receives no packets.
//! - The closing side closes the gate, makes that visible to all CPUs (membarrier), and waits until no flag is set.
//!
//! So a burst costs two plain stores and a load. Control calls that take a device's memory away hold the same gate, see
//! [`exclusive`].

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, Ordering, compiler_fence, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use crate::alarm::Alarm;
use crate::lock::lock;

/// One per gated queue, alone in its cache lines because every burst writes it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct BurstFlag {
    inside: AtomicBool,
    stopped: AtomicBool,
    /// The port's functions, which change when it is recreated.
    operations: AtomicPtr<sys::rte_eth_fp_ops>,
    /// Its number, likewise.
    port: AtomicU16,
    /// Rung when the gate opens.
    alarm: Arc<Alarm>,
}

/// A flag that is registered with the gate while the value lives.
#[derive(Debug)]
pub(crate) struct Registered(Arc<BurstFlag>);

impl Registered {
    /// A new flag for a queue of the port, with the queue's alarm.
    pub(crate) fn new(port: u16, alarm: Arc<Alarm>) -> Registered {
        let flag = Arc::new(BurstFlag {
            inside: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            operations: AtomicPtr::default(),
            port: AtomicU16::new(port),
            alarm,
        });
        flag.set_port(port);
        lock(&FLAGS).push(Arc::clone(&flag));
        Registered(flag)
    }

    /// The flag itself.
    pub(crate) fn flag(&self) -> Arc<BurstFlag> {
        Arc::clone(&self.0)
    }

    /// The address of the flag, valid while `self` lives.
    pub(crate) fn pointer(&self) -> NonNull<BurstFlag> {
        NonNull::from(&*self.0)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&FLAGS).retain(|known| !Arc::ptr_eq(known, &self.0));
    }
}

/// The gate, in one word so that a burst needs one load: 0 when it is open.
static GATE: AtomicU8 = AtomicU8::new(0);
/// In `GATE`: closed. Set and cleared under `SECTION` only.
const CLOSED: u8 = 1;
/// In `GATE`, permanently: the kernel has no membarrier, so every burst has a full fence instead.
const FENCED: u8 = 2;
/// The longest wait for the interrupt thread.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);
/// All registered flags.
static FLAGS: Mutex<Vec<Arc<BurstFlag>>> = Mutex::new(Vec::new());
/// Whether the gate is held closed. It is not a guard, since the interrupt thread holds it between two calls.
static SECTION: Mutex<bool> = Mutex::new(false);
static SECTION_FREE: Condvar = Condvar::new();

/// Whether the maintenance thread has something to look at. Held for no longer than it takes to set it, since the
/// interrupt thread does.
static MAINTENANCE: Mutex<bool> = Mutex::new(false);
static MAINTENANCE_REQUESTED: Condvar = Condvar::new();

/// Has the maintenance thread look at its ports: one is new, or EAL's interrupt thread has handled an event.
pub(crate) fn request_maintenance() {
    *lock(&MAINTENANCE) = true;
    MAINTENANCE_REQUESTED.notify_one();
}

/// Waits for a request, at most this long.
pub(crate) fn await_maintenance_request(limit: Duration) {
    let idle = |requested: &mut bool| !*requested;
    let waited = MAINTENANCE_REQUESTED.wait_timeout_while(lock(&MAINTENANCE), limit, idle);
    *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
}

impl BurstFlag {
    /// The functions of the queue's port, between [`enter`](BurstFlag::enter) and [`leave`](BurstFlag::leave).
    #[inline(always)]
    pub(crate) fn operations(&self) -> *const sys::rte_eth_fp_ops {
        self.operations.load(Ordering::Relaxed)
    }

    /// The queue now belongs to this port. Call it inside [`exclusive`], or before the flag is in use.
    pub(crate) fn set_port(&self, port: u16) {
        // SAFETY: the number is that of an open port.
        let operations = unsafe { sys::fast::operations(port) };
        self.operations.store(operations.cast_mut(), Ordering::Relaxed);
        self.port.store(port, Ordering::Relaxed);
    }

    /// The number of the queue's port, as [`operations`](BurstFlag::operations).
    pub(crate) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// What wakes the queue's thread.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Whether a burst may proceed. If so, [`leave`](BurstFlag::leave) must follow.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        self.inside.store(true, Ordering::Relaxed);
        // Store, then load: the CPU may reorder them, but not across the membarrier on the other side.
        compiler_fence(Ordering::SeqCst);
        if GATE.load(Ordering::Acquire) == 0 && !self.stopped.load(Ordering::Relaxed) {
            return true;
        }
        self.enter_slowly()
    }

    #[cold]
    fn enter_slowly(&self) -> bool {
        if GATE.load(Ordering::Relaxed) & FENCED != 0 {
            fence(Ordering::SeqCst);
        }
        if GATE.load(Ordering::Acquire) & CLOSED == 0 && !self.stopped.load(Ordering::Relaxed) {
            return true;
        }
        self.inside.store(false, Ordering::Release);
        false
    }

    /// The burst is over.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.inside.store(false, Ordering::Release);
    }

    /// Sets whether the queue's port is stopped, so that bursts find nothing. Call it inside [`exclusive`].
    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Release);
    }
}

fn acquire() {
    let mut held = lock(&SECTION);
    while *held {
        held = SECTION_FREE.wait(held).unwrap_or_else(PoisonError::into_inner);
    }
    *held = true;
    drop(held);

    // A queue that registers later finds the gate closed, since the list's lock orders it after this.
    let flags = lock(&FLAGS);
    let before = GATE.fetch_or(CLOSED, Ordering::SeqCst);
    if flags.is_empty() {
        return;
    }
    if before & FENCED != 0 {
        fence(Ordering::SeqCst);
    } else if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // It worked when EAL started, so a system call filter was installed since. A store stays in its core for
        // nanoseconds; no bound is documented, and this one is generous.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for flag in flags.iter() {
        while flag.inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

fn release() {
    GATE.fetch_and(!CLOSED, Ordering::Release);
    // A device may have changed, and with it what its queues' threads sleep on.
    for flag in lock(&FLAGS).iter() {
        flag.alarm.ring();
    }
    *lock(&SECTION) = false;
    SECTION_FREE.notify_one();
}

/// Runs `work` while no gated queue is inside a burst and the interrupt thread handles no event.
pub(crate) fn exclusive<T>(work: impl FnOnce() -> T) -> T {
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            // SAFETY: counts on this thread, `begin` came before.
            unsafe { sys::uwarp_sparing_end() };
            release();
        }
    }
    acquire();
    // SAFETY: counts on this thread.
    unsafe { sys::uwarp_sparing_begin() };
    let _release = Release;
    work()
}

/// Waits until the interrupt thread has done the work that drivers have deferred by an alarm. A virtio-user driver
/// defers work when it finds its peer gone; if the device were closed first, that work would find no device.
pub(crate) fn settle() {
    unsafe extern "C" fn rung(done: *mut c_void) {
        // SAFETY: `settle` gave one reference count to the alarm.
        let done = unsafe { Arc::from_raw(done.cast_const().cast::<AtomicBool>()) };
        done.store(true, Ordering::Release);
    }
    let done = Arc::new(AtomicBool::new(false));
    let given = Arc::into_raw(Arc::clone(&done));
    // SAFETY: the function may be called at any later time, and is called once.
    if unsafe { sys::rte_eal_alarm_set(1, Some(rung), given.cast_mut().cast()) } != 0 {
        // SAFETY: the alarm was not set, so its reference count is returned here.
        drop(unsafe { Arc::from_raw(given) });
        return;
    }
    let start = Instant::now();
    // Alarms fire in the order of their times.
    while !done.load(Ordering::Acquire) && start.elapsed() < SETTLED_WITHIN {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// True while the interrupt thread handles events. Only that thread touches it.
static INTERRUPT_HOLDS: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn interrupt_thread_closes() {
    if !INTERRUPT_HOLDS.swap(true, Ordering::Relaxed) {
        acquire();
    }
}

unsafe extern "C" fn interrupt_thread_opens() {
    if INTERRUPT_HOLDS.swap(false, Ordering::Relaxed) {
        release();
        request_maintenance();
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call without memory arguments.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::c_long::from(command), 0, 0) == 0 }
}

/// Finds the interrupt thread and installs the gate in front of it.
///
/// # Errors
/// Why there can be no gate, in words.
pub(crate) fn install() -> Result<(), String> {
    // SAFETY: looks up a symbol.
    if unsafe { sys::uwarp_gate_interposed() } == 0 {
        return Err("epoll_wait of this program does not stand in front of libc's (it has to be linked with its symbols visible)".to_owned());
    }
    let thread = interrupt_thread().ok_or("EAL's interrupt thread was not found in /proc/self/task")?;
    if !membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        GATE.fetch_or(FENCED, Ordering::SeqCst);
    }
    // SAFETY: both functions are static.
    unsafe { sys::uwarp_gate_install(thread, Some(interrupt_thread_closes), Some(interrupt_thread_opens)) };
    Ok(())
}

fn interrupt_thread() -> Option<u32> {
    // The thread's creator names it, and has returned by now.
    std::fs::read_dir("/proc/self/task").ok()?.flatten().find_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        // In DPDK 22.11 and in 24.11.
        ["eal-intr-thread", "dpdk-intr"]
            .contains(&name.trim_end())
            .then(|| task.file_name().to_str()?.parse().ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::Announcement;

    fn registered() -> Registered {
        Registered::new(0, Arc::new(Alarm::new(Announcement::Driver, 0).unwrap()))
    }

    #[test]
    fn who_sleeps_beside_a_gated_queue_wakes_when_the_gate_opens() {
        let registered = registered();
        exclusive(|| ());
        assert!(registered.flag().alarm().take_changes());
    }

    #[test]
    fn a_closed_gate_keeps_bursts_out() {
        let registered = registered();
        let flag = registered.flag();
        assert!(flag.enter());
        flag.leave();
        exclusive(|| {
            assert!(!flag.enter());
            let late = self::registered();
            assert!(!late.flag().enter(), "a queue that comes while the gate is closed");
        });
        assert!(flag.enter());
        flag.leave();
        flag.set_stopped(true);
        assert!(!flag.enter());
    }

    #[test]
    fn closing_waits_for_the_burst_inside() {
        let registered = registered();
        let flag = registered.flag();
        let done = AtomicBool::new(false);
        // The other test of this process may hold the gate briefly.
        while !flag.enter() {
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| exclusive(|| assert!(done.load(Ordering::SeqCst))));
            while GATE.load(Ordering::SeqCst) & CLOSED == 0 {
                std::thread::yield_now();
            }
            done.store(true, Ordering::SeqCst);
            flag.leave();
        });
    }
}
