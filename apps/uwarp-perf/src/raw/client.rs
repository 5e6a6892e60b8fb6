//! The side that asks and measures.

use super::frames::{Geometry, HEADER, Header, Kind, parse};
use super::server::{Mode, check, content, hello, send_message};
use super::{Line, PATIENCE, null};
use crate::cli::{Plan, Test};
use crate::report::Report;
use std::time::{Duration, Instant};
use uwarp::Config;
use uwarp_app::measure::{Bar, round_trips};
use uwarp_app::signals::{at_once, check_interrupted};
use uwarp_app::units::name_of;
use uwarp_app::{NetworkFlags, usage};

/// Messages of a checked run, at most.
const VERIFIED: u64 = 2000;
/// Octets of a checked run, about.
const VERIFIED_OCTETS: u64 = 64 << 20;
/// Time for the server to take leave.
const FAREWELL: Duration = Duration::from_millis(500);
/// Time for the answer to one message; these devices lose frames only by accident.
const ANSWER: Duration = Duration::from_secs(1);
/// Unanswered messages after which the peer is considered gone.
const LOST_MAX: u32 = 5;

/// Runs one test.
///
/// # Errors
/// The device cannot be opened, the server does not answer, or a checked frame is wrong.
pub fn run(config: &Config, network: &NetworkFlags, plan: &Plan, device: &str) -> anyhow::Result<Report> {
    let mut line = at_once(|| Line::open(config, network))?;
    let geometry = match plan.frame {
        // At most 9014, see the plan.
        Some(len) => Geometry::of_frame(len as u32),
        None => Geometry::of_write(plan.size, config.mtu),
    };
    let longest = geometry.longest();
    if longest as usize > line.frame_max() {
        return Err(usage(format!(
            "frames of {longest} octets do not fit the device, whose longest has {}: choose a smaller --frame or a larger --mtu",
            line.frame_max()
        )));
    }
    let seed = fastrand::u64(..);
    let mut report = Report {
        frames: Some((geometry.count, longest)),
        ..Report::untimed(plan.test, device, plan.frame.unwrap_or(plan.size), config.mtu)
    };
    if plan.verify {
        greet(&mut line, Mode::Check, geometry, seed)?;
        report.verified = verify(&mut line, geometry, seed, plan)?;
    }
    if plan.test == Test::RawLatency {
        greet(&mut line, Mode::Echo, geometry, seed)?;
        latency(&mut line, geometry, plan, &mut report)?;
    } else if plan.test == Test::NullBandwidth {
        greet(&mut line, Mode::Null, geometry, seed)?;
        let source = null::memory(geometry);
        bandwidth(&mut line, geometry, plan, &mut report, |index, frame| null::fill(frame, index, geometry, &source))?;
    } else {
        greet(&mut line, Mode::Count, geometry, seed)?;
        bandwidth(&mut line, geometry, plan, &mut report, |_, _| {})?;
    }
    // A server that serves one client may exit before its answer is read: that is not a failure.
    let _ = ask(&mut line, Kind::Bye, &[], Kind::Farewell, FAREWELL);
    Ok(report)
}

/// Repeats a control frame until the answer arrives; returns the answer's body.
fn ask(line: &mut Line, kind: Kind, body: &[u8], answer: Kind, patience: Duration) -> anyhow::Result<Vec<u8>> {
    let nonce = fastrand::u64(..);
    let start = Instant::now();
    loop {
        line.control(kind, nonce, body)?;
        let sent = Instant::now();
        while sent.elapsed() < Duration::from_millis(20) {
            line.receive();
            for packet in &line.received {
                let data = packet.data();
                let Some(header) = parse(data) else { continue };
                if header.kind == answer && header.message == nonce {
                    if let Some(source) = data[6..].first_chunk() {
                        line.addresses.peer = *source;
                    }
                    return Ok(data[HEADER..].to_vec());
                }
            }
        }
        check_interrupted()?;
        if start.elapsed() > patience {
            anyhow::bail!(
                "no server answers over this device after {patience:?}: start 'uwarp-perf serve --transport raw' on the other side, with the same kind of device"
            );
        }
    }
}

fn greet(line: &mut Line, mode: Mode, geometry: Geometry, seed: u64) -> anyhow::Result<()> {
    ask(line, Kind::Hello, &hello(mode, geometry, seed), Kind::Welcome, PATIENCE).map(drop)
}

