//! Lets a process outlive peers that truncate the memory which they share with it.
//!
//! A vhost port works in its peer's memory, which is a file. If the peer makes that file shorter, the next access is a
//! SIGBUS, which ends the process. Where the process serves several peers, [`survive`] keeps it: the missing page is
//! replaced by an empty one of the process's own, which harms nobody but that peer.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, ptr};

/// Sizes of pages that a file may be mapped by.
const PAGES: [usize; 3] = [4 << 10, 2 << 20, 1 << 30];

/// Address of the last replaced page that nobody has taken; 0 if there is none.
static REPLACED: AtomicUsize = AtomicUsize::new(0);

/// From now on, replaces pages of mapped files that are not there any more. Other bus errors end the process as before.
///
/// # Errors
/// Those of sigaction(2).
pub fn survive() -> io::Result<()> {
    // SAFETY: all zero is a valid value, and the fields that count are set.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler calls only what may be called in one: mmap, sigaction and atomics.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The address of a page that was replaced since the last call. [`Port::peer_maps`](crate::Port::peer_maps) says whose
/// it was.
pub fn take_replaced() -> Option<usize> {
    Some(REPLACED.swap(0, Ordering::Relaxed)).filter(|address| *address != 0)
}

extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes the fault's description.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && replace(address) {
        REPLACED.store(address, Ordering::Relaxed);
        return;
    }
    // The access is repeated after the return, and ends the process.
    // SAFETY: sets the default action.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// Puts an empty page where a file has none. A page that is larger than assumed cannot be replaced in part: the next
/// size is tried.
fn replace(address: usize) -> bool {
    PAGES.iter().any(|size| {
        let page = ptr::without_provenance_mut(address & !(size - 1));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the access to this page has just failed, so nothing of this process is in it.
        unsafe { libc::mmap(page, *size, protection, flags, -1, 0) != libc::MAP_FAILED }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_truncated_file_has_lost_reads_as_zero_and_is_reported() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 << 12).unwrap();
        let (flags, protection) = (libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE);
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new mapping.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), 3 << 12, protection, flags, descriptor, 0) };
        assert_ne!(mapped, libc::MAP_FAILED);
        let octet = |at: usize| mapped.cast::<u8>().wrapping_add(at);
        for at in [0, 5000, 9000] {
            // SAFETY: inside of the mapping.
            unsafe { octet(at).write_volatile(7) };
        }
        survive().unwrap();
        file.set_len(1 << 12).unwrap();
        // SAFETY: inside of the mapping.
        let read: Vec<u8> = [0, 5000].into_iter().map(|at| unsafe { octet(at).read_volatile() }).collect();
        assert_eq!((read, take_replaced()), (vec![7, 0], Some(octet(5000) as usize)));
        // SAFETY: as above.
        unsafe { octet(9000).write_volatile(9) };
        assert_eq!((take_replaced(), take_replaced()), (Some(octet(9000) as usize), None));
    }
}
