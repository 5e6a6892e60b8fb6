//! The RDMAP extensions (RFC 7306): Immediate Data and atomics between two engines, and with a peer that sends exactly
//! the octets that the test wants.

use uwarp_engine::command::{DisconnectReason, Features, StartupOptions, TerminateCode};
use uwarp_engine::work::{
    AtomicOperands, CompletionFlags, CompletionOpcode, SendElement, SendFlags, SendOpcode, Sge, Status,
};
use uwarp_memory::{Access, Registration};
use uwarp_sim_tests::pairs::{PORT, SECOND, completions, element, ends, frames_sent, joined, joined_with, sge, with};
use uwarp_sim_tests::raw::{RawPeer, assert_terminates, fpdu, request, untagged, write};
use uwarp_testkit::rig::{Pair, PairOptions, World};
use uwarp_wire::rdmap::{AtomicRequest, AtomicResponse, Opcode, ReadRequest};

const BOTH: Features = Features { atomics: true, immediate: true, commit: false, infiniband: false };
/// All that an atomic needs.
const ATOMIC: Access = Access::ALL;

fn post_immediate(pair: &mut Pair, id: u64, data: u64, solicited: bool) {
    let mut element = SendElement { remote_offset: data, ..element(id, SendOpcode::Immediate) };
    if solicited {
        element.flags = element.flags.union(SendFlags::SOLICITED);
    }
    assert!(pair.post(element, &[], &[]));
}

/// A Write with Immediate Data from these entries.
fn post_write_immediate(pair: &mut Pair, id: u64, entries: &[Sge], target: (u32, u64), data: u64) {
    let mut entries = entries.to_vec();
    let length = entries.iter().map(|entry| entry.length).sum();
    entries.push(SendElement::immediate_entry(data));
    let element = SendElement {
        stag: target.0,
        remote_offset: target.1,
        length,
        entries: entries.len() as u8,
        ..element(id, SendOpcode::WriteImmediate)
    };
    assert!(pair.post(element, &entries, &[]));
}

fn post_atomic(pair: &mut Pair, id: u64, opcode: SendOpcode, target: (u32, u64), operands: AtomicOperands) -> bool {
    let element = SendElement {
        flags: SendFlags::SIGNALLED.union(SendFlags::INLINE),
        stag: target.0,
        remote_offset: target.1,
        length: AtomicOperands::LEN as u32,
        ..element(id, opcode)
    };
    pair.post(element, &[], &operands.to_octets())
}

fn add(value: u64) -> AtomicOperands {
    AtomicOperands { add_swap: value, add_swap_mask: 0, compare: 0, compare_mask: u64::MAX }
}

#[test]
fn a_write_and_its_immediate_data_leave_in_one_segment_if_they_fit() {
    // 1448 octets of a segment hold a Write's FPDU (2 + 14 + payload + padding + 4) and 32 octets of Immediate Data.
    for (length, segments) in
        [(0, 1), (1, 1), (64, 1), (1000, 1), (1396, 1), (1397, 2), (1428, 2), (1428 + 1396, 2), (1428 + 1397, 3)]
    {
        let (mut world, mut client, mut server, _requests) = joined(BOTH, BOTH);
        let octets: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
        let source = world.hosts[0].register(octets.clone(), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; length], Access::REMOTE_WRITE);
        let inbox = world.hosts[1].register(vec![7; 4], Access::LOCAL_WRITE);
        assert!(server.post_receive(5, &[sge(&inbox, 0, 4)]));
        world.run(SECOND / 100);
        let before = frames_sent(&world, 0);
        post_write_immediate(
            &mut client,
            9,
            &[sge(&source, 0, length as u32)],
            (target.stag(), 0),
            0x0102_0304_0506_0708,
        );
        let mut received = None;
        assert!(world.run_until(SECOND, |_| {
            received = server.poll();
            received.is_some()
        }));
        // All of the Write is there when the data is.
        let mut there = vec![0; length];
        target.read(0, &mut there).expect("in range");
        assert_eq!(there, octets, "{length}");
        let received = received.expect("seen");
        assert_eq!((received.id, received.status, received.length), (5, Status::Success, 0));
        assert_eq!(received.opcode, CompletionOpcode::Receive);
        assert_eq!(received.immediate_data(), Some(0x0102_0304_0506_0708));
        assert!(!received.flags.contains(CompletionFlags::SOLICITED));
        let mut untouched = [0; 4];
        inbox.read(0, &mut untouched).expect("in range");
        assert_eq!(untouched, [7; 4]);
        // One piece of work is one completion.
        world.run(SECOND / 100);
        let done = client.poll_all();
        assert_eq!(done.len(), 1, "{done:?}");
        assert_eq!((done[0].id, done[0].opcode, done[0].length), (9, CompletionOpcode::Write, length as u32));
        assert_eq!(frames_sent(&world, 0) - before, segments, "{length} octets");
    }
}

