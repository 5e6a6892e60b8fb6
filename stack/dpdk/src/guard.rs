//! Keeps those who share descriptors with this process from holding up its threads.
//!
//! Who sends a descriptor chooses what closing it costs: a socket that lingers, or a file of a hung file system, holds
//! its last owner up for as long as the sender likes. That owner is whoever receives the descriptor, and also whoever
//! closes a socket on which it waits unread. So [`dispose`] closes sockets of strangers without waiting, and a
//! *guarded* vhost socket takes only descriptors that nobody can hold up: memory and eventfds, which the vhost library
//! signals without waiting.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem::{self, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, mpsc};
use std::time::Duration;
use std::{fs, io, ptr, thread};

use dpdk_sys as sys;

use crate::lock::lock;
use crate::signal::with_signals_blocked;

/// The most descriptors of a message (SCM_MAX_FD of Linux).
const MOST_DESCRIPTORS: usize = 253;
/// The most that the vhost library takes.
const OF_VHOST: usize = 8;
/// How long the thread rests that finds no descriptor for a connection.
const REST: Duration = Duration::from_millis(10);
/// Of Linux 6.16.
const SO_PASSRIGHTS: c_int = 83;

/// The directory whose vhost sockets are guarded.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
/// The connections on them.
static CONNECTIONS: Mutex<Vec<(c_int, PathBuf)>> = Mutex::new(Vec::new());

static GUARD: sys::uwarp_guard =
    sys::uwarp_guard { is_guarded: Some(is_guarded), accept: Some(accept), receive: Some(receive) };

fn connections() -> MutexGuard<'static, Vec<(c_int, PathBuf)>> {
    lock(&CONNECTIONS)
}

/// Guards all vhost sockets that are made in `directory` from now on. Each takes one connection at a time.
///
/// # Errors
/// There is a guard, or this program's functions do not stand in front of libc's.
pub fn start(directory: &Path) -> io::Result<()> {
    DIRECTORY.set(directory.to_owned()).map_err(|_| io::Error::other("there is one guard in a process"))?;
    // SAFETY: the guard is static.
    if unsafe { sys::uwarp_guard_start(&GUARD) } != 0 {
        return Err(io::Error::other("functions of this program do not stand in front of libc's"));
    }
    // SAFETY: the function is static.
    unsafe { sys::uwarp_close_through(Some(close)) };
    Ok(())
}

/// The path of the guarded socket of which a descriptor is a connection.
pub fn connection(descriptor: RawFd) -> Option<PathBuf> {
    connections().iter().find(|(known, _)| *known == descriptor).map(|(_, path)| path.clone())
}

/// Ends the connection on a guarded socket.
pub fn cut(path: &Path) {
    // The lock keeps its number from being another's meanwhile.
    for (descriptor, _) in connections().iter().filter(|(_, own)| own == path) {
        // SAFETY: no pointers.
        unsafe { libc::shutdown(*descriptor, libc::SHUT_RDWR) };
    }
}

/// Has the kernel refuse descriptors that are sent to a listening socket's connections. Linux before 6.16 cannot.
///
/// # Errors
/// Those of setsockopt(2).
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    let off: c_int = 0;
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option is an integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast::<c_void>(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket to which anybody may have sent descriptors. It is closed by [`dispose`].
#[derive(Debug)]
pub struct SharedSocket(Option<OwnedFd>);

impl From<OwnedFd> for SharedSocket {
    fn from(socket: OwnedFd) -> Self {
        SharedSocket(Some(socket))
    }
}

impl AsFd for SharedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Some(socket) => socket.as_fd(),
            None => unreachable!("it is taken when this is dropped"),
        }
    }
}

impl Drop for SharedSocket {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(dispose);
    }
}

/// Closes a socket, and waits for nothing that waits in it.
pub fn dispose(socket: OwnedFd) {
    dispose_of(socket.into_raw_fd());
}

/// The last owner of a descriptor is a thread that ends: the kernel lets it wait for no socket.
fn dispose_of(descriptor: RawFd) {
    let (ready, is_ready) = mpsc::channel();
    let (closed, is_closed) = mpsc::channel::<()>();
    let body = move || {
        let is_apart = leave_table();
        let _ = ready.send(is_apart);
        if is_apart {
            // Ends when the caller has closed its own.
            let _ = is_closed.recv();
        } else {
            // It may wait here, and harms nobody.
            close_now(descriptor);
        }
    };
    let started = with_signals_blocked(|| thread::Builder::new().name("uwarp-close".to_owned()).spawn(body));
    if started.is_err() || is_ready.recv().unwrap_or(false) {
        close_now(descriptor);
    }
    drop(closed);
}

