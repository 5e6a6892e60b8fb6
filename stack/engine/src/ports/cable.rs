//! Ports on cables: one end of a cable, and a client of a switch with a cable to the switch and one to each peer.

mod names;
mod peers;
mod switched;

pub use switched::{CableNews, SwitchedOptions, SwitchedPort};

use std::collections::VecDeque;
use std::os::fd::AsFd;

use uwarp_ring::cable::{CableEnd, LONGEST_FRAME};
use uwarp_wire::ethernet;

use super::heap::{HeapBuffer, HeapPool};
use crate::link::port::{
    BURST, Batch, Buffer, Capabilities, ChecksumStatus, Descriptors, LinkState, PoolLevels, Port, ReceivedChecksums,
};

/// Octets in front of a fresh frame.
const HEADROOM: usize = 128;
/// Storage of a buffer for the longest frame.
const LONGEST_ROOM: usize = HEADROOM + LONGEST_FRAME + 1;
/// Frames that wait for room in a cable, at most. More are lost: a receiver that does not read holds up nobody.
const BACKLOG: usize = 1024;

/// The destination of a frame that tells a switch of a segment which goes another way, and goes nowhere itself.
pub const NOTE_MAC: [u8; 6] = [0x03, 0x55, 0, 0, 0, 0];

/// What the checksums of a frame are whose sender has left them out.
const VOUCHED: ReceivedChecksums = ReceivedChecksums { ip: ChecksumStatus::Good, tcp: ChecksumStatus::Good };

/// An end of a cable, and what waits for room in it.
#[derive(Debug)]
struct Line {
    end: CableEnd,
    backlog: VecDeque<HeapBuffer>,
}

impl Line {
    fn new(end: CableEnd) -> Line {
        Line { end, backlog: VecDeque::new() }
    }

    /// Receives a frame, unless none waits or no buffer is free.
    #[inline]
    fn receive(&mut self, pool: &HeapPool) -> Option<HeapBuffer> {
        if !self.end.receiver.is_waiting() {
            return None;
        }
        let mut frame = pool.alloc()?;
        let start = frame.start();
        let room = frame.storage_mut()?.get_mut(start..)?;
        let arrival = self.end.receiver.receive(room)?;
        // Of one that is longer than this, the rest is lost, and its length shows it.
        frame.set_range(start, arrival.length);
        if arrival.vouched {
            frame.set_received_checksums(VOUCHED);
        }
        Some(frame)
    }

    /// Sends a frame behind those that wait. Returns whether it was the last one that waits: one is lost beyond the
    /// backlog.
    #[inline]
    fn send(&mut self, frame: HeapBuffer) -> bool {
        if self.backlog.is_empty() && self.end.sender.send(frame.data(), frame.transmit_checksums().tcp) {
            return false;
        }
        if self.backlog.len() < BACKLOG {
            self.backlog.push_back(frame);
        }
        true
    }

    /// Sends what waits, as far as there is room. Returns whether something still waits.
    #[cold]
    fn catch_up(&mut self) -> bool {
        let mut sent = 0;
        while let Some(frame) = self.backlog.front() {
            if !self.end.sender.send(frame.data(), frame.transmit_checksums().tcp) {
                break;
            }
            self.backlog.pop_front();
            sent += 1;
        }
        if sent > 0 {
            self.end.sender.wake();
        }
        !self.backlog.is_empty()
    }
}

/// One end of a cable as a port, for a switch: frames without room are not taken.
#[derive(Debug)]
pub struct CablePort {
    end: Line,
    pool: HeapPool,
    capabilities: Capabilities,
}

impl CablePort {
    /// The port, for packets of at most `mtu` octets.
    pub fn new(end: CableEnd, mac: [u8; 6], mtu: u16) -> CablePort {
        end.receiver.attend();
        let capabilities = Capabilities {
            mac,
            mtu,
            data_room: HEADROOM + ethernet::HEADER_LEN + usize::from(mtu) + 32,
            headroom: HEADROOM,
            transmit_ip_checksum: false,
            transmit_tcp_checksum: true,
            segmentation: false,
        };
        // A burst is delivered before the next one comes, and each frame may be answered.
        CablePort {
            end: Line::new(end),
            pool: HeapPool::growing(4 * BURST, capabilities.data_room, HEADROOM),
            capabilities,
        }
    }
}

impl Port for CablePort {
    type Buffer = HeapBuffer;

    fn alloc(&mut self) -> Option<HeapBuffer> {
        self.pool.alloc()
    }

    #[inline]
    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        let before = batch.len();
        while !batch.is_full()
            && let Some(frame) = self.end.receive(&self.pool)
        {
            batch.push(frame);
        }
        let count = batch.len() - before;
        if count > 0 {
            self.end.end.receiver.release();
        }
        count
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let sender = &mut self.end.end.sender;
        let mut taken = 0;
        while let Some(frame) = frames.front() {
            if !sender.send(frame.data(), frame.transmit_checksums().tcp) {
                break;
            }
            frames.pop_front();
            taken += 1;
        }
        if taken > 0 {
            sender.wake();
        }
        taken
    }

    fn enable_wakeups(&mut self) -> bool {
        self.end.end.receiver.arm();
        true
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        std::iter::once(self.end.end.receiver.as_fd()).collect()
    }

    fn disable_wakeups(&mut self) -> bool {
        self.end.end.receiver.disarm();
        false
    }

    fn link(&mut self) -> LinkState {
        LinkState::Up
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pool_levels(&self) -> PoolLevels {
        levels(&self.pool, &self.pool)
    }
}

fn levels(receive: &HeapPool, transmit: &HeapPool) -> PoolLevels {
    PoolLevels {
        receive_total: receive.total() as u32,
        receive_free: receive.free() as u32,
        transmit_total: transmit.total() as u32,
        transmit_free: transmit.free() as u32,
    }
}

#[cfg(test)]
mod tests;
