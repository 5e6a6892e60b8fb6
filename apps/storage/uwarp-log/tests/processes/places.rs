//! Places of targets; targets and writers as processes.

use serde_json::Value;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use uwarp_vdev_tests::disk::{Disk, DiskProcess};

/// What writers and targets share.
pub const SECRET: &str = "what writer and targets share";
/// How long an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process that ends with the test.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command of the program, without a secret.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp-log"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn succeeds(output: &Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout.clone()
}

/// A target. Dropping it kills it, and then the disk of its file.
pub struct Target {
    _process: Process,
    _disk: Option<DiskProcess>,
}

/// Three targets' places in a directory.
pub struct Places {
    folder: tempfile::TempDir,
    /// The test whose processes serve the targets' files on disks that lose unsynced writes.
    disks: Option<&'static str>,
    /// How often a disk was mounted.
    mounts: Cell<usize>,
}

impl Places {
    pub fn new() -> Self {
        let places = Self { folder: tempfile::tempdir().unwrap(), disks: None, mounts: Cell::new(0) };
        places.secret_file("secret", SECRET);
        places
    }

    /// A file with a secret, which only its owner may read.
    pub fn secret_file(&self, name: &str, secret: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, secret).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// A command of the program, with the secret of these targets.
    pub fn program(&self, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("UWARP_LOG_SECRET_FILE", self.path("secret"));
        command
    }

    /// With files on disks that lose unsynced writes; processes of the test `name` serve them.
    pub fn on_disks(name: &'static str) -> Self {
        let places = Self { disks: Some(name), ..Self::new() };
        for number in 0..3 {
            // A disk has one file of a fixed length.
            let mut command = places.target_command(&places.file(number), number);
            let mut target = Process(command.stdout(Stdio::piped()).spawn().unwrap());
            let said = BufReader::new(target.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
            assert!(said.starts_with("serving on"), "{said}");
        }
        places
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, number: usize) -> PathBuf {
        self.path(format!("{number}.log"))
    }

    pub fn socket(&self, number: usize) -> PathBuf {
        self.path(format!("{number}.sock"))
    }

    fn target_command(&self, file: &Path, number: usize) -> Command {
        let mut command = self.program(&["serve", "--size", "4M"]);
        command.arg(file).arg("--socket").arg(self.socket(number)).stdout(Stdio::null());
        command
    }

    pub fn target(&self, number: usize) -> Target {
        let Some(name) = self.disks else {
            return Target {
                _process: Process(self.target_command(&self.file(number), number).spawn().unwrap()),
                _disk: None,
            };
        };
        self.target_on(name, number, false)
    }

    /// A target whose disk answers a sync without executing it.
    pub fn deceived_target(&self, number: usize) -> Target {
        self.target_on(self.disks.expect("disks"), number, true)
    }

    fn target_on(&self, name: &str, number: usize, deceitful: bool) -> Target {
        self.mounts.set(self.mounts.get() + 1);
        let mountpoint = self.path(format!("mount-{}", self.mounts.get()));
        let disk = Disk { platter: self.file(number), mountpoint, deceitful };
        let file = disk.file();
        let disk = DiskProcess::start(name, &disk, &disk);
        Target { _process: Process(self.target_command(&file, number).spawn().unwrap()), _disk: Some(disk) }
    }

    /// The first target, its command input and its replies. It is already serving.
    pub fn controlled_target(&self) -> (Process, ChildStdin, Lines<BufReader<ChildStdout>>) {
        let mut command = self.program(&["serve", "--control", "--size", "2M"]);
        command.arg(self.file(0)).arg("--socket").arg(self.socket(0)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut target = Process(command.spawn().unwrap());
        let control = target.0.stdin.take().unwrap();
        let mut said = BufReader::new(target.0.stdout.take().unwrap()).lines();
        assert!(said.next().unwrap().unwrap().starts_with("serving on"));
        (target, control, said)
    }

    pub fn append(&self, count: usize, more: &[&str]) -> Command {
        let mut command = self.program(&["append", "--patience", "60s"]);
        for number in 0..count {
            command.arg("--target").arg(self.socket(number));
        }
        command.args(more);
        command
    }

    /// Appends to three targets, and returns the output.
    pub fn append_lines(&self, more: &[&str], lines: &str) -> Output {
        let mut command = self.append(3, more);
        let mut writer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A writer that ends before it has read them reports why.
        let _ = writer.stdin.take().unwrap().write_all(lines.as_bytes());
        writer.wait_with_output().unwrap()
    }

    /// The records in a file, by number.
    pub fn read(&self, number: usize) -> BTreeMap<u64, String> {
        let output = program(&["read", "--json", "-"]).arg(self.file(number)).output().unwrap();
        let contents: Value = serde_json::from_slice(&succeeds(&output)).unwrap();
        assert_eq!(contents["whole"], true);
        let octets = |text: &str| {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect::<Vec<u8>>()
        };
        let record = |record: &Value| {
            (record[0].as_u64().unwrap(), String::from_utf8(octets(record[1].as_str().unwrap())).unwrap())
        };
        contents["records"].as_array().unwrap().iter().map(record).collect()
    }
}

/// A writer that appends numbered lines and prints what is acknowledged.
pub struct Writer {
    process: Process,
    lines: ChildStdin,
    /// Unacknowledged lines: it acknowledges them in their order.
    given: VecDeque<u64>,
    acknowledged: Receiver<u64>,
    complaints: Receiver<String>,
}

impl Writer {
    pub fn start(places: &Places) -> Self {
        let mut command = places.append(3, &["--acknowledge"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let lines = process.0.stdin.take().unwrap();
        let numbers = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let (sender, acknowledged) = channel();
        std::thread::spawn(move || {
            numbers.map(|line| line.unwrap().parse().unwrap()).try_for_each(|it| sender.send(it))
        });
        let errors = BufReader::new(process.0.stderr.take().unwrap()).lines();
        let (sender, complaints) = channel();
        std::thread::spawn(move || {
            errors.map_while(Result::ok).inspect(|line| eprintln!("writer: {line}")).try_for_each(|it| sender.send(it))
        });
        Self { process, lines, given: VecDeque::new(), acknowledged, complaints }
    }

    pub fn give(&mut self, lines: Range<u64>) {
        for line in lines {
            writeln!(self.lines, "line {line}").unwrap();
            self.given.push_back(line);
        }
        self.lines.flush().unwrap();
    }

    /// Records under which number the next line is acknowledged.
    fn note(&mut self, number: u64, found: &mut BTreeMap<u64, String>) {
        let line = self.given.pop_front().expect("a line for each acknowledgment");
        assert_eq!(found.insert(number, format!("line {line}")), None, "number {number} twice");
    }

    /// Waits until at most `left` lines are unacknowledged.
    pub fn wait(&mut self, left: usize, found: &mut BTreeMap<u64, String>) {
        while self.given.len() > left {
            let number = self.acknowledged.recv_timeout(PATIENCE).expect("an acknowledgment");
            self.note(number, found);
        }
    }

    /// Kills it, and records what it had printed by then. It has no reason to complain: targets that die return with
    /// everything that they must have.
    pub fn kill(mut self, found: &mut BTreeMap<u64, String>) {
        self.process.0.kill().unwrap();
        while let Ok(number) = self.acknowledged.recv() {
            self.note(number, found);
        }
        let complaints: Vec<_> = self.complaints.iter().collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }

    /// Appends lines from `begin` on, and records which are acknowledged under which number.
    pub fn append(&mut self, begin: u64, count: u64, found: &mut BTreeMap<u64, String>) {
        self.give(begin..begin + count);
        self.wait(0, found);
    }
}
