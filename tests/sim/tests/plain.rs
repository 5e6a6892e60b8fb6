//! Plain streams over a network that loses, reorders, duplicates and corrupts, by seed: every octet, in both
//! directions, until both halves are closed.

use std::time::Duration;

use crossbeam::channel::unbounded;
use uwarp_engine::command::{
    Command, ConnectionEvent, ConversionParameters, ConversionRole, EventSink, StartupOptions,
};
use uwarp_engine::stream::{StreamEnds, StreamOptions};
use uwarp_engine::work::SendOpcode;
use uwarp_sim_tests::pairs::{SECOND, element};
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{HostOptions, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

const PORT: u16 = 7;
const HOUR: Duration = Duration::from_secs(3600);

/// One direction of a stream: how much was written, and how much was read.
struct Half {
    random: fastrand::Rng,
    expected: fastrand::Rng,
    length: u64,
    written: u64,
    read: u64,
    /// Reading pauses until then, occasionally.
    pause: Instant,
}

impl Half {
    fn new(seed: u64, length: u64) -> Half {
        let random = fastrand::Rng::with_seed(seed);
        Half { expected: random.clone(), random, length, written: 0, read: 0, pause: Instant::ZERO }
    }

    fn write(&mut self, stream: &mut StreamEnds, choice: &mut fastrand::Rng) {
        let left = (self.length - self.written) as usize;
        if left == 0 {
            return stream.finish();
        }
        let most = match choice.u32(0..4) {
            0 => 1,
            1 => 100,
            2 => 5_000,
            _ => 100_000,
        };
        // Nothing is drawn if there is no room.
        let count = left.min(choice.usize(1..=most)).min(stream.writable());
        let octets: Vec<u8> = (0..count).map(|_| self.random.u8(..)).collect();
        assert_eq!(stream.write(&octets), count);
        self.written += count as u64;
    }

    fn read(&mut self, now: Instant, stream: &mut StreamEnds, choice: &mut fastrand::Rng) -> Result<(), String> {
        if now < self.pause {
            return Ok(());
        }
        if choice.u32(0..200) == 0 {
            self.pause = now + Duration::from_micros(choice.u64(0..50_000));
        }
        let mut room = [0; 9_000];
        let size = choice.usize(1..=room.len());
        let count = stream.read(&mut room[..size]);
        for octet in &room[..count] {
            if *octet != self.expected.u8(..) {
                return Err(format!("octet {} is wrong", self.read));
            }
            self.read += 1;
        }
        Ok(())
    }

    fn is_over(&self, stream: &mut StreamEnds) -> bool {
        self.read == self.length && stream.is_at_end()
    }
}

/// One stream; returns the number of frames that devices had to cut.
fn run(seed: u64) -> Result<u64, String> {
    let mut choice = fastrand::Rng::with_seed(seed);
    let mut rate = |most: f64| if choice.bool() { choice.f64() * most } else { 0.0 };
    let network = SimOptions {
        loss: rate(0.05),
        duplication: rate(0.05),
        reordering: rate(0.1),
        corruption: rate(0.02),
        delay: Duration::from_micros(5),
        ..SimOptions::default()
    };
    let mut world = World::new(seed, SimOptions { delay: Duration::from_micros(choice.u64(1..200)), ..network });
    for _ in 0..2 {
        let mtu = [576, 1500, 9000][choice.usize(0..3)];
        // Some devices compute checksums and cut segments out of longer frames.
        let segmentation = if seed % 4 == 1 { 65_000 } else { 0 };
        world.add(HostOptions { mtu, segmentation, ..HostOptions::default() }, |config| {
            config.tcp.timestamps = choice.bool();
            config.tcp.sack = choice.bool();
        });
    }
    let mut options = || StreamOptions {
        send_buffer: 4096 << choice.u32(0..6),
        receive_buffer: 4096 << choice.u32(0..8),
        nagle: choice.bool(),
        ..StreamOptions::default()
    };
    let incoming = world.hosts[1].listen_streams(PORT, 8, options());
    let mut client = world.hosts[0].connect_stream((world.hosts[1].address, PORT), options());
    let mut server = None;
    if !world.run_until(HOUR, |_| {
        server = incoming.try_recv().ok().and_then(|incoming| incoming.take());
        server.is_some() || client.failure().is_some()
    }) {
        return Err("nobody came".into());
    }
    let Some(mut server) = server else { return Err(format!("no connection: {:?}", client.failure())) };
    let mut length = || if choice.u32(0..5) == 0 { 0 } else { choice.u64(1..400_000) };
    let (mut up, mut down) = (Half::new(seed ^ 1, length()), Half::new(seed ^ 2, length()));
    let mut wrong = Ok(());
    world.run_until(HOUR, |world| {
        if client.is_open() {
            up.write(&mut client, &mut choice);
        }
        down.write(&mut server, &mut choice);
        wrong = up
            .read(world.now(), &mut server, &mut choice)
            .and_then(|()| down.read(world.now(), &mut client, &mut choice));
        wrong.is_err() || up.is_over(&mut server) && down.is_over(&mut client)
    });
    // A connection may end while a reader pauses: then nothing happens until it reads.
    for _ in 0..1_000_000 {
        if wrong.is_err() || up.is_over(&mut server) && down.is_over(&mut client) {
            break;
        }
        let now = world.now() + HOUR;
        wrong = up.read(now, &mut server, &mut choice).and_then(|()| down.read(now, &mut client, &mut choice));
        (up.pause, down.pause) = (Instant::ZERO, Instant::ZERO);
    }
    wrong?;
    let over = up.is_over(&mut server) && down.is_over(&mut client);
    let failures = (client.failure(), server.failure());
    if !over || failures != (None, None) {
        return Err(format!(
            "over: {over}, {failures:?}; up {} of {}, down {} of {}",
            up.read, up.length, down.read, down.length
        ));
    }
    drop((client, server));
    world.network.set_options(SimOptions::default());
    let gone = world.run_until(HOUR, |world| {
        world.hosts.iter().all(|host| host.engine.as_ref().is_some_and(|engine| engine.flow_count() == 0))
    });
    let held: usize = world.hosts.iter().flat_map(|host| &host.engine).map(|engine| engine.buffers_held()).sum();
    if !gone || held > 0 {
        return Err(format!("gone: {gone}, {held} buffers held"));
    }
    Ok(world.hosts.iter().flat_map(|host| &host.engine).map(|engine| engine.stats().counters.frames_to_be_cut).sum())
}

#[test]
fn every_octet_comes_through_whatever_the_network_does() {
    let long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let seeds = if long { 2_000 } else { 60 };
    if !long {
        eprintln!("{seeds} seeds; UWARP_LONG=1 runs 2,000");
    }
    let cut: u64 = (0..seeds).map(|seed| run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"))).sum();
    assert!(cut > 100, "{cut} frames for devices to cut");
}

/// Nagle's algorithm was chosen for text: no record of an RDMA stream waits for the one before.
#[test]
fn a_stream_that_has_become_rdma_sends_small_records_at_once() {
    const FLIGHT: Duration = Duration::from_millis(10);
    let mut world = World::new(1, SimOptions { delay: FLIGHT, ..SimOptions::default() });
    for _ in 0..2 {
        world.add(HostOptions::default(), |_| {});
    }
    let options = StreamOptions { nagle: true, ..StreamOptions::default() };
    let incoming = world.hosts[1].listen_streams(PORT, 128, options.clone());
    let client = world.hosts[0].connect_stream((world.hosts[1].address, PORT), options);
    let mut server = None;
    assert!(world.run_until(SECOND, |_| {
        server = incoming.try_recv().ok();
        server.is_some() && client.is_open()
    }));
    let server = server.and_then(|incoming| incoming.take()).expect("it came");
    let [mut here, there] = [0, 1].map(|host| world.hosts[host].pair(PairOptions::default()));
    let (requests, came) = unbounded();
    let options = StartupOptions::default();
    let roles = [
        ConversionRole::Initiator { queue_pair: here.number, options: options.clone() },
        ConversionRole::Responder { requests: EventSink::new(requests, None), timeout: SECOND },
    ];
    for (host, (ends, role)) in [client, server].into_iter().zip(roles).enumerate() {
        let handle = ends.handle().expect("it is open");
        let (returned, _) = unbounded();
        let parameters = ConversionParameters { handle, ends, returned, role };
        world.hosts[host].command(Command::ConvertStream(Box::new(parameters)));
    }
    assert!(world.run_until(SECOND, |world| {
        if let Ok(request) = came.try_recv() {
            world.hosts[1].accept(&there, &request, options.clone());
        }
        matches!(here.events.try_recv(), Ok(ConnectionEvent::Established(_)))
    }));
    world.run(SECOND);
    for id in 0..3 {
        assert!(here.post(element(id, SendOpcode::Send), &[], &[]));
        here.ring();
        world.run(FLIGHT / 10);
        let tcp = world.hosts[0].engine.as_ref().expect("alive").stats().connections.swap_remove(0).tcp;
        assert_eq!(
            (tcp.unsent, tcp.in_flight > 0),
            (0, true),
            "none waits for an acknowledgment, which takes two flights"
        );
    }
}
