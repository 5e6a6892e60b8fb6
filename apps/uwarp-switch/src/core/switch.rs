//! What becomes of a frame.

mod uplink;

use std::net::IpAddr;
use std::ops::RangeInclusive;

use uwarp_engine::ports::cable::NOTE_MAC;
use uwarp_ring::cable::OwnerTable;
use uwarp_wire::address::{FlowKey, IpAddress};
use uwarp_wire::fixed::{PLAIN, Packet, V4};
use uwarp_wire::frame::{Frame, TcpFrame, classify};
use uwarp_wire::icmp6::Icmp6Message;
use uwarp_wire::tcp::TcpFlags;
use uwarp_wire::{ethernet, frame as wire_frame};

use super::counters::{Counters, DropReason};
use super::flows::{End, Flows, Severed};
use super::frame::{self, Datagram, IPV4_LEN, Kind, Segment, Usual};
use super::networks::{ForeignAddress, NetworkId, Networks};
use super::outside::{Probe, Uplink};
use super::ports::ReserveError;
use super::replies::Reply;
use super::{ClientId, PLACES, Places};

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to this client. Its hardware addresses are rewritten; `ip_len` and `tcp_len` are the lengths of its IP
    /// and TCP headers, 0 and 0 if it is not TCP.
    Forward {
        /// Who gets it.
        to: ClientId,
        /// Octets of the IP header.
        ip_len: u8,
        /// Octets of the TCP header.
        tcp_len: u8,
    },
    /// Its sender gets [`Switch::answer`] instead.
    Answer,
    /// Each place of [`Switch::relayed_to`] gets [`Switch::answer_to`] instead.
    Relay,
    /// Nothing more: it is dropped, and counted if it should not have been sent.
    Drop,
}

/// The last IPv4 segment of a client that went on: while nothing changes, the next one of the same flow goes the same
/// way.
#[derive(Clone, Copy, Debug)]
struct LastFlow {
    key: FlowOctets,
    to: ClientId,
    /// The hardware addresses with which it went on.
    onward: [u8; 12],
}

/// The octets that are alike in all usual segments of a flow, in words: that takes the fewest instructions to compare.
/// They are both hardware addresses, EtherType, version, length and service class of the IP header; both addresses;
/// both ports.
type FlowOctets = (u128, u64, u32);

#[inline(always)]
fn flow_octets(head: Usual<'_>) -> Option<FlowOctets> {
    let octets = head.octets();
    let link = u128::from_ne_bytes(*octets.first_chunk()?);
    let addresses = u64::from_ne_bytes(*octets.get(Packet::<PLAIN, V4>::addresses())?.first_chunk()?);
    let ports = u32::from_ne_bytes(*octets.get(Usual::TCP..)?.first_chunk()?);
    Some((link, addresses, ports))
}

/// Flags of segments that begin or end a connection.
const RARE: TcpFlags = TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST);

/// Source and destination.
fn ends(segment: &Segment) -> (End, End) {
    (
        End { address: segment.source, port: segment.source_port },
        End { address: segment.destination, port: segment.destination_port },
    )
}

/// Bits of a queue pair's number below the place of its client, from 1.
const NUMBER_BITS: u32 = 15;

/// The client that a queue pair of datagrams is of.
fn client_of(number: u32) -> Option<ClientId> {
    ClientId::new(((number >> NUMBER_BITS) as usize).checked_sub(1)?)
}

/// The tables, and the judge of every frame.
#[derive(Debug)]
pub struct Switch {
    mac: [u8; 6],
    longest: usize,
    networks: Networks,
    /// Connections between clients.
    flows: Flows<()>,
    macs: [[u8; 6]; PLACES],
    last: [Option<LastFlow>; PLACES],
    counters: [Counters; PLACES],
    reply: Reply,
    relayed_to: Places,
    uplink: Option<Uplink>,
    /// For each client, those with which it has a cable, or has been found to want one.
    joined: [Places; PLACES],
    /// Of these, the pairs that nobody has taken yet.
    wanting: Vec<(ClientId, ClientId)>,
}

