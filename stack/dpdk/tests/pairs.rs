//! Both ends of each kind of device in one process: what enters at one end leaves at the other.

mod common;

use common::{
    PATIENCE, Reserved, connect, contents, directory, eal, exchange, fill, memif, open, options, receive, send, sizes,
    vhost, virtio, whole,
};
use std::time::Instant;
use uwarp_dpdk::{
    ChecksumStatus, DeviceConfig, Eal, EalConfig, Mbuf, MemifRole, Offloads, Port, PortOptions, Queue, TxChecksum,
};

fn memif_pair(mtu: u16, zero_copy: bool) {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("m");
    let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(mtu));
    let client = open(&eal, &memif(MemifRole::Client, socket, zero_copy), &options(mtu));
    let (mut left, mut right) = connect(&server, &client);
    exchange(&mut left, &mut right, sizes(mtu));
}

#[test]
fn memif_copy_1500() {
    memif_pair(1500, false);
}

#[test]
fn memif_copy_9000() {
    memif_pair(9000, false);
}

#[test]
fn memif_zero_copy_1500() {
    memif_pair(1500, true);
}

#[test]
fn memif_zero_copy_9000() {
    memif_pair(9000, true);
}

/// Opens the two ends of a virtio pair: first the one that listens, then the one that connects.
fn virtio_pair(mtu: u16, packed: bool, virtio_listens: bool) {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("v");
    let options = options(mtu);
    // vhost opens without its peer in either role.
    let host = open(&eal, &vhost(socket.clone(), virtio_listens), &options);
    let guest = open(&eal, &virtio(socket, virtio_listens, packed), &options);
    let (mut left, mut right) = connect(&guest, &host);
    exchange(&mut left, &mut right, sizes(mtu));
}

#[test]
fn virtio_split_1500() {
    virtio_pair(1500, false, false);
}

#[test]
fn virtio_split_9000() {
    virtio_pair(9000, false, false);
}

#[test]
fn virtio_packed_1500() {
    virtio_pair(1500, true, false);
}

#[test]
fn virtio_packed_9000() {
    virtio_pair(9000, true, false);
}

#[test]
fn virtio_split_listening() {
    virtio_pair(1500, false, true);
}

#[test]
fn virtio_packed_listening() {
    virtio_pair(1500, true, true);
}

fn ring(name: &str, loopback: bool) -> DeviceConfig {
    DeviceConfig::Ring { name: name.to_owned(), loopback }
}

fn ring_pair(options: &PortOptions) -> (Port, Port) {
    let eal = eal();
    (open(&eal, &ring("pair", false), options), open(&eal, &ring("pair", false), options))
}

#[test]
fn ring_pair_1500_and_9000() {
    for mtu in [1500, 9000] {
        let (a, b) = ring_pair(&options(mtu));
        assert!(Port::open(&eal(), &ring("pair", false), &options(mtu)).is_err(), "a third end");
        let (mut left, mut right) = connect(&a, &b);
        exchange(&mut left, &mut right, sizes(mtu));
    }
}

#[test]
fn ring_loopback_hears_itself() {
    let port = open(&eal(), &ring("loop", true), &options(1500));
    let mut queue = port.take_queue(0).unwrap();
    let mut mbuf = queue.alloc().unwrap();
    fill(&mut mbuf, &contents(60, 1));
    send(&mut queue, mbuf);
    assert_eq!(whole(&receive(&mut queue, &mut || {})), contents(60, 1));
}

/// Frame `number` on queue `index`.
fn numbered(index: u16, number: u64) -> Vec<u8> {
    contents(60 + usize::from(index), number * 16 + u64::from(index))
}

fn several_queues(left: &Port, right: &Port, count: u16) {
    left.wait_link_up(common::PATIENCE).unwrap();
    right.wait_link_up(common::PATIENCE).unwrap();
    let mut lefts: Vec<Queue> = (0..count).map(|index| left.take_queue(index).unwrap()).collect();
    let mut rights: Vec<Queue> = (0..count).map(|index| right.take_queue(index).unwrap()).collect();
    rights.iter_mut().for_each(common::prime);
    assert!(left.take_queue(0).is_none(), "taken twice");
    assert!(left.take_queue(count).is_none(), "beyond the last");
    for number in 0..20 {
        for (index, queue) in lefts.iter_mut().enumerate() {
            let mut mbuf = queue.alloc().unwrap();
            fill(&mut mbuf, &numbered(index as u16, number));
            send(queue, mbuf);
        }
        for (index, queue) in rights.iter_mut().enumerate() {
            assert_eq!(whole(&receive(queue, &mut || {})), numbered(index as u16, number));
        }
    }
    drop(lefts.remove(0));
    assert!(left.take_queue(0).is_some(), "dropped and taken again");
}

