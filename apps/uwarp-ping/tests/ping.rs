//! Both roles as processes over real devices.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn command(device: &str, socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-ping"));
    command.args(["--device", device, "--socket"]).arg(socket);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // Failures must show in the test's own output.
    command.stderr(Stdio::inherit());
    command
}

/// A process that ends with the test.
struct Running(Option<Child>);

impl Running {
    fn output(mut self) -> std::process::Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn ping(device: &str, size: &str) {
    ping_with(device, size, &[]);
}

fn ping_with(device: &str, size: &str, flags: &[&str]) {
    ping_between(device, size, &[], flags);
}

/// Pings with these flags of the server and of the client.
fn ping_between(device: &str, size: &str, of_server: &[&str], flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = command(device, &socket).args(["serve", "--once", "-v", "-V"]).args(of_server).spawn().unwrap();
    let server = Running(Some(server));
    // Read concurrently: a server that blocks on a full pipe turns no engine, and its client times out.
    let server = std::thread::spawn(move || server.output());
    let client =
        command(device, &socket).args(["run", "-C", "5", "-S", size, "-V", "-v"]).args(flags).output().unwrap();
    let text = String::from_utf8(client.stdout).unwrap();
    assert!(client.status.success());
    assert_eq!(text.matches("ping data: rdma-ping-").count(), 5, "{text}");
    assert!(text.contains(&format!("5 rounds of {size} octets, all right")), "{text}");
    let server = server.join().unwrap();
    let text = String::from_utf8(server.stdout).unwrap();
    assert!(server.status.success());
    assert_eq!(text.matches("server ping data: rdma-ping-").count(), 5, "{text}");
}

#[test]
fn over_virtio() {
    ping("virtio", "64");
    ping("virtio", "65535");
}

#[test]
fn over_memif() {
    ping("memif", "28");
    ping("memif", "4000");
}

#[test]
fn over_ipv6() {
    ping_between("virtio", "4000", &["--ipv6"], &["--ipv6"]);
    ping_between("memif", "65535", &["--ipv6"], &["--ipv6"]);
}

#[test]
fn with_every_kind_of_ready_to_receive() {
    for kind in [&["--peer-to-peer"][..], &["--peer-to-peer=write"], &["--peer-to-peer=read"], &["--peer-to-peer=send"]]
    {
        ping_with("memif", "64", kind);
    }
}

/// A slow machine only makes it later.
#[test]
fn with_a_pause_before_the_first_message() {
    let start = Instant::now();
    ping_with("memif", "64", &["--first-fpdu-delay", "2s"]);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn with_markers_in_either_direction() {
    for (client, server) in [(&["--markers"][..], &[][..]), (&[], &["--markers"]), (&["--markers"], &["--markers"])] {
        ping_between("memif", "65535", server, client);
    }
}

#[test]
fn bad_command_lines_get_one_sentence() {
    for arguments in [
        &[][..],
        &["serve", "run"],
        &["run", "-S", "5"],
        &["run", "-S", "64K"],
        &["run", "--server", "nowhere"],
        &["run", "-p", "99999"],
        &["run", "--mtu", "10"],
        &["serve", "--peer-to-peer"],
        &["run", "--peer-to-peer=shout"],
        &["serve", "--first-fpdu-delay", "1s"],
        &["run", "--first-fpdu-delay", "soon"],
        &["-x"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_uwarp-ping")).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.starts_with("uwarp-ping: "), "{text}");
    }
}

#[test]
fn the_first_interrupt_ends_a_tool_that_waits_for_its_peers_device() {
    let folder = tempfile::tempdir().unwrap();
    // Nobody is there: memif's client waits for 30 s.
    let client = command("memif", &folder.path().join("s")).args(["run", "-C", "5"]).spawn().unwrap();
    let start = Instant::now();
    let id = client.id();
    let client = Running(Some(client));
    // SIGINT's bit among the signals that it catches.
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (2 - 1) != 0
    };
    while !catches() {
        assert!(start.elapsed() < Duration::from_secs(20), "no handler");
        std::thread::sleep(Duration::from_millis(5));
    }
    // In the middle of the wait, as far as that can be had.
    std::thread::sleep(Duration::from_millis(500));
    let pid = rustix::process::Pid::from_raw(id.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(client.output().status.code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
}
