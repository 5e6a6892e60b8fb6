//! The project's own tools as processes of a test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The path of a tool. It is built if it does not exist or is older than its sources, because cargo builds a package's
/// own programs for its tests, but not those of others.
pub fn tool(name: &str) -> PathBuf {
    // Test executables are in TARGET/PROFILE/deps, the tools one folder up.
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.parent().and_then(Path::parent).expect("TARGET/PROFILE");
    let path = folder.join(name);
    // If the whole workspace was just built, as in scripts/test, the tools are up to date. Building them alone, with
    // fewer features of their crates, would rebuild all their dependencies.
    if std::env::var_os("UWARP_BUILT").is_none_or(|value| value.is_empty()) && !is_fresh(&path) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let release = folder.ends_with("release").then_some("--release");
        let status = Command::new(cargo).args(["build", "--quiet", "-p", name]).args(release).status();
        let status = status.expect("cargo runs");
        assert!(status.success(), "{name} builds");
    }
    path
}

/// Whether a program exists, and no source that cargo lists beside it (`PROGRAM: SOURCE ...`) has changed since.
fn is_fresh(program: &Path) -> bool {
    let changed = |path: &Path| std::fs::metadata(path).and_then(|there| there.modified()).ok();
    let (Some(built), Ok(list)) = (changed(program), std::fs::read_to_string(program.with_extension("d"))) else {
        return false;
    };
    let (_, sources) = list.trim_end().split_once(": ").expect("a rule of make");
    // A space in a name is written as `\ `.
    let sources = sources.replace("\\ ", "\0");
    sources
        .split(' ')
        .all(|source| changed(Path::new(&source.replace('\0', " "))).is_some_and(|source| source <= built))
}

/// A process that ends with the test.
pub struct Guarded(Option<Child>);

impl Guarded {
    /// Starts it; its standard error is the test's.
    pub fn start(command: &mut Command) -> Self {
        Self(Some(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the tool starts")))
    }

    /// Terminates it (SIGTERM), and waits until it has finished what it was doing.
    pub fn end(self) {
        let child = self.0.as_ref().expect("running");
        let process = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("a child can be asked");
        self.finish();
    }

    /// Waits for its own end.
    pub fn finish(mut self) {
        let status = self.0.take().expect("running").wait().expect("waiting");
        assert!(status.success(), "the other side ended with {status}");
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until a file exists.
pub fn wait_for(path: &Path) {
    let end = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        assert!(Instant::now() < end, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a tool to its end, which must be a success.
pub fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("the tool starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
