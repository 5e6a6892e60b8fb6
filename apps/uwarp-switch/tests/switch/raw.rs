//! Clients without an engine, whose frames are made by hand.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use uwarp::switch::protocol::{Answer, Request, VERSION, Welcome, connect, receive, send};
use uwarp::{Context, DeviceConfig};
use uwarp_dpdk::{Eal, EalConfig, Mbuf, Port, PortOptions, Queue};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, exchange};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path as Route, TcpChecksum, classify, prepend_tcp};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use crate::rig::{LENGTH, REGION, Role, Switch, Task, config, is_peer, server, wait_for};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// A client that sends what it likes.
pub struct Raw {
    queue: Queue,
    welcome: Welcome,
    _port: Port,
    _device: OwnedFd,
    _socket: OwnedFd,
}

/// Takes a place: its connection, and the socket of its device.
pub fn join(socket: &Path) -> (OwnedFd, Welcome, OwnedFd) {
    let socket = connect(socket).unwrap();
    send(&socket, &Request::Join { version: VERSION, program: "raw".to_owned() }, None).unwrap();
    let Some((Answer::Welcome(welcome), Some(device))) = receive(&socket).unwrap() else { panic!("no place") };
    (socket, welcome, device)
}

impl Raw {
    /// Takes a place, with its device.
    pub fn join(socket: &Path) -> Raw {
        let (socket, welcome, device) = join(socket);
        let eal = Eal::get().map_or_else(|| Eal::init(&EalConfig { memory_mib: 384, ..EalConfig::default() }), Ok);
        let config = DeviceConfig::VirtioUser {
            socket: format!("/proc/self/fd/{}", device.as_raw_fd()).into(),
            server: false,
            packed: false,
            queue_size: None,
            mac: Some(welcome.mac.to_string()),
        };
        let port = Port::open(&eal.unwrap(), &config, &PortOptions::default()).unwrap();
        port.wait_link_up(PATIENCE).unwrap();
        Raw { queue: port.take_queue(0).unwrap(), welcome, _port: port, _device: device, _socket: socket }
    }

    /// Its ports, first and last.
    pub fn ports(&self) -> (u16, u16) {
        self.welcome.ports
    }

    /// Forgets what has come.
    pub fn discard(&mut self) {
        let mut received = Vec::with_capacity(32);
        while self.queue.rx_burst(&mut received) > 0 {
            received.clear();
        }
    }

    /// Fills the eventfd that the switch writes to, so that a write waits, and has the switch write.
    pub fn fill_call(&mut self) {
        assert!(self.queue.enable_wakeups());
        let (_, call) = self.queue.wakeup_descriptors();
        let call = call.expect("the switch is there");
        let flags = fcntl_getfl(call).unwrap();
        fcntl_setfl(call, flags | OFlags::NONBLOCK).unwrap();
        let _ = rustix::io::read(call, &mut [0; 8]);
        rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(call, flags - OFlags::NONBLOCK).unwrap();
        // To a port that nobody owns: each is answered.
        for _ in 0..20 {
            self.send(PORT - 1, |_, _, _| {});
        }
    }

    /// An acknowledgment of its own, before `edit` makes it another's.
    fn send(&mut self, to: u16, edit: impl FnOnce(&mut [u8; 6], &mut IpAddr, &mut u16)) {
        self.send_segment(TcpFlags::ACK, 0, to, edit);
    }

    /// A segment of its own, before `edit` makes it another's.
    pub fn send_segment(
        &mut self,
        flags: TcpFlags,
        sequence: u32,
        to: u16,
        edit: impl FnOnce(&mut [u8; 6], &mut IpAddr, &mut u16),
    ) {
        let (mut mac, mut source, mut port) = (self.welcome.mac.0, HOST, self.welcome.ports.0);
        edit(&mut mac, &mut source, &mut port);
        let mut header = TcpHeader::new(flags);
        (header.source_port, header.destination_port) = (port, to);
        header.sequence = SeqNumber(sequence);
        header.acknowledgment = SeqNumber(77);
        let switch = EthernetAddress(self.welcome.switch_mac.0);
        let route = Route::new(EthernetAddress(mac), switch, source.into(), HOST.into());
        let mut packet = self.queue.alloc().expect("a buffer");
        let start = packet.start();
        let storage = packet.storage_mut().expect("it is ours alone");
        let length = prepend_tcp(&mut storage[..start], &route, &header, 0, 0, TcpChecksum::Full { payload_sum: 0 });
        let length = length.unwrap();
        assert!(packet.set_range(start - length, length));
        let mut packets = VecDeque::from([packet]);
        wait_for("room in the ring", || self.queue.tx_burst::<Mbuf>(&mut packets) == 1);
    }
}

#[test]
fn frames_in_anothers_name_go_nowhere_and_are_counted() {
    let switch = Switch::start();
    let victim = Context::open(config(&switch.socket)).unwrap();
    let _listener = victim.listen(PORT, uwarp::ListenOptions::default()).unwrap();
    let mut raw = Raw::join(&switch.socket);
    let place = raw.welcome.place;
    for _ in 0..3 {
        raw.send(PORT, |mac, _, _| mac[5] ^= 1);
    }
    for _ in 0..4 {
        raw.send(PORT, |_, address, _| *address = "10.0.0.9".parse().unwrap());
    }
    for _ in 0..5 {
        raw.send(PORT, |_, _, port| *port = PORT);
    }
    // And one that is right, to a port that nobody owns.
    raw.send(PORT + 1, |_, _, _| {});
    let mut received = Vec::with_capacity(32);
    wait_for("the reset", || raw.queue.rx_burst(&mut received) > 0);
    let Ok(Frame::Tcp(reset)) = classify(received[0].data(), received[0].total_len()) else { panic!("no segment") };
    assert!(reset.header.flags.contains(TcpFlags::RST) && reset.header.sequence == SeqNumber(77));
    let status = switch.status();
    let own = status.clients.iter().find(|client| client.place == place).unwrap();
    let drops: Vec<_> = own.drops.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    assert_eq!(drops, [("source-address", 4), ("source-mac", 3), ("source-port", 5)]);
    assert_eq!((own.received, own.answered), (13, 1));
    // What the victim was given, it was not given by this one.
    let other = status.clients.iter().find(|client| client.place != place).unwrap();
    assert_eq!(other.sent, other.answered, "{other:?}");
}

