//! Two contexts joined in this process, and connections between them.
#![allow(dead_code)] // Each test binary uses its part.

use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, Completion, CompletionQueue, Config, ConnectOptions, Context, Established, ListenOptions,
    Listener, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, Status,
};

/// Far longer than anything takes: only a defect makes a test wait for it.
pub const LONG: Duration = Duration::from_secs(30);
/// The port that tests listen on.
pub const PORT: u16 = 7471;

/// Who turns the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Inline,
    Threaded,
}

/// Runs a test with inline and with threaded engines.
pub fn in_both_modes(test: impl Fn(Mode)) {
    for mode in [Mode::Inline, Mode::Threaded] {
        eprintln!("mode {mode:?}");
        test(mode);
    }
}

/// A configuration for one side of a pair; 10.0.0.`host`.
pub fn config(host: u8, mode: Mode) -> Config {
    let config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor();
    let mut config = uwarp_middlebox::behind(config);
    config.limits.queue_pairs = 256;
    config.tcp.time_wait = Duration::from_millis(10);
    // Lost SYNs and ARP requests of the fault tests are sent again soon.
    config.tcp.rto_initial = Duration::from_millis(20);
    match mode {
        Mode::Inline => config.inline(),
        Mode::Threaded => config.threaded(1),
    }
}

/// Two contexts, 10.0.0.1 and 10.0.0.2.
pub fn pair(mode: Mode) -> (Context, Context) {
    Context::pair_in_process(config(1, mode), config(2, mode)).unwrap()
}

/// All that one side of a connection needs.
pub struct Side {
    pub qp: QueuePair,
    pub cq: CompletionQueue,
    pub mr: MemoryRegion,
    pub pd: ProtectionDomain,
    pub context: Context,
    pub established: Option<Established>,
}

/// Octets of each side's region.
pub const REGION: usize = 1 << 20;

impl Side {
    pub fn new(context: &Context) -> Self {
        Self::with(context, |options| options)
    }

    pub fn with(context: &Context, change: impl for<'a> Fn(QueuePairOptions<'a>) -> QueuePairOptions<'a>) -> Self {
        let pd = context.allocate_domain();
        let cq = context.create_completion_queue(1024).unwrap();
        let mr = pd.register(vec![0; REGION], Access::ALL).unwrap();
        let options = QueuePairOptions::new(&cq).limits(4, 256);
        let qp = pd.create_queue_pair(&change(options)).unwrap();
        Self { qp, cq, mr, pd, context: context.clone(), established: None }
    }

    /// The next completion, which must come.
    pub fn complete(&mut self) -> Completion {
        match self.cq.next(LONG).unwrap() {
            Some(completion) => completion,
            None => {
                panic!("no completion within the time limit: {:?} {:#?}", self.qp.control.state(), self.context.stats())
            }
        }
    }

    /// The next completion, which must be a success of this request.
    pub fn expect(&mut self, id: u64) -> Completion {
        let completion = self.complete();
        assert_eq!((completion.id, completion.status), (id, Status::Success), "{completion:?}");
        completion
    }

    /// Writes an octet to the end of the peer's region and waits for it.
    pub fn speak_first(&mut self, peer: &Side) {
        let offset = peer.mr.remote_offset() + REGION as u64 - 1;
        self.qp.send.post(&[uwarp::SendRequest::write_inline(0, &[1], peer.mr.stag(), offset)]).unwrap();
        let contexts = [&self.context, &peer.context];
        until(&contexts, "the first octet", || peer.mr.load_acquire_u8(REGION - 1).unwrap() == 1);
    }

    /// Waits until an octet of the region has a value.
    pub fn await_octet(&self, offset: usize, value: u8) {
        let deadline = std::time::Instant::now() + LONG;
        while self.mr.load_acquire_u8(offset).unwrap() != value {
            assert!(std::time::Instant::now() < deadline, "the octet never came");
            self.context.poll();
            std::thread::yield_now();
        }
    }

    pub fn octets(&self, offset: usize, length: usize) -> Vec<u8> {
        self.mr.to_vec(offset, length).unwrap()
    }
}

/// Connects two idle sides by a listener that exists already.
pub fn connect_by(listener: &mut Listener, client: &mut Side, server: &mut Side) {
    let peer = server.context.socket_address(listener.port());
    let connecting = client
        .context
        .start_connect(&mut client.qp.control, peer, ConnectOptions::default().private_data(b"hello".as_slice()))
        .unwrap();
    let request = listener.next(LONG).unwrap().expect("a connection request");
    assert_eq!(request.private_data(), b"hello");
    let accepting = request
        .start_accept(&mut server.qp.control, AcceptOptions::default().private_data(b"welcome".as_slice()))
        .unwrap();
    let established = connecting.wait(&mut client.qp.control).unwrap();
    assert_eq!(established.private_data, b"welcome");
    client.established = Some(established);
    server.established = Some(accepting.wait(&mut server.qp.control).unwrap());
}

/// Connects two idle sides.
pub fn connect(client: &mut Side, server: &mut Side) {
    let mut listener = server.context.listen(PORT, ListenOptions::default()).unwrap();
    connect_by(&mut listener, client, server);
}

/// A connected pair: (client, server).
pub fn connected(mode: Mode) -> (Side, Side) {
    let (a, b) = pair(mode);
    let (mut client, mut server) = (Side::new(&a), Side::new(&b));
    connect(&mut client, &mut server);
    (client, server)
}

/// Octets that differ from place to place.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut octets = vec![0; length];
    random.fill(&mut octets);
    octets
}

/// Turns both contexts until a condition holds.
pub fn until(contexts: &[&Context], what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        for context in contexts {
            context.poll();
        }
        std::thread::yield_now();
    }
}
