//! A context in this process is looked at by the tool.

use std::process::{Command, Output};
use uwarp::{Config, Context, StatsSnapshot};

fn stat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uwarp-stat")).args(arguments).output().unwrap()
}

#[test]
fn a_running_context_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("monitor.sock");
    let mut config = Config::without_device("10.0.0.1/24").unwrap().threaded(2);
    config.monitor.socket = Some(socket.clone());
    let context = Context::open(config).unwrap();
    let domain = context.allocate_domain();
    let _region = domain.register(vec![0; 4096], uwarp::Access::REMOTE_READ).unwrap();
    let path = socket.to_str().unwrap();

    let output = stat(&[path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for expected in ["10.0.0.1/24", "threaded", "regions 1 of", "registered 4096 of"] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }

    let output = stat(&[path, "--json", "--once"]);
    let snapshot: StatsSnapshot = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(snapshot.pid, std::process::id());
    assert_eq!(snapshot.engines.len(), 2);
    context.close().unwrap();

    // Closed: the socket is gone.
    assert_eq!(stat(&[path]).status.code(), Some(2));
}

#[test]
fn bad_command_lines_get_one_sentence() {
    for (arguments, status) in [
        (&["nonsense"][..], 2),
        (&["1", "--interval", "soon"], 2),
        (&["1", "--interval", "1ns"], 2),
        (&["--unknown"], 2),
        // No process has this number.
        (&["4294967295"], 1),
    ] {
        let output = stat(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.starts_with("uwarp-stat: "), "{text}");
    }
}
