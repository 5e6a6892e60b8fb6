//! The crate sideway: a Rust wrapper of libibverbs and librdmacm by others, which knows nothing of uwarp. It is built
//! here, with the C code that it brings, so this is a test of the long run.

use std::path::Path;
use std::process::Command;

use uwarp_verbs_tests::{ADDRESS, Host};

#[test]
fn a_rust_wrapper_by_others_sends_writes_reads_and_changes_counters() {
    let directory = tempfile::tempdir().expect("a directory");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("sideway/Cargo.toml"))
        .arg("--target-dir")
        .arg(directory.path())
        .output()
        .expect("cargo");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = directory.path().join("debug/uwarp-sideway");
    let program = program.to_str().expect("a path");
    let host = Host::new("sideway");
    for kind in ["basic", "extended"] {
        let (server, client) = host.pair(&[program, kind, "server", ADDRESS], &[program, kind, "client", ADDRESS]);
        assert!(server.contains(&format!("{kind} server: right")), "{server}");
        assert!(client.contains(&format!("{kind} client: right")), "{client}");
    }
}
