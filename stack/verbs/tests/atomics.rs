//! Atomic operations as verbs have them: a right of their own, and the former value in memory.

mod common;

use common::*;
use uwarp::{
    AcceptOptions, Access, ConnectOptions, DisconnectReason, Features, ListenOptions, MemoryRegion, PostErrorReason,
    ReceiveRequest, SendRequest, Sge, Status, TerminateCode,
};

const ATOMICS: Features = Features { atomics: true, immediate: false, commit: false, infiniband: false };

/// A connected pair, (client, server), and a word of the server's that atomics alone may reach.
fn with_word(mode: Mode) -> (Side, Side, MemoryRegion) {
    let (a, b) = pair(mode);
    let (mut client, mut server) = (Side::new(&a), Side::new(&b));
    let mut listener = b.listen(PORT, ListenOptions::default()).unwrap();
    let options = ConnectOptions::default().features(ATOMICS);
    let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
    let request = listener.next(LONG).unwrap().expect("a connection request");
    let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default().features(ATOMICS)).unwrap();
    connecting.wait(&mut client.qp.control).unwrap();
    accepting.wait(&mut server.qp.control).unwrap();
    let word = server.pd.register(vec![0; 64], Access::REMOTE_ATOMIC).unwrap();
    (client, server, word)
}

#[test]
fn the_former_value_goes_into_memory_in_the_machines_octet_order() {
    in_both_modes(|mode| {
        let (mut client, mut server, word) = with_word(mode);
        client.speak_first(&server);
        word.store_release_u64(8, 0x0102_0304_0506_0708).unwrap();
        let (stag, offset) = (word.stag(), word.remote_offset() + 8);
        let sinks: Vec<Sge> = (0..5).map(|index| client.mr.sge(8 * index..8 * index + 8).unwrap()).collect();
        let sink = |index: usize| sinks[index];
        client
            .qp
            .send
            .post(&[
                SendRequest::fetch_add(1, stag, offset, 1).original_into(sink(0)),
                SendRequest::fetch_add(2, stag, offset, 1),
                SendRequest::compare_swap(3, stag, offset, 0x0102_0304_0506_070a, 7).original_into(sink(1)),
                SendRequest::fetch_add(4, stag, offset, 1).original_into(sink(2)).signalled(),
            ])
            .unwrap();
        assert_eq!(client.expect(4).original_value(), Some(7));
        // Those without a completion have stored theirs before.
        let stored: Vec<u64> = (0..3).map(|index| client.mr.load_acquire_u64(8 * index).unwrap()).collect();
        assert_eq!(stored, [0x0102_0304_0506_0708, 0x0102_0304_0506_070a, 7]);
        assert_eq!(client.octets(24, 8), [0; 8], "nothing behind them");
        assert_eq!(word.load_acquire_u64(8).unwrap(), 8);
        // What a fence keeps back may send the value on, whatever else is not done yet.
        server.qp.receive.post(&[ReceiveRequest::new(9, &[server.mr.sge(..8).unwrap()])]).unwrap();
        client.mr.write(1000, &[1; 5000]).unwrap();
        let far = (server.mr.stag(), server.mr.remote_offset() + 1000);
        client
            .qp
            .send
            .post(&[
                SendRequest::write(5, &[client.mr.sge(1000..6000).unwrap()], far.0, far.1).complete_on_ack(),
                SendRequest::fetch_add(6, stag, offset, 0).original_into(sink(4)),
                SendRequest::send(7, &[sink(4)]).fenced().signalled(),
            ])
            .unwrap();
        client.expect(7);
        assert_eq!(server.expect(9).length, 8);
        assert_eq!(server.mr.load_acquire_u64(0).unwrap(), 8);
    });
}

