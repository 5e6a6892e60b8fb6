//! Buffers and pools: ownership, and that every buffer is returned.

mod common;

use std::collections::VecDeque;

use common::{
    connect, contents, directory, eal, exchange, fill, memif, open, options, receive, send, vhost, virtio, whole,
};
use dpdk_sys::UWARP_LCORE_ANY;
use dpdk_sys::fast::lcore_id;
use uwarp_dpdk::{
    ChecksumStatus, DeviceConfig, Eal, Error, HEADROOM, MAX_BURST, Mbuf, MemifRole, Port, PortOptions, Queue,
    TxChecksum,
};

fn loopback() -> (Port, Queue) {
    let device = DeviceConfig::Ring { name: "loop".to_owned(), loopback: true };
    let port = open(&eal(), &device, &options(1500));
    let queue = port.take_queue(0).unwrap();
    (port, queue)
}

/// Asserts that every buffer of every used pool is back.
fn assert_all_back(eal: &Eal) {
    let pools = eal.unused_pools();
    assert!(!pools.is_empty());
    for pool in pools {
        assert_eq!(pool.free, pool.total);
    }
}

#[test]
fn a_shared_buffer_cannot_be_changed() {
    let (port, mut queue) = loopback();
    let before = port.pool_levels();
    let mut mbuf = queue.alloc().unwrap();
    assert_eq!((mbuf.start(), mbuf.data().len(), mbuf.total_len(), mbuf.segment_count()), (HEADROOM, 0, 0, 1));
    fill(&mut mbuf, &contents(100, 7));
    assert!(!mbuf.is_shared());
    let mut other = mbuf.share();
    assert!(mbuf.is_shared() && other.is_shared());
    assert!(mbuf.storage_mut().is_none() && other.storage_mut().is_none());
    assert!(!mbuf.set_range(HEADROOM, 10));
    assert!(!other.set_tx_checksum(TxChecksum::default()));
    assert_eq!(whole(&other), contents(100, 7));
    drop(mbuf);
    assert!(!other.is_shared());
    assert!(other.storage_mut().is_some());
    drop(other);
    assert_eq!(port.pool_levels(), before);
}

#[test]
fn what_a_device_does_not_take_of_a_vector_stays_in_order() {
    let (port, mut queue) = loopback();
    let before = port.pool_levels();
    let numbered = |queue: &mut Queue, number: u64| {
        let mut mbuf = queue.alloc().expect("more buffers than the ring has room for");
        fill(&mut mbuf, &contents(60, number));
        mbuf
    };
    assert_eq!(queue.tx_front(&mut Vec::new()), 0);
    let (mut made, mut taken, mut frames) = (0, 0, Vec::new());
    loop {
        while frames.len() < MAX_BURST + 3 {
            frames.push(numbered(&mut queue, made));
            made += 1;
        }
        let sent = queue.tx_front(&mut frames);
        taken += sent as u64;
        assert_eq!(frames.len(), MAX_BURST + 3 - sent);
        assert_eq!(whole(&frames[0]), contents(60, taken), "the next one is in front");
        if sent < MAX_BURST {
            break;
        }
    }
    assert!(taken > MAX_BURST as u64);
    let mut received = Vec::with_capacity(MAX_BURST);
    for number in 0..taken {
        if received.is_empty() {
            assert!(queue.rx_burst(&mut received) > 0, "{number} of {taken}");
            received.reverse();
        }
        assert_eq!(whole(&received.pop().unwrap()), contents(60, number));
    }
    // There is room again.
    let left = frames.len().min(MAX_BURST);
    assert_eq!(queue.tx_front(&mut frames), left);
    while queue.rx_burst(&mut received) > 0 {
        received.clear();
    }
    drop(frames);
    assert_eq!(port.pool_levels(), before);
}

#[test]
fn the_device_counts_as_a_holder() {
    let (port, mut queue) = loopback();
    let before = port.pool_levels();
    let mut mbuf = queue.alloc().unwrap();
    fill(&mut mbuf, &contents(100, 8));
    let mut kept = mbuf.share();
    send(&mut queue, mbuf);
    assert!(kept.storage_mut().is_none(), "the buffer is in the device's ring");
    let received = receive(&mut queue, &mut || {});
    assert_eq!(whole(&received), contents(100, 8));
    drop(received);
    assert!(kept.storage_mut().is_some());
    drop(kept);
    assert_eq!(port.pool_levels(), before);
}

#[test]
fn ranges_outside_the_storage_are_refused() {
    let (_port, mut queue) = loopback();
    let mut mbuf = queue.alloc().unwrap();
    let room = mbuf.data_room();
    assert_eq!(room as u32, queue.capabilities().data_room);
    assert_eq!(mbuf.storage_mut().unwrap().len(), room);
    for (start, len) in [(0, room + 1), (room, 1), (room + 1, 0), (1, room), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(!mbuf.set_range(start, len), "{start} {len}");
    }
    assert!(mbuf.set_range(0, room));
    assert_eq!(mbuf.total_len(), room);
    assert!(mbuf.set_range(room, 0));
    assert_eq!(mbuf.data(), b"");
}

