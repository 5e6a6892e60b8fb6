//! Received segments: which are for us and intact, and resets for those that belong to no connection.

use uwarp_memory::kernels::checksum_sum;
use uwarp_wire::ethernet::VlanTag;
use uwarp_wire::frame::TcpFrame;
use uwarp_wire::tcp::TcpHeader;

use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::link::Link;
use crate::link::port::{Buffer, ChecksumStatus, Port};

/// Where a received segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In the frame that has brought it.
    Frame,
    /// In a transmit buffer of its own: it came in fragments, or from another engine.
    Copy {
        /// That buffer is not of the reserve, so the segment may be held.
        may_wait: bool,
    },
}

impl<P: Port> Link<P> {
    /// Whether a segment is for us and intact. What is not is counted.
    #[inline]
    pub(crate) fn admits(&self, counters: &mut Counters, frame: &TcpFrame, buffer: &P::Buffer) -> bool {
        let reason = if frame.destination_mac != self.own_mac {
            DropReason::NotForUs
        } else if !self.is_our_vlan(frame.vlan) {
            DropReason::WrongVlan
        } else if !is_intact(frame, buffer) {
            DropReason::L4Checksum
        } else {
            return true;
        };
        counters.count_drop(reason);
        false
    }

    /// Whether a frame with this tag belongs to the port's VLAN. A tag with number 0 carries a priority and no VLAN
    /// (IEEE 802.1Q §9.6).
    #[inline]
    pub(crate) fn is_our_vlan(&self, tag: Option<VlanTag>) -> bool {
        let number = |tag: Option<VlanTag>| tag.map_or(0, VlanTag::identifier);
        (tag.is_none() && self.vlan.is_none()) || number(tag) == number(self.vlan)
    }

    /// Answers a segment that belongs to no connection with a reset.
    #[cold]
    pub(crate) fn send_reset(&mut self, counters: &mut Counters, to_self: bool, frame: &TcpFrame, header: TcpHeader) {
        // No host has such an address. The caller has counted the segment.
        if frame.flow.remote.is_unspecified() || frame.flow.remote.is_multicast() {
            return;
        }
        if !self.has_room() {
            return counters.count_drop(DropReason::NoTransmitBuffer);
        }
        if self.send_bare(counters, &frame.flow, frame.source_mac, to_self, header) {
            counters.resets_sent += 1;
        }
    }
}

/// Whether the TCP checksum of a frame is right, which the device may have found out.
#[inline]
fn is_intact<B: Buffer>(frame: &TcpFrame, buffer: &B) -> bool {
    match buffer.received_checksums().tcp {
        ChecksumStatus::Good => true,
        ChecksumStatus::Bad => false,
        ChecksumStatus::Unknown if buffer.segment_count() == 1 => frame.checksum_is_good(buffer.data(), checksum_sum),
        ChecksumStatus::Unknown => frame.checksum_is_good_chained(buffer.segments(), checksum_sum),
    }
}
