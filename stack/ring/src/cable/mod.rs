//! Cables: frames between two processes, in memory that both have mapped.
//!
//! A third process, the switch, makes a [`Cable`] and gives each side its [`Plug`]. From it each side makes an
//! [`CableEnd`]: a [`Sender`] and a [`Receiver`] of whole Ethernet frames. Neither a lock nor a system call is on the
//! way of a frame; a receiver that is about to sleep asks for a wake-up.
//!
//! **Nothing that the other side writes is believed.** The file is sealed, so nobody can truncate it under a reader.
//! Lengths and positions are clamped. A frame is copied out before anything of it is looked at, so what the other side
//! writes meanwhile harms that frame alone. Each end of a bell has a file description of its own, so that nobody can
//! change another's flags or take its wake-ups.
//!
//! Each direction is a *lane*: a ring of octets with records of one frame each. A record begins with a header word,
//! which is zero until the record is complete. The sender clears the word of the next record before it writes the one
//! of this record, so the receiver polls nothing but the header of the record that it waits for.

mod bell;
mod lane;
mod map;
mod owners;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use bell::Bell;
pub use lane::{Arrival, LONGEST_FRAME, Receiver, Sender};
use lane::{LANE, Lane};
use map::Map;
pub use owners::{OWNER_NUMBERS, Owner, OwnerTable, Owners};

/// The most octets of frames under way in one direction, headers of records among them.
pub const LANE_OCTETS: usize = lane::OCTETS;

/// The two sides of a cable.
#[derive(Debug)]
pub struct Cable;

impl Cable {
    /// Makes a cable and gives its two sides. The pipes by which they wake each other have names in `directory` for a
    /// moment.
    ///
    /// # Errors
    /// Those of the system: no descriptors or no memory left, or a directory that has no room for a pipe.
    pub fn pair(directory: &Path) -> io::Result<(Plug, Plug)> {
        let memory = memfd_create("uwarp-cable", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, 2 * LANE as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let (to_second, at_second) = bell::pair(directory)?;
        let (to_first, at_first) = bell::pair(directory)?;
        let second = Plug { memory: memory.try_clone()?, side: Side::Second, rings: to_first, hears: at_second };
        Ok((Plug { memory, side: Side::First, rings: to_second, hears: at_first }, second))
    }
}

/// Which lane is for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    First,
    /// The second.
    Second,
}

/// One side of a cable that nobody has plugged in: descriptors, as they cross to the process that will use them.
#[derive(Debug)]
pub struct Plug {
    memory: OwnedFd,
    side: Side,
    /// Wakes the other side.
    rings: Bell,
    /// Is rung by it.
    hears: Bell,
}

impl Plug {
    /// Descriptors of one side.
    pub const DESCRIPTORS: usize = 3;

    /// Takes it apart, for another process.
    pub fn into_parts(self) -> (Side, [OwnedFd; Plug::DESCRIPTORS]) {
        (self.side, [self.memory, self.rings.into(), self.hears.into()])
    }

    /// Puts together what [`into_parts`](Self::into_parts) gave.
    pub fn from_parts(side: Side, [memory, rings, hears]: [OwnedFd; Plug::DESCRIPTORS]) -> Plug {
        Plug { memory, side, rings: rings.into(), hears: hears.into() }
    }

    /// Maps the memory.
    ///
    /// # Errors
    /// The memory cannot be mapped, is not a cable's, or could be truncated under this process.
    pub fn connect(self) -> io::Result<CableEnd> {
        let map = Arc::new(Map::shared(&self.memory, 2 * LANE)?);
        let (to, from) = match self.side {
            Side::First => (0, LANE),
            Side::Second => (LANE, 0),
        };
        let lane = |at| Lane::new(Arc::clone(&map), at);
        Ok(CableEnd { sender: Sender::new(lane(to), self.rings), receiver: Receiver::new(lane(from), self.hears) })
    }
}

/// One side of a cable, in use.
#[derive(Debug)]
pub struct CableEnd {
    /// To the other side.
    pub sender: Sender,
    /// From the other side.
    pub receiver: Receiver,
}
