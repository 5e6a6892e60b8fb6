use super::*;
use crate::link::port::{BURST, Batch, Port, TransmitChecksums};
use crate::ports::decorated::{Decorated, FaultRates};
use crate::ports::heap::{HeapBuffer, HeapPool};
use crate::ports::{LoopOptions, LoopPort};
use uwarp_wire::frame::{Frame, TcpFrame, classify};

/// The length of an IPv4 header is what the sender says.
#[test]
fn what_is_no_ip_header_passes_as_it_is() {
    let pool = HeapPool::new(8, 2048, 128);
    for (ipv6, versions) in [(false, [0x42, 0x05, 0x65]), (true, [0x05, 0x40, 0x50])] {
        let frame = segment(&pool, 1, b"octets", TcpFlags::ACK, ipv6).data().to_vec();
        assert!(Place::read(&frame).is_some());
        for version in versions {
            let mut frame = frame.clone();
            frame[ETHERNET] = version;
            assert!(Place::read(&frame).is_none(), "{version:#x}");
        }
    }
}

/// A frame of a connection with `octets` of payload from `sequence` on, its checksums right.
fn segment(pool: &HeapPool, sequence: u32, octets: &[u8], flags: TcpFlags, ipv6: bool) -> HeapBuffer {
    let place = if ipv6 { Place { ipv6, tcp: 54, payload: 86 } } else { Place { ipv6, tcp: 34, payload: 66 } };
    let mut frame = vec![0; place.payload];
    let (ip, ethertype): (&[u8], [u8; 2]) = match ipv6 {
        false => (&[0x45, 2, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], [8, 0]),
        true => (&[0x60, 0x20, 0, 0, 0, 0, 6, 64], [0x86, 0xdd]),
    };
    frame[12..14].copy_from_slice(&ethertype);
    frame[14..14 + ip.len()].copy_from_slice(ip);
    if ipv6 {
        (frame[14 + 8], frame[14 + 24]) = (0xfd, 0xfd);
        (frame[14 + 23], frame[14 + 39]) = (1, 2);
    }
    frame[place.tcp..place.tcp + 4].copy_from_slice(&[0, 7, 0, 9]);
    frame[place.tcp + 4..place.tcp + 8].copy_from_slice(&sequence.to_be_bytes());
    frame[place.tcp + 12] = 8 << 4;
    set_flags(&mut frame, place, flags);
    // Two no-operations and a timestamp.
    frame[place.tcp + 20..place.tcp + 24].copy_from_slice(&[1, 1, 8, 10]);
    place.finish(&mut frame, (checksum::sum(octets), octets.len()));
    let mut buffer = pool.alloc().expect("enough buffers");
    buffer.fill(&[&frame[..], octets].concat());
    buffer
}

fn whole(frame: &HeapBuffer) -> Vec<u8> {
    frame.segments().flatten().copied().collect()
}

