//! What a sanitizer has to report, for `run` to see that it does: a data race, or a use of memory that was freed.
//! The argument says which. No crate contains this file, and nothing else is compiled from it.

use std::cell::UnsafeCell;
use std::process::exit;

struct Shared(UnsafeCell<u64>);

// SAFETY: unsound on purpose: nothing orders the accesses of two threads.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new(0));

fn race() {
    let write = || {
        // SAFETY: unsound on purpose.
        unsafe { *SHARED.0.get() += 1 };
    };
    let threads = [std::thread::spawn(write), std::thread::spawn(write)];
    for thread in threads {
        thread.join().expect("the thread ends");
    }
}

fn use_after_free() {
    let octet = Box::into_raw(Box::new(7_u8));
    // SAFETY: the pointer is the box's.
    drop(unsafe { Box::from_raw(octet) });
    // SAFETY: unsound on purpose.
    println!("{}", unsafe { octet.read_volatile() });
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("thread") => race(),
        Some("address") => use_after_free(),
        _ => exit(2),
    }
}
