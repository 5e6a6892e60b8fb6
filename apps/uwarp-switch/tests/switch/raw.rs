//! Clients without an engine, whose frames are made by hand.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::path::Path;

use uwarp::Context;
use uwarp::switch::protocol::{Answer, Request, VERSION, Welcome, connect, receive, send};
use uwarp_ring::cable::{Arrival, CableEnd, LONGEST_FRAME, Owner, Owners, Plug, Side};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, exchange};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path as Route, TcpChecksum, classify, prepend_tcp};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use crate::rig::{LENGTH, REGION, Switch, config, is_peer, server, wait_for};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// A client that sends what it likes.
pub struct Raw {
    end: CableEnd,
    welcome: Welcome,
    owners: Owners,
    socket: OwnedFd,
}

/// Takes a place: its connection, its cable, and the table of ports.
pub fn join(socket: &Path) -> (OwnedFd, Welcome, Plug, OwnedFd) {
    let socket = connect(socket).unwrap();
    send(&socket, &Request::Join { version: VERSION, program: "raw".to_owned(), guest: None }, &[]).unwrap();
    let Some((Answer::Welcome(welcome), descriptors)) = receive(&socket).unwrap() else { panic!("no place") };
    let [memory, rings, hears, owners] = descriptors.try_into().unwrap();
    (socket, welcome, Plug::from_parts(Side::Second, [memory, rings, hears]), owners)
}

impl Raw {
    /// Takes a place, with its cable.
    pub fn join(socket: &Path) -> Raw {
        let (socket, welcome, plug, owners) = join(socket);
        let end = plug.connect().unwrap();
        end.receiver.attend();
        Raw { end, welcome, owners: Owners::map(owners).unwrap(), socket }
    }

    /// Its ports, first and last.
    pub fn ports(&self) -> (u16, u16) {
        self.welcome.ports
    }

