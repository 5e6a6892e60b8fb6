//! How `uwarp-run` starts a program, and what it says.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::{status, wait_for};

const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Compiles a C program, or a library.
fn compile(source: &str, output: &Path, flags: &[&str]) {
    let file = output.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let done = Command::new("cc").arg(&file).arg("-o").arg(output).args(flags).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A program that prints which library it got, with a library in its DT_RPATH (with these flags of the linker) that is
/// not uwarp's.
fn program(folder: &Path, flags: &[&str]) -> PathBuf {
    let theirs = folder.join("theirs");
    let _ = std::fs::create_dir(&theirs);
    let library = theirs.join(LIBRARIES[0]);
    let soname = "-Wl,-soname,libibverbs.so.1";
    compile("const char *whose(void) { return \"theirs\"; }", &library, &["-shared", "-fPIC", soname]);
    let source = "#include <stdio.h>\nconst char *whose(void);\nint main(void) { puts(whose()); return 0; }";
    let (program, library) = (folder.join("program"), library.to_str().unwrap());
    let path = format!("-Wl,-rpath,{}", theirs.display());
    compile(source, &program, &[&[library, &path], flags].concat());
    program
}

/// A directory with libraries in uwarp's place.
fn libraries(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let soname = "-Wl,-soname,libibverbs.so.1";
    compile(
        "const char *whose(void) { return \"uwarp's\"; }",
        &folder.join(LIBRARIES[0]),
        &["-shared", "-fPIC", soname],
    );
    std::os::unix::fs::symlink(LIBRARIES[0], folder.join(LIBRARIES[1])).unwrap();
}

fn run(libraries: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-run"));
    // With a device of its own, it needs no switch.
    command.env("UWARP_CONFIG", "/a/file").env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    command.arg("--library-dir").arg(libraries).args(words).output().unwrap()
}

fn said(octets: &[u8]) -> String {
    String::from_utf8(octets.to_vec()).unwrap()
}

#[test]
fn the_shape_of_the_device_is_that_of_the_option_or_of_the_environment() {
    let folder = TempDir::new().unwrap();
    libraries(folder.path());
    let shape = |of_environment: &str, options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-run"));
        command.env("UWARP_CONFIG", "/a/file").env("UWARP_DEVICE", of_environment).env_remove("LD_PRELOAD");
        command.arg("--library-dir").arg(folder.path()).args(options).args(["sh", "-c", "echo $UWARP_DEVICE"]);
        let output = command.output().unwrap();
        (output.status.success(), said(&output.stdout))
    };
    for (of_environment, options, expected) in [
        ("", &[][..], "\n"),
        ("roce", &[], "roce\n"),
        ("iwarp", &["--roce"], "roce\n"),
        ("roce", &["--iwarp"], "iwarp\n"),
    ] {
        assert_eq!(shape(of_environment, options), (true, expected.to_owned()), "{options:?}");
    }
    assert!(!shape("", &["--roce", "--iwarp"]).0, "a process has one shape");
}

