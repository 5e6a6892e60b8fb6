//! Small uses of this crate under every interleaving, and every value that the memory model lets a load return.

#[cfg(not(loom))]
#[test]
#[ignore = "loom models: run RUSTFLAGS=\"--cfg loom\" cargo test -p uwarp-ring --release"]
fn loom_models_are_built_with_cfg_loom() {}

#[cfg(loom)]
mod loom_models {
    use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use crate::{BiasedLock, Claim, Claims, Doorbells, Helm, Notifier, Shares, byte_ring, ring};

    /// More than three preemptions make the larger models run for hours, and have found nothing more.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
        builder.check(model);
    }

    #[test]
    fn ring_hands_over_each_element_once_and_in_order() {
        check(|| {
            let (mut producer, mut consumer) = ring::<usize>(2);
            let sender = thread::spawn(move || {
                for element in 0..4 {
                    while producer.push(element).is_err() {
                        thread::yield_now();
                    }
                }
            });
            for expected in 0..4 {
                let element = loop {
                    match consumer.pop() {
                        Some(element) => break element,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(element, expected);
            }
            sender.join().unwrap();
            assert_eq!(consumer.pop(), None);
        });
    }

    #[test]
    fn ring_shows_a_reservation_as_a_whole_and_keeps_elements_until_released() {
        check(|| {
            let (mut producer, mut consumer) = ring::<usize>(2);
            let sender = thread::spawn(move || {
                for pair in 0..2 {
                    loop {
                        if let Some(mut reservation) = producer.reserve(2) {
                            reservation.write(2 * pair);
                            reservation.write(2 * pair + 1);
                            assert_eq!(reservation.commit(), 2);
                            break;
                        }
                        thread::yield_now();
                    }
                }
            });
            for pair in 0..2 {
                let available = loop {
                    match consumer.available() {
                        0 => thread::yield_now(),
                        available => break available,
                    }
                };
                assert_eq!(available, 2);
                // Read in any order and repeatedly, before they are released one by one.
                assert_eq!(consumer.peek(1), Some(&(2 * pair + 1)));
                assert_eq!(consumer.peek(0), Some(&(2 * pair)));
                consumer.release(1);
                assert_eq!(consumer.peek(0), Some(&(2 * pair + 1)));
                consumer.release(1);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn closed_ring_has_shown_all_that_was_put_in() {
        check(|| {
            let (mut producer, mut consumer) = ring::<usize>(2);
            let sender = thread::spawn(move || {
                producer.push(1).unwrap();
                producer.push(2).unwrap();
            });
            let mut sum = 0;
            loop {
                let closed = consumer.is_closed();
                while let Some(element) = consumer.pop() {
                    sum += element;
                }
                if closed {
                    break;
                }
                thread::yield_now();
            }
            assert_eq!(sum, 3);
            sender.join().unwrap();
        });
    }

    #[test]
    fn producer_learns_that_the_consumer_is_gone() {
        check(|| {
            let (mut producer, mut consumer) = ring::<usize>(1);
            let receiver = thread::spawn(move || consumer.pop());
            let mut sent = 0;
            while !producer.is_closed() {
                sent += usize::from(producer.push(sent).is_ok());
                thread::yield_now();
            }
            if let Some(element) = receiver.join().unwrap() {
                assert_eq!(element, 0);
                assert!(sent >= 1);
            }
        });
    }

    #[test]
    fn byte_ring_hands_over_runs_that_wrap_and_shows_all_before_the_end() {
        check(|| {
            let (mut producer, mut consumer) = byte_ring(2);
            let sender = thread::spawn(move || {
                let mut sent = 0;
                while sent < 3 {
                    let octets = [1, 2, 3];
                    sent += producer.write(&octets[sent..]);
                    thread::yield_now();
                }
            });
            let mut received = Vec::new();
            loop {
                let closed = consumer.is_closed();
                let mut out = [0; 2];
                let taken = consumer.read(&mut out);
                received.extend_from_slice(&out[..taken]);
                if closed && taken == 0 {
                    break;
                }
                thread::yield_now();
            }
            assert_eq!(received, [1, 2, 3]);
            sender.join().unwrap();
        });
    }

    /// A sleeper that waits for one of two things is woken for it, whoever publishes the other.
    #[test]
    fn arming_for_one_of_two_things_loses_no_wake_up() {
        check(|| {
            let notifier = Arc::new(Notifier::new().unwrap());
            let published: Arc<[AtomicUsize; 2]> = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let waker = {
                let (notifier, published) = (notifier.clone(), published.clone());
                thread::spawn(move || {
                    for thing in [1, 0] {
                        published[thing].store(1, Relaxed);
                        notifier.fire_if_armed_for(1 << thing);
                    }
                })
            };
            while published[0].load(Relaxed) == 0 {
                notifier.arm_for(1);
                if published[0].load(Relaxed) == 1 {
                    notifier.disarm();
                    break;
                }
                notifier.wait(None).unwrap();
            }
            waker.join().unwrap();
        });
    }

    /// A visit of the engine sees what two posters published, whichever rang first: the one that finds the doorbell
    /// rung relies on a visit still to come.
    #[test]
    fn doorbell_of_two_posters_is_answered_for_both() {
        check(|| {
            let doorbells = Arc::new(Doorbells::new(1));
            let published: Arc<[AtomicUsize; 2]> = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let posters: Vec<_> = (0..2)
                .map(|poster| {
                    let (doorbells, published) = (doorbells.clone(), published.clone());
                    thread::spawn(move || {
                        published[poster].store(1, Relaxed);
                        doorbells.ring(0);
                    })
                })
                .collect();
            let mut seen = [0; 2];
            let mut look = || {
                doorbells.take(|index| {
                    assert_eq!(index, 0);
                    for (seen, published) in seen.iter_mut().zip(published.iter()) {
                        *seen |= published.load(Relaxed);
                    }
                })
            };
            look();
            for poster in posters {
                poster.join().unwrap();
            }
            look();
            assert_eq!(seen, [1, 1]);
        });
    }

    /// A poster that finds the doorbell rung and writes nothing, against the visit that clears it.
    #[test]
    fn doorbell_that_is_rung_already_is_answered_for_who_comes_later() {
        check(|| {
            let doorbells = Arc::new(Doorbells::new(1));
            let published = Arc::new(AtomicUsize::new(0));
            doorbells.ring(0);
            let poster = {
                let (doorbells, published) = (doorbells.clone(), published.clone());
                thread::spawn(move || {
                    published.store(1, Relaxed);
                    doorbells.ring(0);
                })
            };
            let mut seen = 0;
            let mut look = || doorbells.take(|_| seen = published.load(Relaxed));
            look();
            poster.join().unwrap();
            look();
            assert_eq!(seen, 1);
        });
    }

    /// One poster that rings repeatedly while the engine answers.
    #[test]
    fn doorbell_rung_during_a_visit_is_answered_again() {
        check(|| {
            let doorbells = Arc::new(Doorbells::new(65));
            let (mut producer, mut consumer) = ring::<usize>(4);
            let poster = {
                let doorbells = doorbells.clone();
                thread::spawn(move || {
                    for element in 0..2 {
                        producer.push(element).unwrap();
                        doorbells.ring(64);
                    }
                })
            };
            let mut next = 0;
            let mut look = || {
                doorbells.take(|index| {
                    assert_eq!(index, 64);
                    while let Some(element) = consumer.pop() {
                        assert_eq!(element, next);
                        next += 1;
                    }
                })
            };
            look();
            look();
            poster.join().unwrap();
            look();
            assert_eq!(next, 2);
        });
    }

    /// If a wake-up were lost, the sleeper would wait for ever, which loom reports.
    #[test]
    fn arming_against_firing_loses_no_wake_up() {
        check(|| {
            let notifier = Arc::new(Notifier::new().unwrap());
            let published = Arc::new(AtomicUsize::new(0));
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let (notifier, published) = (notifier.clone(), published.clone());
                    thread::spawn(move || {
                        published.fetch_add(1, Relaxed);
                        notifier.fire_if_armed();
                    })
                })
                .collect();
            while published.load(Relaxed) < 2 {
                notifier.arm();
                if published.load(Relaxed) == 2 {
                    notifier.disarm();
                    break;
                }
                notifier.wait(None).unwrap();
            }
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// The whole path from a post to a sleeping engine.
    #[test]
    fn post_wakes_a_sleeping_engine() {
        check(|| {
            let notifier = Arc::new(Notifier::new().unwrap());
            let doorbells = Arc::new(Doorbells::new(1));
            let (mut producer, mut consumer) = ring::<usize>(2);
            let poster = {
                let (notifier, doorbells) = (notifier.clone(), doorbells.clone());
                thread::spawn(move || {
                    for element in 0..2 {
                        producer.push(element).unwrap();
                        doorbells.ring(0);
                        notifier.fire_if_armed();
                    }
                })
            };
            let mut next = 0;
            loop {
                doorbells.take(|_| {
                    while let Some(element) = consumer.pop() {
                        assert_eq!(element, next);
                        next += 1;
                    }
                });
                if next == 2 {
                    break;
                }
                notifier.arm();
                if doorbells.is_any_rung() {
                    notifier.disarm();
                    continue;
                }
                notifier.wait(None).unwrap();
            }
            poster.join().unwrap();
        });
    }

    /// An application polls, and then waits without polling: if neither its own turn nor the engine's thread served it,
    /// it would wait for ever, which loom reports. Loom also checks that only one of the two uses the engine at a time.
    #[test]
    fn a_call_reaches_a_thread_that_stands_back() {
        check(|| {
            let wake = Arc::new(Notifier::new().unwrap());
            let helm = Arc::new(Helm::new(UnsafeCell::new(0_usize), wake.clone()));
            let posted = Arc::new(AtomicUsize::new(0));
            let served = Arc::new(Notifier::new().unwrap());
            // A turn: serves what was posted, and wakes who waits for it.
            let turn = {
                let (posted, served) = (posted.clone(), served.clone());
                move |engine: &mut UnsafeCell<usize>| {
                    let wanted = posted.load(Acquire);
                    // SAFETY: whoever holds the helm is alone, which loom checks here.
                    engine.with_mut(|done| unsafe { *done = wanted });
                    if wanted != 0 {
                        served.fire_if_armed();
                    }
                    wanted != 0
                }
            };
            let application = {
                let (helm, posted, served, turn) = (helm.clone(), posted.clone(), served.clone(), turn.clone());
                thread::spawn(move || {
                    if let Some(mut engine) = helm.try_take() {
                        turn(&mut engine);
                    }
                    served.arm();
                    posted.store(1, Release);
                    helm.call();
                    served.wait(None).unwrap();
                })
            };
            // The engine's thread, which believes that the application polls all the time.
            let mut calls = helm.calls();
            let mut held = helm.take();
            loop {
                if turn(&mut held) {
                    break;
                }
                let mut is_served = false;
                let stood_back = helm.stand_back(held, calls, |engine| is_served = turn(engine));
                if is_served {
                    break;
                }
                held = match stood_back {
                    Ok(()) => {
                        wake.wait(None).unwrap();
                        helm.come_back()
                    }
                    Err(held) => held,
                };
                calls = helm.calls();
            }
            application.join().unwrap();
        });
    }

    #[test]
    fn a_biased_lock_lets_one_thread_in_at_a_time() {
        check(|| {
            let lock = Arc::new(BiasedLock::new(UnsafeCell::new(0_usize)));
            let enter = |cell: &UnsafeCell<usize>| {
                // SAFETY: whoever has the lock is alone, which loom checks here.
                cell.with_mut(|count| unsafe { *count += 1 });
            };
            let favourite = {
                let lock = lock.clone();
                thread::spawn(move || {
                    // The second time makes it the favourite.
                    for _ in 0..4 {
                        enter(&lock.lock());
                    }
                })
            };
            let tried = lock.try_lock().map(|cell| enter(&cell)).is_some();
            enter(&lock.lock());
            favourite.join().unwrap();
            let cell = lock.lock_as_guest();
            // SAFETY: as above.
            assert_eq!(cell.with(|count| unsafe { *count }), 5 + usize::from(tried));
        });
    }

    #[test]
    fn a_section_of_a_biased_lock_lets_only_its_own_thread_in() {
        check(|| {
            let lock = Arc::new(BiasedLock::new(UnsafeCell::new(0_usize)));
            let enter = |cell: &UnsafeCell<usize>| {
                // SAFETY: whoever has the lock is alone, which loom checks here.
                cell.with_mut(|count| unsafe { *count += 1 });
            };
            let favourite = {
                let lock = lock.clone();
                thread::spawn(move || {
                    // The second time makes it the favourite.
                    for _ in 0..3 {
                        lock.lock().into_section();
                        // SAFETY: `enter` takes no lock.
                        unsafe { lock.in_section(|cell| enter(cell)) }.unwrap();
                        enter(&lock.lock());
                        lock.end_section();
                    }
                })
            };
            let tried = lock.try_lock().map(|cell| enter(&cell)).is_some();
            lock.lock().into_section();
            enter(&lock.lock());
            lock.end_section();
            favourite.join().unwrap();
            let cell = lock.lock_as_guest();
            // SAFETY: as above.
            assert_eq!(cell.with(|count| unsafe { *count }), 7 + usize::from(tried));
        });
    }

    #[test]
    fn of_two_that_claim_the_same_one_at_most_has_it_and_everybody_agrees() {
        check(|| {
            let claims = Arc::new(Claims::new(1));
            // Its lower and upper halves choose different buckets.
            const HASH: u64 = 0x1234_5671_89ab_0000;
            let claim = |owner| {
                let claims = claims.clone();
                thread::spawn(move || claims.claim(HASH, owner))
            };
            let granted: Vec<u16> = [claim(0), claim(1)]
                .into_iter()
                .zip(0..)
                .filter_map(|(claim, owner)| (claim.join().unwrap() == Claim::Granted).then_some(owner))
                .collect();
            assert!(granted.len() < 2, "two owners have the claim");
            assert_eq!(claims.find(HASH), granted.first().copied());
            assert_eq!(claims.len(), granted.len());
        });
    }

    #[test]
    fn a_claim_is_not_hurt_by_another_that_comes_and_goes() {
        check(|| {
            let claims = Arc::new(Claims::new(2));
            const MINE: u64 = 0x1234_5671_89ab_0000;
            // In the same buckets.
            const OTHER: u64 = 0x4321_5671_98ba_0000;
            let other = {
                let claims = claims.clone();
                thread::spawn(move || {
                    if claims.claim(OTHER, 1) == Claim::Granted {
                        assert_eq!(claims.find(OTHER), Some(1));
                        claims.release(OTHER, 1);
                    }
                })
            };
            if claims.claim(MINE, 0) == Claim::Granted {
                assert_eq!((claims.find(MINE), claims.claim(MINE, 1)), (Some(0), Claim::Taken));
            }
            other.join().unwrap();
            assert_ne!(claims.find(OTHER), Some(1));
        });
    }

    #[test]
    fn a_shared_queue_that_runs_low_is_told_once_whoever_takes() {
        check(|| {
            let shares = Arc::new(Shares::new(8, 2));
            let left = Arc::new(AtomicUsize::new(3));
            shares.set_limit(2);
            let take = |user| {
                let (shares, left) = (shares.clone(), left.clone());
                thread::spawn(move || {
                    assert!(shares.allows(user));
                    left.fetch_sub(1, AcqRel);
                    usize::from(shares.took(user, || left.load(Acquire)))
                })
            };
            let told: usize = [take(0), take(1)].map(|taker| taker.join().unwrap()).iter().sum();
            assert_eq!((told, shares.limit(), left.load(Relaxed)), (1, 0, 1));
        });
    }

    #[test]
    fn nobody_has_more_of_a_shared_queue_than_its_share_while_it_gives_back() {
        check(|| {
            let shares = Arc::new(Shares::new(1, 1));
            // The element that the engine has handed to the application.
            let handed = Arc::new(AtomicUsize::new(0));
            let application = {
                let (shares, handed) = (shares.clone(), handed.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        while handed.compare_exchange(1, 0, AcqRel, Acquire).is_err() {
                            thread::yield_now();
                        }
                        shares.give_back(0, 1);
                    }
                })
            };
            for _ in 0..2 {
                while !shares.allows(0) {
                    thread::yield_now();
                }
                shares.took(0, || 1);
                assert_eq!(shares.taken_by(0), 1);
                assert_eq!(handed.swap(1, AcqRel), 0, "it has two");
            }
            application.join().unwrap();
            assert_eq!(shares.taken_by(0), 0);
        });
    }
}
