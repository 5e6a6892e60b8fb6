//! Sending and receiving.

use crate::abi::sockaddr;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, minus_one};
use crate::rsocket::names;
use crate::rsocket::socket::{self, EBADF, ENOTCONN, Socket, Stage, State, Wait};
use crate::rsocket::stream::Stream;
use libc::{c_int, c_void, iovec, msghdr, size_t, socklen_t, ssize_t};

const EFAULT: Errno = Errno(libc::EFAULT);
const EISCONN: Errno = Errno(libc::EISCONN);
const EPIPE: Errno = Errno(libc::EPIPE);

/// Most pieces of one call, as for sockets.
const MOST_PIECES: usize = 1024;

/// The program's octets to be sent.
///
/// # Safety
/// `from` is null or points to as many octets, which nobody changes in the call.
pub(crate) unsafe fn octets<'a>(from: *const c_void, count: size_t) -> Result<&'a [u8], Errno> {
    match (from.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(EFAULT),
        _ if count > isize::MAX as usize => Err(EINVAL),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(from.cast(), count) }),
    }
}

/// The program's room for octets.
///
/// # Safety
/// `to` is null or points to as many octets, which nobody else uses in the call.
unsafe fn room<'a>(to: *mut c_void, count: size_t) -> Result<&'a mut [u8], Errno> {
    match (to.is_null(), count) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(EFAULT),
        _ if count > isize::MAX as usize => Err(EINVAL),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(to.cast(), count) }),
    }
}

