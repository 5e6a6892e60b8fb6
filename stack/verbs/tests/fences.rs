//! What a peer may do: the queue pair says it beside the regions, and may change its mind at any time.

mod common;

use common::*;
use uwarp::{
    AcceptOptions, Access, ConnectOptions, DisconnectReason, Features, ListenOptions, QueuePairChange, SendRequest,
    Status,
};

const KINDS: [Access; 3] = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
/// Octets of a Write or a Read: several segments.
const LENGTH: usize = 50_000;

fn without(kind: Access) -> Access {
    KINDS.into_iter().filter(|other| *other != kind).fold(Access::LOCAL_WRITE, |rights, right| rights | right)
}

fn changed(access: Access) -> QueuePairChange {
    QueuePairChange { access: Some(access), ..QueuePairChange::default() }
}

fn connect_with_atomics(client: &mut Side, server: &mut Side) {
    let features = Features { atomics: true, ..Features::default() };
    let mut listener = server.context.listen(PORT, ListenOptions::default()).unwrap();
    let peer = server.context.socket_address(PORT);
    let options = ConnectOptions::default().features(features);
    let connecting = client.context.start_connect(&mut client.qp.control, peer, options).unwrap();
    let request = listener.next(LONG).unwrap().unwrap();
    let accepting = request.start_accept(&mut server.qp.control, AcceptOptions::default().features(features)).unwrap();
    connecting.wait(&mut client.qp.control).unwrap();
    accepting.wait(&mut server.qp.control).unwrap();
}

/// Does something with the beginning of a region of the server, and gives how that ended.
fn access(client: &mut Side, kind: Access, (stag, offset): (u32, u64)) -> Status {
    let own = [client.mr.sge(..LENGTH).unwrap()];
    let request = match kind {
        Access::REMOTE_WRITE => SendRequest::write(1, &own, stag, offset),
        Access::REMOTE_READ => SendRequest::read(1, &own, stag, offset),
        _ => SendRequest::fetch_add(1, stag, offset, 1),
    };
    client.qp.send.post(&[request.signalled()]).unwrap();
    client.complete().status
}

/// The end of a connection whose peer does what it may not.
fn refused(client: &mut Side, server: &mut Side, kind: Access, target: (u32, u64)) -> Option<DisconnectReason> {
    let status = access(client, kind, target);
    // A Write completes when TCP has it.
    assert!(status == Status::RemoteAccess || kind == Access::REMOTE_WRITE, "{kind:?}: {status:?}");
    for side in [client, &mut *server] {
        assert!(side.qp.control.wait_disconnected(LONG).unwrap());
    }
    server.qp.control.disconnect_reason()
}

#[test]
fn a_peer_may_do_what_region_and_queue_pair_allow() {
    in_both_modes(|mode| {
        for kind in KINDS {
            let (a, b) = pair(mode);
            let (mut client, mut server) = (Side::new(&a), Side::new(&b));
            let whole = (server.mr.stag(), server.mr.remote_offset());
            assert_eq!(server.qp.control.query().access, Access::ALL);
            // Before and during a connection, and like new behind it.
            for early in [true, false] {
                if early {
                    server.qp.control.modify(changed(without(kind))).unwrap();
                }
                connect_with_atomics(&mut client, &mut server);
                if !early {
                    for kind in KINDS {
                        assert_eq!(access(&mut client, kind, whole), Status::Success);
                    }
                    server.qp.control.modify(changed(without(kind))).unwrap();
                }
                assert_eq!(server.qp.control.query().access, without(kind));
                for other in KINDS.into_iter().filter(|other| *other != kind) {
                    assert_eq!(access(&mut client, other, whole), Status::Success);
                }
                // A Write that is told to have completed may not be there yet.
                let other = if kind == Access::REMOTE_READ { Access::REMOTE_ATOMIC } else { Access::REMOTE_READ };
                assert_eq!(access(&mut client, other, whole), Status::Success);
                let before = server.octets(0, LENGTH);
                client.mr.write(0, &pattern(early.into(), LENGTH)).unwrap();
                let by_queue_pair = refused(&mut client, &mut server, kind, whole);
                assert_eq!(server.octets(0, LENGTH), before);
                for side in [&mut client, &mut server] {
                    side.qp.control.reset(&mut side.qp.send).unwrap();
                }
                assert_eq!(server.qp.control.query().access, Access::ALL);
                // As of a region without the right.
                connect_with_atomics(&mut client, &mut server);
                let region = server.pd.register(vec![0; LENGTH], without(kind)).unwrap();
                let target = (region.stag(), region.remote_offset());
                let by_region = refused(&mut client, &mut server, kind, target);
                assert!(matches!(by_region, Some(DisconnectReason::LocalTerminated(_))), "{by_region:?}");
                assert_eq!(by_queue_pair, by_region, "{kind:?}");
                for side in [&mut client, &mut server] {
                    side.qp.control.reset(&mut side.qp.send).unwrap();
                }
            }
        }
    });
}

/// Nothing is placed any more when the call returns, however much is under way.
#[test]
fn a_fence_stops_a_stream_of_writes() {
    for _ in 0..20 {
        let (mut client, mut server) = connected(Mode::Threaded);
        let target = (server.mr.stag(), server.mr.remote_offset());
        let writer = std::thread::spawn(move || {
            for round in 1_u64.. {
                client.mr.write(0, &[round as u8; 8]).unwrap();
                let own = [client.mr.sge(..8).unwrap()];
                let request = SendRequest::write(round, &own, target.0, target.1).signalled();
                if client.qp.send.post(&[request]).is_err() || !client.complete().status.is_success() {
                    return;
                }
            }
        });
        until(&[], "the first Write", || server.mr.load_acquire_u8(0).unwrap() != 0);
        server.qp.control.modify(changed(Access::LOCAL_READ)).unwrap();
        let fenced = server.octets(0, 8);
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
        writer.join().unwrap();
        assert_eq!(server.octets(0, 8), fenced);
    }
}
