//! Moves frames between the ports of the clients and the uplink: the loop around [`Switch`], over any kind of port.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use uwarp_engine::port::{BURST, Batch, Buffer, ChecksumStatus, Port, TransmitChecksums};
use uwarp_wire::ethernet;

use crate::core::{ClientId, DropReason, PLACES, Places, Probe, Switch, Verdict, complete_checksum};

/// The most frames that a client's device holds.
const LONGEST_RING: usize = 1024;

/// The switch with its clients' ports, and the uplink's.
#[derive(Debug)]
pub struct Forwarder<P: Port> {
    switch: Switch,
    ports: [Option<P>; PLACES],
    /// The places that have one.
    attached: Places,
    /// Frames for each place, which its device gets before the next place's frames are looked at.
    outgoing: [VecDeque<P::Buffer>; PLACES],
    /// The places that have outgoing frames.
    pending: Places,
    uplink: UplinkState,
}

/// What the uplink's device can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct UplinkState {
    is_up: bool,
    /// It fills in TCP checksums.
    sums: bool,
}

impl<P: Port> Forwarder<P> {
    /// Without clients.
    pub fn new(switch: Switch) -> Forwarder<P> {
        Forwarder {
            switch,
            ports: [const { None }; PLACES],
            attached: Places::default(),
            outgoing: std::array::from_fn(|_| VecDeque::new()),
            pending: Places::default(),
            uplink: UplinkState::default(),
        }
    }

    /// Connects the port that leads to other hosts, whose link passes frames already, or none.
    pub fn attach_uplink(&mut self, port: P, is_up: bool) {
        let capabilities = port.capabilities();
        self.uplink.sums = capabilities.transmit_tcp_checksum;
        self.switch.open_uplink(capabilities.mac);
        self.attach(ClientId::UPLINK, port);
        self.set_uplink(is_up);
    }

    /// The uplink passes frames from now on, or none.
    pub fn set_uplink(&mut self, is_up: bool) {
        self.uplink.is_up = is_up;
        self.switch.set_uplink(is_up);
        if is_up {
            self.announce();
        }
    }

    /// Tells the uplink's network where the shared addresses are: it may have known them elsewhere.
    fn announce(&mut self) {
        for frame in self.switch.announcements() {
            self.send(ClientId::UPLINK, &frame);
        }
        self.flush();
    }

    /// The tables.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The tables, to be changed.
    pub fn switch_mut(&mut self) -> &mut Switch {
        &mut self.switch
    }

    /// Connects the port of a client that has entered.
    pub fn attach(&mut self, client: ClientId, port: P) {
        self.ports[client.place()] = Some(port);
        self.attached.insert(client);
        // One burst, and one answer for each frame of it.
        self.outgoing[client.place()].reserve(2 * BURST);
    }

    /// Gives a reserved TCP port back. What the client sent from it before goes on.
    pub fn release(&mut self, client: ClientId, port: u16, address: Option<IpAddr>) {
        self.deliver(client);
        self.switch.release(client, port, address);
    }

    /// A client is gone: frees all that it held, has its peers notice, and gives its port back. What it sent before
    /// goes on.
    pub fn detach(&mut self, client: ClientId) -> Option<P> {
        self.deliver(client);
        let port = self.ports[client.place()].take();
        self.attached.remove(client);
        for Probe { to, frame } in self.switch.leave(client) {
            self.send(to, &frame);
            if self.outgoing[to.place()].len() >= BURST {
                self.flush();
            }
        }
        self.flush();
        port
    }

    /// Takes one burst from every place and delivers it. Returns how many frames came.
    pub fn turn(&mut self) -> usize {
        self.attached.into_iter().map(|from| self.take_burst(from)).sum()
    }

    /// Delivers what waits from a client, at most a ring of it.
    pub fn deliver(&mut self, client: ClientId) {
        for _ in 0..LONGEST_RING / BURST {
            // The others have their turns meanwhile: a client may ask for this without end.
            let bursts = self.attached.into_iter().map(|from| (from, self.take_burst(from)));
            if bursts.filter(|(from, _)| *from == client).map(|(_, frames)| frames).sum::<usize>() == 0 {
                break;
            }
        }
    }

    #[inline]
    fn take_burst(&mut self, from: ClientId) -> usize {
        let Some(port) = &mut self.ports[from.place()] else { return 0 };
        let mut batch = Batch::new();
        let frames = port.rx_burst(&mut batch);
        for frame in batch {
            self.forward(from, frame);
        }
        self.flush();
        frames
    }