impl Switch {
    /// A switch without clients. They send to its hardware address `mac` packets of at most `mtu` octets. Those of its
    /// own network have `addresses`.
    ///
    /// # Errors
    /// The address that is not a host's, or one too many.
    pub fn new(mac: [u8; 6], mtu: u16, addresses: &[IpAddr]) -> Result<Switch, ForeignAddress> {
        Ok(Switch {
            mac,
            longest: ethernet::HEADER_LEN + usize::from(mtu),
            networks: Networks::new(addresses)?,
            flows: Flows::default(),
            macs: [[0; 6]; PLACES],
            last: [None; PLACES],
            counters: [Counters::default(); PLACES],
            reply: Reply::default(),
            relayed_to: Places::default(),
            uplink: None,
            joined: [Places::default(); PLACES],
            wanting: Vec::new(),
        })
    }

    /// Replaces the addresses of a network, which begins with its first and ends with its last one. Segments from and
    /// to one that is gone go nowhere any more. A network without clients may end, and the switch's own never does.
    ///
    /// # Errors
    /// As for [`Switch::new`], or another network has an address; nothing changes then.
    pub fn set_addresses(&mut self, network: NetworkId, addresses: &[IpAddr]) -> Result<(), ForeignAddress> {
        self.networks.set_addresses(network, addresses)?;
        self.last = [None; PLACES];
        Ok(())
    }

    /// Lets a client with this hardware address into a network; gives its block of ports. `None` if its place is taken,
    /// or there is no such network.
    pub fn enter(&mut self, client: ClientId, network: NetworkId, mac: [u8; 6]) -> Option<RangeInclusive<u16>> {
        self.last = [None; PLACES];
        let block = self.networks.enter(client, network)?;
        self.macs[client.place()] = mac;
        self.counters[client.place()] = Counters::default();
        Some(block)
    }

    /// Frees all that a client held. Gives frames which make the peers of its connections notice: they answer, and are
    /// reset because nobody owns the port.
    pub fn leave(&mut self, client: ClientId) -> Vec<Probe> {
        // A port of another host is not the client's that has the same number here.
        let networks = &self.networks;
        let is_gone = |end: &End| networks.owner(end.address, end.port) == Some(client);
        let mut probes = Vec::new();
        for Severed { gone, left, .. } in self.flows.take_gone(is_gone) {
            if let Some(to) = self.networks.owner(left.address, left.port)
                && self.reply.probe(self.mac, self.macs[to.place()], gone, left)
            {
                probes.push(Probe { to, frame: self.reply.octets().to_vec() });
            }
        }
        if let Some(uplink) = &mut self.uplink {
            uplink.leave(client, is_gone, &mut self.reply, &mut probes);
        }
        self.last = [None; PLACES];
        self.networks.leave(client);
        self.joined[client.place()] = Places::default();
        self.joined.iter_mut().for_each(|joined| joined.remove(client));
        self.wanting.retain(|(from, to)| *from != client && *to != client);
        probes
    }

    /// Reserves a TCP port for a client, at one address or at all.
    ///
    /// # Errors
    /// See [`ReserveError`].
    pub fn reserve(&mut self, client: ClientId, port: u16, address: Option<IpAddr>) -> Result<(), ReserveError> {
        // Another client may have had it at this address, too.
        self.last = [None; PLACES];
        self.networks.reserve(client, port, address.map(IpAddress::from))
    }

    /// Gives a reserved port back.
    pub fn release(&mut self, client: ClientId, port: u16, address: Option<IpAddr>) {
        self.last = [None; PLACES];
        self.networks.release(client, port, address.map(IpAddress::from));
    }

    /// Has clients read in a table who owns which port. There is no client yet.
    pub fn publish(&mut self, table: OwnerTable) {
        self.networks.publish(table);
    }

    /// A pair of clients of which one has begun a connection to the other, the first such of the two.
    pub fn take_wanting(&mut self) -> Option<(ClientId, ClientId)> {
        self.wanting.pop()
    }

    /// The networks of clients, with their addresses and the owners of their ports.
    pub fn networks(&self) -> &Networks {
        &self.networks
    }

    /// A client's counters.
    pub fn counters(&self, client: ClientId) -> &Counters {
        &self.counters[client.place()]
    }

