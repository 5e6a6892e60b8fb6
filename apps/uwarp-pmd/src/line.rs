//! A port's queue as forwarding uses it: plain, or with faults and a capture around it.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Instant;
use uwarp_dpdk::{Mbuf, Queue};
use uwarp_engine::Port as _;
use uwarp_engine::port::Batch;
use uwarp_engine::ports::Decorated;
use uwarp_engine::ports::decorated::FaultRates;
use uwarp_port_dpdk::{DpdkPort, Frame};

/// Frames that wait at most for a device behind faults or a capture.
const WAITING_MAX: usize = 64;

/// A queue.
pub enum Line {
    /// Bursts go straight to the device.
    Plain(Queue),
    /// They pass faults and a capture.
    Decorated(Box<Decoration>),
}

/// A queue behind the engine's decorator.
pub struct Decoration {
    port: Decorated<DpdkPort>,
    /// Received, and not handed on yet.
    arrived: VecDeque<Mbuf>,
    /// Taken, and not sent yet: the capture has seen them.
    waiting: VecDeque<Frame>,
    origin: Instant,
}

impl Line {
    /// The same queue with a decorator around it.
    pub fn decorated(self, origin: Instant) -> Line {
        match self {
            Line::Plain(queue) => Line::Decorated(Box::new(Decoration {
                port: Decorated::new(DpdkPort::new(queue)),
                arrived: VecDeque::with_capacity(WAITING_MAX),
                waiting: VecDeque::with_capacity(WAITING_MAX),
                origin,
            })),
            Line::Decorated(_) => self,
        }
    }

    /// Whether it could be plain: there is a decorator, and no frame in it.
    pub fn is_idly_decorated(&self) -> bool {
        match self {
            Line::Plain(_) => false,
            Line::Decorated(line) => {
                line.arrived.is_empty() && line.waiting.is_empty() && line.port.next_arrival().is_none()
            }
        }
    }

    /// Receives frames up to the spare capacity of `out`.
    #[inline]
    pub fn receive(&mut self, out: &mut Vec<Mbuf>) {
        match self {
            Line::Plain(queue) => {
                queue.rx_burst(out);
            }
            Line::Decorated(line) => line.receive(out),
        }
    }

    /// Gives the device frames from the front, and returns how many it took.
    #[inline]
    pub fn send(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        match self {
            Line::Plain(queue) => queue.tx_front(frames),
            Line::Decorated(line) => line.send(frames),
        }
    }

    /// A fresh buffer.
    #[inline]
    pub fn alloc(&mut self) -> Option<Mbuf> {
        match self {
            Line::Plain(queue) => queue.alloc(),
            Line::Decorated(line) => line.port.alloc().map(Mbuf::from),
        }
    }

    /// Sets faults, or ends them.
    pub fn set_faults(&mut self, rates: Option<FaultRates>) {
        if let Line::Decorated(line) = self {
            line.set_now();
            line.port.set_faults(rates);
        }
    }

    /// Begins to write every frame to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn start_capture(&mut self, file: &Path) -> anyhow::Result<()> {
        if let Line::Decorated(line) = self {
            line.set_now();
            line.port.start_capture(file)?;
        }
        Ok(())
    }

    /// Ends that.
    pub fn stop_capture(&mut self) {
        if let Line::Decorated(line) = self {
            line.port.stop_capture();
        }
    }

    /// The faults so far, by kind.
    pub fn fault_counts(&self) -> BTreeMap<String, u64> {
        match self {
            Line::Plain(_) => BTreeMap::new(),
            Line::Decorated(line) => line.port.fault_counts(),
        }
    }
}

impl Decoration {
    fn set_now(&mut self) {
        self.port.set_now(uwarp_tcp::Instant::from_nanos(self.origin.elapsed().as_nanos() as u64));
    }

    fn receive(&mut self, out: &mut Vec<Mbuf>) {
        self.set_now();
        if self.arrived.is_empty() {
            let mut batch = Batch::new();
            self.port.rx_burst(&mut batch);
            self.arrived.extend(batch.into_iter().map(Mbuf::from));
        }
        if !self.waiting.is_empty() {
            self.port.tx_burst(&mut self.waiting);
        }
        let count = self.arrived.len().min(out.capacity() - out.len());
        out.extend(self.arrived.drain(..count));
    }

    fn send(&mut self, frames: &mut Vec<Mbuf>) -> usize {
        let count = frames.len().min(WAITING_MAX.saturating_sub(self.waiting.len()));
        self.waiting.extend(frames.drain(..count).map(Frame::from));
        self.port.tx_burst(&mut self.waiting);
        count
    }
}
