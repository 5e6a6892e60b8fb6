//! The side that asks and measures.

use super::bandwidth::{Operation, Pump};
use super::latency::{Exchange, Used, ask_by_immediate, ask_by_send, ask_by_write, fetch_add, read, write_commit};
use super::layout::Layout;
use super::session::{CONTROL, FEATURES, PATIENCE, Session, allow_queue_pairs};
use super::wire::{Control, Request, data_to_octets, memory_from_octets, mismatch};
use crate::cli::{Plan, Test};
use crate::report::Report;
use anyhow::Context as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use uwarp::{Completion, Config, ConnectOptions};
use uwarp_app::NetworkFlags;
use uwarp_app::channel::{Channel, connect};
use uwarp_app::measure::{Samples, Timed, round_trips};
use uwarp_app::signals::check_interrupted;
use uwarp_app::units::name_of;

/// Octets of a checked run on each queue pair, approximately.
const VERIFIED_OCTETS: u64 = 2 << 20;
/// The most messages of a checked latency run.
const VERIFIED_MESSAGES: u64 = 500;

/// Runs one test.
///
/// # Errors
/// The server cannot be reached, the connection is lost, or data is wrong.
pub fn run(
    mut config: Config,
    network: &NetworkFlags,
    plan: &Plan,
    server: SocketAddr,
    device: &str,
) -> anyhow::Result<Report> {
    let mtu = config.mtu;
    allow_queue_pairs(&mut config, plan.qps);
    let engine = format!("{:?}", config.engine.mode).to_lowercase();
    let context = network.open(config)?;
    let (mut session, crc) = establish(context.clone(), plan, server)?;
    let mut report = Report {
        crc: Some(crc),
        engine: Some(engine),
        qps: plan.qps,
        depth: plan.depth,
        ..Report::untimed(plan.test, device, plan.size, mtu)
    };
    match plan.test {
        Test::WriteLatency | Test::SendLatency => ping_pong(&mut session, plan, &mut report)?,
        Test::ReadLatency => read_latency(&mut session, plan, &mut report)?,
        Test::AtomicLatency => atomic_latency(&mut session, plan, &mut report)?,
        Test::ImmediateLatency => immediate_latency(&mut session, plan, &mut report)?,
        Test::CommitLatency => commit_latency(&mut session, plan, &mut report)?,
        Test::ConnectRate => connect_rate(&mut session, plan, server, &mut report)?,
        _ => bandwidth(&mut session, plan, &mut report)?,
    }
    report.hot_share =
        context.stats().engines.first().map(|engine| (engine.hot_share_received(), engine.hot_share_sent()));
    session.leave()?;
    Ok(report)
}

/// Makes all connections. Also returns whether FPDUs carry CRCs.
fn establish(context: uwarp::Context, plan: &Plan, server: SocketAddr) -> anyhow::Result<(Session, bool)> {
    let seed = fastrand::u64(..);
    let layout = Layout::new(plan.size, plan.depth, plan.qps);
    let operation = Operation::of(plan.test);
    let mut session = Session::new(context.clone(), layout, plan.depth, operation == Operation::Send, None, seed)?;
    let request = Request::new(plan, seed, session.own());
    let options = ConnectOptions::default().private_data(request.to_octets());
    let (control, established) = connect(
        &context,
        server,
        &options,
        PATIENCE,
        || Channel::new(&context, &session.domain, CONTROL),
        Channel::queue_pair,
    )?;
    session.control = Some(control);
    session.remote =
        memory_from_octets(&established.private_data).with_context(|| mismatch(&established.private_data, "server"))?;
    // As many reads as the depth requires and the protocol can express.
    let reads = u16::try_from(plan.depth.max(16)).unwrap_or(u16::MAX).min(0x3FFE);
    for index in 0..plan.qps {
        let options =
            ConnectOptions::default().private_data(data_to_octets(seed, index)).reads(reads, reads).features(FEATURES);
        let (queue_pair, _) =
            connect(&context, server, &options, PATIENCE, || session.make_queue_pair(index), |made| made)?;
        session.queue_pairs.push(queue_pair);
    }
    Ok((session, established.crc))
}

fn begin(session: &mut Session, messages: u64) -> anyhow::Result<()> {
    session.tell(Control::Begin { messages })?;
    session.expect(Control::Ready)
}

fn end(session: &mut Session) -> anyhow::Result<()> {
    session.tell(Control::Finish)?;
    session.expect(Control::Right)
}

/// Messages of a checked latency run.
fn checked_messages(plan: &Plan) -> u64 {
    (VERIFIED_OCTETS / plan.size).clamp(4, VERIFIED_MESSAGES) * u64::from(plan.qps)
}

fn ping_pong(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let by_write = plan.test == Test::WriteLatency;
    let mut exchange = Exchange::new(session, 0)?;
    let mut number = 0_u64;
    let mut used: Used = None;
    let mut once = |session: &mut Session, checked: bool| {
        if by_write {
            return ask_by_write(session, &mut exchange, checked);
        }
        number += 1;
        ask_by_send(session, number - 1, &mut used, checked)
    };
    if plan.verify {
        report.verified = checked_messages(plan);
        begin(session, report.verified)?;
        for _ in 0..report.verified {
            once(session, true)?;
        }
        end(session)?;
    }
    begin(session, 0)?;
    let timed = round_trips(&name_of(plan.test), plan.amount, |_| once(session, false).map(|()| true))?;
    end(session)?;
    report.set_times(timed);
    // The last message of the timed run cannot be checked, so one more per queue pair is sent.
    let qps = u64::from(plan.qps);
    begin(session, qps)?;
    for _ in 0..qps {
        once(session, true)?;
    }
    end(session)
}

