//! States and attributes of queue pairs, by a program of our own in C (`c/states.c`).

use std::path::Path;
use std::process::Command;

use uwarp_verbs_tests::{ADDRESS, Host};

#[test]
fn states_and_attributes_are_as_the_manual_pages_say() {
    let host = Host::new("states");
    let program = host.directory().join("states");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/states.c");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .args([&program, &source])
        .args(["-lrdmacm", "-libverbs"])
        .output()
        .expect("a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let program = program.to_str().expect("a path");
    for test in ["unconnected", "failed", "fence", "attributes", "length", "reads", "places", "gids", "close"] {
        let ended = host.run(&[program, test, ADDRESS]);
        assert!(ended.status.success(), "{test}: {}\n{}", ended.status, ended.output);
    }
}
