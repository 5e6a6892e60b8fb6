//! What becomes of frames on their way through the console, octet by octet: the test is its peer on a memif cable.

use std::collections::VecDeque;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uwarp_dpdk::{DeviceConfig, Eal, EalConfig, Mbuf, MemifRole, Port, PortOptions, Queue, ThreadRegistration};

/// Long enough for a busy machine; ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// A console with one port that sends back what it receives, and the other end of that port.
struct Mirror {
    console: Child,
    queue: Queue,
    _port: Port,
    _registration: ThreadRegistration,
    _folder: tempfile::TempDir,
}

impl Mirror {
    fn open(mode: &str) -> Mirror {
        let folder = tempfile::Builder::new().prefix("pmd").tempdir().unwrap();
        let socket = folder.path().join("s");
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-pmd"));
        command.arg(format!("memif,role=server,socket={}", socket.display())).arg("--json");
        let mut console = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It goes on until its input ends.
        let mut input = console.stdin.take().unwrap();
        write!(input, "set fwd {mode}\nstart\n").unwrap();
        console.stdin = Some(input);
        let eal = Eal::init(&EalConfig::default()).unwrap();
        let role = MemifRole::Client;
        let device = DeviceConfig::Memif { role, socket, zero_copy: false, ring_size: None, buffer_size: None };
        let options = PortOptions { wait_for_peer: PATIENCE, ..PortOptions::default() };
        let port = Port::open(&eal, &device, &options).unwrap();
        port.wait_link_up(PATIENCE).unwrap();
        let registration = eal.register_thread().unwrap();
        let queue = port.take_queue(0).unwrap();
        Mirror { console, queue, _port: port, _registration: registration, _folder: folder }
    }

    /// Sends frames, and returns those that come back until the last one is there.
    fn reflect(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut waiting: VecDeque<Mbuf> = frames.iter().map(|frame| self.packet(frame)).collect();
        let last = frames.last().unwrap();
        let (mut back, mut received) = (Vec::new(), Vec::with_capacity(32));
        let start = Instant::now();
        while back.last().is_none_or(|frame: &Vec<u8>| frame[12..] != last[12..]) {
            assert!(start.elapsed() < PATIENCE, "{} of {} came back", back.len(), frames.len());
            self.queue.tx_burst(&mut waiting);
            self.queue.rx_burst(&mut received);
            for packet in received.drain(..) {
                let mut octets = vec![0; packet.total_len()];
                packet.copy_to(0, &mut octets);
                back.push(octets);
            }
        }
        back
    }

    fn packet(&mut self, octets: &[u8]) -> Mbuf {
        let mut packet = self.queue.alloc().unwrap();
        let start = packet.start();
        packet.storage_mut().unwrap()[start..start + octets.len()].copy_from_slice(octets);
        assert!(packet.set_range(start, octets.len()));
        packet
    }

    /// Asks the console for its drops, and ends it.
    fn end(&mut self) -> serde_json::Value {
        writeln!(self.console.stdin.take().unwrap(), "show drops").unwrap();
        let text = std::io::read_to_string(self.console.stdout.take().unwrap()).unwrap();
        assert!(self.console.wait().unwrap().success(), "{text}");
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        last["result"][0].clone()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = self.console.kill();
        let _ = self.console.wait();
    }
}

/// Frames of different lengths and contents.
fn frames() -> Vec<Vec<u8>> {
    (0..70_u8).map(|seed| (0..60 + u16::from(seed) * 20).map(|at| (at as u8).wrapping_add(seed)).collect()).collect()
}

#[test]
fn io_changes_no_octet() {
    let mut mirror = Mirror::open("io");
    assert_eq!(mirror.reflect(&frames()), frames());
    assert_eq!(mirror.end()["tx_full"], 0);
}

#[test]
fn macswap_exchanges_the_addresses_and_nothing_else() {
    let mut mirror = Mirror::open("macswap");
    // In the middle is one without a whole header.
    let mut sent = frames();
    sent.insert(20, vec![7; 13]);
    let swapped: Vec<Vec<u8>> =
        frames().into_iter().map(|frame| [&frame[6..12], &frame[..6], &frame[12..]].concat()).collect();
    assert_eq!(mirror.reflect(&sent), swapped);
    assert_eq!(mirror.end()["too_short"], 1);
}
