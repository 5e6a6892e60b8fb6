//! Two processes over a real device: files in both directions, and refusals.

mod faults;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use uwarp::config::EngineMode;
use uwarp::{ConnectOptions, Context};
use uwarp_app::channel::{self, Channel, Event, Shape};
use uwarp_app::network::SERVER_ADDRESS;
use uwarp_app::{NetworkFlags, Role};
use uwarp_vdev_tests::scripted::Scripted;

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(socket: &Path, device: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-copy"));
    command.args(["--device", device, "--socket"]).arg(socket);
    command.stdin(Stdio::null());
    command
}

fn serve(socket: &Path, device: &str, directory: &Path, more: &[&str]) -> Server {
    let child = command(socket, device)
        .arg("serve")
        .arg(directory)
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Server(child)
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn fails(output: &Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(expected), "{text}");
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn there_and_back(device: &str) {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    let back = folder.path().join("back");
    fs::create_dir(&served).unwrap();
    fs::create_dir(&back).unwrap();
    fs::create_dir(served.join("inner")).unwrap();
    let socket = folder.path().join("s");
    let server = serve(&socket, device, &served, &[]);

    let mut random = fastrand::Rng::with_seed(1);
    // Empty; a part of a slot; a whole slot; more than the window.
    let sizes = [0, 1, 1000, 1 << 20, (9 << 20) + 12_345];
    let mut files = Vec::new();
    for (number, size) in sizes.into_iter().enumerate() {
        let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(size).collect();
        let path = folder.path().join(format!("file-{number}"));
        fs::write(&path, &content).unwrap();
        files.push((path, content));
    }
    let output = command(&socket, device).arg("put").args(files.iter().map(|(path, _)| path)).output().unwrap();
    succeeds(&output);
    let wanted: Vec<String> = (0..sizes.len()).map(|number| format!("file-{number}")).collect();
    let output = command(&socket, device).arg("get").args(&wanted).arg("--output").arg(&back).output().unwrap();
    succeeds(&output);
    for (name, (_, content)) in wanted.iter().zip(&files) {
        assert!(fs::read(served.join(name)).unwrap() == *content, "{name} there");
        assert!(fs::read(back.join(name)).unwrap() == *content, "{name} back");
    }

    let output = command(&socket, device).args(["put", "--name", "inner/renamed"]).arg(&files[2].0).output().unwrap();
    succeeds(&output);
    assert_eq!(fs::read(served.join("inner/renamed")).unwrap(), files[2].1);
    drop(server);
}

#[test]
fn there_and_back_over_virtio() {
    there_and_back("virtio");
}

#[test]
fn there_and_back_over_memif() {
    there_and_back("memif");
}

#[test]
fn there_and_back_over_ipv6() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("file"), "content").unwrap();
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &["--ipv6"]);
    // The server has the address that the client looks for.
    let back = folder.path().join("back");
    let output = command(&socket, "virtio").args(["--ipv6", "get", "file", "--output"]).arg(&back).output().unwrap();
    succeeds(&output);
    assert_eq!(fs::read(&back).unwrap(), b"content");
    let output = command(&socket, "virtio").args(["put", "--ipv6", "--name", "again"]).arg(&back).output().unwrap();
    succeeds(&output);
    assert_eq!(fs::read(served.join("again")).unwrap(), b"content");
}

#[test]
fn nothing_leaves_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(folder.path(), served.join("up")).unwrap();
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &[]);
    let back = folder.path().join("back");
    fs::create_dir(&back).unwrap();
    for (name, reason) in [
        ("../secret", "leaves the directory"),
        ("/etc/passwd", "leaves the directory"),
        ("up/secret", "symbolic link"),
        ("nothing", "does not exist"),
        ("up", "leaves the directory"),
    ] {
        let output = command(&socket, "virtio").args(["get", name, "--output"]).arg(&back).output().unwrap();
        fails(&output, reason);
    }
    assert!(names(&back).is_empty());
    // The client refuses such names before it connects. Through the link, the server is asked.
    let output = command(&socket, "virtio")
        .args(["put", "--name", "up/new"])
        .arg(folder.path().join("secret"))
        .output()
        .unwrap();
    fails(&output, "symbolic link");
    assert!(!folder.path().join("new").exists());
    assert_eq!(names(&served), ["up"]);
}

