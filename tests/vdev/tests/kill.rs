//! A peer that is killed under load costs only its connections: the survivor's posted work completes, it learns of the
//! end, its memory is returned, and the next peer is served.
//!
//! Per device and role, 4 peers are killed, 2 for tap; 200 in the long run.

use serde::{Deserialize, Serialize};
use uwarp::{Context, DisconnectReason, ListenOptions, Listener};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, answer, exchange, prepare_answer};
use uwarp_vdev_tests::load::{Load, REGION};
use uwarp_vdev_tests::network::{Device, Network, Side, Wire};
use uwarp_vdev_tests::peer::{self, Peer};
use uwarp_vdev_tests::{PATIENCE, count, pause};

/// Connections of a pair of processes.
const CONNECTIONS: usize = 4;
/// Octets in each direction of the exchange that shows that a new peer is served.
const EXCHANGE: usize = 100_000;
/// Once in this many rounds, the next peer starts only after the survivor has detected the loss.
const PATIENT: usize = 10;

#[derive(Serialize, Deserialize)]
struct Task {
    wire: Wire,
    side: Side,
    /// Seed of the load; `None`: an exchange and a proper end.
    load: Option<u64>,
}

/// Makes the connections of one side.
struct Host {
    context: Context,
    listener: Option<Listener>,
}

impl Host {
    /// The server has a thread for its engine; the client turns it itself.
    fn open(wire: &Wire, side: Side) -> Self {
        let config = wire.config(side);
        let config = if side == Side::Server { config.threaded(1) } else { config.inline() };
        let context = Context::open(config).expect("the context opens");
        let listener =
            (side == Side::Server).then(|| context.listen(PORT, ListenOptions::default()).expect("a free port"));
        Self { context, listener }
    }

    fn connect(&mut self, prepare: impl Fn(&mut Endpoint)) -> Endpoint {
        let mut endpoint = Endpoint::new(&self.context, REGION);
        prepare(&mut endpoint);
        match &mut self.listener {
            Some(listener) => endpoint.accept(&self.context, listener),
            None => endpoint.connect(&self.context),
        }
        endpoint
    }

    fn load(&mut self, seed: u64) -> Load {
        let first = self.listener.is_none();
        let endpoints = (0..CONNECTIONS).map(|_| self.connect(Load::prepare)).collect();
        Load::new(endpoints, first, seed)
    }

    fn exchange(&mut self) {
        if self.listener.is_some() {
            let mut endpoint = self.connect(prepare_answer);
            answer(&mut endpoint, EXCHANGE);
            assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap(), "the peer disconnects");
        } else {
            let mut endpoint = self.connect(|_| {});
            exchange(&mut endpoint, 7, EXCHANGE);
            endpoint.disconnect();
        }
    }
}

fn be_peer(task: &Task) {
    let mut host = Host::open(&task.wire, task.side);
    let words = peer::words();
    peer::tell("open");
    // Meanwhile it answers what was meant for its predecessor.
    while words.try_recv().is_err() {
        host.context.poll();
        pause();
    }
    match task.load {
        Some(seed) => {
            let mut load = host.load(seed);
            loop {
                load.turn(&host.context, false);
            }
        }
        None => host.exchange(),
    }
}

/// No connection is left, and no more buffers are in use than the device's rings hold.
fn nothing_is_left(host: &Host, round: usize) {
    let start = std::time::Instant::now();
    loop {
        host.context.poll();
        let stats = host.context.stats();
        let engine = &stats.engines[0];
        let pools = engine.pools;
        let ring = u32::from(host.context.config().buffers.descriptors.max(1024)) + 128;
        let rest = engine.flows == 0
            && engine.connections.is_empty()
            && engine.buffers_held == 0
            && stats.objects.queue_pairs == 0
            && stats.objects.regions == 0
            && pools.receive_total - pools.receive_free <= ring
            && pools.transmit_total - pools.transmit_free <= ring;
        if rest {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "round {round}: something is left: {stats:#?}");
        pause();
    }
}

fn survive(name: &str, device: Device, own: Side) {
    if let Some(task) = peer::task::<Task>() {
        return be_peer(&task);
    }
    let Some(network) = Network::new(device) else { return };
    // The kernel's devices are much alike.
    let rounds = count(if device == Device::Tap { 2 } else { 4 }, 200);
    let mut random = fastrand::Rng::with_seed(rounds as u64);
    let start = |load| Peer::start(name, &Task { wire: network.wire.clone(), side: own.other(), load });
    // Some client devices open only when the other side is there.
    let mut next = (own == Side::Client).then(|| start(Some(0)));
    let mut host = Host::open(&network.wire, own);
    for round in 0..rounds {
        let mut peer = next.take().unwrap_or_else(|| start(Some(round as u64)));
        peer.await_word("open", || {
            host.context.poll();
        });
        peer.say("begin");
        let mut load = host.load(!(round as u64));
        let wanted = random.u64(200..5000);
        while load.completed() < wanted {
            load.turn(&host.context, false);
            peer.must_run();
        }
        peer.kill();
        let patient = round % PATIENT == PATIENT.min(rounds) / 2;
        if !patient {
            next = Some(start(Some(round as u64 + 1)));
        }
        let reasons = load.finish(&host.context);
        eprintln!("round {round}: {wanted} completions, then {reasons:?}");
        for reason in reasons {
            // A killed peer sends nothing; a new one at its address answers with a reset.
            let expected =
                matches!(reason, DisconnectReason::TimedOut) || !patient && matches!(reason, DisconnectReason::Reset);
            assert!(expected, "round {round}: {reason:?}");
        }
        nothing_is_left(&host, round);
    }
    drop(next);
    let mut last = start(None);
    last.await_word("open", || {
        host.context.poll();
    });
    last.say("begin");
    host.exchange();
    assert!(
        last.end(|| {
            host.context.poll();
        })
        .success()
    );
    nothing_is_left(&host, rounds);
}

#[test]
fn a_virtio_server_survives() {
    survive("a_virtio_server_survives", Device::Virtio, Side::Server);
}

#[test]
fn a_virtio_client_survives() {
    survive("a_virtio_client_survives", Device::Virtio, Side::Client);
}

#[test]
fn a_memif_server_survives() {
    survive("a_memif_server_survives", Device::Memif, Side::Server);
}

#[test]
fn a_memif_client_survives() {
    survive("a_memif_client_survives", Device::Memif, Side::Client);
}

#[test]
fn an_af_packet_server_survives() {
    survive("an_af_packet_server_survives", Device::AfPacket, Side::Server);
}

#[test]
fn an_af_packet_client_survives() {
    survive("an_af_packet_client_survives", Device::AfPacket, Side::Client);
}

#[test]
fn a_tap_server_survives() {
    survive("a_tap_server_survives", Device::Tap, Side::Server);
}

#[test]
fn a_tap_client_survives() {
    survive("a_tap_client_survives", Device::Tap, Side::Client);
}
