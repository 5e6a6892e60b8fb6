//! Which crate may depend on which, and what a tool may be made of.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).env_remove("RUSTFLAGS");
    cargo
}

/// The packages that `cargo tree` prints, test dependencies left out.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let mut command = cargo();
    command.args(["tree", "--offline", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    let output = command.args(arguments).output().expect("cargo runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_engine_needs_no_dpdk() {
    let engine = tree(&["--package", "uwarp-engine"]);
    assert!(engine.contains("uwarp-tcp"));
    let dpdk: Vec<_> = engine.iter().filter(|package| package.contains("dpdk")).collect();
    assert!(dpdk.is_empty(), "uwarp-engine depends on {dpdk:?}");
}

#[test]
fn the_engine_and_dpdk_meet_in_the_port_and_where_a_context_opens_its_device() {
    let knows = |package| tree(&["--workspace", "--invert", package, "--depth", "1"]);
    let both: Vec<_> = knows("uwarp-engine").intersection(&knows("uwarp-dpdk")).cloned().collect();
    // The switch has devices of its own, one for each client, and the console has the engine's faults and captures on
    // bare devices. The fuzz targets are of everything.
    assert_eq!(both, ["uwarp", "uwarp-fuzz", "uwarp-pmd", "uwarp-port-dpdk", "uwarp-switch"]);
}

#[test]
fn only_tests_depend_on_the_test_kit() {
    let dependants = tree(&["--workspace", "--invert", "uwarp-testkit"]);
    let expected = ["fuzz", "interop-tests", "middlebox", "sim-tests", "testkit", "vdev-tests"];
    assert_eq!(dependants, expected.map(|name| format!("uwarp-{name}")).into());
}

/// Whether a file has these octets anywhere, be it in a symbol's name or in a message.
fn mentions(file: &Path, text: &str) -> bool {
    let octets = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    octets.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The folders and files in a folder of the tree.
fn folders(path: &str) -> impl Iterator<Item = PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
}

#[test]
fn what_stores_data_uses_the_stack_and_is_no_part_of_it() {
    let stored: BTreeSet<String> = folders("apps/storage")
        .map(|folder| folder.file_name().expect("a name").to_string_lossy().replace("uwarp-", ""))
        .map(|name| format!("uwarp-{name}"))
        .collect();
    assert!(stored.len() >= 4, "{stored:?}");
    for package in &stored {
        let used = tree(&["--package", package, "--depth", "1"]);
        let ours = used.iter().filter(|name| name.starts_with("uwarp") || name.starts_with("dpdk"));
        let more: Vec<_> =
            ours.filter(|name| !stored.contains(*name) && *name != "uwarp" && *name != "uwarp-app").collect();
        assert!(more.is_empty(), "{package} depends on {more:?} beside the public crate");
    }
    let users: BTreeSet<_> = stored.iter().flat_map(|package| tree(&["--workspace", "--invert", package])).collect();
    let tests = ["uwarp-bench", "uwarp-fuzz", "uwarp-sim-tests"].map(str::to_owned).into();
    assert_eq!(&(&users - &stored) - &tests, BTreeSet::new(), "packages that depend on what stores data");
}

/// The tools, in the folder where cargo puts them.
fn tools() -> Vec<PathBuf> {
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.parent().and_then(Path::parent).expect("TARGET/PROFILE");
    let tools: Vec<PathBuf> = folders("apps")
        .chain(folders("apps/storage"))
        .filter(|app| app.join("src/main.rs").exists())
        .map(|app| folder.join(app.file_name().expect("a name")))
        .collect();
    // Where the whole workspace was just built, as scripts/test does, they are there and of it.
    if std::env::var_os("UWARP_BUILT").is_none_or(|value| value.is_empty()) {
        let release = folder.ends_with("release").then_some("--release");
        let status = cargo().args(["build", "--quiet", "--workspace", "--bins"]).args(release).status();
        assert!(status.expect("cargo runs").success(), "the tools build");
    }
    tools
}

#[test]
fn no_tool_contains_the_test_kit() {
    // Part of every symbol's name. This program has both crates in it, so both are found.
    assert_eq!(uwarp_testkit::rig::World::two().hosts.len(), 2);
    let here = std::env::current_exe().expect("the path of this test");
    assert!(mentions(&here, "uwarp_engine") && mentions(&here, "uwarp_testkit"));
    let tools = tools();
    assert!(tools.len() >= 8, "{tools:?}");
    for tool in tools {
        assert!(!mentions(&tool, "uwarp_testkit"), "{} contains the test kit", tool.display());
    }
}