fn piece(queue: &mut Queue, octets: &[u8]) -> Mbuf {
    let mut mbuf = queue.alloc().unwrap();
    fill(&mut mbuf, octets);
    mbuf
}

#[test]
fn chains_hold_their_parts() {
    let (port, mut queue) = loopback();
    let before = port.pool_levels();
    let mut header = piece(&mut queue, b"abc");
    let payload = piece(&mut queue, b"defgh");
    header.chain_append(payload.share()).unwrap();
    header.chain_append(piece(&mut queue, b"ij")).expect_err("the last segment is shared");
    assert_eq!((header.segment_count(), header.total_len(), header.data()), (2, 8, &b"abc"[..]));
    assert_eq!(header.segments().collect::<Vec<_>>(), [&b"abc"[..], b"defgh"]);
    let mut out = [0; 4];
    assert_eq!(header.copy_to(2, &mut out), 4);
    assert_eq!(&out, b"cdef");
    assert_eq!(header.copy_to(7, &mut out), 1);
    assert_eq!(header.copy_to(8, &mut out), 0);
    assert!(header.set_range(header.start(), 1), "the header itself is ours");
    assert_eq!(header.total_len(), 6);

    let twice = header.share();
    assert!(header.is_shared());
    drop(header);
    assert_eq!(twice.total_len(), 6);
    drop(twice);
    assert!(!payload.is_shared());
    assert_eq!(whole(&payload), b"defgh");
    drop(payload);
    assert_eq!(port.pool_levels(), before);
}

#[test]
fn an_unknown_checksum_is_not_called_good() {
    let (_port, mut queue) = loopback();
    let mut mbuf = queue.alloc().unwrap();
    fill(&mut mbuf, &contents(60, 1));
    assert!(mbuf.set_tx_checksum(TxChecksum {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        ip: true,
        tcp: true,
        ..TxChecksum::default()
    }));
    assert!(mbuf.clear_tx_checksum());
    send(&mut queue, mbuf);
    let received = receive(&mut queue, &mut || {});
    assert_eq!(received.rx_checksum().ip, ChecksumStatus::Unknown);
    assert_eq!(received.rx_checksum().l4, ChecksumStatus::Unknown);
}

#[test]
fn an_empty_pool_gives_none_and_recovers() {
    let (port, mut queue) = loopback();
    let _registration = eal().register_thread().unwrap();
    let total = queue.pool_levels().tx_total as usize;
    for _ in 0..3 {
        let mut all = Vec::new();
        while let Some(mbuf) = queue.alloc() {
            all.push(mbuf);
        }
        assert_eq!(all.len(), total);
        assert_eq!(queue.pool_levels().tx_free, 0);
        let mut addresses: Vec<usize> = all.iter().map(|mbuf| mbuf.data().as_ptr() as usize).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), total, "each buffer once");
    }
    assert_eq!(port.pool_levels().tx_free as usize, total);
    assert_eq!(queue.pool_levels().tx_free as usize, total);
}

#[test]
fn buffers_dropped_on_another_thread_come_back() {
    let (port, mut queue) = loopback();
    let eal = eal();
    let _registration = eal.register_thread().unwrap();
    let again = eal.register_thread().unwrap();
    drop(again);
    let total = port.pool_levels().tx_total;
    for registered in [false, true] {
        let all: Vec<Mbuf> = std::iter::from_fn(|| queue.alloc()).collect();
        let eal = eal.clone();
        std::thread::spawn(move || {
            let _registration = registered.then(|| eal.register_thread().unwrap());
            drop(all);
        })
        .join()
        .unwrap();
        assert_eq!(queue.pool_levels().tx_free, total, "nothing stays in a cache that nobody uses");
    }
}

#[test]
fn a_registration_that_ends_within_the_caches_of_another_thread_leaves_them_alone() {
    let eal = &eal();
    let mut registration = eal.register_thread().unwrap();
    let mut caches = registration.detach_caches().unwrap();
    let lent = &mut caches;
    let lcore = std::thread::scope(|scope| {
        let within = || {
            let mut inner = eal.register_thread().unwrap();
            assert!(inner.detach_caches().is_none(), "they are detached already");
            drop(inner);
            lcore_id()
        };
        scope.spawn(move || lent.with(within)).join().unwrap()
    });
    let newcomer = || {
        let _registration = eal.register_thread().unwrap();
        lcore_id()
    };
    let other = std::thread::scope(|scope| scope.spawn(newcomer).join().unwrap());
    assert_ne!(other, lcore, "two threads have one lcore");
    drop(caches);
    drop(registration);
    assert_eq!(lcore_id(), UWARP_LCORE_ANY);
}

#[test]
fn a_buffer_outlives_its_port() {
    let (port, mut queue) = loopback();
    let mut mbuf = piece(&mut queue, b"still here");
    drop((port, queue));
    let (_other_port, mut other) = loopback();
    let mut more: Vec<Mbuf> = std::iter::from_fn(|| other.alloc()).collect();
    for buffer in &mut more {
        fill(buffer, b"something else");
    }
    assert_eq!(whole(&mbuf), b"still here");
    assert!(mbuf.storage_mut().is_some());
}

