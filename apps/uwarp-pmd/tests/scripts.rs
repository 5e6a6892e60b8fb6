//! Command files and their results, over devices that need no privileges.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PMD: &str = env!("CARGO_BIN_EXE_uwarp-pmd");
/// Long enough for a busy machine; ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder whose path is short enough for sockets.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pmd").tempdir().unwrap()
}

/// The two ends of a memif cable, the one that connects first.
fn cable(folder: &Path) -> [String; 2] {
    ["client", "server"].map(|role| format!("memif,role={role},socket={}", folder.join("s").display()))
}

/// Runs a script to its end.
fn run(ports: &[String], script: &str, json: bool) -> Output {
    let folder = folder();
    let file = folder.path().join("commands");
    std::fs::write(&file, script).unwrap();
    let mut command = Command::new(PMD);
    command.args(ports).arg("--commands").arg(&file).args(json.then_some("--json"));
    command.stdin(Stdio::null()).output().unwrap()
}

/// The results of a script that succeeds, in order.
fn results(ports: &[String], script: &str) -> Vec<Value> {
    let output = run(ports, script, true);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The result of the last command that is this one.
fn result<'a>(results: &'a [Value], command: &str) -> &'a Value {
    let found = results.iter().rfind(|result| result["command"] == command);
    &found.unwrap_or_else(|| panic!("no result of {command}"))["result"]
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A console that is asked line by line.
struct Console {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Console {
    fn open(ports: &[String]) -> Console {
        let mut command = Command::new(PMD);
        command.args(ports).arg("--json").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, answers) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let input = child.stdin.take();
        Console { child, input, answers }
    }

    fn ask(&mut self, line: &str) -> Value {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        let answer = self.answers.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{line}: {error}"));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["command"], line);
        assert_eq!(answer["error"], Value::Null, "{line}");
        answer["result"].clone()
    }