#[test]
fn local_operations_send_nothing_and_keep_their_place() {
    let (mut world, mut client, mut server, _requests) = joined(BOTH, BOTH);
    let mut window = world.hosts[0].regions.allocate_window(uwarp_memory::DomainId(1), 2).expect("room");
    let region = world.hosts[0].register((0..100).collect(), Access::LOCAL_WRITE);
    let inbox = world.hosts[1].register(vec![0; 64], Access::LOCAL_WRITE);
    assert!(server.post_receive(1, &[sge(&inbox, 0, 64)]));
    world.run(SECOND / 100);
    let before = frames_sent(&world, 0);
    let stag = window.next_stag();
    let bind = |id, entries: &[Sge]| SendElement {
        stag,
        remote_offset: 7,
        length: 30,
        entries: entries.len() as u8,
        ..element(id, SendOpcode::Bind)
    };
    let pieces = [sge(&region, 50, 10), sge(&region, 0, 20), SendElement::rights_entry(Access::REMOTE_READ)];
    assert!(client.post(bind(1, &pieces), &pieces, &[]));
    let done = completions(&mut world, &mut client, 1);
    assert_eq!(done.iter().map(|one| (one.opcode, one.length)).collect::<Vec<_>>(), [(CompletionOpcode::Bind, 0)]);
    assert_eq!(frames_sent(&world, 0), before, "nothing is sent");
    // A Send from the window, and behind it the invalidation of the window: the Send has its octets.
    let end = Sge { stag, length: 25, offset: 7 + 5 };
    assert!(client.post_simple(2, SendOpcode::Send, Some(end), (0, 0)));
    let invalidate = SendElement { stag, ..element(3, SendOpcode::LocalInvalidate) };
    assert!(client.post(invalidate, &[], &[]));
    assert!(client.post_simple(4, SendOpcode::Send, Some(end), (0, 0)));
    let done = completions(&mut world, &mut client, 3);
    let ended: Vec<_> = done.iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(ended, [(2, Status::Success), (3, Status::Success), (4, Status::LocalProtection)]);
    let received = completions(&mut world, &mut server, 1);
    assert_eq!((received[0].id, received[0].length), (1, 25));
    let mut octets = vec![0; 25];
    inbox.read(0, &mut octets).expect("in range");
    assert_eq!(octets, (55..60).chain(0..20).collect::<Vec<u8>>());
}

