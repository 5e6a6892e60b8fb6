//! Writing into memory of the peer's program: riomap(3), riounmap(3), riowrite(3).

use crate::errno::{EINVAL, Errno, minus_one};
use crate::rsocket::socket::{self, Stage, Wait};
use crate::rsocket::transfer::{is_open, octets, sending, waits};
use crate::verbs::mapped;
use libc::{c_int, c_void, off_t, size_t};
use std::ptr::NonNull;
use uwarp::{Access, RegionBuffer};

#[unsafe(no_mangle)]
unsafe extern "C" fn riomap(
    number: c_int,
    memory: *mut c_void,
    length: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mut mapped = offset;
    let result = minus_one(|| {
        let socket = socket::find(number)?;
        let start = NonNull::new(memory.cast::<u8>()).ok_or(EINVAL)?;
        if protection & !libc::PROT_WRITE != 0 || length == 0 || u32::try_from(length).is_err() {
            return Err(EINVAL);
        }
        let is_for_peer = protection & libc::PROT_WRITE != 0;
        mapped::check(memory.addr(), length, true)?;
        let mut state = socket.lock();
        let Stage::Open(stream) = &mut state.stage else { return Err(EINVAL) };
        // SAFETY: the caller's memory, which stays until it is unmapped or the rsocket is closed.
        let buffer = unsafe { RegionBuffer::raw(start, length) };
        let access = if is_for_peer { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let region = stream.domain.register(buffer, access).map_err(|unregistered| Errno::from(unregistered.error))?;
        if mapped == -1 {
            mapped = memory.addr() as off_t;
        }
        if is_for_peer {
            stream.maps.add(mapped as u64, region)?;
        } else {
            stream.maps.add_local(region);
        }
        // The peer is told now if it can be.
        state.progress(&socket.signal);
        state.settle(&socket.signal, None);
        Ok(0)
    });
    if result < 0 { -1 } else { mapped }
}

#[unsafe(no_mangle)]
extern "C" fn riounmap(number: c_int, memory: *mut c_void, length: size_t) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        let removed = match &mut socket.lock().stage {
            Stage::Open(stream) => stream.maps.remove(memory.addr() as u64, length),
            _ => None,
        };
        // Waits until no engine uses it, without the lock.
        removed.map(|region| drop(region.deregister_buffer())).ok_or(EINVAL).map(|()| 0)
    })
}

/// Returns how many octets were written, which are fewer where no map of the peer's goes on, or -1.
#[unsafe(no_mangle)]
unsafe extern "C" fn riowrite(
    number: c_int,
    from: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    sending(number, |socket, done| {
        // SAFETY: the caller's octets.
        let all = unsafe { octets(from, count)? };
        let written = socket.until(waits(flags), |state| {
            loop {
                let stream = match is_open(state) {
                    Ok(Some(stream)) => stream,
                    Ok(None) => return None,
                    Err(errno) => return Some(Err(errno)),
                };
                let rest = &all[*done..];
                let at = (offset as u64).wrapping_add(*done as u64);
                let Some(map) = stream.map_at(at).filter(|_| !rest.is_empty()) else { return Some(Ok(())) };
                let within = at - map.offset;
                let most = (u64::from(map.memory.length) - within).min(stream.direct_room() as u64);
                if most == 0 {
                    return None;
                }
                let part = &rest[..rest.len().min(most as usize)];
                stream.write_directly(part, map.memory.key, map.memory.address.wrapping_add(within));
                *done += part.len();
            }
        });
        // The program may look at memory next, and call nothing: the engine's thread is to take over.
        socket.lock().settle(&socket.signal, Some(Wait::ToReceive));
        written
    }) as size_t
}
