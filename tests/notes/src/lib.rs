//! What a test has to report although it passes: something it left out, or something it tried more than once.
//!
//! A runner hides the output of tests that pass, so each note also goes into the file that the variable `UWARP_NOTES`
//! names. `scripts/test` prints that file at its end, and fails if there are too many retries.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;

/// Reports that this test leaves something out, and why.
pub fn skipped(why: &str) {
    note("SKIPPED", why);
}

/// Reports one more attempt at something that did not work at first.
pub fn retried(what: &str) {
    note("RETRIED", what);
}

fn note(kind: &str, text: &str) {
    let thread = std::thread::current();
    let line = format!("{kind} {}: {}\n", thread.name().unwrap_or("a thread"), text.replace('\n', " "));
    eprint!("{line}");
    let Some(path) = std::env::var_os("UWARP_NOTES") else { return };
    // One write, so that notes of tests that run side by side do not mix.
    let written = File::options().append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("the note cannot be written to {}: {error}", path.display());
    }
}
