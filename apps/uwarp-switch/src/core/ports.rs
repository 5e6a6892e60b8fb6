//! Who owns which TCP port.
//!
//! The upper ports are cut into blocks. A client gets one block when it comes: its connections leave from there, and
//! "any free port" is one of them. It may also listen on any other port that nobody owns, up to a limit. A port outside
//! the client's block is refused if it would leave too few untouched blocks for the clients that may still come.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::ClientId;

/// The most clients: DPDK has 32 ports in a process, and two are left for an uplink and for a client's successor, which
/// may come before the device of its predecessor is closed.
pub const MAX_CLIENTS: usize = 30;
/// Ports of one block.
pub const BLOCK: u16 = 1024;
/// The ports that are given out in blocks. The usual ports of RDMA programs lie below.
pub const EPHEMERAL: RangeInclusive<u16> = 24_576..=u16::MAX;
/// The most ports that one client may listen on.
pub const MAX_LISTENING: usize = 256;

const NOBODY: u8 = u8::MAX;
const BLOCKS: usize = (u16::MAX as usize + 1 - *EPHEMERAL.start() as usize) / BLOCK as usize;

const _: () = assert!(BLOCKS > MAX_CLIENTS && MAX_CLIENTS < NOBODY as usize);

/// Why a port cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// A client owns it: another one, or this one listens on it already.
    Taken,
    /// The client listens on [`MAX_LISTENING`] ports.
    Limit,
    /// It is kept for clients that may still come.
    Kept,
}

/// What one client holds.
#[derive(Debug)]
struct Holding {
    block: RangeInclusive<u16>,
    listening: BTreeSet<u16>,
}

/// The table of all ports.
#[derive(Debug)]
pub struct PortTable {
    owners: Box<[u8; 1 << 16]>,
    holdings: [Option<Holding>; MAX_CLIENTS],
    /// Where the search for a block begins. A new client does not get its predecessor's ports, to which segments may be
    /// on their way.
    next_block: usize,
}

fn block(number: usize) -> RangeInclusive<u16> {
    let first = EPHEMERAL.start() + number as u16 * BLOCK;
    first..=first + (BLOCK - 1)
}

impl Default for PortTable {
    fn default() -> Self {
        PortTable { owners: Box::new([NOBODY; 1 << 16]), holdings: [const { None }; MAX_CLIENTS], next_block: 0 }
    }
}

impl PortTable {
    /// The client that owns a port.
    #[inline]
    pub fn owner(&self, port: u16) -> Option<ClientId> {
        match self.owners[usize::from(port)] {
            NOBODY => None,
            place => Some(ClientId(place)),
        }
    }

    /// The ports that a client listens on. The uplink has none.
    pub fn listening(&self, client: ClientId) -> impl Iterator<Item = u16> + '_ {
        let holding = self.holdings.get(client.place()).and_then(Option::as_ref);
        holding.into_iter().flat_map(|holding| holding.listening.iter().copied())
    }

    /// The block of a client.
    pub fn block(&self, client: ClientId) -> Option<RangeInclusive<u16>> {
        Some(self.holdings[client.place()].as_ref()?.block.clone())
    }

    fn is_untouched(&self, number: usize) -> bool {
        block(number).all(|port| self.owners[usize::from(port)] == NOBODY)
    }

    /// Gives a new client its block; `None` if the place is taken.
    pub(crate) fn enter(&mut self, client: ClientId) -> Option<RangeInclusive<u16>> {
        if self.holdings[client.place()].is_some() {
            return None;
        }
        let mut numbers = (0..BLOCKS).map(|step| (self.next_block + step) % BLOCKS);
        // `reserve` keeps a block for each place.
        let number = numbers.find(|number| self.is_untouched(*number))?;
        self.next_block = (number + 1) % BLOCKS;
        for port in block(number) {
            self.owners[usize::from(port)] = client.0;
        }
        self.holdings[client.place()] = Some(Holding { block: block(number), listening: BTreeSet::new() });
        Some(block(number))
    }

    /// Frees everything that a client holds.
    pub(crate) fn leave(&mut self, client: ClientId) {
        let Some(holding) = self.holdings[client.place()].take() else { return };
        for port in holding.block.chain(holding.listening) {
            self.owners[usize::from(port)] = NOBODY;
        }
    }

    /// Reserves a port to listen on; 0 chooses one of the client's block.
    ///
    /// # Errors
    /// See [`ReserveError`].
    pub(crate) fn reserve(&mut self, client: ClientId, port: u16) -> Result<u16, ReserveError> {
        let Some(holding) = &self.holdings[client.place()] else { return Err(ReserveError::Limit) };
        if holding.listening.len() >= MAX_LISTENING {
            return Err(ReserveError::Limit);
        }
        let port = match port {
            // From the end: connections may leave from any port of the block, but fewer choices collide with it so.
            0 => holding.block.clone().rev().find(|port| !holding.listening.contains(port)),
            port => Some(port),
        };
        let Some(port) = port else { return Err(ReserveError::Limit) };
        if holding.listening.contains(&port) || self.owner(port).is_some_and(|owner| owner != client) {
            return Err(ReserveError::Taken);
        }
        if self.owner(port).is_none() && !self.leaves_enough_blocks(port) {
            return Err(ReserveError::Kept);
        }
        self.owners[usize::from(port)] = client.0;
        if let Some(holding) = &mut self.holdings[client.place()] {
            holding.listening.insert(port);
        }
        Ok(port)
    }

    /// Whether each place that is free would still find a block if this port were taken.
    fn leaves_enough_blocks(&self, port: u16) -> bool {
        if !EPHEMERAL.contains(&port) {
            return true;
        }
        let number = usize::from((port - EPHEMERAL.start()) / BLOCK);
        let places = self.holdings.iter().filter(|holding| holding.is_none()).count();
        !self.is_untouched(number) || (0..BLOCKS).filter(|number| self.is_untouched(*number)).count() > places
    }

    /// Gives a port back that the client listens on.
    pub(crate) fn release(&mut self, client: ClientId, port: u16) {
        let Some(holding) = &mut self.holdings[client.place()] else { return };
        if holding.listening.remove(&port) && !holding.block.contains(&port) {
            self.owners[usize::from(port)] = NOBODY;
        }
    }
}
