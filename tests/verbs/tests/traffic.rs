//! Programs of Debian's packages that move data by Sends, Writes, Reads and atomics.

use uwarp_verbs_tests::{ADDRESS, Host};

#[test]
fn qperf_measures_sends_writes_reads_and_atomics() {
    let host = Host::new("qperf");
    // It serves until it is ended; each measurement has a process of its own, forked from it.
    let _server = host.serve_on_kernels(&["qperf"], 19765);
    let tests = ["rc_lat", "rc_bw", "rc_rdma_write_lat", "rc_rdma_read_bw", "rc_fetch_add_mr"];
    let client = host.run(&[&["qperf", "-t", "1", ADDRESS, "-cm", "1"], &tests[..]].concat());
    let figures = client.succeeded();
    for (test, figure) in tests.iter().zip(["latency", "bw", "latency", "bw", "msg_rate"]) {
        let (_, after) = figures.split_once(&format!("{test}:")).unwrap_or_else(|| panic!("no {test}:\n{figures}"));
        let line = after.trim_start().lines().next().unwrap_or_default();
        let value = line.split_once('=').filter(|(name, _)| name.trim() == figure).map(|(_, value)| value.trim());
        let number = value.and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
        assert!(number.is_some_and(|number| number > 0.0), "{test}: {line:?}\n{figures}");
    }
}
