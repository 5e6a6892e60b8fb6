//! Engines on the other ports, deliberate faults, captures, and turns that allocate nothing.

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use common::{SECOND, contents, pattern, sge};
use crossbeam::channel::unbounded;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_engine::command::Command;
use uwarp_engine::port::{BURST, Batch, Buffer, TransmitChecksums};
use uwarp_engine::ports::decorated::{FaultRates, Rates};
use uwarp_engine::ports::heap::HeapBuffer;
use uwarp_engine::ports::middlebox::Recutting;
use uwarp_engine::ports::{Decorated, LoopOptions, LoopPort};
use uwarp_engine::work::{SendOpcode, Status};
use uwarp_engine::{LinkState, Port};
use uwarp_memory::{Access, Registration};
use uwarp_tcp::Instant;
use uwarp_testkit::rig::{Host, Pair, PairOptions, World, is_skipped};

/// Two hosts back to back with `count` connected pairs.
fn back_to_back(options: LoopOptions, count: usize) -> (World<LoopPort>, Vec<(Pair, Pair)>) {
    let mut world = World::back_to_back(options, 1024);
    let requests = world.hosts[1].listen(7471);
    let mut pairs = Vec::new();
    for _ in 0..count {
        let client = world.hosts[0].pair(PairOptions::default());
        let server = world.hosts[1].pair(PairOptions::default());
        world.join((0, &client), (1, &server), &requests, 7471);
        pairs.push((client, server));
    }
    (world, pairs)
}

/// Writes, reads and sends of all pairs in turn until each has done `rounds`.
fn traffic(world: &mut World<LoopPort>, pairs: &mut [(Pair, Pair)], regions: &[Registration; 2], rounds: usize) {
    for round in 0..rounds {
        for (client, server) in pairs.iter_mut() {
            assert!(server.post_receive(1, &[sge(&regions[1], 0, 4096)]));
            let remote = (regions[1].stag(), regions[1].base_offset());
            let length = [64, 4000][round % 2];
            assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&regions[0], 0, length)), remote));
            assert!(client.post_simple(2, SendOpcode::Read, Some(sge(&regions[0], 0, length)), remote));
            assert!(client.post_simple(3, SendOpcode::Send, Some(sge(&regions[0], 0, length)), (0, 0)));
        }
        let mut left = pairs.len() * 4;
        while left > 0 {
            world.step();
            for (client, server) in pairs.iter_mut() {
                for pair in [client, server] {
                    while let Some(done) = pair.poll() {
                        assert_eq!(done.status, Status::Success);
                        left -= 1;
                    }
                }
            }
        }
    }
}

fn regions(world: &World<LoopPort>) -> [Registration; 2] {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    [0, 1].map(|host| world.hosts[host].register(vec![host as u8; 8192], access))
}

/// An application that turns its engine itself may do something else for longer than an RTO. What has arrived meanwhile
/// is more than a burst.
#[test]
fn acknowledgments_that_wait_in_the_device_come_before_the_timers_that_they_disarm() {
    let (mut world, mut pairs) = back_to_back(LoopOptions::default(), 5 * BURST);
    let regions = regions(&world);
    let remote = (regions[1].stag(), regions[1].base_offset());
    for (client, _) in &mut pairs {
        assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&regions[0], 0, 64)), remote));
    }
    let mut now = world.now();
    let mut turn = |host: usize, times: usize, pause: Duration| {
        for _ in 0..times {
            world.hosts[host].engine.as_mut().expect("alive").turn(now);
            now += pause;
        }
        world.hosts[host].engine.as_ref().expect("alive").stats()
    };
    let before = turn(0, 50, Duration::ZERO);
    turn(1, 50, Duration::from_micros(100));
    turn(1, 1, Duration::from_secs(1));
    let after = turn(0, 50, Duration::ZERO);
    assert!(
        after.counters.frames_received - before.counters.frames_received >= 5 * BURST as u64,
        "no acknowledgments: {after:?}"
    );
    assert_eq!(after.counters.retransmissions, before.counters.retransmissions);
    for (client, _) in &mut pairs {
        assert_eq!(client.poll().map(|done| done.status), Some(Status::Success));
    }
}