/// The segment in a frame, its checksums found right by the crate that reads frames.
fn read(octets: &[u8]) -> (TcpFrame, &[u8]) {
    match classify(octets, octets.len()) {
        Ok(Frame::Tcp(frame)) => {
            assert!(frame.checksum_is_good(octets, checksum::sum));
            (frame, &octets[frame.payload_offset..frame.payload_offset + frame.payload_len])
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_stream_is_the_same_behind_the_middlebox() {
    cut_and_join(9200);
}

/// As of a virtio pair, of which one end takes frames that its device would cut and the other sends them.
#[test]
fn frames_may_be_longer_than_the_buffers_for_pieces() {
    cut_and_join(2048);
}

/// `room`: octets of a buffer for a piece.
fn cut_and_join(room: usize) {
    let (pool, pieces) = (HeapPool::new(4000, 9200, 128), HeapPool::new(6000, room, 128));
    let mut random = fastrand::Rng::with_seed(3);
    let stream: Vec<u8> = (0..600_000).map(|_| random.u8(..)).collect();
    let mut middlebox = Middlebox::new(Recutting { cutting: 0.5, joining: 0.5 }, 3);
    let (mut sent, mut segments) = (0, 0);
    while sent < stream.len() {
        let longest = [4, 700, 8000][random.usize(..3)];
        let end = stream.len().min(sent + random.usize(1..=longest));
        let fin = if end == stream.len() { TcpFlags::FIN } else { TcpFlags::NONE };
        // Just before the numbers wrap.
        let sequence = 0xffff_0000u32.wrapping_add(sent as u32);
        let frame = segment(&pool, sequence, &stream[sent..end], TcpFlags::ACK | TcpFlags::PSH | fin, false);
        middlebox.take(frame, || pieces.alloc());
        if random.u32(0..9) == 0 {
            middlebox.flush();
        }
        (sent, segments) = (end, segments + 1);
    }
    middlebox.flush();
    let mut found = Vec::new();
    let (mut longest, mut single, mut chains) = (0, 0, 0);
    for frame in &middlebox.passed {
        let octets = whole(frame);
        let (segment, payload) = read(&octets);
        assert_eq!(segment.header.sequence.0, 0xffff_0000u32.wrapping_add(found.len() as u32));
        assert!(segment.header.options.timestamps.is_some());
        found.extend_from_slice(payload);
        let is_last = found.len() == stream.len();
        assert_eq!(segment.header.flags.contains(TcpFlags::FIN), is_last, "the FIN is behind the last octet");
        longest = longest.max(octets.len());
        single += usize::from(payload.len() == 1);
        chains += usize::from(frame.segment_count() > 1);
    }
    assert!(found == stream);
    assert!(single > 1 && chains > 10, "{single} {chains}");
    assert!(longest > 30_000, "{longest}");
    assert!(middlebox.counts[0] as usize > segments / 4 && middlebox.counts[1] > 10);
    middlebox.passed.clear();
    assert_eq!((pool.free(), pieces.free()), (pool.total(), pieces.total()));
}

#[test]
fn a_super_segment_ends_below_64_kib() {
    let pool = HeapPool::new(64, 9200, 128);
    let mut middlebox = Middlebox::new(Recutting { cutting: 0.0, joining: 1.0 }, 1);
    for index in 0..10 {
        let frame = segment(&pool, index * 8191, &[index as u8; 8191], TcpFlags::ACK, false);
        middlebox.take(frame, || None);
    }
    middlebox.flush();
    let lengths: Vec<usize> = middlebox.passed.iter().map(|frame| read(&whole(frame)).1.len()).collect();
    assert_eq!(lengths, [7 * 8191, 3 * 8191]);
}

#[test]
fn segments_that_differ_are_not_joined() {
    let pool = HeapPool::new(64, 2048, 128);
    let two = |change: &dyn Fn(&mut [u8])| {
        let mut middlebox = Middlebox::new(Recutting { cutting: 0.0, joining: 1.0 }, 1);
        middlebox.take(segment(&pool, 0, &[1; 100], TcpFlags::ACK, false), || None);
        let mut second = segment(&pool, 100, &[2; 100], TcpFlags::ACK, false);
        let place = Place { ipv6: false, tcp: 34, payload: 66 };
        let (start, length) = (second.start(), second.data().len());
        let frame = &mut second.storage_mut().unwrap()[start..start + length];
        change(frame);
        let sum = checksum::sum(&frame[place.payload..]);
        place.finish(&mut frame[..place.payload], (sum, 100));
        middlebox.take(second, || None);
        middlebox.flush();
        middlebox.passed.len()
    };
    assert_eq!(two(&|_| {}), 1);
    for (what, at) in
        [("class", 15), ("address", 29), ("port", 35), ("sequence", 41), ("ack", 45), ("window", 49), ("option", 60)]
    {
        assert_eq!(two(&|frame: &mut [u8]| frame[at] ^= 1), 2, "{what}");
    }
    let (syn, urgent, reset) = (2, 0x20, 4);
    for flag in [syn, urgent, reset] {
        assert_eq!(two(&|frame: &mut [u8]| frame[47] |= flag), 2, "flag {flag}");
    }
}

#[test]
fn what_is_damaged_shared_or_no_tcp_keeps_its_octets() {
    let pool = HeapPool::new(64, 2048, 128);
    let mut middlebox = Middlebox::new(Recutting { cutting: 1.0, joining: 1.0 }, 1);
    let mut damaged = segment(&pool, 0, &[1; 100], TcpFlags::ACK, false);
    let start = damaged.start();
    damaged.storage_mut().unwrap()[start + 80] ^= 1;
    let mut other = pool.alloc().unwrap();
    other.fill(&[0; 60]);
    let kept = [whole(&damaged), whole(&other)];
    for frame in [damaged, other] {
        middlebox.take(frame, || None);
    }
    assert_eq!(middlebox.passed.iter().map(whole).collect::<Vec<_>>(), kept);
    middlebox.passed.clear();
    // A frame that somebody else holds, of whichever version of IP, is not written to.
    for ipv6 in [false, true] {
        let frame = segment(&pool, 0, &[1; 100], TcpFlags::ACK, ipv6);
        let (before, held) = (whole(&frame), frame.share());
        middlebox.take(frame, || pool.alloc());
        let next = segment(&pool, 100, &[2; 100], TcpFlags::ACK, ipv6);
        middlebox.take(next, || pool.alloc());
        middlebox.flush();
        assert_eq!(whole(&held), before);
        assert!(middlebox.counts[0] > 0);
    }
}

/// Frames that wait at a device come out of it as one, though they are more than a burst.
#[test]
fn segments_of_an_ordinary_mtu_grow_to_64_kib() {
    let (mut near, far) = LoopPort::pair(LoopOptions::default());
    let mut far = Decorated::new(far);
    let recutting = Recutting { cutting: 0.0, joining: 1.0 };
    far.set_faults(Some(FaultRates { recutting, ..FaultRates::default() }));
    let pool = HeapPool::new(64, 1700, 128);
    let frames = (0..45).map(|index| segment(&pool, index * 1448, &[7; 1448], TcpFlags::ACK, false));
    assert_eq!(near.tx_burst(&mut frames.collect()), 45);
    let mut batch = Batch::new();
    far.rx_burst(&mut batch);
    let lengths: Vec<usize> = batch.iter().map(|frame| read(&whole(frame)).1.len()).collect();
    assert_eq!(lengths, [45 * 1448]);
}

/// What was cut is given to the engine before more is taken from the device, which else would wait here without a
/// bound.
#[test]
fn no_more_is_taken_from_the_device_while_pieces_wait() {
    let (mut near, far) = LoopPort::pair(LoopOptions::default());
    let mut far = Decorated::new(far);
    let recutting = Recutting { cutting: 1.0, joining: 0.0 };
    far.set_faults(Some(FaultRates { recutting, ..FaultRates::default() }));
    let pool = HeapPool::new(600, 1700, 128);
    let frames = (0..600).map(|index| segment(&pool, index * 8, &[7; 8], TcpFlags::ACK, false));
    assert_eq!(near.tx_burst(&mut frames.collect()), 600);
    let mut octets = 0;
    loop {
        let mut batch = Batch::new();
        if far.rx_burst(&mut batch) == 0 {
            break;
        }
        octets += batch.iter().map(|frame| read(&whole(frame)).1.len()).sum::<usize>();
        let waiting = (pool.total() - pool.free()) * 8;
        assert!(600 * 8 - waiting - octets <= 3 * BURST * 8, "{octets} octets out, {waiting} not taken");
    }
    assert_eq!(octets, 600 * 8);
}

/// Rewrites the headers of a segment, and its checksums.
fn rewritten(mut frame: HeapBuffer, place: Place, change: impl Fn(&mut [u8])) -> HeapBuffer {
    let (start, length) = (frame.start(), frame.data().len());
    let octets = &mut frame.storage_mut().expect("nobody else has it")[start..start + length];
    let (headers, payload) = octets.split_at_mut(place.payload);
    change(headers);
    place.finish(headers, (checksum::sum(payload), payload.len()));
    frame
}

#[test]
fn pieces_say_together_what_the_segment_said() {
    let pool = HeapPool::new(64, 2048, 128);
    let sent: Vec<u8> = (0..200).collect();
    let all = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::CWR | TcpFlags::ECE | TcpFlags::URG;
    for (ipv6, seed, joining) in (0..40).map(|seed| (seed % 2 == 1, seed, f64::from(seed as u32 % 3 / 2))) {
        let length = if seed % 4 < 2 { TINY } else { sent.len() };
        // Inside, at the end and behind the segment.
        let pointer = [3, length, 1000][seed as usize % 3];
        let place = if ipv6 { Place { ipv6, tcp: 54, payload: 86 } } else { Place { ipv6, tcp: 34, payload: 66 } };
        let first = 0xffff_fffe;
        let frame = rewritten(segment(&pool, first, &sent[..length], all, ipv6), place, |headers| {
            headers[place.tcp + 18..place.tcp + 20].copy_from_slice(&(pointer as u16).to_be_bytes());
        });
        let mut middlebox = Middlebox::new(Recutting { cutting: 1.0, joining }, seed);
        middlebox.take(frame, || pool.alloc());
        middlebox.flush();
        let mut found = Vec::new();
        for frame in &middlebox.passed {
            let octets = whole(frame);
            let (piece, payload) = read(&octets);
            let header = piece.header;
            let (from, to) = (found.len(), found.len() + payload.len());
            found.extend_from_slice(payload);
            assert_eq!(header.sequence.0, first.wrapping_add(from as u32));
            assert!(header.flags.contains(TcpFlags::ACK | TcpFlags::ECE) && header.options.timestamps.is_some());
            assert_eq!(header.flags.contains(TcpFlags::CWR), from == 0);
            assert_eq!(header.flags.contains(TcpFlags::PSH), to == length);
            assert_eq!(header.flags.contains(TcpFlags::FIN), to == length);
            let urgent_until = header.flags.contains(TcpFlags::URG).then_some(from + usize::from(header.urgent));
            assert_eq!(urgent_until, (from < pointer).then_some(pointer), "{from} to {to}");
        }
        assert!(found == sent[..length] && middlebox.passed.len() > 1);
    }
}

#[test]
fn pieces_leave_nothing_for_the_device_to_do() {
    let pool = HeapPool::new(64, 2048, 128);
    let place = Place { ipv6: false, tcp: 34, payload: 66 };
    let work = |segment_size| {
        let (link_length, ip_length, tcp_length) = (14, 20, 32);
        TransmitChecksums { ip: segment_size > 0, tcp: true, link_length, ip_length, tcp_length, segment_size }
    };
    let unfinished = |segment_size| {
        let mut frame = segment(&pool, 7, &[3; 100], TcpFlags::ACK, false);
        let start = frame.start();
        let sum = checksum::fold(place.pseudo_header(frame.data(), 132));
        frame.storage_mut().unwrap()[start + 50..start + 52].copy_from_slice(&sum.to_be_bytes());
        frame.set_transmit_checksums(work(segment_size));
        frame
    };
    let mut middlebox = Middlebox::new(Recutting { cutting: 1.0, joining: 0.0 }, 1);
    // Its sender keeps it, to send it again.
    let frame = unfinished(0);
    let (kept, before) = (frame.share(), whole(&frame));
    middlebox.take(frame, || pool.alloc());
    assert!(middlebox.passed.len() > 1 && !kept.is_shared());
    assert_eq!((whole(&kept), kept.transmit_checksums()), (before, work(0)));
    let octets: usize = middlebox.passed.iter().map(|piece| read(&whole(piece)).1.len()).sum();
    assert_eq!(octets, 100);
    assert!(middlebox.passed.iter().all(|piece| piece.transmit_checksums() == TransmitChecksums::default()));
    middlebox.passed.clear();
    // The device is to cut it, or buffers are short: it leaves as it came, also if somebody else holds it.
    for (segment_size, buffers) in [(50, 8), (0, 1)] {
        let frame = unfinished(segment_size);
        let (kept, mut left) = (frame.share(), buffers);
        middlebox.take(frame, || {
            left -= 1;
            if left > 0 { pool.alloc() } else { None }
        });
        let passed = middlebox.passed.pop_front().expect("it passes");
        assert!(middlebox.passed.is_empty() && kept.is_shared());
        assert_eq!((whole(&passed), passed.transmit_checksums()), (whole(&kept), work(segment_size)));
    }
}

#[test]
fn what_is_sent_is_cut_and_not_joined() {
    let options = LoopOptions::default();
    let (near, mut far) = LoopPort::pair(options);
    let mut near = Decorated::new(near);
    let recutting = Recutting { cutting: 0.3, joining: 1.0 };
    near.set_faults(Some(FaultRates { recutting, ..FaultRates::default() }));
    let pool = HeapPool::new(600, 1700, 128);
    let stream: Vec<u8> = (0..300_000u32).map(|at| (at * 7) as u8).collect();
    let (mut sent, mut found, mut segments, mut received) = (0, Vec::new(), 0, 0);
    let mut single = 0;
    let mut queue = VecDeque::new();
    while found.len() < stream.len() {
        if sent < stream.len() {
            let end = stream.len().min(sent + [TINY, 1448][segments % 2]);
            queue.push_back(segment(&pool, sent as u32, &stream[sent..end], TcpFlags::ACK, false));
            (sent, segments) = (end, segments + 1);
        }
        near.tx_burst(&mut queue);
        let mut batch = Batch::new();
        far.rx_burst(&mut batch);
        for frame in &batch {
            let octets = whole(frame);
            let (piece, payload) = read(&octets);
            assert_eq!((piece.header.sequence.0, frame.segment_count()), (found.len() as u32, 1));
            assert!(octets.len() <= ETHERNET + usize::from(options.mtu));
            found.extend_from_slice(payload);
            single += usize::from(payload.len() == 1);
        }
        received += batch.len();
    }
    assert!(found == stream);
    let counts = near.fault_counts();
    let cut = counts["transmit-cut"] as usize;
    assert!((segments / 5..segments / 2).contains(&cut), "{cut} of {segments}");
    assert!(received > segments + cut && single > 10, "{received} of {segments}, {single}");
    assert_eq!((counts["receive-cut"], counts["receive-joined"]), (0, 0));
}

#[test]
fn what_is_sent_passes_whole_where_only_what_is_received_is_cut() {
    let (near, mut far) = LoopPort::pair(LoopOptions::default());
    let mut near = Decorated::new(near);
    let recutting = Recutting { cutting: 1.0, joining: 0.0 };
    near.set_faults(Some(FaultRates { recutting, recut_received_only: true, ..FaultRates::default() }));
    let pool = HeapPool::new(100, 1700, 128);
    let frames = || (0..10).map(|at| segment(&pool, at * 100, &[7; 100], TcpFlags::ACK, false)).collect();
    let count = |port: &mut dyn FnMut(&mut Batch<HeapBuffer>) -> usize| {
        let mut batch = Batch::new();
        while port(&mut batch) > 0 {}
        batch.len()
    };
    near.tx_burst(&mut frames());
    assert_eq!(count(&mut |batch| far.rx_burst(batch)), 10);
    far.tx_burst(&mut frames());
    assert!(count(&mut |batch| near.rx_burst(batch)) > 10);
    assert_eq!(near.fault_counts()["transmit-cut"], 0);
}

#[test]
fn pieces_that_wait_when_the_middlebox_goes_arrive_all_the_same() {
    let recutting = Recutting { cutting: 1.0, joining: 0.0 };
    let other = FaultRates { seed: 1, ..FaultRates::default() };
    for next in [None, Some(other), Some(FaultRates { recutting, ..other })] {
        let (mut near, far) = LoopPort::pair(LoopOptions::default());
        let mut far = Decorated::new(far);
        far.set_faults(Some(FaultRates { recutting, ..FaultRates::default() }));
        let pool = HeapPool::new(100, 1700, 128);
        let stream: Vec<u8> = (0..800u32).map(|at| (at * 7) as u8).collect();
        let frames = stream.chunks(8).zip(0..).map(|(part, at)| segment(&pool, at * 8, part, TcpFlags::ACK, false));
        near.tx_burst(&mut frames.collect());
        let mut found = Vec::new();
        for round in 0..100 {
            let mut batch = Batch::new();
            far.rx_burst(&mut batch);
            for frame in &batch {
                let octets = whole(frame);
                let (piece, payload) = read(&octets);
                assert_eq!(piece.header.sequence.0, found.len() as u32);
                found.extend_from_slice(payload);
            }
            if round == 0 {
                far.set_faults(next);
            }
        }
        assert_eq!(found.len(), stream.len());
        assert!(found == stream);
    }
}
