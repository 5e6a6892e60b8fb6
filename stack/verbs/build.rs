//! Finds out what version this is: that of the package, and in release builds the commit.

use std::env;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The commit that is built, if it is known. It is looked up for release builds alone, because each commit would build
/// the tools and their tests again.
fn commit() -> Option<String> {
    println!("cargo::rerun-if-env-changed=UWARP_COMMIT");
    if let Some(commit) = env::var("UWARP_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        return Some(commit);
    }
    // In a copy of this crate, git would name the commit of another repository.
    if env::var("PROFILE").as_deref() != Ok("release") || git(&["rev-parse", "--show-prefix"])? != "stack/verbs/" {
        return None;
    }
    // Each commit and each checkout writes a line to it.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let package = env::var("CARGO_PKG_VERSION").expect("cargo sets the version");
    let version = commit().map_or_else(|| package.clone(), |commit| format!("{package} ({commit})"));
    println!("cargo::rustc-env=UWARP_VERSION={version}");
}
