//! Two engines on a faultless simulated network: what an application sees of streams that work.

mod common;

use common::{PORT, SECOND, completions, contents, join, joined, joined_with, pattern, sge};
use uwarp_engine::work::{CompletionFlags, CompletionOpcode, SendElement, SendFlags, SendOpcode, Sge, Status};
use uwarp_memory::Access;
use uwarp_testkit::rig::{HostOptions, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

#[test]
fn a_write_lands_where_it_was_aimed() {
    for length in [0u32, 1, 3, 64, 1400, 1428, 1429, 5000, 100_000] {
        let (mut world, mut client, _server) = joined();
        let source = world.hosts[0].register(pattern(length as usize, 1), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; length as usize + 32], Access::REMOTE_WRITE);
        client.post_simple(7, SendOpcode::Write, Some(sge(&source, 0, length)), (target.stag(), 16));
        let mut completion = None;
        assert!(world.run_until(SECOND, |_| {
            completion = completion.or(client.poll());
            completion.is_some() && contents(&target)[16..16 + length as usize] == contents(&source)[..]
        }));
        let completion = completion.expect("seen");
        assert_eq!((completion.id, completion.status, completion.length), (7, Status::Success, length));
        assert_eq!(completion.opcode, CompletionOpcode::Write);
        let all = contents(&target);
        assert!(all[..16].iter().chain(&all[16 + length as usize..]).all(|octet| *octet == 0));
    }
}

/// The segments of a long Write are verified in one pass, checksum and CRC.
#[test]
fn damage_that_no_checksum_notices_is_not_placed() {
    let mut noticed = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, SimOptions::default());
        for _ in 0..2 {
            world.add(HostOptions::default(), |_| {});
        }
        let requests = world.hosts[1].listen(PORT);
        let (mut client, server) = join(&mut world, &requests, PairOptions::default());
        let source = world.hosts[0].register(pattern(300_000, seed), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 300_000], Access::REMOTE_WRITE);
        world.network.set_options(SimOptions { hidden_corruption: 0.01, ..SimOptions::default() });
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 300_000)), (target.stag(), 0));
        let right = contents(&source);
        world.run_until(SECOND, |_| contents(&target) == right || server.events.try_recv().is_ok());
        let wrong = contents(&target).iter().zip(&right).position(|(placed, right)| *placed != 0 && placed != right);
        assert_eq!(wrong, None, "seed {seed}");
        noticed += world.hosts[1].engine.as_ref().map_or(0, |engine| engine.stats().counters.crc_errors);
    }
    assert!(noticed > 20, "{noticed} damaged FPDUs were noticed");
}

/// Posted work goes before what the device may have, but not for ever.
#[test]
fn a_queue_pair_that_is_rung_every_turn_hears_its_peer() {
    let (mut world, mut client, server) = joined();
    let source = world.hosts[0].register(pattern(50_000, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 50_000], Access::REMOTE_WRITE);
    client.post_simple(7, SendOpcode::Write, Some(sge(&source, 0, 50_000)), (target.stag(), 0));
    assert!(world.run_until(SECOND, |_| {
        client.ring();
        server.ring();
        contents(&target) == contents(&source)
    }));
}

#[test]
fn a_send_fills_the_oldest_receive_over_all_its_entries() {
    for length in [0u32, 1, 64, 3000, 50_000] {
        let (mut world, mut client, mut server) = joined();
        let source = world.hosts[0].register(pattern(length as usize, 2), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 60_000], Access::LOCAL_WRITE);
        let entries: Vec<Sge> = (0..6).map(|entry| sge(&target, 10_000 * entry, 10_000)).collect();
        assert!(server.post_receive(5, &entries));
        client.post_simple(8, SendOpcode::Send, Some(sge(&source, 0, length)), (0, 0));
        let mut received = None;
        assert!(world.run_until(SECOND, |_| {
            received = server.poll();
            received.is_some()
        }));
        let received = received.expect("seen");
        assert_eq!((received.id, received.status, received.length), (5, Status::Success, length));
        assert_eq!(contents(&target)[..length as usize], contents(&source)[..]);
        assert_eq!(client.poll().map(|completion| (completion.id, completion.status)), Some((8, Status::Success)));
    }
}