#[test]
fn memif_two_queues() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("m");
    let options = PortOptions { queues: 2, ..options(1500) };
    let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options);
    let client = open(&eal, &memif(MemifRole::Client, socket, false), &options);
    several_queues(&server, &client, 2);
}

#[test]
fn virtio_two_queues() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("v");
    let options = PortOptions { queues: 2, ..options(1500) };
    let host = open(&eal, &vhost(socket.clone(), false), &options);
    let guest = open(&eal, &virtio(socket, false, false), &options);
    several_queues(&guest, &host, 2);
}

#[test]
fn null_swallows_and_gives() {
    let port = open(&eal(), &DeviceConfig::Null { frame_size: Some(100) }, &options(1500));
    let mut queue = port.take_queue(0).unwrap();
    let mut frames = Vec::with_capacity(8);
    assert_eq!(queue.rx_burst(&mut frames), 8);
    assert!(frames.iter().all(|frame| frame.total_len() == 100));
    let mut frames: std::collections::VecDeque<_> = frames.into();
    assert_eq!(queue.tx_burst(&mut frames), 8);
    assert!(frames.is_empty());
}

#[test]
fn pcap_writes_what_it_reads() {
    let eal = eal();
    let directory = directory();
    let file = directory.path().join("frames.pcap");
    let device = DeviceConfig::Pcap { receive: None, transmit: Some(file.clone()) };
    if !uwarp_dpdk::loads_drivers() {
        let error = Port::open(&eal, &device, &options(1500)).map(|_| ()).expect_err("libpcap is not in the program");
        assert!(error.to_string().contains("net_pcap") && error.to_string().contains("UWARP_DPDK=shared"), "{error}");
        return;
    }
    {
        let port = open(&eal, &device, &options(1500));
        let mut queue = port.take_queue(0).unwrap();
        for number in 0..10 {
            let mut mbuf = queue.alloc().unwrap();
            fill(&mut mbuf, &numbered(0, number));
            send(&mut queue, mbuf);
        }
    }
    let device = DeviceConfig::Pcap { receive: Some(file), transmit: None };
    let port = open(&eal, &device, &options(1500));
    let mut queue = port.take_queue(0).unwrap();
    for number in 0..10 {
        assert_eq!(whole(&receive(&mut queue, &mut || {})), numbered(0, number));
    }
}

/// Packets of several segments, the last one shared, arrive whole.
fn chained(left: &Port, right: &Port) {
    let (mut a, mut b) = connect(left, right);
    if !a.capabilities().tx_multi_segment {
        uwarp_notes::skipped("packets of several segments: the device accepts none");
        return;
    }
    for segments in 2..6 {
        let frame = contents(segments * 200 + 14, segments as u64);
        let mut parts = frame.chunks(frame.len() / segments + 1).map(|part| {
            let mut mbuf = a.alloc().unwrap();
            fill(&mut mbuf, part);
            mbuf
        });
        let mut head = parts.next().unwrap();
        let mut rest: Vec<_> = parts.collect();
        // As in a retransmission: the payload is still referenced elsewhere.
        let kept = rest.last().unwrap().share();
        for part in rest.drain(..) {
            head.chain_append(part).expect("only the last is shared");
        }
        assert_eq!((head.segment_count(), head.total_len()), (segments, frame.len()));
        let last = frame.chunks(frame.len() / segments + 1).last().unwrap().to_vec();
        send(&mut a, head);
        assert_eq!(whole(&receive(&mut b, &mut || {})), frame, "{segments} segments");
        assert_eq!(kept.data(), last);
    }
}

