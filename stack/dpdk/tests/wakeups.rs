//! A thread that sleeps until its device announces packets misses none, and nothing else wakes it.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{PATIENCE, connect, contents, directory, eal, memif, open, options, send_octets, vhost, virtio, whole};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_dpdk::{DeviceConfig, Mbuf, MemifRole, Port, Queue};
use uwarp_netns::{self as netns, End, Namespace, Queues};

/// Times that each end goes to sleep while a packet is on its way.
const ROUNDS: u64 = 1000;

/// The next frame of ours, if there is one. The kernel's own frames on an interface are skipped.
fn look(queue: &mut Queue) -> Option<Mbuf> {
    let mut frames = Vec::with_capacity(1);
    while queue.rx_burst(&mut frames) > 0 {
        if let Some(frame) = frames.pop().filter(|frame| frame.data()[12..14] == [0x88, 0xb5]) {
            return Some(frame);
        }
    }
    None
}

/// Sleeps, at most for `limit`. Returns whether something ended the sleep, or was there before it.
fn sleep(queue: &mut Queue, limit: Duration) -> (bool, Option<Mbuf>) {
    assert!(queue.enable_wakeups(), "{queue:?} announces packets");
    let mut frame = look(queue);
    let mut woken = true;
    if frame.is_none() {
        let (changes, packets) = queue.wakeup_descriptors();
        let packets = packets.unwrap_or(changes);
        let mut polled = [changes, packets].map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let limit = Timespec::try_from(limit).expect("a short time");
        woken = poll(&mut polled, Some(&limit)).expect("descriptors to wait for") > 0;
    }
    queue.disable_wakeups();
    if frame.is_none() {
        frame = look(queue);
    }
    (woken, frame)
}

/// Sleeps until there is a frame. One that nobody announces is a failure, even if it can be received.
fn next(queue: &mut Queue) -> Mbuf {
    loop {
        let (woken, frame) = sleep(queue, PATIENCE);
        assert!(
            woken,
            "nothing was announced, although {}",
            if frame.is_some() { "a frame is here" } else { "it was sent" }
        );
        if let Some(frame) = frame {
            return frame;
        }
    }
}

/// Waits without sleeping: from no time at all to a few times what it takes to fall asleep.
fn dawdle(random: &mut fastrand::Rng) {
    for _ in 0..random.u32(0..20_000) {
        std::hint::spin_loop();
    }
}

/// Two threads that take turns, each asleep, or about to be, when the other one's frame comes.
fn take_turns(left: &mut Queue, right: &mut Queue) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            for round in 0..ROUNDS {
                assert_eq!(whole(&next(right)), contents(60, round));
                dawdle(&mut random);
                send_octets(right, &contents(60, !round));
            }
        });
        let mut random = fastrand::Rng::with_seed(2);
        for round in 0..ROUNDS {
            dawdle(&mut random);
            send_octets(left, &contents(60, round));
            assert_eq!(whole(&next(left)), contents(60, !round));
        }
    });
}

/// Once what was under way has arrived, nothing wakes the thread of a queue.
fn rests(queue: &mut Queue) {
    // A tap's descriptor stays readable until its signal has been seen, by a thread that may come late on a busy
    // machine.
    let start = Instant::now();
    while (0..10).any(|_| sleep(queue, Duration::from_millis(20)).0) {
        assert!(start.elapsed() < PATIENCE, "something wakes the thread of an idle queue again and again");
    }
}

fn exchange(left: &Port, right: &Port) {
    let (mut left, mut right) = connect(left, right);
    take_turns(&mut left, &mut right);
    rests(&mut left);
    rests(&mut right);
}

fn virtio_pair(packed: bool, virtio_listens: bool) {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("v");
    let host = open(&eal, &vhost(socket.clone(), virtio_listens), &options(1500));
    let guest = open(&eal, &virtio(socket, virtio_listens, packed), &options(1500));
    exchange(&guest, &host);
}

#[test]
fn no_frame_of_split_rings_is_missed() {
    virtio_pair(false, false);
}

#[test]
fn no_frame_of_packed_rings_is_missed() {
    virtio_pair(true, false);
}

