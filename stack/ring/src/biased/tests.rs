use std::sync::Arc;
use std::thread;

use super::*;

fn is_favourite<T>(lock: &BiasedLock<T>) -> bool {
    lock.favourite.load(Relaxed) == current_thread()
}

/// Takes the lock as often as it takes to become the favourite the first time.
fn win(lock: &BiasedLock<u32>) {
    for _ in 0..=LEAST_STREAK {
        *lock.lock() += 1;
    }
    assert!(is_favourite(lock));
}

#[test]
fn who_takes_it_often_becomes_the_favourite_and_the_next_thread_ends_that() {
    let lock = BiasedLock::new(0);
    win(&lock);
    *lock.lock() += 1;
    thread::scope(|scope| {
        scope.spawn(|| *lock.lock() += 1);
    });
    assert!(!is_favourite(&lock));
    assert_eq!(*lock.lock(), LEAST_STREAK + 3);
    for _ in 1..2 * LEAST_STREAK {
        assert!(!is_favourite(&lock));
        drop(lock.lock());
    }
    assert!(is_favourite(&lock));
}

#[test]
fn a_lock_has_only_one_favourite_ever() {
    let lock = BiasedLock::new(0);
    win(&lock);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..10 * LEAST_STREAK {
                drop(lock.lock());
                assert_eq!(lock.favourite.load(Relaxed), 0);
            }
        });
    });
}

#[test]
fn a_guest_never_becomes_the_favourite() {
    let lock = BiasedLock::new(0);
    for _ in 0..10 * LEAST_STREAK {
        *lock.lock_as_guest() += 1;
    }
    assert!(!is_favourite(&lock));
    win(&lock);
    drop(lock.lock_as_guest());
    assert!(!is_favourite(&lock));
}

#[test]
fn nobody_gets_what_the_favourite_holds() {
    let lock = BiasedLock::new(0);
    win(&lock);
    let held = lock.lock();
    assert!(lock.try_lock().is_none());
    assert!(lock.lock_as_favourite().is_none());
    thread::scope(|scope| {
        scope.spawn(|| assert!(lock.try_lock().is_none()));
    });
    drop(held);
    assert!(lock.lock_as_favourite().is_none(), "another thread wanted it");
    assert!(lock.try_lock().is_some());
}

#[test]
#[should_panic = "a lock that it holds"]
fn a_favourite_that_takes_it_twice_panics() {
    let lock = BiasedLock::new(0);
    win(&lock);
    let _held = lock.lock();
    drop(lock.lock());
}

#[test]
fn a_panic_inside_leaves_it_free() {
    let lock = Arc::new(BiasedLock::new(0));
    let other = Arc::clone(&lock);
    let panicked = thread::spawn(move || {
        win(&other);
        let _held = other.lock();
        panic!("on purpose");
    });
    panicked.join().unwrap_err();
    assert_eq!(*lock.lock(), LEAST_STREAK + 1);
}

#[test]
fn threads_that_take_turns_lose_no_count() {
    let rounds = if cfg!(miri) { 200 } else { 100_000 };
    let lock = BiasedLock::new(0_u64);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..rounds {
                    *lock.lock() += 1;
                    if round % 1000 == 999 {
                        // So that another has its streak.
                        thread::sleep(std::time::Duration::from_micros(200));
                    }
                }
            });
        }
    });
    assert_eq!(*lock.lock(), 3 * rounds);
}

/// Whether another thread gets the lock at once.
fn another_gets(lock: &BiasedLock<u32>) -> bool {
    thread::scope(|scope| scope.spawn(|| lock.try_lock().is_some()).join().unwrap())
}

fn add_in_section(lock: &BiasedLock<u32>) -> Option<()> {
    // SAFETY: the body takes no lock.
    unsafe { lock.in_section(|count| *count += 1) }
}

#[test]
fn a_section_keeps_others_out_and_not_its_own_thread() {
    for wins in [false, true] {
        let lock = BiasedLock::new(0);
        if wins {
            win(&lock);
        }
        let before = *lock.lock();
        assert_eq!(add_in_section(&lock), None);
        lock.lock().into_section();
        add_in_section(&lock).unwrap();
        *lock.lock() += 1;
        assert!(!another_gets(&lock));
        // It is not the favourite any more.
        add_in_section(&lock).unwrap();
        *lock.lock() += 1;
        *lock.try_lock().unwrap() += 1;
        // Begun anew.
        lock.lock().into_section();
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                lock.end_section();
                assert_eq!(add_in_section(&lock), None);
            });
            // ThreadSanitizer does not see how a scope waits.
            other.join().unwrap();
        });
        assert!(!another_gets(&lock));
        lock.end_section();
        assert!(another_gets(&lock));
        assert_eq!(add_in_section(&lock), None);
        assert_eq!(*lock.lock(), before + 5);
    }
}

#[test]
fn who_waits_for_a_section_goes_on_when_it_ends() {
    let lock = BiasedLock::new(0);
    lock.lock().into_section();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| *lock.lock() += 1);
        // Long enough for the waiter to sleep.
        thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiter.is_finished());
        add_in_section(&lock).unwrap();
        lock.end_section();
    });
    assert_eq!(*lock.lock(), 2);
}

#[test]
#[should_panic = "a lock that it holds"]
fn two_guards_in_one_section_panic() {
    let lock = BiasedLock::new(0);
    lock.lock().into_section();
    let _held = lock.lock();
    drop(lock.lock());
}

#[test]
#[cfg_attr(miri, ignore = "the kernel knows which threads live")]
fn the_section_of_a_thread_that_has_ended_is_over() {
    for wins in [false, true] {
        let lock = BiasedLock::new(0);
        thread::scope(|scope| {
            let opener = scope.spawn(|| {
                if wins {
                    win(&lock);
                }
                lock.lock().into_section();
            });
            opener.join().unwrap();
            // By another thread, which has not inherited the favourite's number.
            scope.spawn(|| *lock.lock() += 1).join().unwrap();
        });
        assert!(*lock.lock() > 0);
        assert!(another_gets(&lock));
    }
}
