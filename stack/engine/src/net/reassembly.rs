//! Reassembly within a budget and a time limit (RFC 791 §3.2, RFC 1122 §3.3.2, RFC 8200 §4.5).
//!
//! Overlapping fragments discard their packet, in IPv6 by RFC 5722 and in IPv4 too: no sender makes them, and only
//! attackers profit from the ambiguity. When the budget is used up, the packet that has waited longest is dropped, so a
//! flood of first fragments cannot exclude others for the whole time limit.

use std::collections::BTreeMap;
use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::address::IpAddress;
use uwarp_wire::frame::{FragmentFrame, Route};

/// How long a packet waits for its fragments (RFC 8200 §4.5; within the recommendation of RFC 1122 §3.3.2).
const LIMIT: Duration = Duration::from_secs(60);
/// Most fragments of one packet: 65535 octets in pieces for the smallest MTU.
const MOST_PIECES: usize = 128;
/// Octets of a first fragment that are kept for an ICMP error.
const QUOTED: usize = 1232;
/// Memory of a packet besides its pieces: its entries in two trees, whose nodes may be less than half full.
const OVERHEAD: usize = 768;
/// Memory of a piece besides its octets: its entry in a list that may be half empty, and the allocator's overhead.
const PIECE_OVERHEAD: usize = 96;
/// ECN fields (RFC 3168 §5): not ECN-capable, and congestion experienced.
const NOT_ECT: u8 = 0;
const CE: u8 = 3;
/// Most octets of a packet behind its IP header.
const MOST_OCTETS: usize = 65_535;

/// What identifies a packet (RFC 791 §2.3, RFC 8200 §4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    source: IpAddress,
    destination: IpAddress,
    identification: u32,
    /// IPv4 only: fragments of one IPv6 packet may differ in it.
    protocol: u8,
}

#[derive(Debug)]
struct Packet {
    /// Its number in [`Reassembly::ages`].
    age: u64,
    until: Instant,
    route: Route,
    protocol: u8,
    hop_limit: u8,
    traffic_class: u8,
    /// ECN fields of the fragments seen, one bit for each value.
    ecn: u8,
    /// Sorted by offset, without overlaps.
    pieces: Vec<(usize, Vec<u8>)>,
    octets: usize,
    /// Length, once the last fragment has arrived.
    total: Option<usize>,
    /// The first fragment's packet, from its IP header on.
    quoted: Vec<u8>,
    /// A fragment overlapped: further ones are dropped until the time limit (RFC 5722 §4).
    refused: bool,
}

/// A packet that is complete.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) route: Route,
    pub(crate) protocol: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) payload: Vec<u8>,
}

/// The result of taking a fragment.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It waits for the others.
    Waiting,
    /// It completed its packet.
    Whole(Box<Whole>),
    /// The fragment, or the packet that it completes, is invalid.
    Refused,
    /// Invalid in a way that IPv6 reports to the sender (RFC 8200 §4.5). `pointer` is the offset of the fault from the
    /// packet's start.
    Problem { pointer: u32 },
}

/// All incomplete packets. The cost of a fragment grows with the logarithm of their number: a flood of first fragments
/// fills the budget, and must not make other fragments expensive.
#[derive(Debug)]
pub(crate) struct Reassembly {
    /// A tree: a hash table that always gets new entries may grow to four times their size.
    packets: BTreeMap<Key, Packet>,
    /// Packets in the order of their first arrival, which is also that of their time limits.
    ages: BTreeMap<u64, Key>,
    /// Packets ever begun.
    begun: u64,
    budget: usize,
    used: usize,
}

impl Reassembly {
    /// Room for `budget` octets; 0 drops all fragments.
    pub(crate) fn new(budget: usize) -> Reassembly {
        Reassembly { packets: BTreeMap::new(), ages: BTreeMap::new(), begun: 0, budget, used: 0 }
    }

    /// Octets in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Fragments that are stored.
    pub(crate) fn pieces(&self) -> usize {
        self.packets.values().map(|packet| packet.pieces.len()).sum()
    }

    /// Takes a fragment; `octets` is the frame.
    pub(crate) fn take(&mut self, now: Instant, frame: &FragmentFrame, octets: &[u8]) -> Taken {
        let Some(piece) = octets.get(frame.payload_offset..frame.payload_offset + frame.payload_len) else {
            return Taken::Refused;
        };
        let end = frame.offset + piece.len();
        let v4 = frame.route.source.is_ipv4();
        if frame.more && !piece.len().is_multiple_of(8) {
            // The fault is in the payload length field.
            return if v4 { Taken::Refused } else { Taken::Problem { pointer: 4 } };
        }
        if end > MOST_OCTETS {
            let pointer = (frame.payload_offset - frame.route.ip_offset - 6) as u32;
            return if v4 { Taken::Refused } else { Taken::Problem { pointer } };
        }
        let quoted = if frame.offset == 0 { frame.route.ip_len.min(QUOTED) } else { 0 };
        let wanted = piece.len() + PIECE_OVERHEAD + quoted + OVERHEAD;
        if piece.is_empty() || wanted > self.budget {
            return Taken::Refused;
        }
        let key = Key {
            source: frame.route.source,
            destination: frame.route.destination,
            identification: frame.identification,
            protocol: if v4 { frame.protocol } else { 0 },
        };
        self.make_room(wanted, &key);
        let packet = self.packets.entry(key).or_insert_with(|| {
            self.begun += 1;
            self.ages.insert(self.begun, key);
            self.used += OVERHEAD;
            Packet::new(self.begun, now + LIMIT, frame)
        });
        let before = packet.memory();
        let fits = packet.add(frame, octets, piece);
        self.used = self.used + packet.memory() - before;
        if !fits {
            return Taken::Refused;
        }
        if packet.total != Some(packet.octets) {
            return Taken::Waiting;
        }
        let whole = self.remove(&key).and_then(Packet::into_whole);
        whole.map_or(Taken::Refused, |whole| Taken::Whole(Box::new(whole)))
    }