    /// Has all devices announce frames by [`Self::wakeup_descriptors`] from now on. Take one more turn before waiting
    /// for them. False if a device cannot announce frames now, so that the wait has to be short.
    pub fn enable_wakeups(&mut self) -> bool {
        let mut all = true;
        let awaited = self.awaited();
        for port in self.ports.iter_mut().take(awaited).flatten() {
            all &= port.enable_wakeups();
        }
        all
    }

    /// What to wait for.
    pub fn wakeup_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().take(self.awaited()).flatten().flat_map(Port::wakeup_descriptors)
    }

    /// Ends the announcements.
    pub fn disable_wakeups(&mut self) {
        let awaited = self.awaited();
        for port in self.ports.iter_mut().take(awaited).flatten() {
            port.disable_wakeups();
        }
    }

    /// The places whose devices are waited for. Without a link the uplink's has nothing to announce but that.
    fn awaited(&self) -> usize {
        PLACES - usize::from(!self.uplink.is_up)
    }

    #[inline(always)]
    fn forward(&mut self, from: ClientId, mut frame: P::Buffer) {
        if frame.segment_count() != 1 {
            return self.switch.count_drops(from, DropReason::TooLong, 1);
        }
        let (start, length) = (frame.start(), frame.data().len());
        let checksum = frame.received_checksums().tcp;
        if checksum == ChecksumStatus::Bad {
            return self.switch.count_drops(from, DropReason::Checksum, 1);
        }
        let Some(octets) = frame.storage_mut().and_then(|storage| storage.get_mut(start..start + length)) else {
            return self.switch.count_drops(from, DropReason::Malformed, 1);
        };
        match self.switch.judge(from, octets) {
            Verdict::Forward { to, ip_len, tcp_len } => {
                // A sender that leaves the checksum to the device has not computed it; the receiver must be told so.
                if tcp_len != 0 && checksum == ChecksumStatus::Good {
                    if to == ClientId::UPLINK && !self.uplink.sums {
                        complete_checksum(octets, ip_len);
                    } else {
                        frame.set_transmit_checksums(TransmitChecksums {
                            tcp: true,
                            link_length: ethernet::HEADER_LEN as u8,
                            ip_length: ip_len.into(),
                            tcp_length: tcp_len,
                            ..TransmitChecksums::default()
                        });
                    }
                }
                self.queue(to, frame);
            }
            Verdict::Answer => {
                drop(frame);
                self.answer(from);
            }
            Verdict::Relay => {
                drop(frame);
                self.relay();
            }
            Verdict::Drop => {}
        }
    }

    #[inline(always)]
    fn queue(&mut self, to: ClientId, frame: P::Buffer) {
        self.outgoing[to.place()].push_back(frame);
        self.pending.insert(to);
    }

    #[cold]
    fn answer(&mut self, to: ClientId) {
        let mut octets = [0; 256];
        let length = self.switch.answer().len();
        octets[..length].copy_from_slice(self.switch.answer());
        self.send(to, &octets[..length]);
    }

    #[cold]
    fn relay(&mut self) {
        for to in self.switch.relayed_to() {
            let mut octets = [0; 256];
            let frame = self.switch.answer_to(to);
            let length = frame.len();
            octets[..length].copy_from_slice(frame);
            self.send(to, &octets[..length]);
        }
    }

    /// Sends a frame that the switch made. Without a buffer it is lost, as on a wire.
    fn send(&mut self, to: ClientId, octets: &[u8]) {
        let Some(port) = &mut self.ports[to.place()] else { return };
        let Some(mut frame) = port.alloc() else { return self.switch.count_drops(to, DropReason::RingFull, 1) };
        let start = frame.start();
        if let Some(room) = frame.storage_mut().and_then(|storage| storage.get_mut(start..start + octets.len())) {
            room.copy_from_slice(octets);
            frame.set_range(start, octets.len());
            self.queue(to, frame);
        }
    }

    /// Gives outgoing frames to their devices. What a device does not take is dropped: its client would hold up others.
    fn flush(&mut self) {
        for client in std::mem::take(&mut self.pending) {
            let frames = &mut self.outgoing[client.place()];
            let mut sent = 0;
            if let Some(port) = &mut self.ports[client.place()] {
                while !frames.is_empty() {
                    match port.tx_burst(frames) {
                        0 => break,
                        count => sent += count,
                    }
                }
            }
            let left = frames.len();
            self.switch.count_sent(client, sent);
            if left > 0 {
                frames.clear();
                self.switch.count_drops(client, DropReason::RingFull, left);
            }
        }
    }
}

#[cfg(test)]
mod tests;
