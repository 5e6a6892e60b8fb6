//! Debian's iSER target and initiator, tgt and libiscsi. What becomes of each of libiscsi's own tests of a target is a
//! list.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use uwarp_verbs_tests::{ADDRESS, Ended, Host, Running};

/// The releases of libiscsi that there are lists about: those of Debian 12 and 13.
const LISTS: [(&str, &str); 2] =
    [("1.19", include_str!("../iscsi-test-cu-1.19.txt")), ("1.20", include_str!("../iscsi-test-cu-1.20.txt"))];
/// Without these, libiscsi crashes now and then over any RDMA library: over iSER 1.19 takes new memory to be zero, and
/// up to 1.20.0 it gives its cache of blocks of one size some that are smaller. Tests of 1.20 want zeros behind a short
/// answer, too, where over iSER they find what was in the memory before.
const VARIABLES: [(&str, &str); 2] = [("MALLOC_PERTURB_", "255"), ("LIBISCSI_CACHE_ALLOCATIONS", "0")];
/// Initiators that the target lets in; over iSER it wants to know their names.
const INITIATORS: [&str; 4] = [
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq",
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test",
    "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test-2",
    "iqn.2026-01.example:chunks",
];

/// How long a program of libiscsi's may take. Some suites send a thousand commands, each when the one before is
/// answered.
const LIMIT: Duration = Duration::from_secs(240);
/// What libiscsi 1.19 says over iSER if nothing completes for a second, such as on a machine that has other things to
/// do.
const TOO_SLOW: &str = "revents is not POLLIN";
/// How often a suite is begun again for that.
const MOST_RETRIES: usize = 3;

/// tgtd with a disk over TCP and one over iSER, each a file in the host's directory.
struct Target<'a> {
    host: &'a Host,
    daemon: Running,
}

impl<'a> Target<'a> {
    fn start(host: &'a Host) -> Target<'a> {
        let words = ["tgtd", "-f", "--control-port", "7", "--iscsi", &format!("portal={ADDRESS}:3260")];
        let daemon = host.start_with(&[("TGT_IPC_SOCKET", &control_socket(host))], &words);
        let is_ready = |_: &Running| admin(host, &["--op", "show", "--mode", "sys"]).status.success();
        let target = Target { host, daemon: Host::wait_until(daemon, &words, is_ready) };
        for (number, driver) in [("1", "iscsi"), ("2", "iser")] {
            let disk = host.directory().join(driver);
            let file = File::options().create(true).append(true).open(&disk).expect("the directory is ours");
            file.set_len(100 << 20).expect("the file is ours");
            let set = |words: &[&str]| {
                let of_driver = ["--lld", driver, "--tid", number, "--op"];
                admin(host, &[&of_driver, words].concat()).succeeded();
            };
            set(&["new", "--mode", "target", "--targetname", &format!("iqn.2026-01.example:{driver}")]);
            let disk = disk.to_str().expect("a path");
            set(&["new", "--mode", "logicalunit", "--lun", "1", "--backing-store", disk]);
            set(&["bind", "--mode", "target", "--initiator-address", "ALL"]);
            for name in INITIATORS {
                set(&["bind", "--mode", "target", "--initiator-name", name]);
            }
        }
        target
    }

    /// The address of the disk over iSER (`iser`) or TCP (`iscsi`).
    fn disk(driver: &str) -> String {
        format!("{driver}://{ADDRESS}/iqn.2026-01.example:{driver}/1")
    }

    fn restart(&mut self) {
        self.daemon.kill();
        self.host.await_free_ports();
        *self = Target::start(self.host);
    }

    /// Runs a program of libiscsi's.
    fn run(&self, words: &[&str]) -> Ended {
        self.host.start_with(&VARIABLES, words).wait_within(LIMIT)
    }
}

fn control_socket(host: &Host) -> String {
    host.directory().join("tgt").to_str().expect("a path").to_owned()
}

fn admin(host: &Host, words: &[&str]) -> Ended {
    let words = [&["tgtadm", "--control-port", "7"], words].concat();
    host.start_with(&[("TGT_IPC_SOCKET", &control_socket(host))], &words).wait()
}

/// What becomes of each test.
type Outcomes = BTreeMap<String, &'static str>;

#[test]
fn libiscsis_own_tests_end_over_iser_as_listed() {
    let release = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "libiscsi7"]).output().expect("Debian");
    let release = String::from_utf8_lossy(&release.stdout).into_owned();
    let is_about = |of: &str| release.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'));
    let Some((release, list)) = LISTS.into_iter().find(|(of, _)| is_about(of)) else {
        return uwarp_notes::skipped(&format!(
            "libiscsi's tests: their lists are about 1.19 and 1.20, and this is {release}"
        ));
    };
    let host = Host::new("iscsi-test-cu");
    let mut target = Target::start(&host);
    target.run(&["iscsi-inq", &Target::disk("iser")]).succeeded();
    let wanted = listed(list);

    // Nothing is missing in the list.
    let all = host.run(&["iscsi-test-cu", "--list"]);
    let all: Vec<&str> =
        all.succeeded().lines().filter(|line| line.starts_with("ALL.") && line.matches('.').count() == 2).collect();
    assert_eq!(all.len(), wanted.len());
    for name in all {
        assert!(wanted.contains_key(name), "{name} is not in tests/verbs/iscsi-test-cu-{release}.txt");
    }

    let mut suites: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in wanted.keys() {
        suites.entry(name.rsplit_once('.').expect("a suite").0).or_default().push(name);
    }
    for (suite, names) in suites {
        let kept: Vec<&str> = names.iter().copied().filter(|name| wanted[*name] != "omit").collect();
        // A suite that is whole takes one login.
        let chosen = if kept.len() == names.len() { vec![suite] } else { kept.clone() };
        compare(&mut target, "iser", &chosen, &kept, &wanted);
    }
    // What fails over iSER does so because of tgtd.
    let failing: Vec<&str> =
        wanted.iter().filter(|(_, outcome)| **outcome == "fail").map(|(name, _)| name.as_str()).collect();
    compare(&mut target, "iscsi", &failing, &failing, &wanted);
}

