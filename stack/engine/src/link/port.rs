//! What an engine needs of a device.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::Path;

use arrayvec::ArrayVec;

use crate::api::event::ControlError;
use crate::api::faults::FaultRates;
pub use crate::api::stats::PoolLevels;

/// Most frames in one burst, received or sent.
pub const BURST: usize = 32;

/// A batch of received frames.
pub type Batch<B> = ArrayVec<B, BURST>;

/// Descriptors to wait for.
pub type Descriptors<'a> = ArrayVec<BorrowedFd<'a>, 2>;

/// What a device says about a received frame's checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChecksumStatus {
    /// Verified and right.
    Good,
    /// Verified and wrong.
    Bad,
    /// Not verified: software must do it.
    #[default]
    Unknown,
}

/// Checksum status of the IP header and of the TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceivedChecksums {
    /// IPv4 header.
    pub ip: ChecksumStatus,
    /// TCP, with its pseudo-header.
    pub tcp: ChecksumStatus,
}

/// What the device fills in when it sends a frame. The TCP checksum field then contains the pseudo-header's sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransmitChecksums {
    /// IPv4 header checksum.
    pub ip: bool,
    /// TCP checksum.
    pub tcp: bool,
    /// Length of the link-layer header in octets.
    pub link_length: u8,
    /// Length of the IP header in octets.
    pub ip_length: u16,
    /// Length of the TCP header in octets.
    pub tcp_length: u8,
    /// The device cuts the frame into segments of this many octets of payload; 0: it leaves uncut. The sum in the TCP
    /// checksum field includes the length of the whole, as virtio has it.
    pub segment_size: u16,
}

/// One frame's memory: an owned reference to it. Dropping it gives the memory back to its pool.
///
/// A received frame may be a chain of parts; a frame to be sent is one part.
pub trait Buffer: Sized {
    /// Octets of the first part.
    fn data(&self) -> &[u8];
    /// Octets of all parts.
    fn total_len(&self) -> usize;
    /// Number of parts.
    fn segment_count(&self) -> usize;
    /// The parts. The first is [`Buffer::data`].
    fn segments(&self) -> impl Iterator<Item = &[u8]>;
    /// The first part's whole storage, headroom included; `None` while it is shared.
    fn storage_mut(&mut self) -> Option<&mut [u8]>;
    /// Makes `length` octets from `start` of the storage the frame. Values beyond the storage are clamped.
    fn set_range(&mut self, start: usize, length: usize);
    /// Where the frame starts in its storage.
    fn start(&self) -> usize;
    /// Another reference to the same frame.
    fn share(&self) -> Self;
    /// Whether there is another reference, for instance the device's.
    fn is_shared(&self) -> bool;
    /// Appends `tail` to this frame, which must not be shared.
    ///
    /// # Errors
    /// Returns `tail` if the frame is shared or cannot have that many parts.
    fn chain(&mut self, tail: Self) -> Result<(), Self>;
    /// Prefetches what freeing the buffer and using it again touches. A mere hint.
    fn prefetch(&self) {}
    /// The device's verdict on the checksums.
    fn received_checksums(&self) -> ReceivedChecksums;
    /// Sets what the device fills in.
    fn set_transmit_checksums(&mut self, checksums: TransmitChecksums);
    /// What the device fills in. Without it the octets are incomplete.
    fn transmit_checksums(&self) -> TransmitChecksums;
}

/// Whether the link passes frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It does.
    Up,
    /// It does not.
    Down,
}

/// Properties of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet in octets.
    pub mtu: u16,
    /// Storage of one buffer in octets, headroom included.
    pub data_room: usize,
    /// Octets of the storage in front of a fresh frame, for headers.
    pub headroom: usize,
    /// The device fills in IPv4 header checksums.
    pub transmit_ip_checksum: bool,
    /// The device fills in TCP checksums.
    pub transmit_tcp_checksum: bool,
    /// The device cuts frames that are longer than the MTU into segments. It computes their checksums.
    pub segmentation: bool,
}

/// One queue of a device, which an engine polls.
pub trait Port {
    /// Its frames.
    type Buffer: Buffer;

    /// A fresh buffer of the transmit pool.
    fn alloc(&mut self) -> Option<Self::Buffer>;
    /// Moves received frames into `batch`, as many as it has room for; returns how many.
    fn rx_burst(&mut self, batch: &mut Batch<Self::Buffer>) -> usize;
    /// Gives the device one frame while no other waits for it. Gives it back if the device does not take it now, or
    /// only from a queue.
    ///
    /// # Errors
    /// The frame.
    #[inline]
    fn tx_one(&mut self, frame: Self::Buffer) -> Result<(), Self::Buffer> {
        Err(frame)
    }
    /// Gives frames to the device. It removes those that it takes from the front. Returns how many it took.
    fn tx_burst(&mut self, frames: &mut VecDeque<Self::Buffer>) -> usize;
    /// State of the link. Called rarely, not every turn.
    fn link(&mut self) -> LinkState;
    /// Properties of the port. They do not change.
    fn capabilities(&self) -> &Capabilities;
    /// Fill levels of the pools. Called rarely, not every turn.
    fn pool_levels(&self) -> PoolLevels;
    /// Free buffers of the transmit pool. Must be cheap: it is called before work is pulled.
    fn transmit_free(&self) -> usize {
        self.pool_levels().transmit_free as usize
    }
    /// Has the device announce frames, for a thread that is about to sleep: from now on one of
    /// [`Port::wakeup_descriptors`] becomes readable when a frame arrives. What came before is not announced, so the
    /// caller looks once more. False if the device cannot do so, or not now.
    fn enable_wakeups(&mut self) -> bool {
        false
    }
    /// What to wait for after [`Port::enable_wakeups`].
    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        Descriptors::new()
    }
    /// Ends the announcements. Returns whether the link may have changed meanwhile.
    fn disable_wakeups(&mut self) -> bool {
        false
    }
    /// Time of this turn, for ports that live in virtual time. Called once at the start of each turn.
    fn set_now(&mut self, now: uwarp_tcp::Instant) {
        let _ = now;
    }
    /// When the port next has something to do in [`Port::rx_burst`] without having announced it, if it knows.
    fn next_arrival(&self) -> Option<uwarp_tcp::Instant> {
        None
    }
    /// Sets or clears deliberate faults. Plain ports have none; see [`crate::ports::decorated`].
    fn set_faults(&mut self, faults: Option<FaultRates>) {
        let _ = faults;
    }
    /// Starts to write every frame to a file.
    ///
    /// # Errors
    /// The file cannot be written, or the port cannot capture.
    fn start_capture(&mut self, path: &Path) -> Result<(), ControlError> {
        let cause = "this port cannot capture".to_owned();
        Err(ControlError::File { path: path.to_owned(), cause })
    }
    /// Ends the capture.
    fn stop_capture(&mut self) {}
    /// Deliberate faults so far, by kind.
    fn fault_counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}
