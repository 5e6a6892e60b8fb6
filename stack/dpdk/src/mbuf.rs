//! Packet buffers.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// What the device found out about one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// Nobody looked.
    Unknown,
    /// Right, or vouched for by the device (a virtio peer that never wrote one, since memory does not corrupt).
    Good,
    /// Wrong.
    Bad,
}

/// What the device found out about a received packet's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxChecksum {
    /// The IPv4 header's.
    pub ip: ChecksumStatus,
    /// The TCP or UDP one.
    pub l4: ChecksumStatus,
}

/// Which checksums the device shall fill in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxChecksum {
    /// Octets of the Ethernet header, VLAN tags included.
    pub l2_len: u8,
    /// Octets of the IP header.
    pub l3_len: u16,
    /// Octets of the TCP header.
    pub l4_len: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Fill in the IPv4 header's checksum (its field must be 0).
    pub ip: bool,
    /// Fill in the TCP checksum (its field must hold the pseudo-header's sum, not complemented).
    pub tcp: bool,
    /// Cut into segments of so many payload octets; 0: do not.
    pub segment_size: u16,
}

/// One reference to a packet: a buffer, or a chain of them. Dropping it gives the reference back.
#[repr(transparent)]
pub struct Mbuf {
    raw: NonNull<u8>,
}

impl Mbuf {
    /// The packet's octets in its first segment: all of them if [`segment_count`](Mbuf::segment_count) is 1.
    pub fn data(&self) -> &[u8] {
        let _ = self.raw;
        todo!()
    }

    /// Octets of the packet in all segments.
    pub fn total_len(&self) -> usize {
        todo!()
    }

    /// How many buffers the packet is in.
    pub fn segment_count(&self) -> usize {
        todo!()
    }

    /// The octets of each segment in order.
    pub fn segments(&self) -> Segments<'_> {
        todo!()
    }

    /// Octets of storage of the first segment's buffer, headroom included.
    pub fn data_room(&self) -> usize {
        todo!()
    }

    /// Where the data starts in the first segment's storage.
    pub fn start(&self) -> usize {
        todo!()
    }

    /// The first segment's whole storage; `None` while anybody else (the device included) has a reference to it.
    pub fn storage_mut(&mut self) -> Option<&mut [u8]> {
        todo!()
    }

    /// Says which part of the first segment's storage is the packet's data. False, and nothing changed, if it does not fit
    /// into the storage or if the buffer is shared.
    #[must_use]
    pub fn set_range(&mut self, start: usize, len: usize) -> bool {
        let _ = (start, len);
        todo!()
    }

    /// Another reference to the same packet.
    pub fn share(&self) -> Mbuf {
        todo!()
    }

    /// Whether anybody else (the device included) has a reference to the first segment.
    pub fn is_shared(&self) -> bool {
        todo!()
    }

    /// Appends `tail` to the chain. `tail` may be shared; this packet's first and last segments must not be.
    ///
    /// # Errors
    /// Gives `tail` back if this packet is shared or the chain would get too long.
    pub fn chain_append(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        Err(tail)
    }

    /// Copies octets from `offset` on out of the chain; returns how many there were, at most `out.len()`.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let _ = (offset, out);
        todo!()
    }

    /// What the device found out about the checksums.
    pub fn rx_checksum(&self) -> RxChecksum {
        todo!()
    }

    /// The receive-side scaling hash, if the device computed one.
    pub fn rss_hash(&self) -> Option<u32> {
        todo!()
    }

    /// Asks the device to fill in checksums. False, and nothing changed, if the buffer is shared.
    #[must_use]
    pub fn set_tx_checksum(&mut self, checksum: TxChecksum) -> bool {
        let _ = checksum;
        todo!()
    }

    /// Takes back what [`set_tx_checksum`](Mbuf::set_tx_checksum) asked for. False, and nothing changed, if the buffer is shared.
    #[must_use]
    pub fn clear_tx_checksum(&mut self) -> bool {
        todo!()
    }
}

/// The segments of a packet, see [`Mbuf::segments`].
pub struct Segments<'a> {
    _packet: PhantomData<&'a Mbuf>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        todo!()
    }
}

// SAFETY: DPDK's buffers belong to no thread; reference counts are atomic, and a buffer goes back into the cache of the
// thread that drops it.
unsafe impl Send for Mbuf {}
