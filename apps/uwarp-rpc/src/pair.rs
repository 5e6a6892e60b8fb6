//! `pair`: starts both sides as processes of their own, each on its CPU, for one transport after the other, and ends them.

use crate::cli::{Amount, PairArguments, Plan, Transport};
use crate::report::{CacheLine, Report, publish};
use anyhow::Context as _;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use uwarp::config::EngineMode;
use uwarp_app::network::fits_a_socket;
use uwarp_app::outcome::Silent;
use uwarp_app::{DeviceKind, Role, cacheline, signals, usage};

/// How long the server may take to notice that the client has left.
const FAREWELL: Duration = Duration::from_secs(10);

/// A child that is ended when it is forgotten.
struct Side(Child);

impl Side {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        Ok(Self(command.stdin(Stdio::null()).spawn().context("cannot start a process of the pair")?))
    }

    fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.0.try_wait().context("cannot ask for a process of the pair")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Of a child that has ended both do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a pair.
///
/// # Errors
/// A bad command line, or a side that failed (it said why).
pub fn run(arguments: &PairArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    arguments.rdma.threshold()?;
    let cpus = choose_cpus(&arguments.cpus)?;
    check(arguments)?;
    let folder =
        tempfile::Builder::new().prefix("uwarp-rpc-").tempdir().context("cannot make a temporary directory")?;
    let socket = folder.path().join("pair.sock");
    if !fits_a_socket(&socket) {
        return Err(usage(format!(
            "the temporary directory's path {} is too long for a socket: set TMPDIR to a shorter one",
            folder.path().display()
        )));
    }
    let transports = match arguments.transport {
        Some(transport) => vec![transport],
        None => vec![Transport::Rdma, Transport::Tcp],
    };
    let mut reports = Vec::new();
    for transport in transports {
        let before = cacheline::round_trip(cpus[0], cpus[1]);
        let mut report = both(arguments, &plan, transport, &socket, cpus)?;
        let after = cacheline::round_trip(cpus[0], cpus[1]);
        report.cacheline_ns = before.zip(after).map(|(before, after)| CacheLine { before, after });
        reports.push(report);
    }
    publish(&reports, arguments.options.json.as_deref())
}

/// The CPUs of server and client: those named, or the first two that this process may use, or the only one.
fn choose_cpus(named: &[usize]) -> anyhow::Result<[usize; 2]> {
    let usable = cacheline::usable();
    match *named {
        [] => Ok(match usable[..] {
            [first, second, ..] => [first, second],
            [only] => [only, only],
            [] => [0, 0],
        }),
        [server, client] if named.iter().all(|cpu| usable.contains(cpu)) => Ok([server, client]),
        _ => Err(usage(format!(
            "--cpus wants two CPUs, of the server and the client, of {}",
            usable.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// What a pair decides itself cannot be chosen.
fn check(arguments: &PairArguments) -> anyhow::Result<()> {
    let network = &arguments.network;
    for (given, flag) in [
        (network.socket.is_some(), "--socket"),
        (network.interface.is_some(), "--interface"),
        (network.address.is_some(), "--address"),
        (network.config.is_some(), "--config"),
    ] {
        if given {
            return Err(usage(format!(
                "{flag} cannot be chosen for a pair, which sets up both sides itself: use 'serve' and 'run'"
            )));
        }
    }
    if !matches!(network.kind(), DeviceKind::Virtio | DeviceKind::Memif) {
        return Err(usage("a pair runs over virtio or memif: use 'serve' and 'run' for other devices"));
    }
    // Mistakes of the other flags are found before anything starts.
    for role in [Role::Server, Role::Client] {
        network.resolve(role, EngineMode::Inline)?;
    }
    Ok(())
}

fn both(
    arguments: &PairArguments,
    plan: &Plan,
    transport: Transport,
    socket: &Path,
    cpus: [usize; 2],
) -> anyhow::Result<Report> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let command = |side: &str, cpu: usize| {
        let mut command = Command::new(&own);
        command.args([side, "--with-parent", "--transport", transport.name()]);
        command.args(["--cpu", &cpu.to_string(), "--inline", &arguments.rdma.inline.to_string()]);
        if arguments.rdma.no_invalidation {
            command.arg("--no-invalidation");
        }
        command.args(arguments.network.to_arguments()).arg("--socket").arg(socket);
        command
    };
    let mut server = command("serve", cpus[0]);
    server.arg("--once").stdout(Stdio::null());
    let mut client = command("run", cpus[1]);
    client.stdout(Stdio::piped());
    client.args([plan.test.name(), "--json", "-", "--depth", &plan.depth.to_string()]);
    client.args(["--server", &arguments.network.default_address(Role::Server).to_string()]);
    client.args(["--size", &plan.size.to_string()]);
    match plan.amount {
        Amount::Iterations(iterations) => client.args(["--iterations", &iterations.to_string()]),
        Amount::Duration(duration) => client.args(["--duration", &format!("{}ns", duration.as_nanos())]),
    };
    if plan.verify {
        client.arg("--verify");
    }
    if let Some(file) = &arguments.network.pcap {
        client.arg("--pcap").arg(file);
    }
    let mut server = Side::start(&mut server)?;
    let mut client = Side::start(&mut client)?;
    let mut output = client.0.stdout.take().context("the client has no standard output")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    wait(&mut server, &mut client)?;
    let text = reader
        .join()
        .map_err(|_| anyhow::anyhow!("the client's result was not read"))?
        .context("cannot read the client's result")?;
    let mut reports: Vec<Report> = serde_json::from_str(&text).context("the client's result cannot be read")?;
    reports.pop().context("the client has no result")
}

/// Waits for the client, then for the server. If one fails the other is ended.
fn wait(server: &mut Side, client: &mut Side) -> anyhow::Result<()> {
    let mut left = None;
    loop {
        if signals::interrupted() {
            anyhow::bail!("interrupted");
        }
        if left.is_none()
            && let Some(status) = client.ended()?
        {
            outcome_of(status)?;
            left = Some(Instant::now());
        }
        if let Some(status) = server.ended()? {
            outcome_of(status)?;
            if left.is_some() {
                return Ok(());
            }
            // The server has seen the client leave, which therefore is about to end.
            let status = client.0.wait().context("cannot wait for the client")?;
            return outcome_of(status);
        }
        if left.is_some_and(|since: Instant| since.elapsed() > FAREWELL) {
            anyhow::bail!("the server did not end within {FAREWELL:?} of the client");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Turns the end of a child, which has said itself what was wrong, into this process's end.
fn outcome_of(status: ExitStatus) -> anyhow::Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        // A status of 1 to 255: it comes from a process.
        Some(code) => Err(Silent(code as u8).into()),
        None => anyhow::bail!("a process of the pair was ended by a signal ({status})"),
    }
}
