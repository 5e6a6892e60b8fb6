//! The second process of a test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{PATIENCE, pause};

/// Set in the second process: its task, as JSON.
const TASK: &str = "UWARP_VDEV_TASK";
/// Prefix of a peer's lines that are for the test.
const MARK: &str = "@ ";

/// The task, if this process is a peer. The peer ends with the test that started it, however that ends.
pub fn task<Task: DeserializeOwned>() -> Option<Task> {
    let text = std::env::var(TASK).ok()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("a signal to die by");
    Some(serde_json::from_str(&text).expect("a task"))
}

/// Tells the test something.
pub fn tell(words: &str) {
    println!("\n{MARK}{words}");
}

/// The test's messages, received while this process continues.
pub fn words() -> Receiver<String> {
    let (sender, words) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    words
}

/// A running peer; killed when dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts this test program again, with only the test `name`, as a peer with a task.
    pub fn start(name: &str, task: &impl Serialize) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program's path"));
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(TASK, serde_json::to_string(task).expect("a task"));
        Self::spawn(command)
    }

    /// Starts another program.
    pub fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a second process can be started");
        let output = child.stdout.take().expect("standard output is a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(words) if sender.send(words.to_owned()).is_err() => break,
                    Some(_) => {}
                    None if line.is_empty() => {}
                    None => eprintln!("peer: {line}"),
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines }
    }

    /// The peer's next message.
    pub fn told(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("the peer tells something and does not end before")
    }

    /// The peer's next message, if it has arrived.
    pub fn try_told(&mut self) -> Option<String> {
        let told = self.lines.try_recv().ok();
        if told.is_none() {
            self.must_run();
        }
        told
    }

    /// Waits for a specific message, calling `meanwhile` in a loop.
    pub fn await_word(&mut self, word: &str, mut meanwhile: impl FnMut()) {
        let start = Instant::now();
        loop {
            match self.lines.try_recv() {
                Ok(told) => {
                    assert_eq!(told, word, "the peer tells something else");
                    return;
                }
                Err(_) => {
                    assert!(start.elapsed() < PATIENCE, "the peer never says {word:?}");
                    self.must_run();
                    meanwhile();
                    pause();
                }
            }
        }
    }

    /// Says something to the peer.
    pub fn say(&mut self, word: &str) {
        let stdin = self.stdin.as_mut().expect("the peer listens");
        writeln!(stdin, "{word}").expect("the peer listens");
    }

    /// Fails if the peer has ended by itself.
    pub fn must_run(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait()
            && !status.success()
        {
            panic!("the peer failed: {status}");
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.must_run();
        self.child.kill().expect("the peer is our child");
        // Not reaped before by chance: the kernel tears the process down while the survivor continues.
        drop(self);
    }

    /// Waits until the peer has ended by itself.
    pub fn end(mut self, mut meanwhile: impl FnMut()) -> ExitStatus {
        drop(self.stdin.take());
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the peer is our child") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the peer does not end");
            meanwhile();
            pause();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
