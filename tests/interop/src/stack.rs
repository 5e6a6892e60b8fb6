//! The stack under test, set up the same way by every test.

use std::time::Duration;

use uwarp::{
    AcceptOptions, Access, Completion, CompletionQueue, Config, Context, DeviceConfig, Established, ListenOptions,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions,
};

/// Longest wait for anything, far beyond what a loaded machine needs: only a real hang fails a test.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A context at `address`, on a device whose other end is the kernel's.
pub fn open(device: DeviceConfig, address: &str) -> Context {
    let mut config = Config::new(device, address).expect("a good address").without_monitor();
    // The peers read exactly what they expect, however slow they are.
    config.mpa.nudge_after = Duration::ZERO;
    Context::open(uwarp_middlebox::behind(config)).expect("the context opens")
}

/// A queue pair with its completion queue and a region that the peer may read and write.
pub struct Endpoint {
    /// The queue pair.
    pub queue_pair: QueuePair,
    /// Its completions, of both queues.
    pub completions: CompletionQueue,
    /// Memory that the peer may access; the first half is the source of sends and writes, the second their sink.
    pub region: MemoryRegion,
    /// The domain of both.
    pub domain: ProtectionDomain,
}

impl Endpoint {
    /// An idle queue pair with a region of 64 KiB.
    pub fn new(context: &Context) -> Self {
        Self::with_region(context, 1 << 16)
    }

    /// An idle queue pair with a region of `octets` octets.
    pub fn with_region(context: &Context, octets: usize) -> Self {
        let domain = context.allocate_domain();
        let completions = context.create_completion_queue(256).expect("a completion queue");
        let queue_pair = domain
            .create_queue_pair(&QueuePairOptions::new(&completions).depth(64, 64).signal_all())
            .expect("a queue pair");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = domain.register(vec![0; octets], rights).expect("a region");
        Self { queue_pair, completions, region, domain }
    }

    /// The next completion; waits for it.
    pub fn completion(&mut self) -> Completion {
        self.completions.next(PATIENCE).expect("the queue works").expect("a completion before patience ends")
    }

    /// `count` octets of the region from `offset` on.
    pub fn octets(&self, offset: usize, count: usize) -> Vec<u8> {
        let mut octets = vec![0; count];
        self.region.read(offset, &mut octets).expect("inside the region");
        octets
    }

    /// Listens on `port`, calls `ready`, and accepts the first request on this queue pair.
    pub fn accept(&mut self, context: &Context, port: u16, ready: impl FnOnce()) -> Established {
        let mut listener = context.listen(port, ListenOptions::default()).expect("a free port");
        ready();
        let request = listener.next(PATIENCE).expect("the listener works");
        let request = request.unwrap_or_else(|| panic!("no request came: {:#?}", context.stats()));
        let options = AcceptOptions::default().private_data(request.private_data());
        request.accept(&mut self.queue_pair.control, options).expect("the start-up succeeds")
    }
}
