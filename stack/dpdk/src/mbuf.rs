//! Packet buffers.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use dpdk_sys::{self as sys, fast, rte_mbuf};

/// The device's verdict on one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumStatus {
    /// Nobody looked.
    Unknown,
    /// Correct, or vouched for by the device (a virtio peer that never computed one, since memory does not corrupt).
    Good,
    /// Wrong.
    Bad,
}

/// The device's verdicts on a received packet's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxChecksum {
    /// The IPv4 header's.
    pub ip: ChecksumStatus,
    /// The TCP or UDP one.
    pub l4: ChecksumStatus,
}

/// Which checksums the device shall fill in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxChecksum {
    /// Octets of the Ethernet header, VLAN tags included; at most 127.
    pub l2_len: u8,
    /// Octets of the IP header; at most 511.
    pub l3_len: u16,
    /// Octets of the TCP header.
    pub l4_len: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Fill in the IPv4 header's checksum (its field must be 0).
    pub ip: bool,
    /// Fill in the TCP checksum (its field must hold the pseudo-header's sum, not complemented, with the length of the
    /// whole packet).
    pub tcp: bool,
    /// Cut into segments of this many payload octets; 0: do not cut.
    pub segment_size: u16,
}

/// The flags that say who owns the storage.
const KIND: u64 = sys::UWARP_MBUF_INDIRECT | sys::UWARP_MBUF_EXTERNAL;

/// One reference to a packet: a buffer, or a chain of them. Dropping it returns the reference.
///
/// The peer's process also maps the memory of a virtio or zero-copy memif device. Statements here about sole references
/// hold for this process. A peer that violates its protocol can change octets at any time, so a value that is read from
/// a received packet and acted upon must be read only once.
#[repr(transparent)]
pub struct Mbuf {
    raw: NonNull<rte_mbuf>,
}

// SAFETY: DPDK's buffers belong to no thread; reference counts are atomic, and a buffer goes back into the cache of the
// thread that drops it.
unsafe impl Send for Mbuf {}

/// Reads a field of a packet's header. It makes no reference to the whole header, since the reference count may change
/// meanwhile.
macro_rules! field {
    ($packet:expr, $($field:tt)+) => {
        // SAFETY: the reference keeps the buffer live, and its header changes only through a sole reference.
        unsafe { (*$packet.raw.as_ptr()).$($field)+ }
    };
}

