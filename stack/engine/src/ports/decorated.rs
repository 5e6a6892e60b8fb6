//! Deliberate faults and packet capture around a port, switchable at run time.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::checksum;

use super::capture::Capture;
use super::middlebox::Middlebox;
pub use crate::api::faults::{FaultRates, Rates};

use crate::api::event::ControlError;
use crate::api::faults::Recutting;
use crate::link::port::{BURST, Batch, Buffer, Capabilities, Descriptors, LinkState, PoolLevels, Port};

/// A delayed frame continues after this time at the latest.
const LONGEST_HOLD: Duration = Duration::from_millis(1);
/// Free buffers that the middlebox leaves for transmission.
const SPARE: usize = 256;

#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    marked: u64,
}

/// Random decisions of one direction, and the frames that it delays.
#[derive(Debug)]
struct Direction<B> {
    rates: Rates,
    counters: Counters,
    /// Frames that passed and wait for room.
    passed: VecDeque<B>,
    /// Delayed frames: how many more may overtake, and until when.
    held: VecDeque<(B, u32, Instant)>,
}

impl<B: Buffer> Direction<B> {
    fn new(rates: Rates) -> Self {
        Direction { rates, counters: Counters::default(), passed: VecDeque::new(), held: VecDeque::new() }
    }

    /// Decides the fate of one frame. `spare` gives a buffer for a damaged copy if the frame's own is shared.
    fn pass(&mut self, mut frame: B, now: Instant, random: &mut fastrand::Rng, spare: impl FnOnce() -> Option<B>) {
        let mut dice = |probability: f64| probability > 0.0 && random.f64() < probability;
        let rates = self.rates;
        if dice(rates.loss) {
            self.counters.lost += 1;
            return;
        }
        let (twice, later, damaged) = (dice(rates.duplication), dice(rates.reordering), dice(rates.corruption));
        if twice {
            self.counters.duplicated += 1;
            self.passed.push_back(frame.share());
        }
        let marked = dice(rates.marking) && allows_marking(frame.data());
        if marked || damaged && is_ip(frame.data()) {
            if frame.is_shared()
                && let Some(mut copy) = spare()
            {
                copy_frame(&frame, &mut copy);
                frame = copy;
            }
            if marked {
                self.counters.marked += 1;
                mark(&mut frame);
            }
            if damaged {
                self.counters.corrupted += 1;
                flip(&mut frame, random);
            }
        }
        if later {
            self.counters.reordered += 1;
            self.held.push_back((frame, random.u32(1..=4), now + LONGEST_HOLD));
        } else {
            self.passed.push_back(frame);
            for held in &mut self.held {
                held.1 = held.1.saturating_sub(1);
            }
        }
        self.release(now);
    }

    /// Releases frames that were delayed long enough.
    fn release(&mut self, now: Instant) {
        while self.held.front().is_some_and(|(_, overtaking, until)| *overtaking == 0 || *until <= now) {
            if let Some((frame, _, _)) = self.held.pop_front() {
                self.passed.push_back(frame);
            }
        }
    }
}

fn copy_frame<B: Buffer>(from: &B, to: &mut B) {
    let start = to.start();
    let mut at = start;
    if let Some(storage) = to.storage_mut() {
        for part in from.segments() {
            let room = storage.len() - at;
            let length = part.len().min(room);
            storage[at..at + length].copy_from_slice(&part[..length]);
            at += length;
        }
    }
    to.set_range(start, at - start);
    to.set_transmit_checksums(from.transmit_checksums());
}

fn is_ip(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]))
}

/// Whether an IP packet's ECN bits are ECT(0) or ECT(1) (RFC 3168 §5).
fn allows_marking(frame: &[u8]) -> bool {
    let bits = match (frame.get(12..14), frame.get(14..16)) {
        (Some([0x08, 0x00]), Some(&[_, class])) => class & 3,
        (Some([0x86, 0xdd]), Some(&[_, low])) => low >> 4 & 3,
        _ => 0,
    };
    matches!(bits, 1 | 2)
}