#[test]
fn a_read_brings_the_remote_octets() {
    for length in [0u32, 1, 64, 3000, 200_000] {
        let (mut world, mut client, _server) = joined();
        let source = world.hosts[1].register(pattern(length as usize, 3), Access::REMOTE_READ);
        let sink = world.hosts[0].register(vec![0; length as usize], Access::LOCAL_WRITE);
        client.post_simple(9, SendOpcode::Read, Some(sge(&sink, 0, length)), (source.stag(), 0));
        let mut completion = None;
        assert!(world.run_until(SECOND, |_| {
            completion = client.poll();
            completion.is_some()
        }));
        let completion = completion.expect("seen");
        assert_eq!((completion.id, completion.status, completion.length), (9, Status::Success, length));
        assert_eq!(contents(&sink), contents(&source));
    }
}

#[test]
fn completions_come_in_posting_order_and_only_where_asked_for() {
    let (mut world, mut client, mut server) = joined();
    let local = world.hosts[0].register(pattern(64 << 10, 4), Access::LOCAL_WRITE);
    let remote = world.hosts[1].register(vec![0; 64 << 10], Access::REMOTE_READ | Access::REMOTE_WRITE);
    assert!(server.post_receive(1, &[]));
    let mut signalled = Vec::new();
    for id in 0..40u64 {
        let opcode = if id % 3 == 0 { SendOpcode::Read } else { SendOpcode::Write };
        let flags = if id % 4 != 0 { SendFlags::SIGNALLED } else { SendFlags::empty() };
        if id % 4 != 0 {
            signalled.push(id);
        }
        let entry = sge(&local, id * 100, 1000 + id as u32 * 100);
        let element = SendElement {
            id,
            opcode,
            flags,
            stag: remote.stag(),
            remote_offset: id * 100,
            length: entry.length,
            entries: 1,
        };
        assert!(client.post(element, &[entry], &[]));
    }
    client.post_simple(99, SendOpcode::Send, None, (0, 0));
    let done = completions(&mut world, &mut client, signalled.len() + 1, SECOND);
    signalled.push(99);
    assert_eq!(done.iter().map(|completion| completion.id).collect::<Vec<_>>(), signalled);
    assert!(done.iter().all(|completion| completion.status == Status::Success));
    assert_eq!(completions(&mut world, &mut server, 1, SECOND).len(), 1);
}

#[test]
fn inline_data_and_scatter_lists_travel_like_one_buffer() {
    let (mut world, mut client, _server) = joined();
    let target = world.hosts[1].register(vec![0; 4096], Access::REMOTE_WRITE);
    let source = world.hosts[0].register(pattern(4096, 5), Access::LOCAL_READ);
    let octets = contents(&source);
    for length in [0usize, 1, 31, 32, 33, 64, 96, 97, 200, 992] {
        let element = SendElement {
            id: 1,
            opcode: SendOpcode::Write,
            flags: SendFlags::INLINE.union(SendFlags::SIGNALLED),
            stag: target.stag(),
            remote_offset: 0,
            length: length as u32,
            entries: 0,
        };
        assert!(client.post(element, &[], &octets[..length]));
        assert!(world.run_until(SECOND, |_| contents(&target)[..length] == octets[..length]), "{length}");
    }
    let entries: Vec<Sge> = (0..20).map(|entry| sge(&source, entry * 150, 7 * entry as u32)).collect();
    let wanted: Vec<u8> = (0..20).flat_map(|entry| octets[entry * 150..entry * 150 + 7 * entry].to_vec()).collect();
    let element = SendElement {
        id: 2,
        opcode: SendOpcode::Write,
        flags: SendFlags::SIGNALLED,
        stag: target.stag(),
        remote_offset: 5,
        length: wanted.len() as u32,
        entries: 20,
    };
    assert!(client.post(element, &entries, &[]));
    assert!(world.run_until(SECOND, |_| contents(&target)[5..5 + wanted.len()] == wanted[..]));
}

#[test]
fn a_fenced_write_waits_for_the_read_before_it() {
    let (mut world, mut client, _server) = joined();
    let source = world.hosts[1].register(vec![7; 1 << 20], Access::REMOTE_READ);
    let flag = world.hosts[1].register(vec![0; 1], Access::REMOTE_WRITE);
    let sink = world.hosts[0].register(vec![0; 1 << 20], Access::LOCAL_WRITE);
    client.post_simple(1, SendOpcode::Read, Some(sge(&sink, 0, 1 << 20)), (source.stag(), 0));
    let element = SendElement {
        id: 2,
        opcode: SendOpcode::Write,
        flags: SendFlags::SIGNALLED.union(SendFlags::FENCE).union(SendFlags::INLINE),
        stag: flag.stag(),
        remote_offset: 0,
        length: 1,
        entries: 0,
    };
    assert!(client.post(element, &[], &[1]));
    let mut before_flag = None;
    assert!(world.run_until(SECOND, |_| {
        if contents(&flag)[0] == 1 {
            before_flag.get_or_insert(contents(&sink).iter().all(|octet| *octet == 7));
        }
        before_flag.is_some()
    }));
    assert_eq!(before_flag, Some(true));
}

