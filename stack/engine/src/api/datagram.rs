//! Where a datagram goes.

use uwarp_ring::Slot;
use uwarp_wire::address::IpAddress;
use uwarp_wire::{ipv6, roce};

use crate::api::work::{DATAGRAM_ADDRESSES, SendElement, SendFlags, SendOpcode, Sge};

/// From where and to where a datagram goes. It is in the first slot of its element: the STag has the receiver's number,
/// the remote offset the key and the immediate data, and the addresses are in the first [`BLOCK_LEN`](Self::BLOCK_LEN)
/// octets of the inline data, or the first two entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramPath {
    /// The own address that it leaves from.
    pub source: IpAddress,
    /// The address that it goes to.
    pub destination: IpAddress,
    /// The number of the queue pair that it goes to, 24 bits.
    pub number: u32,
    /// The key that the receiver has to have.
    pub key: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
}

impl DatagramPath {
    /// Octets of the addresses in an element.
    pub const BLOCK_LEN: usize = DATAGRAM_ADDRESSES;
    /// Entries of an element that have the addresses.
    pub const ENTRIES: usize = 2;
    /// Octets of an IP packet that are none of its datagram's message, at most.
    pub const MOST_OVERHEAD: usize = ipv6::HEADER_LEN + roce::MOST_OVERHEAD;
    /// Beside the number, where there are immediate data.
    const IMMEDIATE: u32 = 1 << 31;

    /// What the element has as its STag.
    pub const fn stag(&self) -> u32 {
        self.number | if self.immediate.is_some() { Self::IMMEDIATE } else { 0 }
    }

    /// What the element has as its remote offset.
    pub fn remote_offset(&self) -> u64 {
        u64::from(self.key) << 32 | u64::from(self.immediate.unwrap_or(0))
    }

    /// The addresses, as they are in an element.
    pub fn block(&self) -> [u8; Self::BLOCK_LEN] {
        let mut block = [0; Self::BLOCK_LEN];
        for (place, address) in block.chunks_exact_mut(16).zip([self.source, self.destination]) {
            place.copy_from_slice(&address.to_bits().to_be_bytes());
        }
        block
    }

    /// The same as entries.
    pub fn entries(&self) -> [Sge; Self::ENTRIES] {
        let entry = |address: IpAddress| {
            let bits = u128::from_le_bytes(address.to_bits().to_be_bytes());
            Sge { stag: bits as u32, length: (bits >> 32) as u32, offset: (bits >> 64) as u64 }
        };
        [entry(self.source), entry(self.destination)]
    }

    /// What an element and its first slot say. `None`: it is of another kind, or too short.
    pub fn of(element: &SendElement, first: &Slot) -> Option<DatagramPath> {
        let is_whole = if element.flags.contains(SendFlags::INLINE) {
            element.length as usize >= Self::BLOCK_LEN
        } else {
            usize::from(element.entries) >= Self::ENTRIES
        };
        if element.opcode != SendOpcode::Datagram || !is_whole {
            return None;
        }
        let address = |low: u64, high: u64| {
            IpAddress::from_bits(u128::from_be_bytes((u128::from(low) | u128::from(high) << 64).to_le_bytes()))
        };
        let has_immediate = element.stag & Self::IMMEDIATE != 0;
        Some(DatagramPath {
            source: address(first.0[4], first.0[5]),
            destination: address(first.0[6], first.0[7]),
            number: element.stag & !Self::IMMEDIATE,
            key: (element.remote_offset >> 32) as u32,
            immediate: has_immediate.then_some(element.remote_offset as u32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_path_of_a_datagram_comes_back(
            addresses in any::<[u128; 2]>(), number in 0u32..1 << 24, key in any::<u32>(),
            immediate in any::<Option<u32>>(), data in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let [source, destination] = addresses.map(IpAddress::from_bits);
            let path = DatagramPath { source, destination, number, key, immediate };
            let element = SendElement {
                id: 7, opcode: SendOpcode::Datagram, flags: SendFlags::empty(), stag: path.stag(),
                remote_offset: path.remote_offset(), length: 5, entries: 3,
            };
            let entries = [&path.entries()[..], &[Sge { stag: 1, length: 5, offset: 9 }]].concat();
            prop_assert_eq!(DatagramPath::of(&element, &element.encode(&entries, &[], 0)), Some(path));
            prop_assert_eq!(element.payload_len(), 5);
            let octets = [&path.block()[..], &data].concat();
            let element = SendElement { flags: SendFlags::INLINE, length: octets.len() as u32, entries: 0, ..element };
            prop_assert_eq!(DatagramPath::of(&element, &element.encode(&[], &octets, 0)), Some(path));
            prop_assert_eq!(element.payload_len() as usize, data.len());
        }
    }
}