/// Sets both ECN bits and, with IPv4, corrects the header's checksum (RFC 1624 §3).
fn mark<B: Buffer>(frame: &mut B) {
    let start = frame.start();
    let Some(ip) = frame.storage_mut().and_then(|storage| storage.get_mut(start + 14..)) else { return };
    if ip[0] >> 4 == 6 {
        ip[1] |= 0x30;
        return;
    }
    let before = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] |= 3;
    let after = u16::from_be_bytes([ip[0], ip[1]]);
    let sum = u16::from_be_bytes([ip[10], ip[11]]);
    let mended = checksum::fold(u32::from(!sum) + u32::from(!before) + u32::from(after));
    ip[10..12].copy_from_slice(&(!mended).to_be_bytes());
}

fn flip<B: Buffer>(frame: &mut B, random: &mut fastrand::Rng) {
    let (start, length) = (frame.start(), frame.data().len());
    if length > 14
        && let Some(storage) = frame.storage_mut()
    {
        let place = start + random.usize(14..length);
        storage[place] ^= 1 << random.u32(0..8);
    }
}

#[derive(Debug)]
struct Faults<B> {
    random: fastrand::Rng,
    transmit: Direction<B>,
    receive: Direction<B>,
    /// One for each direction, between the engine and the other faults.
    middleboxes: Option<Middleboxes<B>>,
    /// The faults are switched off; only delayed frames remain.
    over: bool,
}

impl<B: Buffer> Faults<B> {
    fn new(rates: FaultRates, now: Instant) -> Faults<B> {
        Faults {
            random: fastrand::Rng::with_seed(rates.seed ^ now.as_nanos()),
            transmit: Direction::new(rates.transmit),
            receive: Direction::new(rates.receive),
            middleboxes: Middleboxes::new(&rates, rates.seed.rotate_left(32) ^ now.as_nanos()),
            over: false,
        }
    }

    /// Received frames that are through.
    fn ready(&mut self) -> &mut VecDeque<B> {
        match &mut self.middleboxes {
            Some(middleboxes) => &mut middleboxes.receive.passed,
            None => &mut self.receive.passed,
        }
    }

    /// Whether frames still wait for the device or for the engine.
    fn is_waited_for(&self) -> bool {
        let pieces = self.middleboxes.as_ref().is_some_and(|middleboxes| !middleboxes.receive.passed.is_empty());
        pieces || !self.transmit.passed.is_empty() || !self.receive.passed.is_empty()
    }

    /// Takes over the frames that earlier faults delay.
    fn take_over(&mut self, mut before: Faults<B>) {
        self.receive.passed.append(before.ready());
        for (from, to) in [(before.transmit, &mut self.transmit), (before.receive, &mut self.receive)] {
            to.passed.extend(from.passed);
            // Delayed frames continue now: the frames that they wait for may never come.
            to.passed.extend(from.held.into_iter().map(|(frame, _, _)| frame));
        }
    }
}

#[derive(Debug)]
struct Middleboxes<B> {
    transmit: Middlebox<B>,
    receive: Middlebox<B>,
}

impl<B: Buffer> Middleboxes<B> {
    fn new(rates: &FaultRates, seed: u64) -> Option<Middleboxes<B>> {
        let recutting = rates.recutting;
        let cutting = if rates.recut_received_only { 0.0 } else { recutting.cutting };
        (recutting != Recutting::default()).then(|| Middleboxes {
            transmit: Middlebox::new(Recutting { cutting, joining: 0.0 }, !seed),
            receive: Middlebox::new(recutting, seed),
        })
    }
}

/// A buffer for a piece, if transmission can spare one: sending takes precedence over cutting.
fn spare<P: Port>(port: &mut P) -> Option<P::Buffer> {
    if port.transmit_free() > SPARE { port.alloc() } else { None }
}

#[derive(Debug)]
struct Extras<B> {
    faults: Option<Faults<B>>,
    capture: Option<Capture>,
}

