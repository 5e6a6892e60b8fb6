//! Frames that need no record: their headers, and the way to the device's queue.

use uwarp_wire::address::{FlowKey, IpAddress};
use uwarp_wire::ethernet::{EthernetAddress, HEADER_LEN, VLAN_TAG_LEN, VlanTag};
use uwarp_wire::frame::{Path, TcpChecksum, prepend_tcp};
use uwarp_wire::tcp::TcpHeader;
use uwarp_wire::{ipv4, ipv6};

use crate::api::counters::Counters;
use crate::api::stats::DropReason;
use crate::link::Link;
use crate::link::port::{Buffer, Port, TransmitChecksums};

impl<P: Port> Link<P> {
    /// What the headers of a frame of ours say.
    pub(crate) fn path(&self, mac: EthernetAddress, local: IpAddress, remote: IpAddress) -> Path {
        Path { vlan: self.vlan, ..Path::new(self.own_mac, mac, local, remote) }
    }

    /// Sends a segment without payload. False: it was not sent, which is counted.
    #[inline]
    pub(crate) fn send_bare(
        &mut self,
        counters: &mut Counters,
        flow: &FlowKey,
        mac: EthernetAddress,
        to_self: bool,
        header: TcpHeader,
    ) -> bool {
        let Some(mut buffer) = self.alloc() else {
            counters.count_drop(DropReason::NoTransmitBuffer);
            return false;
        };
        let path = self.path(mac, flow.local, flow.remote);
        let start = self.payload_start;
        let offload_tcp = self.offload_tcp && !to_self;
        let checksum = checksum(offload_tcp, 0);
        let headers = buffer
            .storage_mut()
            .and_then(|storage| prepend_tcp(&mut storage[..start], &path, &header, 0, 0, checksum).ok());
        let Some(headers) = headers else {
            counters.cannot_be("the headers of a segment do not fit into a fresh buffer");
            return false;
        };
        buffer.set_range(start - headers, headers);
        if offload_tcp {
            buffer.set_transmit_checksums(offloads(headers, self.vlan, flow.local));
        }
        self.enqueue(counters, buffer, to_self);
        true
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, counters: &mut Counters, frame: P::Buffer, to_self: bool) {
        counters.octets_sent += frame.total_len() as u64;
        if to_self {
            counters.frames_sent += 1;
            self.loopback.push_back(frame);
        } else {
            self.transmit.queue.push_back(frame);
        }
    }

    /// Sends a frame that `write` writes, apart from TCP; gives whether it was sent. Nobody waits for such a frame:
    /// without room or a buffer it is dropped.
    pub(crate) fn send_aside(
        &mut self,
        counters: &mut Counters,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let buffer = if self.has_room() { self.alloc() } else { None };
        let Some(mut buffer) = buffer else {
            counters.count_drop(DropReason::NoTransmitBuffer);
            return false;
        };
        let start = self.payload_start;
        let Some(length) = buffer.storage_mut().and_then(|storage| write(storage.get_mut(start..)?)) else {
            counters.cannot_be("a frame does not fit into a fresh buffer");
            return false;
        };
        buffer.set_range(start, length);
        self.enqueue(counters, buffer, false);
        true
    }
}

/// What is written into the field of a TCP checksum.
#[inline]
pub(crate) fn checksum(offload: bool, payload_sum: u32) -> TcpChecksum {
    if offload { TcpChecksum::PseudoHeaderOnly } else { TcpChecksum::Full { payload_sum } }
}

/// The IPv4 header's own checksum costs less than asking for it.
#[inline]
pub(crate) fn offloads(headers: usize, vlan: Option<VlanTag>, local: IpAddress) -> TransmitChecksums {
    let link = HEADER_LEN + if vlan.is_some() { VLAN_TAG_LEN } else { 0 };
    let ip = if local.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    TransmitChecksums {
        ip: false,
        tcp: true,
        link_length: link as u8,
        ip_length: ip as u16,
        tcp_length: (headers - link - ip) as u8,
        segment_size: 0,
    }
}
