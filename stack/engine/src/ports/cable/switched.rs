//! A client of a switch: a port with a cable to the switch, and one to each client that it talks to.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use crossbeam::channel::Receiver;
use uwarp_ring::Notifier;
use uwarp_ring::cable::{CableEnd, Owners};
use uwarp_wire::ethernet;
use uwarp_wire::tcp::TcpFlags;

use super::super::heap::{HeapBuffer, HeapPool};
use super::super::middlebox;
use super::names::{Names, Openings, RARE, Segment, segment};
use super::peers::{Peer, Peers};
use super::{HEADROOM, LONGEST_ROOM, Line, NOTE_MAC, levels};
use crate::link::port::{Batch, Buffer, Capabilities, Descriptors, LinkState, PoolLevels, Port, TransmitChecksums};

/// What changes while the port is used.
#[derive(Debug)]
pub enum CableNews {
    /// There is a cable to the client with this number now.
    Plugged {
        /// The peer's number.
        peer: u16,
        /// The cable.
        end: CableEnd,
    },
    /// That client has gone. What it sent before is still received.
    Unplugged {
        /// The peer's number.
        peer: u16,
    },
    /// These are the addresses on the switch now, each with the number of its network.
    Addresses(Vec<(IpAddr, u8)>),
}

/// What a port is made from.
#[derive(Debug)]
pub struct SwitchedOptions {
    /// The cable to the switch.
    pub switch: CableEnd,
    /// Which client owns which TCP port.
    pub owners: Owners,
    /// The client's own number among these.
    pub number: u16,
    /// The number of its network: the clients of one have the same addresses.
    pub network: u8,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// The hardware address of the switch, to which all frames for clients go.
    pub switch_mac: [u8; 6],
    /// The addresses on the switch, each with the number of its network.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Largest IP packet between a client and the switch.
    pub mtu: u16,
    /// Buffers for frames that were received.
    pub receive_buffers: usize,
    /// Buffers for frames to be sent.
    pub transmit_buffers: usize,
    /// What changes.
    pub news: Receiver<CableNews>,
    /// Fired behind each piece of news.
    pub told: Arc<Notifier>,
}

/// The port. Segments between two clients go by the cable of the two, up to 64 KiB in one frame. Everything else goes
/// by the switch, in frames of its MTU: segments that begin a connection, all that is for other hosts, ARP and ICMP.
/// The switch gets a note of the ends of connections, too, so that it knows whom to ask when a client dies.
#[derive(Debug)]
pub struct SwitchedPort {
    switch: Line,
    peers: Peers,
    /// Frames wait for room somewhere.
    is_behind: bool,
    openings: Openings,
    names: Names,
    news: Receiver<CableNews>,
    told: Arc<Notifier>,
    receive: HeapPool,
    transmit: HeapPool,
    /// A frame for the switch as it leaves.
    scratch: Vec<u8>,
    capabilities: Capabilities,
}

impl SwitchedPort {
    /// The port.
    ///
    /// # Errors
    /// No descriptors or no memory left.
    pub fn new(options: SwitchedOptions) -> io::Result<SwitchedPort> {
        let peers = Peers::new([options.switch.receiver.as_fd(), options.told.as_fd()])?;
        options.switch.receiver.attend();
        let pool = |buffers| HeapPool::growing(buffers, LONGEST_ROOM, HEADROOM);
        let mut names = Names {
            owners: options.owners,
            number: options.number,
            network: options.network,
            mac: options.mac,
            switch_mac: options.switch_mac,
            addresses: Vec::new(),
            has_others: false,
        };
        names.set_addresses(options.addresses);
        Ok(SwitchedPort {
            switch: Line::new(options.switch),
            peers,
            is_behind: false,
            openings: Openings::default(),
            names,
            news: options.news,
            told: options.told,
            receive: pool(options.receive_buffers),
            transmit: pool(options.transmit_buffers),
            scratch: Vec::with_capacity(LONGEST_ROOM),
            capabilities: Capabilities {
                mac: options.mac,
                mtu: options.mtu,
                data_room: LONGEST_ROOM,
                headroom: HEADROOM,
                transmit_ip_checksum: true,
                transmit_tcp_checksum: true,
                segmentation: true,
            },
        })
    }

