//! Threads that have nothing to do sleep, and miss nothing that happens meanwhile.

mod common;

use common::*;
use std::time::{Duration, Instant};
use uwarp::stats::EngineStats;
use uwarp::{AcceptOptions, ConnectOptions, Context, ListenOptions, ReceiveRequest, SendRequest};

fn engine(context: &Context) -> EngineStats {
    context.stats().engines.remove(0)
}

/// Sleeps of an engine so far.
fn sleeps(context: &Context) -> u64 {
    let wakeups = engine(context).counters.wakeups;
    wakeups.device + wakeups.doorbell + wakeups.timer
}

/// Sleeps of the calling thread so far.
fn own_sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn messages_to_engines_that_are_about_to_sleep_arrive() {
    let (first, second) = [1, 2]
        .map(|host| {
            let mut config = config(host, Mode::Threaded);
            config.engine.spin = Duration::from_micros(50);
            config
        })
        .into();
    let (first, second) = Context::pair_in_process(first, second).unwrap();
    let (mut client, mut server) = (Side::new(&first), Side::new(&second));
    connect(&mut client, &mut server);
    let mut random = fastrand::Rng::with_seed(1);
    let before = [sleeps(&first), sleeps(&second)];
    for id in 0..1000 {
        server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        // Before, while and after an engine falls asleep.
        let (pause, start) = (Duration::from_micros(random.u64(0..150)), Instant::now());
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
        if id % 10 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        client.qp.send.post(&[SendRequest::send(id, &[]).signalled()]).unwrap();
        server.expect(id);
        client.expect(id);
    }
    for (context, before) in [&first, &second].into_iter().zip(before) {
        assert!(sleeps(context) > before + 10, "the engine did sleep: {:?}", engine(context).counters.wakeups);
    }
}

#[test]
fn idle_engines_and_idle_waits_sleep() {
    let (client, _server) = connected(Mode::Threaded);
    let events = client.context.events();
    // The announcements of both ends are over.
    while events.wait(Duration::from_millis(1500)).unwrap().is_some() {}
    let (before, own_before) = (sleeps(&client.context), own_sleeps());
    assert!(events.wait(Duration::from_secs(2)).unwrap().is_none());
    let own = own_sleeps() - own_before;
    assert!(own <= 5, "a wait for an event woke {own} times in 2 s");
    let engine = sleeps(&client.context) - before;
    // Once a second, for the question about it, and for a keep-alive probe.
    assert!(engine <= 20, "an idle engine woke {engine} times in 2 s");
}

#[test]
fn a_thread_that_waits_for_an_inline_engine_sleeps() {
    let (first, second) = (config(1, Mode::Inline), config(2, Mode::Threaded));
    let (first, second) = Context::pair_in_process(first, second).unwrap();
    let (mut client, mut server) = (Side::new(&first), Side::new(&second));
    let mut listener = second.listen(PORT, ListenOptions::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next(LONG).unwrap().expect("a connection request");
            request.accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
        });
        first.connect(&mut client.qp.control, second.socket_address(PORT), ConnectOptions::default()).unwrap();
    });
    assert!(!client.cq.wait(Duration::from_millis(1500)).unwrap());
    let before = own_sleeps();
    assert!(!client.cq.wait(Duration::from_secs(2)).unwrap());
    let own = own_sleeps() - before;
    assert!(own <= 20, "an idle wait woke {own} times in 2 s");

    // A message ends the sleep. The initiator has to speak first.
    server.qp.receive.post(&[ReceiveRequest::new(3, &[])]).unwrap();
    client.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
    client.qp.send.post(&[SendRequest::send(2, &[]).signalled()]).unwrap();
    client.expect(2);
    server.expect(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            server.qp.send.post(&[SendRequest::send(4, &[]).signalled()]).unwrap();
            server.expect(4);
        });
        client.expect(1);
    });
}
