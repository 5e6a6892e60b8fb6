use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[test]
fn capacity_is_the_next_power_of_two() {
    for (asked, given) in [(0, 1), (1, 1), (2, 2), (3, 4), (1000, 1024)] {
        let (mut producer, mut consumer) = byte_ring(asked);
        assert_eq!((producer.capacity(), consumer.capacity()), (given, given));
        assert_eq!((producer.free(), consumer.available()), (given, 0));
    }
}

#[test]
fn a_full_ring_takes_what_fits() {
    let (mut producer, mut consumer) = byte_ring(4);
    assert_eq!(producer.write(b"abcdef"), 4);
    assert_eq!(producer.write(b"ef"), 0);
    let mut out = [0; 3];
    assert_eq!(consumer.read(&mut out), 3);
    assert_eq!(&out, b"abc");
    assert_eq!(producer.write(b"efgh"), 3);
    let mut out = [0; 8];
    assert_eq!(consumer.read(&mut out), 4);
    assert_eq!(&out[..4], b"defg");
    assert_eq!(consumer.read(&mut out), 0);
}

#[test]
fn what_was_put_in_before_the_end_is_there_after_it() {
    let (mut producer, mut consumer) = byte_ring(8);
    producer.write(b"last");
    assert!(!consumer.is_closed());
    producer.close();
    assert!(consumer.is_closed());
    assert_eq!(consumer.available(), 4);
    assert!(!producer.is_closed());
    drop(consumer);
    assert!(producer.is_closed());
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    Read(usize),
    Free,
    Available,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..40_usize).prop_map(Step::Write),
        (0..40_usize).prop_map(Step::Read),
        Just(Step::Free),
        Just(Step::Available),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Compared with a queue of octets, also where the cursors wrap around the end of their range.
    #[test]
    fn behaves_as_a_queue(capacity in 1..33_usize, back in 0..200_usize, steps in steps()) {
        let (mut producer, mut consumer) = byte_ring_from(capacity, 0_usize.wrapping_sub(back));
        let capacity = producer.capacity();
        let mut model: VecDeque<u8> = VecDeque::new();
        let mut next = 0_u8;
        for step in steps {
            match step {
                Step::Write(count) => {
                    let octets: Vec<u8> = (0..count).map(|index| next.wrapping_add(index as u8)).collect();
                    let taken = producer.write(&octets);
                    prop_assert_eq!(taken, count.min(capacity - model.len()));
                    model.extend(&octets[..taken]);
                    next = next.wrapping_add(taken as u8);
                }
                Step::Read(count) => {
                    let mut out = vec![0; count];
                    let taken = consumer.read(&mut out);
                    prop_assert_eq!(taken, count.min(model.len()));
                    let expected: Vec<u8> = model.drain(..taken).collect();
                    prop_assert_eq!(&out[..taken], expected.as_slice());
                }
                Step::Free => prop_assert_eq!(producer.free(), capacity - model.len()),
                Step::Available => prop_assert_eq!(consumer.available(), model.len()),
            }
            prop_assert!(producer.known_free() <= capacity - model.len());
            prop_assert!(consumer.known() <= model.len());
        }
    }
}

/// Two threads at full speed: Miri and the thread sanitizer would show a race.
#[test]
fn octets_cross_threads_in_order() {
    let total: usize = if cfg!(miri) { 2_000 } else { 4_000_000 };
    let (mut producer, mut consumer) = byte_ring(512);
    let sender = std::thread::spawn(move || {
        let mut sent = 0_usize;
        while sent < total {
            let count = (sent % 300 + 1).min(total - sent);
            let octets: Vec<u8> = (sent..sent + count).map(|at| (at % 251) as u8).collect();
            let taken = producer.write(&octets);
            sent += taken;
            if taken == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut received = 0_usize;
    let mut out = [0; 411];
    loop {
        let closed = consumer.is_closed();
        let taken = consumer.read(&mut out);
        for octet in &out[..taken] {
            assert_eq!(usize::from(*octet), received % 251);
            received += 1;
        }
        if taken == 0 {
            if closed {
                break;
            }
            std::thread::yield_now();
        }
    }
    assert_eq!(received, total);
    sender.join().unwrap();
}
