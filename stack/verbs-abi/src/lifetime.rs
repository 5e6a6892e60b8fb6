//! Whether this process is a forked child, and whether it ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// This process is a child that was forked when engines ran already.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The thread that ends the process, once it does.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's number in the C library; never 0.
fn own_thread() -> usize {
    // SAFETY: a call without arguments.
    unsafe { libc::pthread_self() as usize }
}

/// The calling thread ends the process from here on.
pub(crate) fn end_by_this_thread() {
    ENDING.store(own_thread(), Ordering::Release);
}

/// Whether another thread ends the process.
pub(crate) fn is_ended_by_another() -> bool {
    let ending = ENDING.load(Ordering::Acquire);
    ending != 0 && ending != own_thread()
}

/// Whether engines ran in the parent when this process was forked: they did not come along, so nothing works here.
#[inline]
pub(crate) fn in_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// What a fork runs in the child.
pub(crate) extern "C" fn child_of_fork() {
    FORKED.store(true, Ordering::Relaxed);
}