#[test]
fn chains_over_memif() {
    let eal = eal();
    let directory = directory();
    for zero_copy in [false, true] {
        let socket = directory.path().join("m");
        let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(1500));
        let client = open(&eal, &memif(MemifRole::Client, socket, zero_copy), &options(1500));
        chained(&server, &client);
        drop((server, client));
    }
}

/// The client receives chains: DPDK 22.11 fills one of its buffers after the other, 24.11 takes one for each segment.
#[test]
fn a_zero_copy_memif_client_receives_frames_longer_than_its_buffers() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("m");
    let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(9000));
    let client = open(&eal, &memif(MemifRole::Client, socket, true), &options(1500));
    let (mut a, mut b) = connect(&server, &client);
    for size in [1500, 2500, 5000, 9000] {
        let frame = contents(size, size as u64);
        let mut parts = frame.chunks(1250).map(|part| {
            let mut mbuf = a.alloc().unwrap();
            fill(&mut mbuf, part);
            mbuf
        });
        let mut head = parts.next().unwrap();
        parts.for_each(|part| head.chain_append(part).expect("nobody else has a part"));
        send(&mut a, head);
        assert_eq!(whole(&receive(&mut b, &mut || {})), frame, "{size} octets");
    }
}

#[test]
fn chains_over_virtio() {
    let eal = eal();
    let directory = directory();
    for packed in [false, true] {
        let socket = directory.path().join("v");
        let host = open(&eal, &vhost(socket.clone(), false), &options(1500));
        let guest = open(&eal, &virtio(socket, false, packed), &options(1500));
        chained(&guest, &host);
        chained(&host, &guest);
    }
}

/// An Ethernet, IPv4 and TCP frame with the pseudo-header's sum in the checksum field.
fn tcp_frame(payload: usize) -> Vec<u8> {
    let mut frame = contents(14 + 40 + payload, payload as u64);
    frame[12..14].copy_from_slice(&[8, 0]);
    let length = (40 + payload) as u16;
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    let header_sum = !sum(&frame[14..34], 0);
    frame[24..26].copy_from_slice(&header_sum.to_be_bytes());
    frame[46] = 0x50;
    let pseudo = sum(&frame[26..34], 6 + u32::from(length - 20));
    frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

/// The sum of RFC 1071, not complemented.
fn sum(octets: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in octets.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn virtio_passes_on_what_it_knows_of_checksums() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("v");
    let host = open(&eal, &vhost(socket.clone(), false), &options(1500));
    let guest = open(&eal, &virtio(socket, false, false), &options(1500));
    let (mut left, mut right) = connect(&guest, &host);
    for (from, to) in [(&mut left, &mut right)] {
        assert!(from.capabilities().tx_tcp_checksum && to.capabilities().rx_tcp_checksum);
        let frame = tcp_frame(100);
        let mut mbuf = from.alloc().unwrap();
        fill(&mut mbuf, &frame);
        let ask = TxChecksum { l2_len: 14, l3_len: 20, l4_len: 20, tcp: true, ..TxChecksum::default() };
        assert!(mbuf.set_tx_checksum(ask));
        send(from, mbuf);
        let mut frames = Vec::with_capacity(1);
        while to.rx_burst(&mut frames) == 0 {}
        assert_eq!(frames[0].rx_checksum().l4, ChecksumStatus::Good);
        assert_eq!(frames[0].data()[54..], frame[54..]);
        // And one that nobody vouches for.
        let mut mbuf = from.alloc().unwrap();
        fill(&mut mbuf, &frame);
        send(from, mbuf);
        frames.clear();
        while to.rx_burst(&mut frames) == 0 {}
        assert_ne!(frames[0].rx_checksum().l4, ChecksumStatus::Good);
    }
}

#[test]
fn virtio_sends_a_copy_of_a_short_frame_that_is_kept() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("v");
    for packed in [false, true] {
        let host = open(&eal, &vhost(socket.clone(), false), &options(1500));
        let guest = open(&eal, &virtio(socket.clone(), false, packed), &options(1500));
        let (mut guest, mut host) = connect(&guest, &host);
        keep_and_send(&mut guest, &mut host);
    }
}

/// Sends a reference to a frame that is kept. A device with room refuses it as long as EAL's interrupt thread is at
/// work: no burst runs beside that thread.
fn place(queue: &mut Queue, kept: &Mbuf) {
    let start = Instant::now();
    while queue.tx_one(kept.share()).is_err() {
        assert!(start.elapsed() < PATIENCE, "the device has room");
    }
}

