//! Peers of a target that the test drives by hand.

use std::path::Path;
use uwarp::config::EngineMode;
use uwarp::{Access, ConnectOptions, Context, Established, Features, MemoryRegion, ProtectionDomain, SendRequest};
use uwarp_app::channel::{Channel, Event, Shape, connect};
use uwarp_app::network::SERVER_ADDRESS;
use uwarp_app::{NetworkFlags, Role};
use uwarp_log::auth::{Answer, Challenge, Greeting, Handshake, Proof, Secret, Side, greeting};
use uwarp_log::layout::Geometry;
use uwarp_log::message::{MAX_MESSAGE, ToClient, ToTarget, Window};

use crate::places::{PATIENCE, SECRET};

pub const FEATURES: Features = Features { atomics: false, immediate: true, commit: true, infiniband: false };
pub const SHAPE: Shape = Shape { message: MAX_MESSAGE, messages: 16, work: 16 };
pub const PORT: u16 = 20_060;

/// Another program at one end of a socket.
pub fn stranger(socket: &Path, role: Role) -> Context {
    stranger_at(socket, role, None)
}

/// The same, with a chosen address.
pub fn stranger_at(socket: &Path, role: Role, address: Option<&str>) -> Context {
    let address = address.map(|text| text.parse().unwrap());
    let flags = NetworkFlags { socket: Some(socket.to_owned()), address, ..NetworkFlags::default() };
    Context::open(uwarp_middlebox::behind(flags.resolve(role, EngineMode::Threaded).unwrap())).unwrap()
}

/// The secret of the targets.
pub fn secret() -> Secret {
    Secret::new(SECRET.as_bytes()).unwrap()
}

/// Connects to a target as a peer with this secret does, and sends nothing.
pub fn join(context: &Context, domain: &ProtectionDomain, secret: &Secret) -> (Channel, Established) {
    let options = ConnectOptions::default().private_data(greeting(secret)).features(FEATURES);
    let make = || Channel::new(context, domain, SHAPE);
    connect(context, (SERVER_ADDRESS, PORT).into(), &options, PATIENCE, make, Channel::queue_pair).unwrap()
}

/// What the proofs on a connection of [`join`] cover, with this challenge of the writer.
pub fn handshake(established: &Established, writer_challenge: Challenge) -> Handshake {
    let greeting = Greeting::parse(&established.private_data).expect("a target");
    Handshake {
        writer: established.local,
        target: established.peer,
        writer_challenge,
        target_challenge: greeting.rest.try_into().expect("a challenge"),
    }
}

/// Sends a proof; returns the target's answer, `None` if the connection has ended.
pub fn offer(channel: &mut Channel, proof: Proof) -> Option<Answer> {
    channel.send(&serde_json::to_vec(&proof).unwrap()).unwrap();
    answer(channel)
}

/// The target's answer to a first message.
pub fn answer(channel: &mut Channel) -> Option<Answer> {
    match channel.next(PATIENCE).unwrap().expect("something happens") {
        Event::Message(octets) => Some(serde_json::from_slice(&octets).expect("an answer")),
        Event::Closed => None,
        other => panic!("{other:?}"),
    }
}

/// Proves as an honest writer does, and checks the target's proof.
pub fn prove(channel: &mut Channel, established: &Established) {
    let handshake = handshake(established, [9; 32]);
    let proof = Proof { challenge: [9; 32], proof: handshake.prove(&secret(), Side::Writer) };
    match offer(channel, proof) {
        Some(Answer::Proven(proof)) => assert!(handshake.is_proof(&secret(), Side::Target, &proof)),
        other => panic!("{other:?}"),
    }
}

/// A connection to a target, for work by hand.
pub struct Hand {
    pub channel: Channel,
    memory: MemoryRegion,
}

impl Hand {
    pub fn new(context: &Context, domain: &ProtectionDomain) -> Self {
        let (mut channel, established) = join(context, domain, &secret());
        prove(&mut channel, &established);
        Self { channel, memory: domain.register(vec![0; 8], Access::LOCAL_WRITE).unwrap() }
    }

    pub fn next(&mut self) -> anyhow::Result<Event> {
        Ok(self.channel.next(PATIENCE)?.expect("something happens"))
    }

    pub fn claim(&mut self, epoch: u64, established: bool) -> (Geometry, Window) {
        let claim = ToTarget::Claim { epoch, established, log: 1, replicas: 1 };
        self.channel.send(&serde_json::to_vec(&claim).unwrap()).unwrap();
        let Ok(Event::Message(octets)) = self.next() else { panic!("an answer") };
        match serde_json::from_slice(&octets).unwrap() {
            ToClient::Claimed { epoch: told, geometry, window } if told == epoch => (geometry, window),
            other => panic!("{other:?}"),
        }
    }

    /// Writes 8 octets to the first slot and commits them; returns the resulting event.
    pub fn write(&mut self, (geometry, window): (Geometry, Window), octets: &[u8; 8]) -> anyhow::Result<Event> {
        self.memory.write(0, octets).unwrap();
        let source = [self.memory.sge(0..8).unwrap()];
        let write = SendRequest::write(1, &source, window.stag, window.offset + geometry.slot(0));
        self.channel.queue_pair().send.post(&[write.with_commit().signalled()]).unwrap();
        self.next()
    }
}
