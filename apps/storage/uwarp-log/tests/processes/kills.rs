//! Writers and targets are killed; afterwards everything that was acknowledged is there.

use std::collections::BTreeMap;

use serde_json::Value;
use uwarp_netns as netns;
use uwarp_vdev_tests::disk::Disk;
use uwarp_vdev_tests::peer;

use crate::places::{Places, Target, Writer, succeeds};

#[test]
fn what_was_acknowledged_survives_kills_of_writer_and_targets() {
    let places = Places::new();
    let mut targets: Vec<Target> = (0..3).map(|number| places.target(number)).collect();
    let (mut found, mut line) = (BTreeMap::new(), 0);
    for round in 0..3 {
        let mut writer = Writer::start(&places);
        writer.append(line, 200, &mut found);
        // One is away: the others are enough.
        drop(targets.remove(0));
        writer.append(line + 200, 200, &mut found);
        targets.push(places.target(round));
        writer.append(line + 400, 100, &mut found);
        // The writer dies with lines under way, which may be in the log or not.
        writer.give(line + 500..line + 550);
        line += 1000;
        writer.kill(&mut found);
    }
    check_copies(&places, targets, found);
}

/// Appends a last line; then all targets have the same records, including all acknowledged ones.
fn check_copies(places: &Places, targets: Vec<Target>, mut found: BTreeMap<u64, String>) {
    let last = places.append_lines(&["--all", "--json", "-"], "the last\n");
    let outcome: Value = serde_json::from_slice(&succeeds(&last)).unwrap();
    assert_eq!(outcome["live"], 3);
    found.insert(outcome["last"].as_u64().unwrap(), "the last".to_owned());
    drop(targets);
    let copies: Vec<_> = (0..3).map(|number| places.read(number)).collect();
    assert!(copies[0] == copies[1] && copies[1] == copies[2], "the copies differ");
    for (number, text) in &found {
        assert_eq!(copies[0].get(number), Some(text), "record {number}");
    }
    assert_eq!(copies[0].last_key_value().unwrap().1, "the last");
}

/// One run with every change, 250 different ones in the long run; or those of `UWARP_SEEDS`, as in
/// `UWARP_SEEDS=170..180`.
fn seeds() -> impl Iterator<Item = fastrand::Rng> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty() && value != "0");
    let seeds = match set("UWARP_SEEDS") {
        Some(text) => {
            let (from, to) = text.split_once("..").expect("UWARP_SEEDS=FROM..TO");
            from.parse().expect("a number")..to.parse().expect("a number")
        }
        None => 0..if set("UWARP_LONG").is_some() { 250 } else { 1 },
    };
    seeds.clone().map(move |seed| {
        eprintln!("seed {seed} of {seeds:?}; UWARP_LONG=1 runs 250");
        fastrand::Rng::with_seed(seed)
    })
}

#[test]
fn no_acknowledged_line_is_lost_wherever_the_kills_fall() {
    for random in seeds() {
        kill_at_random(&Places::new(), random);
    }
}

const FORGOTTEN: &str = "kills::no_acknowledged_line_is_lost_with_what_disks_forget";

/// Each target is killed with its disk, and all unsynced data is lost: a commit that was answered before its sync is
/// detected.
#[test]
fn no_acknowledged_line_is_lost_with_what_disks_forget() {
    netns::test_among_own_mounts(FORGOTTEN, || {
        if let Some(disk) = peer::task::<Disk>() {
            return disk.serve();
        }
        for random in seeds() {
            kill_at_random(&Places::on_disks(FORGOTTEN), random);
        }
        // A disk that only claims to sync shows that this is detected.
        let places = Places::on_disks(FORGOTTEN);
        let targets: Vec<Target> = (0..3).map(|number| places.deceived_target(number)).collect();
        succeeds(&places.append_lines(&["--all"], "the first\n"));
        let mut found = BTreeMap::new();
        let mut writer = Writer::start(&places);
        writer.append(0, 100, &mut found);
        drop(targets);
        writer.kill(&mut found);
        let copies: Vec<_> = (0..3).map(|number| places.read(number)).collect();
        let is_lost = |number: &u64| copies.iter().all(|copy| !copy.contains_key(number));
        assert_eq!((found.len(), found.keys().filter(|number| is_lost(number)).count()), (100, 100));
    });
}

/// Three writers of one log. Each is killed in the end, and targets meanwhile, even most of them: with lines under way,
/// of which the acknowledged ones count.
fn kill_at_random(places: &Places, mut random: fastrand::Rng) {
    let mut targets: Vec<Option<Target>> = (0..3).map(|number| Some(places.target(number))).collect();
    // A log is started by all of its targets, and continues with two of them.
    succeeds(&places.append_lines(&["--all"], "the first\n"));
    let (mut found, mut line) = (BTreeMap::new(), 0);
    for _ in 0..3 {
        let mut writer = Writer::start(places);
        for _ in 0..random.usize(1..6) {
            let count = random.u64(1..300);
            writer.give(line..line + count);
            line += count;
            if targets.iter().flatten().count() >= 2 {
                writer.wait(random.usize(..=count as usize), &mut found);
            }
            // Occasionally the power of all fails; otherwise one target is killed if it runs, or started again if not.
            if random.u8(..4) == 0 {
                targets.fill_with(|| None);
            }
            let number = random.usize(..3);
            targets[number] = match targets[number].take() {
                Some(_killed) => None,
                None => Some(places.target(number)),
            };
        }
        writer.kill(&mut found);
        for (number, target) in targets.iter_mut().enumerate() {
            if target.is_none() && random.bool() {
                *target = Some(places.target(number));
            }
        }
    }
    for (number, target) in targets.iter_mut().enumerate() {
        target.get_or_insert_with(|| places.target(number));
    }
    assert!(!found.is_empty());
    check_copies(places, targets.into_iter().flatten().collect(), found);
}
