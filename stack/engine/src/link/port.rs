//! What an engine needs of a device.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::Path;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use crate::api::command::ControlError;
use crate::ports::decorated::FaultRates;

/// Most frames taken from or given to a port at once.
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
    /// Not looked at: software has to.
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

/// What the device shall fill in when it sends a frame. The TCP checksum field holds the pseudo-header's sum then.
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
    /// The frame is cut into segments of so many octets of payload; 0: it leaves as it is. The sum in the TCP checksum field is
    /// then without the length.
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
    /// Part `index` (0 is [`Buffer::data`]).
    fn segment(&self, index: usize) -> Option<&[u8]>;
    /// The first part's whole storage, headroom included; `None` while it is shared.
    fn storage_mut(&mut self) -> Option<&mut [u8]>;
    /// Makes `length` octets from `start` of the storage the frame. Values beyond the storage are cut.
    fn set_range(&mut self, start: usize, length: usize);
    /// Where the frame starts in its storage.
    fn start(&self) -> usize;
    /// A second reference to the same frame.
    fn share(&self) -> Self;
    /// Whether there is another reference, for instance the device's.
    fn is_shared(&self) -> bool;
    /// Makes `tail` the last parts of this frame. Nobody else may hold this one.
    ///
    /// # Errors
    /// Gives `tail` back if the frame is shared or cannot have so many parts.
    fn chain(&mut self, tail: Self) -> Result<(), Self>;
    /// Asks the processor to bring near what giving the buffer back touches, and using it again. Nothing depends on it.
    fn prefetch(&self) {}
    /// What the device found out about the checksums.
    fn received_checksums(&self) -> ReceivedChecksums;
    /// What the device shall compute.
    fn set_transmit_checksums(&mut self, checksums: TransmitChecksums);
    /// What the device was told to compute. The octets are not whole without it.
    fn transmit_checksums(&self) -> TransmitChecksums;
}

/// Whether frames can pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// They can.
    Up,
    /// They cannot.
    Down,
}

/// What a port is and can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet in octets.
    pub mtu: u16,
    /// Storage of one buffer in octets, headroom included.
    pub data_room: usize,
    /// Octets of it in front of a frame where headers go.
    pub headroom: usize,
    /// The device fills in IPv4 header checksums.
    pub transmit_ip_checksum: bool,
    /// The device fills in TCP checksums.
    pub transmit_tcp_checksum: bool,
    /// Parts that a frame may have which the device cuts into segments; 0 if it cuts none.
    pub segmentation_parts: usize,
}

/// Levels of the receive and the transmit pool, in buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolLevels {
    /// Receive buffers in all.
    pub receive_total: u32,
    /// Receive buffers that are free.
    pub receive_free: u32,
    /// Transmit buffers in all.
    pub transmit_total: u32,
    /// Transmit buffers that are free.
    pub transmit_free: u32,
}

/// One queue of a device: what an engine polls.
pub trait Port {
    /// Its frames.
    type Buffer: Buffer;

    /// A fresh buffer of the transmit pool.
    fn alloc(&mut self) -> Option<Self::Buffer>;
    /// A fresh buffer that shows `length` octets from `start` of another one's storage, and keeps that: a part of a chain. Only asked
    /// of ports with [`Capabilities::segmentation_parts`].
    fn view(&mut self, of: &Self::Buffer, start: usize, length: usize) -> Option<Self::Buffer> {
        let _ = (of, start, length);
        None
    }
    /// Takes received frames, as many as `batch` has room for; returns how many.
    fn rx_burst(&mut self, batch: &mut Batch<Self::Buffer>) -> usize;
    /// Gives frames to the device: those taken are removed from the front; the rest stays in order. Returns how many
    /// were taken.
    fn tx_burst(&mut self, frames: &mut VecDeque<Self::Buffer>) -> usize;
    /// State of the link. Called now and then, not every turn.
    fn link(&mut self) -> LinkState;
    /// What the port is and can: does not change.
    fn capabilities(&self) -> &Capabilities;
    /// Levels of the pools. Called now and then, not every turn.
    fn pool_levels(&self) -> PoolLevels;
    /// Buffers left in the transmit pool: cheap, asked before work is pulled.
    fn transmit_free(&self) -> usize {
        self.pool_levels().transmit_free as usize
    }
    /// Has the device announce frames, for a thread that is about to sleep: from now on one of [`Port::wakeup_descriptors`]
    /// becomes readable when a frame arrives. What came before is not announced, so the caller looks once more. False if the
    /// device cannot do so, or not now.
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
    /// When the port will have something to receive, if it knows (virtual time only).
    fn next_arrival(&self) -> Option<uwarp_tcp::Instant> {
        None
    }
    /// Sets or clears deliberate faults. Plain ports have none: see [`crate::ports::decorated`].
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
