//! Who is who on a switch: whose segment it is, and which connections begin.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use uwarp_ring::cable::{Owner, Owners};
use uwarp_wire::address::IpAddress;
use uwarp_wire::fixed::{self, PLAIN, Packet, V4, V6};
use uwarp_wire::tcp::TcpFlags;

use super::super::heap::HeapBuffer;
use crate::link::port::Buffer;

/// Connections of whose handshake the switch learns: the last ones.
const OPENINGS: usize = 64;
/// Segments of other connections behind which the openings are forgotten: they have led to nothing.
const MOST_MISSES: u32 = 1024;
/// Flags of segments that begin or end a connection.
pub(super) const RARE: TcpFlags = TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST);

/// Who is who on the switch.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) owners: Owners,
    /// The client's own number.
    pub(super) number: u16,
    /// The client's own network.
    pub(super) network: u8,
    pub(super) mac: [u8; 6],
    pub(super) switch_mac: [u8; 6],
    /// The addresses on the switch, in their order, each with its network.
    pub(super) addresses: Vec<(IpAddress, u8)>,
    /// There are others than those of the own network.
    pub(super) has_others: bool,
}

impl Names {
    /// These are the addresses from now on.
    #[cold]
    pub(super) fn set_addresses(&mut self, addresses: Vec<(IpAddr, u8)>) {
        self.has_others = addresses.iter().any(|(_, network)| *network != self.network);
        self.addresses = addresses.into_iter().map(|(address, network)| (address.into(), network)).collect();
        self.addresses.sort_unstable();
    }

    /// The network that an address on the switch is of.
    #[inline]
    fn network_of(&self, address: IpAddress) -> Option<u8> {
        let found = self.addresses.binary_search_by(|(own, _)| own.cmp(&address)).ok()?;
        Some(self.addresses[found].1)
    }

    /// The one client to which a segment to the switch goes.
    #[inline]
    pub(super) fn receiver(&self, frame: &[u8], segment: &Segment) -> Option<u16> {
        let network = if self.has_others { self.network_of(destination(frame, segment)?)? } else { self.network };
        match self.owners.get(network, segment.destination_port) {
            Owner::One(peer) => Some(peer),
            _ => None,
        }
    }

    /// Whether a port is the client's and no other's of its network.
    #[inline]
    pub(super) fn is_own(&self, port: u16) -> bool {
        self.owners.get(self.network, port) == Owner::One(self.number)
    }

    /// Whether a frame is a peer's own: a segment from an address of the peer's network and a port of the peer that
    /// begins no connection. Then it gets the hardware addresses that the switch would give it.
    #[inline]
    pub(super) fn is_from(&self, peer: u16, frame: &mut HeapBuffer) -> bool {
        let Some(segment) = segment(frame.data()) else { return false };
        let Some(network) = self.network_of(segment.source) else { return false };
        let owner = self.owners.get(network, segment.source_port);
        if owner != Owner::One(peer) && owner != Owner::Past(peer) || segment.flags.contains(TcpFlags::SYN) {
            return false;
        }
        let start = frame.start();
        let Some(addresses) = frame.storage_mut().and_then(|storage| storage.get_mut(start..start + 12)) else {
            return false;
        };
        addresses[..6].copy_from_slice(&self.mac);
        addresses[6..].copy_from_slice(&self.switch_mac);
        true
    }
}

/// Connections that this client opens: the switch gets a note of the segment behind the SYN.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// Ports, here and there.
    pub(super) ports: ArrayVec<(u16, u16), OPENINGS>,
    /// Segments of other connections since the last opening.
    misses: u32,
}

impl Openings {
    #[cold]
    pub(super) fn add(&mut self, ports: (u16, u16)) {
        self.ports.retain(|opening| *opening != ports);
        if self.ports.is_full() {
            self.ports.remove(0);
        }
        self.ports.push(ports);
        self.misses = 0;
    }

    /// Whether a segment is the first behind the SYN of an opening.
    pub(super) fn take(&mut self, ports: (u16, u16)) -> bool {
        let before = self.ports.len();
        self.ports.retain(|opening| *opening != ports);
        let is_one = self.ports.len() < before;
        self.misses += u32::from(!is_one);
        if self.misses > MOST_MISSES {
            self.ports.clear();
        }
        is_one
    }
}

/// What the port reads of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) source: IpAddress,
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) flags: TcpFlags,
    /// Where the TCP header begins.
    pub(super) tcp: usize,
}

/// The destination of a segment that was read from a frame.
#[cold]
fn destination(frame: &[u8], segment: &Segment) -> Option<IpAddress> {
    if segment.source.is_ipv4() {
        Packet::<PLAIN, V4>::of(frame).map(Packet::destination)
    } else {
        Packet::<PLAIN, V6>::of(frame).map(Packet::destination)
    }
}

/// Reads a segment without IP options and fragments.
#[inline(always)]
pub(super) fn segment(frame: &[u8]) -> Option<Segment> {
    segment_over::<V4>(frame).or_else(|| segment_over::<V6>(frame))
}

#[inline(always)]
fn segment_over<const IP: usize>(frame: &[u8]) -> Option<Segment> {
    let head = fixed::Segment::<PLAIN, IP>::of(frame).filter(|head| head.packet().is_tcp())?;
    Some(Segment {
        source: head.packet().source(),
        source_port: head.source_port(),
        destination_port: head.destination_port(),
        flags: head.flags(),
        tcp: PLAIN + IP,
    })
}
