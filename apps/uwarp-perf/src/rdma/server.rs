//! The server of the RDMA tests, which follows the client's instructions.

use super::bandwidth::{Operation, Sink, be_read, fill_source};
use super::latency::{Verdict, answer_by_immediate, answer_by_send, answer_by_write};
use super::layout::Layout;
use super::session::{CONTROL, FEATURES, PATIENCE, Session, allow_queue_pairs};
use super::wire::{Control, Request, data_from_octets, memory_to_octets, mismatch};
use crate::cli::{QPS_MAX, ServeArguments, Test};
use anyhow::{Context as _, bail};
use std::time::{Duration, Instant};
use uwarp::{
    AcceptOptions, Completion, Config, ConnectRequest, Context, ListenOptions, Listener, QueuePair, QueuePairState,
};
use uwarp_app::channel::Channel;
use uwarp_app::output;
use uwarp_app::side::is_side;
use uwarp_app::signals::{check_interrupted, interrupted};

/// Memory that a client may request, in octets.
const MEMORY_MAX: u64 = 16 << 30;

/// Serves one client after another.
///
/// # Errors
/// The device cannot be opened; with `--once`, also what ends the one client's test.
pub fn run(mut config: Config, arguments: &ServeArguments) -> anyhow::Result<()> {
    allow_queue_pairs(&mut config, QPS_MAX);
    let context = arguments.network.open(config)?;
    let mut listener = context.listen(arguments.port, ListenOptions { backlog: 1024, ..ListenOptions::default() })?;
    if !is_side() {
        // Standard output is for results, of which a server has none.
        output::complain(format_args!("waiting for clients on {}", context.socket_address(arguments.port)));
    }
    loop {
        if interrupted() {
            return Ok(());
        }
        let Some(request) = listener.next(Duration::from_millis(200))? else {
            continue;
        };
        let peer = request.peer();
        let result = serve(&context, &mut listener, request);
        if arguments.once {
            return result;
        }
        if let Err(error) = result
            && !interrupted()
        {
            output::complain(format_args!("uwarp-perf: client {peer}: {error:#}"));
        }
    }
}

fn serve(context: &Context, listener: &mut Listener, first: ConnectRequest) -> anyhow::Result<()> {
    let Some(request) = Request::from_octets(first.private_data()) else {
        let reason = mismatch(first.private_data(), "client");
        first.reject(reason.as_bytes())?;
        bail!("{reason}");
    };
    let layout = Layout::new(request.size, request.depth, request.qps);
    if layout.len() > MEMORY_MAX {
        first.reject(b"the test needs more memory than the server allows: lower --size, --qps or --depth")?;
        bail!("requested {} octets of memory", layout.len());
    }
    let operation = Operation::of(request.test);
    let store = if request.test == Test::CommitLatency && !request.plain {
        Some(tempfile::tempfile().context("no temporary file to commit to: set TMPDIR to where one can be")?)
    } else {
        None
    };
    let mut session = Session::new(
        context.clone(),
        layout,
        request.depth,
        operation == Operation::Send,
        store.as_ref(),
        request.seed,
    )?;
    session.remote = request.memory;
    let mut control = Channel::new(context, &session.domain, CONTROL)?;
    first.accept(
        &mut control.queue_pair().control,
        AcceptOptions::default().private_data(memory_to_octets(session.own())),
    )?;
    session.control = Some(control);
    accept_data(&mut session, listener, &request)?;
    if operation == Operation::Read {
        fill_source(&mut session, 0)?;
    }
    obey(&mut session, listener, &request)
}

/// Accepts the data connections, which come in order; rejects other clients for now.
fn accept_data(session: &mut Session, listener: &mut Listener, request: &Request) -> anyhow::Result<()> {
    // The peer needs as many reads as its depth.
    let reads = u16::try_from(request.depth.max(16)).unwrap_or(u16::MAX).min(0x3FFE);
    let mut last = Instant::now();
    let mut next = 0;
    while next < request.qps {
        check_interrupted()?;
        if last.elapsed() > PATIENCE {
            bail!("only {next} of {} connections arrived within {PATIENCE:?}", request.qps);
        }
        let Some(arrival) = listener.next(Duration::from_millis(200))? else {
            continue;
        };
        if data_from_octets(arrival.private_data()) != Some((request.seed, next)) {
            arrival.reject(b"another client's test is running: try again later")?;
            continue;
        }
        let mut queue_pair = session.make_queue_pair(next)?;
        let options = AcceptOptions { ird: reads, ord: reads, ..AcceptOptions::default() }.features(FEATURES);
        // A client that times out and retries uses the same index.
        if arrival.accept(&mut queue_pair.control, options).is_ok() {
            session.queue_pairs.push(queue_pair);
            next += 1;
            last = Instant::now();
        }
    }
    Ok(())
}

/// Runs the phases that the client begins, until it leaves.
fn obey(session: &mut Session, listener: &mut Listener, request: &Request) -> anyhow::Result<()> {
    let test = request.test;
    let operation = Operation::of(test);
    let mut sink = Sink::new(session, operation);
    let mut number = 0_u64;
    loop {
        let messages = match wait(session)? {
            Control::Begin { messages } => messages,
            Control::Bye => return Ok(()),
            other => bail!("sent {other:?} between two runs"),
        };
        session.tell(Control::Ready)?;
        let checked = messages > 0;
        let verdict = match test {
            Test::WriteLatency => answer_by_write(session, &mut number, checked)?,
            Test::SendLatency => answer_by_send(session, &mut number, checked)?,
            Test::ImmediateLatency => answer_by_immediate(session)?,
            Test::ConnectRate => take_connections(session, listener, request.seed)?,
            _ if operation == Operation::Read => be_read(session)?,
            _ => sink.run(session, checked)?,
        };
        session.tell(verdict.unwrap_or(Control::Right))?;
        if let Some(Control::Wrong { queue_pair, message, position }) = verdict {
            bail!("octet {position} of message {message} of queue pair {queue_pair} is wrong");
        }
    }
}

/// Accepts connections that the client makes and closes, until it has finished.
fn take_connections(session: &mut Session, listener: &mut Listener, seed: u64) -> anyhow::Result<Verdict> {
    let mut open: Vec<QueuePair> = Vec::new();
    loop {
        match session.hear()? {
            None => session.turn()?,
            Some(Control::Finish) => return Ok(None),
            Some(other) => bail!("sent {other:?} while it made connections"),
        }
        open.retain_mut(|queue_pair| queue_pair.control.state() != QueuePairState::Disconnected);
        // The receives that were flushed: queue pairs whose completions nobody has read stay.
        while session.completions.poll(&mut [Completion::default(); 8]) > 0 {}
        let Some(arrival) = listener.try_next()? else { continue };
        if data_from_octets(arrival.private_data()).is_none_or(|(asked, _)| asked != seed) {
            arrival.reject(b"another client's test is running: try again later")?;
            continue;
        }
        let mut queue_pair = session.make_queue_pair(0)?;
        if arrival.accept(&mut queue_pair.control, AcceptOptions::default().features(FEATURES)).is_ok() {
            open.push(queue_pair);
        }
    }
}

/// Waits for the client's next message, as long as it is connected.
fn wait(session: &mut Session) -> anyhow::Result<Control> {
    loop {
        if let Some(message) = session.hear().context("the client left in the middle of a test")? {
            return Ok(message);
        }
        session.turn()?;
    }
}
