//! Who owns which TCP port of a network.
//!
//! A client gets a block of the upper ports when it comes: its connections leave from there, and "any free port" is one
//! of them. The first clients get the largest blocks, and the more there are, the smaller a new one's is: the smallest
//! block is kept for each client that may still come. A client may also reserve other ports, up to a limit: at one of
//! the network's addresses or at all, if nobody else has the port there. A port outside the client's block is refused
//! if it would take what is kept.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use uwarp_ring::cable::{Owner, OwnerTable};
use uwarp_wire::address::IpAddress;

use super::{ClientId, MAX_CLIENTS};

/// Ports of the smallest block, by which the upper ports are counted.
pub const LEAST_BLOCK: u16 = 64;
/// Ports of the largest block.
pub const MOST_BLOCK: u16 = 1024;
/// The ports that are given out in blocks. The usual ports of RDMA programs lie below.
pub const EPHEMERAL: RangeInclusive<u16> = 24_576..=u16::MAX;
/// The most ports that one client may reserve, counted at each address.
pub const MAX_RESERVED: usize = 512;

const NOBODY: u16 = u16::MAX;
/// Several clients have the port, each at addresses of its own.
const SEVERAL: u16 = NOBODY - 1;
/// The smallest blocks.
const BLOCKS: usize = (u16::MAX as usize + 1 - *EPHEMERAL.start() as usize) / LEAST_BLOCK as usize;
/// A new client gets this part of what nobody has and nobody is kept.
const SHARE: usize = 8;

const _: () = assert!(BLOCKS > MAX_CLIENTS && MAX_CLIENTS < SEVERAL as usize);

/// Why a port cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// Another client owns it.
    Taken,
    /// The client has [`MAX_RESERVED`] ports.
    Limit,
    /// It is kept for clients that may still come.
    Kept,
}

/// What one client holds.
#[derive(Debug)]
struct Holding {
    /// The client's number in the published table.
    number: u16,
    block: RangeInclusive<u16>,
    /// Each at one address, or at all.
    reserved: BTreeSet<(u16, Option<IpAddress>)>,
}

impl Holding {
    /// Where a port is reserved.
    fn at(&self, port: u16) -> impl Iterator<Item = Option<IpAddress>> {
        self.reserved.range((port, None)..).take_while(move |(other, _)| *other == port).map(|(_, address)| *address)
    }
}

/// The table of a network's ports.
#[derive(Debug)]
pub(super) struct PortTable {
    owners: Box<[u16; 1 << 16]>,
    /// The owners of the ports of [`SEVERAL`], and their addresses.
    several: HashMap<u16, Vec<(IpAddress, ClientId)>>,
    holdings: [Option<Holding>; MAX_CLIENTS],
    /// Where the search for a block begins. A new client does not get its predecessor's ports, to which segments may be
    /// on their way.
    next_block: usize,
    /// The tables that clients read, if there are any that do, and the network's number there.
    published: Option<(Arc<OwnerTable>, u8)>,
}

/// The ports of `count` smallest blocks, from one with this number on.
fn blocks(number: usize, count: usize) -> RangeInclusive<u16> {
    let first = EPHEMERAL.start() + number as u16 * LEAST_BLOCK;
    first..=first + (count as u16 * LEAST_BLOCK - 1)
}

impl Default for PortTable {
    fn default() -> Self {
        PortTable {
            owners: Box::new([NOBODY; 1 << 16]),
            several: HashMap::new(),
            holdings: [const { None }; MAX_CLIENTS],
            next_block: 0,
            published: None,
        }
    }
}

impl PortTable {
    /// Has clients read in tables who owns which port of the network with this number. Nobody owns one yet.
    pub(super) fn publish(&mut self, table: Arc<OwnerTable>, network: u8) {
        self.published = Some((table, network));
    }

    /// The number of a client in the published tables.
    pub(super) fn number(&self, client: ClientId) -> Option<u16> {
        Some(self.holdings.get(client.place())?.as_ref()?.number)
    }

    /// Sets the owner of a port.
    fn set(&mut self, port: u16, place: u16) {
        let before = std::mem::replace(&mut self.owners[usize::from(port)], place);
        let Some((table, network)) = self.published.as_ref().filter(|_| before != place) else { return };
        let number = |place| self.number(ClientId(place));
        table.set(
            *network,
            port,
            match (place, before) {
                (SEVERAL, _) => Owner::Several,
                // What the last owner has sent may still be under way.
                (NOBODY, before) => number(before).map_or(Owner::Nobody, Owner::Past),
                (place, _) => number(place).map_or(Owner::Nobody, Owner::One),
            },
        );
    }

    /// The client that owns a port at an address. A port that one client alone has is its at all of them.
    #[inline]
    pub(super) fn owner(&self, address: IpAddress, port: u16) -> Option<ClientId> {
        match self.owners[usize::from(port)] {
            NOBODY => None,
            SEVERAL => self.owner_among_several(address, port),
            place => Some(ClientId(place)),
        }
    }

    #[cold]
    fn owner_among_several(&self, address: IpAddress, port: u16) -> Option<ClientId> {
        let owners = self.several.get(&port)?;
        owners.iter().find(|(own, _)| *own == address).map(|(_, client)| *client)
    }

    /// The ports that a client has reserved.
    pub(super) fn reserved(&self, client: ClientId) -> BTreeSet<u16> {
        let holding = self.holdings.get(client.place()).and_then(Option::as_ref);
        holding.into_iter().flat_map(|holding| holding.reserved.iter().map(|(port, _)| *port)).collect()
    }