/// With a thousand of them the device takes the frames of a few in each turn.
#[test]
fn connections_that_wait_for_the_device_are_not_all_visited_in_each_turn() {
    const MESSAGES: u64 = 4;
    let (mut world, mut pairs) = back_to_back(LoopOptions { queue: 64, ..LoopOptions::default() }, 1000);
    let regions = regions(&world);
    let remote = (regions[1].stag(), regions[1].base_offset());
    for (client, _) in &mut pairs {
        for id in 0..MESSAGES {
            assert!(client.post_simple(id, SendOpcode::Write, Some(sge(&regions[0], 0, 1400)), remote));
        }
    }
    let before = world.hosts[0].engine.as_ref().expect("alive").stats().counters.work;
    let mut done = 0;
    let finished = world.run_until(60 * SECOND, |_| {
        for (client, _) in &mut pairs {
            while let Some(completion) = client.poll() {
                assert_eq!(completion.status, Status::Success);
                done += 1;
            }
        }
        done == pairs.len() as u64 * MESSAGES
    });
    assert!(finished, "{done} are done");
    let work = world.hosts[0].engine.as_ref().expect("alive").stats().counters.work.since(&before);
    // Every turn that fills the device visits one more, and no others.
    assert!(work.visits_without_room > 0, "the device always had room: {work:?}");
    assert!(work.visits_without_room <= 2 * work.frames_sent, "{work:?}");
}

#[test]
fn a_steady_turn_allocates_nothing() {
    if is_skipped(
        "a chain of buffers on the heap is an allocation; that of a device's buffers is none (tests/vdev, steady)",
    ) {
        return;
    }
    for (count, faults) in [(1, false), (1, true), (1000, false)] {
        let (mut world, mut pairs) = back_to_back(LoopOptions::default(), count);
        let regions = regions(&world);
        if faults {
            let rates = Rates { loss: 0.01, ..Rates::default() };
            for host in &world.hosts {
                host.command(Command::SetFaults {
                    faults: Some(FaultRates { seed: 1, transmit: rates, receive: rates, ..FaultRates::default() }),
                });
            }
        }
        // Long enough that each list of what was lost has been needed once, at either end: it is made then.
        traffic(&mut world, &mut pairs, &regions, if count == 1 { 8000 } else { 8 });
        let rounds = if count == 1 { 1000 } else { 4 };
        let info = allocation_counter::measure(|| traffic(&mut world, &mut pairs, &regions, rounds));
        assert_eq!(info.count_total, 0, "{count} pairs, faults {faults}: {info:?}");
    }
}

/// Turns every engine once on a thread that has never turned it, and that ends before its next turn.
fn turn_elsewhere(world: &mut World<LoopPort>) {
    let now = world.now();
    for host in &mut world.hosts {
        let mut engine = host.engine.take().expect("alive");
        let turn = std::thread::spawn(move || {
            engine.turn(now);
            engine
        });
        host.engine = Some(turn.join().expect("a turn without a panic"));
    }
}

#[test]
fn an_engine_may_change_its_thread_between_turns() {
    let (mut world, mut pairs) = back_to_back(LoopOptions::default(), 1);
    let source = world.hosts[0].register(pattern(1 << 18, 1), Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; 1 << 18], Access::REMOTE_WRITE);
    let client = &mut pairs[0].0;
    let remote = (target.stag(), target.base_offset());
    assert!(client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 1 << 18)), remote));
    let mut done = None;
    // Its steps turn the engines on this thread, so each engine changes its thread twice a step.
    let all_is_back = world.run_until(SECOND, |world| {
        turn_elsewhere(world);
        done = done.or_else(|| client.poll());
        let held = |host: &Host<LoopPort>| host.engine.as_ref().expect("alive").buffers_held();
        done.is_some() && world.hosts.iter().all(|host| held(host) == 0)
    });
    assert!(all_is_back, "{done:?}");
    assert_eq!(done.expect("completed").status, Status::Success);
    assert_eq!(contents(&target), contents(&source));
    for host in &world.hosts {
        let pools = host.engine.as_ref().expect("alive").stats().pools;
        assert_eq!(pools.transmit_free, pools.transmit_total, "every buffer returned, whichever thread freed it");
    }
}