    /// A client's device took so many frames.
    #[inline]
    pub fn count_sent(&mut self, client: ClientId, frames: usize) {
        self.counters[client.place()].sent += frames as u64;
    }

    /// Frames from a client (with [`DropReason::RingFull`]: to it) were dropped.
    pub fn count_drops(&mut self, client: ClientId, reason: DropReason, frames: usize) {
        self.counters[client.place()].drops[reason as usize] += frames as u64;
    }

    /// The frame of [`Verdict::Answer`].
    pub fn answer(&self) -> &[u8] {
        self.reply.octets()
    }

    /// The places that get the frame of [`Verdict::Relay`].
    pub fn relayed_to(&self) -> Places {
        self.relayed_to
    }

    /// The frame of [`Verdict::Relay`] for one of its places.
    pub fn answer_to(&mut self, to: ClientId) -> &[u8] {
        if to != ClientId::UPLINK {
            self.reply.readdress(self.macs[to.place()]);
        }
        self.reply.octets()
    }

    /// Decides about a frame from a client, or from the uplink, and counts it.
    #[inline(always)]
    pub fn judge(&mut self, from: ClientId, frame: &mut [u8]) -> Verdict {
        let counters = &mut self.counters[from.place()];
        counters.received += 1;
        counters.received_octets += frame.len() as u64;
        if let Some(verdict) = self.recall(from, frame) {
            return verdict;
        }
        self.judge_anew(from, frame)
    }

    #[inline(never)]
    fn judge_anew(&mut self, from: ClientId, frame: &mut [u8]) -> Verdict {
        match self.inspect(from, frame) {
            Ok(verdict) => verdict,
            Err(reason) => self.refuse(from, reason),
        }
    }

    /// The verdict about a segment of the same flow as the last one; `None` if it is not of that, or not a usual one.
    #[inline(always)]
    fn recall(&self, from: ClientId, octets: &mut [u8]) -> Option<Verdict> {
        let last = self.last[from.place()].as_ref()?;
        let head = frame::usual(octets)?;
        let tcp_len = head.tcp_len() as u8;
        if flow_octets(head)? != last.key || head.flags().intersects(RARE) || octets.len() > self.longest {
            return None;
        }
        octets[..12].copy_from_slice(&last.onward);
        Some(Verdict::Forward { to: last.to, ip_len: IPV4_LEN, tcp_len })
    }

    /// A segment goes on: remembers its flow, and writes the hardware addresses for the receiver.
    #[inline]
    fn pass(&mut self, from: ClientId, to: ClientId, segment: &Segment, octets: &mut [u8]) -> Verdict {
        let onward = self.onward(from, to, octets);
        if segment.ip_len == IPV4_LEN
            && let Some(key) = Usual::of(octets).and_then(flow_octets)
        {
            // Behind one that begins a connection, the next is looked at again.
            let is_usual = !segment.flags.intersects(RARE);
            self.last[from.place()] = is_usual.then_some(LastFlow { key, to, onward });
        }
        octets[..12].copy_from_slice(&onward);
        Verdict::Forward { to, ip_len: segment.ip_len, tcp_len: segment.tcp_len }
    }

    /// The hardware addresses with which a frame goes on. Clients see the switch in place of each other, and other
    /// hosts as they are; other hosts see the uplink in place of clients.
    #[inline]
    fn onward(&self, from: ClientId, to: ClientId, octets: &[u8]) -> [u8; 12] {
        let mut addresses = [0; 12];
        addresses.copy_from_slice(&octets[..12]);
        if to == ClientId::UPLINK {
            addresses[6..].copy_from_slice(&self.macs[to.place()]);
        } else {
            addresses[..6].copy_from_slice(&self.macs[to.place()]);
            if from != ClientId::UPLINK {
                addresses[6..].copy_from_slice(&self.mac);
            }
        }
        addresses
    }

    #[cold]
    fn refuse(&mut self, from: ClientId, reason: DropReason) -> Verdict {
        self.count_drops(from, reason, 1);
        Verdict::Drop
    }

