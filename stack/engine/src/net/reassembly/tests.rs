use std::net::{Ipv4Addr, Ipv6Addr};

use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Frame, Path, classify, emit_fragment};

use super::*;

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn path(v6: bool) -> Path {
    let address = |last: u8| -> IpAddress {
        if v6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
        } else {
            Ipv4Addr::new(10, 0, 0, last).into()
        }
    };
    Path::new(EthernetAddress([2; 6]), EthernetAddress([4; 6]), address(1), address(2))
}

fn give(table: &mut Reassembly, now: Instant, v6: bool, id: u32, offset: usize, more: bool, piece: &[u8]) -> Taken {
    let mut frame = vec![0; 70_000];
    let length = emit_fragment(&mut frame, &path(v6), 17, id, (offset, more), piece).expect("it fits");
    let Ok(Frame::Fragment(fragment)) = classify(&frame[..length], length) else { panic!("a fragment") };
    table.take(now, &fragment, &frame[..length])
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7) as u8).collect()
}

#[test]
fn any_order_makes_the_same_packet() {
    let data = pattern(3000);
    let mut random = fastrand::Rng::with_seed(4);
    for v6 in [false, true] {
        for round in 0..50 {
            let mut table = Reassembly::new(1 << 16);
            let mut cuts: Vec<usize> = (0..random.usize(0..10)).map(|_| random.usize(1..375) * 8).collect();
            cuts.extend([0, 3000]);
            cuts.sort_unstable();
            cuts.dedup();
            let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
            random.shuffle(&mut pieces);
            if pieces.len() == 1 {
                continue;
            }
            // Some come twice.
            pieces.insert(1, pieces[0]);
            let (last, others) = pieces.split_last().expect("two at least");
            for &(from, to) in others {
                let taken = give(&mut table, at(0), v6, 7, from, to < 3000, &data[from..to]);
                assert!(matches!(taken, Taken::Waiting), "{round}: {taken:?}");
            }
            let taken = give(&mut table, at(1), v6, 7, last.0, last.1 < 3000, &data[last.0..last.1]);
            let Taken::Whole(whole) = taken else { panic!("complete: {taken:?}") };
            assert_eq!((whole.payload == data, whole.protocol), (true, 17));
            assert_eq!((table.used(), table.deadline()), (0, None));
        }
    }
}

/// RFC 3168 §5.3: a mark on a fragment reaches the transport, or the packet does not.
#[test]
fn marks_of_fragments_are_marks_of_the_packet() {
    const ECT_1: u8 = 1;
    const ECT_0: u8 = 2;
    let cases = [
        ([NOT_ECT, NOT_ECT, NOT_ECT], Some(NOT_ECT)),
        ([ECT_0, ECT_0, ECT_0], Some(ECT_0)),
        ([ECT_0, CE, ECT_0], Some(CE)),
        ([ECT_1, ECT_1, CE], Some(CE)),
        ([CE, CE, CE], Some(CE)),
        ([NOT_ECT, CE, NOT_ECT], None),
        ([CE, NOT_ECT, CE], None),
        ([CE, ECT_0, NOT_ECT], None),
    ];
    for v6 in [false, true] {
        for (fields, expected) in cases {
            let mut table = Reassembly::new(1 << 16);
            let mut last = Taken::Waiting;
            for (index, field) in fields.into_iter().enumerate() {
                let mut frame = vec![0; 200];
                let (offset, more) = (index * 16, index < 2);
                let length = emit_fragment(&mut frame, &path(v6), 17, 1, (offset, more), &[7; 16]).expect("it fits");
                let Ok(Frame::Fragment(mut fragment)) = classify(&frame[..length], length) else {
                    panic!("a fragment")
                };
                fragment.traffic_class |= field;
                last = table.take(at(0), &fragment, &frame[..length]);
            }
            match (&last, expected) {
                (Taken::Whole(whole), Some(expected)) => assert_eq!(whole.traffic_class & 3, expected, "{fields:?}"),
                (Taken::Refused, None) => {}
                _ => panic!("{fields:?}: {last:?}"),
            }
            assert_eq!((table.used(), table.deadline()), (0, None));
        }
    }
}

#[test]
fn overlaps_end_the_packet() {
    // RFC 5722 §4: with one fragment all others go, those that have not come included.
    for v6 in [false, true] {
        for (offset, length) in [(8, 16), (16, 8), (24, 16), (0, 64), (16, 16)] {
            let mut table = Reassembly::new(1 << 16);
            assert!(matches!(give(&mut table, at(0), v6, 1, 16, true, &[1; 16]), Taken::Waiting));
            let taken = give(&mut table, at(0), v6, 1, offset, true, &vec![2; length]);
            assert!(matches!(taken, Taken::Refused), "{offset}, {length}: {taken:?}");
            assert!(matches!(give(&mut table, at(1), v6, 1, 0, true, &[3; 16]), Taken::Refused));
            assert!(matches!(give(&mut table, at(1), v6, 1, 32, false, &[3; 16]), Taken::Refused));
            // Another packet is not concerned; and after the time limit the number may be used again.
            assert!(matches!(give(&mut table, at(1), v6, 2, 0, true, &[3; 16]), Taken::Waiting));
            assert!(table.poll_expired(at(60)).is_some());
            assert!(matches!(give(&mut table, at(60), v6, 1, 0, true, &[3; 16]), Taken::Waiting));
        }
    }
}

