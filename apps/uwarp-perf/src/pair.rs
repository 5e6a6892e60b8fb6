//! `pair`: starts both sides as processes of their own, each on its CPU, and ends them.

use crate::cli::{Amount, PairArguments, Plan};
use crate::namespace::{self, CLIENT_INTERFACE, SERVER_INTERFACE};
use crate::outcome_of;
use crate::report::{CacheLine, Report};
use anyhow::Context as _;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use uwarp_app::cacheline;
use uwarp_app::network::fits_a_socket;
use uwarp_app::{DeviceKind, signals, usage};

/// How long the server may take to notice that the client has left.
const FAREWELL: Duration = Duration::from_secs(10);

/// A child that is ended when it is forgotten.
struct Side {
    child: Child,
}

impl Side {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.stdin(Stdio::null()).spawn().context("cannot start a process of the pair")?;
        Ok(Self { child })
    }

    fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot ask for a process of the pair")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Of a child that has ended both do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a pair.
///
/// # Errors
/// A bad command line, or a side that failed (it said why).
pub fn run(arguments: &PairArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    let [server_cpu, client_cpu] = choose_cpus(&arguments.cpus)?;
    check(arguments)?;
    let kind = arguments.network.kind();
    if namespace::is_wanted(&kind) && !namespace::is_inside() {
        return namespace::enter();
    }
    let before = cacheline::round_trip(server_cpu, client_cpu);
    if namespace::is_wanted(&kind) {
        namespace::prepare(&kind, arguments.network.checked_mtu()?)?;
    }
    let folder =
        tempfile::Builder::new().prefix("uwarp-perf-").tempdir().context("cannot make a temporary directory")?;
    let socket = folder.path().join("pair.sock");
    if !fits_a_socket(&socket) {
        return Err(usage(format!(
            "the temporary directory's path {} is too long for a socket: set TMPDIR to a shorter one",
            folder.path().display()
        )));
    }
    let mut report = run_both(arguments, &plan, &kind, &socket, [server_cpu, client_cpu])?;
    let after = cacheline::round_trip(server_cpu, client_cpu);
    report.cacheline_ns = before.zip(after).map(|(before, after)| CacheLine { before, after });
    report.publish(arguments.options.json.as_deref())
}

/// The CPUs of server and client: those named, or the first two that this process may use, or the only one.
fn choose_cpus(named: &[usize]) -> anyhow::Result<[usize; 2]> {
    let usable = cacheline::usable();
    match *named {
        [] => match usable[..] {
            [first, second, ..] => Ok([first, second]),
            [only] => Ok([only, only]),
            [] => Ok([0, 0]),
        },
        [server, client] => {
            for cpu in named {
                if !usable.contains(cpu) {
                    return Err(usage(format!(
                        "--cpus names CPU {cpu}, which this process may not use: choose of {}",
                        usable.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
                    )));
                }
            }
            Ok([server, client])
        }
        _ => Err(usage("--cpus wants two numbers, of the server's and the client's CPU, such as 0,1")),
    }
}

/// What a pair decides itself cannot be chosen.
fn check(arguments: &PairArguments) -> anyhow::Result<()> {
    let network = &arguments.network;
    for (given, flag) in [
        (network.socket.is_some(), "--socket"),
        (network.interface.is_some(), "--interface"),
        (network.address.is_some(), "--address"),
    ] {
        if given {
            return Err(usage(format!(
                "{flag} cannot be chosen for a pair, which sets up both sides itself: use 'server' and 'client'"
            )));
        }
    }
    if let DeviceKind::Pci(_) = network.kind() {
        return Err(usage("a pair cannot share one PCI device: run 'server' and 'client', one on each"));
    }
    // Mistakes of the other flags are found before anything starts.
    let mut probe = network.clone();
    probe.interface = namespace::is_wanted(&network.kind()).then(|| SERVER_INTERFACE.to_owned());
    for role in [uwarp_app::Role::Server, uwarp_app::Role::Client] {
        probe.resolve(role, uwarp::config::EngineMode::Inline)?;
    }
    Ok(())
}

fn run_both(
    arguments: &PairArguments,
    plan: &Plan,
    kind: &DeviceKind,
    socket: &Path,
    cpus: [usize; 2],
) -> anyhow::Result<Report> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let network = &arguments.network;
    let command = |side: &str, cpu: usize, interface: &str| {
        let mut command = Command::new(&own);
        command.arg(side).arg("--with-parent");
        command.args(["--cpus", &cpu.to_string()]);
        command.args(network.to_arguments());
        if let Some(file) = &network.config {
            command.arg("--config").arg(file);
            // A file is one side's: the pair's own addresses win over the file's.
            let role = if side == "server" { uwarp_app::Role::Server } else { uwarp_app::Role::Client };
            let address = network.default_address(role);
            command.args(["--address", &format!("{address}/{}", if address.is_ipv4() { 24 } else { 64 })]);
        }
        if namespace::is_wanted(kind) {
            command.args(["--interface", interface]);
        } else {
            command.arg("--socket").arg(socket);
        }
        command
    };

    let mut server = command("server", cpus[0], SERVER_INTERFACE);
    server.arg("--once").stdout(Stdio::null());
    if plan.test.is_raw() {
        server.arg("--raw");
    }
    if plan.test.is_stream() {
        server.arg("--streams");
    }
    let mut client = command("client", cpus[1], CLIENT_INTERFACE);
    client.stdout(Stdio::piped());
    client.args([plan.test.name(), &network.default_address(uwarp_app::Role::Server).to_string()]);
    client.args(["--json", "-"]);
    client.args(["--size", &plan.size.to_string()]);
    client.args(["--depth", &plan.depth.to_string()]);
    client.args(["--qps", &plan.qps.to_string()]);
    match plan.amount {
        Amount::Iterations(iterations) => client.args(["--iterations", &iterations.to_string()]),
        Amount::Duration(duration) => client.args(["--duration", &format!("{}ns", duration.as_nanos())]),
    };
    if plan.plain {
        client.arg("--plain");
    }
    if plan.verify {
        client.arg("--verify");
    }
    if let Some(frame) = plan.frame {
        client.args(["--frame", &frame.to_string()]);
    }
    if let Some(file) = &network.pcap {
        client.arg("--pcap").arg(file);
    }

    let mut server = Side::start(&mut server)?;
    let mut client = Side::start(&mut client)?;
    let mut output = client.child.stdout.take().context("the client has no standard output")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    namespace::join(kind, || Ok(!signals::interrupted() && client.ended()?.is_none() && server.ended()?.is_none()))?;
    wait(&mut server, &mut client)?;
    let text = reader
        .join()
        .map_err(|_| anyhow::anyhow!("the client's result was not read"))?
        .context("cannot read the client's result")?;
    serde_json::from_str(&text).context("the client's result cannot be read")
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
            let status = client.child.wait().context("cannot wait for the client")?;
            return outcome_of(status);
        }
        if left.is_some_and(|since: Instant| since.elapsed() > FAREWELL) {
            anyhow::bail!("the server did not end within {FAREWELL:?} of the client");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
