//! The TCP crate's packet scripts with the kernel's socket as the connection: the kernel does what we expect of
//! ourselves, or `scripts/kernel.txt` argues the difference. What an older kernel does differently is in a file of its
//! own.

use std::collections::HashMap;
use std::fmt::Write;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uwarp_interop_tests::scripts::edits::{self, Verdict};
use uwarp_interop_tests::scripts::{parse, player};
use uwarp_interop_tests::siw::{Attachment, Guest};
use uwarp_netns::{self as netns, End, Namespace, Queues};

const FILES: [(&str, &str); 10] = [
    ("listen", include_str!("../../../stack/tcp/tests/scripts/listen.txt")),
    ("open", include_str!("../../../stack/tcp/tests/scripts/open.txt")),
    ("close", include_str!("../../../stack/tcp/tests/scripts/close.txt")),
    ("data", include_str!("../../../stack/tcp/tests/scripts/data.txt")),
    ("window", include_str!("../../../stack/tcp/tests/scripts/window.txt")),
    ("timers", include_str!("../../../stack/tcp/tests/scripts/timers.txt")),
    ("recovery", include_str!("../../../stack/tcp/tests/scripts/recovery.txt")),
    ("ecn", include_str!("../../../stack/tcp/tests/scripts/ecn.txt")),
    ("robustness", include_str!("../../../stack/tcp/tests/scripts/robustness.txt")),
    ("urgent", include_str!("../../../stack/tcp/tests/scripts/urgent.txt")),
];

/// Scripts mostly wait, so many can be played concurrently, each in a separate namespace: so many for each CPU, and at
/// most.
const AT_A_TIME: (usize, usize) = (6, 12);
/// A busy machine stretches real time under a script; a real difference of the kernel occurs every time.
const ATTEMPTS: usize = 3;
/// Second and third attempts of all scripts together: more cannot be explained by a busy machine.
const RETRIES: usize = 12;
/// The kernels whose behaviour is recorded, each with what it does differently from the first.
const KERNELS: [(&str, &str); 2] = [("6.18.", ""), ("6.1.", include_str!("../scripts/kernel-6.1.txt"))];
/// How long the guest may take: it is emulated.
const GUESTS_TIME: Duration = Duration::from_secs(1800);

#[test]
fn the_kernel_plays_our_scripts() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a Linux kernel");
    let Some((_, differences)) = KERNELS.iter().find(|(kernel, _)| release.starts_with(kernel)) else {
        return uwarp_notes::skipped(&format!(
            "how Linux 6.18 and 6.1 play the packet scripts is recorded, and this is Linux {}",
            release.trim()
        ));
    };
    let mut verdicts = edits::read(include_str!("../scripts/kernel.txt")).expect("a good file");
    for (title, verdict) in edits::read(differences).expect("a good file") {
        match verdicts.iter_mut().find(|(other, _)| *other == title) {
            Some((_, recorded)) => *recorded = verdict,
            None => verdicts.push((title, verdict)),
        }
    }
    let scripts: Vec<_> = FILES.iter().flat_map(|(_, text)| parse::scripts(text)).collect();
    let by_title: HashMap<&str, &parse::Script> = scripts.iter().map(|script| (script.title, script)).collect();
    let mut failures = String::new();
    let mut work = Vec::new();
    let mut skipped = 0;
    for (title, verdict) in &verdicts {
        match (by_title.get(title), verdict) {
            (None, _) => writeln!(failures, "{title}: there is no such script").unwrap(),
            (Some(_), Verdict::Skip(_)) => skipped += 1,
            (Some(script), Verdict::Play(edits)) => match edits::apply(script, edits) {
                Ok(lines) => work.push((*title, lines)),
                Err(why) => writeln!(failures, "{title}: {why}").unwrap(),
            },
        }
    }
    for script in &scripts {
        if !verdicts.iter().any(|(title, _)| *title == script.title) {
            writeln!(failures, "{}: not listed; play it, or say in kernel.txt why it cannot be", script.title).unwrap();
        }
    }
    let played = work.len();
    let unchanged = verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Play(Vec::new())).count();
    let (work, failures) = (Mutex::new(work), Mutex::new(failures));
    let retries = AtomicUsize::new(0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..(cpus * AT_A_TIME.0).min(AT_A_TIME.1) {
            scope.spawn(|| {
                while let Some((title, lines)) = { work.lock().unwrap().pop() } {
                    let mut outcome = Ok(());
                    for attempt in 0..ATTEMPTS {
                        if let (Err(why), 1..) = (&outcome, attempt) {
                            retries.fetch_add(1, Ordering::Relaxed);
                            uwarp_notes::retried(&format!("packet script '{title}': {why}"));
                        }
                        let namespace = Namespace::new("script").expect("a network namespace");
                        outcome = namespace.inside(|| player::play(&lines)).expect("a thread inside");
                        if outcome.is_ok() {
                            break;
                        }
                    }
                    if let Err(why) = outcome {
                        writeln!(failures.lock().unwrap(), "{title}\n    {why}").unwrap();
                    }
                }
            });
        }
    });
    let retries = retries.into_inner();
    println!(
        "{} scripts: {played} played with the kernel, {unchanged} of them unchanged, {skipped} cannot be; {retries} retries",
        scripts.len()
    );
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "\n{failures}");
    assert!(retries <= RETRIES, "{retries} retries");
    assert!(unchanged >= 40, "{unchanged} scripts are the same for the kernel and for us");
}

