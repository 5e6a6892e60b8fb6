//! Bookkeeping of memory of the program that its peer may write to.

use crate::errno::{ENOMEM, Errno};
use crate::rsocket::protocol::{Map, Target};
use uwarp::MemoryRegion;

/// The maps of one connection.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// The peer's list.
    of_peer: Target,
    /// Maps by their place in that list.
    of_program: Vec<Option<Mapped>>,
    /// Memory that the peer does not hear of.
    local: Vec<MemoryRegion>,
}

/// Memory of the program.
#[derive(Debug)]
struct Mapped {
    offset: u64,
    region: MemoryRegion,
    is_sent: bool,
}

impl Maps {
    /// The peer has a list for so many maps.
    pub(crate) fn meet(&mut self, list: Target) {
        self.of_peer = list;
        self.of_program.clear();
        self.of_program.resize_with(list.length as usize, || None);
    }

    pub(crate) fn of_peer(&self) -> Target {
        self.of_peer
    }

    fn unsent(&self) -> Option<(usize, &Mapped)> {
        let mut maps = self.of_program.iter().enumerate();
        maps.find_map(|(index, map)| map.as_ref().filter(|map| !map.is_sent).map(|map| (index, map)))
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent().is_some()
    }

    /// A map that the peer is to be told of now.
    pub(crate) fn next_unsent(&mut self) -> Option<(u16, Map)> {
        let (index, map) = self.unsent()?;
        let memory = Target {
            address: map.region.remote_offset(),
            key: map.region.stag(),
            length: u32::try_from(map.region.len()).unwrap_or(u32::MAX),
        };
        let found = Map { offset: map.offset, memory };
        if let Some(map) = &mut self.of_program[index] {
            map.is_sent = true;
        }
        Some((index as u16, found))
    }

    /// Adds memory that the peer may write to. ENOMEM: its list is full.
    pub(crate) fn add(&mut self, offset: u64, region: MemoryRegion) -> Result<(), Errno> {
        let place = self.of_program.iter_mut().find(|place| place.is_none()).ok_or(ENOMEM)?;
        *place = Some(Mapped { offset, region, is_sent: false });
        Ok(())
    }

    /// Adds memory that the peer does not hear of.
    pub(crate) fn add_local(&mut self, region: MemoryRegion) {
        self.local.push(region);
    }

    /// Takes out the memory at an address.
    pub(crate) fn remove(&mut self, address: u64, length: usize) -> Option<MemoryRegion> {
        let is_it = |region: &MemoryRegion| region.remote_offset() == address && region.len() == length;
        for place in &mut self.of_program {
            if place.as_ref().is_some_and(|map| is_it(&map.region)) {
                return place.take().map(|map| map.region);
            }
        }
        let index = self.local.iter().position(is_it)?;
        Some(self.local.swap_remove(index))
    }
}
