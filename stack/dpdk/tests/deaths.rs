//! A peer that is killed under load costs only its connection, and the next one is served.
//!
//! Each test starts itself again as the peer. Per device and role, 4 peers are killed; 200 in the long run
//! (`UWARP_LONG=1`).

mod common;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, contents, directory, eal, exchange, fill, memif, options, vhost, virtio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use uwarp_dpdk::{DeviceConfig, Mbuf, MemifRole, Port, PortOptions, Queue};

/// Set in the peer: the socket.
const SOCKET: &str = "UWARP_DEATH_SOCKET";

/// Keeps a queue busy in both directions. Frames carry their sender.
struct Load {
    queue: Queue,
    mark: u8,
    frames: VecDeque<Mbuf>,
    received: Vec<Mbuf>,
}

impl Load {
    fn new(queue: Queue, mark: u8) -> Load {
        Load { queue, mark, frames: VecDeque::with_capacity(64), received: Vec::with_capacity(64) }
    }

    /// Returns how many frames arrived from another sender.
    fn turn(&mut self) -> usize {
        while self.frames.len() < 32 {
            let Some(mut mbuf) = self.queue.alloc() else { break };
            let mut octets = contents(64 + usize::from(self.mark), 3);
            octets[14] = self.mark;
            fill(&mut mbuf, &octets);
            self.frames.push_back(mbuf);
        }
        self.queue.tx_burst(&mut self.frames);
        self.queue.rx_burst(&mut self.received);
        self.received.drain(..).filter(|mbuf| mbuf.data()[14] != self.mark).count()
    }
}

fn be_peer(device: &DeviceConfig) -> ! {
    // The peer does not outlive the test, however that ends.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let eal = eal();
    let _registration = eal.register_thread().unwrap();
    let port = common::open(&eal, device, &options(1500));
    port.wait_link_up(PATIENCE).unwrap();
    let mut load = Load::new(port.take_queue(0).unwrap(), 2);
    loop {
        if load.turn() == 0 {
            std::thread::yield_now();
        }
    }
}

