//! NICs that qemu emulates, each driven by DPDK in a guest, on one bridge with a tap of the stack at this end.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uwarp_netns::{self as netns, End, Queues};

use crate::siw::{Guest, Job};
use crate::tools::tool;

/// How long a program of the guest may take to do what the test waits for: emulated, beside other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// The tools that go into the guest.
const TOOLS: [&str; 3] = ["uwarp-perf", "uwarp-info", "uwarp-stat"];

/// A guest with NICs, and this machine's end. It must be in a network namespace of the test.
pub struct Bench {
    guest: Guest,
    monitor: BufReader<UnixStream>,
    folder: tempfile::TempDir,
}

/// A server that runs in the guest.
#[derive(Debug)]
#[must_use = "it has to be ended"]
pub struct Server(Job);

impl Bench {
    /// Boots a guest with these NICs. The first is at PCI address 0000:00:08.0, the next one at 09.0. For each there is
    /// config/nic.toml of this project, for one engine and for two: `/nic/0-1.toml` is the first one's for one engine.
    ///
    /// # Panics
    /// It does not start, or this network namespace is not the test's.
    pub fn new(models: &[&str]) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let taps: Vec<String> = (0..models.len()).map(|number| format!("guest{number}")).collect();
        let ends = taps.iter().map(|name| (End::silent(name), Queues::One));
        netns::taps(ends.chain([(End::silent("stack0"), Queues::Several)])).expect("taps on a bridge");
        let text =
            "address = \"10.77.0.1/24\"\n[device]\nkind = \"tap\"\nname = \"stack0\"\n[monitor]\nenabled = false\n";
        std::fs::write(folder.path().join("uwarp.toml"), text).expect("a file");
        let inside = folder.path().join("nic");
        collect(&inside);
        for number in 0..models.len() {
            for engines in [1, 2] {
                std::fs::write(inside.join(format!("{number}-{engines}.toml")), configuration(number, engines))
                    .expect("a file");
            }
        }
        let nics: Vec<String> = models.iter().zip(&taps).map(|(model, tap)| format!("{model}={tap}")).collect();
        let mut options = vec!["--processors", "2", "--memory", "1280", "--hugepages", "512"];
        for nic in &nics {
            options.extend(["--nic", nic]);
        }
        let socket = folder.path().join("monitor");
        options.extend(["--monitor", socket.to_str().expect("a path in UTF-8")]);
        let guest = Guest::boot_with_nics(&inside, &options);
        let monitor = BufReader::new(UnixStream::connect(&socket).expect("qemu's monitor"));
        let mut bench = Bench { guest, monitor, folder };
        bench.tell(&json!({"execute": "qmp_capabilities"}));
        bench
    }

    /// Runs a command line in the guest, in the folder of the tools. Its output, if it was successful.
    pub fn run(&mut self, line: &str) -> String {
        self.guest.run(&format!("cd /nic && {line}")).success()
    }

    /// What a command says that has to fail.
    pub fn refusal(&mut self, line: &str) -> String {
        let outcome = self.guest.run(&format!("cd /nic && {line}"));
        assert_ne!(outcome.status, 0, "{line} succeeded: {}", outcome.output);
        outcome.output
    }

    /// Starts a server of uwarp-perf in the guest, and waits until it serves.
    pub fn serve(&mut self, configuration: &str) -> Server {
        let serve = format!("./uwarp-perf serve --config {configuration} >/tmp/serve 2>&1 & echo $! >/tmp/pid; wait");
        // What an earlier server has said.
        self.run("rm -f /tmp/serve");
        let job = self.guest.start(&format!("cd /nic; {serve}"));
        let end = Instant::now() + PATIENCE;
        while self.guest.run("grep -q waiting /tmp/serve").status != 0 {
            assert!(Instant::now() < end, "the server does not serve: {}", self.run("cat /tmp/serve"));
            std::thread::sleep(Duration::from_millis(100));
        }
        Server(job)
    }

    /// One look at the server by uwarp-stat.
    pub fn look(&mut self) -> Value {
        let text = self.run("./uwarp-stat $(cat /tmp/pid) --json --once");
        serde_json::from_str(&text).expect("JSON of uwarp-stat")
    }

    /// Pulls the cable of a NIC out, or plugs it in, and waits until the server has noticed.
    pub fn set_cable(&mut self, number: usize, plugged: bool) {
        let cable = json!({"name": format!("nic{number}"), "up": plugged});
        self.tell(&json!({"execute": "set_link", "arguments": cable}));
        let end = Instant::now() + PATIENCE;
        while self.look()["port"]["link-up"] != plugged {
            assert!(Instant::now() < end, "the driver does not notice the cable");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Has qemu's monitor carry out a command.
    fn tell(&mut self, command: &Value) {
        writeln!(self.monitor.get_mut(), "{command}").expect("the monitor listens");
        // A greeting and events come in between.
        loop {
            let mut line = String::new();
            self.monitor.read_line(&mut line).expect("the monitor answers");
            let answer: Value = serde_json::from_str(&line).expect("JSON of the monitor");
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if answer.get("return").is_some() {
                return;
            }
        }
    }

    /// Ends it.
    pub fn end(&mut self, server: Server) {
        self.run("kill -TERM $(cat /tmp/pid)");
        let _ = self.guest.finish(server.0);
    }

    /// Runs a test of uwarp-perf from this end; every octet is checked. Its result.
    pub fn measure(&self, test: &str, arguments: &[&str]) -> Value {
        Self::finish(self.start(test, arguments))
    }

    /// The same, to go on meanwhile.
    pub fn start(&self, test: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(tool("uwarp-perf"));
        command.args(["run", test, "--server", "10.77.0.2", "--verify", "--json", "-", "--config"]);
        command.arg(self.folder.path().join("uwarp.toml")).args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("uwarp-perf starts")
    }

    /// Waits for the result.
    pub fn finish(test: Child) -> Value {
        let output = test.wait_with_output().expect("uwarp-perf ends");
        assert!(output.status.success(), "uwarp-perf: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON of uwarp-perf")
    }
}

/// config/nic.toml with the address of an emulated NIC and of the test's network, the guest's CPUs, and as much memory
/// as there is in hugepages.
fn configuration(number: usize, engines: u8) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/nic.toml");
    let text = std::fs::read_to_string(path).expect("config/nic.toml");
    let adapted = |line: &str| match line.split_once(" = ") {
        Some(("more-addresses" | "gateway" | "gateway6", _)) => String::new(),
        Some(("address", value)) if value.contains('/') => "address = \"10.77.0.2/24\"\n".to_owned(),
        Some(("address", _)) => format!("address = \"0000:00:{:02x}.0\"\n", 8 + number),
        Some(("memory-mib", _)) => "memory-mib = 448\n".to_owned(),
        Some(("count", _)) => format!("count = {engines}\n"),
        Some(("cpus", _)) => format!("cpus = {}\n", if engines == 2 { "[0, 1]" } else { "[1]" }),
        _ => format!("{line}\n"),
    };
    text.lines().map(adapted).collect()
}

/// Puts the tools into a folder, with the libraries that they need: those of the guest may be older.
fn collect(inside: &Path) {
    let libraries = inside.join("lib");
    std::fs::create_dir_all(&libraries).expect("a folder");
    for name in TOOLS {
        let stripped = Command::new("strip").arg("-o").arg(libraries.join(name)).arg(tool(name)).status();
        assert!(stripped.expect("strip of binutils").success(), "{name} is stripped");
        // The kernel would start them with the guest's own loader.
        let start =
            format!("#!/bin/sh\nexec /nic/lib/ld-linux-x86-64.so.2 --library-path /nic/lib /nic/lib/{name} \"$@\"\n");
        let script = inside.join(name);
        std::fs::write(&script, start).expect("a script");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(script, executable).expect("an executable script");
    }
    let list = Command::new("ldd").arg(tool("uwarp-perf")).output().expect("ldd of the C library");
    for path in String::from_utf8_lossy(&list.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let name = Path::new(path).file_name().expect("a file's name");
        std::fs::copy(path, libraries.join(name)).expect("a library");
    }
}