/// The program's list of pieces.
///
/// # Safety
/// `list` is null or points to as many entries.
unsafe fn pieces<'a>(list: *const iovec, count: usize) -> Result<&'a [iovec], Errno> {
    match (list.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(EFAULT),
        _ if count > MOST_PIECES => Err(EINVAL),
        // SAFETY: as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

/// How a call waits that sends.
pub(crate) fn waits(flags: c_int) -> Wait {
    if flags & libc::MSG_DONTWAIT != 0 { Wait::Not } else { Wait::ToSend }
}

/// The connection of an rsocket that is to send; none while it is being made.
pub(crate) fn is_open(state: &mut State) -> Result<Option<&mut Stream>, Errno> {
    match &mut state.stage {
        Stage::Open(stream) if !stream.ends.write && !stream.ends.is_over => Ok(Some(stream)),
        Stage::Open(_) => Err(state.error.take().unwrap_or(EPIPE)),
        Stage::Connecting(_) => Ok(None),
        Stage::New => Err(state.error.take().unwrap_or(ENOTCONN)),
        Stage::Listening(_) => Err(ENOTCONN),
        Stage::Closed => Err(EBADF),
    }
}

/// The body of an export that sends. An error counts only if nothing was done.
pub(crate) fn sending(number: c_int, body: impl FnOnce(&Socket, &mut usize) -> Result<(), Errno>) -> ssize_t {
    let mut done = 0;
    let result = minus_one(|| {
        let socket = socket::find(number)?;
        match body(&socket, &mut done) {
            Err(errno) if done == 0 => return Err(errno),
            _ => {}
        }
        if let Stage::Open(stream) = &mut socket.lock().stage {
            stream.flush();
        }
        Ok(0)
    });
    if result < 0 { -1 } else { done as ssize_t }
}

/// The parts of a list of pieces behind `skipped` octets, `most` octets of them.
fn parts<'a>(list: &'a [&'a [u8]], mut skipped: usize, mut most: usize) -> impl Iterator<Item = &'a [u8]> {
    list.iter().filter_map(move |piece| {
        let begin = skipped.min(piece.len());
        skipped -= begin;
        let part = &piece[begin..piece.len().min(begin.saturating_add(most))];
        most -= part.len();
        (!part.is_empty()).then_some(part)
    })
}

/// Sends all the pieces, or as many octets as can be sent.
fn send(number: c_int, list: &[&[u8]], flags: c_int) -> ssize_t {
    sending(number, |socket, done| {
        if flags & libc::MSG_OOB != 0 {
            return Err(EOPNOTSUPP);
        }
        let whole: usize = list.iter().map(|piece| piece.len()).sum();
        socket.until(waits(flags), |state| {
            let stream = match is_open(state) {
                Ok(Some(stream)) => stream,
                Ok(None) => return None,
                Err(errno) => return Some(Err(errno)),
            };
            while *done < whole {
                let room = stream.room();
                if room == 0 {
                    return None;
                }
                *done += stream.send(parts(list, *done, room));
            }
            Some(Ok(()))
        })
    })
}

/// Sends the program's list of pieces.
///
/// # Safety
/// `list` is null or points to as many entries, each of which names octets that nobody changes in the call.
unsafe fn send_list(number: c_int, list: *const iovec, count: usize, flags: c_int) -> ssize_t {
    let read = || {
        // SAFETY: as the caller promises.
        unsafe { pieces(list, count)?.iter().map(|piece| octets(piece.iov_base, piece.iov_len)).collect() }
    };
    match read() {
        Ok(list) => send(number, Vec::as_slice(&list), flags),
        Err(errno) => minus_one(|| Err(errno)) as ssize_t,
    }
}

/// How a call receives.
#[derive(Clone, Copy)]
struct Receive {
    wait: Wait,
    /// Leave what is read.
    peeks: bool,
    /// Read until there is no room left.
    whole: bool,
}

impl Receive {
    fn new(flags: c_int) -> Result<Receive, Errno> {
        if flags & libc::MSG_OOB != 0 {
            return Err(EOPNOTSUPP);
        }
        let peeks = flags & libc::MSG_PEEK != 0;
        let wait = if flags & libc::MSG_DONTWAIT != 0 { Wait::Not } else { Wait::ToReceive };
        Ok(Receive { wait, peeks, whole: flags & libc::MSG_WAITALL != 0 && !peeks })
    }

    /// Reads what there is; none: something has to come first.
    fn attempt(self, state: &mut State, list: &mut [&mut [u8]], done: &mut usize) -> Option<Result<(), Errno>> {
        let whole: usize = list.iter().map(|piece| piece.len()).sum();
        let stream = match &mut state.stage {
            Stage::Open(stream) => stream,
            Stage::Connecting(_) => return None,
            Stage::New => return Some(Err(state.error.take().unwrap_or(ENOTCONN))),
            Stage::Listening(_) => return Some(Err(ENOTCONN)),
            Stage::Closed => return Some(Err(EBADF)),
        };
        *done += fill(stream, list, *done, self.peeks);
        let is_enough = *done == whole || *done > 0 && !self.whole;
        let ends = &stream.ends;
        let is_at_end = stream.incoming.available() == 0 && (ends.peer || ends.read || ends.is_over);
        match () {
            () if is_enough => Some(Ok(())),
            () if is_at_end => Some(state.error.take_if(|_| *done == 0).map_or(Ok(()), Err)),
            () => None,
        }
    }
}

/// Fills the room behind `skipped` octets of it. How many octets that were.
fn fill(stream: &mut Stream, list: &mut [&mut [u8]], mut skipped: usize, peeks: bool) -> usize {
    let mut done = 0;
    for piece in list {
        let begin = skipped.min(piece.len());
        skipped -= begin;
        let behind = if peeks { done } else { 0 };
        let count = stream.peek(behind, &mut piece[begin..]);
        if !peeks {
            stream.consume(count);
        }
        done += count;
    }
    done
}

/// Receives into all the pieces.
fn receive(number: c_int, list: &mut [&mut [u8]], flags: c_int) -> ssize_t {
    let mut done = 0;
    let result = minus_one(|| {
        let receive = Receive::new(flags)?;
        let socket = socket::find(number)?;
        match socket.until(receive.wait, |state| receive.attempt(state, list, &mut done)) {
            Err(errno) if done == 0 => Err(errno),
            _ => Ok(0),
        }
    });
    if result < 0 { -1 } else { done as ssize_t }
}

/// Receives into one place.
///
/// # Safety
/// `to` is null or points to as many octets, which nobody else uses in the call.
unsafe fn receive_into(number: c_int, to: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    match unsafe { room(to, count) } {
        Ok(room) => receive(number, &mut [room], flags),
        Err(errno) => minus_one(|| Err(errno)) as ssize_t,
    }
}

/// Receives into the program's list of pieces.
///
/// # Safety
/// `list` is null or points to as many entries, each of which names octets that nobody else uses in the call.
unsafe fn receive_list(number: c_int, list: *const iovec, count: usize, flags: c_int) -> ssize_t {
    let read = || {
        // SAFETY: as the caller promises.
        unsafe { pieces(list, count)?.iter().map(|piece| room(piece.iov_base, piece.iov_len)).collect() }
    };
    match read() {
        Ok(mut list) => receive(number, Vec::as_mut_slice(&mut list), flags),
        Err(errno) => minus_one(|| Err(errno)) as ssize_t,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsend(number: c_int, from: *const c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's octets.
    match unsafe { octets(from, count) } {
        Ok(octets) => send(number, &[octets], flags),
        Err(errno) => minus_one(|| Err(errno)) as ssize_t,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendto(
    number: c_int,
    from: *const c_void,
    count: size_t,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    if !to.is_null() || length != 0 {
        return minus_one(|| socket::find(number).and(Err(EISCONN))) as ssize_t;
    }
    // SAFETY: the caller's octets.
    unsafe { rsend(number, from, count, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rsendmsg(number: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's message.
    unsafe {
        match message.as_ref() {
            None => minus_one(|| Err(EFAULT)) as ssize_t,
            Some(message) if message.msg_controllen > 0 => minus_one(|| Err(EOPNOTSUPP)) as ssize_t,
            Some(message) => send_list(number, message.msg_iov, message.msg_iovlen, flags),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwrite(number: c_int, from: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller's octets.
    unsafe { rsend(number, from, count, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rwritev(number: c_int, list: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's list. A negative count is too many.
    unsafe { send_list(number, list, usize::try_from(count).unwrap_or(usize::MAX), 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecv(number: c_int, to: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's room.
    unsafe { receive_into(number, to, count, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvfrom(
    number: c_int,
    to: *mut c_void,
    count: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's pointers.
    unsafe {
        let received = receive_into(number, to, count, flags);
        if received >= 0 && !from.is_null() && names::rgetpeername(number, from, length) != 0 {
            return -1;
        }
        received
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvmsg(number: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's message.
    unsafe {
        let Some(message) = message.as_mut() else { return minus_one(|| Err(EFAULT)) as ssize_t };
        let received = receive_list(number, message.msg_iov, message.msg_iovlen, flags);
        if received >= 0 {
            (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
        }
        received
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rread(number: c_int, to: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller's room.
    unsafe { receive_into(number, to, count, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rreadv(number: c_int, list: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's list. A negative count is too many.
    unsafe { receive_list(number, list, usize::try_from(count).unwrap_or(usize::MAX), 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pieces_begin_and_end_anywhere() {
        let list: [&[u8]; 4] = [b"abc", b"", b"def", b"g"];
        let joined = |skipped, most| parts(&list, skipped, most).collect::<Vec<_>>().concat();
        assert_eq!(joined(0, 100), b"abcdefg");
        assert_eq!(joined(2, 3), b"cde");
        assert_eq!(joined(3, 1), b"d");
        assert_eq!(joined(7, 1), b"");
        assert_eq!(parts(&list, 2, 2).count(), 2);
    }
}
