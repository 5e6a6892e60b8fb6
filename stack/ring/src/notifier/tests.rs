use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed as RelaxedOrder;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

fn readable(notifier: &Notifier) -> bool {
    let fd = notifier.as_fd();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn fires_once_for_each_arming() {
    let notifier = Notifier::new().unwrap();
    assert!(!notifier.fire_if_armed());
    assert!(!readable(&notifier));
    notifier.arm();
    notifier.arm();
    assert!(notifier.is_armed());
    assert!(notifier.fire_if_armed());
    assert!(!notifier.fire_if_armed());
    assert!(readable(&notifier));
    assert!(notifier.wait(AT_ONCE).unwrap());
    assert!(!readable(&notifier));
    assert!(!notifier.wait(AT_ONCE).unwrap());
}

#[test]
fn time_out_leaves_it_armed() {
    let notifier = Notifier::new().unwrap();
    notifier.arm();
    assert!(!notifier.wait(Some(Duration::from_millis(2))).unwrap());
    assert!(notifier.is_armed());
    assert!(notifier.fire_if_armed());
    assert!(notifier.drain());
    assert!(!notifier.drain());
}

#[test]
fn disarmed_notifier_does_not_fire() {
    let notifier = Notifier::new().unwrap();
    notifier.arm();
    assert!(notifier.disarm());
    assert!(!notifier.disarm());
    assert!(!notifier.fire_if_armed());
    assert!(!notifier.drain());
}

#[test]
fn a_bell_rings_once_for_each_arming() {
    struct Count(AtomicUsize);

    impl Bell for Count {
        fn ring(&self) {
            self.0.fetch_add(1, RelaxedOrder);
        }
    }

    let count = Arc::new(Count(AtomicUsize::new(0)));
    let notifiers = [(); 2].map(|()| Notifier::with_bell(Arc::clone(&count) as Arc<dyn Bell>));
    for notifier in &notifiers {
        assert!(!notifier.fire_if_armed());
        notifier.arm();
        assert!(notifier.fire_if_armed() && !notifier.fire_if_armed());
    }
    assert_eq!(count.0.load(RelaxedOrder), 2);
    assert!(!notifiers[0].drain());
    assert_eq!(notifiers[0].wait(AT_ONCE).unwrap_err().kind(), io::ErrorKind::Unsupported);
}

#[test]
fn unconditional_firing_wakes() {
    let notifier = Notifier::new().unwrap();
    notifier.fire();
    notifier.fire();
    assert!(notifier.wait(None).unwrap());
    assert!(!notifier.drain());
}

#[test]
fn endless_time_outs_are_none() {
    let notifier = Notifier::new().unwrap();
    notifier.fire();
    assert!(notifier.wait(Some(Duration::MAX)).unwrap());
}

/// Two threads pass a counter back and forth; each sleeps until it is its turn.
#[test]
fn ping_pong_of_sleepers_does_not_stall() {
    const ROUNDS: usize = 5_000;
    let counter = AtomicUsize::new(0);
    let notifiers = [Notifier::new().unwrap(), Notifier::new().unwrap()];
    let play = |player: usize| {
        for round in (player..ROUNDS).step_by(2) {
            while counter.load(RelaxedOrder) != round {
                notifiers[player].arm();
                if counter.load(RelaxedOrder) == round {
                    notifiers[player].disarm();
                    break;
                }
                assert!(notifiers[player].wait(None).unwrap());
            }
            counter.store(round + 1, RelaxedOrder);
            notifiers[1 - player].fire_if_armed();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(0));
        play(1);
    });
    assert_eq!(counter.load(RelaxedOrder), ROUNDS);
}

#[test]
fn arming_for_more_takes_nothing_back_and_firings_are_counted() {
    let notifier = Notifier::new().unwrap();
    notifier.arm_for(1);
    notifier.arm_also(2);
    assert!(notifier.fire_if_armed_for(1));
    notifier.arm_also(2);
    assert!(!notifier.fire_if_armed_for(1));
    assert!(notifier.fire_if_armed_for(2));
    assert_eq!((notifier.drain_all(), notifier.drain_all()), (2, 0));
    assert!(!readable(&notifier));
}