#[test]
fn frames_that_the_device_does_not_take_stay_in_order() {
    let (_port, mut queue) = loopback();
    let mut frames: VecDeque<Mbuf> = VecDeque::new();
    let mut sent = 0;
    // More than the ring holds, in a queue that wraps around.
    for number in 0..1500 {
        let mut mbuf = queue.alloc().unwrap();
        fill(&mut mbuf, &contents(60, number));
        frames.push_back(mbuf);
        sent += queue.tx_burst(&mut frames);
    }
    assert_eq!(sent + frames.len(), 1500);
    let mut received = Vec::with_capacity(64);
    let mut number = 0;
    while number < 1500 {
        received.clear();
        assert!(queue.rx_burst(&mut received) > 0);
        for mbuf in &received {
            assert_eq!(whole(mbuf), contents(60, number));
            number += 1;
        }
        queue.tx_burst(&mut frames);
    }
}

#[test]
fn ports_come_and_go() {
    let eal = eal();
    let directory = directory();
    let mut pools = 0;
    for round in 0..50 {
        let socket = directory.path().join("s");
        let options = options(1500);
        let (left, right) = match round % 3 {
            0 => {
                let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options);
                (server, open(&eal, &memif(MemifRole::Client, socket.clone(), false), &options))
            }
            1 => {
                let host = open(&eal, &vhost(socket.clone(), false), &options);
                (host, open(&eal, &virtio(socket.clone(), false, round % 2 == 0), &options))
            }
            _ => {
                let device = DeviceConfig::Ring { name: "come".to_owned(), loopback: false };
                (open(&eal, &device, &options), open(&eal, &device, &options))
            }
        };
        let (mut a, mut b) = connect(&left, &right);
        exchange(&mut a, &mut b, [60, 1514].into_iter());
        // Some packets on the way.
        for seed in 0..10 {
            let kept = piece(&mut a, &contents(60, seed));
            a.tx_burst(&mut VecDeque::from([kept.share()]));
        }
        if round % 2 == 0 {
            drop((a, b, left, right));
        } else {
            drop((right, left, b, a));
        }
        let left = directory.path().read_dir().expect("the directory").count();
        assert_eq!(left, 0, "round {round}: a socket is left behind");
        assert_all_back(&eal);
        pools = pools.max(eal.unused_pools().len());
    }
    // Two for each of the two ports; the receive buffers of virtio-user begin elsewhere, and it has copies.
    assert_eq!(pools, 6, "pools are used again");
}

/// A zero-copy client's buffers in its driver, at most two full rings, are lost. Nothing else is lost, and later
/// clients work.
#[test]
fn a_zero_copy_client_can_be_opened_again() {
    let eal = eal();
    let directory = directory();
    for round in 1..4 {
        let socket = directory.path().join("z");
        let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(1500));
        let client = open(&eal, &memif(MemifRole::Client, socket, true), &options(1500));
        let (mut a, mut b) = connect(&server, &client);
        exchange(&mut a, &mut b, 60..200);
        drop((a, b, client, server));
        let lost: Vec<u32> =
            eal.unused_pools().iter().map(|pool| pool.total - pool.free).filter(|&lost| lost > 0).collect();
        assert!(lost.len() <= 2 * round && lost.iter().all(|&lost| lost <= 1024), "{lost:?}");
    }
}

#[test]
fn memory_is_given_to_pools_of_another_shape() {
    let eal = eal();
    // Each fits into the memory alone, but not all of them together.
    for (mtu, buffers) in [(1500, 30_000), (9000, 8_000), (1500, 25_000)] {
        let options = PortOptions { rx_buffers: buffers, tx_buffers: 1024, ..options(mtu) };
        let device = DeviceConfig::Ring { name: "big".to_owned(), loopback: true };
        let port = open(&eal, &device, &options);
        assert_eq!(port.pool_levels().rx_free, buffers);
    }
    let options = PortOptions { rx_buffers: 1_000_000, ..options(1500) };
    let device = DeviceConfig::Ring { name: "big".to_owned(), loopback: true };
    match Port::open(&eal, &device, &options) {
        Err(error @ Error::OutOfMemory { .. }) => assert!(error.to_string().contains("memory-mib"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn statistics_count() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("m");
    let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(1500));
    let client = open(&eal, &memif(MemifRole::Client, socket, false), &options(1500));
    let (mut a, mut b) = connect(&server, &client);
    exchange(&mut a, &mut b, 60..70);
    let statistics = server.statistics();
    assert_eq!((statistics.rx_packets, statistics.tx_packets), (10, 10));
    assert_eq!(statistics.rx_octets, (60..70).sum::<u64>());
    assert!(server.extended_statistics().iter().any(|(name, value)| name == "rx_good_packets" && *value == 10));
    assert_eq!(server.info().driver, "net_memif");
}
