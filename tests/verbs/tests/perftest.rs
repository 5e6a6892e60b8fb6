//! perftest of Debian's package over rdma_cm: every tool, with the options that change how it uses the verbs.

use std::thread::available_parallelism;
use std::time::Duration;

use uwarp_verbs_tests::{ADDRESS, Host};

/// What a client of perftest 4.5 says, now and then, when it is rejected although its server listens.
const REJECTED: &str = "Unexpected CM event bl blka 8";

/// How long a tool may take. At 1 % loss, messages of up to 8 MiB one at a time take minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// A tool against itself, with the same arguments for both ends.
#[track_caller]
fn measure(host: &Host, tool: &str, arguments: &[&str]) {
    let server: Vec<&str> = [tool, "-R"].iter().chain(arguments).copied().collect();
    let client: Vec<&str> = server.iter().copied().chain([ADDRESS]).collect();
    for attempt in 1..=2 {
        let server = host.serve(&server);
        let ended = host.start(&client).wait_within(LIMIT);
        if attempt == 1 && ended.output.contains(REJECTED) {
            eprintln!("{client:?} was rejected, and is started again");
            continue;
        }
        let has_measured = ended.status.success() && ended.output.contains("#bytes");
        assert!(has_measured, "{client:?}: {}\n{}\nServer:\n{}", ended.status, ended.output, server.printed());
        server.wait().succeeded();
        return;
    }
}

const BANDWIDTHS: [&str; 4] = ["ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw"];
const LATENCIES: [&str; 3] = ["ib_send_lat", "ib_read_lat", "ib_atomic_lat"];

/// Each of the tools, with these arguments.
#[track_caller]
fn measure_all(purpose: &str, tools: &[&str], arguments: &[&str]) {
    let host = Host::new(purpose);
    for tool in tools {
        measure(&host, tool, arguments);
    }
}

#[test]
fn bandwidths() {
    measure_all("pt-bw", &BANDWIDTHS, &["-n", "500"]);
}

#[test]
fn latencies() {
    measure_all("pt-lat", &LATENCIES, &["-n", "500"]);
}

/// It polls memory at both ends, beside two engine threads.
#[test]
fn latency_of_writes() {
    let processors = available_parallelism().map_or(1, usize::from);
    if processors < 4 {
        eprintln!("SKIPPED: ib_write_lat spins on memory and needs four processors; there are {processors}");
        return;
    }
    measure_all("pt-wlat", &["ib_write_lat"], &["-n", "500"]);
}

#[test]
fn bandwidths_of_four_queue_pairs() {
    measure_all("pt-4", &BANDWIDTHS, &["-n", "500", "-q", "4"]);
}

#[test]
fn bandwidths_both_ways() {
    measure_all("pt-both", &BANDWIDTHS, &["-n", "500", "-b"]);
}

/// perftest has no events for Writes.
#[test]
fn bandwidths_by_events() {
    measure_all("pt-bwe", &["ib_send_bw", "ib_read_bw", "ib_atomic_bw"], &["-n", "500", "-e"]);
}

#[test]
fn latencies_by_events() {
    measure_all("pt-late", &LATENCIES, &["-n", "500", "-e"]);
}

#[test]
fn bandwidths_for_a_second() {
    measure_all("pt-bwd", &BANDWIDTHS, &["-D", "1"]);
}

#[test]
fn latencies_for_a_second() {
    measure_all("pt-latd", &LATENCIES, &["-D", "1"]);
}

/// Every power of two up to 8 MiB.
#[test]
fn all_sizes() {
    if !std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0") {
        return uwarp_notes::skipped("perftest with all sizes: it runs with --long");
    }
    measure_all(
        "pt-all",
        &["ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_send_lat", "ib_read_lat"],
        &["-n", "50", "-a"],
    );
}

#[test]
fn all_tools_by_the_older_functions_to_post() {
    let tools = [&BANDWIDTHS[..], &LATENCIES[..]].concat();
    measure_all("pt-old", &tools, &["-n", "500", "--use_old_post_send"]);
}