    /// Asks until the answer is as wanted.
    fn ask_until(&mut self, line: &str, is_done: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let answer = self.ask(line);
            if is_done(&answer) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "{line}: {answer}");
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_frame_is_counted_at_both_ends_of_a_cable() {
    let folder = folder();
    let script = "
        set fwd rxonly   # what arrives goes no further
        set burst 32
        set txpkts 100
        wait port 0 link
        start tx_first 10
        wait port 0 rx-packets 320
        wait port 1 rx-packets 320
        stop
        show port stats all
        show drops";
    let results = results(&cable(folder.path()), script);
    for port in 0..2 {
        let stats = &result(&results, "show port stats all")[port];
        let counts = ["rx_packets", "tx_packets", "rx_octets", "tx_octets"].map(|name| number(&stats[name]));
        assert_eq!(counts, [320, 320, 32_000, 32_000], "{stats}");
        let forwarded = &result(&results, "stop")[port];
        let counts = ["rx_packets", "tx_packets", "tx_dropped", "discarded"].map(|name| number(&forwarded[name]));
        assert_eq!(counts, [320, 320, 0, 320], "{forwarded}");
        for (name, count) in result(&results, "show drops")[port].as_object().unwrap() {
            assert!(matches!(name.as_str(), "port" | "state") || *count == 0, "{name}: {count}");
        }
    }
}

#[test]
fn txonly_sends_as_many_frames_as_it_is_told() {
    let folder = folder();
    let script = "
        set fwd txonly
        set txcount 10k
        start
        wait port 0 rx-packets 10000
        wait port 1 rx-packets 10000
        stop
        show port stats all
        clear port stats 0
        show port stats 0";
    let results = results(&cable(folder.path()), script);
    for port in 0..2 {
        let stats = &result(&results, "show port stats all")[port];
        assert_eq!([number(&stats["rx_packets"]), number(&stats["tx_packets"])], [10_000; 2]);
    }
    assert_eq!(result(&results, "show port stats 0")[0]["rx_packets"], 0);
}

#[test]
fn frames_go_round_between_two_ports_and_none_is_lost() {
    let folder = folder();
    let mut console = Console::open(&cable(folder.path()));
    console.ask("wait port 0 link");
    console.ask("start tx_first 2");
    // Each of the 128 comes round many times.
    console.ask_until("show port stats 0", |stats| number(&stats[0]["rx_packets"]) > 10_000);
    let stopped = console.ask("stop");
    let [received, sent] =
        ["rx_packets", "tx_packets"].map(|name| (0..2).map(|port| number(&stopped[port][name])).sum::<u64>());
    // What was sent is either received or on the cable.
    assert_eq!(sent - received, 128, "{stopped}");
    assert_eq!([&stopped[0]["tx_dropped"], &stopped[1]["tx_dropped"]], [0, 0]);
}

#[test]
fn faults_are_counted_and_a_doubled_frame_is_swapped_once() {
    let folder = folder();
    let mut console = Console::open(&cable(folder.path()));
    console.ask("set fwd rxonly");
    console.ask("wait port 0 link");
    console.ask("set fault 0 loss 50% seed 7");
    console.ask("start tx_first 10");
    let lost_and_received = |console: &mut Console| {
        let lost = number(&console.ask("show drops")[0]["fault"]);
        (lost, number(&console.ask("show port stats 1")[0]["rx_packets"]))
    };
    let start = Instant::now();
    while lost_and_received(&mut console) == (0, 0) || {
        let (lost, received) = lost_and_received(&mut console);
        lost + received < 320
    } {
        assert!(start.elapsed() < PATIENCE);
    }
    let (lost, received) = lost_and_received(&mut console);
    assert_eq!(lost + received, 320);
    assert!((80..240).contains(&lost), "half of 320 are lost: {lost}");
    let rates = console.ask("show fault");
    assert_eq!(rates[0]["rates"]["transmit"]["loss"], 50.0);
    console.ask("stop");

    // Doubled frames share a buffer until one is sent.
    console.ask("set fault all off");
    console.ask("set fault 1 duplicate 100% direction receive");
    console.ask("set fwd macswap");
    let file = folder.path().join("one.pcapng");
    console.ask(&format!("capture start {} 1", file.display()));
    console.ask("clear port stats all");
    console.ask("start tx_first 1");
    console.ask_until("show port stats 0", |stats| number(&stats[0]["rx_packets"]) > 100);
    console.ask("stop");
    console.ask("capture stop");
    let mut reader = pcap_file::pcapng::PcapNgReader::new(std::fs::File::open(&file).unwrap()).unwrap();
    let mut addresses: Vec<Vec<u8>> = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Some(packet) = block.unwrap().into_enhanced_packet() {
            assert_eq!(packet.data.len(), 64);
            addresses.push(packet.data[..12].to_vec());
        }
    }
    let mut each = addresses.clone();
    each.sort_unstable();
    each.dedup();
    // Two frames go round, there and back: each is seen with both orders of its addresses.
    assert!(addresses.len() > 100 && each.len() == 4, "{each:?}");
    for pair in &each {
        assert!(each.contains(&[&pair[6..], &pair[..6]].concat()), "{each:?}");
    }
}

#[test]
fn a_capture_has_every_frame_of_its_port() {
    let folder = folder();
    let file = folder.path().join("all.pcapng");
    let script = format!(
        "set fwd rxonly\nwait port 0 link\ncapture start '{}'\nstart tx_first 3\nwait port 0 rx-packets 96\n\
         wait port 1 rx-packets 96\nstop\ncapture stop\n",
        file.display()
    );
    let results = results(&cable(folder.path()), &script);
    let files = result(&results, "capture stop").as_array().unwrap().clone();
    assert_eq!(files.len(), 2);
    for (port, entry) in files.iter().enumerate() {
        let own = folder.path().join(format!("all-{port}.pcapng"));
        assert_eq!((number(&entry["port"]), Path::new(entry["file"].as_str().unwrap())), (port as u64, own.as_path()));
        let mut reader = pcap_file::pcapng::PcapNgReader::new(std::fs::File::open(&own).unwrap()).unwrap();
        let mut count = 0;
        while let Some(block) = reader.next_block() {
            count += usize::from(block.unwrap().into_enhanced_packet().is_some());
        }
        assert_eq!(count, 192, "sent and received");
    }
}