fn read_latency(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    check(session, plan, report)?;
    begin(session, 0)?;
    let timed = round_trips(&name_of(plan.test), plan.amount, |number| read(session, number).map(|()| true))?;
    end(session)?;
    report.set_times(timed);
    begin(session, 1)?;
    Pump::new(session, Operation::Read, plan.depth)?.check(1)?;
    Ok(())
}

fn atomic_latency(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    begin(session, 0)?;
    let mut found = vec![None; plan.qps as usize];
    let timed =
        round_trips(&name_of(plan.test), plan.amount, |number| fetch_add(session, number, &mut found).map(|()| true))?;
    end(session)?;
    report.set_times(timed);
    // Each was checked against the one before it.
    report.verified = if plan.verify { report.iterations } else { 0 };
    Ok(())
}

fn immediate_latency(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    begin(session, 0)?;
    let mut used: Used = None;
    let timed = round_trips(&name_of(plan.test), plan.amount, |number| {
        ask_by_immediate(session, number, &mut used).map(|()| true)
    })?;
    end(session)?;
    report.set_times(timed);
    // Each answer was compared with its question.
    report.verified = if plan.verify { report.iterations } else { 0 };
    Ok(())
}

fn commit_latency(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if plan.verify {
        // Each costs a sync of the store.
        report.verified = checked_messages(plan).min(50 * u64::from(plan.qps));
        begin(session, 0)?;
        for number in 0..report.verified {
            write_commit(session, number, true)?;
        }
        end(session)?;
    }
    begin(session, 0)?;
    let timed =
        round_trips(&name_of(plan.test), plan.amount, |number| write_commit(session, number, false).map(|()| true))?;
    end(session)?;
    report.set_times(timed);
    Ok(())
}

/// Makes and closes connections one after another. The time is from the start to full operation; the rate includes
/// closing.
fn connect_rate(session: &mut Session, plan: &Plan, server: SocketAddr, report: &mut Report) -> anyhow::Result<()> {
    begin(session, 0)?;
    let mut samples = Samples::new()?;
    let warm_up = plan.amount.warm_up();
    let begun = Instant::now();
    let mut made = 0;
    while !warm_up.is_reached(made, || begun.elapsed()) {
        connect_once(session, server, made)?;
        made += 1;
    }
    let begun = Instant::now();
    while !plan.amount.is_reached(samples.count(), || begun.elapsed()) {
        check_interrupted()?;
        let _ = samples.push(connect_once(session, server, made + samples.count())?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    end(session)?;
    let count = samples.count();
    report.set_times(Timed { latency: samples.latency(), count, seconds });
    report.connections_per_s = Some(count as f64 / seconds);
    // An established connection was answered by the right server, with the right seed.
    report.verified = if plan.verify { count } else { 0 };
    Ok(())
}

/// One connection; returns the time until full operation.
fn connect_once(session: &mut Session, server: SocketAddr, number: u64) -> anyhow::Result<Duration> {
    let mut queue_pair = session.make_queue_pair(0)?;
    let private_data = data_to_octets(session.seed, number as u32);
    let options = ConnectOptions::default().private_data(private_data).features(FEATURES);
    let begun = Instant::now();
    session.context.connect(&mut queue_pair.control, server, options)?;
    let time = begun.elapsed();
    queue_pair.control.disconnect();
    if !queue_pair.control.wait_disconnected(PATIENCE)? {
        anyhow::bail!("connection {number} did not end within {PATIENCE:?}");
    }
    // The receives that were flushed.
    let mut out = [Completion::default(); 8];
    while session.completions.poll(&mut out) > 0 {}
    Ok(time)
}

/// The checked run of a bandwidth test, or of reads.
fn check(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if plan.verify {
        begin(session, 1)?;
        let rounds = rounds(session, plan);
        let operation = Operation::of(plan.test);
        report.verified = Pump::new(session, operation, plan.depth)?.check(rounds)?;
    }
    Ok(())
}

/// Rounds of a checked run: every slot is used several times.
fn rounds(session: &Session, plan: &Plan) -> u64 {
    let octets = u64::from(session.layout.slots) * plan.size;
    (VERIFIED_OCTETS / octets).clamp(3, 100)
}

fn bandwidth(session: &mut Session, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let operation = Operation::of(plan.test);
    let rounds = rounds(session, plan);
    // One pump for both runs, because it counts the server's receives.
    let mut pump = Pump::new(session, operation, plan.depth)?;
    if plan.verify {
        begin(pump.session, 1)?;
        report.verified = pump.check(rounds)?;
    }
    begin(pump.session, 0)?;
    let (messages, time) = pump.run(plan)?;
    report.iterations = messages;
    report.seconds = time.as_secs_f64();
    report.set_rates();
    Ok(())
}