/// Gives the calling thread a table of descriptors of its own, with the same ones. Containers may call close_range(2),
/// and not unshare(2).
fn leave_table() -> bool {
    let nothing = libc::c_uint::MAX;
    // SAFETY: no pointers, and nothing is closed: no descriptor has this number.
    unsafe { libc::syscall(libc::SYS_close_range, nothing, nothing, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

fn close_now(descriptor: RawFd) {
    // Not libc's name: it may come here.
    // SAFETY: the caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

/// The path of a socket.
fn name(descriptor: c_int) -> Option<PathBuf> {
    // SAFETY: all zero is an address without a name.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address has this length.
    let result = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &mut length) };
    if result != 0 || c_int::from(address.sun_family) != libc::AF_UNIX || address.sun_path[0] == 0 {
        return None;
    }
    let octets: Vec<u8> = address.sun_path.iter().map(|octet| octet.cast_unsigned()).chain([0]).collect();
    let name = CStr::from_bytes_until_nul(&octets).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn guarded_name(descriptor: c_int) -> Option<PathBuf> {
    name(descriptor).filter(|name| name.parent() == DIRECTORY.get().map(PathBuf::as_path))
}

unsafe extern "C" fn is_guarded(descriptor: c_int) -> c_int {
    guarded_name(descriptor).is_some().into()
}

fn set_errno(number: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// In place of close(2).
unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    // SAFETY: the calling thread's own.
    let errno = unsafe { *libc::__errno_location() };
    let is_guarded = guarded_name(descriptor).is_some();
    if is_guarded {
        connections().retain(|(known, _)| *known != descriptor);
        dispose_of(descriptor);
    }
    set_errno(errno);
    is_guarded.into()
}

/// Whether this process is at the other end.
fn is_own(connection: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure has this length.
    let result = unsafe {
        libc::getsockopt(connection, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &mut length)
    };
    result == 0 && peer.pid == std::process::id().cast_signed()
}

/// In place of accept(2) on a guarded socket.
unsafe extern "C" fn accept(listener: c_int) -> c_int {
    let Some(path) = guarded_name(listener) else { return -1 };
    // SAFETY: asks for no address.
    let connection = unsafe { libc::accept4(listener, ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC) };
    if connection < 0 {
        let error = io::Error::last_os_error();
        if let Some(libc::EMFILE | libc::ENFILE) = error.raw_os_error() {
            // The connection goes on waiting, and the caller would come again at once.
            thread::sleep(REST);
        }
        set_errno(error.raw_os_error().unwrap_or(libc::EAGAIN));
        return -1;
    }
    // An own one wakes the thread, and is not the client's.
    if is_own(connection) { connection } else { admit(connection, path) }
}

/// Takes a connection, unless there is one on this socket.
fn admit(connection: c_int, path: PathBuf) -> c_int {
    let mut known = connections();
    if known.iter().any(|(_, own)| *own == path) {
        drop(known);
        dispose_of(connection);
        set_errno(libc::EAGAIN);
        return -1;
    }
    known.push((connection, path));
    connection
}

/// In place of recvmsg(2) on a guarded socket.
unsafe extern "C" fn receive(descriptor: c_int, message: *mut c_void, flags: c_int) -> isize {
    // SAFETY: the caller passes a message, and gives it back afterwards.
    let message = unsafe { &mut *message.cast::<libc::msghdr>() };
    // A look without room for descriptors says whether some come along, and takes none.
    // SAFETY: all zero is an empty message.
    let mut look: libc::msghdr = unsafe { mem::zeroed() };
    (look.msg_iov, look.msg_iovlen) = (message.msg_iov, message.msg_iovlen.min(1));
    // SAFETY: the part is the caller's.
    let length =
        unsafe { libc::syscall(libc::SYS_recvmsg, descriptor, &raw mut look, flags | libc::MSG_PEEK) } as isize;
    if length <= 0 {
        return length;
    }
    // SAFETY: the kernel has just filled the part.
    let start = unsafe { (*message.msg_iov).iov_base };
    // Only the octets that the look has seen. The look also sees the descriptors of later messages.
    if look.msg_flags & libc::MSG_CTRUNC != 0 {
        receive_apart(descriptor, message, start, length.cast_unsigned())
    } else {
        receive_part(descriptor, message, start, length.cast_unsigned(), flags)
    }
}

/// Receives so many octets, into the first part of the message.
fn receive_part(
    descriptor: c_int,
    message: &mut libc::msghdr,
    start: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    let mut part = libc::iovec { iov_base: start, iov_len: length };
    let (parts, count) = (message.msg_iov, message.msg_iovlen);
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    // SAFETY: the message is the caller's, and the part has this length.
    let result = unsafe { libc::syscall(libc::SYS_recvmsg, descriptor, ptr::from_mut(message), flags) } as isize;
    (message.msg_iov, message.msg_iovlen) = (parts, count);
    result
}

/// What a request of vhost-user may bring along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    Event,
}

/// By the number of the request.
fn expected(request: u32) -> Option<Kind> {
    match request {
        // SET_MEM_TABLE, ADD_MEM_REG
        5 | 37 => Some(Kind::Memory),
        // SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR
        12..=14 => Some(Kind::Event),
        _ => None,
    }
}

/// Receives so many octets, and the descriptors that come along if they are what the request takes.
///
/// A thread of its own receives them into a table of its own, passes on what is right, and ends. So nothing is closed
/// here that could wait.
fn receive_apart(socket: c_int, message: &mut libc::msghdr, start: *mut c_void, length: usize) -> isize {
    let Ok((from, to)) = UnixStream::pair() else { return -1 };
    let to = to.as_raw_fd();
    let address = start.expose_provenance();
    let taken = thread::scope(|scope| {
        let take = || leave_table().then(|| take(socket, address, length, to)).flatten();
        let started =
            with_signals_blocked(|| thread::Builder::new().name("uwarp-take".to_owned()).spawn_scoped(scope, take));
        started.ok().and_then(|thread| thread.join().ok()).flatten()
    });
    let Some((received, has_descriptors)) = taken else {
        set_errno(libc::EPROTO);
        return -1;
    };
    (message.msg_flags, message.msg_namelen) = (0, 0);
    if has_descriptors {
        let mut octet = 0_u8;
        let result = receive_part(from.as_raw_fd(), message, (&raw mut octet).cast(), 1, libc::MSG_DONTWAIT);
        if result != 1 {
            return -1;
        }
    } else {
        message.msg_controllen = 0;
    }
    received
}

/// What the thread does: gives how many octets there are, and whether descriptors were passed on. `None` if those are
/// not what the request takes.
fn take(socket: c_int, address: usize, length: usize, to: c_int) -> Option<(isize, bool)> {
    // In words, as control messages are aligned.
    let mut control = [0_u64; 16 + MOST_DESCRIPTORS.div_ceil(2)];
    let start: *mut c_void = ptr::with_exposed_provenance_mut(address);
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    let received = receive_part(socket, &mut message, start, length, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
    if received <= 0 || message.msg_flags & libc::MSG_CTRUNC != 0 {
        return None;
    }
    // SAFETY: the kernel has written whole headers.
    let Some(header) = (unsafe { libc::CMSG_FIRSTHDR(&message).as_ref() }) else { return Some((received, false)) };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    // SAFETY: the kernel has written so many octets, and nobody else does.
    let octets = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), received.cast_unsigned()) };
    let kind = expected(u32::from_ne_bytes(*octets.first_chunk()?))?;
    // SAFETY: no pointers.
    let count = (header.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<c_int>();
    // SAFETY: so many descriptors follow the header.
    let mut descriptors = unsafe {
        let first = libc::CMSG_DATA(header).cast::<c_int>();
        (0..count).map(move |index| first.add(index).read_unaligned())
    };
    // None is closed before this thread ends.
    if count > OF_VHOST || !descriptors.all(|descriptor| is(descriptor, kind)) {
        return None;
    }
    let mut octet = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut octet).cast(), iov_len: 1 };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    // SAFETY: the control message is the one that the kernel has written.
    let sent = unsafe { libc::sendmsg(to, &message, libc::MSG_NOSIGNAL) };
    (sent == 1).then_some((received, true))
}

