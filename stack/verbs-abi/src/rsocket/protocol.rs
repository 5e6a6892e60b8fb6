//! What rsockets say to each other: the private data of connection requests and replies, and the messages behind RDMA
//! Writes. The formats are those of rdma-core's rsockets, version 1, over iWARP.

use crate::errno::{EOPNOTSUPP, Errno};

/// The only version there is.
const VERSION: u8 = 1;
/// The sender's processor has the most significant octet first.
const IS_BIG_ENDIAN: u8 = 1;
/// Memory of the program can be mapped, see `iomap.rs`.
const MAPS: u8 = 2;
/// Octets of [`Introduction`].
pub(crate) const INTRODUCTION_LEN: usize = 40;
/// Octets of a message.
pub(crate) const MESSAGE_LEN: usize = 4;
/// Most octets of one data message: it has 29 bits for them.
pub(crate) const MOST_DATA: usize = (1 << DATA_BITS) - 1;
const DATA_BITS: u32 = 29;

/// Memory that a peer may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// Tagged offset of its first octet.
    pub(crate) address: u64,
    /// STag.
    pub(crate) key: u32,
    /// Octets; of a list of targets, its entries.
    pub(crate) length: u32,
}

impl Target {
    /// Octets in a list of targets.
    pub(crate) const LEN: usize = 16;

    /// As it stands in memory, which is in the processors' order of octets.
    pub(crate) fn to_memory(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..8].copy_from_slice(&self.address.to_ne_bytes());
        octets[8..12].copy_from_slice(&self.key.to_ne_bytes());
        octets[12..].copy_from_slice(&self.length.to_ne_bytes());
        octets
    }

    /// What stands in memory.
    pub(crate) fn from_memory(octets: &[u8; Self::LEN]) -> Target {
        let (address, rest) = octets.split_first_chunk().unwrap_or((&[0; 8], &[]));
        Target { address: u64::from_ne_bytes(*address), key: word(rest, 0), length: word(rest, 4) }
    }

    fn to_network(self) -> [u8; Self::LEN] {
        let network = Target { address: self.address.to_be(), key: self.key.to_be(), length: self.length.to_be() };
        network.to_memory()
    }

    fn from_network(octets: &[u8; Self::LEN]) -> Target {
        let Target { address, key, length } = Self::from_memory(octets);
        Target { address: u64::from_be(address), key: u32::from_be(key), length: u32::from_be(length) }
    }
}

/// A word of memory.
fn word(octets: &[u8], at: usize) -> u32 {
    octets.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Memory of the program that its peer may write to at an offset of the program's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) offset: u64,
    pub(crate) memory: Target,
}

impl Map {
    /// Octets in a list of maps, which is behind the list of targets.
    pub(crate) const LEN: usize = 8 + Target::LEN;

    /// As it stands in memory.
    pub(crate) fn to_memory(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..8].copy_from_slice(&self.offset.to_ne_bytes());
        octets[8..].copy_from_slice(&self.memory.to_memory());
        octets
    }

    /// What stands in memory.
    pub(crate) fn from_memory(octets: &[u8; Self::LEN]) -> Map {
        let (offset, rest) = octets.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let memory = rest.first_chunk().map(Target::from_memory).unwrap_or_default();
        Map { offset: u64::from_ne_bytes(*offset), memory }
    }
}

/// The private data of a connection request and of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Messages that the sender has receives for.
    pub(crate) credits: u16,
    /// Entries of the sender's list of maps.
    pub(crate) maps: u16,
    /// The sender's list of targets, which the receiver writes to.
    pub(crate) targets: Target,
    /// The first memory for the receiver's data.
    pub(crate) data: Target,
}

impl Introduction {
    pub(crate) fn to_octets(self) -> [u8; INTRODUCTION_LEN] {
        let mut octets = [0; INTRODUCTION_LEN];
        octets[0] = VERSION;
        octets[1] = MAPS | if cfg!(target_endian = "big") { IS_BIG_ENDIAN } else { 0 };
        octets[2..4].copy_from_slice(&self.credits.to_be_bytes());
        octets[7] = maps_to_octet(self.maps);
        octets[8..24].copy_from_slice(&self.targets.to_network());
        octets[24..].copy_from_slice(&self.data.to_network());
        octets
    }

    /// # Errors
    /// EOPNOTSUPP: too short, of another version, or from a processor with another order of octets, whose messages
    /// have no common order.
    pub(crate) fn from_octets(octets: &[u8]) -> Result<Introduction, Errno> {
        let octets: &[u8; INTRODUCTION_LEN] = octets.first_chunk().ok_or(EOPNOTSUPP)?;
        let [version, flags, high, low, _, _, _, maps, rest @ ..] = octets;
        if *version != VERSION || (flags & IS_BIG_ENDIAN != 0) != cfg!(target_endian = "big") {
            return Err(EOPNOTSUPP);
        }
        let (targets, rest) = rest.split_first_chunk().ok_or(EOPNOTSUPP)?;
        let data = rest.first_chunk().ok_or(EOPNOTSUPP)?;
        let has_maps = flags & MAPS != 0;
        Ok(Introduction {
            credits: u16::from_be_bytes([*high, *low]),
            maps: if has_maps { maps_from_octet(*maps) } else { 0 },
            targets: Target::from_network(targets),
            data: Target::from_network(data),
        })
    }
}

