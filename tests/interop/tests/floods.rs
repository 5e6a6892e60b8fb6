//! Floods over a real device: tens of thousands of forged SYNs, acknowledgments, resets, fragments, ICMP errors and
//! neighbours, while the kernel opens connections to the stack and transfers streams over them. Every octet arrives,
//! and memory use stays where it was.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use smoltcp::phy::{Device, Medium, RawSocket, TxToken};
use uwarp::{Config, Context, DeviceConfig, TcpListener};
use uwarp_interop_tests::flows::{self, PATIENCE};
use uwarp_netns::{self as netns, End};
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Path, TcpChecksum, emit_fragment, emit_icmp, prepend_tcp};
use uwarp_wire::icmp::{IcmpMessage, unreachable};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

const STACK: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PORT: u16 = 7000;
/// The fewest frames of a flood: it lasts as long as the stream beside it.
const FRAMES: u64 = 30_000;
/// Octets each way beside each flood.
const OCTETS: u64 = 1 << 20;
/// What the second round of floods may add to the process, in octets. A leak of 60 octets per frame is more.
const GROWTH: u64 = 10 << 20;
/// The engine's own limits, the defaults of `uwarp_engine::Limits`.
const MOST_HALF_OPEN: u64 = 1024;
const MOST_NEIGHBOURS: u64 = 1024;
const MOST_OF_FRAGMENTS: u64 = 1 << 20;

#[derive(Debug, Clone, Copy)]
enum Flood {
    /// SYNs from unknown hosts to the listening port.
    Syn,
    /// Acknowledgments, with and without data: of the open connection with guessed numbers, and of connections that do
    /// not exist.
    Acknowledgment,
    /// Resets of the open connection, with guessed numbers.
    Reset,
    /// First, last and overlapping fragments of packets that never become complete.
    Fragment,
    /// ICMP errors about the open connection, with guessed numbers.
    Icmp,
    /// Hosts that send ARP requests, each for itself.
    Neighbour,
}

const ALL: [Flood; 6] =
    [Flood::Syn, Flood::Acknowledgment, Flood::Reset, Flood::Fragment, Flood::Icmp, Flood::Neighbour];

/// Source and destination of frames, and the port of the kernel's end of the stream.
struct Line {
    interface: &'static str,
    kernel_mac: EthernetAddress,
    stack_mac: EthernetAddress,
    kernel_port: AtomicU16,
}

impl Line {
    fn path(&self, from: Ipv4Addr) -> Path {
        Path::new(self.kernel_mac, self.stack_mac, from.into(), STACK.into())
    }

    /// One frame of a flood.
    fn frame(&self, flood: Flood, random: &mut fastrand::Rng) -> Vec<u8> {
        let stranger = Ipv4Addr::from(0x0a4d_0000 | random.u32(0x100..0xff00));
        let kernel_port = self.kernel_port.load(Relaxed);
        let mut out = vec![0; 2048];
        let length = match flood {
            Flood::Syn => return self.segment(stranger, random.u16(1024..), TcpFlags::SYN, 0, random),
            Flood::Acknowledgment => {
                let (from, port) = if random.bool() { (KERNEL, kernel_port) } else { (stranger, random.u16(1024..)) };
                let payload = if random.bool() { 0 } else { random.usize(1..1400) };
                return self.segment(from, port, TcpFlags::ACK, payload, random);
            }
            Flood::Reset => {
                let flags = if random.bool() { TcpFlags::RST } else { TcpFlags::RST | TcpFlags::ACK };
                return self.segment(KERNEL, kernel_port, flags, 0, random);
            }
            Flood::Fragment => {
                // Half of them belong to packets of their own, the others to a few that overlap all the time.
                let (from, id) = if random.bool() { (stranger, random.u32(..)) } else { (KERNEL, random.u32(0..256)) };
                let place = (8 + random.usize(0..4) * 1000, random.bool());
                emit_fragment(&mut out, &self.path(from), 6, id, place, &[7; 1200])
            }
            Flood::Icmp => {
                // The quotation: the first 28 octets of a packet that the stack would have sent.
                let mut header = TcpHeader::new(TcpFlags::ACK);
                (header.source_port, header.destination_port) = (PORT, kernel_port);
                header.sequence = SeqNumber(random.u32(..));
                let path = Path::new(self.stack_mac, self.kernel_mac, STACK.into(), KERNEL.into());
                let mut quoted = [0; 128];
                let checksum = TcpChecksum::Full { payload_sum: 0 };
                let length = prepend_tcp(&mut quoted, &path, &header, 0, 0, checksum).expect("room");
                let quoted = &quoted[128 - length + 14..][..28];
                let code = if random.bool() { unreachable::FRAGMENTATION_NEEDED } else { unreachable::PORT };
                let message = IcmpMessage::DestinationUnreachable { code, next_hop_mtu: random.u16(68..1500), quoted };
                emit_icmp(&mut out, &self.path(KERNEL), &message)
            }
            Flood::Neighbour => {
                let mac = EthernetAddress([2, 7, 0, random.u8(..), random.u8(..), random.u8(..)]);
                let packet = ArpPacket::request(mac, stranger, STACK);
                packet.emit_frame(&mut out)
            }
        };
        out.truncate(length.expect("room"));
        out
    }

