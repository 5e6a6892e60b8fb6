//! Memory windows, registration by work requests, and what makes STags invalid.

mod common;

use common::*;
use uwarp::{
    Access, CompletionOpcode, DisconnectReason, ReceiveRequest, RegionOptions, RegionScope, SendRequest, Status,
    TerminateCode,
};

const INVALID_STAG: TerminateCode = TerminateCode { layer: 1, error_type: 1, code: 0 };
const CANNOT_BE_INVALIDATED: TerminateCode = TerminateCode { layer: 0, error_type: 2, code: 9 };

/// Waits until both ends are over; gives why the client's is.
fn over(client: &mut Side, server: &mut Side) -> Option<DisconnectReason> {
    assert!(client.qp.control.wait_disconnected(LONG).unwrap());
    assert!(server.qp.control.wait_disconnected(LONG).unwrap());
    client.qp.control.disconnect_reason()
}

#[test]
fn a_window_gives_the_peer_rights_and_takes_them_back() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let region = server.pd.register(vec![0; 4096], Access::LOCAL_WRITE).unwrap();
        let mut window = server.pd.allocate_window().unwrap();
        client.speak_first(&server);
        let part = region.sge(1000..2000).unwrap();
        let mut former = Vec::new();
        for round in 1..=3 {
            let bind = window.bind(round, &part, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
            assert!(!former.contains(&window.stag()), "each bind has a key of its own");
            server.qp.send.post(&[bind.signalled()]).unwrap();
            let bound = server.expect(round);
            assert_eq!((bound.opcode, bound.length), (CompletionOpcode::Bind, 0));
            assert!(window.is_valid());
            assert_eq!((window.len(), window.is_empty()), (1000, false));
            let (stag, offset) = (window.stag(), window.remote_offset());
            let octets = [round as u8; 1000];
            client.mr.write(0, &octets).unwrap();
            let source = [client.mr.sge(..1000).unwrap()];
            let sink = [client.mr.sge(5000..6000).unwrap()];
            client
                .qp
                .send
                .post(&[
                    SendRequest::write(10, &source, stag, offset),
                    SendRequest::read(11, &sink, stag, offset).signalled(),
                ])
                .unwrap();
            client.expect(11);
            assert_eq!(client.octets(5000, 1000), octets);
            assert_eq!(region.to_vec(1000, 1000).unwrap(), octets);
            assert_eq!((region.to_vec(999, 1).unwrap(), region.to_vec(2000, 1).unwrap()), (vec![0], vec![0]));
            server.qp.send.post(&[SendRequest::local_invalidate(round, stag).signalled()]).unwrap();
            assert_eq!(server.expect(round).opcode, CompletionOpcode::LocalInvalidate);
            assert!(!window.is_valid());
            former.push(stag);
        }
        let refused = [SendRequest::write_inline(12, b"x", former[2], window.remote_offset())];
        client.qp.send.post(&refused).unwrap();
        assert_eq!(over(&mut client, &mut server), Some(DisconnectReason::PeerTerminated(INVALID_STAG)));
        assert_eq!(region.to_vec(1000, 1).unwrap(), [3]);
    });
}

#[test]
fn a_window_bound_and_announced_in_one_list_is_there_when_the_peer_hears_of_it() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let region = server.pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        let mut window = server.pd.allocate_window().unwrap();
        client.speak_first(&server);
        for round in 0..20u8 {
            client.qp.receive.post(&[ReceiveRequest::new(1, &[client.mr.sge(..4).unwrap()])]).unwrap();
            let part = region.sge(..).unwrap();
            let bind = window.bind(2, &part, Access::REMOTE_WRITE).unwrap();
            let announced = window.stag().to_be_bytes();
            server.qp.receive.post(&[ReceiveRequest::new(3, &[])]).unwrap();
            server.qp.send.post(&[bind, SendRequest::send_inline(4, &announced).signalled()]).unwrap();
            client.expect(1);
            let stag = u32::from_be_bytes(client.octets(0, 4).try_into().unwrap());
            client
                .qp
                .send
                .post(&[
                    SendRequest::write_inline(5, &[round; 64], stag, region.remote_offset()),
                    SendRequest::send(6, &[]).invalidate(stag).signalled(),
                ])
                .unwrap();
            client.expect(6);
            server.expect(4);
            assert_eq!(server.expect(3).invalidated_stag(), Some(stag), "the peer gave the window back");
            assert!(!window.is_valid());
            assert_eq!(region.to_vec(0, 64).unwrap(), [round; 64]);
        }
    });
}