#[test]
fn a_write_that_completes_when_acknowledged_waits_for_the_acknowledgment() {
    let options = PairOptions { complete_on_ack: true, ..PairOptions::default() };
    let (mut world, mut client, _server, _requests) = joined_with(options);
    let source = world.hosts[0].register(vec![3; 4000], Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 4000], Access::REMOTE_WRITE);
    for id in 0..3 {
        client.post_simple(id, SendOpcode::Write, Some(sge(&source, 0, 4000)), (target.stag(), 0));
    }
    let mut arrived = false;
    let mut ids = Vec::new();
    assert!(world.run_until(SECOND, |_| {
        arrived |= contents(&target)[3999] == 3;
        for completion in client.poll_all() {
            assert!(arrived, "completed before anything arrived");
            ids.push(completion.id);
        }
        ids.len() == 3
    }));
    assert_eq!(ids, [0, 1, 2]);
}

#[test]
fn a_send_with_invalidate_revokes_what_one_queue_pair_may_use() {
    let (mut world, mut client, mut server) = joined();
    let window = world.hosts[1].register_for(&server, vec![0; 64], Access::REMOTE_WRITE);
    assert!(server.post_receive(1, &[]));
    let element = SendElement {
        id: 2,
        opcode: SendOpcode::SendInvalidate,
        flags: SendFlags::SOLICITED,
        stag: window.stag(),
        remote_offset: 0,
        length: 0,
        entries: 0,
    };
    assert!(client.post(element, &[], &[]));
    let received = completions(&mut world, &mut server, 1, SECOND);
    assert_eq!(received[0].invalidated_stag(), Some(window.stag()));
    assert!(received[0].flags.contains(CompletionFlags::SOLICITED));
    assert!(!window.is_valid());
}

#[test]
fn both_ends_may_live_on_one_host() {
    let mut world = World::two();
    let requests = world.hosts[0].listen(9);
    let mut client = world.hosts[0].pair(PairOptions::default());
    let server = world.hosts[0].pair(PairOptions::default());
    world.join((0, &client), (0, &server), &requests, 9);
    let source = world.hosts[0].register(pattern(100_000, 6), Access::LOCAL_READ);
    let target = world.hosts[0].register(vec![0; 100_000], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 100_000)), (target.stag(), 0));
    assert!(world.run_until(SECOND, |_| contents(&target) == contents(&source)));
}

#[test]
fn reads_and_writes_of_both_sides_share_a_stream_fairly() {
    let (mut world, mut client, mut server) = joined();
    let big = world.hosts[0].register(pattern(4 << 20, 7), Access::REMOTE_READ);
    let sink = world.hosts[1].register(vec![0; 4 << 20], Access::LOCAL_WRITE);
    let target = world.hosts[1].register(vec![0; 1 << 20], Access::REMOTE_WRITE);
    let source = world.hosts[0].register(pattern(1 << 20, 8), Access::LOCAL_READ);
    for id in 0..16 {
        server.post_simple(id, SendOpcode::Read, Some(sge(&sink, id << 18, 1 << 18)), (big.stag(), id << 18));
        client.post_simple(id, SendOpcode::Write, Some(sge(&source, id << 16, 1 << 16)), (target.stag(), id << 16));
    }
    let mut reads_when_written = None;
    let mut reads = 0;
    assert!(world.run_until(10 * SECOND, |_| {
        reads += server.poll_all().len();
        if contents(&target) == contents(&source) {
            reads_when_written.get_or_insert(reads);
        }
        reads == 16 && reads_when_written.is_some()
    }));
    assert_eq!(contents(&sink), contents(&big));
    // A quarter of the octets, so about a quarter of the reads' time if they take turns.
    assert!(reads_when_written < Some(10), "{reads_when_written:?} reads went first");
}

#[test]
fn a_second_connection_does_not_disturb_the_first() {
    let (mut world, mut client, _server, requests) = joined_with(PairOptions::default());
    let source = world.hosts[0].register(pattern(500_000, 9), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 500_000], Access::REMOTE_WRITE);
    client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 500_000)), (target.stag(), 0));
    let (second, _server) = join(&mut world, &requests, PairOptions::default());
    assert!(second.events.is_empty());
    assert!(world.run_until(SECOND, |_| contents(&target) == contents(&source)));
}