    /// The block of a client.
    pub(super) fn block(&self, client: ClientId) -> Option<RangeInclusive<u16>> {
        Some(self.holdings.get(client.place())?.as_ref()?.block.clone())
    }

    fn is_untouched(&self, mut ports: RangeInclusive<u16>) -> bool {
        ports.all(|port| self.owners[usize::from(port)] == NOBODY)
    }

    /// Smallest blocks that nobody has anything of, beyond those kept for the clients that may still come.
    fn spare(&self) -> usize {
        let untouched = (0..BLOCKS).filter(|number| self.is_untouched(blocks(*number, 1))).count();
        untouched.saturating_sub(self.holdings.iter().filter(|holding| holding.is_none()).count())
    }

    /// The place and the size of a new client's block, in smallest blocks.
    fn new_block(&self) -> Option<(usize, usize)> {
        let share = (self.spare() / SHARE).clamp(1, usize::from(MOST_BLOCK / LEAST_BLOCK));
        let sizes = (0..=share.ilog2()).rev().map(|power| 1 << power);
        // The smallest is there: `spare` keeps one for each place.
        sizes.filter_map(|size| self.free_block(size).map(|number| (number, size))).next()
    }

    fn free_block(&self, size: usize) -> Option<usize> {
        let (count, first) = (BLOCKS / size, self.next_block.div_ceil(size));
        let mut numbers = (0..count).map(|step| (first + step) % count * size);
        numbers.find(|number| self.is_untouched(blocks(*number, size)))
    }

    /// Gives a new client with this number its block; `None` if the place is taken.
    pub(super) fn enter(&mut self, client: ClientId, number: u16) -> Option<RangeInclusive<u16>> {
        if self.holdings[client.place()].is_some() {
            return None;
        }
        let (first, size) = self.new_block()?;
        self.next_block = (first + size) % BLOCKS;
        let block = blocks(first, size);
        self.holdings[client.place()] = Some(Holding { number, block: block.clone(), reserved: BTreeSet::new() });
        block.clone().for_each(|port| self.set(port, client.0));
        Some(block)
    }

    /// Frees everything that a client holds.
    pub(super) fn leave(&mut self, client: ClientId) {
        let Some(holding) = &mut self.holdings[client.place()] else { return };
        let (block, reserved) = (holding.block.clone(), std::mem::take(&mut holding.reserved));
        // The block is nobody's from here on, and the number still the client's.
        holding.block = RangeInclusive::new(1, 0);
        block.for_each(|port| self.set(port, NOBODY));
        reserved.into_iter().for_each(|(port, _)| self.settle(port));
        self.holdings[client.place()] = None;
    }

    /// Reserves a port at one address or at all. What the client has is granted again.
    ///
    /// # Errors
    /// See [`ReserveError`].
    pub(super) fn reserve(
        &mut self,
        client: ClientId,
        port: u16,
        address: Option<IpAddress>,
    ) -> Result<(), ReserveError> {
        let Some(holding) = &self.holdings[client.place()] else { return Err(ReserveError::Limit) };
        if holding.reserved.contains(&(port, address)) {
            return Ok(());
        }
        if holding.reserved.len() >= MAX_RESERVED {
            return Err(ReserveError::Limit);
        }
        if port == 0 || self.others(client).any(|other| other.block.contains(&port) || has(other, port, address)) {
            return Err(ReserveError::Taken);
        }
        if self.owners[usize::from(port)] == NOBODY && !self.may_take(port) {
            return Err(ReserveError::Kept);
        }
        if let Some(holding) = &mut self.holdings[client.place()] {
            holding.reserved.insert((port, address));
        }
        self.settle(port);
        Ok(())
    }

    /// What all other clients hold.
    fn others(&self, client: ClientId) -> impl Iterator<Item = &Holding> {
        let others = self.holdings.iter().enumerate().filter(move |(place, _)| *place != client.place());
        others.filter_map(|(_, holding)| holding.as_ref())
    }

    /// Works out who owns a port.
    fn settle(&mut self, port: u16) {
        let holders = ClientId::all().filter_map(|client| {
            let holding = self.holdings[client.place()].as_ref()?;
            (holding.block.contains(&port) || holding.at(port).next().is_some()).then_some((client, holding))
        });
        let holders: Vec<_> = holders.collect();
        let owner = match holders[..] {
            [] => NOBODY,
            [(client, _)] => client.0,
            _ => SEVERAL,
        };
        let at = |(client, holding): &(ClientId, &Holding)| {
            let client = *client;
            holding.at(port).flatten().map(move |address| (address, client)).collect::<Vec<_>>()
        };
        let several: Vec<_> = if owner == SEVERAL { holders.iter().flat_map(at).collect() } else { Vec::new() };
        if several.is_empty() {
            self.several.remove(&port);
        } else {
            self.several.insert(port, several);
        }
        self.set(port, owner);
    }

    /// Whether each place that is free would still find a block if this port were taken.
    fn may_take(&self, port: u16) -> bool {
        if !EPHEMERAL.contains(&port) {
            return true;
        }
        let number = usize::from((port - EPHEMERAL.start()) / LEAST_BLOCK);
        !self.is_untouched(blocks(number, 1)) || self.spare() > 0
    }

    /// Gives a port back that the client has reserved.
    pub(super) fn release(&mut self, client: ClientId, port: u16, address: Option<IpAddress>) {
        let Some(holding) = &mut self.holdings[client.place()] else { return };
        if holding.reserved.remove(&(port, address)) {
            self.settle(port);
        }
    }
}

/// Whether a client has reserved a port where another wants it.
fn has(holding: &Holding, port: u16, address: Option<IpAddress>) -> bool {
    holding.at(port).any(|own| own.is_none() || address.is_none() || own == address)
}