#[test]
fn a_port_can_be_stopped_and_started() {
    let folder = folder();
    let script = "
        wait port 0 link
        port stop 1
        show port info 1
        port start 1
        wait port 0 link
        wait port 1 link
        set fwd rxonly
        start tx_first 1
        wait port 1 rx-packets 32
        show port stats 1
        show port xstats 1
        show memory
        stop";
    let results = results(&cable(folder.path()), script);
    assert_eq!(result(&results, "show port info 1")[0]["state"], "stopped");
    assert_eq!(result(&results, "show port stats 1")[0]["rx_packets"], 32);
    assert_eq!(result(&results, "show port xstats 1")[0]["xstats"]["rx_good_packets"], 32);
    let memory = result(&results, "show memory");
    assert_eq!(memory["ports"][1]["rx_total"], 4096);
    assert!(number(&memory["mib"]) > 64);
}

#[test]
fn what_is_shown_again_comes_as_often_as_it_is_told() {
    let ports = ["null".to_owned(), "null".to_owned()];
    let results = results(&ports, "start\nshow stats every 10ms count 3\nstop\nshow config fwd");
    let shown: Vec<_> = results.iter().filter(|result| result["command"] == "show stats every 10ms count 3").collect();
    assert_eq!(shown.len(), 3);
    assert_eq!(result(&results, "show config fwd")["exits"], serde_json::json!([1, 0]));
}

/// A line that fails, and a part of the reason.
const WRONG: [(&str, &str); 23] = [
    ("showw port info 0", "did you mean 'show'"),
    ("show port info 2", "there is no port '2': choose 0, 1 or all"),
    ("show port info 18446744073709551616", "there is no port"),
    ("show port info -1", "there is no port"),
    ("set burst 0", "choose 1 to 64"),
    ("set burst 65", "choose 1 to 64"),
    ("set burst 99999999999999999999M", "choose 1 to 64"),
    ("set txpkts 59", "choose 60 to 9014"),
    ("set fwd fast", "there is io, macswap, rxonly or txonly"),
    ("set fault 0", "no fault is named"),
    ("set fault 0 loss 101%", "101"),
    ("set fault 0 loss", "needs a value behind it"),
    ("start tx_first 0", "choose 1 to"),
    ("stop", "'start' begins"),
    ("capture stop", "'capture start FILE' begins"),
    ("capture start /nonexistent/a.pcapng", "/nonexistent/a-0.pcapng"),
    ("capture start ..", "the name of a file"),
    ("show stats count 3", "'count' needs 'every'"),
    ("show stats every 0", "choose a longer time"),
    ("wait port 0 rx-packets 1 within 1ms", "is 0 after 1ms"),
    ("port start 0", "runs already"),
    ("help showw", "did you mean 'show'"),
    ("show port \"info", "has no end"),
];

#[test]
fn the_first_wrong_line_ends_a_script_and_is_named() {
    let folder = folder();
    let ports = cable(folder.path());
    for (line, expected) in WRONG {
        let output = run(&ports, &format!("# a comment\n\nset burst 8\n{line}\nquit\n"), true);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        assert!(error.contains(", line 4: ") && error.contains(expected), "{line}: {error}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["line"], 4, "{text}");
        assert!(last["error"].as_str().unwrap().contains(expected), "{text}");
    }
}

#[test]
fn a_hostile_file_is_refused_at_its_line() {
    let ports = ["null".to_owned()];
    for (line, expected) in [
        (vec![b'x'; 4096], "is not known here"),
        (vec![b'x'; 4097], "at most 4096"),
        (vec![b'x'; 1 << 20], "at most 4096"),
        (b"show \xff\xfe".to_vec(), "is not UTF-8"),
        (b"\x1b[2Jshow".to_vec(), "\\u{1b}[2Jshow"),
        (b"show\0port".to_vec(), "show\\0port"),
    ] {
        let folder = folder();
        let file = folder.path().join("commands");
        std::fs::write(&file, [b"set burst 8\n".as_slice(), &line].concat()).unwrap();
        let output = Command::new(PMD).args(&ports).arg("--commands").arg(&file).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(", line 2: ") && error.contains(expected) && error.len() < 600, "{error}");
        assert!(!error.contains(['\x1b', '\0']), "{error:?}");
    }
}