    /// The next frame that has come.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; LONGEST_FRAME];
        let Arrival { length, .. } = self.end.receiver.receive(&mut frame)?;
        self.end.receiver.release();
        frame.truncate(length);
        Some(frame)
    }

    /// The cable to another client, which it has begun a connection to.
    fn cable(&self) -> (u16, CableEnd) {
        let Some((Answer::Plugged { peer, first }, descriptors)) = receive(&self.socket).unwrap() else {
            panic!("no cable")
        };
        let side = if first { Side::First } else { Side::Second };
        (peer, Plug::from_parts(side, descriptors.try_into().unwrap()).connect().unwrap())
    }

    /// Forgets what has come.
    pub fn discard(&mut self) {
        while self.receive().is_some() {}
    }

    /// Wants to be woken, and takes no wake-up: the pipe fills up.
    pub fn fill_bell(&mut self) {
        for _ in 0..100_000 {
            self.end.receiver.arm();
            // To a port that nobody owns: each is answered.
            self.send(PORT - 1, |_, _, _| {});
            self.discard();
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
        let frame = self.segment(flags, sequence, to, edit);
        wait_for("room in the cable", || self.end.sender.send(&frame, false));
        self.end.sender.wake();
    }

    /// Such a segment.
    fn segment(
        &self,
        flags: TcpFlags,
        sequence: u32,
        to: u16,
        edit: impl FnOnce(&mut [u8; 6], &mut IpAddr, &mut u16),
    ) -> Vec<u8> {
        let (mut mac, mut source, mut port) = (self.welcome.mac.0, HOST, self.welcome.ports.0);
        edit(&mut mac, &mut source, &mut port);
        let mut header = TcpHeader::new(flags);
        (header.source_port, header.destination_port) = (port, to);
        header.sequence = SeqNumber(sequence);
        header.acknowledgment = SeqNumber(77);
        let switch = EthernetAddress(self.welcome.switch_mac.0);
        let route = Route::new(EthernetAddress(mac), switch, source.into(), HOST.into());
        let mut frame = [0; 128];
        let length = prepend_tcp(&mut frame, &route, &header, 0, 0, TcpChecksum::Full { payload_sum: 0 }).unwrap();
        frame[128 - length..].to_vec()
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
    let mut received = None;
    wait_for("the reset", || {
        received = raw.receive();
        received.is_some()
    });
    let received = received.unwrap();
    let Ok(Frame::Tcp(reset)) = classify(&received, received.len()) else { panic!("no segment") };
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
fn what_a_program_does_to_its_cable_harms_nobody_else() {
    const NAME: &str = "raw::what_a_program_does_to_its_cable_harms_nobody_else";
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    let server = server(NAME, &switch);
    let context = Context::open(config(&switch.socket)).unwrap();
    let mut endpoint = Endpoint::new(&context, REGION);
    endpoint.connect(&context);
    exchange(&mut endpoint, 1, LENGTH);
    assert_eq!(server.told(), "answered");
    let honest = context.stats().engines[0].connections[0].local.port();
    let _listener = context.listen(PORT + 1, uwarp::ListenOptions::default()).unwrap();

    let mut raw = Raw::join(&switch.socket);
    raw.send_segment(TcpFlags::SYN, 1, PORT + 1, |_, _, _| {});
    let (peer, mut cable) = raw.cable();
    assert_eq!(raw.owners.get(0, honest), Owner::One(peer));
    assert_eq!(raw.owners.get(0, raw.welcome.ports.0), Owner::One(raw.welcome.number));
    wait_for("the other end", || cable.sender.is_attended());
    let malformed = || context.stats().engines[0].drops.get("malformed").copied().unwrap_or(0);
    let before = malformed();
    // In the name of the server, to its connection; of another host; from nobody's port; and one that begins a
    // connection.
    let forged = [
        raw.segment(TcpFlags::RST, 0, honest, |_, _, port| *port = PORT),
        raw.segment(TcpFlags::ACK, 0, honest, |_, _, port| *port = PORT),
        raw.segment(TcpFlags::ACK, 0, honest, |_, address, _| *address = "10.0.0.9".parse().unwrap()),
        raw.segment(TcpFlags::ACK, 0, honest, |_, _, port| *port = 9),
        raw.segment(TcpFlags::SYN, 0, PORT + 1, |_, _, _| {}),
        vec![0xff; 2000],
    ];
    for _ in 0..100 {
        for frame in &forged {
            wait_for("room in the cable", || cable.sender.send(frame, true));
        }
        cable.sender.wake();
    }
    wait_for("their end", || malformed() - before == 600);
    // It wants to be woken, rings without end, and never reads.
    for round in 2..4 {
        for _ in 0..1000 {
            cable.receiver.arm();
            wait_for("room in the cable", || cable.sender.send(&forged[0], true));
            cable.sender.wake();
        }
        exchange(&mut endpoint, round, LENGTH);
        assert_eq!(server.told(), "answered");
    }
    drop((raw, cable));
    wait_for("the end of its place", || switch.status().clients.len() == 2);
    exchange(&mut endpoint, 5, LENGTH);
    assert_eq!(server.told(), "answered");
}

#[test]
fn a_program_that_does_not_read_holds_up_nobody() {
    const NAME: &str = "raw::a_program_that_does_not_read_holds_up_nobody";
    const SENT: u64 = 16_000;
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
        // More than the cables of both and all buffers of the switch.
        for _ in 0..SENT / 4 {
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
    wait_for("the last frame", || dropped().0 + dropped().1 >= SENT);
    let (sent, dropped) = dropped();
    assert!(sent < SENT && sent + dropped == SENT, "{sent} sent, {dropped} dropped");
}

#[test]
fn places_leave_neither_descriptors_nor_ports_behind() {
    let switch = Switch::start();
    let join_and_leave = || {
        let (socket, ..) = join(&switch.socket);
        for port in [PORT, PORT + 1] {
            send(&socket, &Request::Reserve { port, address: None }, &[]).unwrap();
            let answer = receive::<Answer>(&socket).unwrap();
            assert!(matches!(answer, Some((Answer::Reserved, _))), "{answer:?}");
        }
        drop(socket);
        wait_for("the end of the place", || switch.status().clients.is_empty());
    };
    join_and_leave();
    let before = switch.descriptors();
    for _ in 0..40 {
        join_and_leave();
    }
    wait_for("the descriptors of the last", || switch.descriptors() <= before);
}
