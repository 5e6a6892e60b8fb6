//! An engine that panics when it is told to: the process and its waiters have to survive it.

use super::watched::Watch;
use crate::config::Config;
use crate::runtime::prepare;
use crate::{
    Access, AsyncEvent, ConnectOptions, Context, Error, ListenOptions, PostErrorReason, QueuePairOptions,
    ReceiveRequest, SendRequest, Status,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turner {
    Inline,
    Thread,
    /// The application's polls, while the thread stands back.
    Polls,
}

fn panics_and_lives(turner: Turner) {
    let config = |host: u8| {
        let config = Config::without_device(&format!("10.0.0.{host}/24"))
            .unwrap()
            .without_monitor()
            .linger(Duration::from_millis(100));
        let mut config = if turner == Turner::Inline { config.inline() } else { config };
        config.engine.poll_turns = Some(turner == Turner::Polls);
        config
    };
    let watch = Arc::new(Watch::default());
    let (a, b) = prepare::prepare_watched_pair(config(1), config(2), &watch).unwrap();
    let (a, b) = (Context::from_prepared(a), Context::from_prepared(b));
    a.start().unwrap();
    b.start().unwrap();
    let mut cq_a = a.create_completion_queue(64).unwrap();
    let cq_b = b.create_completion_queue(64).unwrap();
    let (pd_a, pd_b) = (a.allocate_domain(), b.allocate_domain());
    let mut qp_a = pd_a.create_queue_pair(&QueuePairOptions::new(&cq_a)).unwrap();
    let mut qp_b = pd_b.create_queue_pair(&QueuePairOptions::new(&cq_b)).unwrap();
    let mut listener = b.listen(1, ListenOptions::default()).unwrap();
    let connecting = a.start_connect(&mut qp_a.control, b.socket_address(1), ConnectOptions::default()).unwrap();
    let request = listener.next(LONG).unwrap().unwrap();
    let accepting = request.start_accept(&mut qp_b.control, crate::AcceptOptions::default()).unwrap();
    connecting.wait(&mut qp_a.control).unwrap();
    accepting.wait(&mut qp_b.control).unwrap();
    let events = a.events();
    qp_a.receive.post(&[ReceiveRequest::new(5, &[])]).unwrap();
    assert!(!cq_a.wait(Duration::from_millis(1)).unwrap());

    let deadline = std::time::Instant::now() + LONG;
    if turner == Turner::Polls {
        // The wait has armed the queue, whose polls leave the engine to the thread until something comes.
        let mut other = a.create_completion_queue(4).unwrap();
        while a.shared().engines[0].helm().try_take().is_none() {
            assert!(std::time::Instant::now() < deadline, "the engine's thread never stood back");
            for _ in 0..1000 {
                assert!(other.poll_one().is_none());
            }
        }
        watch.panics.store(true, Ordering::Relaxed);
        assert!(other.poll_one().is_none());
    }
    watch.panics.store(true, Ordering::Relaxed);
    // The waiter wakes with the flushed work, and only then is told why there will be no more.
    let completion = cq_a.next(LONG).unwrap().unwrap();
    assert_eq!(completion.id, 5);
    assert!(matches!(completion.status, Status::Fatal | Status::Flushed), "{completion:?}");
    let error = cq_a.next(LONG).unwrap_err();
    assert!(matches!(error, Error::EngineFailed { engine: 0, .. }), "{error}");
    assert!(error.to_string().contains("told to panic"), "{error}");
    assert!(matches!(
        events.try_next(),
        Some(AsyncEvent::DeviceFatal { cause }) if cause.contains("told to panic")
    ));
    assert!(qp_a.control.wait_disconnected(LONG).unwrap());
    let error = qp_a.send.post(&[SendRequest::send(1, &[])]).unwrap_err();
    assert_eq!(error.reason, PostErrorReason::Dead);
    assert!(a.create_completion_queue(1).is_err());
    assert!(pd_a.register(vec![0; 4], Access::ALL).is_err());
    assert_eq!(a.stats().silent_engines.len(), 1);
    // The other context goes on, and both close.
    assert!(b.create_completion_queue(1).is_ok());
    drop((qp_a, cq_a, pd_a, a));
    drop((qp_b, cq_b, pd_b, b));
}

#[test]
fn a_panicking_inline_engine_is_a_fatal_event() {
    panics_and_lives(Turner::Inline);
}

#[test]
fn a_panicking_engine_thread_is_a_fatal_event() {
    panics_and_lives(Turner::Thread);
}

#[test]
fn a_panic_in_a_poll_is_a_fatal_event_and_stays_out_of_the_program() {
    panics_and_lives(Turner::Polls);
}

/// As a thread that waits for a connection's end, or for events, must not take the end of another engine for it.
#[test]
fn who_waits_for_an_engine_outlasts_the_panic_of_another() {
    let config = |host: u8| {
        let mut config = Config::without_device(&format!("10.0.0.{host}/24"))
            .unwrap()
            .without_monitor()
            .linger(Duration::from_millis(100));
        config.engine.count = 2;
        config
    };
    let watch = Arc::new(Watch::default());
    let (a, b) = prepare::prepare_watched_pair(config(1), config(2), &watch).unwrap();
    let (a, b) = (Context::from_prepared(a), Context::from_prepared(b));
    a.start().unwrap();
    b.start().unwrap();
    let (cq_a, cq_b) = (a.create_completion_queue(64).unwrap(), b.create_completion_queue(64).unwrap());
    let (pd_a, pd_b) = (a.allocate_domain(), b.allocate_domain());
    let mut listener = b.listen(1, ListenOptions::default()).unwrap();
    // Connections go to the engines in turn.
    let mut pairs = [(); 2].map(|()| {
        let mut qp_a = pd_a.create_queue_pair(&QueuePairOptions::new(&cq_a)).unwrap();
        let mut qp_b = pd_b.create_queue_pair(&QueuePairOptions::new(&cq_b)).unwrap();
        let connecting = a.start_connect(&mut qp_a.control, b.socket_address(1), ConnectOptions::default()).unwrap();
        let request = listener.next(LONG).unwrap().unwrap();
        let accepting = request.start_accept(&mut qp_b.control, crate::AcceptOptions::default()).unwrap();
        connecting.wait(&mut qp_a.control).unwrap();
        accepting.wait(&mut qp_b.control).unwrap();
        (qp_a, qp_b)
    });
    if pairs[0].0.control.query().engine != Some(0) {
        pairs.swap(0, 1);
    }
    let [(qp_watched, _qp_its_peer), (qp, qp_of_peer)] = &mut pairs;
    assert_eq!((qp_watched.control.query().engine, qp.control.query().engine), (Some(0), Some(1)));

    let events = a.events();
    watch.panics.store(true, Ordering::Relaxed);
    // Wakes the engine.
    a.stats();
    assert!(matches!(events.wait(LONG).unwrap(), Some(AsyncEvent::DeviceFatal { .. })));
    assert!(qp_watched.control.wait_disconnected(LONG).unwrap());
    while !a.shared().engines[0].health().is_stopped() {
        std::thread::yield_now();
    }
    let short = Duration::from_millis(50);
    assert!(!qp.control.wait_disconnected(short).unwrap(), "its engine runs");
    assert!(qp.control.tcp_info().unwrap().is_some(), "and answers");
    while events.try_next().is_some() {}
    let before = std::time::Instant::now();
    assert!(events.wait(short).unwrap().is_none());
    assert!(before.elapsed() >= short, "another event may come");
    qp_of_peer.control.abort();
    assert!(qp.control.wait_disconnected(LONG).unwrap());
}