#[test]
fn immediate_data_goes_behind_scatter_lists_and_inline_data_too() {
    let (mut world, mut client, mut server, _requests) = joined(BOTH, BOTH);
    let source = world.hosts[0].register((0..200).collect(), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 256], Access::REMOTE_WRITE);
    for id in 0..2 {
        assert!(server.post_receive(id, &[]));
    }
    let entries: Vec<Sge> = (0..5).map(|piece| sge(&source, 40 * piece, 20)).collect();
    post_write_immediate(&mut client, 1, &entries, (target.stag(), 0), 1);
    let inline: Vec<u8> = (0..61).collect();
    let element = SendElement {
        flags: SendFlags::SIGNALLED.union(SendFlags::INLINE).union(SendFlags::SOLICITED),
        stag: target.stag(),
        remote_offset: 100,
        length: 61 + 8,
        ..element(2, SendOpcode::WriteImmediate)
    };
    assert!(client.post(element, &[], &[&inline[..], &2u64.to_le_bytes()].concat()));
    let done = completions(&mut world, &mut server, 2);
    assert_eq!(done.iter().map(|one| one.immediate_data()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(
        done.iter().map(|one| one.flags.contains(CompletionFlags::SOLICITED)).collect::<Vec<_>>(),
        [false, true]
    );
    let mut there = vec![0; 161];
    target.read(0, &mut there).expect("in range");
    let expected: Vec<u8> = (0..5).flat_map(|piece| 40 * piece..40 * piece + 20).chain(0..61).collect();
    assert_eq!(there, expected);
    let done = completions(&mut world, &mut client, 2);
    assert_eq!(done.iter().map(|one| (one.id, one.length)).collect::<Vec<_>>(), [(1, 100), (2, 61)]);
}

#[test]
fn immediate_data_is_delivered_in_order_with_sends() {
    let (mut world, mut client, mut server, _requests) = joined(BOTH, BOTH);
    let source = world.hosts[0].register(vec![1; 5000], Access::LOCAL_READ);
    let inbox = world.hosts[1].register(vec![0; 5000], Access::LOCAL_WRITE);
    for id in 0..30 {
        assert!(server.post_receive(id, &[sge(&inbox, 0, 5000)]));
    }
    for id in 0..30 {
        match id % 3 {
            0 => post_immediate(&mut client, id, id, id % 2 == 0),
            1 => assert!(client.post_simple(id, SendOpcode::Send, Some(sge(&source, 0, 5000)), (0, 0))),
            _ => assert!(client.post_simple(id, SendOpcode::Send, None, (0, 0))),
        }
    }
    let received = completions(&mut world, &mut server, 30);
    for (id, one) in received.iter().enumerate() {
        let (data, length) = match id % 3 {
            0 => (Some(id as u64), 0),
            1 => (None, 5000),
            _ => (None, 0),
        };
        assert_eq!((one.id, one.immediate_data(), one.length), (id as u64, data, length));
        assert_eq!(one.flags.contains(CompletionFlags::SOLICITED), id % 6 == 0);
    }
    let sent = completions(&mut world, &mut client, 30);
    assert_eq!(sent.iter().map(|one| one.id).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    assert_eq!(sent[0].opcode, CompletionOpcode::Immediate);
}

#[test]
fn a_mistake_while_one_is_built_ends_the_stream_without_headers() {
    let (mut world, mut client, mut server, _requests) = joined(BOTH, BOTH);
    let source = world.hosts[0].register(vec![1; 8], Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 64], ATOMIC);
    for id in 0..2 {
        assert!(server.post_receive(id, &[]));
    }
    post_write_immediate(&mut client, 1, &[sge(&source, 0, 8)], (target.stag(), 0), 7);
    // One octet more than the target has.
    post_write_immediate(&mut client, 2, &[sge(&source, 1, 8)], (target.stag(), 8), 8);
    assert!(post_atomic(&mut client, 3, SendOpcode::FetchAdd, (target.stag(), 16), add(1)));
    assert_eq!(ends(&mut world, &client), DisconnectReason::LocalError(Status::LocalProtection));
    let told = TerminateCode { layer: 0, error_type: 0, code: 0 };
    assert_eq!(ends(&mut world, &server), DisconnectReason::PeerTerminated(told));
    let done: Vec<_> = completions(&mut world, &mut client, 3).iter().map(|one| (one.id, one.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::LocalProtection), (3, Status::Flushed)]);
    let received: Vec<_> =
        completions(&mut world, &mut server, 2).iter().map(|one| (one.status, one.immediate_data())).collect();
    assert_eq!(received, [(Status::Success, Some(7)), (Status::Flushed, None)]);
    assert_eq!(target.load_acquire_u64(16), Ok(0));
}

