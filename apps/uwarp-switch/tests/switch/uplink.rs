//! A switch that joins its clients to other hosts, and a host whose frames are made by hand.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use tempfile::TempDir;
use uwarp::{Config, ConnectError, ConnectOptions, Context, DeviceConfig, Error, ListenOptions};
use uwarp_dpdk::{Eal, EalConfig, Mbuf, Port, PortOptions, Queue};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, exchange};
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, prepend_tcp};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use crate::rig::{LENGTH, REGION, Switch, config, is_peer, server, wait_for};

const SHARED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const HOST_MAC: [u8; 6] = [2, 0x77, 0, 0, 0, 1];

/// A switch whose uplink is a vhost device, and the path of that.
fn joined() -> (Switch, TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("uplink").to_str().unwrap().to_owned();
    let switch = Switch::start_with(&["--uplink", &format!("vhost,socket={socket}")]);
    (switch, directory, socket)
}

/// A station of the uplink's network, which sends what it likes.
struct Stranger {
    queue: Queue,
    uplink: [u8; 6],
    _port: Port,
}

impl Stranger {
    fn join(switch: &Switch, socket: &str) -> Stranger {
        let eal = Eal::get().map_or_else(|| Eal::init(&EalConfig { memory_mib: 384, ..EalConfig::default() }), Ok);
        let device = DeviceConfig::VirtioUser {
            socket: socket.into(),
            server: false,
            packed: false,
            queue_size: None,
            mac: Some("02:77:00:00:00:01".into()),
        };
        let port = Port::open(&eal.unwrap(), &device, &PortOptions::default()).unwrap();
        port.wait_link_up(PATIENCE).unwrap();
        let uplink = switch.status().uplink.expect("it has an uplink").mac.0;
        wait_for("the link", || switch.status().uplink.is_some_and(|uplink| uplink.up));
        Stranger { queue: port.take_queue(0).unwrap(), uplink, _port: port }
    }

    fn send(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let mut packet = self.queue.alloc().expect("a buffer");
        let start = packet.start();
        let length = write(&mut packet.storage_mut().expect("it is ours alone")[start..]);
        assert!(packet.set_range(start, length));
        let mut packets = VecDeque::from([packet]);
        wait_for("room in the ring", || self.queue.tx_burst::<Mbuf>(&mut packets) == 1);
    }

    /// A segment from an address to the shared one.
    fn send_segment(&mut self, source: IpAddr, to: u16) {
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.source_port, header.destination_port, header.acknowledgment) = (9, to, SeqNumber(77));
        let path = Path::new(EthernetAddress(HOST_MAC), EthernetAddress(self.uplink), source.into(), SHARED.into());
        self.send(|room| {
            let mut frame = [0; 128];
            let length =
                prepend_tcp(&mut frame, &path, &header, 0, 0, TcpChecksum::Full { payload_sum: 0 }).expect("room");
            room[..length].copy_from_slice(&frame[128 - length..]);
            length
        });
    }

    /// Waits for a frame for which `wanted` gives something.
    fn receive<T>(&mut self, what: &str, wanted: impl Fn(&Frame<'_>) -> Option<T>) -> T {
        let mut found = None;
        wait_for(what, || {
            let mut received = Vec::with_capacity(32);
            self.queue.rx_burst(&mut received);
            for packet in &received {
                let frame = classify(packet.data(), packet.total_len()).expect("the switch makes no broken frames");
                found = found.take().or_else(|| wanted(&frame));
            }
            found.is_some()
        });
        found.expect("it was waited for")
    }
}

