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

/// What the system says about a name and a service, or getaddrinfo(3)'s number of why it says nothing.
///
/// # Safety
/// The strings are null or end in a zero.
unsafe fn system_lookup(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<SocketAddr, c_int> {
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
        let refused = libc::getaddrinfo(node, service, &raw const wanted, &raw mut list);
        if refused != 0 {
            return Err(refused);
        }
        let first = list.as_ref().and_then(|first| address::read(first.ai_addr.cast()).ok());
        libc::freeaddrinfo(list);
        first.ok_or(libc::EAI_FAMILY)
    }
}

/// An answer to what a program asks, or getaddrinfo(3)'s number of why there is none.
///
/// # Errors
/// EINVAL: it asks for nothing.
///
/// # Safety
/// The strings are null or end in a zero, and `hints` is null or the program's.
pub(crate) unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<Result<*mut rdma_addrinfo, c_int>, Errno> {
    // SAFETY: the caller's pointers.
    unsafe {
        let none = rdma_addrinfo::default();
        let hints = hints.as_ref().unwrap_or(&none);
        let is_passive = hints.ai_flags as u32 & RAI_PASSIVE != 0;
        let read = |address: *mut sockaddr| if address.is_null() { None } else { address::read(address).ok() };
        let (mut source, mut destination) = (read(hints.ai_src_addr), read(hints.ai_dst_addr));
        if !node.is_null() || !service.is_null() {
            let found = match system_lookup(node, service, hints) {
                Ok(found) => found,
                // Programs give it to gai_strerror(3).
                Err(refused) => return Ok(Err(refused)),
            };
            if is_passive {
                source = Some(found);
            } else {
                destination = Some(found);
            }
        }
        if source.is_none() && destination.is_none() {
            return Err(EINVAL);
        }
        let family =
            destination.or(source).map_or(0, |address| if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
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
        let or = |wanted: c_int, usual: u32| if wanted == 0 { usual as c_int } else { wanted };
        let public = rdma_addrinfo {
            ai_flags: hints.ai_flags,
            ai_family: family,
            ai_qp_type: or(hints.ai_qp_type, IBV_QPT_RC),
            ai_port_space: or(hints.ai_port_space, RDMA_PS_TCP),
            ai_src_len: source_length as u32,
            ai_src_addr: pointer(&mut source),
            ai_dst_len: destination_length as u32,
            ai_dst_addr: pointer(&mut destination),
            ..rdma_addrinfo::default()
        };
        Ok(Ok(Handle::create(public, Answer { _addresses: [source, destination] })))
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
            match look_up(node, service, hints)? {
                Ok(answer) => *out = answer,
                // Programs give it to gai_strerror(3).
                Err(refused) => return Ok(refused),
            }
        }
        Ok(0)
    })
}

/// Frees an answer.
///
/// # Errors
/// EINVAL: it is none.
pub(crate) fn free(answer: *mut rdma_addrinfo) -> Result<(), Errno> {
    // SAFETY: the caller's pointer.
    unsafe { Handle::<Answer>::destroy(answer).map(drop) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(answer: *mut rdma_addrinfo) {
    nothing(|| free(answer));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[test]
    fn an_answer_has_what_was_asked_for_and_a_failure_the_number_of_getaddrinfo() {
        crate::misuse::configure();
        let mut answer = null_mut();
        // SAFETY: strings that end in a zero, and structures on the stack.
        unsafe {
            let flags = RAI_NUMERICHOST as c_int;
            let mut hints = rdma_addrinfo { ai_flags: flags, ..rdma_addrinfo::default() };
            let node = c"a-name".as_ptr();
            assert_eq!(rdma_getaddrinfo(node, null_mut(), &raw const hints, &raw mut answer), libc::EAI_NONAME);
            let node = c"10.0.0.2".as_ptr();
            assert_eq!(rdma_getaddrinfo(node, c"7471".as_ptr(), &raw const hints, &raw mut answer), 0);
            let found = &*answer;
            assert_eq!((found.ai_qp_type, found.ai_port_space), (IBV_QPT_RC as c_int, RDMA_PS_TCP as c_int));
            rdma_freeaddrinfo(answer);
            (hints.ai_qp_type, hints.ai_port_space) = (IBV_QPT_UD as c_int, RDMA_PS_UDP as c_int);
            assert_eq!(rdma_getaddrinfo(node, c"7471".as_ptr(), &raw const hints, &raw mut answer), 0);
            let found = &*answer;
            assert_eq!((found.ai_qp_type, found.ai_port_space), (IBV_QPT_UD as c_int, RDMA_PS_UDP as c_int));
            // There is nothing but TCP.
            let mut id = null_mut();
            assert_eq!(crate::exports::rdma_create_ep(&raw mut id, answer, null_mut(), null_mut()), -1);
            assert_eq!(crate::testing::errno(), libc::EOPNOTSUPP);
            rdma_freeaddrinfo(answer);
        }
    }
}
