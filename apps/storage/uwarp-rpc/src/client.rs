//! The calling side: one loop for both transports.

use crate::cli::{Plan, RunArguments, Test, Transport};
use crate::program::{self, Blobs, CPU, ECHO, GET, NULL, PROGRAM, PUT, VERSION};
use crate::report::{CpuTime, Report};
use crate::stream;
use anyhow::{Context as _, bail};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{Config, Context};
use uwarp_app::measure::{Amount, Latency, Samples, gbit_per_s};
use uwarp_app::signals::check_interrupted;
use uwarp_rpcrdma::requester::{Call, CallId, Finished, Requester, RequesterOptions};
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::Reader;

/// How long to look for a server.
const REACH: Duration = Duration::from_secs(10);
/// Longest wait for a call.
const PATIENCE: Duration = Duration::from_secs(30);
/// Octets of a checked run, about.
const VERIFIED_OCTETS: usize = 8 << 20;
/// Calls of a checked run, at most.
const VERIFIED_CALLS: usize = 1000;

/// The result of a call.
struct Done {
    /// When it was started.
    started: Instant,
    /// Results in front of a blob.
    octets: Vec<u8>,
    /// The blob that was received, or that was sent and is free again.
    blob: Option<Vec<u8>>,
}

/// Calls of the test program.
trait Caller {
    /// Starts a call at the time `now`: reading the clock takes a large part of the time of a null call.
    fn start(&mut self, call: Call, now: Instant) -> anyhow::Result<()>;
    /// Waits for the end of one of the calls under way.
    fn finish(&mut self) -> anyhow::Result<Done>;
}

struct Rdma {
    requester: Requester,
    /// Calls under way.
    started: Vec<(CallId, Instant)>,
}

