//! Plain TCP streams: ping-pong and one-way transfer over one connection, without MPA and the layers above.
//!
//! A connection begins with the client's greeting, and serves one run. An echo is checked by its sender. The receiver
//! of a one-way transfer counts it, checks it if the greeting says so, and answers at the end.

use crate::cli::{Plan, ServeArguments, Test};
use crate::report::Report;
use anyhow::{Context as _, bail};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uwarp::{Config, Context, TcpAcceptOptions, TcpListener, TcpStream, TcpStreamOptions};
use uwarp_app::channel::connect_stream;
use uwarp_app::measure::{Bar, round_trips};
use uwarp_app::side::is_side;
use uwarp_app::signals::{check_interrupted, interrupted};
use uwarp_app::units::name_of;
use uwarp_app::{NetworkFlags, output, usage};

/// Octets of a checked run, about.
const VERIFIED_OCTETS: u64 = 8 << 20;
/// Messages of a checked run, at most.
const VERIFIED_MESSAGES: u64 = 2000;
/// Longest wait for anything from the peer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Octets of each buffer of a stream.
const BUFFER: usize = 1 << 20;
/// Longest message: both sides hold one.
const SIZE_MAX: u64 = 64 << 20;
const MAGIC: [u8; 8] = *b"uwarpstr";
const GREETING: usize = 8 + 3 * 8;
/// A receiver's verdict that nothing is wrong.
const RIGHT: u64 = u64::MAX;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All octets are echoed.
    Echo,
    /// Everything is counted.
    Count,
    /// Everything is counted and checked.
    Check,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Echo, Self::Count, Self::Check];
}

fn options() -> TcpStreamOptions {
    TcpStreamOptions::default().buffers(BUFFER, BUFFER)
}

/// Serves one client after another.
///
/// # Errors
/// The device cannot be opened; with `--once`, also what ends the one client's test.
pub fn server(config: Config, arguments: &ServeArguments) -> anyhow::Result<()> {
    let context = arguments.network.open(config)?;
    let accept = TcpAcceptOptions { stream: options(), ..TcpAcceptOptions::default() };
    let mut listener = TcpListener::bind_with(&context, arguments.port, &accept)?;
    if !is_side() {
        // Standard output is for results, of which a server has none.
        output::complain(format_args!("waiting for clients on {}", listener.local_addr()));
    }
    // The client signals its end by an empty connection.
    while !interrupted() {
        let Some((stream, peer)) = listener.accept_timeout(Duration::from_millis(200))? else { continue };
        match serve(stream) {
            Ok(true) if arguments.once => return Ok(()),
            Ok(_) => {}
            Err(error) if arguments.once => return Err(error),
            Err(error) => output::complain(format_args!("uwarp-perf: client {peer}: {error:#}")),
        }
    }
    Ok(())
}

/// Serves one connection. Returns true if it was the client's last.
fn serve(mut stream: TcpStream) -> anyhow::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE));
    stream.set_write_timeout(Some(PATIENCE));
    let mut greeting = [0; GREETING];
    if stream.read(&mut greeting[..1])? == 0 {
        return Ok(true);
    }
    stream.read_exact(&mut greeting[1..]).context("the client left during its greeting")?;
    let number = |at: usize| greeting[at..].first_chunk().map_or(0, |octets| u64::from_le_bytes(*octets));
    let (size, seed) = (number(16), number(24));
    let mode = usize::try_from(number(8)).ok().and_then(|index| Mode::ALL.get(index));
    if greeting[..8] != MAGIC || !(1..=SIZE_MAX).contains(&size) {
        bail!("requested something other than a test of this version");
    }
    match mode {
        Some(Mode::Echo) => echo(&mut stream)?,
        Some(mode) => count(&mut stream, size as usize, (*mode == Mode::Check).then_some(seed))?,
        None => bail!("requested something other than a test of this version"),
    }
    Ok(false)
}

fn echo(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut room = vec![0; 256 << 10];
    loop {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            count => stream.write_all(&room[..count])?,
        }
    }
}

fn count(stream: &mut TcpStream, size: usize, seed: Option<u64>) -> anyhow::Result<()> {
    let mut room = vec![0; if seed.is_some() { size } else { 256 << 10 }];
    let mut expected = vec![0; if seed.is_some() { size } else { 0 }];
    let (mut octets, mut wrong) = (0_u64, RIGHT);
    let mut filled = 0;
    loop {
        let count = stream.read(&mut room[filled..])?;
        if count == 0 {
            break;
        }
        if let Some(seed) = seed {
            filled += count;
            if filled == size {
                filled = 0;
                fill(&mut expected, seed, octets / size as u64);
                if wrong == RIGHT && room != expected {
                    wrong = octets / size as u64;
                }
                octets += size as u64;
            }
        } else {
            octets += count as u64;
        }
    }
    octets += filled as u64;
    stream.write_all(&[octets.to_le_bytes(), wrong.to_le_bytes()].concat())?;
    Ok(())
}