#[test]
fn a_server_may_store_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(folder.path().join("file"), vec![7; 5 << 20]).unwrap();
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &["--read-only"]);
    let output = command(&socket, "virtio").arg("put").arg(folder.path().join("file")).output().unwrap();
    fails(&output, "--read-only");
    assert!(names(&served).is_empty());
}

/// Settings that detect a dead peer within seconds, and a sparse file so large that its copy never ends by itself.
fn endless(folder: &Path) -> (String, PathBuf) {
    let settings = folder.join("settings.toml");
    // The command line gives the device and the address.
    let text = "address = \"10.77.0.9/24\"\n\
        [device]\nkind = \"ring\"\nname = \"unused\"\n\
        [tcp]\nuser-timeout = \"3s\"\n\
        [tcp.keep-alive]\nidle = \"1s\"\ninterval = \"500ms\"\nprobes = 4\n";
    fs::write(&settings, text).unwrap();
    let file = folder.join("file");
    fs::File::create(&file).unwrap().set_len(1 << 36).unwrap();
    (settings.to_str().unwrap().to_owned(), file)
}

/// Waits until a file is arriving in the directory: one that did not exist `before`, with octets in it.
fn wait_for_the_middle(directory: &Path, before: &[&str], tool: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let has_octets = |name: &String| fs::metadata(directory.join(name)).is_ok_and(|file| file.len() > 0);
    while !names(directory).iter().any(|name| !before.contains(&name.as_str()) && has_octets(name)) {
        assert!(Instant::now() < deadline, "nothing comes: {:?}", names(directory));
        assert_eq!(tool.try_wait().unwrap(), None, "it is not at its end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_dies_leaves_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    let (settings, file) = endless(folder.path());
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &["--config", &settings, "--address", "10.77.0.1/24"]);
    let mut client =
        command(&socket, "virtio").arg("put").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_the_middle(&served, &[], &mut client);
    client.kill().unwrap();
    client.wait().unwrap();
    // The server notices, and discards what it has.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !names(&served).is_empty() {
        assert!(!served.join("file").exists(), "a part of it has the name of the whole");
        assert!(Instant::now() < deadline, "{:?}", names(&served));
        std::thread::sleep(Duration::from_millis(20));
    }
    // And serves on.
    let whole = vec![7; 100_000];
    fs::write(&file, &whole).unwrap();
    let output = command(&socket, "virtio").arg("put").arg(&file).output().unwrap();
    succeeds(&output);
    assert!(fs::read(served.join("file")).unwrap() == whole);
}

#[test]
fn a_server_that_dies_leaves_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    let (served, back) = (folder.path().join("served"), folder.path().join("back"));
    fs::create_dir(&served).unwrap();
    fs::create_dir(&back).unwrap();
    // There is an older one, which must not change.
    fs::write(back.join("file"), "older").unwrap();
    let (settings, file) = endless(folder.path());
    fs::rename(&file, served.join("file")).unwrap();
    let socket = folder.path().join("s");
    let server = serve(&socket, "virtio", &served, &[]);
    let mut get = command(&socket, "virtio");
    get.args(["get", "file", "--config", &settings, "--address", "10.77.0.2/24", "--output"]).arg(&back);
    let mut client = get.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_the_middle(&back, &["file"], &mut client);
    drop(server);
    let output = client.wait_with_output().unwrap();
    fails(&output, "'file' was not copied: the connection is over");
    assert_eq!(names(&back), ["file"]);
    assert_eq!(fs::read(back.join("file")).unwrap(), b"older");
}

#[test]
fn a_client_that_no_allow_names_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(folder.path().join("file"), "content").unwrap();
    let socket = folder.path().join("s");
    // Without the flag the server's own subnet is served, as the other tests show.
    for (flags, is_served) in
        [(&["--allow", "10.77.0.3", "--allow", "10.78.0.0/16"][..], false), (&["--allow", "10.77.0.2"], true)]
    {
        let _server = serve(&socket, "virtio", &served, flags);
        let output = command(&socket, "virtio").arg("put").arg(folder.path().join("file")).output().unwrap();
        if is_served {
            succeeds(&output);
        } else {
            fails(&output, "this server does not serve 10.77.0.2: its --allow has to name that address");
            assert!(names(&served).is_empty());
        }
        fs::remove_file(&socket).unwrap();
    }
}

