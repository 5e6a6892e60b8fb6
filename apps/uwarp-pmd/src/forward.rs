//! The forwarding core: a thread that polls the ports and moves frames between them. It takes no lock, and allocates
//! nothing unless faults or a capture are on.

use crate::frames::{Exchanged, copy, exchange, fill};
use crate::line::Line;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use uwarp_dpdk::{Eal, Mbuf};

/// Turns without a frame before the thread lets others run.
const IDLE_TURNS: u32 = 1 << 14;

/// What is done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It goes on as it is.
    Io,
    /// Its addresses are exchanged.
    MacSwap,
    /// It is discarded.
    Discard,
}

/// The counters of one port. The forwarding core alone writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Frames received.
    pub received: AtomicU64,
    /// Frames sent.
    pub sent: AtomicU64,
    /// Frames that were to leave by this port, and that its device did not take.
    pub full: AtomicU64,
    /// Frames without a copy, for want of a buffer.
    pub no_buffer: AtomicU64,
    /// Frames without a whole Ethernet header.
    pub short: AtomicU64,
    /// Frames discarded as the mode has it.
    pub discarded: AtomicU64,
}

/// Adds to a counter that no other thread writes.
#[inline(always)]
fn add(counter: &AtomicU64, count: usize) {
    if count > 0 {
        counter.store(counter.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
    }
}

/// A port in the core.
pub struct Station {
    /// Its number.
    pub port: usize,
    /// Its queue.
    pub line: Line,
    /// Its counters.
    pub counters: Arc<Counters>,
    /// The frame that it sends of its own.
    pub template: Vec<u8>,
    /// How many of those it has yet to send.
    pub left: u64,
    /// Those that are made, and not sent.
    made: Vec<Mbuf>,
}

impl Station {
    /// A port that has `left` frames of its own to send.
    pub fn new(port: usize, line: Line, counters: Arc<Counters>, template: Vec<u8>, left: u64) -> Station {
        Station { port, line, counters, template, left, made: Vec::new() }
    }

    /// Sends a burst of its own frames. What the device does not take goes the next time.
    fn generate(&mut self, burst: usize) {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(burst);
        while self.made.len() < wanted {
            let Some(mut packet) = self.line.alloc() else { break };
            if !fill(&mut packet, &self.template) {
                break;
            }
            self.made.push(packet);
        }
        let sent = self.line.send(&mut self.made);
        if self.left < u64::MAX {
            self.left -= sent as u64;
        }
        add(&self.counters.sent, sent);
    }
}

/// The core, while it stands still.
pub struct Core {
    /// What is done with a frame.
    pub mode: Mode,
    /// The ports.
    pub stations: Vec<Station>,
    /// For each port, by its place in `stations`, the place of the port that its frames leave by.
    pub exits: Vec<usize>,
    /// Frames of one burst at most.
    pub burst: usize,
    /// The CPU that it runs on, if one is named.
    pub cpu: Option<usize>,
}

/// The core, while it runs.
pub struct Running {
    thread: JoinHandle<Core>,
    stop: Arc<AtomicBool>,
}

impl Running {
    /// Starts the core on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be had, or its CPU.
    pub fn start(eal: &Eal, core: Core) -> Result<Running, (anyhow::Error, Option<Core>)> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::sync_channel::<anyhow::Result<()>>(1);
        let (eal, flag) = (eal.clone(), Arc::clone(&stop));
        let builder = std::thread::Builder::new().name("forwarding".to_owned());
        let body = move || {
            if let Some(cpu) = core.cpu
                && !uwarp_app::cacheline::pin(cpu)
            {
                let _ = ready.send(Err(uwarp_app::usage(format!("CPU {cpu} is none that this process may use"))));
                return core;
            }
            match eal.register_thread() {
                Ok(_registration) => {
                    let _ = ready.send(Ok(()));
                    core.run(&flag)
                }
                Err(error) => {
                    let _ = ready.send(Err(error.into()));
                    core
                }
            }
        };
        // No signal is for this thread.
        let thread = uwarp_dpdk::with_signals_blocked(|| builder.spawn(body));
        let thread = thread.map_err(|error| (error.into(), None))?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Running { thread, stop }),
            Ok(Err(error)) => Err((error, thread.join().ok())),
            Err(gone) => Err((gone.into(), thread.join().ok())),
        }
    }

    /// Stops it.
    ///
    /// # Errors
    /// The thread has panicked: its queues are gone.
    pub fn stop(self) -> anyhow::Result<Core> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the forwarding core has failed: 'port stop all' closes its ports"))
    }
}

impl Core {
    /// Polls until `stop` is set.
    fn run(mut self, stop: &AtomicBool) -> Core {
        let mut frames = Vec::with_capacity(self.burst);
        for station in &mut self.stations {
            station.made.reserve(self.burst);
        }
        let mut idle = 0;
        while !stop.load(Ordering::Relaxed) {
            if self.turn(&mut frames) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle >= IDLE_TURNS {
                idle = 0;
                std::thread::yield_now();
            }
        }
        self
    }

    /// Visits every port once. Returns whether there was anything to do.
    #[inline]
    fn turn(&mut self, frames: &mut Vec<Mbuf>) -> bool {
        let mut worked = false;
        for at in 0..self.stations.len() {
            let station = &mut self.stations[at];
            station.line.receive(frames);
            if !frames.is_empty() {
                worked = true;
                add(&station.counters.received, frames.len());
                self.forward(at, frames);
            }
            let station = &mut self.stations[at];
            if station.left > 0 {
                worked = true;
                station.generate(self.burst);
            }
        }
        worked
    }

    /// Does what the mode says with frames that the port at `from` has received. None is left.
    #[inline]
    fn forward(&mut self, from: usize, frames: &mut Vec<Mbuf>) {
        match self.mode {
            Mode::Io => {}
            Mode::MacSwap => self.exchange_all(from, frames),
            Mode::Discard => {
                add(&self.stations[from].counters.discarded, frames.len());
                frames.clear();
                return;
            }
        }
        let exit = &mut self.stations[self.exits[from]];
        let sent = exit.line.send(frames);
        add(&exit.counters.sent, sent);
        add(&exit.counters.full, frames.len());
        frames.clear();
    }

    /// Exchanges the addresses of all frames, and drops those of which that is not possible.
    #[inline]
    fn exchange_all(&mut self, from: usize, frames: &mut Vec<Mbuf>) {
        let (mut short, mut no_buffer) = (0, 0);
        let line = &mut self.stations[self.exits[from]].line;
        frames.retain_mut(|frame| match exchange(frame) {
            Exchanged::Done => true,
            Exchanged::Short => {
                short += 1;
                false
            }
            Exchanged::Shared => {
                let copied = exchanged_copy(line, frame);
                no_buffer += usize::from(copied.is_none());
                copied.is_some_and(|copied| {
                    *frame = copied;
                    true
                })
            }
        });
        let counters = &self.stations[from].counters;
        add(&counters.short, short);
        add(&counters.no_buffer, no_buffer);
    }
}

/// A copy of a frame that others use, too, with its addresses exchanged.
#[cold]
fn exchanged_copy(line: &mut Line, frame: &Mbuf) -> Option<Mbuf> {
    let mut fresh = line.alloc()?;
    (copy(frame, &mut fresh) && exchange(&mut fresh) == Exchanged::Done).then_some(fresh)
}
