//! The frames that txonly sends, and the exchange of a frame's addresses.

use uwarp_dpdk::Mbuf;
use uwarp_wire::checksum;

/// Octets of an Ethernet address.
const ADDRESS: usize = 6;
/// Octets of an Ethernet header.
const ETHERNET: usize = 14;
/// Octets of Ethernet, IPv4 and UDP headers.
const HEADERS: usize = ETHERNET + 20 + 8;
/// Two addresses of the network for benchmarks (RFC 2544 §C.2.2).
const ADDRESSES: [[u8; 4]; 2] = [[198, 18, 0, 1], [198, 18, 0, 2]];
/// UDP's port of the service that discards (RFC 863).
const DISCARD: u16 = 9;

/// A UDP packet of `length` octets with its Ethernet header, from `source` to the station that port `number` of another
/// tester would be.
pub fn template(source: [u8; ADDRESS], number: usize, length: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(length.max(HEADERS));
    frame.extend([0x02, 0, 0, 0, 0, number as u8]);
    frame.extend(source);
    frame.extend([0x08, 0x00]);
    let packet = (length.max(HEADERS) - ETHERNET) as u16;
    frame.extend([0x45, 0]);
    frame.extend(packet.to_be_bytes());
    // No identification or fragments; 64 hops; UDP; the checksum comes last.
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(ADDRESSES.concat());
    let sum = checksum::finish(checksum::sum(&frame[ETHERNET..]));
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(DISCARD.to_be_bytes());
    frame.extend(DISCARD.to_be_bytes());
    frame.extend((packet - 20).to_be_bytes());
    // No checksum (RFC 768).
    frame.extend([0, 0]);
    frame.resize(length.max(HEADERS), 0);
    frame
}

/// Makes a fresh buffer such a frame; false if it has no room.
#[inline]
pub fn fill(packet: &mut Mbuf, octets: &[u8]) -> bool {
    let start = packet.start();
    let Some(place) = packet.storage_mut().and_then(|storage| storage.get_mut(start..start + octets.len())) else {
        return false;
    };
    place.copy_from_slice(octets);
    packet.set_range(start, octets.len())
}

/// What became of an exchange of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// It is done.
    Done,
    /// The frame has no whole Ethernet header.
    Short,
    /// The buffer has other users: a copy is needed.
    Shared,
}

/// Exchanges the addresses of a frame.
#[inline]
pub fn exchange(packet: &mut Mbuf) -> Exchanged {
    if packet.data().len() < ETHERNET {
        return Exchanged::Short;
    }
    let start = packet.start();
    match packet.storage_mut().and_then(|storage| storage.get_mut(start..start + 2 * ADDRESS)) {
        Some(addresses) => {
            let (destination, source) = addresses.split_at_mut(ADDRESS);
            destination.swap_with_slice(source);
            Exchanged::Done
        }
        None => Exchanged::Shared,
    }
}

/// Copies a frame into a fresh buffer; false if it does not fit.
pub fn copy(from: &Mbuf, to: &mut Mbuf) -> bool {
    let (start, length) = (to.start(), from.total_len());
    let Some(place) = to.storage_mut().and_then(|storage| storage.get_mut(start..start + length)) else {
        return false;
    };
    from.copy_to(0, place) == length && to.set_range(start, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_a_packet_that_any_host_would_take() {
        for length in [60, 64, 1514] {
            let frame = template([2, 0, 0, 0, 0, 7], 3, length);
            assert_eq!(frame.len(), length);
            assert_eq!(frame[..14], [2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 7, 8, 0]);
            assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), length - 14);
            assert_eq!(checksum::fold(checksum::sum(&frame[14..34])), 0xffff, "the header's checksum");
            assert_eq!(usize::from(u16::from_be_bytes([frame[38], frame[39]])), length - 34);
        }
    }
}
