//! All tools report a mistake in a configuration file in one sentence, before anything is started.

use std::process::{Command, Stdio};

use uwarp_interop_tests::tools::tool;

/// A valid file, except for what a row adds at its top.
const RIGHT: &str = "address = \"10.77.0.1/24\"\n[device]\nkind = \"null\"\n";

#[test]
fn every_tool_names_the_mistake_in_a_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("uwarp.toml");
    let served = folder.path().to_str().unwrap();
    let log = folder.path().join("log");
    let log = log.to_str().unwrap();
    let tools: [(&str, &[&str]); 6] = [
        ("uwarp-copy", &["serve", served]),
        ("uwarp-log", &["serve", log]),
        ("uwarp-nfs", &[served]),
        ("uwarp-perf", &["serve"]),
        ("uwarp-ping", &["serve"]),
        ("uwarp-rpc", &["serve"]),
    ];
    // An unknown key, a value of another type, a value that no device has, and text that is not TOML.
    let mistakes = [
        ("speed = 3", "speed"),
        ("mtu = \"large\"", "line 1: invalid type"),
        ("mtu = 70", "mtu"),
        ("mtu = 1500 octets", "uwarp.toml"),
    ];
    for (name, arguments) in tools {
        for (line, expected) in mistakes {
            std::fs::write(&file, format!("{line}\n{RIGHT}")).unwrap();
            let mut command = Command::new(tool(name));
            command.args(arguments).arg("--config").arg(&file).stdin(Stdio::null());
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{name}, {line}: {text}");
            assert_eq!(text.lines().count(), 1, "{name}, {line}: {text}");
            assert!(text.starts_with(&format!("{name}: ")) && text.contains(expected), "{name}, {line}: {text}");
        }
        assert!(is_as_before(folder.path()), "{name} has begun something");
    }
}

/// The folder contains the configuration file, and no other.
fn is_as_before(folder: &std::path::Path) -> bool {
    std::fs::read_dir(folder).unwrap().count() == 1
}