/// The pattern of a message.
fn fill(octets: &mut [u8], seed: u64, message: u64) {
    fastrand::Rng::with_seed(seed ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(octets);
}

/// Runs one test.
///
/// # Errors
/// The server cannot be reached, the connection is lost, or data is wrong.
pub fn client(
    config: Config,
    network: &NetworkFlags,
    plan: &Plan,
    server: SocketAddr,
    device: &str,
) -> anyhow::Result<Report> {
    if plan.size > SIZE_MAX {
        return Err(usage(format!("--size is {}: a stream test takes at most 64 MiB", plan.size)));
    }
    let mtu = config.mtu;
    let engine = format!("{:?}", config.engine.mode).to_lowercase();
    let context = network.open(config)?;
    let mut report = Report { engine: Some(engine), ..Report::untimed(plan.test, device, plan.size, mtu) };
    let seed = fastrand::u64(..);
    if plan.verify {
        let count = (VERIFIED_OCTETS / plan.size).clamp(2, VERIFIED_MESSAGES);
        if plan.test == Test::StreamLatency {
            verify_echo(&context, server, plan.size, seed, count)?;
        } else {
            verify_count(&context, server, plan.size, seed, count)?;
        }
        report.verified = count;
    }
    if plan.test == Test::StreamLatency {
        latency(&context, server, plan, &mut report)?;
    } else {
        bandwidth(&context, server, plan, &mut report)?;
    }
    // The last one, which says nothing.
    TcpStream::connect_with(&context, server, &options())?.shutdown_write();
    Ok(report)
}

fn connect(context: &Context, server: SocketAddr, mode: Mode, size: u64, seed: u64) -> anyhow::Result<TcpStream> {
    // The other side of a pair may still be starting.
    let mut stream = connect_stream(context, server, &options(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE));
    stream.set_write_timeout(Some(PATIENCE));
    let mut greeting = MAGIC.to_vec();
    for number in [mode as u64, size, seed] {
        greeting.extend(number.to_le_bytes());
    }
    stream.write_all(&greeting)?;
    Ok(stream)
}

fn verify_echo(context: &Context, server: SocketAddr, size: u64, seed: u64, count: u64) -> anyhow::Result<()> {
    let mut stream = connect(context, server, Mode::Echo, size, seed)?;
    let mut sent = vec![0; size as usize];
    let mut back = vec![0; size as usize];
    for message in 0..count {
        fill(&mut sent, seed, message);
        ping(&mut stream, &sent, &mut back)?;
        if sent != back {
            bail!("the echo of message {message} is wrong");
        }
        check_interrupted()?;
    }
    Ok(())
}

fn verify_count(context: &Context, server: SocketAddr, size: u64, seed: u64, count: u64) -> anyhow::Result<()> {
    let mut stream = connect(context, server, Mode::Check, size, seed)?;
    let mut octets = vec![0; size as usize];
    for message in 0..count {
        fill(&mut octets, seed, message);
        stream.write_all(&octets)?;
        check_interrupted()?;
    }
    match verdict(&mut stream, count * size)? {
        RIGHT => Ok(()),
        message => bail!("message {message} arrived wrong"),
    }
}

/// Ends this side's half, and receives the receiver's count and verdict.
fn verdict(stream: &mut TcpStream, sent: u64) -> anyhow::Result<u64> {
    stream.shutdown_write();
    let mut answer = [[0; 8]; 2];
    stream.read_exact(answer.as_flattened_mut()).context("the server left before its answer")?;
    let [counted, wrong] = answer.map(u64::from_le_bytes);
    if counted != sent {
        bail!("{counted} of {sent} octets arrived");
    }
    Ok(wrong)
}

/// A message and its echo. A message longer than what both sides buffer would block both if it was written whole first.
#[inline]
fn ping(stream: &mut TcpStream, sent: &[u8], back: &mut [u8]) -> anyhow::Result<()> {
    for (sent, back) in sent.chunks(BUFFER / 2).zip(back.chunks_mut(BUFFER / 2)) {
        stream.write_all(sent)?;
        stream.read_exact(back)?;
    }
    Ok(())
}

fn latency(context: &Context, server: SocketAddr, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut stream = connect(context, server, Mode::Echo, plan.size, 0)?;
    let sent = vec![7; plan.size as usize];
    let mut back = vec![0; plan.size as usize];
    let once = |_| ping(&mut stream, &sent, &mut back).map(|()| true);
    report.set_times(round_trips(&name_of(plan.test), plan.amount, once)?);
    Ok(())
}

fn bandwidth(context: &Context, server: SocketAddr, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let octets = vec![7; plan.size as usize];
    // The warm-up is a separate run, so that the timed one ends with the receiver's answer for all of it.
    for (amount, timed) in [(plan.amount.warm_up(), false), (plan.amount, true)] {
        let mut stream = connect(context, server, Mode::Count, plan.size, 0)?;
        let mut bar = timed.then(|| Bar::new(&name_of(plan.test), amount));
        let begin = Instant::now();
        let mut messages = 0;
        while messages == 0 || !amount.is_reached(messages, || begin.elapsed()) {
            stream.write_all(&octets)?;
            messages += 1;
            if messages % 64 == 0 {
                check_interrupted()?;
                if let Some(bar) = &mut bar {
                    bar.show(messages, begin);
                }
            }
        }
        verdict(&mut stream, messages * plan.size)?;
        if timed {
            report.seconds = begin.elapsed().as_secs_f64();
            report.iterations = messages;
            report.set_rates();
        }
    }
    Ok(())
}
