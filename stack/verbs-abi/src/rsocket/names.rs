//! Addresses as programs give and get them: rgetsockname(3), rgetpeername(3).

use crate::abi::sockaddr;
use crate::cm::address;
use crate::errno::{EINVAL, Errno, minus_one};
use crate::rsocket::socket::{self, ENOTCONN, State};
use libc::{c_int, sockaddr_in, sockaddr_in6, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address.
///
/// # Errors
/// EINVAL: null, too short, or of another family than IPv4 and IPv6.
///
/// # Safety
/// `address` is null or points to `length` octets.
pub(crate) unsafe fn read(address: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Errno> {
    if address.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(EINVAL);
    }
    // SAFETY: the family is there.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    let least = match i32::from(family) {
        libc::AF_INET => size_of::<sockaddr_in>(),
        // Older ones end before the scope.
        libc::AF_INET6 => size_of::<sockaddr_in6>() - size_of::<u32>(),
        _ => return Err(EINVAL),
    };
    if (length as usize) < least {
        return Err(EINVAL);
    }
    let mut whole = [0_u64; size_of::<sockaddr_in6>().div_ceil(8)];
    // SAFETY: as the caller promises, and the array is as long as the longer of the two; a copy is aligned and whole.
    unsafe {
        let count = (length as usize).min(size_of::<sockaddr_in6>());
        std::ptr::copy_nonoverlapping(address.cast::<u8>(), whole.as_mut_ptr().cast(), count);
        address::read(whole.as_ptr().cast())
    }
}

/// Writes an address, as much of it as there is room for. A socket of IPv6 has all its addresses in that form.
///
/// # Errors
/// EFAULT: no place, or none for the length.
///
/// # Safety
/// `length` is null or valid, and `out` is null or points to as many octets as it says.
pub(crate) unsafe fn write(
    address: SocketAddr,
    family: i32,
    out: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    let address = match address.ip() {
        IpAddr::V4(ip) if family == libc::AF_INET6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address,
    };
    let (storage, whole) = address::storage(address);
    // SAFETY: as the caller promises.
    unsafe {
        let room = length.as_mut().ok_or(Errno(libc::EFAULT))?;
        let count = whole.min(*room as usize);
        if count > 0 && out.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if count > 0 {
            std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), out.cast(), count);
        }
        *room = whole as socklen_t;
    }
    Ok(())
}

/// The address that stands for all of a family.
pub(crate) fn any_of(family: i32) -> SocketAddr {
    let ip: IpAddr = if family == libc::AF_INET6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

/// # Safety
/// As for [`write`].
unsafe fn name(
    number: c_int,
    out: *mut sockaddr,
    length: *mut socklen_t,
    which: impl FnOnce(&State) -> Result<SocketAddr, Errno>,
) -> c_int {
    minus_one(|| {
        let socket = socket::find(number)?;
        let state = socket.lock();
        // SAFETY: as the caller promises.
        unsafe { write(which(&state)?, state.family, out, length)? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockname(number: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let own = |state: &State| Ok(state.local.unwrap_or_else(|| any_of(state.family)));
    // SAFETY: the caller's pointers.
    unsafe { name(number, out, length, own) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rgetpeername(number: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let peer = |state: &State| match state.stage {
        socket::Stage::Open(_) => state.peer.ok_or(ENOTCONN),
        _ => Err(ENOTCONN),
    };
    // SAFETY: the caller's pointers.
    unsafe { name(number, out, length, peer) }
}