#[test]
fn an_address_has_its_share_of_connections_and_gets_them_back_when_they_are_idle() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let limits = ["--connections-per-address", "2", "--idle-timeout", "3s"];
    let _server = serve(&socket, "virtio", folder.path(), &limits);
    let flags = NetworkFlags { socket: Some(socket), ..NetworkFlags::default() };
    let context =
        Context::open(uwarp_middlebox::behind(flags.resolve(Role::Client, EngineMode::Threaded).unwrap())).unwrap();
    let domain = context.allocate_domain();
    let shape = Shape { message: 100, messages: 1, work: 1 };
    let connect = || {
        let options = ConnectOptions::default().private_data(b"uwarp-copy/4");
        let (peer, patience) = ((SERVER_ADDRESS, 7175).into(), Duration::from_secs(30));
        channel::connect(
            &context,
            peer,
            &options,
            patience,
            || Channel::new(&context, &domain, shape),
            Channel::queue_pair,
        )
    };
    let mut quiet = [connect().unwrap().0, connect().unwrap().0];
    let Err(refusal) = connect() else { panic!("a third connection") };
    let reason = refusal.to_string();
    assert!(reason.contains("10.77.0.2 has 2 connections, which is the limit (--connections-per-address)"), "{reason}");
    for client in &mut quiet {
        assert_eq!(client.next(Duration::from_secs(30)).unwrap(), Some(Event::Closed));
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while connect().is_err() {
        assert!(Instant::now() < deadline, "connections that have ended still count");
    }
}

#[test]
fn a_client_that_floods_and_never_reads_does_not_keep_a_server_from_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    let socket = folder.path().join("s");
    let mut server = serve(&socket, "virtio", &served, &[]);
    let flags = NetworkFlags { socket: Some(socket), ..NetworkFlags::default() };
    let context =
        Context::open(uwarp_middlebox::behind(flags.resolve(Role::Client, EngineMode::Threaded).unwrap())).unwrap();
    let mut client = Scripted::connect(&context, (SERVER_ADDRESS, 7175).into(), b"uwarp-copy/4");
    // Each is answered by a refusal.
    let request = br#"{"put":{"name":"../x","size":1}}"#;
    client.flood(request, 1500);
    stops(&mut server, || {
        client.flood(request, 10);
    });
}

#[test]
fn a_server_stops_in_the_middle_of_an_endless_file() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    let (_, file) = endless(folder.path());
    let socket = folder.path().join("s");
    let mut server = serve(&socket, "virtio", &served, &[]);
    let mut put = command(&socket, "virtio");
    let mut client = Server(put.arg("put").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_for_the_middle(&served, &[], &mut client.0);
    stops(&mut server, || std::thread::sleep(Duration::from_millis(10)));
    assert!(names(&served).is_empty(), "{:?}", names(&served));
}

/// Stops a server, and calls `meanwhile` until it has ended.
fn stops(server: &mut Server, mut meanwhile: impl FnMut()) {
    rustix::process::kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = server.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "the server goes on");
        meanwhile();
    };
    assert!(status.success(), "{status}");
}

/// A pair that copies a sparse file of this size, and the two directories that it must leave as they were: its
/// temporary directory, and the directory of the file.
fn pair(folder: &Path, size: u64) -> (Command, PathBuf, PathBuf) {
    let (temporary, place) = (folder.join("temporary"), folder.join("place"));
    fs::create_dir(&temporary).unwrap();
    fs::create_dir(&place).unwrap();
    fs::File::create(place.join("file")).unwrap().set_len(size).unwrap();
    let mut pair = Command::new(env!("CARGO_BIN_EXE_uwarp-copy"));
    pair.env("TMPDIR", &temporary).args(["pair", "--device", "memif", "--rounds", "1", "--json", "-"]);
    pair.arg(place.join("file")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (pair, temporary, place)
}

#[test]
fn a_pair_copies_by_rdma_and_by_the_kernels_tcp_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let size = (9 << 20) + 12_345;
    let (mut pair, temporary, place) = pair(folder.path(), size);
    let output = pair.output().unwrap();
    succeeds(&output);
    let ways: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names_of_ways = ["RDMA over memif", "limit: hash and write alone", "kernel TCP over loopback"];
    for (way, name) in names_of_ways.into_iter().enumerate() {
        assert_eq!(ways[way]["name"], name);
        let copy = &ways[way]["copies"][0];
        assert_eq!(copy["octets"], size);
        assert!(copy["seconds"].as_f64() > Some(0.0) && copy["server_cpu"].as_f64() > Some(0.0), "{copy}");
    }
    assert_eq!(names(&place), ["file"]);
    // The directory of monitor sockets stays, as those of all processes do where there is no XDG_RUNTIME_DIR.
    assert!(names(&temporary).iter().all(|name| !name.starts_with("uwarp-copy-")), "{:?}", names(&temporary));
}