    #[cold]
    fn take_news(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            match news {
                CableNews::Plugged { peer, end } => self.peers.plug(peer, end),
                CableNews::Unplugged { peer } => self.peers.unplug(peer),
                CableNews::Addresses(addresses) => self.names.set_addresses(addresses),
            }
        }
    }

    /// The peer to which a frame goes by its own cable.
    #[inline]
    fn way(&mut self, frame: &[u8]) -> Option<usize> {
        if frame.get(..6) != Some(&self.names.switch_mac) {
            return None;
        }
        let segment = segment(frame)?;
        if segment.flags.contains(TcpFlags::SYN) {
            if !segment.flags.contains(TcpFlags::ACK) {
                self.openings.add((segment.source_port, segment.destination_port));
            }
            return None;
        }
        let peer = self.names.receiver(frame, &segment)?;
        let index = self.peers.index_of(peer)?;
        // The peer believes no other.
        if !self.names.is_own(segment.source_port) || !self.peers.line(index).end.sender.is_attended() {
            return None;
        }
        if segment.flags.intersects(RARE) || !self.openings.ports.is_empty() {
            self.note(frame, &segment);
        }
        Some(index)
    }

    /// Has the switch know of a segment that begins or ends a connection, and goes by another way.
    #[cold]
    fn note(&mut self, frame: &[u8], segment: &Segment) {
        let is_opening = self.openings.take((segment.source_port, segment.destination_port));
        if !segment.flags.intersects(RARE) && !is_opening {
            return;
        }
        let end = segment.tcp + usize::from(frame[segment.tcp + 12] >> 4) * 4;
        let Some(headers) = frame.get(..end) else { return };
        self.scratch.clear();
        self.scratch.extend_from_slice(headers);
        self.scratch[..6].copy_from_slice(&NOTE_MAC);
        // IPv4 counts its own header, IPv6 does not.
        let (at, length) = match segment.source.is_ipv4() {
            true => (ethernet::HEADER_LEN + 2, end - ethernet::HEADER_LEN),
            false => (ethernet::HEADER_LEN + 4, end - segment.tcp),
        };
        self.scratch[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        if self.switch.end.sender.send(&self.scratch, true) {
            self.switch.end.sender.wake();
        }
    }

    /// Sends a frame by the switch, as the device would that computes and cuts.
    #[cold]
    fn send_by_switch(&mut self, frame: HeapBuffer) {
        let work = frame.transmit_checksums();
        if work.segment_size > 0 {
            let Self { transmit, switch, is_behind, .. } = self;
            let put = |piece| *is_behind |= switch.send(piece);
            middlebox::cut(&frame, work.segment_size.into(), || transmit.alloc(), put);
        } else if work.ip {
            self.scratch.clear();
            self.scratch.extend_from_slice(frame.data());
            middlebox::complete_ip_checksum(&mut self.scratch);
            if self.switch.backlog.is_empty() && self.switch.end.sender.send(&self.scratch, work.tcp) {
                return;
            }
            // Without a buffer it is lost, as on a wire.
            if let Some(mut copy) = self.transmit.alloc() {
                copy.fill(&self.scratch);
                copy.set_transmit_checksums(TransmitChecksums { ip: false, ..work });
                self.is_behind |= self.switch.send(copy);
            }
        } else {
            self.is_behind |= self.switch.send(frame);
        }
    }

    /// Sends a frame. Returns the peer that is to be woken, unless it is the switch.
    #[inline]
    fn give(&mut self, frame: HeapBuffer) -> Option<usize> {
        let index = self.way(frame.data());
        match index {
            Some(index) => self.is_behind |= self.peers.line(index).send(frame),
            None => self.send_by_switch(frame),
        }
        index
    }

    #[inline]
    fn wake(&mut self, index: Option<usize>) {
        match index {
            Some(index) => self.peers.line(index).end.sender.wake(),
            None => self.switch.end.sender.wake(),
        }
    }

    #[cold]
    fn catch_up(&mut self) {
        self.is_behind = self.switch.catch_up();
        for line in self.peers.lines() {
            self.is_behind |= !line.backlog.is_empty() && line.catch_up();
        }
    }

    /// Receives from the switch, behind all that peers had sent before: what a program that has died sent last counts,
    /// and the switch speaks of its death behind it.
    #[cold]
    fn take_from_switch(&mut self, batch: &mut Batch<HeapBuffer>) {
        if self.peers.come_first() {
            return;
        }
        while !batch.is_full()
            && let Some(frame) = self.switch.receive(&self.receive)
        {
            batch.push(frame);
        }
        self.switch.end.receiver.release();
        if !self.switch.end.receiver.is_waiting() {
            self.peers.forget_switch();
        }
    }
}

/// Receives from one peer.
#[inline]
fn take_from(peer: &mut Peer, names: &Names, pool: &HeapPool, batch: &mut Batch<HeapBuffer>) {
    let before = batch.len();
    while !batch.is_full() {
        let Some(mut frame) = peer.line.receive(pool) else { break };
        if !names.is_from(peer.number, &mut frame) {
            // The engine drops and counts it.
            frame.set_range(HEADROOM, 0);
        }
        batch.push(frame);
    }
    if batch.len() > before {
        peer.line.end.receiver.release();
    }
}

impl Port for SwitchedPort {
    type Buffer = HeapBuffer;

    #[inline]
    fn alloc(&mut self) -> Option<HeapBuffer> {
        self.transmit.alloc()
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        if !self.news.is_empty() {
            self.take_news();
        }
        if self.is_behind {
            self.catch_up();
        }
        let before = batch.len();
        let Self { peers, names, receive, .. } = self;
        peers.take_turn(|peer| take_from(peer, names, receive, batch));
        if self.switch.end.receiver.is_waiting() {
            self.take_from_switch(batch);
        }
        batch.len() - before
    }

    #[inline]
    fn tx_one(&mut self, frame: HeapBuffer) -> Result<(), HeapBuffer> {
        let index = self.give(frame);
        self.wake(index);
        Ok(())
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let count = frames.len();
        let mut last = None;
        for frame in frames.drain(..) {
            let index = self.give(frame);
            if let Some(last) = last.replace(index).filter(|last| *last != index) {
                self.wake(last);
            }
        }
        if let Some(last) = last {
            self.wake(last);
        }
        count
    }

    fn enable_wakeups(&mut self) -> bool {
        self.switch.end.receiver.arm();
        // Nobody announces room in a cable, nor a free buffer for what waits.
        self.peers.arm() && !self.is_behind && !self.switch.end.receiver.is_waiting()
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        std::iter::once(self.peers.as_fd()).collect()
    }

    fn disable_wakeups(&mut self) -> bool {
        self.switch.end.receiver.disarm();
        self.peers.disarm();
        self.told.drain();
        false
    }

    fn link(&mut self) -> LinkState {
        LinkState::Up
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pool_levels(&self) -> PoolLevels {
        levels(&self.receive, &self.transmit)
    }

    #[inline]
    fn transmit_free(&self) -> usize {
        self.transmit.free()
    }
}
