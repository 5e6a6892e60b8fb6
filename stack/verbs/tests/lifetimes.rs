//! What is left, and what has been delivered, when things are dropped.

mod common;

use common::*;
use std::collections::BTreeMap;
use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, ConnectOptions, Context, FaultOptions, ListenOptions, QueuePairOptions, ReceiveRequest,
    SendRequest, Status,
};

#[test]
fn any_order_of_dropping_ends_well() {
    in_both_modes(|mode| {
        for order in 0..6 {
            let (client, server) = connected(mode);
            let Side { qp, cq, mr, pd, context, .. } = client;
            match order {
                0 => {
                    drop(context);
                    drop(pd);
                    drop(mr);
                    drop(cq);
                    drop(qp);
                }
                1 => {
                    drop(cq);
                    drop(qp);
                    drop(context);
                    drop(mr);
                    drop(pd);
                }
                2 => {
                    drop(mr);
                    drop(context);
                    drop(qp);
                    drop(pd);
                    drop(cq);
                }
                3 => {
                    context.close().unwrap();
                    drop((qp, cq, pd, mr));
                }
                4 => {
                    drop(server);
                    drop((cq, qp, context, mr, pd));
                    continue;
                }
                _ => {
                    drop(pd);
                    drop(context);
                    drop(cq);
                    drop(mr);
                    drop(qp);
                }
            }
            drop(server);
        }
    });
}

/// Flushed receives that nobody has read keep a queue pair, but no longer than its context.
#[test]
fn a_closed_context_leaves_nothing_behind() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    in_both_modes(|mode| {
        let mut before = 0;
        for round in 0..5 {
            let (mut client, server) = connected(mode);
            client.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
            let Side { qp, cq, mr, pd, context, .. } = client;
            context.close().unwrap();
            drop(qp);
            drop((cq, mr, pd));
            drop(server);
            // The first round opens what the process keeps.
            if round == 0 {
                before = descriptors();
            }
        }
        assert_eq!(descriptors(), before);
    });
}

#[test]
fn calls_after_closing_fail_clearly() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        client.context.clone().close().unwrap();
        assert!(client.context.create_completion_queue(4).is_err());
        assert!(client.pd.register(vec![0; 4], Access::ALL).is_err());
        assert!(client.context.listen(PORT, ListenOptions::default()).is_err());
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        assert!(client.cq.wait(Duration::from_millis(1)).is_err());
        // The peer has seen an orderly end.
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
    });
}

#[test]
fn dropping_a_queue_pair_flushes_its_work() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        server.qp.receive.post(&[ReceiveRequest::new(1, &[]), ReceiveRequest::new(2, &[])]).unwrap();
        let number = server.qp.control.number();
        drop(server.qp);
        assert!(client.qp.control.wait_disconnected(LONG).unwrap());
        drop(client.qp);
        for id in [1, 2] {
            let flushed = server.cq.next(LONG).unwrap().unwrap();
            assert_eq!((flushed.id, flushed.status, flushed.queue_pair), (id, Status::Flushed, number));
        }
    });
}

#[test]
fn what_was_completed_is_delivered_although_everything_is_dropped() {
    in_both_modes(|mode| {
        for seed in 0..5 {
            let (mut client, mut server) = connected(mode);
            let faults = FaultOptions { loss: 5.0, seed, ..uwarp_middlebox::faults() };
            client.context.set_faults(Some(faults)).unwrap();
            server.context.set_faults(Some(FaultOptions { seed: seed + 100, ..faults })).unwrap();
            let octets = pattern(seed, 500_000);
            client.mr.write(0, &octets).unwrap();
            client
                .qp
                .send
                .post(&[SendRequest::write(
                    1,
                    &[client.mr.sge(..octets.len()).unwrap()],
                    server.mr.stag(),
                    server.mr.remote_offset(),
                )
                .signalled()])
                .unwrap();
            client.expect(1);
            // As if main returned now. Inline, both engines share this thread, and closing turns both.
            drop(client);
            assert!(server.qp.control.wait_disconnected(LONG).unwrap());
            assert!(server.octets(0, octets.len()) == octets, "seed {seed}");
        }
    });
}

/// Buffers, connections and objects in use: none when nothing is left of anything.
fn in_use(context: &Context) -> BTreeMap<&'static str, u64> {
    let stats = context.stats();
    assert!(stats.silent_engines.is_empty());
    let mut use_of = BTreeMap::new();
    for engine in &stats.engines {
        *use_of.entry("transmit buffers").or_default() +=
            u64::from(engine.pools.transmit_total - engine.pools.transmit_free);
        *use_of.entry("buffers held").or_default() += engine.buffers_held;
        *use_of.entry("flows").or_default() += engine.flows;
        *use_of.entry("connections").or_default() += engine.connections.len() as u64;
        *use_of.entry("queue pairs of the engine").or_default() += engine.queue_pairs.len() as u64;
    }
    use_of.insert("queue pairs", stats.objects.queue_pairs as u64);
    use_of.insert("completion queues", stats.objects.completion_queues as u64);
    use_of.insert("regions", stats.objects.regions as u64);
    use_of.insert("octets", stats.objects.registered_octets);
    use_of
}

