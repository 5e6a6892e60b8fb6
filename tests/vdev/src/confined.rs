//! Makes a running tool open files from within: what foreign code in the process could reach.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Preloaded into the tool. At SIGUSR1 it opens a file, and appends two octets to another: the error number or 0, and
/// the kernel's version of Landlock or 0.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *path;
static int answers;

static void probe(int number)
{
    int kept = errno, file = open(path, O_RDONLY | O_CLOEXEC);
    unsigned char answer[2] = { file < 0 ? errno : 0, 0 };
    long version = syscall(SYS_landlock_create_ruleset, 0, 0, 1);
    answer[1] = version < 0 ? 0 : version;
    if (file >= 0)
        close(file);
    if (write(answers, answer, sizeof answer) < 0)
        abort();
    errno = kept;
    (void)number;
}

__attribute__((constructor)) static void install(void)
{
    struct sigaction action = { .sa_handler = probe, .sa_flags = SA_RESTART };
    path = getenv("UWARP_PROBE_PATH");
    answers = open(getenv("UWARP_PROBE_ANSWERS"), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (answers < 0 || sigaction(SIGUSR1, &action, 0) != 0)
        abort();
}
"#;

/// The preloaded library.
pub struct Probe {
    folder: tempfile::TempDir,
}

/// EACCES.
const DENIED: u8 = 13;

impl Probe {
    /// Compiles it.
    pub fn new() -> Probe {
        let folder = tempfile::tempdir().expect("a directory");
        std::fs::write(folder.path().join("probe.c"), SOURCE).expect("a file");
        std::fs::write(folder.path().join("answers"), "").expect("a file");
        let mut compiler = Command::new("cc");
        compiler.current_dir(folder.path()).args(["-shared", "-fPIC", "-Wall", "-Werror", "-o", "probe.so", "probe.c"]);
        assert!(compiler.status().expect("a C compiler").success());
        Probe { folder }
    }

    /// Has a command's process carry the probe.
    pub fn load(&self, command: &mut Command) {
        let path = |name: &str| self.folder.path().join(name);
        command.env("LD_PRELOAD", path("probe.so"));
        command.env("UWARP_PROBE_PATH", path("target")).env("UWARP_PROBE_ANSWERS", path("answers"));
    }

    /// Opens a file from within the process: the error number or 0, and the version of Landlock or 0.
    fn open(&self, process: &Child, path: &Path) -> (u8, u8) {
        // Landlock looks at where a link leads.
        let link = self.folder.path().join("target");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(path, link).expect("a link");
        let answers = || std::fs::read(self.folder.path().join("answers")).expect("answers");
        let before = answers().len();
        let pid = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("the process runs");
        let start = Instant::now();
        loop {
            if let [error, version] = answers()[before..] {
                return (error, version);
            }
            assert!(start.elapsed() < crate::PATIENCE, "the process does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks that a process can open the one file and not the other, and that none of its threads can gain rights.
    pub fn check(&self, process: &Child, inside: &Path, outside: &Path) {
        for thread in std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("the process runs") {
            let Ok(status) = std::fs::read_to_string(thread.expect("a thread").path().join("status")) else { continue };
            assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"), "{status}");
        }
        assert!(std::fs::File::open(outside).is_ok(), "this test may open it");
        let (error, version) = self.open(process, outside);
        if version < 2 {
            return eprintln!(
                "SKIPPED: this kernel's Landlock has version {version}, and 2 is needed to confine files"
            );
        }
        assert_eq!(error, DENIED, "{} is outside", outside.display());
        assert_eq!(self.open(process, inside).0, 0, "{} is inside", inside.display());
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self::new()
    }
}