#[test]
fn frames_as_large_as_the_port_allows_are_used() {
    for (mtu, checksums) in [(576, true), (1500, false), (9000, true)] {
        let (mut world, mut pairs) = back_to_back(LoopOptions { mtu, checksums, ..LoopOptions::default() }, 1);
        let source = world.hosts[0].register(pattern(1 << 20, 1), Access::LOCAL_READ);
        let target = world.hosts[1].register(vec![0; 1 << 20], Access::REMOTE_WRITE);
        let client = &mut pairs[0].0;
        client.post_simple(1, SendOpcode::Write, Some(sge(&source, 0, 1 << 20)), (target.stag(), 0));
        assert!(world.run_until(SECOND, |_| contents(&target) == contents(&source)));
        let sent = world.hosts[0].engine.as_ref().expect("alive").stats().counters.fpdus_sent;
        let payload = u64::from(mtu) - 40 - 12 - 2 - 14 - 4;
        assert!(sent <= (1 << 20) / (payload - 3) + 1, "{sent} FPDUs at MTU {mtu}");
    }
}

#[test]
fn faults_can_be_switched_on_and_off_while_traffic_flows() {
    let (mut world, mut pairs) = back_to_back(LoopOptions::default(), 2);
    let regions = regions(&world);
    let rates = Rates { loss: 0.02, duplication: 0.02, reordering: 0.05, corruption: 0.02, marking: 0.0 };
    let recutting = Recutting { cutting: 0.2, joining: 0.5 };
    let faults = Some(FaultRates { seed: 7, transmit: rates, receive: rates, recutting, ..FaultRates::default() });
    world.hosts[0].command(Command::SetFaults { faults });
    traffic(&mut world, &mut pairs, &regions, 300);
    let counts = world.hosts[0].engine.as_ref().expect("alive").stats().faults;
    assert_eq!(counts.len(), 13);
    assert!(counts.iter().all(|(kind, count)| *count > 0 || kind.ends_with("marked")), "{counts:?}");
    world.hosts[0].command(Command::SetFaults { faults: None });
    world.run(Duration::from_millis(10));
    let before = world.hosts[0].engine.as_ref().expect("alive").stats();
    assert!(before.faults.is_empty());
    traffic(&mut world, &mut pairs, &regions, 20);
    let after = world.hosts[0].engine.as_ref().expect("alive").stats();
    assert_eq!(before.counters.retransmissions, after.counters.retransmissions);
}

#[test]
fn a_marked_copy_of_a_frame_that_is_still_needed_has_its_checksum_computed_too() {
    let (left, mut right) = LoopPort::pair(LoopOptions { checksums: false, ..LoopOptions::default() });
    let mut port = Decorated::new(left);
    let transmit = Rates { marking: 1.0, ..Rates::default() };
    port.set_faults(Some(FaultRates { transmit, ..FaultRates::default() }));
    // An IPv4 packet that allows it: ECT(0).
    let mut octets = [0; 54];
    (octets[12], octets[14], octets[15]) = (8, 0x45, 2);
    let wanted =
        TransmitChecksums { ip: false, tcp: true, link_length: 14, ip_length: 20, tcp_length: 20, segment_size: 0 };
    let mut frame = port.alloc().expect("free");
    frame.fill(&octets);
    frame.set_transmit_checksums(wanted);
    let kept = frame.share();
    port.tx_burst(&mut VecDeque::from([frame]));
    let mut batch = Batch::new();
    assert_eq!(right.rx_burst(&mut batch), 1);
    assert_eq!((batch[0].data()[15], batch[0].transmit_checksums()), (3, wanted));
    assert_eq!(
        (kept.data()[15], kept.transmit_checksums()),
        (2, wanted),
        "the one that may be sent again is as it was"
    );
}

