//! A network of its own for devices that are kernel interfaces: `pair` runs itself again in a fresh network namespace,
//! which disappears with the last process in it, whatever ended that.

use crate::outcome_of;
use anyhow::Context as _;
use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use uwarp_app::DeviceKind;

/// Tells the second run that it is inside.
const MARK: &str = "UWARP_PERF_NAMESPACE";
/// Interface of the server.
pub const SERVER_INTERFACE: &str = "uwarp-a";
/// Interface of the client.
pub const CLIENT_INTERFACE: &str = "uwarp-b";
const BRIDGE: &str = "uwarp-bridge";

/// Whether a device wants a network namespace for a pair.
pub fn is_wanted(kind: &DeviceKind) -> bool {
    matches!(kind, DeviceKind::AfPacket | DeviceKind::Tap)
}

/// Whether this process is the second run.
pub fn is_inside() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs this program again, with the same arguments, in a network namespace of its own.
///
/// # Errors
/// The system refuses a namespace, or the second run failed.
pub fn enter() -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !rustix::process::geteuid().is_root() {
        // An ordinary user owns the network of a user namespace of his own.
        command.args(["--user", "--map-root-user"]);
    }
    let status = command
        .arg("--")
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .status()
        .context("cannot run 'unshare' (util-linux), which gives the pair a network namespace of its own")?;
    outcome_of(status)
}

/// Makes what joins the two sides before they start: for af_packet a veth pair, for tap a bridge.
///
/// # Errors
/// The kernel lacks it, or the process lacks the privilege.
pub fn prepare(kind: &DeviceKind, mtu: u16) -> anyhow::Result<()> {
    // The kernel must say nothing of its own on these interfaces; without IPv6 there is nothing to silence.
    for name in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    let mtu = mtu.to_string();
    if *kind == DeviceKind::Tap {
        return ip(["link", "add", BRIDGE, "type", "bridge"])
            .and_then(|()| ip(["link", "set", BRIDGE, "up"]))
            .context("tap pairs are joined by a bridge, which this kernel or user cannot make");
    }
    // The driver names its fanout group, of which a namespace has one set, by process number XOR interface index: processes
    // with neighbouring numbers on interfaces with neighbouring indexes would take each other's.
    let (server, client) = ((SERVER_INTERFACE, "10"), (CLIENT_INTERFACE, "1000"));
    ip(["link", "add", server.0, "index", server.1, "mtu", &mtu, "type", "veth", "peer", "name", client.0]
        .into_iter()
        .chain(["index", client.1, "mtu", &mtu]))
    .and_then(|()| ip(["link", "set", SERVER_INTERFACE, "up"]))
    .and_then(|()| ip(["link", "set", CLIENT_INTERFACE, "up"]))
    .context("af_packet pairs are joined by a veth pair, which this kernel or user cannot make")
}

/// Joins what the two processes made: their tap interfaces, as soon as both are there.
///
/// # Errors
/// They do not appear, or `going` says that a process ended.
pub fn join(kind: &DeviceKind, mut going: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    if *kind != DeviceKind::Tap {
        return Ok(());
    }
    for interface in [SERVER_INTERFACE, CLIENT_INTERFACE] {
        let start = Instant::now();
        while let Err(error) = ip(["link", "set", interface, "master", BRIDGE, "up"]) {
            if !going()? {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(15) {
                return Err(error.context(format!("the tap interface {interface} does not appear")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn ip<Argument: AsRef<OsStr>>(arguments: impl IntoIterator<Item = Argument>) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cannot run 'ip' (iproute2): install it")?;
    if !output.status.success() {
        anyhow::bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
