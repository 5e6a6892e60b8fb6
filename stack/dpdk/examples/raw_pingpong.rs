//! A ping-pong of single frames between two processes: the time that a device takes, without a protocol.
//!
//! ```text
//! cargo run --release -p uwarp-dpdk --example raw_pingpong -- --device memif --size 64 --iterations 1000000 --cpus 0,1
//! ```
//!
//! `--device` is memif, memif-zero-copy, virtio or virtio-packed. Prints one line of JSON with full round trips in
//! nanoseconds, as the C program of the same name in perf/c does.

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, exit};
use std::time::Duration;

use uwarp_dpdk::measure::{ticks, ticks_per_nanosecond};
use uwarp_dpdk::{DeviceConfig, Eal, EalConfig, Mbuf, MemifRole, Port, PortOptions, Queue};

const WARM_UP: u64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(10);

struct Settings {
    device: String,
    size: usize,
    iterations: u64,
    cpus: Option<[usize; 2]>,
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let mut settings = Settings { device: "virtio".to_owned(), size: 64, iterations: 1_000_000, cpus: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or("each option needs a value")?;
        match name.as_str() {
            "--device" => settings.device = value,
            "--size" => settings.size = value.parse()?,
            "--iterations" => settings.iterations = value.parse()?,
            "--cpus" => {
                let (client, server) = value.split_once(',').ok_or("--cpus needs two numbers, as in 0,1")?;
                settings.cpus = Some([client.parse()?, server.parse()?]);
            }
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    if !(22..=1514).contains(&settings.size) || settings.iterations == 0 {
        return Err("--size must be 22 to 1514, and --iterations at least 1".into());
    }
    Ok(settings)
}

/// Opens one end of the pair on its CPU.
fn open(settings: &Settings, socket: PathBuf, server: bool) -> Result<Port, Box<dyn Error>> {
    if let Some(cpus) = settings.cpus {
        let mut one = rustix::thread::CpuSet::new();
        one.set(cpus[usize::from(server)]);
        rustix::thread::sched_setaffinity(None, &one)?;
    }
    let memif = |zero_copy| DeviceConfig::Memif {
        role: if server { MemifRole::Server } else { MemifRole::Client },
        socket: socket.clone(),
        zero_copy,
        ring_size: None,
        buffer_size: None,
    };
    let device = match (settings.device.as_str(), server) {
        ("memif", _) => memif(false),
        ("memif-zero-copy", _) => memif(true),
        ("virtio" | "virtio-packed", true) => DeviceConfig::Vhost { socket, client: false, tso: false },
        ("virtio", false) => {
            DeviceConfig::VirtioUser { socket, server: false, packed: false, queue_size: None, mac: None }
        }
        ("virtio-packed", false) => {
            DeviceConfig::VirtioUser { socket, server: false, packed: true, queue_size: None, mac: None }
        }
        (other, _) => return Err(format!("unknown device {other}").into()),
    };
    let eal = Eal::init(&EalConfig::default())?;
    // Keep the registration for the rest of this thread, which ends with the process.
    std::mem::forget(eal.register_thread()?);
    let options = PortOptions { rx_buffers: 4095, tx_buffers: 4095, wait_for_peer: PATIENCE, ..PortOptions::default() };
    let port = Port::open(&eal, &device, &options)?;
    port.wait_link_up(PATIENCE)?;
    Ok(port)
}

fn serve(mut queue: Queue) -> ! {
    let mut received: Vec<Mbuf> = Vec::with_capacity(32);
    let mut frames: VecDeque<Mbuf> = VecDeque::with_capacity(64);
    loop {
        queue.rx_burst(&mut received);
        frames.extend(received.drain(..));
        while !frames.is_empty() {
            queue.tx_burst(&mut frames);
        }
    }
}

struct Client {
    queue: Queue,
    frames: VecDeque<Mbuf>,
    received: Vec<Mbuf>,
    size: usize,
    /// In ticks.
    patience: u64,
}

impl Client {
    fn round_trip(&mut self, number: u64) -> Result<u64, Box<dyn Error>> {
        const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
        let begin = ticks();
        let mut mbuf = self.queue.alloc().ok_or("the pool is empty")?;
        let start = mbuf.start();
        let data = &mut mbuf.storage_mut().ok_or("a fresh buffer is shared")?[start..start + self.size];
        data[..14].copy_from_slice(&HEADER);
        data[14..].fill(0);
        data[14..22].copy_from_slice(&number.to_le_bytes());
        if !mbuf.set_range(start, self.size) {
            return Err("the frame does not fit".into());
        }
        self.frames.push_back(mbuf);
        while self.queue.tx_burst(&mut self.frames) == 0 {}
        loop {
            let count = self.queue.rx_burst(&mut self.received);
            if self.received.drain(..).any(|mbuf| mbuf.data()[14..22] == number.to_le_bytes()) {
                return Ok(ticks() - begin);
            }
            if count == 0 && ticks() - begin > self.patience {
                return Err("no frame came back in ten seconds".into());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    const SOCKET: &str = "RAW_PINGPONG_SOCKET";
    let settings = settings()?;
    if let Some(socket) = std::env::var_os(SOCKET) {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        let port = open(&settings, socket.into(), true)?;
        serve(port.take_queue(0).ok_or("no queue")?);
    }
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let mut server =
        Command::new(std::env::current_exe()?).args(std::env::args().skip(1)).env(SOCKET, &socket).spawn()?;
    let port = open(&settings, socket, false)?;
    let mut client = Client {
        queue: port.take_queue(0).ok_or("no queue")?,
        frames: VecDeque::with_capacity(64),
        received: Vec::with_capacity(32),
        size: settings.size,
        patience: (ticks_per_nanosecond() * PATIENCE.as_nanos() as f64) as u64,
    };
    for number in 0..WARM_UP {
        client.round_trip(number)?;
    }
    let mut samples = Vec::with_capacity(usize::try_from(settings.iterations)?);
    for number in 0..settings.iterations {
        samples.push(client.round_trip(WARM_UP + number)?);
    }
    server.kill()?;
    server.wait()?;
    samples.sort_unstable();
    let at =
        |share: f64| (samples[((samples.len() - 1) as f64 * share) as usize] as f64 / ticks_per_nanosecond()).round();
    println!(
        "{{\"test\":\"raw-latency\",\"program\":\"rust\",\"device\":\"{}\",\"size\":{},\"iterations\":{},\
         \"latency_ns\":{{\"min\":{},\"p50\":{},\"p99\":{},\"p99_9\":{},\"max\":{}}}}}",
        settings.device,
        settings.size,
        settings.iterations,
        at(0.0),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    drop((client, port, directory));
    exit(0)
}
