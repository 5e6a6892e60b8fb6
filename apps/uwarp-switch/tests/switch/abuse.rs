//! What one local user can do to all clients of a switch, beside clients that work: descriptors that are slow to close,
//! a flood of connections, and a bell that nobody hears.

use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uwarp::Context;
use uwarp::switch::protocol::{Request, VERSION, connect};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, exchange};
use uwarp_vdev_tests::peer::{self, Peer};

use crate::raw::Raw;
use crate::rig::{LENGTH, REGION, Role, Switch, Task, config, connect_to, is_peer, wait_for};

/// Pairs of clients that work.
const PAIRS: usize = 4;
/// What the abuser says it does.
const DEEDS: [&str; 3] = ["linger", "flood", "full bell"];
/// Clients give up their contexts without an answer for ten seconds.
const ANSWER: Duration = Duration::from_secs(5);
/// How long closing a descriptor may take.
const LINGER: Duration = Duration::from_secs(120);
/// Connections without a place.
const STRANGERS: usize = 50;

/// A connection whose last owner waits as it closes it, and its other end.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut sender = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (receiver, _) = listener.accept().expect("the other end");
    sender.set_nonblocking(true).expect("a flag");
    while sender.write(&[7; 65536]).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(LINGER)).expect("an option");
    (sender.into(), receiver)
}

/// Sends octets with a descriptor, whose last owner is whoever gets it.
fn pass(socket: impl std::os::fd::AsFd, octets: &[u8], kept: &mut Vec<TcpStream>) {
    let (sender, receiver) = lingering();
    kept.push(receiver);
    let descriptors = [sender.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    // The kernel may refuse it, and the switch may be done with us: then this process is the last owner, and waits.
    let _ = sendmsg(socket, &[IoSlice::new(octets)], &mut ancillary, SendFlags::NOSIGNAL);
    std::thread::spawn(move || drop(sender));
}

/// What [`Role::Abuser`] does.
pub fn abuse(task: &Task) {
    let words = peer::words();
    let next = || words.recv().expect("the test says what to do");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("more descriptors");
    let mut kept = Vec::new();
    let request = serde_json::to_vec(&Request::Offer { version: VERSION }).expect("a request");
    for _ in 0..10 {
        let socket = connect(&task.socket).expect("the switch serves");
        pass(&socket, &request, &mut kept);
        pass(&socket, &request, &mut kept);
    }
    peer::tell(DEEDS[0]);
    next();

    // As many as may wait for others: this user's own connections would make way for more.
    let strangers: Vec<_> = (0..STRANGERS).map(|_| connect(&task.socket)).collect();
    peer::tell(DEEDS[1]);
    next();
    drop(strangers);

    let mut raw = Raw::join(&task.socket);
    raw.fill_bell();
    peer::tell(DEEDS[2]);
    next();
}

#[test]
fn one_user_holds_up_no_other() {
    const NAME: &str = "abuse::one_user_holds_up_no_other";
    if is_peer() {
        return;
    }
    let switch = Switch::start();
    let task = |role, port| Task { role, socket: switch.socket.clone(), port };
    let ports = PORT..PORT + PAIRS as u16;
    let servers: Vec<Peer> = ports.clone().map(|port| Peer::start(NAME, &task(Role::Server, port))).collect();
    for server in &servers {
        assert_eq!(server.told(), "ready");
    }
    let rounds = [const { AtomicU64::new(0) }; PAIRS];
    let is_over = AtomicBool::new(false);
    let work = |port: u16, rounds: &AtomicU64| {
        let context = Context::open(config(&switch.socket)).unwrap();
        let mut endpoint = Endpoint::new(&context, REGION);
        connect_to(&mut endpoint, &context, ([127, 0, 0, 1], port).into());
        while !is_over.load(Ordering::Relaxed) {
            exchange(&mut endpoint, rounds.fetch_add(1, Ordering::Relaxed), LENGTH);
        }
    };
    std::thread::scope(|scope| {
        for (port, rounds) in ports.zip(&rounds) {
            scope.spawn(move || work(port, rounds));
        }
        // Ends the threads, whatever comes.
        let _end = End(&is_over);
        wait_for("their work", || rounds.iter().all(|rounds| rounds.load(Ordering::Relaxed) > 3));
        let mut abuser = Peer::start(NAME, &task(Role::Abuser, 0));
        for deed in DEEDS {
            let mut longest = Duration::ZERO;
            let mut clients = 0;
            let mut ask = || {
                let begun = Instant::now();
                clients = switch.status().clients.len();
                longest = longest.max(begun.elapsed());
            };
            abuser.await_word(deed, &mut ask);
            let before = rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
            wait_for("their work meanwhile", || {
                ask();
                rounds.iter().zip(before).all(|(rounds, before)| rounds.load(Ordering::Relaxed) > before + 3)
            });
            // One that comes now is served as well.
            let context = Context::open(config(&switch.socket)).unwrap();
            context.close().unwrap();
            eprintln!("{deed}: answered within {longest:?}");
            assert!(longest < ANSWER, "{deed}: {longest:?}");
            assert!(clients >= 2 * PAIRS, "{deed}: {clients} clients");
            abuser.say("next");
        }
        assert!(abuser.end(|| {}).success());
        wait_for("the end of its places", || switch.status().clients.len() == 2 * PAIRS);
    });
}

/// Ends something when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
