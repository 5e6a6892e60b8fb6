//! Shared code of this crate's tests.
#![allow(dead_code)] // Each test program uses a part of it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use uwarp_dpdk::{DeviceConfig, Eal, EalConfig, Mbuf, MemifRole, Port, PortOptions, Queue};

/// Long enough for a busy machine; ends a test that would hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An EtherType for local experiments.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

pub fn eal() -> Eal {
    Eal::init(&EalConfig::default()).expect("DPDK starts")
}

/// A lock on the machine's hugepages, for tests that depend on their number.
pub fn hugepages() -> File {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let pool = File::open(pool).expect("a kernel with hugepages of 2 MiB");
    pool.lock().expect("a lock");
    pool
}

/// Hugepages reserved by the project's script, returned on drop.
pub struct Reserved {
    pool: File,
    before: u64,
}

impl Reserved {
    /// Reserves `count` more than there are.
    pub fn new(count: u64) -> Self {
        let mut pool = hugepages();
        let mut before = String::new();
        pool.read_to_string(&mut before).expect("a number");
        let before = before.trim().parse().expect("a number");
        let reserved = Self { pool, before };
        reserve(before + count).expect("root, and a machine with free memory");
        reserved
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Err(error) = reserve(self.before) {
            eprintln!("{error}");
        }
        let _ = self.pool.unlock();
    }
}

/// Runs `scripts/hugepages`.
fn reserve(count: u64) -> Result<(), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/hugepages");
    let output = Command::new(script).arg(count.to_string()).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

pub fn options(mtu: u16) -> PortOptions {
    PortOptions { mtu, rx_buffers: 2047, tx_buffers: 2047, wait_for_peer: PATIENCE, ..PortOptions::default() }
}

/// A directory for sockets, short enough for their paths.
pub fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("uw").tempdir().expect("a temporary directory")
}

pub fn memif(role: MemifRole, socket: PathBuf, zero_copy: bool) -> DeviceConfig {
    DeviceConfig::Memif { role, socket, zero_copy, ring_size: None, buffer_size: None }
}

pub fn virtio(socket: PathBuf, server: bool, packed: bool) -> DeviceConfig {
    DeviceConfig::VirtioUser { socket, server, packed, queue_size: None, mac: None }
}

pub fn vhost(socket: PathBuf, client: bool) -> DeviceConfig {
    DeviceConfig::Vhost { socket, client, tso: false }
}

/// Contents of a frame of `len` octets, derived from `seed`.
pub fn contents(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut frame = vec![0; len];
    frame[..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    random.fill(&mut frame[14..]);
    frame
}

pub fn fill(mbuf: &mut Mbuf, octets: &[u8]) {
    let start = mbuf.start();
    mbuf.storage_mut().expect("a fresh buffer is not shared")[start..start + octets.len()].copy_from_slice(octets);
    assert!(mbuf.set_range(start, octets.len()));
}

pub fn whole(mbuf: &Mbuf) -> Vec<u8> {
    let mut octets = vec![0; mbuf.total_len()];
    assert_eq!(mbuf.copy_to(0, &mut octets), octets.len());
    assert_eq!(mbuf.segments().map(<[u8]>::len).sum::<usize>(), octets.len());
    octets
}

pub fn send(queue: &mut Queue, mbuf: Mbuf) {
    let start = Instant::now();
    let mut frames = VecDeque::from([mbuf]);
    while queue.tx_burst(&mut frames) == 0 {
        assert!(start.elapsed() < PATIENCE, "the device accepts no frame");
        std::thread::yield_now();
    }
}

pub fn send_octets(queue: &mut Queue, octets: &[u8]) {
    let start = Instant::now();
    let mut mbuf = loop {
        match queue.alloc() {
            Some(mbuf) => break mbuf,
            None => assert!(start.elapsed() < PATIENCE, "the transmit pool stays empty"),
        }
    };
    fill(&mut mbuf, octets);
    send(queue, mbuf);
}

/// The next frame of ours; the kernel's own frames on an interface are skipped.
pub fn receive(queue: &mut Queue, keep_going: &mut dyn FnMut()) -> Mbuf {
    let start = Instant::now();
    let mut frames = Vec::with_capacity(1);
    loop {
        queue.rx_burst(&mut frames);
        match frames.pop() {
            Some(frame) if frame.data()[12..14] == ETHERTYPE => return frame,
            Some(_) => {}
            None => {
                keep_going();
                std::thread::yield_now();
            }
        }
        assert!(start.elapsed() < PATIENCE, "no frame arrives");
    }
}

/// Sends frames of each size in both directions and compares them.
pub fn exchange(left: &mut Queue, right: &mut Queue, sizes: impl Iterator<Item = usize>) {
    for (seed, size) in sizes.enumerate() {
        let frame = contents(size, seed as u64);
        send_octets(left, &frame);
        // Some devices reap sent frames, or wake the peer, only when they are called again.
        let got = receive(right, &mut || {
            left.tx_burst(&mut VecDeque::<Mbuf>::new());
        });
        assert_eq!(whole(&got), frame, "left to right, {size} octets");
        drop(got);
        let frame = contents(size, !(seed as u64));
        send_octets(right, &frame);
        let got = receive(left, &mut || {
            right.tx_burst(&mut VecDeque::<Mbuf>::new());
        });
        assert_eq!(whole(&got), frame, "right to left, {size} octets");
    }
}

/// All sizes up to a normal MTU's frame, and a selection beyond.
pub fn sizes(mtu: u16) -> impl Iterator<Item = usize> {
    let largest = usize::from(mtu) + 14;
    (60..=largest)
        .filter(move |&size| size <= 1514 && (size % 3 == 0 || size < 130) || size % 61 == 0 || size + 3 > largest)
}

pub fn open(eal: &Eal, device: &DeviceConfig, options: &PortOptions) -> Port {
    Port::open(eal, device, options).unwrap_or_else(|error| panic!("{device:?}: {error}"))
}

/// Both queues of a pair of ports, links up.
pub fn connect(left: &Port, right: &Port) -> (Queue, Queue) {
    left.wait_link_up(PATIENCE).expect("left link");
    right.wait_link_up(PATIENCE).expect("right link");
    let (mut left, mut right) = (left.take_queue(0).expect("left queue"), right.take_queue(0).expect("right queue"));
    prime(&mut left);
    prime(&mut right);
    (left, right)
}

/// A memif server can send only into slots that its client has offered, which it does when it polls.
pub fn prime(queue: &mut Queue) {
    queue.rx_burst(&mut Vec::with_capacity(1));
}