/// A number of maps has eight bits: up to 128 as it is, and more as multiples of 256.
fn maps_to_octet(maps: u16) -> u8 {
    if maps <= 128 { maps as u8 } else { 128 | (maps >> 8).min(127) as u8 }
}

fn maps_from_octet(octet: u8) -> u16 {
    if octet <= 128 { octet.into() } else { u16::from(octet & 127) << 8 }
}

/// A number of maps that the format can say, as close to `wanted` as it comes from below.
pub(crate) fn possible_maps(wanted: u16) -> u16 {
    maps_from_octet(maps_to_octet(wanted))
}

/// A message, which a Send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// As many octets have been written behind those before.
    Data(u32),
    /// Messages up to this number may be sent; an entry of the list of targets may be new.
    Credits(u16),
    /// An entry of the list of maps is new.
    Mapped(u16),
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// Nothing.
    KeepAlive,
    /// The sender sends no more.
    Shutdown,
}

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;
const DISCONNECT: u32 = 0;
const KEEP_ALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;

impl Message {
    /// As it is sent over iWARP: a word in the processors' order of octets.
    pub(crate) fn to_octets(self) -> [u8; MESSAGE_LEN] {
        let (kind, value) = match self {
            Message::Data(octets) => (DATA, octets),
            Message::Credits(number) => (CREDITS, number.into()),
            Message::Mapped(index) => (MAPPED, index.into()),
            Message::Disconnect => (CONTROL, DISCONNECT),
            Message::KeepAlive => (CONTROL, KEEP_ALIVE),
            Message::Shutdown => (CONTROL, SHUTDOWN),
        };
        (kind << DATA_BITS | value).to_ne_bytes()
    }

    /// None: no such message.
    pub(crate) fn from_word(word: u32) -> Option<Message> {
        let value = word & ((1 << DATA_BITS) - 1);
        match word >> DATA_BITS {
            DATA => Some(Message::Data(value)),
            // Whatever is above counts nothing.
            CREDITS => Some(Message::Credits(value as u16)),
            MAPPED => Some(Message::Mapped(value as u16)),
            CONTROL => match value {
                DISCONNECT => Some(Message::Disconnect),
                KEEP_ALIVE => Some(Message::KeepAlive),
                SHUTDOWN => Some(Message::Shutdown),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTRODUCTION: Introduction = Introduction {
        credits: 384,
        maps: 4,
        targets: Target { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 },
        data: Target { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 65_536 },
    };

    #[test]
    #[cfg(target_endian = "little")]
    fn an_introduction_has_the_form_of_rdma_core() {
        let octets = [
            1, 2, 1, 128, 0, 0, 0, 4, // version, flags, credits, reserved, maps
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, // targets
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0, // data
        ];
        assert_eq!(INTRODUCTION.to_octets(), octets);
        assert_eq!(Introduction::from_octets(&octets), Ok(INTRODUCTION));
        // Padding behind it is allowed.
        assert_eq!(Introduction::from_octets(&[&octets[..], &[0; 8]].concat()), Ok(INTRODUCTION));
        let without_maps = [&[1, 0], &octets[2..]].concat();
        assert_eq!(Introduction::from_octets(&without_maps), Ok(Introduction { maps: 0, ..INTRODUCTION }));
        for wrong in [[2, 2], [0, 2], [1, 3]] {
            assert!(Introduction::from_octets(&[&wrong, &octets[2..]].concat()).is_err(), "{wrong:?}");
        }
        assert!(Introduction::from_octets(&octets[..39]).is_err());
    }

    #[test]
    fn messages_come_back_and_others_are_none() {
        for message in [
            Message::Data(MOST_DATA as u32),
            Message::Credits(65_535),
            Message::Mapped(3),
            Message::Disconnect,
            Message::KeepAlive,
            Message::Shutdown,
        ] {
            assert_eq!(Message::from_word(u32::from_ne_bytes(message.to_octets())), Some(message));
        }
        assert_eq!(u32::from_ne_bytes(Message::Shutdown.to_octets()), 0xe000_0002);
        assert_eq!(u32::from_ne_bytes(Message::Credits(7).to_octets()), 0x8000_0007);
        for word in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn targets_and_maps_come_back_from_memory() {
        let map = Map { offset: 9, memory: INTRODUCTION.data };
        assert_eq!(Map::from_memory(&map.to_memory()), map);
        assert_eq!(Target::from_memory(&INTRODUCTION.targets.to_memory()), INTRODUCTION.targets);
    }

    #[test]
    fn a_number_of_maps_is_rounded_to_what_an_octet_says() {
        for (wanted, possible) in [(0, 0), (1, 1), (128, 128), (200, 128), (256, 256), (600, 512), (u16::MAX, 0x7f00)] {
            assert_eq!(possible_maps(wanted), possible, "{wanted}");
        }
    }
}
