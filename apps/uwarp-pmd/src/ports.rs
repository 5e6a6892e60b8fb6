//! The ports of the console: opening, closing, and their counters.

use crate::device::Plan;
use crate::forward::Counters;
use crate::line::Line;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use uwarp_dpdk::{Eal, Port, Statistics};
use uwarp_engine::ports::decorated::FaultRates;

/// One port, open or not.
pub struct Slot {
    /// How it is opened.
    pub plan: Plan,
    /// It, while it is open.
    pub open: Option<Open>,
}

/// An open port.
pub struct Open {
    // Dropped before the port: it has its queue.
    /// Its queue, unless the forwarding core has it.
    pub line: Option<Line>,
    /// What forwarding counts.
    pub counters: Arc<Counters>,
    /// Its faults.
    pub faults: Option<FaultRates>,
    /// The file that its frames are written to.
    pub capture: Option<PathBuf>,
    /// The port.
    pub port: Port,
    /// Where the counters stood when they were cleared.
    cleared: Tally,
    /// The driver's own.
    cleared_extended: BTreeMap<String, u64>,
    /// When rates were last asked for, and where the device's counters stood.
    last: (Instant, Statistics),
}

/// All counters of a port at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The device's.
    pub device: Statistics,
    /// Frames that forwarding received and sent.
    pub forwarded: [u64; 2],
    /// Frames that its device did not take.
    pub full: u64,
    /// Frames without a copy.
    pub no_buffer: u64,
    /// Frames without a whole header.
    pub short: u64,
    /// Frames discarded as the mode has it.
    pub discarded: u64,
}

/// What a port does in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Frames received.
    pub rx_packets: f64,
    /// Frames sent.
    pub tx_packets: f64,
    /// Bits received, of the frames without preamble, check sequence and gap.
    pub rx_bits: f64,
    /// Bits sent.
    pub tx_bits: f64,
}

impl Slot {
    /// Opens the port.
    ///
    /// # Errors
    /// Why the device cannot work.
    pub fn open(&mut self, eal: &Eal) -> anyhow::Result<()> {
        // It must be gone before another one takes its place.
        self.open = None;
        let port = Port::open(eal, &self.plan.device, &self.plan.options)?;
        let queue = port.take_queue(0).ok_or_else(|| anyhow::anyhow!("the device has no queue 0"))?;
        let last = (Instant::now(), port.statistics());
        self.open = Some(Open {
            line: Some(Line::Plain(queue)),
            counters: Arc::new(Counters::default()),
            faults: None,
            capture: None,
            cleared: Tally { device: last.1, ..Tally::default() },
            cleared_extended: BTreeMap::new(),
            last,
            port,
        });
        Ok(())
    }
}

impl Open {
    fn tally_so_far(&self) -> Tally {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Tally {
            device: self.port.statistics(),
            forwarded: [read(&counters.received), read(&counters.sent)],
            full: read(&counters.full),
            no_buffer: read(&counters.no_buffer),
            short: read(&counters.short),
            discarded: read(&counters.discarded),
        }
    }

    /// The counters since they were cleared.
    pub fn tally(&self) -> Tally {
        let (now, then) = (self.tally_so_far(), self.cleared);
        Tally {
            device: since(now.device, then.device),
            forwarded: [0, 1].map(|way| now.forwarded[way].saturating_sub(then.forwarded[way])),
            full: now.full - then.full,
            no_buffer: now.no_buffer - then.no_buffer,
            short: now.short - then.short,
            discarded: now.discarded - then.discarded,
        }
    }

    /// Has them begin at zero.
    pub fn clear(&mut self) {
        self.cleared = self.tally_so_far();
    }

    /// The driver's own counters since they were cleared.
    pub fn extended(&self) -> Vec<(String, u64)> {
        let mut all = self.port.extended_statistics();
        for (name, value) in &mut all {
            *value = value.saturating_sub(self.cleared_extended.get(name).copied().unwrap_or(0));
        }
        all
    }

    /// Has them begin at zero.
    pub fn clear_extended(&mut self) {
        self.cleared_extended = self.port.extended_statistics().into_iter().collect();
    }

    /// What the port did in each second since this was last asked.
    pub fn rates(&mut self) -> Rates {
        let now = (Instant::now(), self.port.statistics());
        let (then, before) = std::mem::replace(&mut self.last, now);
        let seconds = now.0.duration_since(then).as_secs_f64();
        let done = since(now.1, before);
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Rates {
            rx_packets: rate(done.rx_packets),
            tx_packets: rate(done.tx_packets),
            rx_bits: rate(done.rx_octets * 8),
            tx_bits: rate(done.tx_octets * 8),
        }
    }
}

/// A device's counters since another time. They may have begun anew.
fn since(now: Statistics, then: Statistics) -> Statistics {
    Statistics {
        rx_packets: now.rx_packets.saturating_sub(then.rx_packets),
        tx_packets: now.tx_packets.saturating_sub(then.tx_packets),
        rx_octets: now.rx_octets.saturating_sub(then.rx_octets),
        tx_octets: now.tx_octets.saturating_sub(then.tx_octets),
        rx_missed: now.rx_missed.saturating_sub(then.rx_missed),
        rx_errors: now.rx_errors.saturating_sub(then.rx_errors),
        tx_errors: now.tx_errors.saturating_sub(then.tx_errors),
        rx_no_buffer: now.rx_no_buffer.saturating_sub(then.rx_no_buffer),
    }
}