fn spawn_peer(test: &str, socket: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(SOCKET, socket)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills one peer after another. `peer` is the device that the peer opens, `own` the survivor's. `needs_peer`: the
/// survivor's device cannot be opened before a peer is there.
fn survive(
    test: &str,
    own: impl Fn(PathBuf) -> DeviceConfig,
    peer: impl Fn(PathBuf) -> DeviceConfig,
    needs_peer: bool,
) {
    if let Some(socket) = std::env::var_os(SOCKET) {
        be_peer(&peer(socket.into()));
    }
    let (rounds, options) = rounds_and_options(&own(PathBuf::new()));
    let eal = eal();
    let _registration = eal.register_thread().unwrap();
    let directory = directory();
    let socket = directory.path().join("s");
    let mut random = fastrand::Rng::with_seed(rounds);

    let mut first = needs_peer.then(|| Killed(spawn_peer(test, &socket)));
    let port = common::open(&eal, &own(socket.clone()), &options);
    let mut load = Load::new(port.take_queue(0).unwrap(), 1);
    for round in 0..rounds {
        let mut child = first.take().unwrap_or_else(|| Killed(spawn_peer(test, &socket)));
        let start = Instant::now();
        let mut last = start;
        let mut received = 0;
        let wanted = random.usize(200..20_000);
        while received < wanted {
            match load.turn() {
                0 => std::thread::yield_now(),
                count => {
                    received += count;
                    last = Instant::now();
                }
            }
            // A busy machine is slow; no progress for this long is a fault.
            assert!(
                last.elapsed() < 3 * PATIENCE,
                "round {round}: {received} frames of {wanted} from the new peer, then none for {:?}; link {:?}, {:?}, {:?}",
                last.elapsed(),
                port.link(),
                port.statistics(),
                port.pool_levels()
            );
            if let Ok(Some(status)) = child.0.try_wait() {
                panic!("round {round}: the peer ended by itself: {status}");
            }
        }
        child.0.kill().unwrap();
        // The kernel tears the peer down while bursts continue.
        let killed = Instant::now();
        while port.link_up() || killed.elapsed() < Duration::from_millis(5) {
            load.turn();
            assert!(killed.elapsed() < PATIENCE, "round {round}: the link stays up without a peer");
        }
        drop(child);
        load.turn();
    }
    load_is_given_back(&port, load);
    drop(port);
    for pool in eal.unused_pools() {
        assert!(pool.free == pool.total || loses_buffers(&own(PathBuf::new())), "buffers lost in {rounds} deaths");
    }
}

/// What a zero-copy memif client has in its rings is lost with each peer.
fn loses_buffers(device: &DeviceConfig) -> bool {
    matches!(device, DeviceConfig::Memif { role: MemifRole::Client, zero_copy: true, .. })
}

fn rounds_and_options(device: &DeviceConfig) -> (u64, PortOptions) {
    let is_long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let rounds = if is_long { 200 } else { 4 };
    if loses_buffers(device) {
        (rounds.min(5), PortOptions { rx_buffers: 16_383, tx_buffers: 16_383, ..options(1500) })
    } else {
        (rounds, options(1500))
    }
}

fn load_is_given_back(port: &Port, load: Load) {
    drop(load);
    assert!(port.take_queue(0).is_some());
}

#[test]
fn memif_server_survives() {
    let server = |socket| memif(MemifRole::Server, socket, false);
    let client = |socket| memif(MemifRole::Client, socket, false);
    survive("memif_server_survives", server, client, false);
}

#[test]
fn memif_server_survives_zero_copy_clients() {
    let server = |socket| memif(MemifRole::Server, socket, false);
    let client = |socket| memif(MemifRole::Client, socket, true);
    survive("memif_server_survives_zero_copy_clients", server, client, false);
}

#[test]
fn memif_client_survives() {
    let server = |socket| memif(MemifRole::Server, socket, false);
    let client = |socket| memif(MemifRole::Client, socket, false);
    survive("memif_client_survives", client, server, true);
}

#[test]
fn memif_zero_copy_client_survives() {
    let server = |socket| memif(MemifRole::Server, socket, false);
    let client = |socket| memif(MemifRole::Client, socket, true);
    survive("memif_zero_copy_client_survives", client, server, true);
}

#[test]
fn vhost_server_survives() {
    survive("vhost_server_survives", |socket| vhost(socket, false), |socket| virtio(socket, false, false), false);
}

#[test]
fn vhost_server_survives_packed() {
    survive("vhost_server_survives_packed", |socket| vhost(socket, false), |socket| virtio(socket, false, true), false);
}

#[test]
fn vhost_client_survives() {
    survive("vhost_client_survives", |socket| vhost(socket, true), |socket| virtio(socket, true, false), false);
}

#[test]
fn virtio_server_survives() {
    survive("virtio_server_survives", |socket| virtio(socket, true, false), |socket| vhost(socket, true), true);
}

#[test]
fn virtio_server_survives_packed() {
    survive("virtio_server_survives_packed", |socket| virtio(socket, true, true), |socket| vhost(socket, true), true);
}

#[test]
fn virtio_client_survives() {
    survive("virtio_client_survives", |socket| virtio(socket, false, false), |socket| vhost(socket, false), true);
}

#[test]
fn virtio_client_survives_packed() {
    survive("virtio_client_survives_packed", |socket| virtio(socket, false, true), |socket| vhost(socket, false), true);
}

/// EAL ended the process when the driver could not greet a client.
#[test]
fn clients_that_leave_at_once_do_not_end_a_memif_server() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("m");
    let server = common::open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(1500));
    for _ in 0..100 {
        let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    }
    let client = common::open(&eal, &memif(MemifRole::Client, socket, false), &options(1500));
    let (mut left, mut right) = common::connect(&server, &client);
    exchange(&mut left, &mut right, 60..70);
}

#[test]
fn a_port_of_a_peer_that_is_stopped_closes() {
    const NAME: &str = "a_port_of_a_peer_that_is_stopped_closes";
    if let Some(socket) = std::env::var_os(SOCKET) {
        be_peer(&vhost(socket.into(), false));
    }
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("s");
    let peer = Killed(spawn_peer(NAME, &socket));
    let port = common::open(&eal, &virtio(socket, false, false), &options(1500));
    let pid = rustix::process::Pid::from_child(&peer.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let start = Instant::now();
    // It waits for an answer to each question, and asks about each ring.
    drop(port);
    assert!(start.elapsed() < 3 * PATIENCE, "{:?}", start.elapsed());
}