#[test]
fn nothing_is_left_of_many_connections() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        for round in 0..100_u64 {
            let (mut client, mut server) = (Side::new(&a), Side::new(&b));
            connect_by(&mut listener, &mut client, &mut server);
            server
                .qp
                .receive
                .post(&[ReceiveRequest::new(round, &[server.mr.sge(..100).unwrap()]), ReceiveRequest::new(round, &[])])
                .unwrap();
            client.qp.send.post(&[SendRequest::send(round, &[client.mr.sge(..100).unwrap()]).signalled()]).unwrap();
            client.expect(round);
            server.expect(round);
            match round % 3 {
                0 => client.qp.control.disconnect(),
                1 => server.qp.control.abort(),
                _ => {}
            }
        }
        // Not as much as at the start, when announcements of the addresses may be under way.
        let is_idle = |context| in_use(context).values().all(|count| *count == 0);
        until(&[&a, &b], "everything is given back", || is_idle(&a) && is_idle(&b));
    });
}

#[test]
fn numbers_come_back_when_connections_have_ended() {
    // More connections in a row than the limit of queue pairs.
    in_both_modes(|mode| {
        let mut small = config(1, mode);
        small.limits.queue_pairs = 4;
        let (a, b) = Context::pair_in_process(small, config(2, mode)).unwrap();
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        for _ in 0..20 {
            let mut client = loop {
                let cq = a.create_completion_queue(16).unwrap();
                let pd = a.allocate_domain();
                match pd.create_queue_pair(&QueuePairOptions::new(&cq)) {
                    Ok(qp) => break (qp, cq),
                    // Those before still linger.
                    Err(_) => {
                        a.poll();
                        b.poll();
                        std::thread::yield_now();
                    }
                }
            };
            let mut server = Side::new(&b);
            let connecting =
                a.start_connect(&mut client.0.control, b.socket_address(PORT), ConnectOptions::default()).unwrap();
            let request = listener.next(LONG).unwrap().unwrap();
            let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default()).unwrap();
            let _ = connecting.wait(&mut client.0.control).unwrap();
            let _ = accepting.wait(&mut server.qp.control).unwrap();
        }
    });
}

#[test]
fn a_completion_queues_number_comes_back_when_its_queue_pairs_are_gone() {
    in_both_modes(|mode| {
        let mut small = config(1, mode);
        small.limits.completion_queues = 1;
        let (a, b) = Context::pair_in_process(small, config(2, mode)).unwrap();
        for _ in 0..3 {
            let mut queue = None;
            until(&[&a, &b], "a completion queue", || {
                queue = a.create_completion_queue(16).ok();
                queue.is_some()
            });
            let cq = queue.unwrap();
            let mut qp = a.allocate_domain().create_queue_pair(&QueuePairOptions::new(&cq)).unwrap();
            let refused = a.connect(&mut qp.control, b.socket_address(PORT), ConnectOptions::default());
            assert!(refused.is_err(), "nobody listens");
            // The queue pair is with an engine, and holds the queue until that has forgotten it.
            drop(qp);
        }
    });
}

#[test]
fn a_queue_pair_that_is_gone_shares_its_domain_with_nobody() {
    in_both_modes(|mode| {
        let (mut first, mut server) = connected(mode);
        first.qp.control.disconnect();
        assert!(
            first.qp.control.wait_disconnected(LONG).unwrap() && server.qp.control.wait_disconnected(LONG).unwrap()
        );
        server.qp = server.pd.create_queue_pair(&QueuePairOptions::new(&server.cq)).unwrap();
        let mut second = Side::new(&first.context);
        connect(&mut second, &mut server);
        second.speak_first(&server);
        server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
        // Of the whole domain, which is one queue pair's alone now (RFC 5040 §8.1.1).
        second.qp.send.post(&[SendRequest::send(2, &[]).invalidate(server.mr.stag())]).unwrap();
        assert_eq!(server.expect(1).invalidated_stag(), Some(server.mr.stag()));
    });
}

#[test]
fn a_pair_of_which_one_cannot_start_leaves_nothing() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut bad = config(2, Mode::Threaded);
    bad.pcap = Some("/nonexistent/frames.pcap".into());
    Context::pair_in_process(config(1, Mode::Threaded), bad).unwrap_err();
    let mut bad = config(1, Mode::Threaded);
    bad.monitor.enabled = true;
    bad.monitor.socket = Some("/nonexistent/monitor.sock".into());
    Context::pair_in_process(bad, config(2, Mode::Threaded)).unwrap_err();
    until(&[], "the engines' threads end", || threads() <= before);
}

#[test]
fn regions_are_given_back_as_they_are() {
    let (client, _server) = connected(Mode::Threaded);
    client.mr.write(3, b"content").unwrap();
    let octets = client.mr.deregister();
    assert_eq!(octets.len(), REGION);
    assert_eq!(&octets[3..10], b"content");
}
