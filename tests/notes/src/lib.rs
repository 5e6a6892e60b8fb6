//! Notes of tests that pass: parts that were skipped, and attempts that were repeated.
//!
//! A runner hides the output of passing tests, so each note also goes to the file named by the variable `UWARP_NOTES`.
//! `scripts/test` prints that file at its end, and fails if there are too many retries.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Reports that this test skips something, and why.
pub fn skipped(why: &str) {
    note("SKIPPED", why);
}

/// Whether this process is not root's. If so, reports that this test leaves out what needs root.
pub fn lacks_root(what: &str) -> bool {
    let lacks = !rustix::process::geteuid().is_root();
    if lacks {
        skipped(&format!("{what}: this needs root"));
    }
    lacks
}

/// Whether another user than root cannot reach `path`, because a folder above it, such as /root, is closed. If so,
/// reports that this test leaves out what other users do.
///
/// # Panics
/// The path does not exist.
pub fn is_closed_to_others(path: &Path, what: &str) -> bool {
    let is_closed = |folder: &&Path| {
        let metadata = std::fs::metadata(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        metadata.permissions().mode() & 0o001 == 0
    };
    let closed = path.ancestors().skip(1).find(is_closed);
    if let Some(folder) = closed {
        skipped(&format!("{what}: only root may enter {}; a checkout elsewhere does without this", folder.display()));
    }
    closed.is_some()
}

/// Reports a retry of something that did not work at first.
pub fn retried(what: &str) {
    note("RETRIED", what);
}

fn note(kind: &str, text: &str) {
    let thread = std::thread::current();
    let line = format!("{kind} {}: {}\n", thread.name().unwrap_or("a thread"), text.replace('\n', " "));
    eprint!("{line}");
    let Some(path) = std::env::var_os("UWARP_NOTES").filter(|value| !value.is_empty()) else { return };
    // One write, so that notes of concurrent tests do not mix.
    let written = File::options().append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("the note cannot be written to {}: {error}", path.display());
    }
}
