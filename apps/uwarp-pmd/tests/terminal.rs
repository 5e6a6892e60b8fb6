//! A session in a terminal: completion, history, Ctrl-C and Ctrl-D.

use nix::pty::openpty;
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Long enough for a busy machine; ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);
const PROMPT: &str = "uwarp-pmd> ";
const UP: &str = "\x1b[A";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A console in a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// Octets of the screen that were looked at.
    seen: usize,
}

impl Terminal {
    fn open(home: &Path) -> Terminal {
        let pair = openpty(None, None).unwrap();
        let end = |descriptor: &OwnedFd| descriptor.try_clone().unwrap();
        // It becomes the controlling terminal, so that Ctrl-C is a signal while a command runs.
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_uwarp-pmd"), "ring,name=a", "ring,name=a"]);
        command.env("XDG_STATE_HOME", home).env("TERM", "xterm").env("COLUMNS", "200");
        command.stdin(end(&pair.slave)).stdout(end(&pair.slave)).stderr(pair.slave);
        let child = command.spawn().unwrap();
        // Its copies of the other end would keep the terminal open.
        drop(command);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut output, shown) = (File::from(end(&pair.master)), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut octets = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut octets) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&octets[..count]));
            }
        });
        let mut terminal = Terminal { child, keyboard: pair.master.into(), screen, seen: 0 };
        terminal.expect(PROMPT);
        terminal
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a text comes behind those that came before.
    fn expect(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            let screen = self.screen.lock().unwrap().clone();
            if let Some(place) = screen[self.seen..].find(text) {
                self.seen += place + text.len();
                return;
            }
            assert!(start.elapsed() < PATIENCE, "no {text:?} in {:?}", &screen[self.seen..]);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the process ends, and returns its exit status.
    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tab_completes_words_and_the_arrow_up_brings_lines_back() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(home.path());
    terminal.press("sh\t");
    terminal.expect("show ");
    terminal.press("po\tst\tal\t");
    terminal.expect("show port stats all ");
    terminal.press("\r");
    terminal.expect("RX-packets");
    terminal.expect(PROMPT);
    terminal.press(UP);
    terminal.expect("show port stats all");
    terminal.press("\r");
    terminal.expect("RX-packets");
    terminal.expect(PROMPT);
    // Two choices are listed.
    terminal.press("set tx\t\t");
    terminal.expect("txcount");
    terminal.expect("txpkts");
    terminal.press(CTRL_C);
    terminal.expect("nothing runs");
    terminal.press("showw\r");
    terminal.expect("did you mean 'show'");
    terminal.expect(PROMPT);
    terminal.press("quit\r");
    assert_eq!(terminal.end(), Some(0));

    // The next session knows the lines of this one.
    let mut terminal = Terminal::open(home.path());
    terminal.press(UP);
    terminal.expect("quit");
    terminal.press(UP);
    terminal.expect("showw");
    terminal.press(CTRL_C);
    terminal.expect(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn ctrl_c_ends_what_runs_and_not_the_console() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(home.path());
    terminal.press("start tx_first\r");
    terminal.expect("running");
    terminal.expect(PROMPT);
    for _ in 0..2 {
        terminal.press("show stats every 50ms\r");
        terminal.expect("Rx-pps");
        terminal.expect("Rx-pps");
        terminal.press(CTRL_C);
        terminal.expect("interrupted");
        terminal.expect(PROMPT);
    }
    // The forwarding is what runs still.
    terminal.press(CTRL_C);
    terminal.expect("TX-dropped");
    terminal.expect(PROMPT);
    terminal.press(CTRL_C);
    terminal.expect("nothing runs");
    terminal.expect(PROMPT);
    terminal.press(CTRL_D);
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_signal_at_the_prompt_ends_the_console_and_leaves_the_terminal_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(home.path());
    let usual = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
    let modes = |terminal: &Terminal| tcgetattr(&terminal.keyboard).unwrap().local_modes & usual;
    assert!(modes(&terminal).is_empty(), "the editor has the terminal");
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
    assert_eq!(terminal.end(), Some(130));
    assert_eq!(modes(&terminal), usual);
}
