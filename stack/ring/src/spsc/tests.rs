use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::Slot;

#[test]
fn capacity_is_the_next_power_of_two() {
    for (asked, given) in [(0, 1), (1, 1), (2, 2), (3, 4), (1000, 1024)] {
        let (mut producer, mut consumer) = ring::<u8>(asked);
        assert_eq!((producer.capacity(), consumer.capacity()), (given, given));
        assert_eq!((producer.free(), consumer.available()), (given, 0));
    }
}

#[test]
fn full_ring_gives_the_element_back() {
    let (mut producer, mut consumer) = ring(2);
    assert_eq!(producer.push('a'), Ok(()));
    assert_eq!(producer.push('b'), Ok(()));
    assert_eq!(producer.push('c'), Err('c'));
    assert_eq!(consumer.pop(), Some('a'));
    assert_eq!(producer.push('c'), Ok(()));
    assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some('b'), Some('c'), None));
    assert!(producer.is_empty());
}

#[test]
fn what_is_left_in_a_ring_is_dropped_once_with_its_last_end() {
    let element = std::sync::Arc::new(());
    for start in [0, usize::MAX - 1] {
        let (mut producer, mut consumer) = ring_from(4, start);
        for _ in 0..4 {
            producer.push(element.clone()).unwrap();
        }
        assert!(producer.push(element.clone()).is_err());
        drop(consumer.pop());
        assert_eq!(std::sync::Arc::strong_count(&element), 4);
        drop(producer);
        assert_eq!(std::sync::Arc::strong_count(&element), 4);
        drop((consumer.pop(), consumer));
        assert_eq!(std::sync::Arc::strong_count(&element), 1);
    }
}

#[test]
fn elements_stay_until_they_are_released() {
    let (mut producer, mut consumer) = ring(4);
    for element in 0..4 {
        producer.push(Slot([element; 8])).unwrap();
    }
    assert_eq!(consumer.peek(0), None, "the producer's cursor has not been read yet");
    assert_eq!(consumer.available(), 4);
    for _ in 0..2 {
        for index in 0..4 {
            assert_eq!(consumer.peek(index), Some(&Slot([index as u64; 8])));
        }
        assert_eq!(consumer.peek(4), None);
    }
    assert_eq!(producer.free(), 0);
    consumer.release(3);
    assert_eq!(producer.free(), 3);
    assert_eq!(consumer.peek(0), Some(&Slot([3; 8])));
}

#[test]
#[should_panic(expected = "released more elements than there are")]
fn releasing_what_is_not_there_panics() {
    let (mut producer, mut consumer) = ring(4);
    producer.push(1).unwrap();
    consumer.available();
    consumer.release(2);
}

#[test]
#[should_panic(expected = "wrote more elements than were reserved")]
fn writing_more_than_was_reserved_panics() {
    let (mut producer, _consumer) = ring(4);
    let mut reservation = producer.reserve(1).unwrap();
    reservation.write(1);
    reservation.write(2);
}

#[test]
fn reservation_is_published_by_commit_only() {
    let (mut producer, mut consumer) = ring(4);
    let mut reservation = producer.reserve(3).unwrap();
    reservation.write(1);
    drop(reservation);
    assert_eq!((producer.free(), consumer.available()), (4, 0));

    let mut reservation = producer.reserve(3).unwrap();
    assert_eq!(reservation.remaining(), 3);
    reservation.write(2);
    reservation.write(3);
    assert_eq!(consumer.available(), 0);
    assert_eq!(reservation.commit(), 2);
    assert_eq!((producer.free(), consumer.available()), (2, 2));
    assert!(producer.reserve(3).is_none());

    let mut reservation = producer.reserve(1).unwrap();
    reservation.write(4);
    reservation.commit();
    let mut out = [0; 8];
    assert_eq!(consumer.pop_batch(&mut out), 3);
    assert_eq!(out[..3], [2, 3, 4]);
    assert_eq!(consumer.pop_batch(&mut out), 0);
}

#[test]
fn each_end_learns_that_the_other_is_gone() {
    let (mut producer, consumer) = ring(2);
    assert!(!producer.is_closed());
    drop(consumer);
    assert!(producer.is_closed());
    assert_eq!(producer.push(1), Ok(()), "the ring is still a ring");

    let (mut producer, mut consumer) = ring(2);
    producer.push(1).unwrap();
    assert!(!consumer.is_closed());
    drop(producer);
    assert!(consumer.is_closed());
    assert_eq!((consumer.pop(), consumer.pop()), (Some(1), None));
}

#[test]
fn memory_is_freed_with_the_second_end() {
    for producer_first in [false, true] {
        let (mut producer, consumer) = ring(8);
        producer.push(1).unwrap();
        let shared = Arc::downgrade(&producer.shared);
        if producer_first {
            drop(producer);
            assert_eq!(shared.strong_count(), 1);
            drop(consumer);
        } else {
            drop(consumer);
            assert_eq!(shared.strong_count(), 1);
            drop(producer);
        }
        assert_eq!(shared.strong_count(), 0);
    }
}

#[test]
fn ends_move_between_threads_but_are_not_shared() {
    fn is_send<T: Send>(_: &T) {}
    let (producer, consumer) = ring::<Slot>(2);
    is_send(&producer);
    is_send(&consumer);
}

