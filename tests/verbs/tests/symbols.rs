//! The libraries have the symbols of rdma-core's, of each release that a supported distribution has, with the same
//! versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use uwarp_verbs_tests::libraries;

/// Each symbol, its version, the releases that have it, and what answers it.
const TABLE: &str = include_str!("../../../stack/verbs-abi/symbols/releases");
/// rdma-core of Debian 12, of Debian 13 and of Debian testing, with how many symbols their two libraries have.
const RELEASES: [(&str, usize); 3] = [("44", 248), ("56", 250), ("65", 294)];
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";

/// A symbol as `name@VERSION`.
type Symbols = BTreeSet<String>;

/// The symbols that a library has.
fn symbols(library: &Path) -> Symbols {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm is installed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let versioned = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        // Those of kind A are the versions themselves.
        words.next().filter(|kind| *kind != "A").and_then(|_| words.next()).map(|name| name.replace("@@", "@"))
    };
    text.lines().filter_map(versioned).filter(|name| name.contains('@')).collect()
}

/// The symbols of the table, of the releases that `belongs` picks.
fn listed(belongs: impl Fn(&str) -> bool) -> Symbols {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter(|words| words[2].split(',').any(&belongs)).map(|words| format!("{}@{}", words[0], words[1])).collect()
}

#[test]
fn every_symbol_of_every_release_is_there_and_no_other() {
    let have = symbols(&libraries().join("libibverbs.so.1"));
    for (release, count) in RELEASES {
        let wanted = listed(|of| of == release);
        let missing: Vec<_> = wanted.difference(&have).collect();
        assert!(missing.is_empty(), "of rdma-core {release} these are missing: {missing:?}");
        assert_eq!(wanted.len(), count, "the table about rdma-core {release}");
    }
    let known = listed(|of| RELEASES.iter().any(|(release, _)| *release == of));
    let more: Vec<_> = have.difference(&known).collect();
    assert!(more.is_empty(), "no release has {more:?}");
}

/// A program that asks for no version gets the newest.
#[test]
fn each_name_has_one_default_version() {
    let library = libraries().join("libibverbs.so.1");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut defaults: Vec<&str> = text.split_whitespace().filter_map(|word| Some(word.split_once("@@")?.0)).collect();
    defaults.sort_unstable();
    let names: BTreeSet<String> =
        listed(|_| true).iter().filter_map(|name| Some(name.split_once('@')?.0.to_owned())).collect();
    assert_eq!(defaults, names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The table against the libraries of this machine's distribution. Those of the others are looked at in their roots.
#[test]
fn the_table_is_right_about_this_machines_rdma_core() {
    let file = |name: &str| std::fs::canonicalize(Path::new(SYSTEM).join(name)).expect("rdma-core is installed");
    let verbs = file("libibverbs.so.1");
    // libibverbs.so.1.14.44.0
    let release = verbs.to_str().and_then(|name| name.rsplit('.').nth(1)).expect("the name has the release").to_owned();
    let mut have = symbols(&verbs);
    have.extend(symbols(&file("librdmacm.so.1")));
    if RELEASES.iter().any(|(known, _)| *known == release) {
        assert_eq!(have, listed(|of| of == release), "rdma-core {release}");
    } else {
        uwarp_notes::skipped(&format!("the table of symbols is about rdma-core 44, 56 and 65, and this is {release}"));
    }
}

#[test]
fn both_names_are_one_object() {
    let directory = libraries();
    let target = std::fs::canonicalize(directory.join("librdmacm.so.1")).expect("it is there");
    assert_eq!(target, std::fs::canonicalize(directory.join("libibverbs.so.1")).expect("it is there"));
}