impl Caller for Rdma {
    fn start(&mut self, call: Call, now: Instant) -> anyhow::Result<()> {
        let id = self.requester.start(call)?;
        self.started.push((id, now));
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<Done> {
        let Some(Finished { id, outcome, arguments, .. }) = self.requester.next(PATIENCE)? else {
            bail!("no reply within {PATIENCE:?}");
        };
        let reply = outcome?;
        if reply.status != Status::Success {
            bail!("the call failed: {:?}", reply.status);
        }
        let at = self.started.iter().position(|(started, _)| *started == id);
        let (_, started) = self.started.swap_remove(at.context("a call ended that was not started")?);
        let mut done = Done { started, octets: Vec::new(), blob: None };
        for part in arguments.into_iter().chain(reply.results) {
            match part {
                Part::Item(blob) => done.blob = Some(blob),
                // The results follow the arguments.
                Part::Octets(octets) => done.octets = octets,
            }
        }
        Ok(done)
    }
}

struct Tcp {
    client: stream::Client,
    /// XIDs and the calls sent.
    open: VecDeque<(u32, Instant, Call)>,
}

impl Caller for Tcp {
    fn start(&mut self, call: Call, now: Instant) -> anyhow::Result<()> {
        let xid = self.client.send(&call)?;
        self.open.push_back((xid, now, call));
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<Done> {
        let (xid, started, call) = self.open.pop_front().context("no call is under way")?;
        let results = self.client.receive(xid)?;
        let mut done = Done { started, octets: Vec::new(), blob: None };
        match call.procedure {
            GET => {
                // Copy into the destination, as an application would.
                let mut reader = Reader::new(results);
                let blob = reader.opaque(results.len())?;
                let mut room = call.rooms.into_iter().next().unwrap_or_default();
                room.resize(blob.len(), 0);
                room.copy_from_slice(blob);
                done.octets = results[..4].to_vec();
                done.blob = Some(room);
            }
            _ => {
                done.octets = results.to_vec();
                done.blob = call.arguments.into_iter().find_map(|part| match part {
                    Part::Item(blob) => Some(blob),
                    Part::Octets(_) => None,
                });
            }
        }
        Ok(done)
    }
}

/// Runs one test.
///
/// # Errors
/// The server cannot be reached, a call fails, or data is wrong.
pub fn run(config: Config, arguments: &RunArguments, plan: &Plan) -> anyhow::Result<Report> {
    let device = uwarp_app::network::device_name(config.device.as_ref());
    let (mtu, engine) = (config.mtu, format!("{:?}", config.engine.mode).to_lowercase());
    let threshold = arguments.rdma.threshold()?;
    let context = arguments.network.open(config)?;
    let server = arguments.server.address(&arguments.network, arguments.port);
    let mut caller: Box<dyn Caller> = match arguments.transport {
        Transport::Rdma => Box::new(reach(&context, server, arguments, plan, threshold)?),
        Transport::Tcp => {
            let client = stream::Client::connect(&context, server, REACH)?;
            Box::new(Tcp { client, open: VecDeque::new() })
        }
    };
    let mut report = Report {
        test: plan.test,
        transport: arguments.transport,
        device,
        size: plan.size as u64,
        mtu,
        engine,
        depth: plan.depth,
        registration: (arguments.transport == Transport::Rdma).then_some(arguments.options.registration),
        calls: 0,
        seconds: 0.0,
        verified: 0,
        latency_ns: Latency::default(),
        gbit_per_s: None,
        calls_per_s: 0.0,
        cpu_us_per_call: CpuTime { client: 0.0, server: 0.0 },
        cpu_ms_per_mib: None,
        cacheline_ns: None,
    };
    if plan.verify {
        report.verified = verify(&mut *caller, plan)?;
    }
    measure(&mut *caller, plan, &mut report)?;
    drop(caller);
    context.close()?;
    Ok(report)
}

fn reach(
    context: &Context,
    server: SocketAddr,
    arguments: &RunArguments,
    plan: &Plan,
    threshold: u32,
) -> anyhow::Result<Rdma> {
    let options = RequesterOptions {
        credits: plan.depth.max(1),
        send_size: threshold,
        receive_size: threshold,
        remote_invalidation: !arguments.rdma.no_invalidation,
        registration: arguments.options.registration.into(),
        connect_timeout: Duration::from_secs(1),
        reconnect: REACH,
        ..RequesterOptions::default()
    };
    let mut requester = Requester::start_connect(context, server, vec![Arc::new(Blobs)], options)?;
    // While the server is starting, the requester retries.
    let null = requester.call(call(NULL, Vec::new()), PATIENCE)?;
    null.outcome.with_context(|| format!("cannot connect to {server}"))?;
    Ok(Rdma { requester, started: Vec::new() })
}

fn call(procedure: u32, arguments: Vec<Part>) -> Call {
    Call { program: PROGRAM, version: VERSION, procedure, arguments, ..Call::default() }
}

/// A call of the test, in the memory of an ended one if possible.
fn make(plan: &Plan, check: bool, data: &[u8], blob: Option<Vec<u8>>) -> Call {
    match plan.test {
        Test::Null => call(NULL, Vec::new()),
        Test::Echo => call(ECHO, program::echo(data)),
        Test::Put => call(PUT, program::put(check, blob.unwrap_or_else(|| data.to_vec()))),
        Test::Get => {
            let room = blob.filter(|blob| blob.len() == plan.size).unwrap_or_else(|| vec![0; plan.size]);
            Call { rooms: vec![room], ..call(GET, program::get(plan.size as u32)) }
        }
    }
}

fn verify(caller: &mut dyn Caller, plan: &Plan) -> anyhow::Result<u64> {
    let count = (VERIFIED_OCTETS / plan.size.max(1)).clamp(2, VERIFIED_CALLS);
    let blob = program::pattern(plan.size);
    let mut data = blob.clone();
    let mut started = 0;
    let depth = plan.depth as usize;
    let mut expected = VecDeque::new();
    for ended in 0..count {
        while started < count && started - ended < depth {
            // No two are the same.
            if plan.test != Test::Get && !data.is_empty() {
                let at = started % data.len();
                data[at] = data[at].wrapping_add(1);
            }
            let room = (plan.test == Test::Get).then(|| vec![0xee; plan.size]);
            caller.start(make(plan, true, &data, room), Instant::now())?;
            expected.push_back(match plan.test {
                Test::Null => Vec::new(),
                Test::Echo => program::echo(&data)[0].octets().to_vec(),
                Test::Put => [(plan.size as u32).to_be_bytes(), crc32c::crc32c(&data).to_be_bytes()].concat(),
                Test::Get => (plan.size as u32).to_be_bytes().to_vec(),
            });
            started += 1;
        }
        let done = caller.finish()?;
        // Replies may overtake each other.
        let known = expected.iter().position(|expected| *expected == done.octets);
        let right_blob = plan.test != Test::Get || done.blob.as_ref() == Some(&blob);
        match known {
            Some(at) if right_blob => expected.remove(at),
            _ => bail!("call {ended} of {count} returned wrong data"),
        };
    }
    Ok(count as u64)
}

/// The CPU time that the server has used, in nanoseconds.
fn server_time(caller: &mut dyn Caller) -> anyhow::Result<u64> {
    caller.start(call(CPU, Vec::new()), Instant::now())?;
    Ok(Reader::new(&caller.finish()?.octets).u64()?)
}

fn measure(caller: &mut dyn Caller, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let data = program::pattern(plan.size);
    let mut memory: Vec<Vec<u8>> = Vec::new();
    let mut samples = Samples::new()?;
    rounds(caller, plan, plan.amount.warm_up(), &data, &mut memory, |_| false)?;
    let (server, client) = (server_time(caller)?, uwarp_app::cpu_time());
    let begin = Instant::now();
    let calls = rounds(caller, plan, plan.amount, &data, &mut memory, |time| samples.push(time))?;
    let seconds = begin.elapsed().as_secs_f64();
    let client = uwarp_app::cpu_time() - client;
    let server = server_time(caller)? - server;
    let octets = calls as f64 * plan.size as f64;
    let mib = octets / f64::from(1 << 20);
    report.calls = calls;
    report.seconds = seconds;
    report.latency_ns = samples.latency();
    report.calls_per_s = calls as f64 / seconds;
    let each = |nanoseconds: u64, unit: f64, count: f64| nanoseconds as f64 / unit / count;
    report.cpu_us_per_call =
        CpuTime { client: each(client, 1e3, calls as f64), server: each(server, 1e3, calls as f64) };
    if octets > 0.0 {
        report.gbit_per_s = Some(gbit_per_s(octets, seconds));
        report.cpu_ms_per_mib = Some(CpuTime { client: each(client, 1e6, mib), server: each(server, 1e6, mib) });
    }
    Ok(())
}

/// Keeps the planned number of calls under way, and returns how many have ended. The clock is read once per call: the
/// end of one is the start of those that follow it, unless `sample` took time itself (returned true). So building a
/// call's arguments counts towards its time.
fn rounds(
    caller: &mut dyn Caller,
    plan: &Plan,
    amount: Amount,
    data: &[u8],
    memory: &mut Vec<Vec<u8>>,
    mut sample: impl FnMut(Duration) -> bool,
) -> anyhow::Result<u64> {
    let begin = Instant::now();
    let mut now = begin;
    let (mut started, mut ended) = (0_u64, 0_u64);
    let mut going = true;
    loop {
        while going && started - ended < u64::from(plan.depth) {
            going = !amount.is_reached(started, || now.duration_since(begin));
            if going {
                caller.start(make(plan, false, data, memory.pop()), now)?;
                started += 1;
            }
        }
        if ended == started {
            return Ok(ended);
        }
        let done = caller.finish()?;
        now = Instant::now();
        ended += 1;
        memory.extend(done.blob);
        if sample(now.duration_since(done.started)) {
            now = Instant::now();
        }
        if ended.is_multiple_of(64) {
            check_interrupted()?;
        }
    }
}
