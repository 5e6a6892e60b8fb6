//! The program itself: how it starts, and how it ends.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

/// The program, its further output, and the first line of that.
type Started = (std::process::Child, Lines<BufReader<ChildStderr>>, String);

fn started(arguments: &[&str], socket: &std::path::Path) -> Started {
    let mut child = Command::new(env!("CARGO_BIN_EXE_uwarp-nfs"))
        .args(arguments)
        .arg("--socket")
        .arg(socket)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = next_line(&mut said);
    (child, said, first)
}

/// What the program says next, without its warning that an ordinary user cannot act as the callers.
fn next_line(said: &mut Lines<BufReader<ChildStderr>>) -> String {
    said.map(Result::unwrap).find(|line| !line.starts_with("this process does not run as root")).unwrap()
}

fn interrupt(mut child: std::process::Child) {
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
fn it_serves_until_it_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = folder.path().join("metrics");
    let arguments = ["--backend", "127.0.0.1:2049", "--memory", "64M", "--metrics", metrics.to_str().unwrap()];
    let (child, _said, first) = started(&arguments, &folder.path().join("socket"));
    assert_eq!(first, "NFS over RDMA on 10.77.0.1:20049 in front of 127.0.0.1:2049");
    interrupt(child);
    let text = std::fs::read_to_string(metrics).unwrap();
    assert!(text.contains("uwarp_nfs_rdma_clients_total 0"), "{text}");
}

#[test]
fn a_directory_is_served_and_what_was_done_is_kept_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (served, metrics) = (folder.path().join("served"), folder.path().join("metrics"));
    std::fs::create_dir(&served).unwrap();
    let arguments = [served.to_str().unwrap(), "--metrics", metrics.to_str().unwrap()];
    let (child, _said, first) = started(&arguments, &folder.path().join("socket"));
    let path = served.canonicalize().unwrap();
    assert_eq!(first, format!("NFS over RDMA on 10.77.0.1:20049 of {}", path.display()));
    interrupt(child);
    let text = std::fs::read_to_string(metrics).unwrap();
    assert!(text.contains("uwarp_nfs_rdma_clients_total 0"), "{text}");
}

#[test]
fn a_server_reaches_no_file_outside_its_directory() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir(&served).unwrap();
    let (inside, outside) = (served.join("inside"), folder.path().join("outside"));
    std::fs::write(&inside, "inside").unwrap();
    std::fs::write(&outside, "outside").unwrap();
    let probe = uwarp_vdev_tests::confined::Probe::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-nfs"));
    probe.load(command.arg(&served).arg("--socket").arg(folder.path().join("socket")).stderr(Stdio::piped()));
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(next_line(&mut said).starts_with("NFS over RDMA on"));
    probe.check(&child, &inside, &outside);
    interrupt(child);
}

/// The kernel's own file systems do not report birth times.
#[test]
fn a_file_system_that_cannot_tell_objects_apart_for_ever_is_served_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (child, mut said, first) = started(&["/proc"], &folder.path().join("socket"));
    assert!(first.starts_with("the file system keeps no times of birth"), "{first}");
    // Signals are handled from this line on; before it, a signal ends the process at once.
    assert!(said.any(|line| line.unwrap() == "NFS over RDMA on 10.77.0.1:20049 of /proc"));
    interrupt(child);
}

#[test]
fn mistakes_of_the_command_line_end_with_two() {
    for arguments in [
        &["--backend", "nowhere"][..],
        &[],
        &["--backend", "127.0.0.1:2049", "--engine", "inline"],
        &["/tmp", "--backend", "127.0.0.1:2049"],
        &["/nothing/of/this/name"],
        &["/tmp", "--threads", "0"],
        &["/tmp", "--connections-per-address", "0"],
        &["/tmp", "--idle-timeout", "soon"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_uwarp-nfs")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    }
}