    fn remove(&mut self, key: &Key) -> Option<Packet> {
        let packet = self.packets.remove(key)?;
        self.ages.remove(&packet.age);
        self.used -= packet.memory() + OVERHEAD;
        Some(packet)
    }

    fn make_room(&mut self, wanted: usize, spared: &Key) {
        while self.used + wanted > self.budget {
            let oldest = self.ages.values().find(|key| *key != spared).copied();
            // It is alone and still too large.
            let key = oldest.unwrap_or(*spared);
            if self.remove(&key).is_none() {
                return;
            }
        }
    }

    /// When the next packet expires.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.oldest().map(|(_, until)| until)
    }

    /// The next expired packet: its route, and the beginning of its first fragment if that has arrived.
    pub(crate) fn poll_expired(&mut self, now: Instant) -> Option<(Route, Vec<u8>)> {
        let (key, _) = self.oldest().filter(|(_, until)| *until <= now)?;
        let packet = self.remove(&key)?;
        Some((packet.route, packet.quoted))
    }

    /// The packet that has waited longest, and when it expires.
    fn oldest(&self) -> Option<(Key, Instant)> {
        let (_, key) = self.ages.first_key_value()?;
        self.packets.get(key).map(|packet| (*key, packet.until))
    }
}

impl Packet {
    fn new(age: u64, until: Instant, frame: &FragmentFrame) -> Packet {
        Packet {
            age,
            until,
            route: frame.route,
            protocol: frame.protocol,
            hop_limit: frame.hop_limit,
            traffic_class: frame.traffic_class,
            ecn: 0,
            pieces: Vec::new(),
            octets: 0,
            total: None,
            quoted: Vec::new(),
            refused: false,
        }
    }

    fn memory(&self) -> usize {
        self.octets + self.pieces.len() * PIECE_OVERHEAD + self.quoted.len()
    }

    /// Adds a fragment; false if it is invalid.
    fn add(&mut self, frame: &FragmentFrame, octets: &[u8], piece: &[u8]) -> bool {
        if self.refused {
            return false;
        }
        let end = frame.offset + piece.len();
        let place = self.pieces.partition_point(|(at, _)| *at < frame.offset);
        if let Some((at, same)) = self.pieces.get(place)
            && *at == frame.offset
            && same.as_slice() == piece
        {
            // A duplicate made by the network (RFC 8200 §4.5 permits to ignore exact duplicates).
            return true;
        }
        let before = place.checked_sub(1).and_then(|place| self.pieces.get(place));
        let overlaps = before.is_some_and(|(at, piece)| at + piece.len() > frame.offset)
            || self.pieces.get(place).is_some_and(|(at, _)| *at < end);
        let last = self.pieces.last().map_or(0, |(at, piece)| at + piece.len());
        let lengths_differ = match self.total {
            Some(total) => end > total || !frame.more && end != total,
            None => !frame.more && last > end,
        };
        if overlaps || lengths_differ || self.pieces.len() >= MOST_PIECES {
            self.refuse();
            return false;
        }
        if frame.offset == 0 {
            // RFC 8200 §4.5: the first fragment's fields apply to the whole packet.
            (self.protocol, self.hop_limit) = (frame.protocol, frame.hop_limit);
            (self.route, self.traffic_class) = (frame.route, frame.traffic_class);
            let packet = octets.get(frame.route.ip_offset..).unwrap_or(&[]);
            self.quoted = packet[..packet.len().min(frame.route.ip_len).min(QUOTED)].to_vec();
        }
        if !frame.more {
            self.total = Some(end);
        }
        self.ecn |= 1 << (frame.traffic_class & 3);
        self.octets += piece.len();
        self.pieces.insert(place, (frame.offset, piece.to_vec()));
        true
    }

    fn refuse(&mut self) {
        self.refused = true;
        self.pieces = Vec::new();
        self.quoted = Vec::new();
        (self.octets, self.total) = (0, None);
    }

    /// RFC 3168 §5.3: if any fragment is marked, so is the packet, and the transport must learn of it. If some fragment
    /// is not ECN-capable, only a loss can report the congestion.
    fn into_whole(self) -> Option<Whole> {
        let marked = self.ecn & 1 << CE != 0;
        if marked && self.ecn & 1 << NOT_ECT != 0 {
            return None;
        }
        let payload: Vec<u8> = self.pieces.into_iter().flat_map(|(_, piece)| piece).collect();
        let traffic_class = if marked { self.traffic_class | CE } else { self.traffic_class };
        Some(Whole { route: self.route, protocol: self.protocol, hop_limit: self.hop_limit, traffic_class, payload })
    }
}

#[cfg(test)]
mod tests;
