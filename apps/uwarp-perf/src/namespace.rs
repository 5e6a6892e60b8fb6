//! A separate network for devices that are kernel interfaces: `pair` runs itself again in a fresh network namespace,
//! which ends with the last process in it, however that ends.

use anyhow::Context as _;
use std::time::{Duration, Instant};
use uwarp_app::DeviceKind;
use uwarp_app::outcome::of_child;
use uwarp_netns::{self as netns, End};

/// Marks the second run, which is inside.
const WHO: &str = "uwarp-perf";
/// Interface of the server.
pub const SERVER_INTERFACE: &str = "uwarp-a";
/// Interface of the client.
pub const CLIENT_INTERFACE: &str = "uwarp-b";
const BRIDGE: &str = "uwarp-bridge";

/// Whether a pair of such devices needs a network namespace.
pub fn is_wanted(kind: &DeviceKind) -> bool {
    matches!(kind, DeviceKind::AfPacket | DeviceKind::Tap)
}

/// Whether this process is the second run.
pub fn is_inside() -> bool {
    netns::is_inside(WHO)
}

/// Runs this program again, with the same arguments, in its own network namespace.
///
/// # Errors
/// The system refuses a namespace, or the second run failed.
pub fn enter() -> anyhow::Result<()> {
    let status = netns::again_inside(WHO, std::env::args_os().skip(1))
        .context("a pair on kernel interfaces needs its own network namespace")?;
    of_child(status)
}

/// Creates the connection of the two sides before they start: a veth pair for af_packet, a bridge for tap.
///
/// # Errors
/// The kernel lacks it, or the process lacks the privilege.
pub fn prepare(kind: &DeviceKind, mtu: u16) -> anyhow::Result<()> {
    // The kernel must send nothing on these interfaces; without IPv6 there is nothing to silence.
    for name in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    if *kind == DeviceKind::Tap {
        return netns::ip(["link", "add", BRIDGE, "type", "bridge"])
            .and_then(|()| netns::ip(["link", "set", BRIDGE, "up"]))
            .context("cannot create the bridge for a tap pair: the kernel lacks it, or the user the privilege");
    }
    netns::veth(mtu, [SERVER_INTERFACE, CLIENT_INTERFACE].map(End::silent))
        .context("cannot create the veth pair for an af_packet pair: the kernel lacks it, or the user the privilege")
}

/// Connects the tap interfaces that the two processes create, as soon as both exist.
///
/// # Errors
/// They do not appear, or `going` reports that a process has ended.
pub fn join(kind: &DeviceKind, mut going: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    if *kind != DeviceKind::Tap {
        return Ok(());
    }
    for interface in [SERVER_INTERFACE, CLIENT_INTERFACE] {
        let start = Instant::now();
        while let Err(error) = netns::ip(["link", "set", interface, "master", BRIDGE, "up"]) {
            if !going()? {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(15) {
                return Err(anyhow::Error::new(error).context(format!("the tap interface {interface} does not appear")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}
