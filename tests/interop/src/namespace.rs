//! A network namespace that a test makes for itself, lives in and takes away again.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "UWARP_TEST_NAMESPACE";

/// Runs the body of test `name` in a fresh process inside a fresh network namespace and passes its outcome on.
///
/// A namespace is a property of a thread; a process of its own keeps the test runner's threads where they are. The
/// namespace goes away with its name at the end, and all devices in it with it.
pub fn inside(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let namespace = format!("uwarp-{}-{}", std::process::id(), name.len());
    ip(&["netns", "add", &namespace]).expect("making a network namespace needs root and the package iproute2");
    let outcome = Command::new("ip")
        .args(["netns", "exec", &namespace])
        .arg(std::env::current_exe().expect("the path of this test"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, &namespace)
        .status();
    ip(&["netns", "delete", &namespace]).expect("removing the namespace");
    assert!(outcome.as_ref().is_ok_and(ExitStatus::success), "{name} failed inside its namespace: {outcome:?}");
}

/// Runs `ip` with these arguments.
pub fn ip(arguments: &[&str]) -> io::Result<()> {
    run("ip", arguments)
}

/// Runs a command to its end; its standard error becomes the error's text.
pub fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), said.trim())))
}

/// A veth pair: `stack` for the stack under test (no kernel address, no IPv6, or the kernel would answer too),
/// `kernel` with `address` for the kernel, which has to finish its checksums itself.
pub fn veth(stack: &str, kernel: &str, address: &str, mtu: u16) -> io::Result<()> {
    let mtu = mtu.to_string();
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", stack, "mtu", &mtu, "type", "veth", "peer", "name", kernel, "mtu", &mtu])?;
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{stack}/disable_ipv6"), "1")?;
    run("ethtool", &["-K", kernel, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])?;
    ip(&["addr", "add", address, "dev", kernel])?;
    ip(&["link", "set", stack, "up"])?;
    ip(&["link", "set", kernel, "up"])
}

/// Gives the kernel's end of a tap device its address.
pub fn tap_address(interface: &str, address: &str) -> io::Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["addr", "add", address, "dev", interface])?;
    ip(&["link", "set", interface, "up"])
}
