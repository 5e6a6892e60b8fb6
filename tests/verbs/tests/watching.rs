//! Seeing what an unmodified program does, and making its network worse.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use uwarp::StatsSnapshot;
use uwarp::stats::EngineStats;
use uwarp_verbs_tests::{ADDRESS, Host, Running};

/// More pings than any test waits for.
const ENDLESS: &str = "100000000";

/// What a running program's monitor says, as soon as it satisfies.
fn watch(program: &Running, is_enough: impl Fn(&StatsSnapshot) -> bool) -> StatsSnapshot {
    let start = Instant::now();
    loop {
        let sockets = uwarp::monitor::sockets(program.id());
        let seen = sockets.first().and_then(|socket| uwarp::monitor::query(socket).ok());
        match seen {
            Some(seen) if is_enough(&seen) => return seen,
            seen => assert!(start.elapsed() < Duration::from_secs(40), "{seen:#?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many frames of a capture a filter passes. The capture is whole.
#[track_caller]
fn count_frames(capture: &Path, filter: &str) -> usize {
    dissect(capture, filter).unwrap_or_else(|errors| panic!("{}: {errors}", capture.display()))
}

/// How many frames of a capture a filter passes, or why it is not whole.
fn dissect(capture: &Path, filter: &str) -> Result<usize, String> {
    let output = Command::new("tshark")
        .arg("-r")
        .arg(capture)
        .args(["-o", "tcp.try_heuristic_first:TRUE", "-Y", filter])
        .output()
        .expect("tshark is installed");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.trim().is_empty()).count())
}

#[test]
fn uwarp_pcap_captures_what_a_program_sends_and_receives() {
    let host = Host::new("pcap");
    let file = host.directory().join("rping.pcap");
    let file = file.to_str().expect("a path");
    let server = host.serve(&["rping", "-s", "-C", "5"]);
    host.start_with(&[("UWARP_PCAP", file)], &["rping", "-c", "-a", ADDRESS, "-C", "5"]).wait().succeeded();
    server.wait().succeeded();
    let count = |filter: &str| count_frames(Path::new(file), filter);
    assert_eq!((count("iwarp_mpa.req"), count("iwarp_mpa.rep")), (1, 1));
    // A ping is a Read and a Write of the server's; Sends say where and when. One more Write says that the client is
    // ready, and up to five follow while the server is silent.
    let opcodes = [("Write", 0, 11), ("Read Request", 1, 5), ("Read Response", 2, 5)];
    for (name, opcode, expected) in opcodes {
        // One segment may carry several messages.
        let found = count(&format!("iwarp_rdma.opcode == {opcode}"));
        assert!((1..=expected).contains(&found), "{name}: {found}");
    }
    assert!(count("iwarp_mpa.crc_check == 0 || iwarp_mpa.bad_length") == 0);
}

#[test]
fn a_capture_is_whole_when_a_signal_ends_the_program() {
    let host = Host::new("pcap-signal");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let file = host.directory().join(format!("{signal:?}.pcapng"));
        let words = ["rping", "-s", "-P"];
        let server = host.start_with(&[("UWARP_PCAP", file.to_str().expect("a path"))], &words);
        let server = host.await_listener(server, &words);
        host.run(&["rping", "-c", "-a", ADDRESS, "-C", "3"]).succeeded();
        // The frames come to the file while the program is idle.
        let start = Instant::now();
        while !dissect(&file, "tcp.flags.fin == 1").is_ok_and(|ends| ends >= 2) {
            assert!(start.elapsed() < Duration::from_secs(40), "the end of the connection is not in the capture");
        }
        kill_process(Pid::from_raw(server.id() as i32).expect("a process"), signal).expect("it runs");
        server.wait();
        assert!(count_frames(&file, "tcp") > 10);
        host.await_free_ports();
    }
}

#[test]
fn each_program_has_a_capture_of_its_own() {
    let host = Host::new("pcap-programs");
    let folder = host.directory().join("captures");
    std::fs::create_dir(&folder).expect("a folder");
    for (name, captures) in [("same.pcapng", 2), ("%p.pcapng", 4)] {
        let file = folder.join(name);
        let variables = [("UWARP_PCAP", file.to_str().expect("a path"))];
        let words = ["rping", "-s", "-C", "100"];
        let server = host.await_listener(host.start_with(&variables, &words), &words);
        host.start_with(&variables, &["rping", "-c", "-a", ADDRESS, "-C", "100"]).wait().succeeded();
        server.wait().succeeded();
        let files: Vec<PathBuf> =
            std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
        assert_eq!(files.len(), captures, "{files:?}");
        for file in &files {
            assert!(count_frames(file, "tcp") > 10, "{}", file.display());
        }
    }
}

#[test]
fn an_empty_variable_is_as_none() {
    let host = Host::new("empty-variables");
    let server = host.serve(&["rping", "-s", "-C", "5"]);
    let empty = [("UWARP_PCAP", ""), ("UWARP_FAULTS", ""), ("UWARP_LOG", ""), ("UWARP_CONFIG", "")];
    host.start_with(&empty, &["rping", "-c", "-a", ADDRESS, "-C", "5"]).wait().succeeded();
    server.wait().succeeded();
}

#[test]
fn uwarp_faults_loses_frames_and_the_program_does_not_notice() {
    let host = Host::new("faults");
    let server = host.serve(&["rping", "-s", "-V", "-S", "4096", "-C", "1000"]);
    let lossy = [("UWARP_FAULTS", "loss=1%")];
    let client = host.start_with(&lossy, &["rping", "-c", "-a", ADDRESS, "-V", "-S", "4096", "-C", "1000"]);
    let seen = watch(&client, |seen| {
        let lost = |engine: &EngineStats| engine.faults.get("transmit-lost").is_some_and(|lost| *lost >= 5);
        seen.engines.iter().any(lost)
    });
    assert!(seen.engines.iter().any(|engine| engine.counters.retransmissions > 0), "{seen:#?}");
    client.wait().succeeded();
    server.wait().succeeded();

    let wrong = host.start_with(&[("UWARP_FAULTS", "loss=often")], &["ibv_devices"]).wait();
    assert!(wrong.output.contains("UWARP_FAULTS is \"loss=often\""), "{}", wrong.output);
}

#[test]
fn uwarp_stat_shows_the_connection_of_a_running_program() {
    let host = Host::new("stat");
    let server = host.serve(&["rping", "-s", "-C", ENDLESS]);
    let client = host.start(&["rping", "-c", "-a", ADDRESS, "-C", ENDLESS]);
    watch(&client, |seen| seen.engines.iter().any(|engine| engine.counters.fpdus_sent > 100));
    for program in [&server, &client] {
        let shown = host.tool("uwarp-stat", &[&program.id().to_string(), "--once"]);
        for part in [":7174", "ESTABLISHED", "10.9.0.1", "switch.sock"] {
            assert!(shown.succeeded().to_uppercase().contains(&part.to_uppercase()), "no {part}: {}", shown.output);
        }
    }
}

#[test]
fn most_segments_of_ib_write_bw_take_the_short_ways() {
    let host = Host::new("hot");
    let perftest = ["ib_write_bw", "-R", "-F", "-D", "600"];
    let server = host.serve_on(&perftest, &[18515]);
    let client = host.start(&[&perftest[..], &[ADDRESS]].concat());
    let sent = watch(&client, |seen| seen.engines[0].counters.fpdus_sent > 200_000).engines[0].hot_share_sent();
    let received =
        watch(&server, |seen| seen.engines[0].counters.fpdus_received > 200_000).engines[0].hot_share_received();
    // On a busy machine more segments wait for room or for acknowledgments, and leave the long way.
    assert!(sent > 0.5 && received > 0.5, "sent {sent:.3}, received {received:.3}");
}
