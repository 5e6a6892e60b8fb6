//! The descriptor of an rsocket, which poll(2), select(2) and epoll(7) take as that of a socket.
//!
//! It is one end of a pair of local sockets whose other end this library has. It is readable while one octet lies in
//! it, not writable while more of its own lie at the other end than its send buffer holds, and it is hung up when the
//! other end is.

use crate::errno::Errno;
use libc::c_short;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair, sockopt,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// More than a send buffer of the least size may hold by a quarter: from there on, a local socket is not writable.
const BALLAST: [u8; 2048] = [0; 2048];

/// What the program sees of an rsocket.
#[derive(Debug)]
pub(crate) struct Descriptor {
    /// The program's end, whose number is that of the rsocket.
    program: OwnedFd,
    /// This library's end; none once the rsocket is hung up.
    library: Option<OwnedFd>,
    is_readable: bool,
    is_writable: bool,
    is_at_end: bool,
}

impl Descriptor {
    /// One that is neither readable nor writable.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub(crate) fn new(closes_on_exec: bool) -> Result<Descriptor, Errno> {
        let (program, library) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if !closes_on_exec {
            rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty())?;
        }
        // The kernel makes it as small as it can be.
        sockopt::set_socket_send_buffer_size(&program, 1)?;
        let mut made =
            Descriptor { program, library: Some(library), is_readable: false, is_writable: true, is_at_end: false };
        made.set_writable(false);
        Ok(made)
    }

    pub(crate) fn number(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    /// Has poll(2) say these events of the descriptor, apart from errors. What has ended stays so.
    pub(crate) fn show(&mut self, events: c_short) {
        self.set_writable(events & libc::POLLOUT != 0);
        if events & libc::POLLRDHUP != 0 && !self.is_at_end {
            self.is_at_end = true;
            if let Some(library) = &self.library {
                let _ = shutdown(library, Shutdown::Write);
            }
        }
        if events & libc::POLLHUP != 0 {
            self.library = None;
        }
        self.set_readable(events & libc::POLLIN != 0);
    }

    fn set_readable(&mut self, readable: bool) {
        if readable == self.is_readable || self.is_at_end {
            return;
        }
        let Some(library) = &self.library else { return };
        self.is_readable = readable;
        if readable {
            let _ = send(library, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        } else {
            let _ = recv(&self.program, &mut [0; 1], RecvFlags::DONTWAIT);
        }
    }

    fn set_writable(&mut self, writable: bool) {
        let Some(library) = &self.library else { return };
        if writable == self.is_writable {
            return;
        }
        self.is_writable = writable;
        if writable {
            while recv(library, &mut [0; BALLAST.len()], RecvFlags::DONTWAIT).is_ok_and(|(octets, _)| octets > 0) {}
        } else {
            let _ = send(&self.program, &BALLAST, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{POLLHUP, POLLIN, POLLOUT, POLLRDHUP};

    fn seen(descriptor: &Descriptor) -> c_short {
        let mut fds = [libc::pollfd { fd: descriptor.number(), events: POLLIN | POLLOUT | POLLRDHUP, revents: 0 }];
        // SAFETY: one entry on the stack.
        unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) };
        fds[0].revents
    }

    #[test]
    fn the_kernel_says_of_it_what_it_was_told() {
        let mut descriptor = Descriptor::new(true).unwrap();
        assert_eq!(seen(&descriptor), 0);
        for events in [POLLIN, POLLIN | POLLOUT, POLLIN, 0, POLLOUT, 0, POLLIN, 0, POLLIN | POLLOUT, 0] {
            descriptor.show(events);
            assert_eq!(seen(&descriptor), events);
        }
        // Data before the end.
        descriptor.show(POLLIN);
        descriptor.show(POLLIN | POLLRDHUP);
        assert_eq!(seen(&descriptor), POLLIN | POLLRDHUP);
        descriptor.show(POLLIN | POLLRDHUP | POLLOUT);
        assert_eq!(seen(&descriptor), POLLIN | POLLRDHUP | POLLOUT);
        descriptor.show(POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
        assert_eq!(seen(&descriptor), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    }

    #[test]
    fn what_is_hung_up_stays_so() {
        let mut descriptor = Descriptor::new(false).unwrap();
        descriptor.show(POLLHUP | POLLIN | POLLOUT);
        descriptor.show(0);
        assert_eq!(seen(&descriptor) & (POLLIN | POLLOUT | POLLHUP), POLLIN | POLLOUT | POLLHUP);
    }
}
