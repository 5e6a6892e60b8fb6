//! Programs of Debian's packages that move data by Sends, Writes, Reads and atomics: qperf, fio, libfabric.

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

/// Four jobs at once, each a process with a connection of its own. fio has no option that gives the jobs of `numjobs`
/// ports that differ, so each is named.
#[test]
fn four_jobs_of_fio_write_read_and_send() {
    let host = Host::new("fio");
    let ports: Vec<u16> = (20001..20005).collect();
    let jobs: Vec<String> =
        ports.iter().flat_map(|port| [format!("--name=job{port}"), format!("--port={port}")]).collect();
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    let common = ["fio", "--ioengine=rdma", "--bs=64k", "--size=4m", "--verify=crc32c"];
    for verb in ["write", "read", "send"] {
        let server = host.serve_on(&[&common, &["--rw=read", "--iodepth=16"][..], &jobs].concat(), &ports);
        let verb = format!("--verb={verb}");
        let hostname = format!("--hostname={ADDRESS}");
        // The server verifies what it receives.
        let options = ["--rw=write", "--iodepth=4", "--do_verify=0", &hostname, &verb];
        let client = host.run(&[&common, &options[..], &jobs].concat());
        assert!(client.succeeded().contains("io=16.0MiB"), "{}", client.output);
        server.wait().succeeded();
    }
}

#[test]
fn libfabrics_pingpong_checks_its_data_over_verbs_and_over_ofi_rxm() {
    let host = Host::new("fabric");
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let words = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "50", "-c"];
        let server = host.serve_on_kernels(&words, 47592);
        let client = host.run(&[&words, &[ADDRESS][..]].concat());
        // A line for each size, the largest of which is a mebioctet.
        assert!(client.succeeded().lines().any(|line| line.starts_with("1m ")), "{}", client.output);
        server.wait().succeeded();
    }
}
