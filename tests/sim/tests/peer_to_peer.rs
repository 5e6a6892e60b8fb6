//! Peer-to-peer start-up (RFC 6581): either side sends first, whatever the ready-to-receive indication, and the
//! indication uses nothing of the applications' queues.

use std::time::Duration;

use crossbeam::channel::Receiver;
use uwarp_engine::command::{
    Command, ConnectFailure, ConnectionEvent, ConnectionRequest, DisconnectReason, Established, ReadyToReceiveKinds,
    StartupOptions, TerminateCode,
};
use uwarp_engine::work::{Completion, CompletionOpcode, SendOpcode, Sge, Status};
use uwarp_memory::{Access, Registration};
use uwarp_sim_tests::raw::{RawPeer, fpdu, request_with, untagged, write};
use uwarp_tcp::Events;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::mpa::EnhancedData;
use uwarp_wire::rdmap::{Opcode, ReadRequest};

const PORT: u16 = 7471;
const SECOND: Duration = Duration::from_secs(1);
/// One Send and one receive: a queue pair in which an indication would be one too many.
const EXACT: PairOptions = PairOptions { send_depth: 1, receive_depth: 1, completions: 2, complete_on_ack: false };

const SEND: ReadyToReceiveKinds = ReadyToReceiveKinds { send: true, ..ReadyToReceiveKinds::NONE };
const WRITE: ReadyToReceiveKinds = ReadyToReceiveKinds { write: true, ..ReadyToReceiveKinds::NONE };
const READ: ReadyToReceiveKinds = ReadyToReceiveKinds { read: true, ..ReadyToReceiveKinds::NONE };

/// All sets of indications that are not empty.
fn sets() -> impl Iterator<Item = ReadyToReceiveKinds> {
    (1..8).map(|bits| ReadyToReceiveKinds { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 })
}

fn peer_to_peer(ready_to_receive: ReadyToReceiveKinds) -> StartupOptions {
    StartupOptions { peer_to_peer: true, ready_to_receive, ..StartupOptions::default() }
}

fn understanding(ready_to_receive: ReadyToReceiveKinds) -> StartupOptions {
    StartupOptions { ready_to_receive, ..StartupOptions::default() }
}

/// One end of a stream, with memory for one message each way.
struct End {
    host: usize,
    pair: Pair,
    region: Registration,
    done: Vec<Completion>,
    established: Option<Box<Established>>,
}

impl End {
    /// Its receive is posted.
    fn new(world: &mut World, host: usize) -> End {
        let mut pair = world.hosts[host].pair(EXACT);
        let mut octets = vec![0; 16];
        octets[8..].copy_from_slice(&message_of(host));
        let region = world.hosts[host].register(octets, Access::LOCAL_WRITE);
        assert!(pair.post_receive(1, &[Sge { stag: region.stag(), length: 8, offset: 0 }]));
        End { host, pair, region, done: Vec::new(), established: None }
    }

    fn speak(&mut self) {
        let local = Sge { stag: self.region.stag(), length: 8, offset: 8 };
        assert!(self.pair.post_simple(2, SendOpcode::Send, Some(local), (0, 0)));
    }

    fn poll(&mut self) {
        self.done.extend(self.pair.poll_all());
        match self.pair.events.try_recv() {
            Ok(ConnectionEvent::Established(event)) => self.established = Some(event),
            Ok(other) => panic!("host {}: {other:?}", self.host),
            Err(_) => {}
        }
    }

    fn heard(&self) -> bool {
        self.done.iter().any(|one| one.opcode == CompletionOpcode::Receive)
    }

    /// One message was sent, one was received, and nothing else.
    fn check(&self, peer: usize) {
        assert_eq!(self.done.len(), 2, "host {}: {:?}", self.host, self.done);
        assert!(self.done.iter().all(|one| one.status == Status::Success), "{:?}", self.done);
        let mut octets = [0; 8];
        self.region.read(0, &mut octets).expect("in range");
        assert_eq!(octets, message_of(peer));
    }
}

fn message_of(host: usize) -> [u8; 8] {
    [b'a' + host as u8; 8]
}