#[test]
fn a_fast_region_joins_pieces_for_the_peer_and_for_us() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        client.speak_first(&server);
        let octets = pattern(4, 100_000);
        server.mr.write(0, &octets).unwrap();
        let mut fast = server.pd.allocate_fast_region(3).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let pieces = [
            server.mr.sge(50_000..60_001).unwrap(),
            server.mr.sge(7..30_010).unwrap(),
            server.mr.sge(90_000..90_003).unwrap(),
        ];
        let expected = [&octets[50_000..60_001], &octets[7..30_010], &octets[90_000..90_003]].concat();
        let mut former = 0;
        for round in 0..2 {
            let base = round * 0xffff_ffff_0000;
            let register = fast.register(1, &pieces, base, rights).unwrap();
            assert_ne!(fast.stag(), former);
            former = fast.stag();
            // The peer reads all of it, and we send the end of it: three pieces again.
            let end = [fast.sge(10_000, 30_007).unwrap()];
            client.qp.receive.post(&[ReceiveRequest::new(2, &[client.mr.sge(100_000..200_000).unwrap()])]).unwrap();
            server
                .qp
                .send
                .post(&[
                    register.signalled(),
                    SendRequest::send(3, &end),
                    SendRequest::local_invalidate(4, fast.stag()).signalled(),
                ])
                .unwrap();
            server.expect(1);
            assert_eq!(client.expect(2).length, 30_007);
            server.expect(4);
            assert_eq!(client.octets(100_000, 30_007), expected[10_000..]);
            server.qp.send.post(&[fast.register(5, &pieces, base, rights).unwrap().signalled()]).unwrap();
            server.expect(5);
            let sink = [client.mr.sge(300_000..340_007).unwrap()];
            client.qp.send.post(&[SendRequest::read(6, &sink, fast.stag(), base).signalled()]).unwrap();
            client.expect(6);
            assert_eq!(client.octets(300_000, 40_007), expected);
            server.qp.send.post(&[SendRequest::local_invalidate(7, fast.stag()).signalled()]).unwrap();
            server.expect(7);
        }
        // A receive may go into one, too.
        let into = [server.mr.sge(500_000..500_010).unwrap(), server.mr.sge(600_000..600_090).unwrap()];
        server.qp.send.post(&[fast.register(8, &into, 0, rights).unwrap().signalled()]).unwrap();
        server.expect(8);
        server.qp.receive.post(&[ReceiveRequest::new(9, &[fast.sge(0, 100).unwrap()])]).unwrap();
        client.qp.send.post(&[SendRequest::send_inline(10, &octets[..100])]).unwrap();
        server.expect(9);
        assert_eq!([server.octets(500_000, 10), server.octets(600_000, 90)].concat(), octets[..100]);
    });
}

#[test]
fn invalidation_behind_a_fence_waits_for_the_reads_before_it() {
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        let octets = pattern(6, REGION / 2);
        server.mr.write(0, &octets).unwrap();
        let mut fast = client.pd.allocate_fast_region(1).unwrap();
        let part = [client.mr.sge(..REGION / 2).unwrap()];
        for round in 0..10 {
            client.mr.fill(0..REGION / 2, 0).unwrap();
            let register = fast.register(1, &part, 0, Access::LOCAL_WRITE).unwrap();
            let sink = [fast.sge(0, REGION as u32 / 2).unwrap()];
            client
                .qp
                .send
                .post(&[
                    register,
                    SendRequest::read(2, &sink, server.mr.stag(), server.mr.remote_offset()),
                    SendRequest::local_invalidate(round, fast.stag()).fenced().signalled(),
                ])
                .unwrap();
            client.expect(round);
            assert_eq!(client.octets(0, REGION / 2), octets);
        }
    });
}

