//! `uwarp-bench verbs` as a whole: that it measures every part. What it measures on a loaded machine is not looked at.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::available_parallelism;

use uwarp_verbs_tests::{binaries, libraries};

#[test]
fn every_part_of_the_comparison_is_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let [json, html] = ["run.json", "run.html"].map(|name| directory.path().join(name));
    let output = Command::new(binaries().join("uwarp-bench"))
        .args(["verbs", "--rounds", "1", "--duration", "10ms", "--libraries"])
        .arg(libraries())
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .output()
        .expect("uwarp-bench is built with the tests");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");

    let run: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("the record")).expect("the record is JSON");
    let figures = |device: &str| run["devices"][device].as_array().expect("figures").clone();
    let measured = |device: &str| -> BTreeSet<String> {
        let is_measured =
            |figure: &serde_json::Value| figure["samples"].as_array().is_some_and(|samples| samples.len() == 1);
        let figures = figures(device).into_iter().filter(is_measured);
        figures.filter_map(|figure| figure["what"].as_str().map(str::to_owned)).collect()
    };
    let default_way = [
        "ib_send_lat",
        "ib_write_bw",
        "libfabric verbs;ofi_rxm",
        "libfabric tcp;ofi_rxm",
        "UCX tag",
        "iperf3, loopback",
    ];
    assert_eq!(measured("switch"), default_way.map(str::to_owned).into(), "{errors}");
    let mut wanted = BTreeSet::from([
        "Send",
        "ib_send_lat",
        "Write",
        "ib_write_bw",
        "libfabric verbs;ofi_rxm",
        "libfabric tcp;ofi_rxm",
        "UCX tag",
        "kernel TCP, spinning",
        "Write and back in process",
        "Write and back in process, engine thread",
        "iSER",
        "iSCSI, kernel TCP",
    ]);
    let processors = available_parallelism().map_or(1, usize::from);
    if processors >= 4 {
        wanted.insert("ib_write_lat");
    } else {
        assert!(errors.contains("left out: ib_write_lat"), "{errors}");
    }
    let wanted: BTreeSet<String> = wanted.into_iter().map(str::to_owned).collect();
    assert_eq!(measured("virtio"), wanted, "{errors}");
    for figure in figures("switch").into_iter().chain(figures("virtio")) {
        let value = figure["samples"][0]["value"].as_f64();
        // CPU time is counted in ticks of 10 ms.
        let may_be_none = figure["quantity"].as_str().is_some_and(|quantity| quantity.ends_with("cpu"));
        assert!(value.is_some_and(|value| value > 0.0 || may_be_none && value == 0.0), "{figure}");
    }
    let page = std::fs::read_to_string(&html).expect("the page");
    assert!(page.contains("ib_send_lat of Send, 64 B: p50"), "{page}");
    assert!(page.contains("ib_write_bw of iperf3, loopback, 64 KiB: bandwidth"), "{page}");
    assert!(page.contains("iSER of iSCSI, kernel TCP, 256 KiB: bandwidth"), "{page}");
}