impl Mbuf {
    /// Takes over one reference.
    ///
    /// # Safety
    /// `raw` is a live packet of a pool of this crate, of which the caller owns one reference.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(raw: NonNull<rte_mbuf>) -> Mbuf {
        Mbuf { raw }
    }

    /// The header for changing it, if this is the sole reference to the first segment.
    #[inline(always)]
    fn header_mut(&mut self) -> Option<&mut rte_mbuf> {
        if self.is_shared() {
            return None;
        }
        // SAFETY: the count is 1 and this is that reference, borrowed mutably; acquire in `is_shared` orders it after
        // the other references' last use.
        Some(unsafe { self.raw.as_mut() })
    }

    /// The packet's octets in its first segment: all of them if [`segment_count`](Mbuf::segment_count) is 1.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the segment is live while `self` is.
        unsafe { segment_data(self.raw.as_ptr()) }
    }

    /// Octets of the packet in all segments.
    #[inline]
    pub fn total_len(&self) -> usize {
        field!(self, pkt_len) as usize
    }

    /// How many buffers the packet is in.
    #[inline]
    pub fn segment_count(&self) -> usize {
        usize::from(field!(self, nb_segs))
    }

    /// The octets of each segment in order.
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: self.raw.as_ptr(), _packet: self }
    }

    /// Octets of storage of the first segment's buffer, headroom included.
    #[inline]
    pub fn data_room(&self) -> usize {
        usize::from(field!(self, buf_len))
    }

    /// Where the data starts in the first segment's storage.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(field!(self, data_off))
    }

    /// The first segment's whole storage. `None` if there are other references to it (the device's included), or if it
    /// belongs to another packet.
    #[inline]
    pub fn storage_mut(&mut self) -> Option<&mut [u8]> {
        let header = self.header_mut()?;
        if header.ol_flags & sys::UWARP_MBUF_INDIRECT != 0 {
            return None;
        }
        // SAFETY: the storage is `buf_len` octets of mapped memory that nobody else in this process refers to.
        Some(unsafe { std::slice::from_raw_parts_mut(header.buf_addr.cast::<u8>(), usize::from(header.buf_len)) })
    }

    /// Sets which part of the first segment's storage is the packet's data. Returns false, and changes nothing, if it
    /// does not fit into the storage or if the buffer is shared.
    #[inline]
    #[must_use]
    pub fn set_range(&mut self, start: usize, len: usize) -> bool {
        let Some(header) = self.header_mut() else { return false };
        let room = usize::from(header.buf_len);
        if start > room || len > room - start {
            return false;
        }
        // Both fit into 16 bits, since `buf_len` does.
        header.pkt_len = header.pkt_len - u32::from(header.data_len) + len as u32;
        header.data_off = start as u16;
        header.data_len = len as u16;
        true
    }

    /// Another reference to the same packet.
    #[inline]
    pub fn share(&self) -> Mbuf {
        let mut segment = self.raw.as_ptr();
        while !segment.is_null() {
            // SAFETY: every segment of the chain is live while `self` is. As for `Arc`, a new reference is made from an
            // existing one, so adding to a count needs no ordering. 65,535 references to one packet cannot occur: each
            // is an `Mbuf` that is held somewhere, or is in a descriptor of a device.
            unsafe {
                let count = fast::reference_count(segment);
                // Acquires what those did who have dropped their references: the store below hides their writes of the
                // count from whoever looks at it next.
                if count.load(Ordering::Acquire) == 1 {
                    // It is ours, and `&Mbuf` stays on this thread: nobody else changes the count now. A locked
                    // instruction would wait until all stores before it have left the core.
                    count.store(2, Ordering::Relaxed);
                } else {
                    let before = count.fetch_add(1, Ordering::Relaxed);
                    assert!(before < u16::MAX / 2, "too many references to one packet buffer");
                }
                segment = (*segment).next;
            }
        }
        Mbuf { raw: self.raw }
    }

    /// Address range of the header, for prefetching.
    #[inline]
    pub fn header_place(&self) -> Range<usize> {
        let start = self.raw.as_ptr().addr();
        start..start + size_of::<rte_mbuf>()
    }

    /// Whether there are other references to the first segment, the device's included.
    #[inline]
    pub fn is_shared(&self) -> bool {
        // SAFETY: live while `self` is.
        unsafe { fast::reference_count(self.raw.as_ptr()).load(Ordering::Acquire) != 1 }
    }

    /// Appends `tail` to the chain. `tail` may be shared; this packet's first and last segments must not be.
    ///
    /// # Errors
    /// Returns `tail` if this packet is shared or the chain would have more than 65,535 segments.
    pub fn chain_append(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        let added = field!(tail, nb_segs);
        let added_len = field!(tail, pkt_len);
        let mut last = self.raw.as_ptr();
        // SAFETY: a walk over live segments.
        unsafe {
            while !(*last).next.is_null() {
                last = (*last).next;
            }
            if fast::reference_count(last).load(Ordering::Acquire) != 1 {
                return Err(tail);
            }
        }
        let Some(header) = self.header_mut() else { return Err(tail) };
        let (Some(count), Some(len)) = (header.nb_segs.checked_add(added), header.pkt_len.checked_add(added_len))
        else {
            return Err(tail);
        };
        header.nb_segs = count;
        header.pkt_len = len;
        // SAFETY: the last segment's sole reference is ours, so nobody else follows its `next`; the tail's references
        // move into the chain.
        unsafe { (*last).next = tail.into_raw() };
        Ok(())
    }

    /// Sets the packet's length to the sum of its segments, for a driver that does not.
    #[inline]
    pub(crate) fn sum_segments(&mut self) {
        if self.segment_count() == 1 {
            return;
        }
        let sum = self.segments().map(<[u8]>::len).sum::<usize>();
        if let Some(header) = self.header_mut() {
            header.pkt_len = sum as u32;
        }
    }

    /// Clears these of the driver's flags.
    #[inline]
    pub(crate) fn clear_flags(&mut self, flags: u64) {
        if let Some(header) = self.header_mut() {
            header.ol_flags &= !flags;
        }
    }

    /// Copies octets from `offset` on out of the chain; returns how many were copied, at most `out.len()`.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let mut skip = offset;
        let mut copied = 0;
        for segment in self.segments() {
            if copied == out.len() {
                break;
            }
            if skip >= segment.len() {
                skip -= segment.len();
                continue;
            }
            let part = &segment[skip..];
            skip = 0;
            let count = part.len().min(out.len() - copied);
            out[copied..copied + count].copy_from_slice(&part[..count]);
            copied += count;
        }
        copied
    }

    /// The device's verdicts on the checksums.
    #[inline]
    pub fn rx_checksum(&self) -> RxChecksum {
        let flags = field!(self, ol_flags);
        // "None" means in DPDK that the field is not filled in, and the octets are known to be correct.
        let ip = match flags & sys::UWARP_RX_IP_CKSUM_MASK {
            sys::UWARP_RX_IP_CKSUM_GOOD | sys::UWARP_RX_IP_CKSUM_NONE => ChecksumStatus::Good,
            sys::UWARP_RX_IP_CKSUM_BAD => ChecksumStatus::Bad,
            _ => ChecksumStatus::Unknown,
        };
        let l4 = match flags & sys::UWARP_RX_L4_CKSUM_MASK {
            sys::UWARP_RX_L4_CKSUM_GOOD | sys::UWARP_RX_L4_CKSUM_NONE => ChecksumStatus::Good,
            sys::UWARP_RX_L4_CKSUM_BAD => ChecksumStatus::Bad,
            _ => ChecksumStatus::Unknown,
        };
        RxChecksum { ip, l4 }
    }

    /// Asks the device to fill in checksums. Returns false, and changes nothing, if the buffer is shared.
    #[inline]
    #[must_use]
    pub fn set_tx_checksum(&mut self, checksum: TxChecksum) -> bool {
        let Some(header) = self.header_mut() else { return false };
        let mut flags = if checksum.ipv6 { sys::UWARP_TX_IPV6 } else { sys::UWARP_TX_IPV4 };
        if checksum.ip && !checksum.ipv6 {
            flags |= sys::UWARP_TX_IP_CKSUM;
        }
        if checksum.tcp {
            flags |= sys::UWARP_TX_TCP_CKSUM;
        }
        if checksum.segment_size != 0 {
            flags |= sys::UWARP_TX_TCP_SEG;
        }
        header.ol_flags = flags | header.ol_flags & KIND;
        // The word that the C bit-fields make: l2_len 7 bits, l3_len 9, l4_len 8, tso_segsz 16, from the lowest bit on.
        header.tx_offload = u64::from(checksum.l2_len & 0x7f)
            | u64::from(checksum.l3_len & 0x1ff) << 7
            | u64::from(checksum.l4_len) << 16
            | u64::from(checksum.segment_size) << 24;
        true
    }

    /// The request of [`set_tx_checksum`](Mbuf::set_tx_checksum); `None` if it requested no checksum.
    pub fn tx_checksum(&self) -> Option<TxChecksum> {
        // SAFETY: the reference keeps the header alive, and what is read of it is written only through a sole
        // reference.
        let header = unsafe { self.raw.as_ref() };
        let flags = header.ol_flags;
        let has = |flag: u64| flags & flag == flag;
        let word = header.tx_offload;
        (has(sys::UWARP_TX_IP_CKSUM) || has(sys::UWARP_TX_TCP_CKSUM)).then(|| TxChecksum {
            l2_len: (word & 0x7f) as u8,
            l3_len: (word >> 7 & 0x1ff) as u16,
            l4_len: (word >> 16) as u8,
            ipv6: has(sys::UWARP_TX_IPV6),
            ip: has(sys::UWARP_TX_IP_CKSUM),
            tcp: has(sys::UWARP_TX_TCP_CKSUM),
            segment_size: (word >> 24) as u16,
        })
    }

    /// Clears the request of [`set_tx_checksum`](Mbuf::set_tx_checksum) and the flags of a received packet. Returns
    /// false, and changes nothing, if the buffer is shared.
    #[inline]
    #[must_use]
    pub fn clear_tx_checksum(&mut self) -> bool {
        let Some(header) = self.header_mut() else { return false };
        header.ol_flags &= KIND;
        header.tx_offload = 0;
        true
    }

    /// Requests what `other` requests. Returns false, and changes nothing, if the buffer is shared.
    #[inline]
    #[must_use]
    pub(crate) fn take_offloads_of(&mut self, other: &Mbuf) -> bool {
        let (flags, word) = (field!(other, ol_flags), field!(other, tx_offload));
        let Some(header) = self.header_mut() else { return false };
        header.ol_flags = flags & !KIND | header.ol_flags & KIND;
        header.tx_offload = word;
        true
    }

    /// Passes the reference out of Rust's control.
    #[inline(always)]
    pub(crate) fn into_raw(self) -> *mut rte_mbuf {
        ManuallyDrop::new(self).raw.as_ptr()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the end of the reference that the value stood for.
        unsafe { fast::mbuf_free(self.raw.as_ptr()) }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Mbuf")
            .field("total_len", &self.total_len())
            .field("segments", &self.segment_count())
            .field("shared", &self.is_shared())
            .finish()
    }
}

/// The octets of one segment.
///
/// # Safety
/// The segment is live for `'a`, and its data unchanged.
#[inline(always)]
unsafe fn segment_data<'a>(segment: *const rte_mbuf) -> &'a [u8] {
    // SAFETY: `data_off + data_len <= buf_len` holds for what devices deliver and for what `set_range` admits.
    unsafe {
        let start = (*segment).buf_addr.cast::<u8>().add(usize::from((*segment).data_off));
        std::slice::from_raw_parts(start, usize::from((*segment).data_len))
    }
}

/// The segments of a packet, see [`Mbuf::segments`].
pub struct Segments<'a> {
    next: *const rte_mbuf,
    _packet: &'a Mbuf,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if ptr::eq(self.next, ptr::null()) {
            return None;
        }
        // SAFETY: the chain is live and unchanged while the packet is borrowed.
        unsafe {
            let segment = self.next;
            self.next = (*segment).next;
            Some(segment_data(segment))
        }
    }
}
