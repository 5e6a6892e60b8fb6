//! The program itself: how it starts, and how it ends.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn it_serves_until_it_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_uwarp-nfs"))
        .args(["--backend", "127.0.0.1:2049", "--socket"])
        .arg(folder.path().join("socket"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert_eq!(first, "NFS over RDMA on 10.77.0.1:20049 in front of 127.0.0.1:2049");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn mistakes_of_the_command_line_end_with_two() {
    for arguments in [&["--backend", "nowhere"][..], &[], &["--backend", "127.0.0.1:2049", "--engine", "inline"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_uwarp-nfs")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    }
}