#[test]
fn a_capture_has_every_frame_of_both_directions() {
    let directory = std::env::temp_dir().join(format!("uwarp-capture-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("frames.pcap");
    let (mut world, mut pairs) = back_to_back(LoopOptions::default(), 1);
    let regions = regions(&world);
    let (reply, opened) = unbounded();
    world.hosts[0].command(Command::StartCapture { path: path.clone(), reply });
    world.run(Duration::from_micros(10));
    assert_eq!(opened.try_recv(), Ok(Ok(())));
    let frames = |world: &World<LoopPort>| {
        let stats = world.hosts[0].engine.as_ref().expect("alive").stats();
        stats.counters.frames_received + stats.counters.frames_sent
    };
    let before = frames(&world);
    traffic(&mut world, &mut pairs, &regions, 10);
    let wanted = frames(&world) - before;
    world.hosts[0].command(Command::StopCapture);
    world.run(Duration::from_micros(10));
    let found = uwarp_testkit::capture::frames(&path).len() as u64;
    assert!(found >= wanted && wanted > 30, "{found} of {wanted}");
    let (reply, opened) = unbounded();
    world.hosts[0].command(Command::StartCapture { path: directory.join("no/such/folder"), reply });
    world.run(Duration::from_micros(10));
    assert!(opened.try_recv().is_ok_and(|result| result.is_err()));
    std::fs::remove_dir_all(&directory).expect("removed");
}

/// Frames with a number each.
fn numbered(port: &mut impl Port<Buffer = HeapBuffer>, numbers: std::ops::Range<u8>) -> VecDeque<HeapBuffer> {
    let frame = |number| {
        let mut frame = port.alloc().expect("free");
        frame.fill(&[number; 60]);
        frame
    };
    numbers.map(frame).collect()
}

fn numbers_received(port: &mut impl Port<Buffer = HeapBuffer>) -> Vec<u8> {
    let mut numbers = Vec::new();
    for _ in 0..20 {
        let mut batch = Batch::new();
        port.rx_burst(&mut batch);
        numbers.extend(batch.iter().map(|frame| frame.data()[0]));
    }
    numbers
}

#[test]
fn frames_that_wait_when_the_faults_change_are_received_all_the_same() {
    let held = FaultRates { receive: Rates { reordering: 1.0, ..Rates::default() }, ..FaultRates::default() };
    let twice = FaultRates { receive: Rates { duplication: 1.0, ..Rates::default() }, ..FaultRates::default() };
    let recut = FaultRates { recutting: Recutting { cutting: 1.0, ..Recutting::default() }, ..FaultRates::default() };
    let harmless = FaultRates { seed: 1, ..FaultRates::default() };
    for (faults, copies) in [(held, 1), (twice, 2)] {
        for next in [None, Some(harmless), Some(recut)] {
            let (mut near, far) = LoopPort::pair(LoopOptions::default());
            let mut far = Decorated::new(far);
            far.set_faults(Some(faults));
            let mut frames = numbered(&mut near, 0..50);
            near.tx_burst(&mut frames);
            let mut batch = Batch::new();
            far.rx_burst(&mut batch);
            assert!(batch.len() < 50);
            far.set_faults(next);
            assert_eq!(far.next_arrival(), Some(Instant::ZERO), "some wait");
            assert_eq!(far.fault_counts().is_empty(), next.is_none());
            let mut numbers: Vec<u8> = batch.iter().map(|frame| frame.data()[0]).collect();
            numbers.extend(numbers_received(&mut far));
            numbers.sort_unstable();
            // Those that were not taken from the device before are not repeated any more.
            let mut expected: Vec<u8> = (0..50).chain((0..32).filter(|_| copies == 2)).collect();
            expected.sort_unstable();
            assert_eq!(numbers, expected);
            assert_eq!(far.next_arrival(), None);
        }
    }
}

#[test]
fn frames_that_the_device_has_no_room_for_when_the_faults_change_leave_all_the_same() {
    for next in [None, Some(FaultRates { seed: 1, ..FaultRates::default() })] {
        let (near, mut far) = LoopPort::pair(LoopOptions { queue: 8, ..LoopOptions::default() });
        let mut near = Decorated::new(near);
        near.set_faults(Some(FaultRates::default()));
        let mut frames = numbered(&mut near, 0..50);
        near.tx_burst(&mut frames);
        assert!(frames.is_empty());
        near.set_faults(next);
        let mut last = numbered(&mut near, 50..51);
        let mut numbers = Vec::new();
        for _ in 0..20 {
            near.tx_burst(&mut last);
            near.rx_burst(&mut Batch::new());
            numbers.extend(numbers_received(&mut far));
        }
        assert_eq!(numbers, (0..51).collect::<Vec<u8>>());
    }
}

#[test]
fn a_frame_given_alone_arrives_behind_those_of_a_queue_and_comes_back_if_there_is_no_room() {
    let (mut near, mut far) = LoopPort::pair(LoopOptions { queue: 4, ..LoopOptions::default() });
    let mut frames = numbered(&mut near, 0..5);
    let (last, next) = (frames.pop_back().expect("five"), frames.pop_back().expect("five"));
    assert_eq!(near.tx_burst(&mut frames), 3);
    assert!(near.tx_one(next).is_ok());
    let last = near.tx_one(last).expect_err("the line is full");
    assert_eq!(numbers_received(&mut far), [0, 1, 2, 3]);
    // With faults all frames go by the queue.
    let mut near = Decorated::new(near);
    near.set_faults(Some(FaultRates::default()));
    let last = near.tx_one(last).expect_err("there are faults");
    near.set_faults(None);
    assert!(near.tx_one(last).is_ok());
    assert_eq!(numbers_received(&mut far), [4]);
}

/// Sleeps until the port has a frame. One that nobody announces is a failure.
fn next_announced(port: &mut LoopPort) -> HeapBuffer {
    let mut batch = Batch::new();
    loop {
        assert!(port.enable_wakeups());
        if port.rx_burst(&mut batch) == 0 {
            let limit = Timespec::try_from(Duration::from_secs(20)).unwrap();
            let mut polled: Vec<_> =
                port.wakeup_descriptors().into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            assert_eq!(poll(&mut polled, Some(&limit)).unwrap(), 1, "the frame is not announced");
        }
        port.disable_wakeups();
        if let Some(frame) = batch.pop() {
            return frame;
        }
    }
}

#[test]
fn a_thread_that_sleeps_beside_an_in_process_link_misses_no_frame() {
    let (mut left, mut right) = LoopPort::pair(LoopOptions::default());
    let turns = |port: &mut LoopPort, first: bool| {
        let mut random = fastrand::Rng::with_seed(first.into());
        for round in 0..1000 {
            if round > 0 || !first {
                drop(next_announced(port));
            }
            // From no time at all to a few times what it takes to fall asleep.
            for _ in 0..random.u32(0..20_000) {
                std::hint::spin_loop();
            }
            let frame = port.alloc().expect("a free buffer");
            assert_eq!(port.tx_burst(&mut VecDeque::from([frame])), 1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| turns(&mut right, false));
        turns(&mut left, true);
    });
    drop(next_announced(&mut left));
    drop(right);
    assert!(left.enable_wakeups());
    assert!(left.disable_wakeups(), "the link has changed");
    assert_eq!(left.link(), LinkState::Down);
}