/// A second thread, with batches of all sizes: no element is lost, duplicated or torn.
#[test]
fn elements_cross_threads_in_order() {
    const COUNT: u64 = 300_000;
    let (mut producer, mut consumer) = ring::<Slot>(64);
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            let batch = (next % 7 + 1).min(COUNT - next);
            let Some(mut reservation) = producer.reserve(batch as usize) else {
                std::thread::yield_now();
                continue;
            };
            for element in next..next + batch {
                reservation.write(Slot([element; 8]));
            }
            next += reservation.commit() as u64;
        }
    });
    let mut next = 0;
    let mut out = [Slot::ZERO; 5];
    while next < COUNT {
        let count = consumer.pop_batch(&mut out);
        if count == 0 {
            std::thread::yield_now();
        }
        for slot in &out[..count] {
            assert_eq!(*slot, Slot([next; 8]));
            next += 1;
        }
    }
    sender.join().unwrap();
    assert_eq!(consumer.pop(), None);
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Reserve { asked: usize, written: usize, commit: bool },
    Pop,
    PopBatch(usize),
    Available,
    Free,
    PeekAll,
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Push),
        3 => (0usize..10, 0usize..10, any::<bool>())
            .prop_map(|(asked, written, commit)| Step::Reserve { asked, written, commit }),
        2 => Just(Step::Pop),
        2 => (0usize..10).prop_map(Step::PopBatch),
        2 => Just(Step::Available),
        1 => Just(Step::Free),
        2 => Just(Step::PeekAll),
        2 => (0usize..10).prop_map(Step::Release),
    ]
}

proptest! {
    /// Any sequence of calls behaves as on a `VecDeque`, also when the cursors wrap around.
    #[test]
    fn ring_is_a_bounded_queue(
        capacity in 1usize..20,
        before_wrap in 0usize..30,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let (mut producer, mut consumer) = ring_from::<u32>(capacity, usize::MAX - before_wrap);
        let capacity = producer.capacity();
        let mut model = VecDeque::new();
        let mut counter = 0;
        for step in steps {
            match step {
                Step::Push => {
                    counter += 1;
                    let expected = if model.len() < capacity { Ok(()) } else { Err(counter) };
                    if expected.is_ok() {
                        model.push_back(counter);
                    }
                    prop_assert_eq!(producer.push(counter), expected);
                }
                Step::Reserve { asked, written, commit } => {
                    let fits = model.len() + asked <= capacity;
                    let reservation = producer.reserve(asked);
                    prop_assert_eq!(reservation.is_some(), fits);
                    if let Some(mut reservation) = reservation {
                        for _ in 0..written.min(asked) {
                            counter += 1;
                            reservation.write(counter);
                            if commit {
                                model.push_back(counter);
                            }
                        }
                        if commit {
                            prop_assert_eq!(reservation.commit(), written.min(asked));
                        }
                    }
                }
                Step::Pop => prop_assert_eq!(consumer.pop(), model.pop_front()),
                Step::PopBatch(length) => {
                    let mut out = vec![0; length];
                    let count = consumer.pop_batch(&mut out);
                    let expected: Vec<_> = model.drain(..length.min(model.len())).collect();
                    prop_assert_eq!(&out[..count], &expected[..]);
                }
                Step::Available => prop_assert_eq!(consumer.available(), model.len()),
                Step::Free => prop_assert_eq!(producer.free(), capacity - model.len()),
                Step::PeekAll => {
                    prop_assert!(consumer.known() <= model.len());
                    for index in 0..capacity + 1 {
                        let expected = model.get(index).filter(|_| index < consumer.known());
                        prop_assert_eq!(consumer.peek(index), expected);
                    }
                }
                Step::Release(count) => {
                    let count = count.min(consumer.known());
                    consumer.release(count);
                    model.drain(..count);
                }
            }
        }
        prop_assert_eq!(consumer.available(), model.len());
    }
}

#[test]
fn elements_can_be_removed_from_the_middle() {
    // The cursors wrap around on the way.
    for start in [0, usize::MAX - 5] {
        let (mut producer, mut consumer) = ring_from::<u32>(16, start);
        let gauge = consumer.gauge();
        for element in 0..10 {
            producer.push(element).unwrap();
        }
        assert_eq!(consumer.pop(), Some(0));
        let mut seen = Vec::new();
        let removed = consumer.retain(|element| {
            seen.push(*element);
            element % 3 != 0
        });
        assert_eq!((removed, seen), (3, (1..10).rev().collect()));
        assert_eq!((consumer.available(), producer.free()), (6, 10));
        assert!(!gauge.has_passed(gauge.published()));
        producer.push(10).unwrap();
        let mut out = [0; 16];
        assert_eq!(consumer.pop_batch(&mut out), 7);
        assert_eq!(out[..7], [1, 2, 4, 5, 7, 8, 10]);
        assert_eq!((consumer.retain(|_| true), consumer.retain(|_| false)), (0, 0));
    }
}

#[test]
fn a_gauge_tells_when_elements_have_been_read() {
    for start in [0, usize::MAX - 1] {
        let (mut producer, mut consumer) = ring_from::<u32>(4, start);
        let gauge = consumer.gauge();
        let before = gauge.published();
        assert!(gauge.has_passed(before));
        producer.push(1).unwrap();
        producer.push(2).unwrap();
        let end = gauge.published();
        consumer.pop();
        assert!(gauge.has_passed(before) && !gauge.has_passed(end) && !gauge.is_abandoned());
        consumer.pop();
        assert!(gauge.has_passed(end));
        producer.push(3).unwrap();
        let end = gauge.published();
        drop(consumer);
        assert!(gauge.has_passed(end) && gauge.is_abandoned());
    }
}