#[test]
fn a_peer_that_has_not_agreed_answers_with_unexpected_opcode() {
    let unexpected = TerminateCode { layer: 0, error_type: 2, code: 6 };
    for what in [SendOpcode::Immediate, SendOpcode::WriteImmediate, SendOpcode::FetchAdd, SendOpcode::CompareSwap] {
        let (mut world, mut client, mut server, _requests) = joined(BOTH, Features::default());
        let target = world.hosts[1].register(vec![0; 8], ATOMIC);
        assert!(server.post_receive(1, &[]));
        match what {
            SendOpcode::Immediate => post_immediate(&mut client, 1, 1, false),
            SendOpcode::WriteImmediate => post_write_immediate(&mut client, 1, &[], (target.stag(), 0), 1),
            opcode => assert!(post_atomic(&mut client, 1, opcode, (target.stag(), 0), add(1))),
        }
        assert_eq!(ends(&mut world, &client), DisconnectReason::PeerTerminated(unexpected), "{what:?}");
        assert_eq!(ends(&mut world, &server), DisconnectReason::LocalTerminated(unexpected), "{what:?}");
        assert_eq!(target.load_acquire_u64(0), Ok(0));
        let failed = completions(&mut world, &mut client, 1);
        if what.awaits_response() {
            assert_eq!(failed.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::RemoteOperation]);
        }
        let flushed = completions(&mut world, &mut server, 1);
        assert_eq!(flushed.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::Flushed]);
    }
}

#[test]
fn what_was_not_agreed_here_is_not_sent() {
    for what in [SendOpcode::Immediate, SendOpcode::FetchAdd] {
        let (mut world, mut client, _server, _requests) = joined(Features::default(), BOTH);
        match what {
            SendOpcode::Immediate => post_immediate(&mut client, 1, 1, false),
            opcode => assert!(post_atomic(&mut client, 1, opcode, (1, 0), add(1))),
        }
        let failed = completions(&mut world, &mut client, 1);
        assert_eq!(failed.iter().map(|one| one.status).collect::<Vec<_>>(), [Status::LocalOperation]);
    }
}

#[test]
fn atomics_give_the_former_value_and_leave_the_new_one() {
    // Old, data, mask, new; old, compare, compare mask, swap, swap mask, new: computed from the pseudo code of RFC
    // 7306.
    let additions = [
        (0x0000_0000_ffff_fffe, 5, 0, 0x0000_0001_0000_0003),
        (u64::MAX, 1, 0, 0),
        (0x0000_0001_ffff_ffff, 0x0000_0001_0000_0001, 0x8000_0000_8000_0000, 0x0000_0002_0000_0000),
        (0xff00_ff00_ff00_ff00, 0x0101_0101_0101_0101, 0x8080_8080_8080_8080, 0x0001_0001_0001_0001),
        (0x1234, 0, 0, 0x1234u64),
    ];
    let swaps = [
        (
            0xaabb_ccdd_eeff_0011u64,
            0xaabb_ccdd_eeff_0011u64,
            u64::MAX,
            0x1122_3344_5566_7788,
            u64::MAX,
            0x1122_3344_5566_7788,
        ),
        (0xaabb_ccdd_eeff_0011, 0xaabb_ccdd_eeff_0012, u64::MAX, 1, u64::MAX, 0xaabb_ccdd_eeff_0011),
        (0xaabb_ccdd_eeff_0011, 0x11, 0xff, 0x99, 0xffff, 0xaabb_ccdd_eeff_0099u64),
    ];
    let (mut world, mut client, _server, _requests) = joined(BOTH, BOTH);
    let target = world.hosts[1].register(vec![0; 64], ATOMIC);
    let mut try_one = |old: u64, opcode, operands, new: u64| {
        target.store_release_u64(24, old).expect("aligned");
        assert!(post_atomic(&mut client, 3, opcode, (target.stag(), 24), operands));
        let done = completions(&mut world, &mut client, 1);
        assert_eq!((done[0].id, done[0].status, done[0].length), (3, Status::Success, 8));
        assert_eq!(done[0].original_value(), Some(old), "{operands:x?}");
        assert_eq!(target.load_acquire_u64(24), Ok(new), "{operands:x?}");
    };
    for (old, add_swap, add_swap_mask, new) in additions {
        let operands = AtomicOperands { add_swap, add_swap_mask, compare: 0, compare_mask: u64::MAX };
        try_one(old, SendOpcode::FetchAdd, operands, new);
    }
    for (old, compare, compare_mask, add_swap, add_swap_mask, new) in swaps {
        let operands = AtomicOperands { add_swap, add_swap_mask, compare, compare_mask };
        try_one(old, SendOpcode::CompareSwap, operands, new);
    }
    let mut all = [0; 64];
    target.read(0, &mut all).expect("in range");
    assert!(all[..24].iter().chain(&all[32..]).all(|octet| *octet == 0), "nothing beside the word");
}