    fn segment(
        &self,
        from: Ipv4Addr,
        port: u16,
        flags: TcpFlags,
        payload: usize,
        random: &mut fastrand::Rng,
    ) -> Vec<u8> {
        let mut header = TcpHeader::new(flags);
        (header.source_port, header.destination_port) = (port, PORT);
        (header.sequence, header.acknowledgment) = (SeqNumber(random.u32(..)), SeqNumber(random.u32(..)));
        header.window = 65_535;
        let mut storage = vec![0; 128 + payload];
        let checksum = TcpChecksum::Full { payload_sum: 0 };
        let headers = prepend_tcp(&mut storage[..128], &self.path(from), &header, 0, payload, checksum).expect("room");
        storage.split_off(128 - headers)
    }

    /// Sends frames until `over`, and at least [`FRAMES`] of them; counts them.
    fn flood(&self, flood: Flood, over: &AtomicBool, sent: &AtomicU64) {
        let mut socket = RawSocket::new(self.interface, Medium::Ethernet).expect("a packet socket");
        let mut random = fastrand::Rng::with_seed(flood as u64);
        while !over.load(Relaxed) || sent.load(Relaxed) < FRAMES {
            for _ in 0..32 {
                let frame = self.frame(flood, &mut random);
                let token = socket.transmit(smoltcp::time::Instant::ZERO).expect("always");
                token.consume(frame.len(), |octets| octets.copy_from_slice(&frame));
                sent.fetch_add(1, Relaxed);
            }
            // If both share a core, the stack needs its turn.
            thread::sleep(Duration::from_micros(200));
        }
    }
}

#[test]
fn floods_over_af_packet_leave_other_connections_and_memory_alone() {
    netns::test_inside("floods_over_af_packet_leave_other_connections_and_memory_alone", || {
        let kernel = End::kernel("kernel0", &["10.77.0.2/16"]);
        netns::veth(1500, [End::silent("stack0"), kernel]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        // The kernel reassembles fragments for the driver's group of sockets, so none would get through.
        all(&open(device), "kernel0", |flood| !matches!(flood, Flood::Fragment));
    });
}

#[test]
fn floods_over_tap_leave_other_connections_and_memory_alone() {
    netns::test_inside("floods_over_tap_leave_other_connections_and_memory_alone", || {
        let context = open(DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None });
        End::kernel("tap0", &["10.77.0.2/16"]).bring_up().expect("an address on the tap");
        all(&context, "tap0", |_| true);
    });
}

fn open(device: DeviceConfig) -> Context {
    let config = Config::new(device, "10.77.0.1/16").expect("a good address").without_monitor();
    Context::open(uwarp_middlebox::behind(config)).expect("the context opens")
}

/// Two rounds of those floods.
fn all(context: &Context, interface: &'static str, wanted: fn(&Flood) -> bool) {
    // A first attempt tells the kernel where the stack is.
    assert!(flows::kernel_connects(context.socket_address(9)).is_err());
    let line = Line {
        interface,
        kernel_mac: mac_in(&["-o", "link", "show", interface], "link/ether "),
        stack_mac: mac_in(&["neigh", "show", "10.77.0.1"], "lladdr "),
        kernel_port: AtomicU16::new(1),
    };
    let mut resident = [0; 2];
    for resident in &mut resident {
        for flood in ALL.into_iter().filter(wanted) {
            beside(context, &line, flood);
        }
        *resident = resident_octets();
    }
    assert!(resident[1] < resident[0] + GROWTH, "octets of the process after each round: {resident:?}");
    let stats = &context.stats().engines[0];
    println!("{:?}, {} cookies, {resident:?} octets", stats.drops, stats.counters.cookies_sent);
    // Each of the floods has reached its target.
    assert!(stats.counters.cookies_sent > 1000);
    for (flood, name) in [
        (Flood::Acknowledgment, "no-connection"),
        (Flood::Reset, "bad-state"),
        (Flood::Fragment, "fragment"),
        (Flood::Icmp, "icmp-forged"),
    ] {
        let seen = stats.drops.get(name).copied().unwrap_or(0);
        assert!(!wanted(&flood) || seen > 1000, "{flood:?}: {:?}", stats.drops);
    }
}