/// Sends a message and waits for all frames of its echo; false if it did not return in time.
#[inline]
fn round_trip(
    line: &mut Line,
    geometry: Geometry,
    message: u64,
    fill: impl FnMut(u32, &mut [u8]),
    mut look: impl FnMut(&uwarp_dpdk::Mbuf, Header) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    send_message(line, geometry, message, fill)?;
    let mut missing = geometry.count;
    let mut spins = 0_u32;
    let mut deadline = None;
    while missing > 0 {
        if line.receive() > 0 {
            for packet in &line.received {
                if let Some(header) = parse(packet.data())
                    && header.kind == Kind::Data
                    && header.message == message
                {
                    look(packet, header)?;
                    missing = missing.saturating_sub(1);
                }
            }
            continue;
        }
        spins += 1;
        if spins >= 1 << 14 {
            spins = 0;
            check_interrupted()?;
            std::thread::yield_now();
            if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + ANSWER) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn verify(line: &mut Line, geometry: Geometry, seed: u64, plan: &Plan) -> anyhow::Result<u64> {
    let count = (VERIFIED_OCTETS / plan.size).clamp(2, VERIFIED);
    let mut lost = 0;
    let mut message = 0;
    while message < count {
        let back = round_trip(
            line,
            geometry,
            message,
            |index, payload| content(seed, message, index, geometry).fill(0, payload),
            |packet, header| check(packet, header, geometry, seed),
        )?;
        if back {
            message += 1;
        } else {
            lost += 1;
            too_many(lost)?;
        }
    }
    Ok(count)
}

fn too_many(lost: u32) -> anyhow::Result<()> {
    if lost >= LOST_MAX {
        anyhow::bail!("{lost} messages stayed without an answer: the peer is gone, or the device loses frames");
    }
    Ok(())
}

fn latency(line: &mut Line, geometry: Geometry, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut lost = 0;
    report.set_times(round_trips(&name_of(plan.test), plan.amount, |message| {
        let back = round_trip(line, geometry, message, |_, _| {}, |_, _| Ok(()))?;
        if !back {
            lost += 1;
            too_many(lost)?;
        }
        Ok(back)
    })?);
    Ok(())
}

fn bandwidth(
    line: &mut Line,
    geometry: Geometry,
    plan: &Plan,
    report: &mut Report,
    mut fill: impl FnMut(u32, &mut [u8]),
) -> anyhow::Result<()> {
    let mut bar = Bar::new(&name_of(plan.test), plan.amount);
    let begin = Instant::now();
    let mut message = 0_u64;
    loop {
        // At least two bursts between two readings of the clock.
        for _ in 0..(64 / geometry.count).max(1) {
            send_burst(line, geometry, message, &mut fill)?;
            message += 1;
        }
        if plan.amount.is_reached(message, || begin.elapsed()) {
            break;
        }
        check_interrupted()?;
        bar.show(message, begin);
    }
    line.transmit_all()?;
    drop(bar);
    // Data frames under way arrive before the answer to Stop: all devices keep the order.
    let counts = ask(line, Kind::Stop, &[], Kind::Counts, PATIENCE)?;
    let field = |at: usize| {
        counts.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |octets| u64::from_le_bytes(*octets))
    };
    let (frames, nanoseconds) = (field(0), field(8));
    if frames == 0 || nanoseconds == 0 {
        anyhow::bail!("too few frames arrived to measure: choose a longer --duration or more --iterations");
    }
    report.iterations = frames / u64::from(geometry.count);
    report.seconds = nanoseconds as f64 / 1e9;
    report.set_rates();
    report.mframes = Some(frames as f64 / report.seconds / 1e6);
    Ok(())
}

/// Queues the frames of a message and sends as many as the device accepts without waiting.
#[inline]
fn send_burst(
    line: &mut Line,
    geometry: Geometry,
    message: u64,
    fill: &mut impl FnMut(u32, &mut [u8]),
) -> anyhow::Result<()> {
    let mut index = 0;
    let mut refused = 0_u32;
    while index < geometry.count {
        let header = Header { kind: Kind::Data, index, message };
        if line.pending.len() < 64 && line.queue_frame(header, geometry.len(index), |frame| fill(index, frame)) {
            index += 1;
            refused = 0;
        } else {
            refused += 1;
            if refused > 1 << 20 {
                refused = 0;
                line.transmit_all()?;
            }
        }
        if line.pending.len() >= 32 {
            line.transmit();
        }
    }
    Ok(())
}