/// Runs the tests that `chosen` names, and compares what becomes of `names`.
fn compare(target: &mut Target<'_>, driver: &str, chosen: &[&str], names: &[&str], wanted: &Outcomes) {
    if chosen.is_empty() {
        return;
    }
    let list = target.host.directory().join("chosen");
    std::fs::write(&list, chosen.join("\n")).expect("the directory is ours");
    let list = list.to_str().expect("a path");
    let words = ["iscsi-test-cu", "--dataloss", "--verbose", "--test", list, &Target::disk(driver)];
    let mut run = target.run(&words);
    for _ in 0..MOST_RETRIES {
        if !run.output.contains(TOO_SLOW) {
            break;
        }
        uwarp_notes::retried(&format!("{chosen:?}: the target took a second to answer, which is libiscsi's limit"));
        // Reservations may be left of the tests that failed.
        target.restart();
        run = target.run(&words);
    }
    let outcomes = outcomes(&run.output);
    for name in names {
        let outcome = outcomes.get(*name).copied().unwrap_or("none");
        assert_eq!(outcome, wanted[*name], "{name} over {driver}: {}\n{}", run.status, run.output);
    }
    assert!(run.status.code().is_some(), "{chosen:?} over {driver}: {}\n{}", run.status, run.output);
}

/// What a list says.
fn listed(list: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (outcome, rest) = line.split_once(' ').expect("an outcome and a name");
        let name = rest.split_once(':').map_or(rest, |(name, _)| name);
        let outcome =
            ["pass", "skip", "fail", "omit"].into_iter().find(|known| *known == outcome).expect("a known outcome");
        assert!(outcome == "pass" || rest.contains(": "), "{name} has no reason");
        outcomes.insert(name.to_owned(), outcome);
    }
    outcomes
}

/// What CUnit says: a line for each suite, one for each test, what the test says, and how it ends, all but the first
/// perhaps in one line. A test that skips itself says so, and passes. What a suite says when its last test has ended,
/// indented like all that tests say, stands behind that in its line.
fn outcomes(output: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let (mut suite, mut name, mut is_skipped) = ("", "", false);
    for line in output.lines() {
        let mut said = line;
        if let Some(begun) = line.strip_prefix("Suite: ") {
            suite = begun;
        } else if let Some((begun, rest)) = line.strip_prefix("  Test: ").and_then(|line| line.split_once(" ...")) {
            (name, said, is_skipped) = (begun, rest, false);
        }
        is_skipped |= said.contains("[SKIPPED]");
        let (ended, _) = said.split_once("    ").unwrap_or((said, ""));
        let outcome = match ended {
            "passed" if is_skipped => "skip",
            "passed" => "pass",
            "FAILED" => "fail",
            _ => continue,
        };
        outcomes.insert(format!("ALL.{suite}.{name}"), outcome);
    }
    outcomes
}

#[test]
fn what_a_killed_target_has_acknowledged_is_there_when_it_is_back() {
    let host = Host::new("iser-killed");
    let chunks = compiled(&host);
    let chunks = chunks.to_str().expect("a path");
    let disk = Target::disk("iser");
    let mut target = Target::start(&host);
    target.run(&[chunks, "write", &disk, "0", "100"]).succeeded();
    let writer = host.start_with(&VARIABLES, &[chunks, "rewrite", &disk, "100", "700"]);
    let start = Instant::now();
    while !writer.printed().contains("write 130\n") {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", writer.printed());
        std::thread::sleep(Duration::from_millis(1));
    }
    target.daemon.kill();
    let writer = writer.wait();
    assert!(!writer.status.success(), "{}", writer.output);
    // If the writer was faster than this test, it has written all of them.
    let acknowledged = writer.output.lines().filter(|line| line.starts_with("write ")).count().min(700);

    target.restart();
    let count = (100 + acknowledged).to_string();
    let read = target.run(&[chunks, "read", &disk, "0", &count]);
    assert_eq!(read.succeeded().lines().count(), 100 + acknowledged, "{}", read.output);
}

/// An initiator that knows what it has written.
fn compiled(host: &Host) -> PathBuf {
    let program = host.directory().join("iscsi-chunks");
    let source = host.directory().join("iscsi-chunks.c");
    std::fs::write(&source, include_str!("../iscsi-chunks.c")).expect("the directory is ours");
    let mut compiler = Command::new("cc");
    compiler.arg("-Wall").arg("-Werror").arg("-o").arg(&program).arg(&source).arg("-liscsi");
    assert!(compiler.status().expect("a C compiler").success(), "{compiler:?}");
    program
}
