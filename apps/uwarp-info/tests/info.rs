//! People and programs can read the output.

use std::process::{Command, Output};

fn info(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uwarp-info")).args(arguments).output().unwrap()
}

#[test]
fn tables_and_json() {
    let output = info(&[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in ["net_memif", "virtio", "queue pairs"] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let output = info(&["--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["drivers"].as_array().unwrap().iter().any(|driver| driver == "net_memif"));
    assert!(!value["crc_kernel"].as_str().unwrap().is_empty());
}

#[test]
fn the_version_is_the_librarys() {
    let output = info(&["--version"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("uwarp-info {}\n", uwarp::VERSION));
    // A commit may follow.
    assert!(uwarp::VERSION.starts_with(env!("CARGO_PKG_VERSION")), "{}", uwarp::VERSION);
}

#[test]
fn the_printed_defaults_are_a_configuration() {
    let output = info(&["--defaults"]);
    let text = String::from_utf8(output.stdout).unwrap();
    uwarp::Config::from_toml_str(&text).unwrap();
}

#[test]
fn bad_command_lines_get_one_sentence() {
    let output = info(&["--all"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
}
