//! The kernel as neighbour: it resolves the stack by ARP and Neighbor Discovery, pings it, gets ICMP errors for its
//! datagrams, and respects address conflicts. The stack does the same with the kernel.

use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use uwarp::{AsyncEvent, Config, Context, DeviceConfig};
use uwarp_interop_tests::echo::Echo;
use uwarp_interop_tests::stack::PATIENCE;
use uwarp_netns::{self as netns, End};

const STACK: [&str; 2] = ["10.77.0.1", "fd77::1"];
const KERNEL: [&str; 2] = ["10.77.0.2", "fd77::2"];

fn open(device: DeviceConfig) -> Context {
    let config = Config::new(device, "10.77.0.1/24").expect("a good address").without_monitor();
    let config = config.another_address("fd77::1/64".parse().expect("a good address"));
    Context::open(uwarp_middlebox::behind(config)).expect("the context opens")
}

#[test]
fn the_kernel_knows_and_pings_the_stack_over_af_packet() {
    netns::test_inside("the_kernel_knows_and_pings_the_stack_over_af_packet", || {
        let kernel = End::kernel("kernel0", &["10.77.0.2/24", "fd77::2/64"]);
        netns::veth(1500, [End::silent("stack0"), kernel]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        every_question(&open(device), "kernel0");
    });
}

#[test]
fn the_kernel_knows_and_pings_the_stack_over_tap() {
    netns::test_inside("the_kernel_knows_and_pings_the_stack_over_tap", || {
        let context = open(DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None });
        End::kernel("tap0", &["10.77.0.2/24", "fd77::2/64"]).bring_up().expect("addresses on the tap");
        every_question(&context, "tap0");
    });
}

/// The output of `ip` with these arguments.
fn ip_shows(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output().expect("ip is there");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn every_question(context: &Context, interface: &str) {
    for (stack, kernel) in STACK.into_iter().zip(KERNEL) {
        let address: IpAddr = stack.parse().expect("an address");
        let mut echo = Echo::to(address).expect("a socket for echoes");
        echo.until_answered().expect("the stack answers");
        for size in [0, 1, 1400] {
            echo.once(size).expect("the stack answers with the same octets");
        }
        // The kernel has received an answer to its own request: it has not only heard of the address.
        let known = ip_shows(&["neigh", "show", stack, "dev", interface]);
        assert!(known.contains("REACHABLE") || known.contains("DELAY"), "{known:?}");
        nobody_takes_a_datagram(address);
        // The stack's own request was answered, too, or it could not have sent anything.
        let stats = context.stats();
        assert!(stats.engines[0].neighbours >= 1, "{kernel}: {stats:?}");
    }
    // Through the other address the link-local one is known: the kernel has one, too.
    let own = context.stats();
    assert_eq!(own.engines[0].counters.address_conflicts, 0);
    assert!(own.engines[0].counters.echoes >= 8 && own.engines[0].counters.icmp_errors_sent >= 2, "{own:?}");
}

/// A datagram to a port without a socket: the kernel delivers the ICMP error to the sender.
fn nobody_takes_a_datagram(address: IpAddr) {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).expect("a socket");
    socket.connect((address, 9)).expect("an address");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    socket.send(b"is anybody there?").expect("sent");
    let error = socket.recv(&mut [0; 64]).expect_err("nobody is");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "port unreachable");
}

#[test]
fn an_address_is_used_by_who_had_it_first() {
    netns::test_inside("an_address_is_used_by_who_had_it_first", || {
        // fd77::1 is the kernel's before the stack requests it.
        let kernel = End::kernel("kernel0", &["fd77::1/64", "fd78::2/64"]);
        netns::veth(1500, [End::silent("stack0"), kernel]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        let config = Config::new(device, "fd78::1/64").expect("a good address").without_monitor();
        let config = config.another_address("fd77::1/64".parse().expect("a good address"));
        let context = Context::open(uwarp_middlebox::behind(config)).expect("the context opens");
        let events = context.events();
        let end = Instant::now() + PATIENCE;
        let lost = loop {
            let event = events.wait(PATIENCE).expect("the context works");
            let event = event.expect("the stack is told that fd77::1 is the kernel's");
            if let AsyncEvent::AddressConflict { address } = event {
                break address;
            }
        };
        assert_eq!(lost, "fd77::1".parse::<IpAddr>().expect("an address"));
        let mut echo = Echo::to("fd78::1".parse().expect("an address")).expect("a socket");
        echo.until_answered().expect("its other address is the stack's");

        // Now the kernel requests an address of the stack's: it must detect the conflict (RFC 4862 §5.4.4).
        netns::ip(["addr", "add", "fd78::1/64", "dev", "kernel0"]).expect("an address to be checked");
        loop {
            assert!(Instant::now() < end + PATIENCE, "the kernel learns that fd78::1 is the stack's");
            let shown = ip_shows(&["-6", "addr", "show", "dev", "kernel0"]);
            if shown.contains("dadfailed") {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}