#[test]
fn programs_that_start_at_once_get_one_switch() {
    let folder = TempDir::new().unwrap();
    let ours = folder.path().join("ours");
    libraries(&ours);
    for round in 0..5 {
        let socket = folder.path().join(format!("{round}/s"));
        let start = |_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-run"));
            command.env_remove("UWARP_CONFIG").env_remove("LD_PRELOAD").env("UWARP_SWITCH", &socket);
            command.arg("--library-dir").arg(&ours).args(["sh", "-c", "echo $UWARP_SWITCH"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let programs: Vec<_> = (0..8).map(start).collect();
        let outputs: Vec<_> = programs.into_iter().map(|program| program.wait_with_output().unwrap()).collect();
        let pid = rustix::process::Pid::from_raw(status(&socket).pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        for output in outputs {
            assert_eq!(said(&output.stdout), format!("{}\n", socket.display()), "{output:?}");
        }
        wait_for("the end of the switch", || !socket.exists());
    }
}

#[test]
fn a_program_with_a_path_of_its_own_gets_uwarps_library() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    libraries(&ours);
    // DT_RPATH comes before the variable; DT_RUNPATH behind it.
    for flags in ["-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"] {
        let program = program(folder.path(), &[flags]);
        let script = folder.path().join("script");
        std::fs::write(&script, format!("#!/bin/sh\nexec {}\n", program.display())).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        for words in [&[program.to_str().unwrap()][..], &[script.to_str().unwrap()]] {
            let output = run(&ours, words);
            assert_eq!(said(&output.stdout), "uwarp's\n", "{flags} {words:?} {output:?}");
            assert!(output.stderr.is_empty(), "{output:?}");
        }
    }
    // What the user preloads stays in front.
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-run"));
    command.env("UWARP_CONFIG", "/a/file").env("LD_PRELOAD", "libc.so.6").arg("--library-dir").arg(&ours);
    let preload = said(&command.args(["sh", "-c", "echo $LD_PRELOAD"]).output().unwrap().stdout);
    let own = LIBRARIES.map(|library| ours.join(library).display().to_string());
    assert_eq!(preload, format!("libc.so.6:{}:{}\n", own[0], own[1]));
}

#[test]
fn a_directory_that_the_loader_cannot_name_is_refused_where_it_matters() {
    let folder = tempfile::tempdir().unwrap();
    let spaced = folder.path().join("of mine");
    libraries(&spaced);
    let with = program(folder.path(), &["-Wl,--disable-new-dtags"]);
    let output = run(&spaced, &[with.to_str().unwrap()]);
    let error = said(&output.stderr);
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("DT_RPATH") && error.contains("a directory with a space"), "{error}");
    let without = program(folder.path(), &["-Wl,--enable-new-dtags"]);
    assert_eq!(said(&run(&spaced, &[without.to_str().unwrap()]).stdout), "uwarp's\n");
    let colon = folder.path().join("of:mine");
    libraries(&colon);
    let output = run(&colon, &["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output.stderr).contains("colons and semicolons"), "{output:?}");
}

#[test]
fn a_program_that_address_sanitizer_watches_starts() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    libraries(&ours);
    let sanitized = program(folder.path(), &["-fsanitize=address", "-Wl,--enable-new-dtags"]);
    let output = run(&ours, &[sanitized.to_str().unwrap()]);
    assert_eq!(said(&output.stdout), "uwarp's\n", "{output:?}");
    let sanitized = program(folder.path(), &["-fsanitize=address", "-Wl,--disable-new-dtags"]);
    let output = run(&ours, &[sanitized.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output.stderr).contains("AddressSanitizer"), "{output:?}");
}

#[test]
fn a_program_that_the_loader_gives_no_library_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    libraries(&ours);
    let refused = |program: &Path, reason: &str| {
        let output = run(&ours, &[program.to_str().unwrap()]);
        let error = said(&output.stderr);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{reason}: {output:?}");
        assert!(error.contains(program.to_str().unwrap()) && error.contains(reason), "{error}");
    };
    let plain = folder.path().join("plain");
    compile("int main(void) { return 7; }", &plain, &[]);
    let fixed = folder.path().join("fixed");
    compile("int main(void) { return 7; }", &fixed, &["-static"]);
    refused(&fixed, "it is linked statically");
    // A program that starts it counts for itself.
    assert_eq!(run(&ours, &["env", fixed.to_str().unwrap()]).status.code(), Some(7));
    let script = folder.path().join("script");
    std::fs::write(&script, format!("#! {} -x\n", fixed.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let output = run(&ours, &[script.to_str().unwrap()]);
    assert!(said(&output.stderr).contains("it is linked statically"), "{output:?}");

    // The class of 32-bit programs, and another loader's name.
    let mut octets = std::fs::read(&plain).unwrap();
    let at = octets.windows(10).position(|octets| octets == b"ld-linux-x").unwrap();
    octets[at..at + 10].copy_from_slice(b"ld-other-x");
    let other = folder.path().join("other");
    std::fs::write(&other, &octets).unwrap();
    octets[4] = 1;
    let narrow = folder.path().join("narrow");
    std::fs::write(&narrow, &octets).unwrap();
    for file in [&other, &narrow] {
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    refused(&other, "ld-other-x86-64.so.2");
    refused(&narrow, "64-bit x86");

    // Bits that change nothing, as this user owns the file.
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o6755)).unwrap();
    assert_eq!(run(&ours, &[plain.to_str().unwrap()]).status.code(), Some(7));
    // What has no program to look at is run as it always was.
    std::fs::write(&narrow, "exit 3").unwrap();
    assert_eq!(run(&ours, &["sh", narrow.to_str().unwrap()]).status.code(), Some(3));
}

#[test]
fn a_program_with_more_rights_than_its_user_is_refused() {
    if !rustix::process::getuid().is_root() {
        return uwarp_notes::skipped("uwarp-run was not tried with privileged programs: that needs root");
    }
    let folder = TempDir::with_prefix_in("uwarp-", "/var/tmp").unwrap();
    let ours = folder.path().join("ours");
    libraries(&ours);
    let own = folder.path().join("uwarp-run");
    std::fs::copy(env!("CARGO_BIN_EXE_uwarp-run"), &own).unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let plain = folder.path().join("plain");
    compile("int main(void) { return 7; }", &plain, &[]);
    let capable = folder.path().join("capable");
    std::fs::copy(&plain, &capable).unwrap();
    // Version 2, permitted and effective: CAP_NET_RAW.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&capable, "security.capability", &capability, flags).is_err() {
        return uwarp_notes::skipped("uwarp-run was not tried with file capabilities: they cannot be set here");
    }
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o4755)).unwrap();
    let run = |flags: &[&str], program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(flags).arg(&own);
        command.env("UWARP_CONFIG", "/a/file").arg("--library-dir").arg(&ours).arg(program).output().unwrap()
    };
    for (program, reason) in [(&capable, "file capabilities"), (&plain, "the set-user-ID bit")] {
        let output = run(&[], program);
        let error = said(&output.stderr);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.contains(reason) && error.contains("Run a copy of it"), "{error}");
        // The kernel grants no rights then, so the loader ignores nothing.
        assert_eq!(run(&["--no-new-privs"], program).status.code(), Some(7), "{program:?}");
    }
}

