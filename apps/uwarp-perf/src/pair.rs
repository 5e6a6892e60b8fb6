//! `pair`: runs both sides as processes of their own, each on its CPU.

use crate::cli::{PairArguments, Plan};
use crate::namespace::{self, CLIENT_INTERFACE, SERVER_INTERFACE};
use crate::report::Report;
use std::path::Path;
use std::process::Command;
use uwarp::config::{DeviceConfig, EngineMode};
use uwarp_app::cacheline::CacheLine;
use uwarp_app::pair::{self, Folder, check_flags, choose_cpus};
use uwarp_app::units::name_of;
use uwarp_app::{DeviceKind, NetworkFlags, Role, usage};

/// Runs a pair.
///
/// # Errors
/// An invalid command line, or a side that failed (it has reported why).
pub fn run(arguments: &PairArguments) -> anyhow::Result<()> {
    let plan = arguments.options.plan(arguments.test)?;
    let cpus = choose_cpus(&arguments.network.cpus)?;
    let (network, kind, mtu) = settle(&arguments.network)?;
    if namespace::is_wanted(&kind) && !namespace::is_inside() {
        return namespace::enter();
    }
    let (mut report, line) = CacheLine::around(cpus, || {
        if namespace::is_wanted(&kind) {
            namespace::prepare(&kind, mtu)?;
        }
        let folder = Folder::new("uwarp-perf-")?;
        run_both(&network, &plan, &kind, &folder.socket, cpus)
    })?;
    report.cacheline_ns = line;
    report.publish(&arguments.options.json)
}

/// The flags with the kind of device of both sides, and the MTU. Refuses flags for what a pair decides itself.
fn settle(network: &NetworkFlags) -> anyhow::Result<(NetworkFlags, DeviceKind, u16)> {
    check_flags(network, "'serve' and 'run'")?;
    let kind = match network.chosen_kind()? {
        Some(DeviceKind::Pci(_)) => {
            return Err(usage("a pair cannot share one PCI device: use 'serve' and 'run', one on each"));
        }
        Some(DeviceKind::Switch) => {
            return Err(usage("a pair has a device of its own: on a switch, use 'serve' and 'run'"));
        }
        Some(kind) => kind,
        None => return Err(usage("a pair runs over virtio, memif, af_packet or tap: choose a --device")),
    };
    // A file is one side's: each side takes its own end of that device.
    let settled = NetworkFlags { device: Some(kind.clone()), cpus: Vec::new(), ..network.clone() };
    // Mistakes of the other flags are found before anything starts.
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
    let command = |side: &str, role: Role, interface: &str| -> anyhow::Result<Command> {
        let mut command = pair::side(side, role, cpus, network)?;
        if let Some(file) = &network.config {
            command.arg("--config").arg(file);
            // A file is one side's: the pair's own addresses win over the file's.
            let address = network.default_address(role);
            command.args(["--address", &format!("{address}/{}", if address.is_ipv4() { 24 } else { 64 })]);
        }
        if namespace::is_wanted(kind) {
            command.args(["--interface", interface]);
        } else {
            command.arg("--socket").arg(socket);
        }
        Ok(command)
    };

    let mut server = command("serve", Role::Server, SERVER_INTERFACE)?;
    server.args(["--once", "--transport", &name_of(plan.test.transport())]);
    let mut client = command("run", Role::Client, CLIENT_INTERFACE)?;
    client.args([&name_of(plan.test), "--json", "-"]);
    client.args(["--size", &plan.size.to_string()]);
    client.args(["--depth", &plan.depth.to_string()]);
    client.args(["--qps", &plan.qps.to_string()]);
    client.args(plan.amount.to_arguments());
    if plan.plain {
        client.arg("--plain");
    }
    if plan.verify {
        client.arg("--verify");
    }
    if let Some(frame) = plan.frame {
        client.args(["--frame", &frame.to_string()]);
    }
    pair::run(&mut server, &mut client, |going| namespace::join(kind, going))
}
