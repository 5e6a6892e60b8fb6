//! A full mesh of eight processes. Every two of them have a peer-to-peer connection for each kind of ready-to-receive
//! indication and each side, or both, that sends first (RFC 6581 §9.2). Queues have exactly as many elements as the
//! applications' messages, so an indication that took one would be noticed.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uwarp::{
    AcceptOptions, Access, AsyncEvent, Completion, CompletionOpcode, CompletionQueue, Config, ConnectOptions,
    Connecting, Context, DeviceConfig, ListenOptions, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions,
    ReadyToReceiveKinds, ReceiveRequest, SendRequest, Status,
};
use uwarp_netns as netns;
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{PORT, pattern};
use uwarp_vdev_tests::network::configure;
use uwarp_vdev_tests::peer::{self, Peer};

const NAME: &str = "eight_processes_speak_first_to_each_other";
const INTERFACES: [&str; 8] = ["mesh0", "mesh1", "mesh2", "mesh3", "mesh4", "mesh5", "mesh6", "mesh7"];
const MTU: u16 = 1500;
/// Octets of each side's messages on a connection, in this order: empty like an indication; one octet; a segment;
/// several. Each side's queue holds exactly these.
const MESSAGES: [usize; 4] = [0, 1, 1000, 5000];
const LONGEST: usize = 5000;

/// Which side sends before it has received anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Initiator,
    Responder,
    Both,
}

/// The purpose of a connection; its private data.
#[derive(Clone, Copy, Debug)]
struct Purpose {
    initiator: u8,
    kind: u8,
    first: u8,
}

impl Purpose {
    fn all(initiator: usize) -> impl Iterator<Item = Purpose> {
        (0..9).map(move |number| Purpose { initiator: initiator as u8, kind: number / 3, first: number % 3 })
    }

    fn from_octets(octets: &[u8]) -> Self {
        let &[initiator, kind, first] = octets else { panic!("private data of another: {octets:?}") };
        Self { initiator, kind, first }
    }

    fn kinds(self) -> ReadyToReceiveKinds {
        let none = ReadyToReceiveKinds::NONE;
        match self.kind {
            0 => ReadyToReceiveKinds { send: true, ..none },
            1 => ReadyToReceiveKinds { write: true, ..none },
            _ => ReadyToReceiveKinds { read: true, ..none },
        }
    }

    fn first(self) -> First {
        [First::Initiator, First::Responder, First::Both][usize::from(self.first)]
    }

    /// The text of a message from `speaker` to `hearer`.
    fn text(self, speaker: usize, hearer: usize, message: usize) -> Vec<u8> {
        let words = [usize::from(self.initiator), usize::from(self.kind), usize::from(self.first), speaker, hearer];
        let seed = words.iter().fold(message as u64, |seed, word| seed << 4 | *word as u64);
        pattern(seed, MESSAGES[message])
    }
}

/// One end of a connection.
struct Link {
    purpose: Purpose,
    own: usize,
    other: usize,
    queue_pair: QueuePair,
    completions: CompletionQueue,
    /// The sent messages, then the received ones, one after another.
    region: MemoryRegion,
    connecting: Option<Connecting>,
    reaped: Vec<Completion>,
    spoken: bool,
}

impl Link {
    fn new(context: &Context, domain: &ProtectionDomain, purpose: Purpose, own: usize, other: usize) -> Self {
        let completions = context.create_completion_queue(2 * MESSAGES.len()).expect("a completion queue");
        let options =
            QueuePairOptions::new(&completions).depth(MESSAGES.len(), MESSAGES.len()).limits(1, 0).signal_all();
        let mut queue_pair = domain.create_queue_pair(&options).expect("a queue pair");
        let region = domain.register(vec![0; 2 * MESSAGES.len() * LONGEST], Access::LOCAL_WRITE).expect("a region");
        for message in 0..MESSAGES.len() {
            region.write(message * LONGEST, &purpose.text(own, other, message)).expect("inside the region");
            let start = (MESSAGES.len() + message) * LONGEST;
            let entry = region.sge(start..start + LONGEST).expect("inside the region");
            queue_pair.receive.post(&[ReceiveRequest::new(message as u64, &[entry])]).expect("the queue holds as many");
        }
        let attributes = queue_pair.control.query();
        assert_eq!(
            (attributes.send_slots, queue_pair.receive.slots_free()),
            (MESSAGES.len(), 0),
            "no element to spare"
        );
        Self {
            purpose,
            own,
            other,
            queue_pair,
            completions,
            region,
            connecting: None,
            reaped: Vec::new(),
            spoken: false,
        }
    }

    fn speak(&mut self) {
        self.spoken = true;
        for (message, length) in MESSAGES.into_iter().enumerate() {
            let start = message * LONGEST;
            let entry = self.region.sge(start..start + length).expect("inside the region");
            let posted = self.queue_pair.send.post(&[SendRequest::send(message as u64, &[entry])]);
            assert_eq!(posted.expect("the queue holds as many"), 1);
        }
    }

    fn may_speak_first(&self) -> bool {
        match self.purpose.first() {
            First::Initiator => usize::from(self.purpose.initiator) == self.own,
            First::Responder => usize::from(self.purpose.initiator) != self.own,
            First::Both => true,
        }
    }

    fn heard(&self) -> usize {
        self.reaped.iter().filter(|completion| completion.opcode == CompletionOpcode::Receive).count()
    }