/// Every host has a stream with every other. On each, the host that `speaker` chooses sends first, and the other
/// answers.
fn mesh(kinds: ReadyToReceiveKinds, speaker: impl Fn(usize, usize) -> usize) {
    const HOSTS: usize = 8;
    let mut world = World::new(1, SimOptions::default());
    let requests: Vec<Receiver<ConnectionRequest>> = (0..HOSTS)
        .map(|_| {
            let host = world.add(HostOptions::default(), |_| {});
            world.hosts[host].listen(PORT)
        })
        .collect();
    let mut streams = Vec::new();
    for from in 0..HOSTS {
        for to in from + 1..HOSTS {
            let (client, server) = (End::new(&mut world, from), End::new(&mut world, to));
            let private_data = server.pair.number.to_be_bytes().to_vec();
            let options = StartupOptions { private_data, ..peer_to_peer(kinds) };
            world.hosts[from].connect(&client.pair, (world.hosts[to].address, PORT), options);
            let first = speaker(from, to);
            let mut ends = [client, server];
            // Before there is a connection: the responder must hold it back until the indication has arrived.
            ends.iter_mut().filter(|end| end.host == first).for_each(End::speak);
            streams.push((ends, false));
        }
    }
    assert_eq!(streams.len(), 28);
    let finished = world.run_until(10 * SECOND, |world| {
        for (host, requests) in requests.iter().enumerate() {
            while let Ok(request) = requests.try_recv() {
                assert!(request.peer_to_peer);
                let number = u32::from_be_bytes(*request.private_data.first_chunk().expect("a number"));
                let server =
                    streams.iter().map(|(ends, _)| &ends[1]).find(|end| end.host == host && end.pair.number == number);
                world.hosts[host].accept(&server.expect("known").pair, &request, StartupOptions::default());
            }
        }
        for (ends, answered) in &mut streams {
            ends.iter_mut().for_each(End::poll);
            let first = speaker(ends[0].host, ends[1].host);
            if let Some(other) = ends.iter_mut().find(|end| end.host != first)
                && other.heard()
                && !*answered
            {
                *answered = true;
                other.speak();
            }
        }
        streams.iter().all(|(ends, _)| ends.iter().all(|end| end.done.len() >= 2))
    });
    assert!(finished, "{kinds:?}: {} streams hang", streams.iter().filter(|(_, answered)| !answered).count());
    // Nothing more may arrive: an indication that made a completion would have arrived by now.
    world.run(SECOND);
    for (ends, _) in &mut streams {
        ends.iter_mut().for_each(End::poll);
        let [client, server] = ends;
        client.check(server.host);
        server.check(client.host);
        assert!(client.established.as_ref().is_some_and(|event| event.peer_to_peer));
        assert!(server.established.as_ref().is_some_and(|event| event.peer_to_peer));
    }
}

#[test]
fn a_mesh_in_which_the_initiators_speak_first() {
    [SEND, WRITE, READ].into_iter().for_each(|kinds| mesh(kinds, |from, _| from));
}

#[test]
fn a_mesh_in_which_the_responders_speak_first() {
    [SEND, WRITE, READ].into_iter().for_each(|kinds| mesh(kinds, |_, to| to));
}

#[test]
fn a_mesh_in_which_either_speaks_first() {
    mesh(ReadyToReceiveKinds::ALL, |from, to| if (from + to) % 2 == 0 { from } else { to });
}

/// Connects one stream and lets the responder send first; returns the result.
fn start(
    world: &mut World,
    requests: &Receiver<ConnectionRequest>,
    connect: StartupOptions,
    accept: StartupOptions,
) -> Started {
    let (mut client, mut server) = (End::new(world, 0), End::new(world, 1));
    server.speak();
    world.hosts[0].connect(&client.pair, (world.hosts[1].address, PORT), connect);
    let (mut client_end, mut server_end) = (None, None);
    world.run_until(5 * SECOND, |world| {
        if let Ok(request) = requests.try_recv() {
            world.hosts[1].accept(&server.pair, &request, accept.clone());
        }
        client.done.extend(client.pair.poll_all());
        for (end, outcome) in [(&mut client, &mut client_end), (&mut server, &mut server_end)] {
            match end.pair.events.try_recv() {
                Ok(ConnectionEvent::Established(event)) => end.established = Some(event),
                Ok(other) => *outcome = Some(other),
                Err(_) => {}
            }
        }
        client.heard() || client_end.is_some() && server_end.is_some()
    });
    for (host, end) in [(0, &client), (1, &server)] {
        world.hosts[host].command(Command::DestroyQueuePair { queue_pair: end.pair.number, done: None });
    }
    world.run(5 * SECOND);
    let heard = client.heard();
    Started { heard, client: client.established, server: server.established, client_end, server_end }
}

struct Started {
    /// The client has the server's message.
    heard: bool,
    client: Option<Box<Established>>,
    server: Option<Box<Established>>,
    client_end: Option<ConnectionEvent>,
    server_end: Option<ConnectionEvent>,
}

impl Started {
    fn client_failure(&self) -> Option<ConnectFailure> {
        match self.client_end {
            Some(ConnectionEvent::Failed(reason)) => Some(reason),
            _ => None,
        }
    }

    fn server_reason(&self) -> Option<DisconnectReason> {
        match self.server_end {
            Some(ConnectionEvent::Disconnected(reason)) => Some(reason),
            _ => None,
        }
    }
}

