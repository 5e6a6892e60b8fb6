//! Replays the seed corpus, so that an ordinary test run notices if a known input breaks something.
//! `UWARP_FUZZ_INPUT=FILE` replays that file through every target instead.

use std::fs;
use std::path::{Path, PathBuf};

fn inputs(target: &str) -> Vec<PathBuf> {
    if let Some(file) = std::env::var_os("UWARP_FUZZ_INPUT").filter(|value| !value.is_empty()) {
        return vec![file.into()];
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let inputs: Vec<PathBuf> = fs::read_dir(directory)
        .expect("the corpus is in the tree")
        .map(|entry| entry.expect("a directory entry").path())
        .collect();
    assert!(!inputs.is_empty());
    inputs
}

fn replay(target: &str, run: fn(&[u8])) {
    for input in inputs(target) {
        println!("{}", input.display());
        run(&fs::read(&input).expect("an input can be read"));
    }
}

#[test]
fn cable() {
    replay("cable", uwarp_fuzz::cable);
}

#[test]
fn frame() {
    replay("frame", uwarp_fuzz::frame);
}

#[test]
fn markers() {
    replay("markers", uwarp_fuzz::markers);
}

#[test]
fn memif_control() {
    replay("memif_control", uwarp_fuzz::memif_control);
}

#[test]
fn tcp() {
    replay("tcp", uwarp_fuzz::tcp);
}

#[test]
fn mpa_startup() {
    replay("mpa_startup", uwarp_fuzz::mpa_startup);
}

#[test]
fn nfs_call() {
    replay("nfs_call", uwarp_fuzz::nfs_call);
}

#[test]
fn queue_pair() {
    replay("queue_pair", uwarp_fuzz::queue_pair);
}

#[test]
fn rpc_header() {
    replay("rpc_header", uwarp_fuzz::rpc_header);
}

#[test]
fn verbs_calls() {
    replay("verbs_calls", uwarp_fuzz::verbs_calls);
}
