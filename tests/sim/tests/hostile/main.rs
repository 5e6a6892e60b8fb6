//! Attacks on one engine, alone and three at once, each beside an honest bystander. `table.txt` has the bounds and says
//! which attacks are known to exceed one.
//!
//! `UWARP_HOSTILE=NAME,...` runs only these rows.

use std::fmt::Write;

use uwarp_sim_tests::hostile::attacks;
use uwarp_sim_tests::hostile::table::{Judgement, Row, Table, judge};
use uwarp_sim_tests::hostile::{Attack, Measured, Scene, measure};
use uwarp_testkit::rig::is_skipped;

/// The scene for several attacks at once: the strictest requirement for each setting.
fn scene_of(attacks: &[(String, Box<dyn Attack>)]) -> Scene {
    let usual = Scene::default();
    attacks.iter().map(|(_, attack)| attack.scene()).fold(usual, |all, one| Scene {
        transmit_buffers: all.transmit_buffers.max(one.transmit_buffers),
        pings: all.pings.max(one.pings),
        crowd: all.crowd.max(one.crowd),
        recut: all.recut || one.recut,
        gather_octets: all.gather_octets.min(one.gather_octets),
        half_open: all.half_open.min(one.half_open),
        commit_in_engine: all.commit_in_engine || one.commit_in_engine,
        receive_wait: all.receive_wait.max(one.receive_wait),
    })
}

/// The bystander alone, once for each scene.
#[derive(Default)]
struct Alone(Vec<(Scene, Measured)>);

impl Alone {
    fn of(&mut self, scene: Scene) -> Measured {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| *known == scene) {
            return known.clone();
        }
        let alone = measure(&scene, Vec::new());
        assert_eq!((&alone.broken, &alone.missing), (&None, &Vec::new()), "the bystander alone in {scene:?}");
        self.0.push((scene, alone.clone()));
        alone
    }
}

fn run(table: &Table, row: &Row, alone: &mut Alone) -> (Judgement, Vec<String>) {
    let attackers: Vec<_> = row.attacks.iter().map(|name| (name.clone(), attacks::by_name(name))).collect();
    let scene = scene_of(&attackers);
    let alone = alone.of(scene);
    let measured = measure(&scene, attackers);
    (judge(table, &alone, &measured), measured.fizzled)
}

#[test]
fn a_bystander_keeps_its_share_beside_every_attack_that_the_table_has_as_closed() {
    if is_skipped("it counts work for each octet that an attacker sends, which cut segments change") {
        return;
    }
    let table = Table::parse(include_str!("table.txt")).unwrap_or_else(|error| panic!("table.txt, {error}"));
    for (name, _) in attacks::all() {
        assert!(table.rows.iter().any(|row| row.attacks == [name]), "table.txt has no row for '{name}' alone");
    }
    let wanted = std::env::var("UWARP_HOSTILE").unwrap_or_default();
    let mut alone = Alone::default();
    let mut wrong = String::new();
    let mut open = String::new();
    for row in &table.rows {
        let name = row.name();
        if !wanted.is_empty() && !wanted.split(',').any(|wanted| wanted == name) {
            println!("NOT RUN, since UWARP_HOSTILE is '{wanted}': {name}");
            continue;
        }
        let begun = std::time::Instant::now();
        let (judgement, fizzled) = run(&table, row, &mut alone);
        let state = if row.closed { "closed" } else { "open  " };
        println!("{state} {name:<60} {judgement} ({:.1} s)", begun.elapsed().as_secs_f64());
        if !fizzled.is_empty() {
            writeln!(wrong, "{name} shows nothing, since these attacks came to nothing: {fizzled:?}")
                .expect("a string");
        }
        let missed = judgement.missed.join("; ");
        match (row.closed, judgement.missed.is_empty()) {
            (true, true) => {}
            (false, false) => writeln!(open, "OPEN {name} ({}): {missed}", row.origin).expect("a string"),
            (true, false) => writeln!(wrong, "{name} is closed and misses a bound: {missed}").expect("a string"),
            (false, true) => writeln!(wrong, "{name} is open and keeps all bounds: close it").expect("a string"),
        }
    }
    let kinds: Vec<&str> = table.bounds.keys().map(String::as_str).collect();
    println!("\ncolumns: share, p99, opening in ms, work for each attacker octet; bounds: {kinds:?}");
    print!("\n{open}");
    assert!(wrong.is_empty(), "\n{wrong}");
}
