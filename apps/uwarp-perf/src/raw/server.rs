//! The answering side: returns data frames in a latency test, counts them in a bandwidth test.

use super::frames::{ETHERNET, Geometry, HEADER, Header, Kind, parse};
use super::{Line, null};
use crate::cli::SIZE_MAX;
use crate::pattern::Pattern;
use std::time::{Duration, Instant};
use uwarp::Config;
use uwarp_app::NetworkFlags;
use uwarp_app::signals::{at_once, check_interrupted};

/// The client's request, and the counts since.
struct Task {
    geometry: Geometry,
    mode: Mode,
    /// Where the null protocol places.
    memory: Vec<u8>,
    seed: u64,
    /// Frames of the current message so far (echo), or of all messages (count).
    frames: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// How to treat data frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Send each message back.
    Echo = 1,
    /// Check every octet, then send the message back.
    Check = 2,
    /// Count.
    Count = 3,
    /// Verify and place, and count.
    Null = 4,
}

/// A Hello's body: mode, geometry, seed.
pub fn hello(mode: Mode, geometry: Geometry, seed: u64) -> [u8; 24] {
    let mut body = [0; 24];
    body[0] = mode as u8;
    body[4..16].copy_from_slice(&geometry.to_octets());
    body[16..].copy_from_slice(&seed.to_le_bytes());
    body
}

fn parse_hello(body: &[u8]) -> Option<Task> {
    let body: &[u8; 24] = body.first_chunk()?;
    let mode = [Mode::Echo, Mode::Check, Mode::Count, Mode::Null].into_iter().find(|&mode| mode as u8 == body[0])?;
    let geometry = Geometry::from_octets(&body[4..16])?;
    if geometry.payload(geometry.count - 1).end as u64 > SIZE_MAX {
        return None;
    }
    let memory = if mode == Mode::Null { null::memory(geometry) } else { Vec::new() };
    Some(Task {
        geometry,
        mode,
        memory,
        seed: u64::from_le_bytes(*body.last_chunk()?),
        frames: 0,
        first: None,
        last: None,
    })
}

/// Time for the last answer to be read.
const SETTLE: Duration = Duration::from_millis(20);

/// Serves clients until interrupted, or until the first one leaves.
///
/// # Errors
/// The device cannot be opened, or a checked frame is wrong.
pub fn run(config: &Config, network: &NetworkFlags, once: bool) -> anyhow::Result<()> {
    let mut line = at_once(|| Line::open(config, network))?;
    let mut task: Option<Task> = None;
    let mut idle = 0_u32;
    let mut left: Option<Instant> = None;
    loop {
        // A little later, so that the answer is read before the device is closed.
        if once && left.is_some_and(|left| left.elapsed() > SETTLE) {
            return Ok(());
        }
        if line.receive() == 0 {
            idle += 1;
            if idle >= 1 << 14 {
                idle = 0;
                check_interrupted()?;
                std::thread::yield_now();
            }
            continue;
        }
        idle = 0;
        // The single frame of an echo is returned in its own buffer: nothing can be faster.
        if let Some(task) = &task
            && task.mode == Mode::Echo
            && task.geometry.count == 1
        {
            turn_around(&mut line);
            line.transmit_all()?;
        }
        let mut received = std::mem::take(&mut line.received);
        for packet in received.drain(..) {
            let Some(header) = parse(packet.data()) else {
                continue;
            };
            if header.kind == Kind::Data {
                if let Some(task) = &mut task {
                    data(&mut line, task, header, &packet)?;
                }
                continue;
            }
            if let Some(source) = packet.data()[6..].first_chunk() {
                line.addresses.peer = *source;
            }
            match header.kind {
                Kind::Hello => {
                    if let Some(new) = parse_hello(&packet.data()[HEADER..]) {
                        task = Some(new);
                        line.control(Kind::Welcome, header.message, &[])?;
                    }
                }
                Kind::Stop => {
                    let counts = task.as_ref().map_or([0; 16], counts);
                    line.control(Kind::Counts, header.message, &counts)?;
                }
                Kind::Bye => {
                    line.control(Kind::Farewell, header.message, &[])?;
                    left = Some(Instant::now());
                }
                Kind::Welcome | Kind::Counts | Kind::Data | Kind::Farewell => {}
            }
        }
        line.received = received;
    }
}