/// A connection of the kernel's. It fails as soon as three ARP requests for our hardware address were lost, which
/// happens if the flood fills the device's queue: then retry.
fn connect(to: SocketAddr) -> io::Result<std::net::TcpStream> {
    let start = Instant::now();
    loop {
        match flows::kernel_connects(to) {
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable && start.elapsed() < PATIENCE => {
                eprintln!("the kernel has not found the stack: {error}");
            }
            connected => return connected,
        }
    }
}

/// Sets the flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A stream from the stack to the kernel, compared octet by octet.
fn to_the_kernel(stack: &mut uwarp::TcpStream, kernel: &mut std::net::TcpStream, seed: u64) {
    thread::scope(|scope| {
        let reader = scope.spawn(|| flows::receive_exactly(kernel, OCTETS));
        let written = flows::send(stack, seed, OCTETS).expect("from the stack");
        assert_eq!(written, reader.join().unwrap().expect("to the kernel"));
    });
}

/// A connection that is opened and used during a flood.
fn beside(context: &Context, line: &Line, flood: Flood) {
    // What a flood of SYNs has left half open goes with its listener. Otherwise the next connection would need a
    // cookie, and the flood of acknowledgments, half of them in the kernel's name, shuts out cookies from there.
    let mut listener = TcpListener::bind(context, PORT).expect("a free port");
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let seeds = [0, 1].map(|round| flood as u64 * 2 + round);
    thread::scope(|scope| {
        // The scope waits for the attacker, even if something fails.
        let _end = Ends(&over);
        let attacker = scope.spawn(|| line.flood(flood, &over, &sent));
        while sent.load(Relaxed) < FRAMES / 10 {
            thread::sleep(Duration::from_millis(1));
        }
        // The client sends first. A cookie may have answered its SYN; if the client were silent after that, its
        // connection would be lost once the flood has displaced its one acknowledgment (RFC 4987 §3.6).
        let client = scope.spawn(|| {
            let mut kernel = connect(context.socket_address(PORT))?;
            let sent = flows::send(&mut kernel, seeds[0], OCTETS)?;
            io::Result::Ok((kernel, sent))
        });
        let accepted = listener.accept_timeout(PATIENCE).expect("the listener works");
        let (mut stack, peer) = accepted.unwrap_or_else(|| panic!("{flood:?}: {:#?}", context.stats()));
        line.kernel_port.store(peer.port(), Relaxed);
        stack.set_read_timeout(Some(PATIENCE));
        stack.set_write_timeout(Some(PATIENCE));
        let received = flows::receive_exactly(&mut stack, OCTETS).expect("to the stack");
        let (mut kernel, sent) = client.join().unwrap().expect("the stack answers");
        assert_eq!(received, sent, "{flood:?}");
        to_the_kernel(&mut stack, &mut kernel, !seeds[0]);
        let writer = scope.spawn({
            let mut kernel = kernel.try_clone().expect("a second handle");
            move || flows::send(&mut kernel, seeds[1], OCTETS)
        });
        let received = flows::receive_exactly(&mut stack, OCTETS).expect("to the stack");
        assert_eq!(received, writer.join().unwrap().expect("from the kernel"), "{flood:?}");
        to_the_kernel(&mut stack, &mut kernel, !seeds[1]);
        over.store(true, Relaxed);
        attacker.join().unwrap();
        // It is the same connection to the end, whatever was forged about it.
        drop(stack);
        assert_eq!(flows::receive(&mut kernel).expect("an orderly end").octets, 0);
    });
    let stats = &context.stats().engines[0];
    assert!(stats.flows <= MOST_HALF_OPEN + 100, "{flood:?}: {} connections", stats.flows);
    assert!(stats.neighbours <= MOST_NEIGHBOURS, "{flood:?}: {} neighbours", stats.neighbours);
    assert!(stats.fragment_octets <= MOST_OF_FRAGMENTS, "{flood:?}: {} octets of fragments", stats.fragment_octets);
    println!("{flood:?}: {} frames beside {} MiB", sent.load(Relaxed), (4 * OCTETS) >> 20);
}

/// The hardware address behind `mark` in the output of `ip`.
fn mac_in(arguments: &[&str], mark: &str) -> EthernetAddress {
    let output = Command::new("ip").args(arguments).output().expect("ip is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, behind) = text.split_once(mark).unwrap_or_else(|| panic!("ip {arguments:?}: {text}"));
    let mut octets = behind.split([':', ' ']).map(|octet| u8::from_str_radix(octet, 16).expect("hexadecimal"));
    EthernetAddress(std::array::from_fn(|_| octets.next().expect("six octets")))
}

/// Resident memory of this process, as the system counts it.
fn resident_octets() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("the system's account");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of it");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}
