//! One side of one connection.

use std::time::Instant;

use uwarp::{
    AcceptOptions, Access, Completion, CompletionQueue, ConnectOptions, ConnectRequest, Context, Established, Listener,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, SendRequest, Status,
};

use crate::{PATIENCE, pause};

/// The port that tests listen on.
pub const PORT: u16 = 7471;

/// Where the peer may write and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// STag of the peer's region.
    pub stag: u32,
    /// Tagged offset of its first octet.
    pub offset: u64,
}

impl Place {
    /// Of a region.
    pub fn of(region: &MemoryRegion) -> Self {
        Self { stag: region.stag(), offset: region.remote_offset() }
    }

    /// As private data.
    pub fn to_octets(self) -> Vec<u8> {
        let mut octets = self.stag.to_be_bytes().to_vec();
        octets.extend(self.offset.to_be_bytes());
        octets
    }

    /// From private data.
    pub fn from_octets(octets: &[u8]) -> Self {
        let (stag, offset) = octets.split_at(4);
        Self {
            stag: u32::from_be_bytes(stag.try_into().expect("four octets")),
            offset: u64::from_be_bytes(offset.try_into().expect("eight octets")),
        }
    }
}

/// A queue pair, its completions of both queues, and a region that the peer may access.
#[derive(Debug)]
pub struct Endpoint {
    /// The queue pair; every request is signalled.
    pub queue_pair: QueuePair,
    /// Its completions.
    pub completions: CompletionQueue,
    /// The region.
    pub region: MemoryRegion,
    /// The domain of both.
    pub domain: ProtectionDomain,
    /// The peer's region, once connected.
    pub place: Option<Place>,
}

impl Endpoint {
    /// An idle queue pair with a region of `octets`.
    pub fn new(context: &Context, octets: usize) -> Self {
        let domain = context.allocate_domain();
        let completions = context.create_completion_queue(256).expect("a completion queue");
        let options = QueuePairOptions::new(&completions).depth(64, 64).signal_all();
        let queue_pair = domain.create_queue_pair(&options).expect("a queue pair");
        let region = domain.register(vec![0; octets], Access::ALL).expect("a region");
        Self { queue_pair, completions, region, domain, place: None }
    }

    /// Connects to the server.
    pub fn connect(&mut self, context: &Context) {
        let options = ConnectOptions::default().private_data(Place::of(&self.region).to_octets());
        let established = connect(context, &mut self.queue_pair, options);
        self.place = Some(Place::from_octets(&established.private_data));
    }

    /// Accepts the next request.
    pub fn accept(&mut self, context: &Context, listener: &mut Listener) {
        let request = listener.next(PATIENCE).expect("the listener works");
        let request = request.unwrap_or_else(|| panic!("no request came: {:#?}", context.stats()));
        self.accept_request(context, request);
    }

    /// Accepts this request.
    pub fn accept_request(&mut self, context: &Context, request: ConnectRequest) {
        self.place = Some(Place::from_octets(request.private_data()));
        let options = AcceptOptions::default().private_data(Place::of(&self.region).to_octets()).timeout(PATIENCE);
        request
            .accept(&mut self.queue_pair.control, options)
            .unwrap_or_else(|error| panic!("{error}: {:#?}", context.stats()));
    }

    /// The peer's place.
    pub fn place(&self) -> Place {
        self.place.expect("connected")
    }

