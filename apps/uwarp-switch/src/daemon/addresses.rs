//! The host's addresses, now and whenever they change.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use uwarp::config::InterfaceAddress;
use uwarp::switch::host_addresses;

use crate::core::MAX_ADDRESSES;

/// What programs get on a host without any address: they reach each other by it, and by 127.0.0.1 and ::1.
const ALONE: [&str; 2] = ["10.77.0.1/24", "fd77::1/64"];
/// RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of rtnetlink(7).
const CHANGES: u32 = 0x10 | 0x100;

/// The addresses of the host's interfaces, without loopback and link-local ones.
#[derive(Debug)]
pub(super) struct HostAddresses {
    pub(super) taken: Vec<InterfaceAddress>,
    left_out: Vec<IpAddr>,
    /// What the kernel announces changes on; `None` where it does not.
    changes: Option<OwnedFd>,
}

impl HostAddresses {
    /// Reads them, and follows their changes.
    pub(super) fn follow() -> anyhow::Result<HostAddresses> {
        let changes = announcements();
        if let Err(error) = &changes {
            tracing::warn!(%error, "the host's addresses are those of now: their changes cannot be followed");
        }
        let mut addresses = HostAddresses { taken: Vec::new(), left_out: Vec::new(), changes: changes.ok() };
        addresses.read()?;
        Ok(addresses)
    }

    /// What is readable when they may have changed.
    pub(super) fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// Reads them again. True if others are taken now.
    pub(super) fn have_changed(&mut self) -> anyhow::Result<bool> {
        if let Some(changes) = &self.changes {
            let mut octets = [0; 8192];
            // What they are is read below. An overflow says that there were many.
            while matches!(recv(changes, &mut octets, RecvFlags::DONTWAIT), Ok(_) | Err(Errno::INTR | Errno::NOBUFS)) {}
        }
        let former = std::mem::take(&mut self.taken);
        match self.read() {
            Ok(()) => Ok(self.taken != former),
            Err(error) => {
                self.taken = former;
                Err(error)
            }
        }
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let mut found = host_addresses().context("the host's addresses cannot be read")?;
        let too_many = found.split_off(found.len().min(MAX_ADDRESSES));
        let left_out: Vec<IpAddr> = too_many.iter().map(|own| own.address).collect();
        if left_out != self.left_out && !left_out.is_empty() {
            let names: Vec<String> = left_out.iter().map(ToString::to_string).collect();
            tracing::warn!(
                "the host has more than {MAX_ADDRESSES} addresses, and these are left out: {} (--address chooses)",
                names.join(", ")
            );
        }
        self.left_out = left_out;
        if found.is_empty() {
            found = ALONE.iter().filter_map(|text| text.parse().ok()).collect();
        }
        self.taken = found;
        Ok(())
    }
}

fn announcements() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The default protocol is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, CHANGES))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_an_address_that_clients_can_have() {
        let addresses = HostAddresses::follow().unwrap().taken;
        assert!(!addresses.is_empty());
        // As a configuration would accept it.
        assert!(addresses.iter().all(|own| own.to_string().parse::<InterfaceAddress>().is_ok()), "{addresses:?}");
    }
}
