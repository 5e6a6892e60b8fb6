//! The networks of clients. The clients of one have the same addresses, and share the TCP ports of these.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use uwarp_ring::cable::{OWNER_NUMBERS, OwnerTable};
use uwarp_wire::address::IpAddress;

use super::ports::{PortTable, ReserveError};
use super::{ClientId, MAX_CLIENTS};

/// The most addresses of all networks together.
pub const MAX_ADDRESSES: usize = 512;
/// The most networks, the switch's own among them. Their numbers are octets.
pub const MAX_NETWORKS: usize = 256;

const _: () = assert!(MAX_NETWORKS == 1 << u8::BITS);

/// An address that a network cannot have: it is no host's, another network's, or one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignAddress(pub IpAddr);

/// A network's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId(u8);

impl NetworkId {
    /// The switch's own network, which is always there.
    pub const OWN: NetworkId = NetworkId(0);

    /// Every network's number.
    pub fn all() -> impl Iterator<Item = NetworkId> {
        (0..=u8::MAX).map(NetworkId)
    }

    /// The number in the published tables of ports.
    pub fn number(self) -> u8 {
        self.0
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A network.
#[derive(Debug, Default)]
struct Network {
    /// In the order in which they were given.
    addresses: Vec<IpAddress>,
    ports: PortTable,
}

/// All networks.
#[derive(Debug)]
pub struct Networks {
    all: [Option<Box<Network>>; MAX_NETWORKS],
    /// All addresses, in their order.
    sorted: Vec<(IpAddress, NetworkId)>,
    /// The network of each client. Of a place without a client, it means nothing.
    homes: [NetworkId; MAX_CLIENTS],
    /// How many numbers were given. A client does not get its predecessor's, whose segments may be on their way.
    numbers: usize,
    /// The tables that clients read, if there are any that do.
    published: Option<Arc<OwnerTable>>,
}

impl Networks {
    /// The switch's own network with these addresses, and no other.
    pub(super) fn new(own: &[IpAddr]) -> Result<Networks, ForeignAddress> {
        let mut networks = Networks {
            all: [const { None }; MAX_NETWORKS],
            sorted: Vec::new(),
            homes: [NetworkId::OWN; MAX_CLIENTS],
            numbers: 0,
            published: None,
        };
        networks.all[0] = Some(Box::default());
        networks.set_addresses(NetworkId::OWN, own)?;
        Ok(networks)
    }

    /// Gives a network other addresses; it begins with its first and ends with its last one.
    pub(super) fn set_addresses(&mut self, id: NetworkId, given: &[IpAddr]) -> Result<(), ForeignAddress> {
        let mut sorted = self.sorted.clone();
        sorted.retain(|(_, network)| *network != id);
        for address in given {
            let own = IpAddress::from(*address);
            let is_host = !own.is_unspecified() && !own.is_multicast() && !address.is_loopback();
            let is_taken = self.network_of(own).is_some_and(|network| network != id);
            if !is_host || is_taken || sorted.len() == MAX_ADDRESSES {
                return Err(ForeignAddress(*address));
            }
            sorted.push((own, id));
        }
        sorted.sort_unstable();
        self.sorted = sorted;
        let place = &mut self.all[id.index()];
        if given.is_empty() && id != NetworkId::OWN {
            *place = None;
            return Ok(());
        }
        let published = &self.published;
        let network = place.get_or_insert_with(|| {
            let mut network = Box::<Network>::default();
            if let Some(table) = published {
                table.clear(id.number());
                network.ports.publish(Arc::clone(table), id.number());
            }
            network
        });
        network.addresses = given.iter().map(|address| IpAddress::from(*address)).collect();
        Ok(())
    }

    /// Has clients read in tables who owns which port. There is no client yet.
    pub(super) fn publish(&mut self, table: OwnerTable) {
        let table = Arc::new(table);
        for id in NetworkId::all() {
            if let Some(network) = &mut self.all[id.index()] {
                network.ports.publish(Arc::clone(&table), id.number());
            }
        }
        self.published = Some(table);
    }

    /// The network that has an address.
    #[inline]
    pub fn network_of(&self, address: IpAddress) -> Option<NetworkId> {
        let found = self.sorted.binary_search_by(|(own, _)| own.cmp(&address)).ok()?;
        Some(self.sorted[found].1)
    }

    /// Whether a client's network has an address.
    #[inline]
    pub fn has(&self, client: ClientId, address: IpAddress) -> bool {
        self.network_of(address).is_some_and(|network| self.homes.get(client.place()) == Some(&network))
    }

    /// The addresses of the switch's own network.
    pub(super) fn own(&self) -> impl Iterator<Item = IpAddress> + '_ {
        self.all[0].iter().flat_map(|own| own.addresses.iter().copied())
    }

    /// The first address of one version of IP in a client's network.
    pub(super) fn first(&self, client: ClientId, ipv4: bool) -> Option<IpAddress> {
        let network = self.home(client)?;
        network.addresses.iter().copied().find(|own| own.is_ipv4() == ipv4)
    }

    fn home(&self, client: ClientId) -> Option<&Network> {
        self.all[self.homes.get(client.place())?.index()].as_deref()
    }

    fn home_mut(&mut self, client: ClientId) -> Option<&mut Network> {
        self.all[self.homes.get(client.place())?.index()].as_deref_mut()
    }

    /// The client that owns a port at an address.
    #[inline]
    pub fn owner(&self, address: IpAddress, port: u16) -> Option<ClientId> {
        let network = self.all[self.network_of(address)?.index()].as_ref()?;
        network.ports.owner(address, port)
    }

    /// The number of a client in the published tables.
    pub fn number(&self, client: ClientId) -> Option<u16> {
        self.home(client)?.ports.number(client)
    }

    /// The block of ports of a client.
    pub fn block(&self, client: ClientId) -> Option<RangeInclusive<u16>> {
        self.home(client)?.ports.block(client)
    }

    /// The ports that a client has reserved. The uplink has none.
    pub fn reserved(&self, client: ClientId) -> Vec<u16> {
        self.home(client).map(|home| home.ports.reserved(client).into_iter().collect()).unwrap_or_default()
    }

    /// A number that no client has.
    fn new_number(&mut self) -> u16 {
        loop {
            let number = (self.numbers % OWNER_NUMBERS) as u16;
            let is_new = self.numbers < OWNER_NUMBERS;
            self.numbers += 1;
            if ClientId::all().any(|client| self.number(client) == Some(number)) {
                continue;
            }
            if let Some(table) = self.published.as_ref().filter(|_| !is_new) {
                let networks = NetworkId::all().filter(|id| self.all[id.index()].is_some());
                networks.for_each(|id| table.forget(id.number(), number));
            }
            return number;
        }
    }

    /// Lets a client into a network and gives it a block of ports; `None` if its place is taken, or there is no such
    /// network.
    pub(super) fn enter(&mut self, client: ClientId, id: NetworkId) -> Option<RangeInclusive<u16>> {
        if self.block(client).is_some() || self.all[id.index()].is_none() {
            return None;
        }
        let number = self.new_number();
        self.homes[client.place()] = id;
        self.home_mut(client)?.ports.enter(client, number)
    }

    /// Frees everything that a client holds.
    pub(super) fn leave(&mut self, client: ClientId) {
        if let Some(home) = self.home_mut(client) {
            home.ports.leave(client);
        }
    }

    /// Reserves a port at one address of the client's network, or at all.
    pub(super) fn reserve(
        &mut self,
        client: ClientId,
        port: u16,
        address: Option<IpAddress>,
    ) -> Result<(), ReserveError> {
        self.home_mut(client).ok_or(ReserveError::Limit)?.ports.reserve(client, port, address)
    }

    /// Gives a port back that the client has reserved.
    pub(super) fn release(&mut self, client: ClientId, port: u16, address: Option<IpAddress>) {
        if let Some(home) = self.home_mut(client) {
            home.ports.release(client, port, address);
        }
    }
}
