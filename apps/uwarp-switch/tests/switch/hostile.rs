//! A hostile program beside two honest ones on one switch. Of the attacks in `tests/sim/tests/hostile` these are the
//! worst: one for each thing that all connections of a server share.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uwarp::{AcceptOptions, ConnectOptions, ConnectRequest, Context, ListenOptions, SendRequest, Status};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, Place, answer, exchange, prepare_answer};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, pause};
use uwarp_wire::tcp::TcpFlags;

use crate::raw::Raw;
use crate::rig::{LENGTH, REGION, Role, Switch, Task, config, is_peer, wait_for};

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), PORT);
/// Private data of an attacker.
const ATTACKER: &[u8] = b"attacker";
/// Exchanges of an honest connection.
pub const ROUNDS: u64 = 20;
/// Octets of an attacker's region, and of the server's for it.
const LARGE: usize = 256 << 10;
/// Connections of one attacker, and what the server keeps of all that it ever had.
const CONNECTIONS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attack {
    /// SYNs from all of its ports, and no handshake: the places of connections that are half open.
    SynFlood,
    /// Connections that violate the rules at once: what beginning and ending costs.
    TerminateStorm,
    /// Reads of much, whose responses are acknowledged ever so slowly: transmit buffers.
    SlowReader,
    /// Reads of much without a pause: the frames of a turn.
    ReadStorm,
    /// Messages that no receive awaits: memory for what was received.
    UnpostedReceives,
}

/// How often something was done.
struct Progress {
    words: Receiver<String>,
    count: u64,
    /// From which count on the attack is under way.
    least: u64,
    has_told: bool,
    is_over: bool,
}

impl Progress {
    fn new(least: u64) -> Self {
        Progress { words: peer::words(), count: 0, least, has_told: false, is_over: false }
    }

    /// Counts; false once the test has seen enough.
    fn goes_on(&mut self, more: u64) -> bool {
        self.count += more;
        if self.count >= self.least && !self.has_told {
            self.has_told = true;
            peer::tell("under way");
        }
        self.is_over |= self.words.try_recv() != Err(TryRecvError::Empty);
        !self.is_over
    }
}

/// What [`Role::Attacker`] does: attacks until it is told to stop, and says how often it did.
pub fn attack(task: &Task, attack: Attack) {
    let count = match attack {
        Attack::SynFlood => flood(task),
        Attack::TerminateStorm => violate(task),
        Attack::SlowReader | Attack::ReadStorm | Attack::UnpostedReceives => post_much(task, attack),
    };
    peer::tell(&count.to_string());
}

fn flood(task: &Task) -> u64 {
    let mut progress = Progress::new(5000);
    let mut raw = Raw::join(&task.socket);
    let (first, last) = raw.ports();
    let mut sequence = 0;
    while progress.goes_on(u64::from(last - first) + 1) {
        for own in first..=last {
            sequence += 1;
            raw.send_segment(TcpFlags::SYN, sequence, PORT, |_, _, port| *port = own);
        }
        raw.discard();
    }
    progress.count
}

/// Connects as an attacker. None: it is over.
fn connect(context: &Context, progress: &mut Progress) -> Option<Endpoint> {
    while progress.goes_on(0) {
        let mut endpoint = Endpoint::new(context, LARGE);
        let options = ConnectOptions::default().private_data(ATTACKER).timeout(Duration::from_secs(5));
        // Who attacks may be refused.
        if let Ok(established) = context.connect(&mut endpoint.queue_pair.control, SERVER, options) {
            endpoint.place = Some(Place::from_octets(&established.private_data));
            return Some(endpoint);
        }
        pause();
    }
    None
}

fn violate(task: &Task) -> u64 {
    let mut progress = Progress::new(5);
    let context = Context::open(config(&task.socket)).expect("there is a place");
    while let Some(mut endpoint) = connect(&context, &mut progress) {
        let Place { stag, offset } = endpoint.place();
        endpoint.post(&[SendRequest::write_inline(1, b"to nowhere", !stag, offset)]);
        assert!(
            endpoint.queue_pair.control.wait_disconnected(PATIENCE).expect("waiting works"),
            "a violation is forgiven"
        );
        progress.goes_on(1);
    }
    progress.count
}

fn post_much(task: &Task, attack: Attack) -> u64 {
    let mut progress = Progress::new(100);
    // An engine that is seldom turned acknowledges as seldom.
    let (config, rest) = match attack {
        Attack::SlowReader => (config(&task.socket).inline(), Duration::from_millis(20)),
        _ => (config(&task.socket), Duration::ZERO),
    };
    let context = Context::open(config).expect("there is a place");
    let mut connections = VecDeque::new();
    loop {
        if connections.len() < CONNECTIONS {
            let Some(endpoint) = connect(&context, &mut progress) else { break };
            connections.push_back(endpoint);
        }
        let Some(mut endpoint) = connections.pop_front() else { break };
        let Place { stag, offset } = endpoint.place();
        let all = [endpoint.region.sge(0..LARGE).expect("inside the region")];
        let message = [endpoint.region.sge(0..LENGTH).expect("inside the region")];
        let request = || match attack {
            Attack::UnpostedReceives => SendRequest::send(1, &message),
            _ => SendRequest::read(1, &all, stag, offset),
        };
        let mut posted = 0;
        while matches!(endpoint.queue_pair.send.post(&[request()]), Ok(1)) {
            posted += 1;
        }
        let mut is_well = true;
        while let Some(completion) = endpoint.completions.poll_one() {
            is_well &= completion.status == Status::Success;
        }
        // One that the server has ended makes room for the next.
        if is_well {
            connections.push_back(endpoint);
        }
        if !progress.goes_on(posted) {
            break;
        }
        std::thread::sleep(rest);
    }
    progress.count
}