    #[inline]
    fn inspect(&mut self, from: ClientId, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        if octets.len() > self.longest {
            return Err(DropReason::TooLong);
        }
        if from == ClientId::UPLINK {
            return self.inspect_outside(octets);
        }
        if octets.get(6..12) != Some(&self.macs[from.place()]) {
            return Err(DropReason::SourceMac);
        }
        match frame::parse(octets)? {
            Kind::Tcp(segment) => self.inspect_segment(from, &segment, octets),
            Kind::Datagram(datagram) => self.inspect_datagram(from, &datagram, octets),
            Kind::Control => self.inspect_control(from, octets),
        }
    }

    #[inline]
    fn is_shared(&self, address: IpAddress) -> bool {
        self.networks.network_of(address).is_some()
    }

    #[inline]
    fn inspect_segment(&mut self, from: ClientId, segment: &Segment, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        if !self.networks.has(from, segment.source) {
            return Err(DropReason::SourceAddress);
        }
        if self.networks.owner(segment.source, segment.source_port) != Some(from) {
            return Err(DropReason::SourcePort);
        }
        if !self.is_shared(segment.destination) {
            return self.send_outside(from, segment, octets);
        }
        let Some(to) = self.networks.owner(segment.destination, segment.destination_port) else {
            return self.answer_reset(from, octets);
        };
        if segment.flags.intersects(RARE) {
            self.follow(from, to, segment, octets);
        } else if self.flows.has_doubtful(to) {
            let (source, destination) = ends(segment);
            self.flows.acknowledged(to, destination, source, segment.acknowledgment(octets));
        }
        // The segment itself goes by the cable of the two.
        if octets.starts_with(&NOTE_MAC) {
            return Ok(Verdict::Drop);
        }
        Ok(self.pass(from, to, segment, octets))
    }

    /// A datagram goes to the client whose place is in the number of its queue pair, and must come from one of the
    /// sender's. It does not pass the uplink.
    #[cold]
    fn inspect_datagram(
        &mut self,
        from: ClientId,
        datagram: &Datagram,
        octets: &mut [u8],
    ) -> Result<Verdict, DropReason> {
        if !self.networks.has(from, datagram.source) {
            return Err(DropReason::SourceAddress);
        }
        if client_of(datagram.source_number) != Some(from) {
            return Err(DropReason::SourcePort);
        }
        if !self.is_shared(datagram.destination) {
            return Err(DropReason::Destination);
        }
        match client_of(datagram.destination_number) {
            Some(to) if self.networks.block(to).is_some() && self.networks.has(to, datagram.destination) => {
                Ok(self.pass_control(from, to, octets))
            }
            _ => Ok(Verdict::Drop),
        }
    }

    /// A connection begins or ends.
    #[cold]
    fn follow(&mut self, from: ClientId, to: ClientId, segment: &Segment, octets: &[u8]) {
        let (source, destination) = ends(segment);
        let flags = segment.flags;
        if flags.intersects(TcpFlags::FIN | TcpFlags::RST) {
            self.flows.ended((from, source), (to, destination));
        } else if flags.contains(TcpFlags::ACK) {
            let number = segment.sequence(octets).wrapping_add(1);
            self.flows.accepted(from, source, destination, (), Some(number));
        } else if from != to && !self.joined[from.place()].contains(to) {
            self.joined[from.place()].insert(to);
            self.joined[to.place()].insert(from);
            self.wanting.push((from, to));
        }
    }

    #[cold]
    fn answer_reset(&mut self, from: ClientId, octets: &[u8]) -> Result<Verdict, DropReason> {
        let segment = self.whole_segment(octets)?;
        Ok(self.answered(from, |reply, mac| reply.reset(mac, &segment)))
    }

    #[cold]
    fn answer_unreachable(&mut self, from: ClientId, octets: &[u8]) -> Result<Verdict, DropReason> {
        let segment = self.whole_segment(octets)?;
        let FlowKey { remote, local, .. } = segment.flow;
        let own = self.networks.first(from, remote.is_ipv4());
        let Some(own) = own.filter(|_| segment.header.flags.contains(TcpFlags::SYN)) else { return Ok(Verdict::Drop) };
        let route = wire_frame::Route {
            source: remote,
            destination: local,
            source_mac: segment.source_mac,
            destination_mac: segment.destination_mac,
            vlan: None,
            ip_offset: segment.ip_offset,
            ip_len: segment.payload_offset + segment.payload_len - segment.ip_offset,
        };
        Ok(self.answered(from, |reply, mac| reply.unreachable(mac, own, &route, octets)))
    }

