//! Keeps devices from interfering with the application: no device interrupts its system calls by signals, and programs
//! that it starts inherit no tap descriptors.

use std::ffi::c_int;
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::{fs, io, ptr, thread};

/// A write to a peer that is gone then fails instead of ending the process, unless the application handles that signal
/// itself.
pub(crate) fn ignore_broken_pipes() {
    // SAFETY: asks for, and sets, the action of one signal; no handler is involved.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_DFL {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        }
    }
}

/// Blocks every signal on this thread and those that it starts, except the signals of its own faults: if those are
/// blocked, the kernel ends the process without a message.
pub(crate) fn block() {
    // SAFETY: the set is filled in before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS]
        {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut());
    }
}

/// This process's descriptors of taps.
fn taps() -> io::Result<Vec<c_int>> {
    let mut taps = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // A descriptor that was closed meanwhile does not matter.
        let is_tap = fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("/dev/net/tun"));
        taps.extend(entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok()).filter(|_| is_tap));
    }
    Ok(taps)
}

/// Keeps a tap device from the programs that this process starts. The driver leaves its descriptors inheritable, so the
/// interface would remain after the device is closed, with queues that swallow frames.
pub(crate) fn keep_from_children(interface: &str) -> io::Result<()> {
    for descriptor in taps()? {
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap_or_default();
        if about.lines().any(|line| line.strip_prefix("iff:").is_some_and(|name| name.trim() == interface)) {
            // SAFETY: sets a flag; no pointers.
            if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Directs the signals of this process's tap devices to a thread that does nothing else.
///
/// The tap driver makes the kernel send a signal with each frame, which saves an empty burst its system call. That
/// signal could reach any thread of the process, and would interrupt a system call with a time-out there with EINTR,
/// restarted or not.
pub(crate) fn keep_those_of_taps() -> io::Result<()> {
    for descriptor in taps()? {
        // SAFETY: asks for numbers and changes nothing.
        let (signal, process) = unsafe { (libc::fcntl(descriptor, F_GETSIG), libc::fcntl(descriptor, libc::F_GETOWN)) };
        // The application may have taps of its own.
        if signal < libc::SIGRTMIN() || process != std::process::id().cast_signed() {
            continue;
        }
        let owner = FileOwner { kind: F_OWNER_TID, id: taker(signal)? };
        // SAFETY: the structure is the kernel's, and only read.
        if unsafe { libc::fcntl(descriptor, F_SETOWN_EX, &owner) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The kernel's `struct f_owner_ex`, with its constants in fcntl.h.
#[repr(C)]
struct FileOwner {
    kind: c_int,
    id: libc::pid_t,
}
const F_OWNER_TID: c_int = 0;
const F_SETOWN_EX: c_int = 15;
const F_GETSIG: c_int = 11;

/// The thread that receives one signal. The driver uses one signal for all of its devices, so there is one thread,
/// which never ends.
fn taker(signal: c_int) -> io::Result<libc::pid_t> {
    static TAKER: Mutex<Option<libc::pid_t>> = Mutex::new(None);
    let mut taker = TAKER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = *taker {
        return Ok(thread);
    }
    let (tell, told) = mpsc::sync_channel(1);
    thread::Builder::new().name("uwarp-tap".to_owned()).spawn(move || {
        block();
        // SAFETY: the set is filled in before it is used, and the rest takes no pointers.
        unsafe {
            let mut one: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut one);
            libc::sigaddset(&mut one, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &one, ptr::null_mut());
            let _ = tell.send(libc::gettid());
            loop {
                libc::pause();
            }
        }
    })?;
    let thread = told.recv().map_err(io::Error::other)?;
    *taker = Some(thread);
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    const F_GETOWN_EX: c_int = 16;
    const F_SETSIG: c_int = 10;

    fn owner(tap: &File) -> (c_int, libc::pid_t) {
        let mut owner = FileOwner { kind: -1, id: 0 };
        // SAFETY: the kernel fills the structure in.
        assert_eq!(unsafe { libc::fcntl(tap.as_raw_fd(), F_GETOWN_EX, &mut owner) }, 0);
        (owner.kind, owner.id)
    }

    #[test]
    fn no_thread_of_the_application_gets_the_signals_of_a_tap() {
        let tap = || File::options().read(true).write(true).open("/dev/net/tun").expect("root, and a kernel with taps");
        let (of_driver, of_application) = (tap(), tap());
        let process = std::process::id().cast_signed();
        // SAFETY: the same call as the driver makes, with a signal that does nothing; no pointers.
        unsafe {
            libc::fcntl(of_driver.as_raw_fd(), F_SETSIG, libc::SIGRTMIN() + 1);
            libc::fcntl(of_driver.as_raw_fd(), libc::F_SETOWN, process);
            libc::fcntl(of_application.as_raw_fd(), libc::F_SETOWN, process);
        }
        let before = owner(&of_application);
        assert_eq!(owner(&of_driver), before);
        keep_those_of_taps().unwrap();
        assert_eq!(owner(&of_application), before, "not the driver's");
        let (kind, thread) = owner(&of_driver);
        assert_eq!(kind, F_OWNER_TID);
        let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap();
        assert_eq!(name.trim(), "uwarp-tap");
        keep_those_of_taps().unwrap();
        assert_eq!(owner(&of_driver), (kind, thread), "told once is enough");
    }
}