/// A port, plain or with faults or a capture. A plain one costs one test a burst.
#[derive(Debug)]
pub struct Decorated<P: Port> {
    port: P,
    now: Instant,
    extras: Option<Box<Extras<P::Buffer>>>,
}

impl<P: Port> Decorated<P> {
    /// The port, plain at first.
    pub fn new(port: P) -> Decorated<P> {
        Decorated { port, now: Instant::ZERO, extras: None }
    }

    fn extras(&mut self) -> &mut Extras<P::Buffer> {
        self.extras.get_or_insert_with(|| Box::new(Extras { faults: None, capture: None }))
    }

    fn drop_empty_extras(&mut self) {
        if self.extras.as_ref().is_some_and(|extras| extras.faults.is_none() && extras.capture.is_none()) {
            self.extras = None;
        }
    }

    #[cold]
    fn rx_with_extras(&mut self, batch: &mut Batch<P::Buffer>) -> usize {
        let Some(extras) = &mut self.extras else { return 0 };
        let before = batch.len();
        if let Some(faults) = &mut extras.faults {
            let bursts = match faults.middleboxes.is_some() {
                // What became of the last burst comes first: the device's queue fills up, as with any slow receiver.
                _ if faults.ready().len() >= BURST => 0,
                false => 1,
                true => 2,
            };
            for _ in 0..bursts {
                let mut arrived: Batch<P::Buffer> = Batch::new();
                let is_all = self.port.rx_burst(&mut arrived) < BURST;
                for frame in arrived {
                    let port = &mut self.port;
                    faults.receive.pass(frame, self.now, &mut faults.random, || port.alloc());
                }
                if is_all {
                    break;
                }
            }
            faults.receive.release(self.now);
            if let Some(Middleboxes { receive: middlebox, .. }) = &mut faults.middleboxes {
                for frame in faults.receive.passed.drain(..) {
                    middlebox.take(frame, || spare(&mut self.port));
                }
                middlebox.flush();
            }
            let ready = faults.ready();
            while !batch.is_full() {
                let Some(frame) = ready.pop_front() else { break };
                batch.push(frame);
            }
            faults.transmit.release(self.now);
            self.port.tx_burst(&mut faults.transmit.passed);
        } else {
            self.port.rx_burst(batch);
        }
        if let Some(capture) = &mut extras.capture {
            for frame in &batch[before..] {
                capture.write(frame.segments(), self.now);
            }
            capture.flush_if_due(self.now);
        }
        if extras.faults.as_ref().is_some_and(|faults| faults.over && !faults.is_waited_for()) {
            extras.faults = None;
            self.drop_empty_extras();
        }
        batch.len() - before
    }

    #[cold]
    fn tx_with_extras(&mut self, frames: &mut VecDeque<P::Buffer>) -> usize {
        let Some(extras) = &mut self.extras else { return 0 };
        if let Some(capture) = &mut extras.capture {
            for frame in frames.iter().skip(capture.written_ahead) {
                capture.write(frame.segments(), self.now);
            }
            capture.written_ahead = frames.len();
        }
        let taken = if let Some(faults) = &mut extras.faults {
            let mut taken = 0;
            while faults.transmit.passed.len() < 4 * BURST {
                let Some(frame) = frames.pop_front() else { break };
                let port = &mut self.port;
                let (direction, random) = (&mut faults.transmit, &mut faults.random);
                match &mut faults.middleboxes {
                    Some(Middleboxes { transmit: middlebox, .. }) => {
                        middlebox.take(frame, || spare(port));
                        for piece in middlebox.passed.drain(..) {
                            direction.pass(piece, self.now, random, || port.alloc());
                        }
                    }
                    None => direction.pass(frame, self.now, random, || port.alloc()),
                }
                taken += 1;
            }
            self.port.tx_burst(&mut faults.transmit.passed);
            taken
        } else {
            self.port.tx_burst(frames)
        };
        if let Some(capture) = &mut extras.capture {
            capture.written_ahead = frames.len();
        }
        taken
    }
}

impl<P: Port> Port for Decorated<P> {
    type Buffer = P::Buffer;

