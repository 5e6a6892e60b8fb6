//! The libraries have the symbols of Debian's, with the same versions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use uwarp_verbs_tests::libraries;

/// Symbols that rdma-core has added since Debian 12.
const LATER: [&str; 2] = ["ibv_cmd_create_cq_ex2@@IBVERBS_PRIVATE_34", "ibv_wr_opcode_str@@IBVERBS_PRIVATE_34"];

/// The symbols that programs are bound to by default, as `name@@VERSION`.
fn symbols(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm is installed");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.contains("@@"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_symbol_of_debians_libraries_is_there_and_no_other() {
    let system = Path::new("/usr/lib/x86_64-linux-gnu");
    let mut wanted = symbols(&system.join("libibverbs.so.1"));
    wanted.extend(symbols(&system.join("librdmacm.so.1")));
    let have = symbols(&libraries().join("libibverbs.so.1"));
    let missing: Vec<_> = wanted.difference(&have).collect();
    let more: Vec<_> = have.difference(&wanted).filter(|name| !LATER.contains(&name.as_str())).collect();
    assert!(missing.is_empty() && more.is_empty(), "missing {missing:?}, too many {more:?}");
    assert!(wanted.len() > 200);
}

#[test]
fn both_names_are_one_object() {
    let directory = libraries();
    let target = std::fs::canonicalize(directory.join("librdmacm.so.1")).expect("it is there");
    assert_eq!(target, std::fs::canonicalize(directory.join("libibverbs.so.1")).expect("it is there"));
}
