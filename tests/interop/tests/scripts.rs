//! The TCP crate's packet scripts with the kernel's socket as the connection: the kernel does what we expect of
//! ourselves, or `scripts/kernel.txt` argues the difference.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use uwarp_interop_tests::scripts::edits::{self, Verdict};
use uwarp_interop_tests::scripts::{parse, player};
use uwarp_netns::Namespace;

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

/// Scripts mostly wait, so many can be played concurrently, each in a separate namespace.
const AT_A_TIME: usize = 12;
/// A busy machine stretches real time under a script; a real difference of the kernel occurs every time.
const ATTEMPTS: usize = 3;
/// Second and third attempts of all scripts together: more cannot be explained by a busy machine.
const RETRIES: usize = 12;
/// The kernel whose behaviour `scripts/kernel.txt` records.
const KERNEL: &str = "6.18.";

#[test]
fn the_kernel_plays_our_scripts() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a Linux kernel");
    if !release.starts_with(KERNEL) {
        return uwarp_notes::skipped(&format!(
            "kernel.txt records how Linux {KERNEL}x plays the packet scripts; this is Linux {}",
            release.trim()
        ));
    }
    let verdicts = edits::read(include_str!("../scripts/kernel.txt")).expect("a good file");
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
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
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