    #[inline(always)]
    fn alloc(&mut self) -> Option<P::Buffer> {
        self.port.alloc()
    }

    #[inline(always)]
    fn rx_burst(&mut self, batch: &mut Batch<P::Buffer>) -> usize {
        if self.extras.is_none() { self.port.rx_burst(batch) } else { self.rx_with_extras(batch) }
    }

    #[inline(always)]
    fn tx_one(&mut self, frame: P::Buffer) -> Result<(), P::Buffer> {
        if self.extras.is_none() { self.port.tx_one(frame) } else { Err(frame) }
    }

    #[inline]
    fn tx_burst(&mut self, frames: &mut VecDeque<P::Buffer>) -> usize {
        if self.extras.is_none() { self.port.tx_burst(frames) } else { self.tx_with_extras(frames) }
    }

    fn link(&mut self) -> LinkState {
        self.port.link()
    }

    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    fn pool_levels(&self) -> PoolLevels {
        self.port.pool_levels()
    }

    #[inline]
    fn transmit_free(&self) -> usize {
        self.port.transmit_free()
    }

    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.port.set_now(now);
    }

    fn enable_wakeups(&mut self) -> bool {
        self.port.enable_wakeups()
    }

    fn wakeup_descriptors(&self) -> Descriptors<'_> {
        self.port.wakeup_descriptors()
    }

    fn disable_wakeups(&mut self) -> bool {
        self.port.disable_wakeups()
    }

    fn next_arrival(&self) -> Option<Instant> {
        let held = self.extras.as_ref().and_then(|extras| {
            let faults = extras.faults.as_ref()?;
            let fronts = [faults.transmit.held.front(), faults.receive.held.front()];
            let held = fronts.into_iter().flatten().map(|(_, _, until)| *until);
            held.chain(faults.is_waited_for().then_some(self.now)).min()
        });
        let written = self.extras.as_ref().and_then(|extras| extras.capture.as_ref()?.due);
        [held, written, self.port.next_arrival()].into_iter().flatten().min()
    }

    fn set_faults(&mut self, rates: Option<FaultRates>) {
        let now = self.now;
        let before = self.extras().faults.take();
        let mut faults = Faults::new(rates.unwrap_or_default(), now);
        faults.over = rates.is_none();
        if let Some(before) = before {
            faults.take_over(before);
            self.port.tx_burst(&mut faults.transmit.passed);
        }
        // Without rates they stay until no frame waits, so that none is lost or overtaken.
        if !faults.over || faults.is_waited_for() {
            self.extras().faults = Some(faults);
        }
        self.drop_empty_extras();
    }

    fn start_capture(&mut self, path: &Path) -> Result<(), ControlError> {
        let failed = |cause| ControlError::File { path: path.to_owned(), cause };
        // Its file may be the same.
        self.stop_capture();
        let capture = Capture::open(path, self.now).map_err(failed)?;
        self.extras().capture = Some(capture);
        Ok(())
    }

    fn stop_capture(&mut self) {
        // Dropping it writes what is left.
        self.extras().capture = None;
        self.drop_empty_extras();
    }

    fn fault_counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        let faults = self.extras.as_ref().and_then(|extras| extras.faults.as_ref());
        if let Some(faults) = faults.filter(|faults| !faults.over) {
            for (name, direction) in [("transmit", &faults.transmit), ("receive", &faults.receive)] {
                let counters = direction.counters;
                let kinds = [
                    ("lost", counters.lost),
                    ("duplicated", counters.duplicated),
                    ("reordered", counters.reordered),
                    ("corrupted", counters.corrupted),
                    ("marked", counters.marked),
                ];
                for (kind, count) in kinds {
                    counts.insert(format!("{name}-{kind}"), count);
                }
            }
            if let Some(Middleboxes { transmit, receive }) = &faults.middleboxes {
                let [cut, joined] = receive.counts;
                for (name, count) in
                    [("transmit-cut", transmit.counts[0]), ("receive-cut", cut), ("receive-joined", joined)]
                {
                    counts.insert(name.to_owned(), count);
                }
            }
        }
        counts
    }
}