/// What [`Role::OpenServer`] does: it answers everybody, and leaves attackers to themselves.
pub fn serve_everybody(task: &Task) {
    let mut config = config(&task.socket);
    config.limits.receive_wait = Some(Duration::from_secs(5));
    let context = Context::open(config).expect("there is a place");
    let mut listener = context.listen(PORT, ListenOptions::default()).expect("the port is free");
    let mut attacked = VecDeque::new();
    peer::tell("ready");
    loop {
        let Some(request) = listener.next(PATIENCE).expect("the listener works") else { continue };
        if request.private_data() != ATTACKER {
            let context = context.clone();
            std::thread::spawn(move || answer_one(&context, request));
            continue;
        }
        let mut endpoint = Endpoint::new(&context, LARGE);
        let options = AcceptOptions::default().private_data(Place::of(&endpoint.region).to_octets());
        // It may have gone again.
        if request.accept(&mut endpoint.queue_pair.control, options).is_ok() {
            attacked.push_back(endpoint);
        }
        if attacked.len() > CONNECTIONS {
            attacked.pop_front();
        }
    }
}

fn answer_one(context: &Context, request: ConnectRequest) {
    let mut endpoint = Endpoint::new(context, REGION);
    prepare_answer(&mut endpoint);
    let options = AcceptOptions::default().private_data(Place::of(&endpoint.region).to_octets()).timeout(PATIENCE);
    request.accept(&mut endpoint.queue_pair.control, options).expect("accepted");
    for _ in 0..ROUNDS {
        answer(&mut endpoint, LENGTH);
    }
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).expect("waiting works"), "the client does not end");
}

/// An honest connection before the attack and one that begins amid it, from a program that joins then: both carry all
/// that they are to carry.
fn run(name: &str, attack: Attack) {
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    let task = |role| Task { role, socket: switch.socket.clone(), port: PORT };
    let mut server = Peer::start(name, &task(Role::OpenServer));
    assert_eq!(server.told(), "ready");
    let before = Context::open(config(&switch.socket)).unwrap();
    let mut old = Endpoint::new(&before, REGION);
    old.connect(&before);
    exchange(&mut old, 0, LENGTH);

    let mut attacker = Peer::start(name, &task(Role::Attacker(attack)));
    assert_eq!(attacker.told(), "under way");
    for round in 1..ROUNDS / 2 {
        exchange(&mut old, round, LENGTH);
    }
    let amid = Context::open(config(&switch.socket)).unwrap();
    let mut new = Endpoint::new(&amid, REGION);
    new.connect(&amid);
    for round in 0..ROUNDS {
        exchange(&mut new, round, LENGTH);
    }
    new.disconnect();
    assert_eq!(switch.status().clients.len(), 4);
    attacker.must_run();
    attacker.say("stop");
    eprintln!("{attack:?}: {}", attacker.told());
    assert!(attacker.end(|| {}).success());
    wait_for("the end of its place", || switch.status().clients.len() == 3);
    for round in ROUNDS / 2..ROUNDS {
        exchange(&mut old, round, LENGTH);
    }
    old.disconnect();
    server.must_run();
    // Neither was cut off, nor taken for another.
    let status = switch.status();
    let drops = status.clients.iter().flat_map(|client| client.drops.keys());
    assert!(drops.clone().all(|reason| reason == "ring-full"), "{status:?}");
}

#[test]
fn an_honest_pair_works_beside_a_flood_of_syns() {
    run("hostile::an_honest_pair_works_beside_a_flood_of_syns", Attack::SynFlood);
}

#[test]
fn an_honest_pair_works_beside_connections_that_violate_the_rules() {
    run("hostile::an_honest_pair_works_beside_connections_that_violate_the_rules", Attack::TerminateStorm);
}

#[test]
fn an_honest_pair_works_beside_a_slow_reader() {
    run("hostile::an_honest_pair_works_beside_a_slow_reader", Attack::SlowReader);
}

#[test]
fn an_honest_pair_works_beside_a_storm_of_reads() {
    run("hostile::an_honest_pair_works_beside_a_storm_of_reads", Attack::ReadStorm);
}

#[test]
fn an_honest_pair_works_beside_messages_that_no_receive_awaits() {
    run("hostile::an_honest_pair_works_beside_messages_that_no_receive_awaits", Attack::UnpostedReceives);
}