#[test]
fn atomics_share_the_slots_of_reads_and_complete_in_posting_order() {
    let limits = StartupOptions { ord: 3, ..with(BOTH) };
    let accept = StartupOptions { ird: 3, ..with(BOTH) };
    let (mut world, mut client, _server, _requests) = joined_with(limits, accept);
    let target = world.hosts[1].register(vec![0; 40_000], ATOMIC);
    let sink = world.hosts[0].register(vec![0; 40_000], Access::LOCAL_WRITE);
    for id in 0..30 {
        if id % 3 == 0 {
            assert!(client.post_simple(id, SendOpcode::Read, Some(sge(&sink, 0, 20_000)), (target.stag(), 0)));
        } else {
            assert!(post_atomic(&mut client, id, SendOpcode::FetchAdd, (target.stag(), 0), add(1)));
        }
    }
    let (mut done, mut most) = (Vec::new(), 0);
    world.run_until(SECOND, |world| {
        let stats = world.hosts[0].engine.as_ref().map(|engine| engine.stats());
        most = most.max(stats.map_or(0, |stats| stats.queue_pairs[0].reads_outstanding));
        done.extend(client.poll_all());
        done.len() == 30
    });
    assert_eq!(done.iter().map(|one| one.id).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    assert!(done.iter().all(|one| one.status == Status::Success));
    let found: Vec<u64> = done.iter().filter_map(|one| one.original_value()).collect();
    assert_eq!(found, (0..20).collect::<Vec<_>>(), "executed in the order of posting");
    assert_eq!(most, 3, "reads and atomics together");
    // Each Read saw the additions before it and none behind it, as the word is the first that it returns.
    assert_eq!(sink.load_acquire_u64(0), Ok(18));
}

#[test]
fn an_atomic_comes_after_earlier_writes_and_a_fence_waits_for_it() {
    let (mut world, mut client, _server, _requests) = joined(BOTH, BOTH);
    let target = world.hosts[1].register(vec![0; 64], ATOMIC);
    let source = world.hosts[0].register(100u64.to_ne_bytes().to_vec(), Access::LOCAL_READ);
    let word = (target.stag(), 8);
    for round in 0..10 {
        assert!(client.post_simple(round, SendOpcode::Write, Some(sge(&source, 0, 8)), word));
        assert!(post_atomic(&mut client, 100 + round, SendOpcode::FetchAdd, word, add(7)));
        let fenced = SendElement {
            flags: SendFlags::SIGNALLED.union(SendFlags::FENCE),
            stag: word.0,
            remote_offset: word.1,
            length: 8,
            entries: 1,
            ..element(200 + round, SendOpcode::Write)
        };
        assert!(client.post(fenced, &[sge(&source, 0, 8)], &[]));
    }
    let done = completions(&mut world, &mut client, 30);
    assert_eq!(done.len(), 30);
    assert!(done.iter().filter_map(|one| one.original_value()).all(|found| found == 100), "{done:?}");
    world.run(SECOND / 100);
    assert_eq!(target.load_acquire_u64(8), Ok(100));
}

#[test]
fn an_atomic_on_memory_without_the_rights_ends_the_stream() {
    let read_write = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (access, bounds) = ((0, 1, 2), (0, 1, 1));
    let cases = [
        (read_write, 0, access),
        (Access::LOCAL_WRITE, 0, access),
        (ATOMIC, 57, bounds),
        (ATOMIC, u64::MAX - 7, bounds),
        (ATOMIC, u64::MAX - 6, (0, 1, 4)),
        (ATOMIC, 4, (0, 2, 7)),
        // Bounds are reported before rights, and rights before alignment.
        (read_write, 57, bounds),
        (read_write, 4, access),
    ];
    for (rights, offset, (layer, error_type, code)) in cases {
        let (mut world, mut client, server, _requests) = joined(BOTH, BOTH);
        let target = world.hosts[1].register(vec![1; 64], rights);
        assert!(post_atomic(&mut client, 3, SendOpcode::FetchAdd, (target.stag(), offset), add(1)));
        let code = TerminateCode { layer, error_type, code };
        assert_eq!(ends(&mut world, &client), DisconnectReason::PeerTerminated(code), "{rights:?} {offset:x}");
        assert_eq!(ends(&mut world, &server), DisconnectReason::LocalTerminated(code));
        let mut there = [0; 64];
        target.read(0, &mut there).expect("in range");
        assert_eq!(there, [1; 64], "unchanged");
        let status = if error_type == 1 { Status::RemoteAccess } else { Status::RemoteOperation };
        assert_eq!(completions(&mut world, &mut client, 1)[0].status, status);
    }
}

/// A raw peer in full operation with a queue pair that has the extensions, and memory for atomics.
fn raw(features: Features) -> (World, Pair, RawPeer, Registration) {
    let mut world = World::two();
    let requests = world.hosts[1].listen(PORT);
    let pair = world.hosts[1].pair(PairOptions::default());
    let region = world.hosts[1].register(vec![0; 64], ATOMIC);
    let (mut peer, _) = RawPeer::start_with(&mut world, 9, 1, &pair, &requests, PORT, (&request(), with(features)));
    // Before the first FPDU a Responder may not send.
    peer.send(&fpdu(&write(1, 0, &[])));
    (world, pair, peer, region)
}

fn fetch_add(stag: u32, offset: u64, identifier: u32) -> AtomicRequest {
    AtomicRequest {
        operation: 0,
        request_identifier: identifier,
        stag: uwarp_wire::ddp::Stag(stag),
        offset: uwarp_wire::ddp::TaggedOffset(offset),
        add_swap_data: 5,
        add_swap_mask: 0,
        // Fields that a FetchAdd does not use are ignored.
        compare_data: 0x1111,
        compare_mask: 0x2222,
    }
}

#[test]
fn faulty_extensions_are_terminated_with_their_header() {
    type Make = fn(u32) -> Vec<u8>;
    let cases: [(&str, Make, (u8, u8, u8)); 12] = [
        ("7 octets", |_| untagged(Opcode::Immediate, 0, 1, 0, &[0; 7]), (0, 2, 0xff)),
        ("9 octets", |_| untagged(Opcode::ImmediateSolicited, 0, 1, 0, &[0; 9]), (0, 2, 0xff)),
        ("no last flag", |_| not_last(untagged(Opcode::Immediate, 0, 1, 0, &[0; 8])), (0, 2, 7)),
        ("wrong number", |_| untagged(Opcode::Immediate, 0, 2, 0, &[0; 8]), (1, 2, 3)),
        ("no receive", |_| untagged(Opcode::Immediate, 0, 1, 0, &[0; 8]), (1, 2, 2)),
        ("wrong queue", |_| untagged(Opcode::Immediate, 1, 1, 0, &[0; 8]), (1, 2, 1)),
        (
            "51 octets",
            |stag| untagged(Opcode::AtomicRequest, 1, 1, 0, &fetch_add(stag, 0, 1).to_octets()[..51]),
            (0, 2, 0xff),
        ),
        (
            "swap",
            |stag| {
                let request = AtomicRequest { operation: 1, ..fetch_add(stag, 0, 1) };
                untagged(Opcode::AtomicRequest, 1, 1, 0, &request.to_octets())
            },
            (0, 2, 6),
        ),
        (
            "operation 15",
            |stag| {
                let request = AtomicRequest { operation: 15, ..fetch_add(stag, 0, 1) };
                untagged(Opcode::AtomicRequest, 1, 1, 0, &request.to_octets())
            },
            (0, 2, 6),
        ),
        ("misaligned", |stag| untagged(Opcode::AtomicRequest, 1, 1, 0, &fetch_add(stag, 12, 1).to_octets()), (0, 2, 7)),
        (
            "unknown tag",
            |stag| untagged(Opcode::AtomicRequest, 1, 1, 0, &fetch_add(stag ^ 1, 0, 1).to_octets()),
            (0, 1, 0),
        ),
        ("response without a request", |_| untagged(Opcode::AtomicResponse, 3, 1, 0, &[0; 12]), (1, 2, 2)),
    ];
    for (name, make, expected) in cases {
        let (mut world, _pair, mut peer, region) = raw(BOTH);
        let ulpdu = make(region.stag());
        peer.send(&fpdu(&ulpdu));
        let mut answer = None;
        peer.run_until(&mut world, SECOND, |peer, _| {
            answer = peer.take_fpdu();
            answer.is_some()
        });
        let answer = answer.unwrap_or_else(|| panic!("{name}: no answer"));
        // RFC 7306 §8.1: length and DDP header, never the RDMAP header.
        assert_terminates(name, &answer, &ulpdu, expected);
        let mut there = [1; 64];
        region.read(0, &mut there).expect("in range");
        assert_eq!(there, [0; 64], "{name}: unchanged");
    }
}

fn not_last(mut ulpdu: Vec<u8>) -> Vec<u8> {
    ulpdu[0] &= !0x40;
    ulpdu
}

#[test]
fn reserved_fields_of_requests_are_not_looked_at() {
    let (mut world, mut pair, mut peer, region) = raw(BOTH);
    assert!(pair.post_receive(1, &[]));
    let mut immediate = untagged(Opcode::Immediate, 0, 1, 0, &[9; 8]);
    let mut atomic = untagged(Opcode::AtomicRequest, 1, 1, 0, &fetch_add(region.stag(), 8, 77).to_octets());
    for ulpdu in [&mut immediate, &mut atomic] {
        ulpdu[0] |= 0x3c;
        ulpdu[1] |= 0x30;
        ulpdu[2..6].fill(0xee);
    }
    atomic[18..21].fill(0xff);
    atomic[21] |= 0xf0;
    peer.send(&fpdu(&immediate));
    peer.send(&fpdu(&atomic));
    let mut answer = None;
    peer.run_until(&mut world, SECOND, |peer, _| {
        answer = peer.take_fpdu();
        answer.is_some()
    });
    let expected = AtomicResponse { request_identifier: 77, original_value: 0 };
    assert_eq!(answer, Some(untagged(Opcode::AtomicResponse, 3, 1, 0, &expected.to_octets())));
    assert_eq!(region.load_acquire_u64(8), Ok(5));
    assert_eq!(pair.poll().and_then(|one| one.immediate_data()), Some(0x0909_0909_0909_0909));
}

#[test]
fn a_responder_takes_its_limit_of_reads_and_as_many_atomics() {
    let (mut world, _pair, mut peer, region) = raw(BOTH);
    // The engine accepted with 16. While unacknowledged, all of them keep their slots.
    let read = ReadRequest { length: 4, source_stag: uwarp_wire::ddp::Stag(region.stag()), ..ReadRequest::default() };
    let mut octets = Vec::new();
    for number in (1..=32).step_by(2) {
        octets.extend(fpdu(&untagged(Opcode::ReadRequest, 1, number, 0, &read.to_octets())));
        let atomic = fetch_add(region.stag(), 0, number);
        octets.extend(fpdu(&untagged(Opcode::AtomicRequest, 1, number + 1, 0, &atomic.to_octets())));
    }
    peer.send(&octets);
    let mut came = Vec::new();
    peer.run_until(&mut world, SECOND, |peer, _| {
        came.extend(std::iter::from_fn(|| peer.take_fpdu()));
        came.len() == 32
    });
    // In the order of the requests, and numbered on queue 3 from 1.
    let mut value = 0u64;
    for (index, answer) in came.iter().enumerate() {
        if index % 2 == 0 {
            assert_eq!(answer[..2], [0xc1, 0x42], "{index}");
            assert_eq!(answer[14..], value.to_ne_bytes()[..4]);
        } else {
            let identifier = index as u32;
            let expected = AtomicResponse { request_identifier: identifier, original_value: value };
            let number = index as u32 / 2 + 1;
            assert_eq!(*answer, untagged(Opcode::AtomicResponse, 3, number, 0, &expected.to_octets()));
            value += 5;
        }
    }
    assert_eq!(came.len(), 32);
}

#[test]
fn faulty_responses_end_the_stream_and_fail_the_atomic() {
    type Make = fn(&AtomicRequest) -> Vec<u8>;
    type Case = (&'static str, Make, (u8, u8, u8), Status);
    let cases: [Case; 5] = [
        (
            "another identifier",
            |request| {
                let identifier = request.request_identifier ^ 1;
                let response = AtomicResponse { request_identifier: identifier, original_value: 1 };
                untagged(Opcode::AtomicResponse, 3, 1, 0, &response.to_octets())
            },
            (0, 2, 0xff),
            Status::PeerProtocol,
        ),
        (
            "another number",
            |request| {
                let response = AtomicResponse { request_identifier: request.request_identifier, original_value: 1 };
                untagged(Opcode::AtomicResponse, 3, 2, 0, &response.to_octets())
            },
            (1, 2, 3),
            Status::Flushed,
        ),
        (
            "11 octets",
            |request| {
                let response = AtomicResponse { request_identifier: request.request_identifier, original_value: 1 };
                untagged(Opcode::AtomicResponse, 3, 1, 0, &response.to_octets()[..11])
            },
            (0, 2, 0xff),
            Status::Flushed,
        ),
        (
            "a Read Response",
            |_| {
                let mut ulpdu = write(1, 0, &[0; 8]);
                ulpdu[1] = 0x42;
                ulpdu
            },
            (0, 2, 6),
            Status::Flushed,
        ),
        ("a Send on queue 3", |_| untagged(Opcode::Send, 3, 1, 0, &[0; 12]), (1, 2, 1), Status::Flushed),
    ];
    for (name, make, expected, status) in cases {
        let (mut world, mut pair, mut peer, _region) = raw(BOTH);
        assert!(post_atomic(&mut pair, 7, SendOpcode::FetchAdd, (0x1234, 0x40), add(3)));
        let mut came = None;
        peer.run_until(&mut world, SECOND, |peer, _| {
            came = peer.take_fpdu();
            came.is_some()
        });
        let came = came.expect("the request");
        let asked = AtomicRequest::parse(&came[18..]).expect("an Atomic Request");
        assert_eq!((asked.stag.0, asked.offset.0, asked.add_swap_data), (0x1234, 0x40, 3));
        assert_eq!((asked.compare_data, asked.compare_mask), (0, u64::MAX), "as RFC 7306 has unused fields");
        assert_eq!(pair.poll(), None, "not complete before the response");
        peer.send(&fpdu(&make(&asked)));
        assert_eq!(peer.terminate(&mut world), Some(expected), "{name}");
        let done: Vec<Status> = pair.poll_all().iter().map(|one| one.status).collect();
        assert_eq!(done, [status], "{name}");
    }
}
