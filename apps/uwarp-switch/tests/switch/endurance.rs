//! A switch whose programs are killed at random, for as long as `UWARP_SECONDS` says: an hour in a long run.

use std::time::{Duration, Instant};

use fastrand::Rng;
use uwarp::{Context, ListenOptions};
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, exchange};
use uwarp_vdev_tests::peer::{self, Peer};

use crate::hostile::ROUNDS;
use crate::rig::{LENGTH, REGION, Role, Switch, Task, config, is_peer, wait_for};

/// Programs besides the server and the test itself.
const PROGRAMS: usize = 4;
/// Kills until the switch has all that it keeps.
const WARM: u32 = 8;
/// What its memory may grow by afterwards. An hour has thousands of kills, so what stayed of each would be more.
const GROWTH: u64 = 2 << 20;

/// What [`Role::Exchanger`] does: one connection behind the other, until it is killed or its server is.
pub fn exchange_for_ever(task: &Task) {
    let context = Context::open(config(&task.socket)).expect("there is a place");
    peer::tell("ready");
    loop {
        let mut endpoint = Endpoint::new(&context, REGION);
        endpoint.connect(&context);
        for round in 0..ROUNDS {
            exchange(&mut endpoint, round, LENGTH);
        }
        endpoint.disconnect();
    }
}

fn duration() -> Duration {
    let seconds = std::env::var("UWARP_SECONDS")
        .ok()
        .filter(|value| !value.is_empty())
        .map(|text| text.parse().expect("UWARP_SECONDS is a number"));
    let usual = if uwarp_vdev_tests::is_long() { 3600 } else { 5 };
    Duration::from_secs(seconds.unwrap_or(usual))
}

#[test]
fn programs_killed_at_random_leave_nothing_in_the_switch() {
    const NAME: &str = "endurance::programs_killed_at_random_leave_nothing_in_the_switch";
    if is_peer() {
        return;
    }
    let seed = std::env::var("UWARP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    eprintln!("UWARP_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let switch = Switch::start();
    let start = |role| {
        let program = Peer::start(NAME, &Task { role, socket: switch.socket.clone(), port: PORT });
        assert_eq!(program.told(), "ready");
        program
    };
    let own = Context::open(config(&switch.socket)).unwrap();
    let mut server = start(Role::OpenServer);
    let mut programs: Vec<Peer> = (0..PROGRAMS).map(|_| start(Role::Exchanger)).collect();
    // What the switch has for as many programs.
    let holdings = || {
        wait_for("the end of the last one's place", || switch.status().clients.len() == 2 + PROGRAMS);
        (switch.memory(), switch.descriptors())
    };
    let (begun, duration) = (Instant::now(), duration());
    let (mut kills, mut warm) = (0, None);
    while warm.is_none() || begun.elapsed() < duration {
        std::thread::sleep(Duration::from_millis(random.u64(..100)));
        if random.u8(..8) == 0 {
            // All others end with it, whatever they were at.
            drop(server);
            programs.clear();
            wait_for("the end of their places", || switch.status().clients.len() == 1);
            server = start(Role::OpenServer);
            programs.extend((0..PROGRAMS).map(|_| start(Role::Exchanger)));
        } else {
            programs.swap_remove(random.usize(..PROGRAMS)).kill();
            programs.push(start(Role::Exchanger));
        }
        kills += 1;
        // Whoever lives is served.
        let mut endpoint = Endpoint::new(&own, REGION);
        endpoint.connect(&own);
        for round in 0..ROUNDS {
            exchange(&mut endpoint, round, LENGTH);
        }
        endpoint.disconnect();
        if kills == WARM {
            warm = Some(holdings());
        }
    }
    let (memory, descriptors) = warm.expect("the loop waits for it");
    wait_for("the descriptors of the dead", || holdings().1 <= descriptors);
    let now = holdings().0;
    eprintln!("{kills} kills; memory {memory} to {now} octets; {descriptors} descriptors");
    assert!(now <= memory + GROWTH, "{now} octets of memory, {memory} after {WARM} kills of {kills}");
    drop((server, programs));
    wait_for("the end of all places", || switch.status().clients.len() == 1);
    own.listen(PORT, ListenOptions::default()).expect("the port of the dead is free");
}