#[test]
fn a_program_that_does_not_read_holds_up_nobody() {
    const NAME: &str = "raw::a_program_that_does_not_read_holds_up_nobody";
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    let server = server(NAME, &switch);
    let deaf = Raw::join(&switch.socket);
    let mut speaker = Raw::join(&switch.socket);
    let context = Context::open(config(&switch.socket)).unwrap();
    let mut endpoint = Endpoint::new(&context, REGION);
    endpoint.connect(&context);
    let to = deaf.welcome.ports.0;
    for round in 0..4 {
        // More than the rings of both and all buffers of the switch.
        for _ in 0..1000 {
            speaker.send(to, |_, _, _| {});
        }
        exchange(&mut endpoint, round, LENGTH);
        assert_eq!(server.told(), "answered");
    }
    let place = deaf.welcome.place;
    let dropped = || {
        let status = switch.status();
        let own = status.clients.iter().find(|client| client.place == place).expect("it is there");
        (own.sent, own.drops.get("ring-full").copied().unwrap_or(0))
    };
    wait_for("the last frame", || dropped().0 + dropped().1 >= 4000);
    let (sent, dropped) = dropped();
    assert!(sent < 4000 && sent + dropped == 4000, "{sent} sent, {dropped} dropped");
}

/// What [`Role::Truncator`] does.
pub fn truncate(socket: &Path) {
    let words = peer::words();
    let raw = Raw::join(socket);
    peer::tell("ready");
    words.recv().expect("the test says when");
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let is_memory = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"));
        if is_memory && let Ok(file) = std::fs::File::options().write(true).open(entry.path()) {
            file.set_len(0).unwrap();
        }
    }
    peer::tell("truncated");
    // Closing its device would be its own end.
    std::mem::forget(raw);
    let _ = words.recv();
}

#[test]
fn a_program_that_truncates_its_memory_loses_its_place_and_harms_nobody() {
    const NAME: &str = "raw::a_program_that_truncates_its_memory_loses_its_place_and_harms_nobody";
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    // Before this process has such memory, whose descriptors it would inherit.
    let task = Task { role: Role::Truncator, socket: switch.socket.clone(), port: 0 };
    let mut truncator = Peer::start(NAME, &task);
    assert_eq!(truncator.told(), "ready");
    let server = server(NAME, &switch);
    let context = Context::open(config(&switch.socket)).unwrap();
    let mut endpoint = Endpoint::new(&context, REGION);
    endpoint.connect(&context);
    assert_eq!(switch.status().clients.len(), 3);
    truncator.say("go");
    assert_eq!(truncator.told(), "truncated");
    wait_for("the end of its place", || switch.status().clients.len() == 2);
    exchange(&mut endpoint, 5, LENGTH);
    assert_eq!(server.told(), "answered");
    // Killed here, unless it has met its missing memory itself.
    drop(truncator);
}

#[test]
fn places_leave_neither_descriptors_nor_ports_behind() {
    let switch = Switch::start();
    let join_and_leave = || {
        let (socket, ..) = join(&switch.socket);
        for port in [PORT, PORT + 1] {
            send(&socket, &Request::Reserve { port, address: None }, None).unwrap();
            let answer = receive::<Answer>(&socket).unwrap();
            assert!(matches!(answer, Some((Answer::Reserved, _))), "{answer:?}");
        }
        drop(socket);
        wait_for("the end of the place", || switch.status().clients.is_empty());
    };
    // DPDK keeps some descriptors from its first device on.
    join_and_leave();
    let before = switch.descriptors();
    for _ in 0..40 {
        join_and_leave();
    }
    wait_for("the descriptors of the last", || switch.descriptors() <= before);
}

#[test]
fn a_program_that_stops_amid_its_devices_set_up_holds_up_nobody() {
    // Of vhost-user: the front end's request, flags (version 1), octets that follow.
    const GET_FEATURES: [u32; 3] = [1, 1, 0];
    const SET_FEATURES: [u32; 3] = [2, 1, 8];
    let octets = |words: [u32; 3]| words.map(u32::to_ne_bytes).concat();
    let switch = Switch::start();
    for deaf in [false, true] {
        let (_socket, _, device) = join(&switch.socket);
        let mut stalled = UnixStream::connect(format!("/proc/self/fd/{}", device.as_raw_fd())).unwrap();
        stalled.write_all(&octets(if deaf { GET_FEATURES } else { SET_FEATURES })).unwrap();
        std::thread::scope(|scope| {
            if deaf {
                // Asks for answers until it is cut off, and reads none.
                scope.spawn(|| while stalled.write_all(&octets(GET_FEATURES)).is_ok() {});
            }
            let context = Context::open(config(&switch.socket)).unwrap();
            wait_for("the end of its place", || switch.status().clients.len() == 1);
            context.close().unwrap();
        });
        wait_for("the end of all places", || switch.status().clients.is_empty());
    }
}
