//! Waiting for several rsockets and ordinary descriptors: rpoll(3), rselect(3).

use crate::errno::{EINVAL, Errno, minus_one};
use crate::rsocket::socket::{self, Socket};
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_int, c_short, nfds_t, pollfd, timeval};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What poll(2) says whether it is asked or not.
const UNASKED: c_short = POLLERR | POLLHUP;
/// Most descriptors of one call: more than a process may have.
const MOST: usize = 1 << 20;
/// How long a call looks again and again before it sleeps.
const IMPATIENCE: Duration = Duration::from_micros(20);

/// poll(2), without the program's interposers.
fn kernel_poll(fds: &mut [pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a slice that the kernel writes to, and a time that lives or null.
    let ready =
        unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, std::ptr::null::<u8>(), 8) };
    usize::try_from(ready).map_err(|_| std::io::Error::last_os_error().into())
}

/// One call of rpoll.
struct Poll<'a> {
    fds: &'a mut [pollfd],
    sockets: Vec<Option<Arc<Socket>>>,
    /// The ordinary descriptors at their places; the others are not looked at.
    ordinary: Vec<pollfd>,
    has_ordinary: bool,
}

impl Poll<'_> {
    fn new(fds: &mut [pollfd]) -> Poll<'_> {
        let sockets = socket::find_all(fds.iter().map(|entry| entry.fd));
        let mut has_ordinary = false;
        let entries = fds.iter().zip(&sockets).map(|(entry, socket)| {
            let fd = if socket.is_some() { -1 } else { entry.fd };
            has_ordinary |= fd >= 0;
            pollfd { fd, events: entry.events, revents: 0 }
        });
        let ordinary = entries.collect();
        Poll { fds, sockets, ordinary, has_ordinary }
    }

    /// What there is now. How many entries have something.
    fn look(&mut self) -> Result<usize, Errno> {
        if self.has_ordinary {
            kernel_poll(&mut self.ordinary, Some(Duration::ZERO))?;
        }
        let mut count = 0;
        for ((entry, socket), ordinary) in self.fds.iter_mut().zip(&self.sockets).zip(&self.ordinary) {
            entry.revents = match socket {
                Some(socket) => socket.look() & (entry.events | UNASKED),
                None => ordinary.revents,
            };
            count += usize::from(entry.revents != 0);
        }
        Ok(count)
    }

    /// Sleeps until one of the descriptors says something. False: the time is over.
    fn sleep(&self, limit: Option<Duration>) -> Result<bool, Errno> {
        let mut all: Vec<pollfd> = self.fds.to_vec();
        Ok(kernel_poll(&mut all, limit)? > 0)
    }
}

/// Waits until there is something, or the time is over (0).
fn poll(fds: &mut [pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let mut poll = Poll::new(fds);
    let mut begun = None;
    loop {
        let count = poll.look()?;
        if count > 0 || limit == Some(Duration::ZERO) {
            return Ok(count);
        }
        let waited = begun.get_or_insert_with(Instant::now).elapsed();
        let left = limit.map(|limit| limit.saturating_sub(waited));
        if left == Some(Duration::ZERO) {
            return Ok(0);
        }
        if waited > IMPATIENCE {
            poll.sleep(left)?;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int {
    minus_one(|| {
        let count = count as usize;
        if count > MOST {
            return Err(EINVAL);
        }
        let fds = match (fds.is_null(), count) {
            (_, 0) => &mut [],
            (true, _) => return Err(Errno(libc::EFAULT)),
            // SAFETY: the caller's entries.
            _ => unsafe { std::slice::from_raw_parts_mut(fds, count) },
        };
        let limit = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        Ok(poll(fds, limit)? as c_int)
    })
}

/// A set of select(2), which may be longer than `fd_set` says.
struct Set(*mut u64);

impl Set {
    const BITS: usize = u64::BITS as usize;

    /// # Safety
    /// The set is null or has room for `number`.
    unsafe fn contains(&self, number: usize) -> bool {
        // SAFETY: as the caller promises.
        !self.0.is_null() && unsafe { *self.0.add(number / Self::BITS) } & 1 << (number % Self::BITS) != 0
    }

    /// # Safety
    /// As above.
    unsafe fn put(&self, number: usize, is_in: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: as the caller promises.
        let word = unsafe { &mut *self.0.add(number / Self::BITS) };
        let bit = 1 << (number % Self::BITS);
        *word = if is_in { *word | bit } else { *word & !bit };
    }
}

/// What each of the three sets asks for, and what counts as the answer.
const OF_SETS: [(c_short, c_short); 3] =
    [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (POLLPRI, POLLPRI)];

/// # Safety
/// Each set is null or has room for `count` numbers.
unsafe fn select(count: usize, sets: &[Set; 3], limit: Option<Duration>) -> Result<c_int, Errno> {
    let mut fds = Vec::new();
    for number in 0..count {
        // SAFETY: as the caller promises.
        let asked = |(set, (asks, _)): (&Set, &(c_short, c_short))| unsafe { set.contains(number) }.then_some(*asks);
        let events = sets.iter().zip(&OF_SETS).filter_map(asked).fold(0, |all, asks| all | asks);
        if events != 0 {
            fds.push(pollfd { fd: number as c_int, events, revents: 0 });
        }
    }
    poll(&mut fds, limit)?;
    if fds.iter().any(|entry| entry.revents & POLLNVAL != 0) {
        return Err(socket::EBADF);
    }
    let mut found = 0;
    for entry in &fds {
        for (set, (asks, counts)) in sets.iter().zip(OF_SETS) {
            let is_in = entry.events & asks != 0 && entry.revents & counts != 0;
            // SAFETY: as the caller promises.
            unsafe { set.put(entry.fd as usize, is_in) };
            found += c_int::from(is_in);
        }
    }
    Ok(found)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *mut timeval,
) -> c_int {
    minus_one(|| {
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST).ok_or(EINVAL)?;
        // SAFETY: the caller's pointer.
        let limit = match unsafe { limit.as_ref() } {
            None => None,
            Some(limit) => {
                let seconds = u64::try_from(limit.tv_sec).map_err(|_| EINVAL)?;
                let micros = u64::try_from(limit.tv_usec).map_err(|_| EINVAL)?;
                Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
            }
        };
        let sets = [read, write, except].map(|set| Set(set.cast()));
        // SAFETY: the caller's sets.
        unsafe { select(count, &sets, limit) }
    })
}