#[test]
fn what_cannot_be_bound_or_invalidated_fails_in_order() {
    in_both_modes(|mode| {
        for what in 0..6 {
            let (mut client, mut server) = connected(mode);
            let read_only = client.pd.register(vec![0; 64], Access::REMOTE_READ).unwrap();
            let elsewhere = client.context.allocate_domain();
            let foreign = elsewhere.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
            let shared = client.mr.stag();
            let second = client.pd.create_queue_pair(&uwarp::QueuePairOptions::new(&client.cq)).unwrap();
            let mut window = client.pd.allocate_window().unwrap();
            let mut foreign_window = elsewhere.allocate_window().unwrap();
            let (part, other) = (read_only.sge(..).unwrap(), foreign.sge(..).unwrap());
            let good = client.mr.sge(..64).unwrap();
            let request = match what {
                0 => window.bind(2, &part, Access::REMOTE_WRITE).unwrap(),
                1 => window.bind(2, &other, Access::REMOTE_WRITE).unwrap(),
                2 => foreign_window.bind(2, &good, Access::REMOTE_READ).unwrap(),
                3 => {
                    // The window is bound already.
                    let first = window.bind(9, &good, Access::REMOTE_READ).unwrap();
                    client.qp.send.post(&[first.signalled()]).unwrap();
                    client.expect(9);
                    window.bind(2, &good, Access::REMOTE_READ).unwrap()
                }
                4 => SendRequest::local_invalidate(2, shared),
                _ => SendRequest::local_invalidate(2, 0x1234_5678),
            };
            client.qp.send.post(&[SendRequest::send(1, &[]).signalled(), request, SendRequest::send(3, &[])]).unwrap();
            client.expect(1);
            let (failed, flushed) = (client.complete(), client.complete());
            assert_eq!((failed.id, failed.status), (2, Status::LocalProtection), "case {what}");
            assert_eq!((flushed.id, flushed.status), (3, Status::Flushed));
            assert!(client.mr.is_valid());
            over(&mut client, &mut server);
            drop(second);
        }
    });
}

#[test]
fn what_was_a_queue_pairs_own_is_not_the_next_ones_with_its_number() {
    in_both_modes(|mode| {
        let (mut a, mut b) = (config(1, mode), config(2, mode));
        // So few that the number comes again at once.
        (a.limits.queue_pairs, b.limits.queue_pairs) = (1, 1);
        let (a, b) = uwarp::Context::pair_in_process(a, b).unwrap();
        let domain = b.allocate_domain();
        let cq = b.create_completion_queue(64).unwrap();
        let mut listener = b.listen(PORT, uwarp::ListenOptions::default()).unwrap();
        let mut kept = None;
        for round in 0..2 {
            let mut client = Side::new(&a);
            let mut server = domain.create_queue_pair(&uwarp::QueuePairOptions::new(&cq)).unwrap();
            assert_eq!(server.control.number(), 0);
            let options = uwarp::ConnectOptions::default();
            let connecting = a.start_connect(&mut client.qp.control, b.socket_address(PORT), options).unwrap();
            let request = listener.next(LONG).unwrap().expect("a connection request");
            let accepting = request.start_accept(&mut server.control, uwarp::AcceptOptions::default()).unwrap();
            connecting.wait(&mut client.qp.control).unwrap();
            accepting.wait(&mut server.control).unwrap();
            let region = kept.get_or_insert_with(|| {
                let options = RegionOptions::new(Access::REMOTE_WRITE).scope(RegionScope::QueuePair(&server.control));
                domain.register(vec![0; 64], options).unwrap()
            });
            let octets = [round + 1; 8];
            let write = SendRequest::write_inline(1, &octets, region.stag(), region.remote_offset());
            client.qp.send.post(&[write.signalled()]).unwrap();
            if round == 0 {
                client.expect(1);
                until(&[&a, &b], "the octets", || region.load_acquire_u8(7).unwrap() == 1);
                client.qp.control.disconnect();
            }
            assert!(client.qp.control.wait_disconnected(LONG).unwrap());
            assert!(server.control.wait_disconnected(LONG).unwrap());
            let not_associated = TerminateCode { layer: 1, error_type: 1, code: 2 };
            let expected = (round == 1).then_some(DisconnectReason::PeerTerminated(not_associated));
            assert_eq!(client.qp.control.disconnect_reason().filter(|_| round == 1), expected);
            assert_eq!(region.to_vec(0, 8).unwrap(), [1; 8]);
            drop((client, server));
            let gone = || b.stats().objects.queue_pairs + a.stats().objects.queue_pairs == 0;
            until(&[&a, &b], "the end of the queue pairs", gone);
        }
    });
}

