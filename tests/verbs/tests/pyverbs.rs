//! The tests of pyverbs, rdma-core's own, against the library: what passes, what they skip, and what is left out is a
//! list.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use uwarp_verbs_tests::{Host, INTERFACE};

/// The releases of rdma-core that there are lists about: those of Debian 12, of Debian 13 and of Debian testing.
const LISTS: [(&str, &str); 3] = [
    ("44", include_str!("../pyverbs-44.txt")),
    ("56", include_str!("../pyverbs-56.txt")),
    ("65", include_str!("../pyverbs-65.txt")),
];
const MODULES: [&str; 8] = ["device", "pd", "mr", "cq", "cq_events", "qp", "rdmacm", "fork"];
/// Debian's own, which pyverbs is built for.
const PYTHON: &str = "/usr/bin/python3";
const OPTIONS: [&str; 7] = ["tests/run_tests.py", "--dev", "uwarp0", "--port", "1", "--gid", "0"];

/// What becomes of each test.
type Outcomes = BTreeMap<String, &'static str>;

#[test]
fn rdma_cores_own_tests_pass_or_are_skipped_as_listed() {
    let release = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "rdma-core"]).output().expect("Debian");
    let release = String::from_utf8_lossy(&release.stdout).into_owned();
    let major = release.split('.').next().unwrap_or_default();
    let Some((_, list)) = LISTS.iter().find(|(of, _)| *of == major) else {
        return uwarp_notes::skipped(&format!(
            "pyverbs' tests: their lists are about rdma-core 44, 56 and 65, and this is {release}"
        ));
    };
    let host = Host::new("pyverbs");
    unpack_tests(host.directory());
    let wanted = listed(list);

    // Nothing is missing in the list. Its exit status is that of no tests run, which Python 3.12 and later call a
    // failure.
    let all = host.run(&[&[PYTHON], &OPTIONS[..], &["--list-tests"]].concat());
    let is_ours = |name: &&str| MODULES.iter().any(|module| name.starts_with(&format!("tests.test_{module}.")));
    let all: Vec<&str> = all.output.lines().filter(is_ours).collect();
    assert_eq!(all.len(), wanted.len(), "{all:?}");
    for name in all {
        assert!(wanted.contains_key(name), "{name} is not in tests/verbs/pyverbs-{major}.txt");
    }

    // A device of the kernel has a network interface, whose address the tests look up: in sysfs, for which this mount
    // namespace gets a folder, or by iproute2's `rdma`, whose answer is that of such a device.
    let device = format!("/sys/class/infiniband/uwarp0/device/net/{INTERFACE}");
    let link = format!(r#"echo '[{{"ifname":"uwarp0","port":1,"netdev":"{INTERFACE}"}}]'"#);
    let tool = host.directory().join("rdma");
    std::fs::write(&tool, format!("#!/bin/sh\n{link}\n")).expect("the directory is ours");
    std::fs::set_permissions(&tool, Permissions::from_mode(0o755)).expect("the file is ours");
    let mount = format!("mount -t tmpfs none /sys/class && mkdir -p {device} && PATH=$PWD:$PATH exec \"$@\"");
    let names: Vec<&str> =
        wanted.iter().filter(|(_, outcome)| **outcome != "omit").map(|(name, _)| name.as_str()).collect();
    let run = host.run(&[&["sh", "-c", &mount, "sh", PYTHON], &OPTIONS[..], &["-v"], &names].concat());
    let outcomes = outcomes(&run.output);
    for name in names {
        let (outcome, wanted) = (outcomes.get(name).copied().unwrap_or("none"), wanted[name]);
        assert_eq!(outcome, wanted, "{name}\n{}", run.output);
    }
    run.succeeded();
}

/// The tests are among the documents of rdma-core, which some containers leave out.
fn unpack_tests(directory: &Path) {
    let unpacked = Command::new("sh")
        .args(["-ec", "cp -r /usr/share/doc/rdma-core/tests . && find tests -name '*.gz' -exec gunzip {} +"])
        .current_dir(directory)
        .output()
        .expect("a shell");
    assert!(
        unpacked.status.success(),
        "the tests are not where Debian's package rdma-core has them, perhaps because dpkg leaves documents out here \
         (path-exclude): {}",
        String::from_utf8_lossy(&unpacked.stderr)
    );
}

/// What a list says.
fn listed(list: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (outcome, rest) = line.split_once(' ').expect("an outcome and a name");
        let name = rest.split_once(':').map_or(rest, |(name, _)| name);
        let outcome = ["pass", "skip", "omit"].into_iter().find(|known| *known == outcome).expect("a known outcome");
        assert!(outcome == "pass" || rest.contains(": "), "{name} has no reason");
        outcomes.insert(name.to_owned(), outcome);
    }
    outcomes
}

/// What Python's unittest says: a line with the test's name, perhaps one with its description, and the outcome behind
/// dots or, if the test itself has printed something, on a line of its own.
fn outcomes(output: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut name = "";
    for line in output.lines().take_while(|line| !line.starts_with("=====")) {
        let called = line.strip_prefix("test_").and_then(|rest| rest.split_once(" (tests.test_"));
        if let Some((_, rest)) = called {
            let end = rest.find(')').map_or(0, |end| line.len() - rest.len() + end);
            name = &line[line.len() - rest.len() - "tests.test_".len()..end];
        }
        let last = line.rsplit("... ").next().unwrap_or_default().trim();
        let outcome = match last {
            "ok" => "pass",
            "ERROR" | "FAIL" => "fail",
            _ if last.starts_with("skipped ") => "skip",
            _ => continue,
        };
        outcomes.insert(name.to_owned(), outcome);
    }
    outcomes
}