/// Another user's switch, or the host's, is named: programs of one do not reach those of another.
#[test]
fn switches_other_than_the_users_own_are_named() {
    const NAME: &str = "run::switches_other_than_the_users_own_are_named";
    const INSIDE: &str = "UWARP_TEST_HAS_ITS_OWN_RUN";
    if !rustix::process::getuid().is_root() {
        return uwarp_notes::skipped("uwarp-run was not tried beside a switch of the host: that needs root");
    }
    if std::env::var_os(INSIDE).is_none() {
        // A file system at /run, and a network, that nobody else has.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"]);
        command.arg(std::env::current_exe().unwrap()).args([NAME, "--exact", "--nocapture"]).env(INSIDE, "1");
        let output = command.env_remove("XDG_RUNTIME_DIR").output().unwrap();
        assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
        return;
    }
    let folder = TempDir::with_prefix_in("uwarp-", "/var/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let ours = folder.path().join("ours");
    libraries(&ours);
    for program in [env!("CARGO_BIN_EXE_uwarp-run"), env!("CARGO_BIN_EXE_uwarp-switch")] {
        std::fs::copy(program, folder.path().join(Path::new(program).file_name().unwrap())).unwrap();
    }
    let own = folder.path().join("uwarp-run");
    let run = |user: Option<&str>| {
        let mut command = Command::new(user.map_or(own.as_os_str(), |_| "setpriv".as_ref()));
        if let Some(user) = user {
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]).arg(&own);
        }
        command.env_remove("UWARP_SWITCH").env_remove("UWARP_CONFIG").env("HOME", folder.path());
        let output = command.arg("--library-dir").arg(&ours).args(["sh", "-c", "echo $UWARP_SWITCH"]).output().unwrap();
        (PathBuf::from(said(&output.stdout).trim_end()), said(&output.stderr))
    };
    let end = |socket: &Path| {
        let pid = rustix::process::Pid::from_raw(status(socket).pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_for("the end of a switch", || !socket.exists());
    };
    let of_host = PathBuf::from("/run/uwarp/switch.sock");
    let of_user = folder.path().join(".local/state/uwarp/switch.sock");
    // Root's own, and there is no other.
    assert_eq!(run(None), (of_host.clone(), String::new()));
    // Nobody else may use it.
    let (used, told) = run(Some("65534"));
    assert_eq!((used, told.lines().count()), (of_user.clone(), 1), "{told}");
    for part in [of_user.to_str().unwrap(), "do not reach those at /run/uwarp/switch.sock", "--allow-uid 65534"] {
        assert!(told.contains(part), "{told}");
    }
    end(&of_user);
    end(&of_host);
    // One that serves this user is used, and named.
    let serving = Command::new(folder.path().join("uwarp-switch")).args(["serve", "--allow-uid", "65534"]).spawn();
    wait_for("the switch", || uwarp::switch::is_served(&of_host));
    std::fs::set_permissions("/run/uwarp", PermissionsExt::from_mode(0o755)).unwrap();
    let told = format!("uwarp-run: uses the switch at {}\n", of_host.display());
    assert_eq!(run(Some("65534")), (of_host.clone(), told));
    end(&of_host);
    serving.unwrap().wait().unwrap();
}
