//! Interfaces of the host, as the kernel numbers them.

use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// The number of the interface that has an address; 0 if none has, as it may be for one that was chosen for a switch.
pub(crate) fn index_of(wanted: IpAddr) -> u32 {
    let mut list = null_mut();
    // SAFETY: a place for the list, which is freed below; the parts that are looked at belong to it.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return 0;
        }
        let mut index = 0;
        let mut next = list;
        while let Some(entry) = next.as_ref() {
            let address = match entry.ifa_addr.as_ref().map(|address| i32::from(address.sa_family)) {
                Some(AF_INET) => {
                    let address = entry.ifa_addr.cast::<sockaddr_in>().read_unaligned();
                    Some(IpAddr::from(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))))
                }
                Some(AF_INET6) => {
                    let address = entry.ifa_addr.cast::<sockaddr_in6>().read_unaligned();
                    Some(IpAddr::from(Ipv6Addr::from(address.sin6_addr.s6_addr)))
                }
                _ => None,
            };
            if address == Some(wanted) {
                index = libc::if_nametoindex(entry.ifa_name);
                break;
            }
            next = entry.ifa_next;
        }
        libc::freeifaddrs(list);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_address() {
        // SAFETY: a name of C.
        let loopback = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        assert_eq!(index_of(Ipv4Addr::LOCALHOST.into()), loopback);
        // That of documentation is nobody's (RFC 5737).
        assert_eq!(index_of(Ipv4Addr::new(192, 0, 2, 1).into()), 0);
    }
}
