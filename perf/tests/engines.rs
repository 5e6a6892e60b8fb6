//! Engines share nothing that they write, and an operation costs the same with more of them.

use std::collections::BTreeMap;
use std::process::Command;

/// How much more instructions a Write may take with more engines, in percent.
const SLACK: f64 = 2.0;

#[derive(Debug, serde::Deserialize)]
struct Counts {
    instructions: f64,
    shared_lines: usize,
    shared: Vec<serde_json::Value>,
}

#[test]
fn engines_write_no_cache_line_of_each_other_and_take_no_more_instructions() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        uwarp_notes::skipped("what engines share was not counted: valgrind is missing (apt-get install valgrind)");
        return;
    }
    let is_long = std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0");
    let engines = if is_long { "1,2,4,8,16" } else { "2,4" };
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp-bench"))
        .args(["engines", "--engines", engines, "--rounds", "16", "--json"])
        .output()
        .expect("uwarp-bench runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counts: BTreeMap<usize, Counts> = serde_json::from_slice(&output.stdout).expect("counts");
    for (engines, counts) in &counts {
        assert_eq!(counts.shared_lines, 0, "{engines} engines: {:?}", counts.shared);
    }
    // One engine has nobody to hand packets on to, and does not look for them.
    let several: Vec<f64> = counts.range(2..).map(|(_, counts)| counts.instructions).collect();
    let (least, most) =
        several.iter().fold((f64::MAX, 0.0_f64), |(least, most), count| (least.min(*count), most.max(*count)));
    assert!(most <= least * (1.0 + SLACK / 100.0), "{counts:?}");
}
