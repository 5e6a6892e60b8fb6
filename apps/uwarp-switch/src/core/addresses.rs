//! The addresses that all clients share.

use std::net::IpAddr;

use uwarp_wire::address::IpAddress;

/// The most addresses that clients share.
pub const MAX_ADDRESSES: usize = 256;

/// An address that clients cannot share, or one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignAddress(pub IpAddr);

/// The shared addresses.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// In the order in which they were given.
    all: Vec<IpAddress>,
    sorted: Vec<IpAddress>,
}

impl Addresses {
    pub(super) fn new(given: &[IpAddr]) -> Result<Addresses, ForeignAddress> {
        let mut all = Vec::new();
        for address in given {
            let own = IpAddress::from(*address);
            let is_host = !own.is_unspecified() && !own.is_multicast() && !address.is_loopback();
            if !is_host || all.len() == MAX_ADDRESSES {
                return Err(ForeignAddress(*address));
            }
            all.push(own);
        }
        let mut sorted = all.clone();
        sorted.sort_unstable();
        Ok(Addresses { all, sorted })
    }

    #[inline]
    pub(super) fn contains(&self, address: IpAddress) -> bool {
        self.sorted.binary_search(&address).is_ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = IpAddress> + '_ {
        self.all.iter().copied()
    }

    /// The first of one version of IP.
    pub(super) fn first(&self, ipv4: bool) -> Option<IpAddress> {
        self.iter().find(|own| own.is_ipv4() == ipv4)
    }
}