#[test]
fn a_sink_that_cannot_take_the_value_is_refused() {
    for (sink, status) in [
        // No right to write there, no such memory, gone beyond the end.
        (None, Status::LocalProtection),
        (Some(Sge { stag: 0x1234_5678, length: 8, offset: 0 }), Status::LocalProtection),
        (Some(Sge { stag: 0, length: 8, offset: REGION as u64 - 4 }), Status::LocalProtection),
    ] {
        let (mut client, mut server, word) = with_word(Mode::Inline);
        client.speak_first(&server);
        let readable = client.pd.register(vec![0; 8], Access::REMOTE_READ).unwrap();
        let sink = match sink {
            None => readable.sge(..).unwrap(),
            Some(Sge { stag: 0, length, offset }) => {
                Sge { stag: client.mr.stag(), length, offset: client.mr.remote_offset() + offset }
            }
            Some(sink) => sink,
        };
        let (stag, offset) = (word.stag(), word.remote_offset());
        client.qp.send.post(&[SendRequest::fetch_add(1, stag, offset, 1).original_into(sink)]).unwrap();
        let failed = client.complete();
        assert_eq!((failed.id, failed.status, failed.original_value()), (1, status, None));
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
        assert_eq!(word.load_acquire_u64(0).unwrap(), 0, "the peer was not asked");
    }
    let (mut client, _server, word) = with_word(Mode::Inline);
    let request = SendRequest::fetch_add(1, word.stag(), word.remote_offset(), 1);
    for length in [0, 4, 7, 9, 16] {
        let refused = client.qp.send.post(&[request.original_into(client.mr.sge(..length).unwrap())]).unwrap_err();
        assert_eq!((refused.posted, refused.reason), (0, PostErrorReason::AtomicSink));
    }
}

#[test]
fn a_sink_that_goes_while_the_answer_is_awaited_ends_the_connection() {
    let (mut client, mut server, word) = with_word(Mode::Inline);
    client.speak_first(&server);
    let sink = client.pd.register(vec![0; 8], Access::LOCAL_WRITE).unwrap();
    let entry = sink.sge(..).unwrap();
    client
        .qp
        .send
        .post(&[SendRequest::fetch_add(1, word.stag(), word.remote_offset(), 1).original_into(entry)])
        .unwrap();
    // The request leaves; the peer's engine does not turn, so no answer comes before the sink is gone.
    for _ in 0..10 {
        client.context.poll();
    }
    assert_eq!(sink.deregister(), [0; 8]);
    let failed = client.complete();
    assert_eq!((failed.id, failed.status), (1, Status::LocalProtection));
    assert!(server.qp.control.wait_disconnected(LONG).unwrap());
    assert_eq!(word.load_acquire_u64(0).unwrap(), 1, "it was carried out");
}

#[test]
fn the_right_to_atomics_is_no_right_to_write_or_read_otherwise() {
    const ACCESS: [TerminateCode; 2] =
        [TerminateCode { layer: 1, error_type: 1, code: 0 }, TerminateCode { layer: 0, error_type: 1, code: 2 }];
    for (reads, code) in [(false, ACCESS[0]), (true, ACCESS[1])] {
        let (mut client, mut server, word) = with_word(Mode::Inline);
        let (stag, offset) = (word.stag(), word.remote_offset());
        client.qp.send.post(&[SendRequest::fetch_add(1, stag, offset, 5).signalled()]).unwrap();
        assert_eq!(client.expect(1).original_value(), Some(0));
        let sink = [client.mr.sge(..8).unwrap()];
        client
            .qp
            .send
            .post(&[if reads {
                SendRequest::read(2, &sink, stag, offset)
            } else {
                SendRequest::write_inline(2, &[1; 8], stag, offset)
            }])
            .unwrap();
        assert!(
            client.qp.control.wait_disconnected(LONG).unwrap() && server.qp.control.wait_disconnected(LONG).unwrap()
        );
        assert_eq!(
            client.qp.control.disconnect_reason(),
            Some(DisconnectReason::PeerTerminated(code)),
            "reads: {reads}"
        );
        assert_eq!(word.load_acquire_u64(0).unwrap(), 5);
    }
}