    /// A segment with everything in its headers.
    fn whole_segment(&self, octets: &[u8]) -> Result<TcpFrame, DropReason> {
        match classify(octets, octets.len()) {
            Ok(Frame::Tcp(segment)) => Ok(segment),
            _ => Err(DropReason::Malformed),
        }
    }

    fn answered(&mut self, from: ClientId, write: impl FnOnce(&mut Reply, [u8; 6]) -> bool) -> Verdict {
        self.answered_as(from, self.mac, write)
    }

    /// Answers a sender, to which the switch has this hardware address.
    fn answered_as(
        &mut self,
        from: ClientId,
        mac: [u8; 6],
        write: impl FnOnce(&mut Reply, [u8; 6]) -> bool,
    ) -> Verdict {
        if write(&mut self.reply, mac) {
            self.counters[from.place()].answered += 1;
            Verdict::Answer
        } else {
            Verdict::Drop
        }
    }

    /// ARP, Neighbor Discovery and ICMP errors.
    #[cold]
    fn inspect_control(&mut self, from: ClientId, octets: &mut [u8]) -> Result<Verdict, DropReason> {
        let (source, quoted) = match classify(octets, octets.len()).map_err(|_| DropReason::Malformed)? {
            Frame::Arp(arp) => {
                let sender = IpAddress::from(arp.packet.sender_address);
                if arp.packet.sender_mac.0 != self.macs[from.place()] {
                    return Err(DropReason::SourceMac);
                }
                if !arp.packet.is_probe() && !self.networks.has(from, sender) {
                    return Err(DropReason::SourceAddress);
                }
                if self.is_outside(arp.packet.target_address.into()) {
                    return self.ask_by_arp(from, &arp);
                }
                return Ok(self.answered(from, |reply, mac| reply.arp(mac, &arp)));
            }
            Frame::Icmp6(icmp) => match icmp.message {
                Icmp6Message::NeighbourSolicitation { target, .. } if self.is_outside(target.into()) => {
                    return self.ask_by_solicitation(from, &icmp, target);
                }
                Icmp6Message::NeighbourSolicitation { target, .. } => {
                    return Ok(self.answered(from, |reply, mac| reply.advertisement(mac, &icmp, target)));
                }
                // An engine says which address it has. Everybody knows.
                Icmp6Message::NeighbourAdvertisement { .. } => return Ok(Verdict::Drop),
                message => (icmp.route.source, message.quoted_tcp()),
            },
            Frame::Icmp(icmp) => (icmp.route.source, icmp.message.quoted_tcp()),
            _ => return Err(DropReason::Unsupported),
        };
        // An error goes to the sender of the segment that it quotes, and must come from the receiver of that.
        let flow = quoted.ok_or(DropReason::Unsupported)?.flow;
        if !self.networks.has(from, source) {
            return Err(DropReason::SourceAddress);
        }
        let is_receiver = self.networks.owner(flow.remote, flow.remote_port) == Some(from);
        let to = self.networks.owner(flow.local, flow.local_port);
        match to {
            Some(to) if is_receiver && self.is_shared(flow.local) && self.is_shared(flow.remote) => {
                Ok(self.pass_control(from, to, octets))
            }
            _ => Err(DropReason::ForgedIcmp),
        }
    }

    /// A packet without TCP goes on.
    fn pass_control(&self, from: ClientId, to: ClientId, octets: &mut [u8]) -> Verdict {
        let onward = self.onward(from, to, octets);
        octets[..12].copy_from_slice(&onward);
        Verdict::Forward { to, ip_len: 0, tcp_len: 0 }
    }

    #[cfg(test)]
    pub(super) fn followed(&self) -> usize {
        self.flows.len()
    }
}