#[test]
fn states_that_do_not_fit_are_explained() {
    let ports = ["null".to_owned(), "null".to_owned()];
    for (script, expected) in [
        ("start\nstart", "line 2: forwarding runs already"),
        ("start\nport stop 0", "line 2: frames are forwarded"),
        ("port stop 1\nstart", "line 2: port 1 is stopped: 'port start 1'"),
        ("port stop 0\nset fault 0 loss 1%", "line 2: port 0 is stopped"),
        ("set txpkts 9014\nset fwd txonly\nstart", "line 3: txpkts is 9014, and port 0 sends 1514 octets at most"),
    ] {
        let output = run(&ports, script, false);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{script}: {error}");
    }
}

fn interrupt(child: &Child) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
}

#[test]
fn ctrl_c_ends_a_script_at_the_line_that_it_is_in() {
    for line in ["sleep 10min", "show stats every 1min", "wait port 0 rx-packets 1 within 10min"] {
        let folder = folder();
        let file = folder.path().join("commands");
        std::fs::write(&file, format!("set burst 8\n{line}\nset burst 16\n")).unwrap();
        let mut command = Command::new(PMD);
        command.args(["ring,name=a", "ring,name=a", "--json", "--commands"]).arg(&file);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        // So it is open, and at the next line or about to be.
        assert!(answers.next().unwrap().contains("set burst 8"));
        interrupt(&child);
        let answer: Value = serde_json::from_str(&answers.next().unwrap()).unwrap();
        assert_eq!(answer, serde_json::json!({ "error": "interrupted", "command": line, "line": 2 }));
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert_eq!(answers.next(), None, "nothing runs after it");
    }
}

#[test]
fn ctrl_c_ends_a_script_whose_writer_is_silent() {
    let mut console = Console::open(&["null".to_owned()]);
    console.ask("set burst 8");
    interrupt(&console.child);
    // Between two lines it fails, and while it waits for one it ends at once.
    assert!(matches!(console.child.wait().unwrap().code(), Some(1 | 130)));
}

#[test]
fn quit_ends_a_script() {
    let results = results(&["null".to_owned()], "start\nquit\nshoww");
    assert_eq!(results.len(), 1, "{results:?}");
}

#[test]
fn bad_command_lines_get_one_sentence() {
    for (arguments, expected) in [
        (&[][..], "<PORT>"),
        (&["carrier-pigeon"], "choose memif"),
        (&["memif,role=server"], "socket"),
        (&["null", "--buffers", "1"], "choose 64 to"),
        (&["null", "--mtu", "70000"], "70000"),
        (&["null", "--mtu", "100"], "MTU"),
        (&["null", "--commands", "/nonexistent"], "/nonexistent cannot be read"),
        (&["/nonexistent/port.toml"], "/nonexistent/port.toml"),
        (&["pci:0000:ff:1f.7"], "0000:ff:1f.7"),
    ] {
        let output = Command::new(PMD).args(arguments).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.starts_with("uwarp-pmd: ") && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_port_may_be_a_configuration_file() {
    let folder = folder();
    let socket = folder.path().join("s");
    let ports = ["server", "client"].map(|role| {
        let file = folder.path().join(format!("{role}.toml"));
        let text = format!(
            "address = \"10.0.0.1/24\"\nmtu = 9000\n[device]\nkind = \"memif\"\nrole = \"{role}\"\nsocket = \"{}\"\n",
            socket.display()
        );
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    });
    let results = results(
        &ports,
        "set txpkts 9014\nset fwd rxonly\nwait port 1 link\nstart tx_first\nwait port 1 rx-packets 32\nshow port stats 1",
    );
    assert_eq!(result(&results, "show port stats 1")[0]["rx_octets"], 32 * 9014);
}