/// Moves data frames from `received` to `pending`, with their addresses exchanged.
#[inline]
fn turn_around(line: &mut Line) {
    let mut index = 0;
    while index < line.received.len() {
        let is_data = parse(line.received[index].data()).is_some_and(|header| header.kind == Kind::Data);
        if !is_data {
            index += 1;
            continue;
        }
        let mut packet = line.received.remove(index);
        let start = packet.start();
        if let Some(head) = packet.storage_mut().and_then(|storage| storage.get_mut(start..start + ETHERNET)) {
            let (destination, source) = head.split_at_mut(6);
            destination.swap_with_slice(&mut source[..6]);
        }
        line.pending.push_back(packet);
    }
}

fn data(line: &mut Line, task: &mut Task, header: Header, packet: &uwarp_dpdk::Mbuf) -> anyhow::Result<()> {
    match task.mode {
        Mode::Count | Mode::Null => {
            if task.mode == Mode::Null {
                null::place(packet, header, task.geometry, &mut task.memory)?;
            }
            task.frames += 1;
            // The clock is read once per 64 frames, as it costs more than a frame.
            if task.first.is_none() {
                task.first = Some(Instant::now());
                // The clock starts at this frame, so its own octets do not count.
                task.frames = 0;
            } else if task.frames.is_multiple_of(64) {
                task.last = Some(Instant::now());
            }
        }
        Mode::Echo | Mode::Check => {
            if task.mode == Mode::Check {
                check(packet, header, task.geometry, task.seed)?;
            }
            if header.index == 0 {
                task.frames = 0;
            }
            task.frames += 1;
            if task.frames == u64::from(task.geometry.count) {
                send_message(line, task.geometry, header.message, |index, payload| {
                    if task.mode == Mode::Check {
                        content(task.seed, header.message, index, task.geometry).fill(0, payload);
                    }
                })?;
                task.frames = 0;
            }
        }
    }
    Ok(())
}

/// Sends all frames of a message.
pub fn send_message(
    line: &mut Line,
    geometry: Geometry,
    message: u64,
    mut payload: impl FnMut(u32, &mut [u8]),
) -> anyhow::Result<()> {
    let mut index = 0;
    while index < geometry.count {
        let header = Header { kind: Kind::Data, index, message };
        if line.queue_frame(header, geometry.len(index), |octets| payload(index, octets)) {
            index += 1;
        } else {
            check_interrupted()?;
        }
        if line.pending.len() >= 32 {
            line.transmit();
        }
        // Queue no more than two bursts: the device is behind.
        while line.pending.len() >= 96 {
            line.transmit_all()?;
        }
    }
    line.transmit_all()
}

/// The contents of frame `index` of a message in a checked run.
pub fn content(seed: u64, message: u64, index: u32, geometry: Geometry) -> Pattern {
    Pattern::new(seed, 0, message * u64::from(geometry.count) + u64::from(index))
}

/// Checks every octet of a frame.
pub fn check(packet: &uwarp_dpdk::Mbuf, header: Header, geometry: Geometry, seed: u64) -> anyhow::Result<()> {
    let expected = geometry.len(header.index);
    if header.index >= geometry.count || packet.total_len() != expected {
        anyhow::bail!(
            "frame {} of message {} has {} octets instead of {expected}",
            header.index,
            header.message,
            packet.total_len()
        );
    }
    let pattern = content(seed, header.message, header.index, geometry);
    let mut skip = HEADER;
    let mut position = 0;
    for segment in packet.segments() {
        let octets = segment.get(skip..).unwrap_or(&[]);
        skip = skip.saturating_sub(segment.len());
        if let Err(wrong) = pattern.check(position, octets) {
            anyhow::bail!("octet {wrong} of frame {} of message {} is wrong", header.index, header.message);
        }
        position += octets.len() as u64;
    }
    Ok(())
}

/// Frames and nanoseconds of a bandwidth test.
fn counts(task: &Task) -> [u8; 16] {
    let nanoseconds = match (task.first, task.last) {
        (Some(first), Some(last)) => last.duration_since(first).as_nanos() as u64,
        _ => 0,
    };
    // Frames after the last reading of the clock do not count.
    let frames = task.frames / 64 * 64;
    let mut body = [0; 16];
    body[..8].copy_from_slice(&frames.to_le_bytes());
    body[8..].copy_from_slice(&nanoseconds.to_le_bytes());
    body
}