    /// Continues as far as possible; returns whether anything happened.
    fn turn(&mut self) -> bool {
        if let Some(connecting) = &mut self.connecting {
            let established = connecting.poll(&mut self.queue_pair.control);
            let Some(established) = established.unwrap_or_else(|error| panic!("{:?}: {error}", self.purpose)) else {
                return false;
            };
            assert!(established.peer_to_peer);
            self.connecting = None;
            if self.may_speak_first() {
                self.speak();
            }
            return true;
        }
        let mut completions = [Completion::default(); 2 * MESSAGES.len()];
        let count = self.completions.poll(&mut completions);
        self.reaped.extend_from_slice(&completions[..count]);
        if !self.spoken && self.heard() == MESSAGES.len() {
            self.speak();
        }
        count > 0
    }

    fn is_done(&self) -> bool {
        self.reaped.len() == 2 * MESSAGES.len()
    }

    /// Every message was received once, in order, and nothing else.
    fn check(&mut self) {
        for opcode in [CompletionOpcode::Send, CompletionOpcode::Receive] {
            let of_queue = self.reaped.iter().filter(|completion| completion.opcode == opcode);
            let found: Vec<_> =
                of_queue.map(|completion| (completion.id, completion.status, completion.length as usize)).collect();
            let lengths = MESSAGES.iter().enumerate();
            let expected: Vec<_> = lengths.map(|(id, length)| (id as u64, Status::Success, *length)).collect();
            assert_eq!(found, expected, "{opcode:?} {:?} at {}", self.purpose, self.own);
        }
        for (message, length) in MESSAGES.into_iter().enumerate() {
            let start = (MESSAGES.len() + message) * LONGEST;
            let heard = self.region.to_vec(start, length).expect("inside the region");
            assert!(heard == self.purpose.text(self.other, self.own, message), "{:?} at {}", self.purpose, self.own);
        }
        assert_eq!(self.completions.poll_one(), None);
    }
}

#[derive(Serialize, Deserialize)]
struct Task {
    number: usize,
}

fn address(number: usize) -> std::net::IpAddr {
    std::net::Ipv4Addr::new(10, 0, 0, 1 + number as u8).into()
}

fn open(number: usize) -> Context {
    let device = DeviceConfig::AfPacket { interface: INTERFACES[number].into(), netns: None, frame_count: None };
    let mut config = configure(Config::new(device, &format!("{}/24", address(number))).expect("a good address"));
    // This many processes on few processors are slow.
    config.tcp.user_timeout = Some(PATIENCE);
    config.tcp.keep_alive.enabled = false;
    let config = if number.is_multiple_of(2) { config.inline() } else { config.threaded(1) };
    Context::open(config).expect("the context opens")
}

/// Waits for a message of the test, while the engine continues.
fn await_word(context: &Context, words: &Receiver<String>) {
    while words.try_recv() == Err(TryRecvError::Empty) {
        context.poll();
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn be_peer(number: usize) {
    let context = open(number);
    let domain = context.allocate_domain();
    let mut listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
    let words = peer::words();
    peer::tell("open");
    await_word(&context, &words);
    let mut links = Vec::new();
    for other in number + 1..INTERFACES.len() {
        for purpose in Purpose::all(number) {
            let mut link = Link::new(&context, &domain, purpose, number, other);
            let octets = [purpose.initiator, purpose.kind, purpose.first];
            let options =
                ConnectOptions::default().private_data(octets).timeout(PATIENCE).peer_to_peer(purpose.kinds());
            let connecting =
                context.start_connect(&mut link.queue_pair.control, (address(other), PORT).into(), options);
            link.connecting = Some(connecting.expect("a connection begins"));
            links.push(link);
        }
    }
    let all = Purpose::all(0).count() * (INTERFACES.len() - 1);
    let start = Instant::now();
    while links.len() < all || !links.iter().all(Link::is_done) {
        context.poll();
        let mut progress = false;
        while let Some(request) = listener.try_next().expect("the listener works") {
            assert!(request.peer_to_peer());
            let purpose = Purpose::from_octets(request.private_data());
            let mut link = Link::new(&context, &domain, purpose, number, usize::from(purpose.initiator));
            let options = AcceptOptions::default().timeout(PATIENCE);
            link.connecting = Some(request.start_accept(&mut link.queue_pair.control, options).expect("an answer"));
            links.push(link);
            progress = true;
        }
        for link in &mut links {
            progress |= link.turn();
        }
        if !progress {
            let undone = || links.iter().filter(|link| !link.is_done()).map(|link| (link.purpose, link.other));
            assert!(
                start.elapsed() < PATIENCE,
                "{number}: {} of {all} connections, not done: {:?}\n{:#?}",
                links.len(),
                undone().collect::<Vec<_>>(),
                context.stats()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    for link in &mut links {
        link.check();
    }
    peer::tell("done");
    // Nobody leaves before all have been heard.
    await_word(&context, &words);
    for link in &mut links {
        link.queue_pair.control.disconnect();
    }
    for link in &mut links {
        assert!(
            link.queue_pair.control.wait_disconnected(PATIENCE).expect("waiting works"),
            "the connection does not end"
        );
    }
    while let Some(event) = context.events().try_next() {
        assert!(matches!(event, AsyncEvent::Link { .. }), "{event:?}");
    }
    drop(links);
    drop(listener);
    context.close().expect("closed");
}

#[test]
fn eight_processes_speak_first_to_each_other() {
    netns::test_inside(NAME, || {
        if let Some(task) = peer::task::<Task>() {
            return be_peer(task.number);
        }
        netns::switch(MTU, &INTERFACES).expect("a kernel with bridges (CONFIG_BRIDGE)");
        let mut peers: Vec<_> = (0..INTERFACES.len()).map(|number| Peer::start(NAME, &Task { number })).collect();
        for (word, answer) in [("open", "begin"), ("done", "end")] {
            for peer in &mut peers {
                peer.await_word(word, || {});
            }
            for peer in &mut peers {
                peer.say(answer);
            }
        }
        for peer in peers {
            assert!(peer.end(|| {}).success());
        }
    });
}
