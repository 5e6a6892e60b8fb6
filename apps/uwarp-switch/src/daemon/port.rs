//! The ports of the switch: a client's cable, or the device that leads to other hosts.

use std::collections::VecDeque;

use uwarp_engine::port::{BURST, Batch, Buffer, Capabilities, Descriptors, LinkState, PoolLevels, Port};
use uwarp_engine::ports::{CablePort, HeapBuffer, HeapPool};
use uwarp_port_dpdk::{DpdkPort, Frame};

/// Octets by which a copy may be longer than a buffer of the device: too long for any client.
const BEYOND: usize = 64;

/// A client's port, or the uplink's.
#[derive(Debug)]
pub(super) enum SwitchPort {
    Client(CablePort),
    Uplink(Box<Uplink>),
}

/// A device, whose frames are copied: those of clients are in other memory.
#[derive(Debug)]
pub(super) struct Uplink {
    device: DpdkPort,
    pool: HeapPool,
    /// Copies that the device has not taken yet.
    copies: VecDeque<Frame>,
}

impl Uplink {
    pub(super) fn new(device: DpdkPort) -> Uplink {
        let Capabilities { data_room, headroom, .. } = *device.capabilities();
        Uplink {
            device,
            pool: HeapPool::growing(4 * BURST, data_room + BEYOND, headroom),
            copies: VecDeque::with_capacity(BURST),
        }
    }

    fn receive(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        let before = batch.len();
        let mut received = Batch::new();
        self.device.rx_burst(&mut received);
        for frame in received {
            let Some(mut copy) = self.pool.alloc() else { continue };
            copy.fill(frame.data());
            if frame.segment_count() > 1 {
                // A chain is longer than the MTU, and counts as such.
                copy.set_range(copy.start(), usize::MAX);
            }
            copy.set_received_checksums(frame.received_checksums());
            if batch.try_push(copy).is_err() {
                break;
            }
        }
        batch.len() - before
    }

    /// Copies a frame for the device. False if no buffer is free.
    fn copy(&mut self, frame: &HeapBuffer) -> bool {
        let Some(mut copy) = self.device.alloc() else { return false };
        let (start, octets) = (copy.start(), frame.data());
        let Some(room) = copy.storage_mut().and_then(|storage| storage.get_mut(start..start + octets.len())) else {
            return false;
        };
        room.copy_from_slice(octets);
        copy.set_range(start, octets.len());
        copy.set_transmit_checksums(frame.transmit_checksums());
        self.copies.push_back(copy);
        true
    }

    fn send(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        let count = frames.iter().take(BURST).take_while(|frame| self.copy(frame)).count();
        self.device.tx_burst(&mut self.copies);
        // What the device has not taken is not sent, and stays with the caller.
        let taken = count - self.copies.len();
        self.copies.clear();
        frames.drain(..taken);
        taken
    }
}

/// Calls the same method of whichever port it is.
macro_rules! each {
    ($port:expr, $inner:ident => $call:expr) => {
        match $port {
            SwitchPort::Client($inner) => $call,
            SwitchPort::Uplink(uplink) => {
                let $inner = &uplink.device;
                $call
            }
        }
    };
    (mut $port:expr, $inner:ident => $call:expr) => {
        match $port {
            SwitchPort::Client($inner) => $call,
            SwitchPort::Uplink(uplink) => {
                let $inner = &mut uplink.device;
                $call
            }
        }
    };
}

impl Port for SwitchPort {
    type Buffer = HeapBuffer;

    fn alloc(&mut self) -> Option<HeapBuffer> {
        match self {
            SwitchPort::Client(port) => port.alloc(),
            SwitchPort::Uplink(uplink) => uplink.pool.alloc(),
        }
    }

    fn rx_burst(&mut self, batch: &mut Batch<HeapBuffer>) -> usize {
        match self {
            SwitchPort::Client(port) => port.rx_burst(batch),
            SwitchPort::Uplink(uplink) => uplink.receive(batch),
        }
    }

    fn tx_burst(&mut self, frames: &mut VecDeque<HeapBuffer>) -> usize {
        match self {
            SwitchPort::Client(port) => port.tx_burst(frames),
            SwitchPort::Uplink(uplink) => uplink.send(frames),
        }
    }

    fn enable_wakeups(&mut self) -> bool {
        each!(mut self, port => port.enable_wakeups())
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        each!(self, port => port.wakeup_descriptors())
    }

    fn disable_wakeups(&mut self) -> bool {
        each!(mut self, port => port.disable_wakeups())
    }

    fn link(&mut self) -> LinkState {
        each!(mut self, port => port.link())
    }

    fn capabilities(&self) -> &Capabilities {
        each!(self, port => port.capabilities())
    }

    fn pool_levels(&self) -> PoolLevels {
        each!(self, port => port.pool_levels())
    }
}