    /// Posts requests that fit.
    pub fn post(&mut self, requests: &[SendRequest<'_>]) {
        let posted = self.queue_pair.send.post(requests).expect("the send queue takes requests");
        assert_eq!(posted, requests.len());
    }

    /// Posts a receive into part of the region.
    pub fn post_receive(&mut self, id: u64, range: std::ops::Range<usize>) {
        let sge = self.region.sge(range).expect("inside the region");
        self.queue_pair.receive.post(&[ReceiveRequest::new(id, &[sge])]).expect("the receive queue takes requests");
    }

    /// The next completion, which must be a success.
    pub fn success(&mut self) -> Completion {
        let completion = self.completions.next(PATIENCE).expect("the queue works");
        let completion = completion.unwrap_or_else(|| {
            panic!(
                "no completion came; {:?}: {:#?}",
                self.queue_pair.control.state(),
                self.queue_pair.control.tcp_info()
            )
        });
        assert_eq!(
            completion.status,
            Status::Success,
            "{completion:?} {:?}",
            self.queue_pair.control.disconnect_reason()
        );
        completion
    }

    /// Ends the connection properly and waits for the end.
    pub fn disconnect(&mut self) {
        self.queue_pair.control.disconnect();
        assert!(
            self.queue_pair.control.wait_disconnected(PATIENCE).expect("waiting works"),
            "the connection does not end"
        );
    }
}

/// Octets that depend on position and seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

/// The initiator's side of an exchange: writes its pattern to the peer, sends a message, and reads both its own and the
/// peer's pattern. Sends and receives use octets `0..64` of the region; the data is behind them.
pub fn exchange(endpoint: &mut Endpoint, seed: u64, length: usize) {
    let (ours, sink) = (64..64 + length, 64 + length..64 + 2 * length);
    let octets = pattern(seed, length);
    endpoint.region.write(ours.start, &octets).expect("inside the region");
    endpoint.region.fill(sink.clone(), 0).expect("inside the region");
    let place = endpoint.place();
    let source = endpoint.region.sge(ours).expect("inside the region");
    let target = endpoint.region.sge(sink.clone()).expect("inside the region");
    let remote = place.offset + sink.start as u64;
    endpoint.post_receive(1, 0..64);
    endpoint.post(&[
        SendRequest::write(2, &[source], place.stag, remote),
        SendRequest::send_inline(3, &seed.to_be_bytes()),
        SendRequest::read(4, &[target], place.stag, remote),
    ]);
    let mut ids: Vec<u64> = (0..4).map(|_| endpoint.success().id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4]);
    assert!(
        endpoint.region.to_vec(sink.start, length).expect("inside the region") == octets,
        "read back what was written"
    );
    let answer = endpoint.region.to_vec(0, 8).expect("inside the region");
    assert_eq!(answer, (!seed).to_be_bytes(), "the peer found what was written");
}

/// Posts the receive that [`answer`] needs, before the connection is established, since the initiator sends first.
pub fn prepare_answer(endpoint: &mut Endpoint) {
    endpoint.post_receive(1, 0..64);
}

/// The other side of an exchange: checks what was written, and answers. Posts the next receive first.
pub fn answer(endpoint: &mut Endpoint, length: usize) {
    let received = endpoint.success();
    assert_eq!((received.id, received.length), (1, 8));
    let octets = endpoint.region.to_vec(0, 8).expect("inside the region");
    let seed = u64::from_be_bytes(octets.try_into().expect("eight octets"));
    let found = endpoint.region.to_vec(64 + length, length).expect("inside the region");
    assert!(found == pattern(seed, length), "the peer's Write arrived whole");
    prepare_answer(endpoint);
    endpoint.post(&[SendRequest::send_inline(2, &(!seed).to_be_bytes())]);
    assert_eq!(endpoint.success().id, 2);
}

/// Connects a queue pair to the server, as soon as the device has a link.
pub fn connect(context: &Context, queue_pair: &mut QueuePair, options: ConnectOptions) -> Established {
    let start = Instant::now();
    // A pair in one process has no port.
    while !context.stats().port.is_none_or(|port| port.link_up) {
        assert!(start.elapsed() < PATIENCE, "the device has no link: {:#?}", context.stats());
        context.poll();
        pause();
    }
    let server = std::net::SocketAddr::from(([10, 0, 0, 1], PORT));
    let established = context.connect(&mut queue_pair.control, server, options.timeout(PATIENCE));
    established.unwrap_or_else(|error| panic!("{error}: {:#?}", context.stats()))
}