fn keep_and_send(guest: &mut Queue, host: &mut Queue) {
    // More often than the ring has descriptors.
    for number in 0..3000 {
        let frame = tcp_frame(number % 300);
        let mut kept = guest.alloc().unwrap();
        fill(&mut kept, &frame);
        let ask = TxChecksum { l2_len: 14, l3_len: 20, l4_len: 20, tcp: true, ..TxChecksum::default() };
        assert!(kept.set_tx_checksum(ask));
        place(guest, &kept);
        assert_eq!(kept.is_shared(), frame.len() > 256, "{number}");
        let mut frames = Vec::with_capacity(1);
        while host.rx_burst(&mut frames) == 0 {}
        assert_eq!(frames[0].rx_checksum().l4, ChecksumStatus::Good);
        assert!(frames[0].data()[..50] == frame[..50] && frames[0].data()[54..] == frame[54..], "{number}");
    }
    // A full device gives back the frame itself, and keeps no copy of it.
    let mut waiting = 0;
    let mut refused = 0;
    while refused < 3000 {
        let mut kept = guest.alloc().unwrap();
        fill(&mut kept, &contents(60, waiting));
        match guest.tx_one(kept.share()) {
            Ok(()) => waiting += 1,
            Err(frame) => {
                refused += 1;
                assert!(kept.is_shared(), "{waiting}");
                assert_eq!(whole(&frame), contents(60, waiting));
            }
        }
    }
    for number in 0..waiting {
        assert_eq!(whole(&receive(host, &mut || {})), contents(60, number));
    }
    let mut kept = guest.alloc().unwrap();
    fill(&mut kept, &contents(60, 0));
    place(guest, &kept);
    assert!(!kept.is_shared(), "there are copies again");
    assert_eq!(whole(&receive(host, &mut || {})), contents(60, 0));
    // What has no other reference is sent as it is.
    let mut frame = guest.alloc().unwrap();
    fill(&mut frame, &contents(60, 1));
    send(guest, frame);
    assert_eq!(whole(&receive(host, &mut || {})), contents(60, 1));
}

#[test]
fn offloads_that_are_not_wanted_are_off() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("v");
    let offloads = Offloads { rx_checksum: false, tx_checksum: false, tso: false };
    let options = PortOptions { offloads, ..options(1500) };
    let host = open(&eal, &vhost(socket.clone(), false), &options);
    let guest = open(&eal, &virtio(socket, false, false), &options);
    for port in [&host, &guest] {
        let capabilities = port.capabilities();
        assert!(!capabilities.rx_tcp_checksum && !capabilities.tx_tcp_checksum && !capabilities.tso);
    }
    let (mut a, mut b) = connect(&guest, &host);
    exchange(&mut a, &mut b, 60..100);
}

#[test]
fn hugepages_when_asked() {
    if uwarp_notes::lacks_root("hugepages") {
        return;
    }
    let config = EalConfig { hugepages: true, ..EalConfig::default() };
    let pages = u64::from(config.memory_mib) / 2;
    // EAL keeps the pages that it took until the process ends; then the kernel reclaims them.
    let _reserved = Reserved::new(pages + 8);
    let free = uwarp_dpdk::eal::free_hugepages();
    let eal = Eal::init(&config).unwrap();
    let taken = free - uwarp_dpdk::eal::free_hugepages();
    assert!(taken >= pages, "{taken} of {pages} pages were taken");

    let directory = directory();
    for zero_copy in [false, true] {
        let socket = directory.path().join("m");
        let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options(9000));
        let client = open(&eal, &memif(MemifRole::Client, socket, zero_copy), &options(9000));
        let (mut a, mut b) = connect(&server, &client);
        exchange(&mut a, &mut b, sizes(9000));
    }
    for packed in [false, true] {
        let socket = directory.path().join("v");
        let host = open(&eal, &vhost(socket.clone(), false), &options(1500));
        let guest = open(&eal, &virtio(socket, false, packed), &options(1500));
        let (mut a, mut b) = connect(&guest, &host);
        exchange(&mut a, &mut b, sizes(1500));
    }
}