fn scene() -> (World, Receiver<ConnectionRequest>) {
    let world = World::two();
    let requests = world.hosts[1].listen(PORT);
    (world, requests)
}

#[test]
fn every_mix_of_indications_agrees_or_ends_with_a_terminate() {
    let (mut world, requests) = scene();
    for offered in sets() {
        for understood in sets() {
            let started = start(&mut world, &requests, peer_to_peer(offered), understanding(understood));
            if offered.and(understood).is_empty() {
                assert_eq!(
                    started.client_failure(),
                    Some(ConnectFailure::ReadyToReceive),
                    "{offered:?} {understood:?}"
                );
                // The responder sent nothing: a Terminate was the first FPDU.
                let code = TerminateCode { layer: 2, error_type: 0, code: 7 };
                assert_eq!(started.server_reason(), Some(DisconnectReason::PeerTerminated(code)));
            } else {
                assert!(started.heard, "{offered:?} {understood:?}: {:?}", started.client_end);
            }
        }
    }
}

#[test]
fn a_client_server_stream_is_silent_until_the_client_speaks() {
    let (mut world, requests) = scene();
    let started = start(&mut world, &requests, StartupOptions::default(), StartupOptions::default());
    assert!(!started.heard, "the responder spoke first");
    assert!(started.client.is_some_and(|event| !event.peer_to_peer) && started.server.is_some());
}

#[test]
fn a_read_may_open_a_stream_on_which_nobody_wants_reads() {
    let (mut world, requests) = scene();
    let none = |options| StartupOptions { ird: 0, ord: 0, ..options };
    let started = start(&mut world, &requests, none(peer_to_peer(READ)), none(understanding(READ)));
    assert!(started.heard);
    assert_eq!(started.server.map(|event| event.ird), Some(1), "raised for the indication");
    assert_eq!(started.client.map(|event| (event.ird, event.ord)), Some((0, 0)));
}

#[test]
fn limits_of_reads_are_handed_up_and_may_be_left_alone() {
    let (mut world, requests) = scene();
    let connect = StartupOptions { ird: 3, ord: 5, ..peer_to_peer(WRITE) };
    let accept = StartupOptions { ird: 7, ord: 2, ..StartupOptions::default() };
    let started = start(&mut world, &requests, connect.clone(), accept.clone());
    let limits = |event: Option<Box<Established>>| event.map(|it| (it.ird, it.ord, it.peer_ird, it.peer_ord));
    assert_eq!(limits(started.server), Some((7, 2, Some(3), Some(5))));
    assert_eq!(limits(started.client), Some((3, 5, Some(7), Some(2))));

    let connect = StartupOptions { negotiate_reads: false, ..connect };
    let started = start(&mut world, &requests, connect, accept);
    assert_eq!(limits(started.server), Some((7, 2, Some(0x3fff), Some(0x3fff))));
    assert_eq!(limits(started.client), Some((3, 5, Some(0x3fff), Some(0x3fff))));
}

#[test]
fn a_hard_minimum_of_reads_ends_the_start_up() {
    let mut world = World::new(1, SimOptions::default());
    world.add(HostOptions::default(), |_| {});
    world.add(HostOptions::default(), |config| config.iwarp.max_ird = 4);
    let requests = world.hosts[1].listen(PORT);
    // The initiator learns it from the Reply: a Terminate (RFC 6581 §9.1).
    let connect = StartupOptions { ord: 8, minimum_ord: 8, ..peer_to_peer(WRITE) };
    let started = start(&mut world, &requests, connect, StartupOptions::default());
    assert_eq!(started.client_failure(), Some(ConnectFailure::ReadLimits));
    let code = TerminateCode { layer: 2, error_type: 0, code: 6 };
    assert_eq!(started.server_reason(), Some(DisconnectReason::PeerTerminated(code)));
    // The responder learns it from the Request: a reject with the required limits.
    let accept = StartupOptions { ord: 9, minimum_ord: 9, ..StartupOptions::default() };
    let connect = StartupOptions { ird: 2, ..StartupOptions::default() };
    let started = start(&mut world, &requests, connect, accept);
    assert!(
        matches!(started.client_end, Some(ConnectionEvent::Rejected { peer_ord: Some(9), .. })),
        "{:?}",
        started.client_end
    );
    assert!(matches!(started.server_end, Some(ConnectionEvent::Failed(ConnectFailure::ReadLimits))));
}

/// A raw initiator that requests peer-to-peer with every kind, and a responder that has something to send.
fn raw() -> (World, End, RawPeer, Vec<u8>) {
    let (mut world, requests) = scene();
    let mut server = End::new(&mut world, 1);
    server.speak();
    let enhanced = EnhancedData {
        peer_to_peer: true,
        ready_by_send: true,
        ready_by_write: true,
        ready_by_read: true,
        ird: 4,
        ord: 4,
    };
    let request = request_with(enhanced);
    let how = (&request[..], StartupOptions::default());
    let (peer, reply) = RawPeer::start_with(&mut world, 9, 1, &server.pair, &requests, PORT, how);
    (world, server, peer, reply)
}