#[test]
fn no_frame_of_a_guest_that_listens_is_missed() {
    virtio_pair(false, true);
}

#[test]
fn no_frame_of_a_guest_that_listens_with_packed_rings_is_missed() {
    virtio_pair(true, true);
}

/// The two ends of a link in a namespace.
fn kernel_pair(make: impl FnOnce([End<'_>; 2]), device: impl Fn(&str, String) -> DeviceConfig) {
    if uwarp_notes::lacks_root("a network namespace") {
        return;
    }
    let namespace = Namespace::new("dpdk").expect("a kernel with network namespaces");
    make(["uwa", "uwb"].map(|end| End::silent(end).of(&namespace)));
    let eal = eal();
    let port = |end| open(&eal, &device(end, namespace.name().to_owned()), &options(1500));
    exchange(&port("uwa"), &port("uwb"));
}

#[test]
fn no_frame_of_packet_sockets_is_missed() {
    kernel_pair(
        |ends| netns::veth(1500, ends).expect("a veth pair"),
        |end, netns| DeviceConfig::AfPacket { interface: end.to_owned(), netns: Some(netns), frame_count: None },
    );
}

#[test]
fn no_frame_of_taps_is_missed() {
    kernel_pair(
        |ends| netns::taps(ends.map(|end| (end, Queues::Several))).expect("two taps on a bridge"),
        |end, netns| DeviceConfig::Tap { name: end.to_owned(), mac: None, netns: Some(netns) },
    );
}

/// Sleeps until the device reports a change. The descriptor may be readable once more for one that is known.
fn await_change(queue: &mut Queue) {
    let limit = Timespec::try_from(PATIENCE).expect("a short time");
    loop {
        assert!(queue.enable_wakeups());
        let (changes, _) = queue.wakeup_descriptors();
        let woken = poll(&mut [PollFd::from_borrowed_fd(changes, PollFlags::IN)], Some(&limit)).expect("a descriptor");
        assert_eq!(woken, 1, "no change is reported");
        if queue.disable_wakeups() {
            return;
        }
    }
}

#[test]
fn a_peer_that_comes_or_goes_ends_the_sleep() {
    let eal = eal();
    let directory = directory();
    let socket: PathBuf = directory.path().join("v");
    let host = open(&eal, &vhost(socket.clone(), false), &options(1500));
    let mut host_queue = host.take_queue(0).unwrap();
    for _ in 0..3 {
        let guest = std::thread::scope(|scope| {
            let guest = scope.spawn(|| open(&eal, &virtio(socket.clone(), false, false), &options(1500)));
            await_change(&mut host_queue);
            guest.join().unwrap()
        });
        host.wait_link_up(PATIENCE).unwrap();
        guest.wait_link_up(PATIENCE).unwrap();
        take_turns(&mut guest.take_queue(0).unwrap(), &mut host_queue);
        host_queue.disable_wakeups();
        drop(guest);
        await_change(&mut host_queue);
        assert!(!host.link_up());
    }
}

#[test]
fn a_guest_sleeps_beside_its_next_host() {
    for packed in [false, true] {
        let eal = eal();
        let directory = directory();
        let socket = directory.path().join("v");
        let host = open(&eal, &vhost(socket.clone(), false), &options(1500));
        let guest = open(&eal, &virtio(socket.clone(), false, packed), &options(1500));
        guest.wait_link_up(PATIENCE).unwrap();
        let mut queue = guest.take_queue(0).unwrap();
        queue.disable_wakeups();
        drop(host);
        while guest.link_up() {
            await_change(&mut queue);
        }
        let host = open(&eal, &vhost(socket, false), &options(1500));
        while !guest.link_up() {
            await_change(&mut queue);
        }
        host.wait_link_up(PATIENCE).unwrap();
        take_turns(&mut queue, &mut host.take_queue(0).unwrap());
    }
}

#[test]
fn memif_says_that_it_announces_nothing() {
    let directory = directory();
    let port = open(&eal(), &memif(MemifRole::Server, directory.path().join("m"), false), &options(1500));
    let mut queue = port.take_queue(0).unwrap();
    assert!(!queue.enable_wakeups());
    queue.disable_wakeups();
}
