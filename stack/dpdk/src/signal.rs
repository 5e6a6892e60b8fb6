//! Keeps devices from interfering with the application: no device interrupts its system calls by signals, and programs
//! that it starts inherit neither tap descriptors nor DPDK's memory.

use crate::lock::lock;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::{fs, io, ptr, thread};

/// Every signal but those of a thread's own faults: if those are blocked, the kernel ends the process without a
/// message.
fn all_but_faults() -> libc::sigset_t {
    // SAFETY: the set is filled in before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS]
        {
            libc::sigdelset(&mut all, fault);
        }
        all
    }
}

/// Gives a thread its signal mask back.
struct Mask(libc::sigset_t);

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the mask is one that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// Runs `work` with every signal blocked on the calling thread, except those of its own faults, and restores the mask.
///
/// A thread inherits the mask of the one that starts it. So a thread that `work` starts never takes a signal of the
/// process, and a write of it to a peer that is gone fails with EPIPE instead of ending the process.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the former mask is filled in by the call.
    let _former = unsafe {
        let mut former: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, &all_but_faults(), &mut former);
        Mask(former)
    };
    work()
}

/// Runs `work` on a thread of its own that takes no signals and waits for no silent vhost, and waits for it.
///
/// Drivers write to sockets without `MSG_NOSIGNAL` and start threads. On the caller's thread such a write could end the
/// process by SIGPIPE, and such threads would take signals that the application waits for.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let mut work = Some(work);
    let slot = &mut work;
    let done = thread::scope(move |scope| {
        let body = move || {
            // SAFETY: it sets a flag of this thread, which ends here.
            unsafe { dpdk_sys::uwarp_limit_receives() };
            slot.take().map(|work| work())
        };
        let builder = thread::Builder::new().name("uwarp-device".to_owned());
        let started = with_signals_blocked(|| builder.spawn_scoped(scope, body));
        match started.ok()?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    match (done, work) {
        (Some(result), _) => result,
        // The system has no thread left: better here than not at all.
        (None, Some(work)) => work(),
        (None, None) => unreachable!("the work was done, or is still there"),
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

/// The files in memory that this process has open.
pub(crate) fn memory_files() -> BTreeSet<c_int> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let in_memory = entries.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"))
    });
    in_memory.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Keeps DPDK's memory from programs that this process starts: they would inherit the files, and the memory would last
/// as long as any of them. `others` are the files in memory from before DPDK started.
pub(crate) fn keep_memory_from_children(others: &BTreeSet<c_int>) {
    for descriptor in memory_files().difference(others) {
        // SAFETY: sets a flag; no pointers. It fails only if the descriptor is closed by now.
        unsafe { libc::fcntl(*descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
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
    let mut taker = lock(&TAKER);
    if let Some(thread) = *taker {
        return Ok(thread);
    }
    let (tell, told) = mpsc::sync_channel(1);
    let wait = move || {
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
    };
    with_signals_blocked(|| thread::Builder::new().name("uwarp-tap".to_owned()).spawn(wait))?;
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

    /// Bit `signal` of a mask in `/proc/PID/task/TID/status`.
    fn is_in(mask: &str, signal: c_int, thread: &Path) -> bool {
        let status = fs::read_to_string(thread.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
    }

    /// Set in the process of the test below: the role, and the socket that both share.
    const ROLE: &str = "UWARP_SIGNAL_ROLE";
    const SOCKET: &str = "UWARP_SIGNAL_SOCKET";

    fn start(role: &str, socket: &Path) -> std::process::Child {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["signal::tests::the_application_keeps_its_signals", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, socket)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }

    fn open(device: &crate::DeviceConfig) -> crate::Port {
        let eal = crate::Eal::init(&crate::EalConfig::default()).unwrap();
        let wait_for_peer = std::time::Duration::from_secs(20);
        let port =
            crate::Port::open(&eal, device, &crate::PortOptions { wait_for_peer, ..Default::default() }).unwrap();
        port.wait_link_up(wait_for_peer).unwrap();
        port
    }

    /// Serves a virtio-user device until it is killed.
    fn be_peer(socket: std::path::PathBuf) -> ! {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        let _port = open(&crate::DeviceConfig::Vhost { socket, client: false, tso: false });
        loop {
            thread::park();
        }
    }

    /// An application that takes signals by their default actions, as C programs do, and whose peer dies.
    fn be_application(socket: std::path::PathBuf) {
        // SAFETY: sets default actions; Rust's runtime has SIGPIPE ignored.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let mut peer = start("peer", &socket);
        let device =
            crate::DeviceConfig::VirtioUser { socket, server: false, packed: false, queue_size: None, mac: None };
        let port = open(&device);
        let own = [rustix::thread::gettid(), rustix::process::getpid()].map(|own| own.as_raw_nonzero().to_string());
        let (mut threads, pipe) = (0, libc::SIGPIPE);
        for entry in fs::read_dir("/proc/self/task").unwrap() {
            let path = entry.unwrap().path();
            assert!(!is_in("SigIgn:", pipe, &path), "SIGPIPE keeps its action");
            let name = fs::read_to_string(path.join("comm")).unwrap();
            let is_ours = !own.iter().any(|own| path.ends_with(own));
            threads += u32::from(is_ours);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD, pipe] {
                assert_eq!(is_in("SigBlk:", signal, &path), is_ours, "signal {signal} in {name}");
            }
        }
        assert!(threads >= 2, "EAL's threads");
        peer.kill().unwrap();
        peer.wait().unwrap();
        // The driver tells a peer that is gone to stop its queues.
        drop(port);
    }

    #[test]
    fn the_application_keeps_its_signals() {
        match std::env::var(ROLE).as_deref() {
            Ok("peer") => be_peer(std::env::var_os(SOCKET).unwrap().into()),
            Ok(_) => be_application(std::env::var_os(SOCKET).unwrap().into()),
            Err(_) => {
                let directory = tempfile::tempdir().unwrap();
                let status = start("application", &directory.path().join("s")).wait().unwrap();
                assert!(status.success(), "{status}");
            }
        }
    }
}
