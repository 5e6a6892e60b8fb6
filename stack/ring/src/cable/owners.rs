//! Who owns which TCP port of addresses that several processes share: one process writes the tables, all read them.
//!
//! Each network has a table of its own: the same port of two networks has two owners.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::map::Map;

const PORTS: usize = 1 << 16;
/// A number of a network is an octet. Tables that nobody uses take no memory.
const OCTETS: usize = 2 * PORTS * 256;

const NOBODY: u16 = 0;
const SEVERAL: u16 = u16::MAX;
/// Set in the entry of a port that has no owner any more.
const PAST: u16 = 1 << 15;

/// Numbers of owners are below this.
pub const OWNER_NUMBERS: usize = (1 << 15) - 1;

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody owns the port.
    Nobody,
    /// Several do, each at some of the addresses.
    Several,
    /// The one with this number, below [`OWNER_NUMBERS`], does.
    One(u16),
    /// The one with this number did. What it sent before may be under way.
    Past(u16),
}

impl Owner {
    fn entry(self) -> u16 {
        match self {
            Owner::Nobody => NOBODY,
            Owner::Several => SEVERAL,
            Owner::One(number) => number + 1,
            Owner::Past(number) => (number + 1) | PAST,
        }
    }
}

/// The tables as their writer has them.
#[derive(Debug)]
pub struct OwnerTable {
    map: Map,
    file: OwnedFd,
}

impl OwnerTable {
    /// Tables without owners. Nobody else can write them, whoever gets their file.
    ///
    /// # Errors
    /// Those of the system: no descriptors or no memory left, or a kernel before Linux 5.1.
    pub fn new() -> io::Result<OwnerTable> {
        let file = memfd_create("uwarp-owners", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, OCTETS as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = Map::shared(&file, OCTETS)?;
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(OwnerTable { map, file })
    }

    /// Sets the owner of a port of a network.
    pub fn set(&self, network: u8, port: u16, owner: Owner) {
        entry(&self.map, network, port).store(owner.entry(), Relaxed);
    }

    /// Forgets what a number owned in a network in the past: somebody else gets it.
    pub fn forget(&self, network: u8, number: u16) {
        for port in 0..=u16::MAX {
            if entry(&self.map, network, port).load(Relaxed) == Owner::Past(number).entry() {
                self.set(network, port, Owner::Nobody);
            }
        }
    }

    /// Forgets all owners of a network: another one gets its number.
    pub fn clear(&self, network: u8) {
        (0..=u16::MAX).for_each(|port| self.set(network, port, Owner::Nobody));
    }
}

impl AsFd for OwnerTable {
    /// The file, for [`Owners::map`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The tables as their readers have them.
#[derive(Debug)]
pub struct Owners(Map);

impl Owners {
    /// Maps the tables.
    ///
    /// # Errors
    /// The file is none of such tables, or cannot be mapped.
    pub fn map(file: impl AsFd) -> io::Result<Owners> {
        Map::readable(file, OCTETS).map(Owners)
    }

    /// The owner of a port of a network.
    #[inline]
    pub fn get(&self, network: u8, port: u16) -> Owner {
        match entry(&self.0, network, port).load(Relaxed) {
            NOBODY => Owner::Nobody,
            SEVERAL => Owner::Several,
            entry if entry & PAST != 0 => Owner::Past((entry & !PAST).wrapping_sub(1)),
            entry => Owner::One(entry - 1),
        }
    }
}

#[inline(always)]
fn entry(map: &Map, network: u8, port: u16) -> &AtomicU16 {
    let index = usize::from(network) * PORTS + usize::from(port);
    // SAFETY: within the map, aligned, and valid for any bits; all processes access it as an atomic.
    unsafe { map.at(2 * index, 2).cast().as_ref() }
}
