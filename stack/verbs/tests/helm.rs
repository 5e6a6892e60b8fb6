//! Engines that the application's polls turn, while their threads stand back.

mod common;

use common::*;
use std::time::{Duration, Instant};
use uwarp::config::Idle;
use uwarp::{Context, ReceiveRequest, SendRequest, Status};

/// A connected pair. The server's polls turn its engine, and so do the client's if `both`. Their threads never sleep
/// because they are idle.
fn pair_that_polls(both: bool) -> (Side, Side) {
    let [first, second] = [1, 2].map(|host| {
        let mut config = config(host, Mode::Threaded);
        config.engine.idle = Idle::Spin;
        config.engine.poll_turns = Some(both || host == 2);
        config
    });
    let (first, second) = Context::pair_in_process(first, second).unwrap();
    let (mut client, mut server) = (Side::new(&first), Side::new(&second));
    connect(&mut client, &mut server);
    (client, server)
}

/// How often the thread of a context's engine has slept.
fn sleeps(context: &Context) -> u64 {
    let name = format!("uwarp-{}-0", context.id());
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if std::fs::read_to_string(task.join("comm")).unwrap_or_default().trim() == name {
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            return line.trim().parse().unwrap();
        }
    }
    panic!("no thread {name}");
}

/// Polls until the side's thread has stood back several times.
fn poll_until_relieved(side: &mut Side) {
    let (before, deadline) = (sleeps(&side.context), Instant::now() + LONG);
    while sleeps(&side.context) < before + 3 {
        assert!(Instant::now() < deadline, "the engine's thread never stood back: {:#?}", side.context.stats());
        for _ in 0..10_000 {
            assert!(side.cq.poll_one().is_none());
        }
    }
}

/// The next completion, by polling alone.
fn poll(side: &mut Side, id: u64) {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(completion) = side.cq.poll_one() {
            assert_eq!((completion.id, completion.status), (id, Status::Success), "{completion:?}");
            return;
        }
        assert!(Instant::now() < deadline, "no completion {id}: {:#?}", side.context.stats());
    }
}

#[test]
fn messages_arrive_by_polling_alone_while_the_threads_stand_back() {
    let (mut client, mut server) = pair_that_polls(true);
    for id in 0..200 {
        if id % 50 == 0 {
            poll_until_relieved(&mut server);
            poll_until_relieved(&mut client);
        }
        server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::send(id, &[]).signalled()]).unwrap();
        poll(&mut client, id);
        poll(&mut server, id);
    }
}

#[test]
fn an_application_that_polls_and_then_waits_is_woken() {
    let (mut client, mut server) = pair_that_polls(false);
    for id in 0..20 {
        server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        poll_until_relieved(&mut server);
        client.qp.send.post(&[SendRequest::send(id, &[]).signalled()]).unwrap();
        server.expect(id);
        client.expect(id);
    }
}

#[test]
fn a_peer_gets_acknowledgments_of_an_application_that_has_stopped_polling() {
    let (mut client, mut server) = pair_that_polls(false);
    let (stag, offset) = (server.mr.stag(), server.mr.remote_offset());
    for id in 0..20 {
        poll_until_relieved(&mut server);
        let octet = [id as u8];
        let write = SendRequest::write_inline(id, &octet, stag, offset).complete_on_ack().signalled();
        client.qp.send.post(&[write]).unwrap();
        client.expect(id);
    }
}

#[test]
fn commands_reach_a_thread_that_stands_back() {
    let (_client, mut server) = pair_that_polls(false);
    for _ in 0..20 {
        poll_until_relieved(&mut server);
        assert!(server.context.stats().silent_engines.is_empty());
        drop(server.context.create_completion_queue(4).unwrap());
    }
    poll_until_relieved(&mut server);
}

#[test]
fn two_threads_poll_two_queues_of_one_context() {
    let [first, second] = [1, 2].map(|host| {
        let mut config = config(host, Mode::Threaded);
        config.engine.poll_turns = Some(true);
        config
    });
    let (first, second) = Context::pair_in_process(first, second).unwrap();
    let mut listener = second.listen(PORT, uwarp::ListenOptions::default()).unwrap();
    let pairs: Vec<_> = (0..2)
        .map(|_| {
            let (mut client, mut server) = (Side::new(&first), Side::new(&second));
            connect_by(&mut listener, &mut client, &mut server);
            (client, server)
        })
        .collect();
    std::thread::scope(|scope| {
        for (mut client, mut server) in pairs {
            scope.spawn(move || {
                for id in 0..500 {
                    server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
                    client.qp.send.post(&[SendRequest::send(id, &[]).signalled()]).unwrap();
                    poll(&mut client, id);
                    poll(&mut server, id);
                    if id % 100 == 0 {
                        // The other thread has the engine to itself.
                        std::thread::sleep(Duration::from_millis(3));
                    }
                }
            });
        }
    });
}