/// Whether a descriptor is of a kind. No file system is asked: it may be hung.
fn is(descriptor: c_int, kind: Kind) -> bool {
    match kind {
        // SAFETY: no pointers. Only files in memory and huge pages have seals.
        Kind::Memory => unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) >= 0 },
        Kind::Event => fs::read_link(format!("/proc/thread-self/fd/{descriptor}"))
            .is_ok_and(|target| target == Path::new("anon_inode:[eventfd]")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::FromRawFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// How long closing one of [`lingering`] takes.
    const LINGER: Duration = Duration::from_secs(40);

    /// A connection whose last owner waits, and its other end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[7; 65536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&sender, Some(LINGER)).unwrap();
        (sender, receiver)
    }

    fn send(socket: &UnixStream, octets: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        sendmsg(socket, &[io::IoSlice::new(octets)], &mut ancillary, SendFlags::empty()).unwrap();
    }

    fn header(request: u32) -> [u8; 12] {
        [request, 1, 0].map(u32::to_ne_bytes).concat().try_into().unwrap()
    }

    #[test]
    fn closing_a_socket_waits_for_no_descriptor_in_it() {
        let begun = Instant::now();
        let (here, there) = UnixStream::pair().unwrap();
        let (sender, receiver) = lingering();
        send(&here, b"x", &[sender.as_fd()]);
        // The one on its way is the last.
        drop(sender);
        drop(SharedSocket::from(OwnedFd::from(there)));
        assert!(begun.elapsed() < LINGER / 2, "it has waited");
        // Closed it is.
        let mut here = here;
        assert_eq!(here.read(&mut [0]).map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionReset));
        drop(receiver);
    }

    #[test]
    fn a_request_brings_along_what_it_takes_and_nothing_else() {
        let memory: OwnedFd = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (pipe, _writer) = io::pipe().unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        let (memory, event, pipe, file) = (memory.as_fd(), event.as_fd(), pipe.as_fd(), file.as_fd());
        for (request, descriptors, expected) in [
            (5, vec![memory; 8], true),
            (5, vec![memory; 9], false),
            (37, vec![memory], true),
            (13, vec![event], true),
            (12, vec![memory], false),
            (14, vec![pipe], false),
            (5, vec![file], false),
            (5, vec![memory, event], false),
            (5, vec![event], false),
            (21, vec![memory], false),
            (2, vec![event], false),
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            send(&here, &header(request), &descriptors);
            let (length, taken) = receive_from(&there);
            let verdict = length == 12 && taken.len() == descriptors.len();
            assert!(verdict || (length, taken.len()) == (-1, 0));
            assert_eq!(verdict, expected, "request {request} with {} descriptors", descriptors.len());
        }
    }

    /// Receives a header, as the vhost library does.
    fn receive_from(socket: &UnixStream) -> (isize, Vec<OwnedFd>) {
        let (mut octets, mut control) = ([0_u8; 12], [0_u64; 8]);
        let mut part = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        // SAFETY: all zero is an empty message.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: the message is whole.
        let length = unsafe { receive(socket.as_raw_fd(), (&raw mut message).cast(), 0) };
        let mut taken = Vec::new();
        // SAFETY: what follows the header are this process's descriptors from now on.
        if let Some(header) = (unsafe { libc::CMSG_FIRSTHDR(&message).as_ref() }).filter(|_| length > 0) {
            let count = (header.cmsg_len - size_of::<libc::cmsghdr>()) / size_of::<c_int>();
            for index in 0..count {
                // SAFETY: as above.
                taken.push(unsafe {
                    OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<c_int>().add(index).read_unaligned())
                });
            }
        }
        (length, taken)
    }

    #[test]
    fn descriptors_come_with_their_own_message() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        // One in front of a message with descriptors, and one in two parts.
        here.write_all(&header(16)).unwrap();
        send(&here, &header(13), &[event.as_fd()]);
        here.write_all(&header(13)[..4]).unwrap();
        send(&here, &header(13)[4..], &[event.as_fd()]);
        drop(here);
        assert!(matches!(receive_from(&there), (12, taken) if taken.is_empty()));
        for _ in 0..2 {
            let (length, taken) = receive_from(&there);
            assert!(length == 12 && taken.len() == 1 && is(taken[0].as_raw_fd(), Kind::Event));
        }
        assert!(matches!(receive_from(&there), (0, _)));
    }

    #[test]
    fn a_full_eventfd_holds_nobody_up() {
        let full = u64::MAX - 1;
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&event, &full.to_ne_bytes()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        // Other tests of this process are not guarded: their sockets are elsewhere.
        start(directory.path()).unwrap();
        for _ in 0..3 {
            // SAFETY: the descriptor is open.
            unsafe { sys::uwarp_signal(event.as_raw_fd()) };
        }
        let empty = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for _ in 0..200 {
            // SAFETY: as above.
            assert_eq!(unsafe { sys::uwarp_signal(empty.as_raw_fd()) }, 0);
        }
        let mut count = [0; 8];
        rustix::io::read(&empty, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 200);

        // One connection at a time.
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let accepted = || admit(OwnedFd::from(listener.accept().unwrap().0).into_raw_fd(), path.clone());
        let _first = UnixStream::connect(&path).unwrap();
        let connection = accepted();
        assert_eq!(super::connection(connection), Some(path.clone()));
        let mut second = UnixStream::connect(&path).unwrap();
        assert_eq!((accepted(), second.read(&mut [0]).unwrap()), (-1, 0));
        cut(&path);
        // SAFETY: it is this test's own.
        drop(unsafe { OwnedFd::from_raw_fd(connection) });
        assert_eq!(super::connection(connection), None);
        let _third = UnixStream::connect(&path).unwrap();
        let connection = accepted();
        assert!(connection >= 0);
        // SAFETY: as above.
        drop(unsafe { OwnedFd::from_raw_fd(connection) });
    }
}
