//! Attacks from the link and the network: addresses, fragments, ICMP.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::hostile::den::{Den, Opening, Pace, Reader};
use crate::hostile::{Attack, FRAGMENTS, PORT, Scene, Target};
use uwarp_engine::stats::EngineStats;
use uwarp_tcp::Instant;
use uwarp_testkit::rig::address6;
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{emit_fragment, emit_icmp};
use uwarp_wire::icmp::{IcmpMessage, unreachable};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use super::Maker;
use super::tcp::STEP;

/// The attacks of this file.
pub const ATTACKS: &[(&str, Maker)] = &[
    ("hash-collisions", || Box::new(HashCollisions::default())),
    ("packet-too-big", || Box::new(PacketTooBig::default())),
    ("tiny-fragments", || Box::new(TinyFragments::default())),
    ("neighbour-flood", || Box::new(NeighbourFlood::default())),
];

/// SYNs whose addresses collide under an unkeyed hash, so that they are adjacent in the flow table; then segments that
/// are looked up behind all of them.
#[derive(Debug)]
struct HashCollisions {
    pace: Pace,
    sent: u64,
}

impl Default for HashCollisions {
    fn default() -> Self {
        HashCollisions { pace: Pace::every(STEP), sent: 0 }
    }
}

/// Upper half of the addresses.
const COLLIDES: u64 = 0x3f53_d648_3683_af22;
/// Connections that are opened.
const COLLIDING: u64 = 1000;

impl Attack for HashCollisions {
    fn warm_up(&self) -> Duration {
        Duration::from_millis(40)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            self.sent += 1;
            let opens = self.sent <= COLLIDING;
            let mut header = TcpHeader::new(if opens { TcpFlags::SYN } else { TcpFlags::ACK });
            // Where the backlog has room for all of them.
            (header.source_port, header.destination_port) = (5000, 7470);
            (header.sequence, header.window) = (SeqNumber(1), 8192);
            let address = Ipv6Addr::from_bits(u128::from(COLLIDES) << 64 | u128::from(self.sent));
            den.send_segment(now, (address.into(), address6(1).into()), &header, &[]);
        }
        self.pace.next()
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.connections.len() as u64 > COLLIDING
    }
}

/// ICMP errors with smaller and smaller MTUs, each well-formed, beside many connections that they do not concern.
#[derive(Debug)]
struct PacketTooBig {
    pace: Pace,
    reader: Reader,
    number: Option<usize>,
    from: u8,
    mtu: u16,
}

impl Default for PacketTooBig {
    fn default() -> Self {
        PacketTooBig { pace: Pace::every(STEP), reader: Reader::new(64 << 10, 4), number: None, from: 0, mtu: 1500 }
    }
}

impl Attack for PacketTooBig {
    fn scene(&self) -> Scene {
        Scene { crowd: 256, ..Scene::default() }
    }

    fn turn(&mut self, now: Instant, den: &mut Den, target: &Target) -> Option<Instant> {
        if self.mtu < 600 {
            // The next address, whose path still has its full MTU.
            (self.number, self.mtu, self.reader) = (None, 1500, Reader::new(64 << 10, 4));
            self.from += 1;
        }
        let opening = Opening { from: self.from, ..Opening::rdma(PORT).manual() };
        let number = *self.number.get_or_insert_with(|| den.open(now, opening));
        if !den.puppet(number).is_running() {
            return None;
        }
        self.reader.ask(now, den, number, target.stag);
        for _ in 0..self.pace.due(now) {
            self.mtu -= 1;
            let quoted = &den.quote(number)[..];
            let message = IcmpMessage::DestinationUnreachable {
                code: unreachable::FRAGMENTATION_NEEDED,
                next_hop_mtu: self.mtu,
                quoted,
            };
            let mut claim = [0; 128];
            let length = emit_icmp(&mut claim, &den.path(self.from), &message).expect("it fits");
            den.send_frame(now, &claim[..length]);
        }
        self.pace.next()
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.counters.path_mtu_changes > 100
    }
}

/// Fragments of eight octets, of packets that never become complete.
#[derive(Debug)]
struct TinyFragments {
    pace: Pace,
    sent: u32,
}

impl Default for TinyFragments {
    fn default() -> Self {
        TinyFragments { pace: Pace::every(STEP), sent: 0 }
    }
}

/// The least memory of a fragment: a vector, its position, and the smallest block of the allocator.
const PIECE: u64 = 64;

impl Attack for TinyFragments {
    fn warm_up(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            let (id, piece) = (self.sent / 127, self.sent % 127);
            self.sent += 1;
            let mut frame = [0; 64];
            let offset = 8 * (piece as usize + 1);
            let length = emit_fragment(&mut frame, &den.path(0), 17, id, (offset, true), &[6; 8]).expect("it fits");
            den.send_frame(now, &frame[..length]);
        }
        self.pace.next()
    }

    fn judge(&self, stats: &EngineStats, _den: &Den) -> Option<String> {
        let takes = stats.fragments * PIECE;
        (takes > FRAGMENTS.into())
            .then(|| format!("{} fragments take {takes} octets of a budget of {FRAGMENTS}", stats.fragments))
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.fragments > 100 && self.sent > 8000
    }
}

/// ARP requests of ever new neighbours.
#[derive(Debug)]
struct NeighbourFlood {
    pace: Pace,
    sent: u32,
}

impl Default for NeighbourFlood {
    fn default() -> Self {
        NeighbourFlood { pace: Pace::every(STEP), sent: 0 }
    }
}

impl Attack for NeighbourFlood {
    fn scene(&self) -> Scene {
        Scene { pings: 32, ..Scene::default() }
    }

    fn turn(&mut self, now: Instant, den: &mut Den, _target: &Target) -> Option<Instant> {
        for _ in 0..self.pace.due(now) {
            self.sent += 1;
            let sender = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + self.sent);
            let mut frame = [0; 64];
            let asks = ArpPacket::request(EthernetAddress(den.mac.0), sender, den.target());
            let length = asks.emit_frame(&mut frame).expect("it fits");
            den.send_frame(now, &frame[..length]);
        }
        self.pace.next()
    }

    fn works(&self, stats: &EngineStats, _den: &Den) -> bool {
        stats.neighbours >= 64 && self.sent > 1000
    }
}
