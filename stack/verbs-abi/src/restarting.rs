//! Calls that wait while a signal's handler runs: they go on if it was set with SA_RESTART, as read(2) does, and end
//! with EINTR otherwise.

use crate::abi::*;
use crate::cm::channel::{Channel, Report};
use crate::errno::Errno;
use crate::exports::*;
use crate::handle::Handle;
use crate::testing::{Device, errno};
use crate::verbs::channel::Channel as CompletionChannel;
use crate::verbs::context;
use crate::verbs::events::Event;
use libc::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use uwarp_ring::Bell as _;

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: c_int) {
    HANDLED.fetch_add(1, Ordering::AcqRel);
}

fn set_handler(flags: c_int) {
    // SAFETY: the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler as *const () as usize, flags);
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()), 0);
    }
}

/// Waits until a thread sleeps in a system call.
fn wait_until_it_sleeps(thread: i32) {
    loop {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it waits");
        if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')) {
            return;
        }
        std::thread::yield_now();
    }
}

/// What a call comes to that waits for an event, which comes by `raise`, while a handler with these flags runs.
fn interrupted(flags: c_int, call: impl Fn() -> Result<(), Errno> + Sync, raise: impl Fn()) -> Result<(), Errno> {
    set_handler(flags);
    let before = HANDLED.load(Ordering::Acquire);
    let thread = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // SAFETY: a call without arguments.
            thread.store(unsafe { libc::gettid() }, Ordering::Release);
            call()
        });
        while thread.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let thread = thread.load(Ordering::Acquire);
        wait_until_it_sleeps(thread);
        // SAFETY: a call about numbers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
        while HANDLED.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
        if flags & libc::SA_RESTART != 0 {
            wait_until_it_sleeps(thread);
            raise();
        }
        waiting.join().expect("no panic")
    })
}

#[track_caller]
fn goes_on_if_it_shall(call: impl Fn() -> Result<(), Errno> + Sync, raise: impl Fn()) {
    assert_eq!(interrupted(libc::SA_RESTART, &call, &raise), Ok(()));
    assert_eq!(interrupted(0, &call, &raise), Err(Errno(libc::EINTR)));
}

fn answer(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno(errno())) }
}

#[test]
fn waiting_for_a_connection_event_goes_on_behind_a_handler_with_sa_restart() {
    let address = Channel::create().unwrap().expose_provenance();
    let channel = || std::ptr::with_exposed_provenance_mut::<rdma_event_channel>(address);
    // SAFETY: a channel that lives, and events that it gives.
    let raise = || unsafe {
        let handle = Handle::<Channel>::get(channel()).unwrap();
        handle.push(Report::plain(null_mut(), RDMA_CM_EVENT_ADDR_RESOLVED, 0), &Arc::default());
    };
    // SAFETY: as above.
    let call = || unsafe {
        let mut event = null_mut();
        answer(rdma_get_cm_event(channel(), &raw mut event))
    };
    goes_on_if_it_shall(call, raise);
    // As the calls of a synchronous identifier wait.
    // SAFETY: as above.
    let next = || unsafe { Handle::<Channel>::get(channel()).unwrap().next().map(drop) };
    goes_on_if_it_shall(next, raise);
}

#[test]
fn waiting_for_an_asynchronous_event_goes_on_behind_a_handler_with_sa_restart() {
    let device = Device::open();
    // SAFETY: the test's own objects.
    unsafe { libc::fcntl((*device.context).async_fd, libc::F_SETFL, 0) };
    let address = device.context.expose_provenance();
    let context = || std::ptr::with_exposed_provenance_mut::<ibv_context>(address);
    // SAFETY: as above.
    let call = || unsafe {
        let mut event = ibv_async_event::default();
        answer(ibv_get_async_event(context(), &raw mut event))
    };
    // SAFETY: as above.
    let raise = || unsafe {
        context::get(context()).unwrap().events.push(Event { kind: IBV_EVENT_PORT_ERR, element: 0 });
    };
    goes_on_if_it_shall(call, raise);
}

#[test]
fn waiting_for_a_completion_event_goes_on_behind_a_handler_with_sa_restart() {
    let device = Device::open();
    // SAFETY: the test's own objects.
    let (address, queue) = unsafe {
        let channel = ibv_create_comp_channel(device.context);
        (channel.expose_provenance(), device.queue(channel).expose_provenance())
    };
    // SAFETY: as above.
    let channel = unsafe {
        Handle::<CompletionChannel>::get(std::ptr::with_exposed_provenance_mut::<ibv_comp_channel>(address)).unwrap()
    };
    let bell = channel.bell();
    channel.add(&bell, queue);
    // SAFETY: as above.
    let call = || unsafe {
        let (mut queue, mut user) = (null_mut(), null_mut());
        let channel = std::ptr::with_exposed_provenance_mut(address);
        answer(ibv_get_cq_event(channel, &raw mut queue, &raw mut user))
    };
    goes_on_if_it_shall(call, || bell.ring());
}