#[test]
fn a_responder_says_nothing_before_the_indication_and_takes_none_for_a_message() {
    let zero = ReadRequest::default();
    let kinds: [(&str, Vec<u8>, usize); 3] = [
        ("Write", write(1, 0, &[]), 0),
        ("Read", untagged(Opcode::ReadRequest, 1, 1, 0, &zero.to_octets()), 1),
        ("Send", untagged(Opcode::Send, 0, 1, 0, &[]), 0),
    ];
    for (name, indication, answers) in kinds {
        let (mut world, mut server, mut peer, reply) = raw();
        assert_eq!(reply[20] & 0xc0, 0xc0, "A and B in the Reply");
        assert_eq!(reply[22] & 0xc0, 0xc0, "C and D in the Reply");
        peer.run_until(&mut world, SECOND, |_, _| false);
        assert!(peer.received.is_empty(), "{name}: {:x?}", peer.received);
        peer.send(&fpdu(&indication));
        let mut came = Vec::new();
        peer.run_until(&mut world, SECOND, |peer, _| {
            came.extend(peer.take_fpdu());
            came.len() > answers
        });
        assert_eq!(came.len(), answers + 1, "{name}");
        let sends: Vec<_> = came.iter().filter(|ulpdu| ulpdu[1] == 0x43).collect();
        assert_eq!(sends.len(), 1, "{name}");
        assert_eq!(&sends[0][18..], message_of(1));
        if answers == 1 {
            assert!(
                came.iter().any(|ulpdu| ulpdu[..2] == [0xc1, 0x42] && ulpdu.len() == 14),
                "a Read Response of nothing"
            );
        }
        // The one posted receive is there for the first real Send.
        let number = if name == "Send" { 2 } else { 1 };
        peer.send(&fpdu(&untagged(Opcode::Send, 0, number, 0, &message_of(8))));
        peer.run_until(&mut world, SECOND, |_, _| {
            server.done.extend(server.pair.poll_all());
            server.heard()
        });
        server.check(8);
    }
}

#[test]
fn a_first_send_with_octets_is_a_message_and_no_indication() {
    let (mut world, mut server, mut peer, _) = raw();
    peer.send(&fpdu(&untagged(Opcode::Send, 0, 1, 0, &message_of(8))));
    peer.run_until(&mut world, SECOND, |_, _| {
        server.done.extend(server.pair.poll_all());
        server.done.len() == 2
    });
    server.check(8);
}

#[test]
fn an_initiator_that_owes_its_indication_for_too_long_is_cut_off() {
    let (mut world, server, mut peer, _) = raw();
    let mut end = None;
    peer.run_until(&mut world, 9 * SECOND, |_, _| {
        end = end.take().or(server.pair.events.try_recv().ok());
        end.is_some()
    });
    assert_eq!(end, None, "it has ten seconds");
    peer.run_until(&mut world, 2 * SECOND, |_, _| {
        end = end.take().or(server.pair.events.try_recv().ok());
        end.is_some()
    });
    let Some(ConnectionEvent::Disconnected(reason)) = end else { panic!("{end:?}") };
    assert_eq!(reason, DisconnectReason::TimedOut);
}

#[test]
fn the_time_limit_of_the_indication_does_not_cut_off_an_orderly_close() {
    let (mut world, mut server, mut peer, _) = raw();
    peer.send(&fpdu(&write(1, 0, &[])));
    assert!(peer.run_until(&mut world, SECOND, |peer, _| peer.take_fpdu().is_some()), "its Send");
    let limit = uwarp_engine::IwarpConfig::default().startup_timeout;
    world.hosts[1].command(Command::Disconnect { queue_pair: server.pair.number });
    assert!(peer.run_until(&mut world, SECOND, |peer, _| peer.events.contains(Events::PEER_FIN)));
    // Its half is still open, and what arrives there is still accepted.
    peer.run_until(&mut world, limit + SECOND, |peer, _| peer.is_reset());
    assert!(!peer.is_reset(), "the close has no such limit");
    peer.send(&fpdu(&untagged(Opcode::Send, 0, 1, 0, &message_of(8))));
    peer.close(&mut world);
    let mut end = None;
    peer.run_until(&mut world, SECOND, |_, _| {
        server.done.extend(server.pair.poll_all());
        end = end.take().or(server.pair.events.try_recv().ok());
        end.is_some()
    });
    server.check(8);
    let Some(ConnectionEvent::Disconnected(reason)) = end else { panic!("{end:?}") };
    assert_eq!(reason, DisconnectReason::Local);
}