#[test]
fn lengths_that_disagree_end_the_packet() {
    let mut table = Reassembly::new(1 << 16);
    give(&mut table, at(0), false, 1, 32, false, &[1; 16]);
    assert!(matches!(give(&mut table, at(0), false, 1, 48, true, &[1; 16]), Taken::Refused), "behind the last");
    give(&mut table, at(0), false, 2, 32, true, &[1; 16]);
    assert!(matches!(give(&mut table, at(0), false, 2, 8, false, &[1; 16]), Taken::Refused), "last in front");
}

#[test]
fn what_no_sender_makes_is_refused() {
    for v6 in [false, true] {
        let mut table = Reassembly::new(1 << 20);
        let odd = give(&mut table, at(0), v6, 1, 0, true, &[1; 15]);
        let long = give(&mut table, at(0), v6, 1, 65_528, true, &[1; 8]);
        if v6 {
            // RFC 8200 §4.5: the payload length field; the fragment offset field.
            assert!(matches!((odd, long), (Taken::Problem { pointer: 4 }, Taken::Problem { pointer: 42 })));
        } else {
            assert!(matches!((odd, long), (Taken::Refused, Taken::Refused)));
        }
        assert_eq!(table.used(), 0);
    }
}

#[test]
fn memory_stays_within_the_budget() {
    let mut table = Reassembly::new(10_000);
    for id in 0..1000 {
        give(&mut table, at(u64::from(id)), id % 2 == 0, id, 0, true, &[1; 800]);
        assert!(table.used() <= 10_000);
    }
    // The oldest made room: the newest is still there, and completes.
    let taken = give(&mut table, at(1000), false, 999, 800, false, &[1; 8]);
    assert!(matches!(taken, Taken::Whole(_)), "{taken:?}");
    let mut none = Reassembly::new(0);
    assert!(matches!(give(&mut none, at(0), false, 1, 0, true, &[1; 8]), Taken::Refused));
    // One packet alone cannot have more than the budget either.
    let mut table = Reassembly::new(10_000);
    for piece in 0..60 {
        give(&mut table, at(0), false, 1, piece * 800, true, &[1; 800]);
        assert!(table.used() <= 10_000);
    }
}

#[test]
fn time_runs_out_with_the_first_fragment_quoted() {
    let mut table = Reassembly::new(10_000);
    give(&mut table, at(0), true, 1, 0, true, &[1; 80]);
    give(&mut table, at(1), true, 2, 80, true, &[1; 80]);
    assert_eq!(table.deadline(), Some(at(60)));
    assert!(table.poll_expired(at(59)).is_none());
    let (_, quoted) = table.poll_expired(at(60)).expect("its time is over");
    assert_eq!(quoted.len(), 40 + 8 + 80);
    let (_, quoted) = table.poll_expired(at(61)).expect("its time is over");
    assert!(quoted.is_empty(), "without the first fragment there is nobody to tell (RFC 4443 §3.3)");
    assert_eq!((table.used(), table.deadline()), (0, None));
}

#[test]
fn the_longest_wait_makes_room_whatever_completes_in_between() {
    let mut table = Reassembly::new(100_000);
    let mut random = fastrand::Rng::with_seed(5);
    let mut waiting: Vec<u32> = Vec::new();
    let mut made_room = 0;
    for id in 0..3000u32 {
        if random.u8(..) < 80 && !waiting.is_empty() {
            let done = waiting.remove(random.usize(..waiting.len()));
            let taken = give(&mut table, at(u64::from(id)), done.is_multiple_of(2), done, 320, false, &[2; 8]);
            assert!(matches!(taken, Taken::Whole(_)), "{done}: {taken:?}");
        }
        // A first fragment of any size; the time limit is far longer than the budget's reach.
        let length = random.usize(1..=40) * 8;
        let taken = give(&mut table, at(u64::from(id)), id.is_multiple_of(2), id, 320 - length, true, &vec![1; length]);
        assert!(matches!(taken, Taken::Waiting), "{id}: {taken:?}");
        waiting.push(id);
        if length < 320 {
            give(&mut table, at(u64::from(id)), id.is_multiple_of(2), id, 0, true, &vec![1; 320 - length]);
        }
        let gone = waiting.len() - table.ages.len();
        waiting.drain(..gone);
        made_room += gone;
        assert_eq!(table.ages.values().map(|key| key.identification).collect::<Vec<_>>(), waiting);
        assert_eq!(table.packets.len(), waiting.len());
        assert_eq!(table.deadline(), table.packets.values().map(|packet| packet.until).min());
        assert!(table.used() <= 100_000);
    }
    assert!(made_room > 1000, "{made_room}");
}

/// Octets of the heap, for packets of one piece each and of as many as one may have.
#[test]
fn small_pieces_take_no_more_memory_than_the_budget() {
    const BUDGET: usize = 1 << 20;
    for pieces in [1, 2, 5, 100] {
        let mut table = Reassembly::new(BUDGET);
        let mut most = 0;
        let mut frame = vec![0; 128];
        let info = allocation_counter::measure(|| {
            for number in 0..30_000 {
                let (id, place) = (number / pieces, (number % pieces) as usize);
                let length = emit_fragment(&mut frame, &path(false), 17, id, (8 + 16 * place, true), &[1; 8]).unwrap();
                let Ok(Frame::Fragment(fragment)) = classify(&frame[..length], length) else { panic!("a fragment") };
                table.take(at(0), &fragment, &frame[..length]);
                most = most.max(table.used());
            }
        });
        println!("{pieces} pieces: {} octets in {} packets, {most} counted", info.bytes_max, table.packets.len());
        assert!(most <= BUDGET && info.bytes_max <= BUDGET as u64, "{pieces} pieces: {} octets", info.bytes_max);
    }
}
