//! `rdma_getaddrinfo`.

use crate::abi::*;
use crate::cm::address;
use crate::errno::{EINVAL, Errno, minus_one, nothing};
use crate::handle::{Handle, object};
use libc::{c_char, c_int, sockaddr_storage};
use std::net::SocketAddr;

/// The addresses that an entry of the answer points to.
struct Answer {
    _addresses: [Option<Box<sockaddr_storage>>; 2],
}
object!(Answer: rdma_addrinfo, b"ai");

/// What the system says about a name and a service.
///
/// # Safety
/// The strings are null or end in a zero.
unsafe fn system_lookup(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<SocketAddr, Errno> {
    // SAFETY: integers and pointers, for which zeroes are valid.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_socktype = libc::SOCK_STREAM;
    wanted.ai_family = hints.ai_family;
    let flags = hints.ai_flags as u32;
    if flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut list = std::ptr::null_mut();
    // SAFETY: the caller's strings; the list is freed below.
    unsafe {
        if libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) != 0 {
            return Err(Errno(libc::ENODATA));
        }
        let first = list.as_ref().ok_or(Errno(libc::ENODATA)).and_then(|first| address::read(first.ai_addr.cast()));
        libc::freeaddrinfo(list);
        first
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    minus_one(|| {
        crate::process::process()?;
        // SAFETY: the caller's pointers.
        unsafe {
            let out = out.as_mut().ok_or(EINVAL)?;
            let none = rdma_addrinfo::default();
            let hints = hints.as_ref().unwrap_or(&none);
            let is_passive = hints.ai_flags as u32 & RAI_PASSIVE != 0;
            let read = |address: *mut sockaddr| if address.is_null() { None } else { address::read(address).ok() };
            let (mut source, mut destination) = (read(hints.ai_src_addr), read(hints.ai_dst_addr));
            if !node.is_null() || !service.is_null() {
                let found = system_lookup(node, service, hints)?;
                if is_passive {
                    source = Some(found);
                } else {
                    destination = Some(found);
                }
            }
            if source.is_none() && destination.is_none() {
                return Err(EINVAL);
            }
            let family = destination
                .or(source)
                .map_or(0, |address| if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
            let kept = |address: Option<SocketAddr>| {
                let (mut boxed, mut length) = (None, 0);
                if let Some(address) = address {
                    let (storage, octets) = address::storage(address);
                    (boxed, length) = (Some(Box::new(storage)), octets);
                }
                (boxed, length)
            };
            let (mut source, source_length) = kept(source);
            let (mut destination, destination_length) = kept(destination);
            let pointer = |boxed: &mut Option<Box<sockaddr_storage>>| {
                boxed.as_mut().map_or(std::ptr::null_mut(), |boxed| (&raw mut **boxed).cast())
            };
            let public = rdma_addrinfo {
                ai_flags: hints.ai_flags,
                ai_family: family,
                ai_qp_type: IBV_QPT_RC as c_int,
                ai_port_space: RDMA_PS_TCP as c_int,
                ai_src_len: source_length as u32,
                ai_src_addr: pointer(&mut source),
                ai_dst_len: destination_length as u32,
                ai_dst_addr: pointer(&mut destination),
                ..rdma_addrinfo::default()
            };
            *out = Handle::create(public, Answer { _addresses: [source, destination] });
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(answer: *mut rdma_addrinfo) {
    nothing(|| {
        // SAFETY: the caller's pointer.
        unsafe { Handle::<Answer>::destroy(answer).map(drop) }
    });
}