#[test]
fn a_peer_cannot_invalidate_a_region_that_has_windows() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        client.speak_first(&server);
        let options = RegionOptions::new(Access::ALL).scope(RegionScope::QueuePair(&server.qp.control));
        let region = server.pd.register(vec![0; 64], options).unwrap();
        let mut window = server.pd.allocate_window().unwrap();
        let part = region.sge(..).unwrap();
        server.qp.send.post(&[window.bind(1, &part, Access::REMOTE_READ).unwrap().signalled()]).unwrap();
        server.expect(1);
        server.qp.receive.post(&[ReceiveRequest::new(2, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::send(3, &[]).invalidate(region.stag())]).unwrap();
        let failed = server.complete();
        assert_eq!((failed.id, failed.status), (2, Status::RemoteOperation));
        let reason = over(&mut client, &mut server);
        assert_eq!(reason, Some(DisconnectReason::PeerTerminated(CANNOT_BE_INVALIDATED)));
        assert!(region.is_valid() && window.is_valid());
    });
}

#[test]
fn rights_that_a_window_cannot_give_are_refused() {
    let (client, _server) = connected(Mode::Inline);
    let mut window = client.pd.allocate_window().unwrap();
    let part = client.mr.sge(..8).unwrap();
    for access in [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ] {
        assert!(matches!(window.bind(1, &part, access), Err(uwarp::Error::Argument { .. })));
    }
    assert!(matches!(client.pd.allocate_fast_region(0), Err(uwarp::Error::Argument { .. })));
    assert!(matches!(client.pd.allocate_fast_region(uwarp::MAX_PIECES + 1), Err(uwarp::Error::Argument { .. })));
    let mut fast = client.pd.allocate_fast_region(1).unwrap();
    assert!(matches!(fast.register(1, &[part, part], 0, Access::ALL), Err(uwarp::Error::Argument { .. })));
}

#[test]
fn an_owner_chooses_the_keys_of_his_window_and_posts_binds_ahead() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        client.speak_first(&server);
        let region = server.pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        let mut window = server.pd.allocate_window_with_owner_keys().unwrap();
        let first = window.stag() & !0xff | 0x10;
        let (one, two) = (region.sge(..8).unwrap(), region.sge(8..16).unwrap());
        let requests = [
            window.bind_as(1, first, &one, 0, Access::REMOTE_WRITE).unwrap(),
            SendRequest::local_invalidate(2, first),
            window.bind_as(3, first + 1, &two, 0x5000, Access::REMOTE_WRITE).unwrap().signalled(),
        ];
        assert_eq!(server.qp.send.post(&requests), Ok(3));
        server.expect(3);
        assert_eq!((window.stag(), window.remote_offset(), window.is_valid()), (first + 1, 0x5000, true));
        client.qp.send.post(&[SendRequest::write_inline(4, &[5; 8], first + 1, 0x5000).signalled()]).unwrap();
        client.expect(4);
        until(&[&client.context, &server.context], "the Write is there", || region.load_acquire_u8(15).unwrap() == 5);
        assert_eq!(region.to_vec(0, 8).unwrap(), [0; 8]);
        // The peer ends it, and the same key may be used again.
        server.qp.receive.post(&[ReceiveRequest::new(5, &[])]).unwrap();
        client.qp.send.post(&[SendRequest::send(6, &[]).invalidate(first + 1)]).unwrap();
        assert_eq!(server.expect(5).invalidated_stag(), Some(first + 1));
        assert!(!window.is_valid());
        let again = window.bind_as(7, first + 1, &one, 0, Access::REMOTE_READ).unwrap().signalled();
        server.qp.send.post(&[again]).unwrap();
        server.expect(7);
        // What the owner cannot choose.
        for stag in [first ^ 0x100, first ^ 0x4000_0000, 0] {
            let refused = window.bind_as(8, stag, &one, 0, Access::REMOTE_READ).unwrap_err();
            assert!(matches!(refused, uwarp::Error::Argument { .. }), "{refused}");
        }
        let mut ours = server.pd.allocate_window().unwrap();
        assert!(ours.bind_as(9, ours.stag() ^ 1, &one, 0, Access::REMOTE_READ).is_err());
        assert!(window.bind_as(9, first, &one, 0, Access::LOCAL_WRITE).is_err());
        assert_eq!(window.stag(), first + 1);
    });
}
