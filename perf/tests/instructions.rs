//! Holds the instruction budgets: `uwarp-bench instructions` over `baselines/budgets.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The crates whose instructions count. They are compiled as for a release but without link-time optimisation, which
/// would take minutes; all others stay as the tests have them, so nothing else is built again.
const OPTIMISED: [&str; 10] = [
    "uwarp-wire",
    "uwarp-switch",
    "uwarp-tcp",
    "uwarp-iwarp",
    "uwarp-memory",
    "uwarp-ring",
    "uwarp-engine",
    "uwarp",
    "uwarp-verbs-abi",
    "uwarp-bench",
];
/// How they are compiled.
const SETTINGS: [&str; 4] = ["opt-level=3", "debug-assertions=false", "overflow-checks=false", "codegen-units=1"];
/// How much more than the record is too much, in percent.
const SLACK: u64 = 2;
/// Goals that are reached, which no record may exceed.
const CEILINGS: [(&str, u64); 2] = [("write", 2_500), ("frame through the switch", 400)];
/// [`SLACK`] with another compiler than the record's.
const SLACK_OTHER_COMPILER: u64 = 10;
/// What updates the record.
const BLESS: &str = "UWARP_BLESS=1 cargo test -p uwarp-bench --test instructions";

/// The record.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The compiler, as `rustc --version` says.
    rustc: String,
    #[serde(flatten)]
    counts: Counts,
}

/// What `uwarp-bench instructions --json` prints.
#[derive(Serialize, Deserialize)]
struct Counts {
    kernels: String,
    instructions: BTreeMap<String, u64>,
}

/// Standard output of a command that has to succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Builds `uwarp-bench` for counting; returns its path.
fn build() -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // As `cargo nextest run --workspace` builds a program for this test: the features of all packages are then the
    // same.
    command.args(["test", "--no-run", "--workspace", "--test", "instructions", "--message-format=json"]);
    for package in OPTIMISED {
        for setting in SETTINGS {
            command.args(["--config", &format!("profile.dev.package.{package}.{setting}")]);
        }
    }
    // Incremental compilation inlines less, and not always the same.
    let messages = output(command.env("CARGO_INCREMENTAL", "0"));
    let path = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_program = message["target"]["name"] == "uwarp-bench" && message["profile"]["test"] == false;
        message["executable"].as_str().filter(|_| is_program).map(str::to_owned)
    });
    path.expect("cargo names the program")
}

/// The figures that are more than `slack` percent over the record, and those that one of the two lacks.
fn exceeded(record: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>, slack: u64) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = record.keys().chain(now.keys()).collect();
    let judge = |name: &String| match (record.get(name), now.get(name)) {
        (Some(record), Some(now)) if now * 100 <= record * (100 + slack) => None,
        (Some(record), Some(now)) => {
            let percent = 100.0 * (*now as f64 / *record as f64 - 1.0);
            Some(format!("{name}: {now} instructions, the record has {record} (+{percent:.1} %)"))
        }
        (None, _) => Some(format!("{name}: not in the record")),
        (_, None) => Some(format!("{name}: in the record, but not counted any more")),
    };
    names.into_iter().filter_map(judge).collect()
}

fn record_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("baselines/budgets.json")
}

fn record() -> Record {
    let record = std::fs::read_to_string(record_path()).expect("the record");
    serde_json::from_str(&record).expect("a record")
}

/// The goals that these figures miss.
fn above_ceilings(figures: &BTreeMap<String, u64>) -> Vec<&'static str> {
    let is_missed = |(name, most): &(&'static str, u64)| figures.get(*name).is_none_or(|count| count > most);
    CEILINGS.into_iter().filter(is_missed).map(|(name, _)| name).collect()
}

#[test]
fn no_operation_takes_more_instructions_than_its_budget() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        uwarp_notes::skipped("the instruction budgets were not held: valgrind is missing (apt-get install valgrind)");
        return;
    }
    let rustc = output(Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version"));
    let rustc = rustc.trim();
    let counted = output(Command::new(build()).args(["instructions", "--set", "budgets", "--json"]));
    let counts: Counts = serde_json::from_str(&counted).expect("counts");
    if std::env::var_os("UWARP_BLESS").is_some_and(|value| !value.is_empty()) {
        assert_eq!(above_ceilings(&counts.instructions), [""; 0], "these goals were reached before");
        let record = Record { rustc: rustc.to_owned(), counts };
        let text = serde_json::to_string_pretty(&record).expect("numbers and strings") + "\n";
        std::fs::write(record_path(), text).expect("the record can be written");
        return;
    }
    let record = record();
    if counts.kernels != record.counts.kernels {
        let (ours, recorded) = (&counts.kernels, &record.counts.kernels);
        uwarp_notes::skipped(&format!(
            "the instruction budgets were not held: this processor gets the kernels {ours}, the record is of {recorded}"
        ));
        return;
    }
    let slack = if rustc == record.rustc { SLACK } else { SLACK_OTHER_COMPILER };
    if slack != SLACK {
        let recorded = &record.rustc;
        uwarp_notes::skipped(&format!(
            "the instruction budgets were held to {slack} % only: this is {rustc}, the record is of {recorded}"
        ));
    } else {
        assert_eq!(above_ceilings(&counts.instructions), [""; 0], "these goals are missed");
    }
    let exceeded = exceeded(&record.counts.instructions, &counts.instructions, slack);
    assert!(
        exceeded.is_empty(),
        "more than {slack} % over perf/baselines/budgets.json:\n  {}\n\
         If the change is worth it, update the record with '{BLESS}' and say why in the commit.",
        exceeded.join("\n  ")
    );
}

#[test]
fn the_record_reaches_the_goals() {
    assert_eq!(above_ceilings(&record().counts.instructions), [""; 0]);
}

#[test]
fn a_missed_goal_and_one_without_a_figure_are_found() {
    let figures = |write| BTreeMap::from([("write".to_owned(), write), ("frame through the switch".to_owned(), 400)]);
    assert_eq!(above_ceilings(&figures(2_500)), [""; 0]);
    assert_eq!(above_ceilings(&figures(2_501)), ["write"]);
    assert_eq!(above_ceilings(&BTreeMap::new()), ["write", "frame through the switch"]);
}

#[test]
fn a_rise_of_more_than_the_slack_and_a_missing_figure_are_found() {
    let figures = |figures: &[(&str, u64)]| figures.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
    let record = figures(&[("read", 1000), ("send", 1000), ("write", 1000)]);
    assert!(exceeded(&record, &figures(&[("read", 1020), ("send", 1000), ("write", 10)]), SLACK).is_empty());
    let found = exceeded(&record, &figures(&[("idle", 1), ("read", 1021), ("send", 1000)]), SLACK);
    assert_eq!(
        found,
        [
            "idle: not in the record",
            "read: 1021 instructions, the record has 1000 (+2.1 %)",
            "write: in the record, but not counted any more",
        ]
    );
}