/// This very program plays the scripts in the siw guest, whose kernel is a long-term one.
#[test]
fn the_guests_kernel_plays_our_scripts() {
    if !uwarp_interop_tests::is_long() {
        return uwarp_notes::skipped(
            "packet scripts with the guest's kernel take minutes, so they are played with --long",
        );
    }
    netns::test_inside("the_guests_kernel_plays_our_scripts", || {
        netns::taps([(End::silent("stack0"), Queues::Several), (End::silent("guest0"), Queues::One)]).expect("taps");
        let folder = tempfile::tempdir().expect("a folder");
        let host = folder.path().join("host");
        std::fs::create_dir(&host).expect("a folder");
        let program = std::env::current_exe().expect("this program's path");
        let output =
            Command::new("strip").arg(&program).arg("-o").arg(host.join("scripts")).output().expect("binutils");
        assert!(output.status.success(), "strip: {}", String::from_utf8_lossy(&output.stderr));
        // With its own C library, which may be newer than the guest's.
        let output = Command::new("ldd").arg(&program).output().expect("ldd");
        for word in String::from_utf8_lossy(&output.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
            let name = word.rsplit('/').next().expect("a name");
            std::fs::copy(word, host.join(name)).expect("a library");
        }
        let mut guest = Guest::boot_with_folder(Attachment::Tap("guest0"), &host);
        let play = "/host/ld-linux-x86-64.so.2 --library-path /host /host/scripts the_kernel_plays_our_scripts --exact --nocapture";
        guest.run(&format!("({play}; echo $? >/tmp/status) >/tmp/played 2>&1 &")).success();
        let deadline = Instant::now() + GUESTS_TIME;
        let status = loop {
            let outcome = guest.run("sleep 5; cat /tmp/status 2>/dev/null || true").success();
            if !outcome.is_empty() {
                break outcome;
            }
            assert!(Instant::now() < deadline, "still playing after {GUESTS_TIME:?}");
        };
        let played = guest.run("cat /tmp/played").success();
        println!("{played}");
        assert_eq!(status.trim(), "0", "{played}");
        assert!(played.contains("played with the kernel"), "it did not play: {played}");
    });
}

#[test]
fn no_file_of_scripts_is_left_out() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../stack/tcp/tests/scripts");
    let entries = std::fs::read_dir(folder).expect("the scripts' folder");
    let mut found: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().expect("a name in UTF-8")).collect();
    let mut named: Vec<String> = FILES.iter().map(|(name, _)| format!("{name}.txt")).collect();
    found.sort();
    named.sort();
    assert_eq!(found, named);
}
