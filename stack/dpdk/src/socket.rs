//! Sockets that strangers send to. Who sends a descriptor chooses what closing it costs: a socket that lingers, or a
//! file of a hung file system, holds its last owner up for as long as the sender likes. That is whoever receives the
//! descriptor, and also whoever closes a socket on which it waits unread.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::thread;

use crate::signal::with_signals_blocked;

/// Of Linux 6.16.
const SO_PASSRIGHTS: c_int = 83;

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

/// A socket to which anybody may have sent descriptors. Dropping it waits for nothing that waits in it.
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
        self.0.take().into_iter().for_each(|socket| dispose(socket.into_raw_fd()));
    }
}

/// The last owner of a descriptor is a thread that ends: the kernel lets it wait for no socket.
fn dispose(descriptor: RawFd) {
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
    // SAFETY: the caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::mem;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

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
}