#[test]
fn a_pair_that_is_interrupted_in_the_middle_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut pair, temporary, place) = pair(folder.path(), 1 << 30);
    let mut pair = Server(pair.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    let target = loop {
        if let Some(target) = names(&place).into_iter().find(|name| name != "file") {
            break place.join(target);
        }
        assert!(Instant::now() < deadline, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    };
    wait_for_the_middle(&target, &[], &mut pair.0);
    rustix::process::kill_process(Pid::from_child(&pair.0), Signal::INT).unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut pair.0.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(pair.0.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.ends_with("interrupted\n"), "{said}");
    assert_eq!(names(&place), ["file"]);
    // The directory of monitor sockets stays, as those of all processes do where there is no XDG_RUNTIME_DIR.
    assert!(names(&temporary).iter().all(|name| !name.starts_with("uwarp-copy-")), "{:?}", names(&temporary));
}

#[test]
fn bad_command_lines_get_one_sentence() {
    for (arguments, status) in [
        (&[][..], 2),
        (&["put"], 2),
        (&["get"], 2),
        (&["serve"], 2),
        (&["fetch", "x"], 2),
        (&["get", "a", "b", "--output", "/nonexistent/file"], 2),
        (&["get", "a/x", "b/x", "--output", "/tmp"], 2),
        (&["put", "/etc/hostname", "/etc/../etc/hostname"], 2),
        (&["get", "a", "--server", "somewhere"], 2),
        (&["get", "a", "--device", "tap", "--socket", "/tmp/x"], 2),
        (&["pair"], 2),
        (&["pair", "/etc/hostname", "--socket", "/tmp/x"], 2),
        (&["pair", "/etc/hostname", "--device", "tap"], 2),
        (&["pair", "/etc/hostname", "--cpus", "0"], 2),
        (&["pair", "/etc/hostname", "--rounds", "0"], 2),
        (&["pair", "/nonexistent"], 1),
        (&["serve", "/nonexistent"], 1),
        (&["put", "/nonexistent"], 1),
        (&["put", "/nonexistent/\u{1b}[2Jname\u{9b}31m"], 1),
        (&["put", "/etc"], 1),
        (&["put", "/etc/hostname", "--name", "../x"], 2),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_uwarp-copy")).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.starts_with("uwarp-copy: "), "{text}");
        assert!(!text.trim_end().contains(char::is_control), "a terminal obeys it: {text:?}");
    }
}

#[test]
fn a_server_reaches_no_file_outside_its_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (served, socket) = (folder.path().join("served"), folder.path().join("copy.sock"));
    fs::create_dir(&served).unwrap();
    fs::write(served.join("inside"), "inside").unwrap();
    let outside = folder.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    let probe = uwarp_vdev_tests::confined::Probe::new();
    let mut server = command(&socket, "virtio");
    probe.load(server.arg("serve").arg(&served).stdout(Stdio::null()).stderr(Stdio::null()));
    let server = Server(server.spawn().unwrap());
    // It serves.
    let back = folder.path().join("back");
    let output = command(&socket, "virtio").args(["get", "inside", "--output"]).arg(&back).output().unwrap();
    succeeds(&output);
    probe.check(&server.0, &served.join("inside"), &outside);
    succeeds(&command(&socket, "virtio").arg("put").arg(&outside).output().unwrap());
    assert_eq!(names(&served), ["inside", "outside"]);
}
