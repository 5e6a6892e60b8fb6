//! A queue pair in parts, which different threads own.

mod common;

use common::*;
use uwarp::{
    AcceptOptions, ConnectOptions, Features, ListenOptions, PostError, PostErrorReason, QueuePair, QueuePairControl,
    QueuePairState, ReceiveHalf, ReceiveRequest, SendHalf, SendRequest, Status,
};

fn reason(posted: Result<usize, PostError>) -> Option<PostErrorReason> {
    posted.err().map(|error| error.reason)
}

fn parts(queue_pair: QueuePair) -> (QueuePairControl, SendHalf, ReceiveHalf) {
    (queue_pair.control, queue_pair.send, queue_pair.receive)
}

#[test]
fn three_threads_own_the_parts_of_a_queue_pair() {
    const MESSAGES: u64 = 5_000;
    let (client, server) = connected(Mode::Threaded);
    let Side { qp: sender, cq: mut sent, mr: source, .. } = client;
    let Side { qp: receiver, cq: mut received, mr: sink, context: _there, .. } = server;
    let (mut connection, mut send, receive) = parts(sender);
    let (mut peer_connection, _peer_send, mut peer_receive) = parts(receiver);
    assert_eq!((send.number(), peer_connection.state()), (connection.number(), QueuePairState::Connected));
    // The peer of this side sends nothing, so this half idles.
    drop(receive);
    std::thread::scope(|scope| {
        // A credit for each receive that was posted.
        let (credit, credits) = std::sync::mpsc::channel();
        let (sink, source) = (&sink, &source);
        scope.spawn(move || {
            let mut id = 0;
            while id < MESSAGES {
                let at = (id % 64) as usize * 8;
                match peer_receive.post(&[ReceiveRequest::new(id, &[sink.sge(at..at + 8).unwrap()])]) {
                    Ok(posted) => {
                        assert_eq!(posted, 1);
                        id += 1;
                        credit.send(()).unwrap();
                    }
                    Err(error) => {
                        assert_eq!(error.reason, PostErrorReason::Full);
                        std::thread::yield_now();
                    }
                }
            }
        });
        scope.spawn(move || {
            for id in 0..MESSAGES {
                credits.recv().unwrap();
                let entry = [source.sge(..8).unwrap()];
                send.post(&[SendRequest::send(id, &entry).signalled()]).unwrap();
                assert_eq!(sent.next(LONG).unwrap().map(|done| (done.id, done.status)), Some((id, Status::Success)));
            }
        });
        for id in 0..MESSAGES {
            let completion = received.next(LONG).unwrap().expect("a message comes");
            assert_eq!((completion.id, completion.status, completion.length), (id, Status::Success, 8));
        }
    });
    connection.disconnect();
    assert!(connection.wait_disconnected(LONG).unwrap());
    assert!(peer_connection.wait_disconnected(LONG).unwrap());
}

#[test]
fn the_send_half_is_ready_before_anybody_looks_at_the_outcome() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (mut client, mut server) = (Side::new(&a), Side::new(&b));
        let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
        let immediate = Features { immediate: true, ..Features::default() };
        let options = ConnectOptions::default().features(immediate);
        assert_eq!(reason(client.qp.send.post(&[SendRequest::send(1, &[])])), Some(PostErrorReason::NotConnected));
        let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
        let request = listener.next(LONG).unwrap().expect("a connection request");
        for id in 0..2 {
            server.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
            client.qp.receive.post(&[ReceiveRequest::new(id, &[])]).unwrap();
        }
        let accepting =
            request.start_accept(&mut server.qp.control, AcceptOptions::default().features(immediate)).unwrap();
        // Nobody looks at the outcomes: the engines have made the connection.
        until(&[&a, &b], "the send half is ready", || {
            match reason(client.qp.send.post(&[SendRequest::immediate(2, 77).signalled()])) {
                Some(other) => {
                    assert_eq!(other, PostErrorReason::NotConnected);
                    false
                }
                None => true,
            }
        });
        client.expect(2);
        assert_eq!(server.expect(0).immediate_data(), Some(77));
        server.qp.send.post(&[SendRequest::immediate(3, 78).signalled()]).unwrap();
        assert_eq!(client.expect(0).immediate_data(), Some(78));
        server.expect(3);
        // What was not agreed on is refused as ever.
        let atomic = reason(client.qp.send.post(&[SendRequest::fetch_add(4, 1, 0, 1)]));
        assert!(matches!(atomic, Some(PostErrorReason::NotAgreed { .. })), "{atomic:?}");
        connecting.wait(&mut client.qp.control).unwrap();
        accepting.wait(&mut server.qp.control).unwrap();
    });
}

#[test]
fn halves_refuse_work_once_the_queue_pair_is_gone() {
    let (mut client, mut server) = connected(Mode::Threaded);
    let idle = Side::new(&client.context).qp;
    let dead = |send: &mut SendHalf, receive: &mut ReceiveHalf| {
        reason(send.post(&[SendRequest::send(1, &[])])) == Some(PostErrorReason::Dead)
            && reason(receive.post(&[ReceiveRequest::new(1, &[])])) == Some(PostErrorReason::Dead)
    };
    let gone = |(control, send, receive): (QueuePairControl, SendHalf, ReceiveHalf)| {
        drop(control);
        (send, receive)
    };
    // No engine ever knew it.
    let (mut send, mut receive) = gone(parts(idle));
    assert!(dead(&mut send, &mut receive));
    server.qp.receive.post(&[ReceiveRequest::new(1, &[])]).unwrap();
    let (mut send, mut receive) = {
        let (control, mut send, receive) = parts(client.qp);
        send.post(&[SendRequest::send_inline(7, b"").signalled()]).unwrap();
        gone((control, send, receive))
    };
    assert_eq!(client.cq.next(LONG).unwrap().map(|done| (done.id, done.status)), Some((7, Status::Success)));
    server.expect(1);
    assert!(server.qp.control.wait_disconnected(LONG).unwrap());
    until(&[&client.context], "the queue pair is forgotten", || {
        client.context.stats();
        dead(&mut send, &mut receive)
    });
}
