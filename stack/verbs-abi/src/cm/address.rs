//! Addresses: between C's and Rust's, and which of them are ours.

use crate::abi::{rdma_addr, sockaddr};
use crate::errno::{EINVAL, Errno};
use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use uwarp::Context;

/// Reads an address of C.
///
/// # Safety
/// `address` is null or points to as many octets as its family has.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller promises.
    unsafe {
        let family = address.as_ref().ok_or(EINVAL)?.sa_family;
        match i32::from(family) {
            AF_INET => {
                let address = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
            }
            AF_INET6 => {
                let address = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                Ok(SocketAddrV6::new(ip, u16::from_be(address.sin6_port), 0, address.sin6_scope_id).into())
            }
            _ => Err(EINVAL),
        }
    }
}

/// An address as C has it, with its length.
pub(crate) fn storage(address: SocketAddr) -> (sockaddr_storage, usize) {
    // SAFETY: integers and arrays of them, for which zeroes are valid; the parts written are smaller than the whole.
    unsafe {
        let mut storage: sockaddr_storage = std::mem::zeroed();
        match address {
            SocketAddr::V4(address) => {
                let out = (&raw mut storage).cast::<sockaddr_in>();
                (*out).sin_family = AF_INET as u16;
                (*out).sin_port = address.port().to_be();
                (*out).sin_addr.s_addr = u32::from(*address.ip()).to_be();
                (storage, size_of::<sockaddr_in>())
            }
            SocketAddr::V6(address) => {
                let out = (&raw mut storage).cast::<sockaddr_in6>();
                (*out).sin6_family = AF_INET6 as u16;
                (*out).sin6_port = address.port().to_be();
                (*out).sin6_addr.s6_addr = address.ip().octets();
                (*out).sin6_scope_id = address.scope_id();
                (storage, size_of::<sockaddr_in6>())
            }
        }
    }
}

/// Which end of a route.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Source,
    Destination,
}

/// Writes an address where the program looks for it.
pub(crate) fn write(route: &mut rdma_addr, end: End, address: SocketAddr) {
    let (storage, _) = storage(address);
    let place: *mut sockaddr_storage = match end {
        End::Source => (&raw mut route.__bindgen_anon_1).cast(),
        End::Destination => (&raw mut route.__bindgen_anon_2).cast(),
    };
    // SAFETY: both unions are as large as a sockaddr_storage.
    unsafe { place.write_unaligned(storage) };
}

/// Whether the context has the address.
pub(crate) fn is_own(context: &Context, ip: IpAddr) -> bool {
    context.addresses().iter().any(|own| own.address == ip)
}

/// The context's first address of the same version of IP.
pub(crate) fn own_like(context: &Context, ip: IpAddr) -> Option<IpAddr> {
    context.addresses().into_iter().map(|own| own.address).find(|own| own.is_ipv4() == ip.is_ipv4())
}

/// An address as the context knows it: those of the loop-back interface stand for its own.
pub(crate) fn without_loopback(context: &Context, address: SocketAddr) -> Option<SocketAddr> {
    if !address.ip().is_loopback() {
        return Some(address);
    }
    own_like(context, address.ip()).map(|own| SocketAddr::new(own, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["10.1.2.3:7", "[fd00::1]:8", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, _) = storage(address);
            // SAFETY: a whole sockaddr_storage.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
        }
        // SAFETY: null is allowed.
        assert!(unsafe { read(std::ptr::null()) }.is_err());
    }
}
