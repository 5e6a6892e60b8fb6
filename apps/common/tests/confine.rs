//! What a confined process can still do. The test harness has threads of its own, so this program does without it: it
//! starts itself again, and that process confines itself.

use landlock::{AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use uwarp::Config;
use uwarp_app::{ConfineFlags, Confinement};

const NAME: &str = "a_confined_process_reaches_its_own_files_and_no_others";
const CHILD: &str = "UWARP_CONFINED";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = |word: &str| arguments.iter().any(|argument| argument == word);
    if let Some(folder) = std::env::var_os(CHILD) {
        return confined(Path::new(&folder));
    }
    if given("--list") {
        if !given("--ignored") {
            println!("{NAME}: test");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for directory in ["served/a", "served/b", "seen", "sockets", "made"] {
        fs::create_dir_all(folder.path().join(directory)).unwrap();
    }
    for file in ["served/file", "seen/file", "made/other", "store", "outside", "open"] {
        fs::write(folder.path().join(file), "what is in it").unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let status = child.env(CHILD, folder.path()).env("XDG_RUNTIME_DIR", folder.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

fn confined(folder: &Path) {
    let path = |name: &str| folder.join(name);
    let mut config = Config::without_device("10.77.0.1/24").unwrap();
    let flags = ConfineFlags::default();

    // Another thread would stay free.
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv());
    let error = Confinement::new(&config, &flags).apply().unwrap_err().to_string();
    assert!(error.starts_with("2 threads are already running"), "{error}");
    drop(sender);
    let _ = thread.join().unwrap();
    while fs::read_dir("/proc/self/task").unwrap().count() > 1 {
        std::thread::yield_now();
    }

    assert!(!Confinement::new(&config, &ConfineFlags { unconfined: true }).apply().unwrap());
    assert!(File::open(path("outside")).is_ok(), "it was left free");

    let mut open = File::open(path("open")).unwrap();
    config.monitor.socket = Some(path("sockets/monitor.sock"));
    let confinement = Confinement::new(&config, &flags).writes(&path("served")).writes(&path("store"));
    let is_confined = confinement.reads(&path("seen")).creates(&path("made/file")).apply().unwrap();
    // What came with version 2.
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    assert_eq!(is_confined, ruleset.handle_access(AccessFs::Refer).is_ok());
    if !is_confined {
        return eprintln!("SKIPPED: this kernel has no Landlock of version 2 or later");
    }
    let denied = |result: std::io::Result<()>, what: &str| {
        assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::PermissionDenied), "{what}");
    };
    let opened = |name: &str| File::open(path(name)).map(drop);
    let changed = |name: &str| fs::write(path(name), "something else");

    // A directory that is served, or only read.
    assert_eq!(fs::read(path("served/file")).unwrap(), b"what is in it");
    fs::write(path("served/a/new"), "new").unwrap();
    fs::rename(path("served/a/new"), path("served/b/new")).unwrap();
    fs::hard_link(path("served/b/new"), path("served/a/link")).unwrap();
    fs::remove_file(path("served/b/new")).unwrap();
    fs::create_dir(path("served/c")).unwrap();
    opened("seen/file").unwrap();
    denied(changed("seen/file"), "written");
    denied(changed("seen/new"), "made");
    // A file.
    changed("store").unwrap();
    // A file that is made, and replaced.
    changed("made/file.new").unwrap();
    fs::rename(path("made/file.new"), path("made/file")).unwrap();
    // A socket.
    drop(UnixListener::bind(path("sockets/monitor.sock")).unwrap());
    fs::remove_file(path("sockets/monitor.sock")).unwrap();
    denied(changed("sockets/file"), "made beside the socket");

    // Everything else, by any way.
    denied(opened("outside"), "read");
    denied(changed("outside"), "written");
    denied(changed("new"), "made");
    denied(fs::remove_file(path("outside")), "removed");
    denied(fs::read_dir(folder).map(drop), "listed");
    denied(UnixListener::bind(path("socket")).map(drop), "a socket");
    denied(opened("served/../outside"), "read by way of the served directory");
    std::os::unix::fs::symlink(path("outside"), path("served/link")).unwrap();
    denied(opened("served/link"), "read through a link");
    assert!(fs::rename(path("outside"), path("served/outside")).is_err(), "moved in");
    assert!(fs::hard_link(path("outside"), path("served/outside")).is_err(), "linked in");
    denied(Command::new("/bin/true").status().map(drop), "executed");
    // The same holds for threads that are started now, and open files remain usable.
    std::thread::scope(|scope| scope.spawn(|| denied(opened("outside"), "read by a thread")).join()).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "what is in it");
    denied(opened("open"), "opened again");
}
