//! `pair`: runs both sides as processes of their own, each on its CPU.

use crate::cli::{Amount, PairArguments, Plan};
use crate::namespace::{self, CLIENT_INTERFACE, SERVER_INTERFACE};
use crate::report::Report;
use anyhow::Context as _;
use std::path::Path;
use std::process::Command;
use uwarp::config::{DeviceConfig, EngineMode};
use uwarp_app::cacheline;
use uwarp_app::network::fits_a_socket;
use uwarp_app::pair::{self, CacheLine, choose_cpus};
use uwarp_app::{DeviceKind, NetworkFlags, Role, usage};

/// Runs a pair.
///
/// # Errors
/// An invalid command line, or a side that failed (it has reported why).
pub fn run(arguments: &PairArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    let [server_cpu, client_cpu] = choose_cpus(&arguments.cpus)?;
    let (network, kind, mtu) = settle(&arguments.network)?;
    if namespace::is_wanted(&kind) && !namespace::is_inside() {
        return namespace::enter();
    }
    let before = cacheline::round_trip(server_cpu, client_cpu);
    if namespace::is_wanted(&kind) {
        namespace::prepare(&kind, mtu)?;
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
    let mut report = run_both(&network, &plan, &kind, &socket, [server_cpu, client_cpu])?;
    let after = cacheline::round_trip(server_cpu, client_cpu);
    report.cacheline_ns = before.zip(after).map(|(before, after)| CacheLine { before, after });
    report.publish(arguments.options.json.as_deref())
}

/// The flags with the kind of device of both sides, and the MTU. Refuses flags for what a pair decides itself.
fn settle(network: &NetworkFlags) -> anyhow::Result<(NetworkFlags, DeviceKind, u16)> {
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
    let kind = match network.chosen_kind()? {
        Some(DeviceKind::Pci(_)) => {
            return Err(usage("a pair cannot share one PCI device: run 'server' and 'client', one on each"));
        }
        Some(kind) => kind,
        None => return Err(usage("a pair runs over virtio, memif, af_packet or tap: choose a --device")),
    };
    // A file describes one side: each side takes its own end of that device.
    let settled = NetworkFlags { device: Some(kind.clone()), ..network.clone() };
    // Find mistakes in the other flags before anything starts.
    let mut probe = settled.clone();
    probe.interface = namespace::is_wanted(&kind).then(|| SERVER_INTERFACE.to_owned());
    let mut mtu = 0;
    for role in [Role::Server, Role::Client] {
        let config = probe.resolve(role, EngineMode::Inline)?;
        mtu = config.mtu;
        if let Some(DeviceConfig::Tap { mac: Some(_), .. }) = config.device {
            return Err(usage(
                "the file gives the device a mac, which the two sides of a pair cannot share: leave it out",
            ));
        }
        if let Some(DeviceConfig::Tap { netns: Some(_), .. } | DeviceConfig::AfPacket { netns: Some(_), .. }) =
            config.device
        {
            return Err(usage("the file names a netns, and a pair makes one of its own: leave it out"));
        }
    }
    Ok((settled, kind, mtu))
}

fn run_both(
    network: &NetworkFlags,
    plan: &Plan,
    kind: &DeviceKind,
    socket: &Path,
    cpus: [usize; 2],
) -> anyhow::Result<Report> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let command = |side: &str, cpu: usize, interface: &str| {
        let mut command = Command::new(&own);
        command.arg(side).arg("--with-parent");
        command.args(["--cpus", &cpu.to_string()]);
        command.args(network.to_arguments());
        if let Some(file) = &network.config {
            command.arg("--config").arg(file);
            // A file describes one side: the pair's own addresses override the file's.
            let role = if side == "server" { Role::Server } else { Role::Client };
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
    server.arg("--once");
    if plan.test.is_raw() {
        server.arg("--raw");
    }
    if plan.test.is_stream() {
        server.arg("--streams");
    }
    let mut client = command("client", cpus[1], CLIENT_INTERFACE);
    client.args([plan.test.name(), &network.default_address(Role::Server).to_string()]);
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

    let text = pair::run(&mut server, &mut client, |going| namespace::join(kind, going))?;
    serde_json::from_str(&text).context("the client's result cannot be read")
}
