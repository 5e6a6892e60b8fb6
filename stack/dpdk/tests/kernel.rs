//! Devices with the Linux kernel at one end or in between. Most of it needs root; everything happens in network
//! namespaces of the tests.

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

use common::{PATIENCE, contents, eal, exchange, fill, open, options, receive, send, sizes, whole};
use uwarp_dpdk::{DeviceConfig, Error, Port, TxChecksum};
use uwarp_netns::{self as netns, End, Namespace};

/// A namespace of the test's own; `None`, and a note, for an ordinary user.
fn namespace() -> Option<Namespace> {
    if uwarp_notes::lacks_root("a network namespace") {
        return None;
    }
    Some(Namespace::new("dpdk").expect("a kernel with network namespaces"))
}

fn af_packet(namespace: &Namespace, interface: &str) -> DeviceConfig {
    DeviceConfig::AfPacket {
        interface: interface.to_owned(),
        netns: Some(namespace.name().to_owned()),
        frame_count: None,
    }
}

fn veth(mtu: u16) {
    let Some(namespace) = namespace() else { return };
    netns::veth(mtu, ["uwa", "uwb"].map(|end| End::silent(end).of(&namespace))).expect("a veth pair");
    let eal = eal();
    let left = open(&eal, &af_packet(&namespace, "uwa"), &options(mtu));
    let right = open(&eal, &af_packet(&namespace, "uwb"), &options(mtu));
    let (mut a, mut b) = common::connect(&left, &right);
    assert_ne!(left.capabilities().mac, right.capabilities().mac);
    exchange(&mut a, &mut b, sizes(mtu).step_by(3));
    if mtu == 1500 {
        match Port::open(&eal, &af_packet(&namespace, "uwa"), &options(9000)) {
            Err(error @ Error::Configuration(_)) => {
                assert!(error.to_string().contains("ip link set dev uwa mtu 9000"), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn af_packet_1500() {
    veth(1500);
}

#[test]
fn af_packet_9000() {
    veth(9000);
}

/// The sum of RFC 1071 over 16-bit words.
fn checksum(octets: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in octets.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An Ethernet, IPv4 and UDP frame from 10.77.0.2 port 7 to 10.77.0.1 port `port`.
fn udp_frame(destination: [u8; 6], source: [u8; 6], port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&destination[..], &source[..], &[0x08, 0x00]].concat();
    let length = 28 + payload.len() as u16;
    let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1];
    header[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(&header, 0);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend(7u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend((length - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn tap(mtu: u16) {
    let Some(namespace) = namespace() else { return };
    let eal = eal();
    let device = DeviceConfig::Tap { name: "uwtap".to_owned(), mac: None, netns: Some(namespace.name().to_owned()) };
    let port = open(&eal, &device, &options(mtu));
    namespace.ip(&["addr", "add", "10.77.0.1/24", "dev", "uwtap"]).unwrap();
    namespace.ip(&["link", "set", "uwtap", "up"]).unwrap();
    let hardware = namespace.inside(|| {
        let output = Command::new("ip").args(["-o", "link", "show", "uwtap"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let hardware = hardware.unwrap();
    assert!(hardware.contains(&format!("mtu {mtu} ")), "{hardware}");
    // The kernel's end has an address of its own, which frames to it carry.
    let text = hardware.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
    let mut kernel = [0; 6];
    for (octet, part) in kernel.iter_mut().zip(text.split(':')) {
        *octet = u8::from_str_radix(part, 16).unwrap();
    }
    let own = [2, 0, 0, 0, 0, 9];
    namespace.ip(&["neigh", "replace", "10.77.0.2", "lladdr", "02:00:00:00:00:09", "dev", "uwtap"]).unwrap();
    let socket = namespace.inside(|| UdpSocket::bind((Ipv4Addr::new(10, 77, 0, 1), 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let kernel_port = socket.local_addr().unwrap().port();
    let mut queue = port.take_queue(0).unwrap();
    port.wait_link_up(PATIENCE).unwrap();

    for size in [18, 100, 500, usize::from(mtu) - 28] {
        let payload = contents(size.max(18), size as u64);
        let mut mbuf = queue.alloc().unwrap();
        let frame = udp_frame(kernel, own, kernel_port, &payload);
        fill(&mut mbuf, &frame);
        if port.capabilities().tx_ipv4_checksum {
            assert!(mbuf.set_tx_checksum(TxChecksum { l2_len: 14, l3_len: 20, ip: true, ..TxChecksum::default() }));
        }
        // Sent twice, as a segment that is lost: what a device has sent is still the same frame.
        let again = mbuf.share();
        send(&mut queue, mbuf);
        assert_eq!(whole(&again), frame);
        send(&mut queue, again);
        let mut got = vec![0; 10_000];
        let (len, from) = socket.recv_from(&mut got).unwrap();
        assert_eq!(&got[..len], &payload[..], "to the kernel");
        assert_eq!(from.to_string(), "10.77.0.2:7");
        assert_eq!(socket.recv_from(&mut got).unwrap(), (len, from), "once more");
        assert_eq!(&got[..len], &payload[..], "once more");

        // Back, behind 14 + 20 + 8 octets of headers. The kernel sends other frames, too.
        socket.send_to(&payload, from).unwrap();
        let start = std::time::Instant::now();
        let mut frames = Vec::with_capacity(8);
        loop {
            queue.rx_burst(&mut frames);
            if let Some(frame) =
                frames.drain(..).map(|mbuf| whole(&mbuf)).find(|frame| frame[12..14] == [8, 0] && frame[23] == 17)
            {
                assert_eq!(&frame[42..42 + payload.len()], &payload[..], "from the kernel");
                break;
            }
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn tap_1500() {
    tap(1500);
}

#[test]
fn tap_576() {
    tap(576);
}

#[test]
fn tap_9000_is_refused() {
    let device = DeviceConfig::Tap { name: "uwtap".to_owned(), mac: None, netns: None };
    match Port::open(&eal(), &device, &options(9000)) {
        Err(error @ Error::Unsupported { .. }) => assert!(error.to_string().contains("1500 at most"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tap_goes_and_comes_again() {
    let Some(namespace) = namespace() else { return };
    let eal = eal();
    for _ in 0..3 {
        let device = DeviceConfig::Tap {
            name: "uwtap".to_owned(),
            mac: Some("02:00:00:00:00:05".to_owned()),
            netns: Some(namespace.name().to_owned()),
        };
        let port = open(&eal, &device, &options(1500));
        // A program that is started while the port is open inherits none of it.
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        drop(port);
        let gone = namespace.ip(&["link", "show", "uwtap"]).is_err();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(gone, "the interface goes with the port");
    }
    for pool in eal.unused_pools() {
        assert_eq!(pool.free, pool.total);
    }
}

#[test]
fn the_kernel_bridges_two_ports() {
    let Some(namespace) = namespace() else { return };
    let eal = eal();
    let device =
        |name: &str| DeviceConfig::Tap { name: name.to_owned(), mac: None, netns: Some(namespace.name().to_owned()) };
    let (left, right) = (open(&eal, &device("uwl"), &options(1500)), open(&eal, &device("uwr"), &options(1500)));
    namespace.ip(&["link", "add", "uwbr", "type", "bridge"]).expect("a kernel with bridges (CONFIG_BRIDGE)");
    for name in ["uwl", "uwr"] {
        namespace.ip(&["link", "set", name, "master", "uwbr", "up"]).unwrap();
    }
    namespace.ip(&["link", "set", "uwbr", "up"]).unwrap();
    let (mut a, mut b) = common::connect(&left, &right);
    let mut mbuf = a.alloc().unwrap();
    fill(&mut mbuf, &contents(200, 1));
    send(&mut a, mbuf);
    assert_eq!(whole(&receive(&mut b, &mut || {})), contents(200, 1));
}

/// The driver computes a fanout group's number as process number XOR interface index, in 16 bits.
#[test]
fn a_fanout_group_that_is_taken_is_named() {
    let Some(namespace) = namespace() else { return };
    for (interface, index, peer) in [("uwa", "10", "uwap"), ("uwb", "65546", "uwbp")] {
        namespace.ip(&["link", "add", interface, "index", index, "type", "veth", "peer", "name", peer]).unwrap();
        namespace.ip(&["link", "set", interface, "up"]).unwrap();
    }
    let eal = eal();
    let _first = open(&eal, &af_packet(&namespace, "uwa"), &options(1500));
    match Port::open(&eal, &af_packet(&namespace, "uwb"), &options(1500)) {
        Err(error) => assert!(error.to_string().contains("index far from"), "{error}"),
        Ok(_) => panic!("two interfaces share a group"),
    }
}