#[test]
fn hostile_frames_from_the_uplink_go_nowhere_and_are_counted() {
    let (switch, _directory, socket) = joined();
    let victim = Context::open(config(&switch.socket)).unwrap();
    let _listener = victim.listen(PORT, ListenOptions::default()).unwrap();
    let mut stranger = Stranger::join(&switch, &socket);
    for _ in 0..3 {
        stranger.send_segment(SHARED, PORT);
    }
    for _ in 0..4 {
        let liar = ArpPacket::announcement(EthernetAddress(HOST_MAC), Ipv4Addr::new(10, 0, 0, 1));
        stranger.send(|room| liar.emit_frame(room).unwrap());
    }
    let unasked = ArpPacket::request(EthernetAddress(stranger.uplink), [10, 0, 0, 1].into(), [10, 0, 0, 9].into());
    let unasked = unasked.reply(EthernetAddress(HOST_MAC));
    for _ in 0..5 {
        stranger.send(|room| unasked.emit_frame(room).unwrap());
    }
    // One that is right, to a port that nobody owns, and a question.
    stranger.send_segment(HOST, PORT + 1);
    let sequence = stranger.receive("the reset", |frame| match frame {
        Frame::Tcp(segment) if segment.header.flags.contains(TcpFlags::RST) => Some(segment.header.sequence),
        _ => None,
    });
    assert_eq!(sequence, SeqNumber(77));
    let question = ArpPacket::request(EthernetAddress(HOST_MAC), [10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    stranger.send(|room| question.emit_frame(room).unwrap());
    let answer = stranger.receive("the answer to ARP", |frame| match frame {
        Frame::Arp(arp) if arp.destination_mac.0 == HOST_MAC => Some(arp.packet),
        _ => None,
    });
    assert_eq!(answer, question.reply(EthernetAddress(stranger.uplink)));
    let status = switch.status();
    let uplink = status.uplink.expect("it has an uplink");
    let drops: Vec<_> = uplink.drops.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    assert_eq!(drops, [("source-address", 7), ("unasked", 5)]);
    assert_eq!((uplink.received, uplink.answered), (14, 2));
    assert_eq!((status.clients.len(), status.clients[0].sent), (1, 0), "{:?}", status.clients);
}

#[test]
fn a_host_that_floods_the_uplink_holds_up_no_client() {
    const NAME: &str = "uplink::a_host_that_floods_the_uplink_holds_up_no_client";
    if is_peer() {
        return;
    }
    let (switch, _directory, socket) = joined();
    let server = server(NAME, &switch);
    let mut stranger = Stranger::join(&switch, &socket);
    let context = Context::open(config(&switch.socket)).unwrap();
    let mut endpoint = Endpoint::new(&context, REGION);
    endpoint.connect(&context);
    for round in 0..4 {
        for _ in 0..1000 {
            stranger.send_segment(HOST, PORT + 1);
        }
        exchange(&mut endpoint, round, LENGTH);
        assert_eq!(server.told(), "answered");
    }
}

#[test]
fn a_program_connects_to_a_program_of_another_host() {
    let (switch, _directory, socket) = joined();
    let device = DeviceConfig::VirtioUser {
        socket: socket.into(),
        server: false,
        packed: false,
        queue_size: None,
        mac: Some("02:77:00:00:00:01".into()),
    };
    let mut plain = Config::new(device, "10.0.0.2/24").unwrap().without_monitor();
    plain.more_addresses = vec!["fd00::2/64".parse().unwrap()];
    let beyond = Context::open(plain).unwrap();
    let context = Context::open(config(&switch.socket)).unwrap();
    wait_for("the link", || switch.status().uplink.is_some_and(|uplink| uplink.up));
    for address in ["10.0.0.2", "fd00::2", "10.0.0.1", "fd00::1"] {
        // Each side is the server once for each version of IP.
        let within = address.ends_with('1');
        let (there, here) = if within { (&context, &beyond) } else { (&beyond, &context) };
        let mut listener = there.listen(PORT, ListenOptions::default()).unwrap();
        let [mut server, mut client] = [there, here].map(|context| Endpoint::new(context, REGION));
        uwarp_vdev_tests::endpoint::prepare_answer(&mut server);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                server.accept(there, &mut listener);
                uwarp_vdev_tests::endpoint::answer(&mut server, LENGTH);
            });
            crate::rig::connect_to(&mut client, here, (address.parse::<IpAddr>().unwrap(), PORT).into());
            exchange(&mut client, 3, LENGTH);
        });
    }
    // Nobody is there, or nobody listens.
    let refused = |peer: &str| {
        let mut endpoint = Endpoint::new(&context, REGION);
        match context.connect(
            &mut endpoint.queue_pair.control,
            peer.parse().unwrap(),
            ConnectOptions::default().timeout(PATIENCE),
        ) {
            Err(Error::Connect { reason, .. }) => reason,
            other => panic!("{peer}: {other:?}"),
        }
    };
    assert!(matches!(refused("10.0.0.2:7999"), ConnectError::Refused));
    assert!(matches!(refused("10.0.0.77:7471"), ConnectError::Unreachable));
    let status = switch.status();
    let uplink = status.uplink.expect("it has an uplink");
    // A host that asks twice is answered twice, and the second answer is unasked by then. The ring of a host that gets
    // no CPU for a while is full.
    let is_clean = uplink.drops.keys().all(|reason| ["unasked", "ring-full"].contains(&reason.as_str()));
    assert!(uplink.received > 0 && uplink.sent > 0 && is_clean, "{uplink:?}");
    assert!(status.clients[0].drops.is_empty(), "{:?}", status.clients);
    drop(beyond);
    wait_for("the end of the link", || switch.status().uplink.is_some_and(|uplink| !uplink.up));
}

#[test]
fn an_uplink_that_cannot_be_is_an_error_that_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let refused = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-switch"));
        let output = command.arg("serve").arg("--socket").arg(&socket).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let address = ["--address", "10.0.0.1/24"];
    for (arguments, part) in [
        (vec!["--uplink", "tap,name=t"], "--address"),
        (vec!["--gateway", "10.0.0.9", address[0], address[1]], "--uplink"),
        (vec!["--uplink", "tap", address[0], address[1]], "missing field `name`"),
        (vec!["--uplink", "af-packet,interface=none9", address[0], address[1]], "no network interface none9"),
        (vec!["--uplink", "tap,name=t", address[0], address[1], "--gateway", "10.1.0.9"], "outside of the subnet"),
        (
            vec!["--uplink", "tap,name=t", address[0], address[1], "--gateway", "10.0.0.8", "--gateway", "10.0.0.9"],
            "the second one of its version",
        ),
    ] {
        let error = refused(&arguments);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}
