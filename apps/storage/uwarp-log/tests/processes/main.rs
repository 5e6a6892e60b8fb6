//! Targets and writers as processes over real devices, and what happens to the log when they are killed.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use uwarp::{AcceptOptions, DisconnectReason, ListenOptions, SendRequest, TerminateCode};
use uwarp_app::Role;
use uwarp_app::channel::{Channel, Event, part};
use uwarp_app::network::CLIENT_ADDRESS;
use uwarp_log::auth;
use uwarp_log::layout::{HEAD, PAGE, START};

mod flood;
mod hand;
mod kills;
mod places;
mod strangers;

use hand::{FEATURES, Hand, PORT, SHAPE, join, prove, secret, stranger};
use places::{PATIENCE, Places, Process, Target, program, succeeds};

#[test]
fn a_pair_over_each_device() {
    for arguments in [
        &["pair", "--iterations", "2000", "--json", "-"][..],
        &["pair", "--targets", "1", "--iterations", "300", "--size", "20000", "--device", "memif", "--json", "-"],
    ] {
        let result: Value = serde_json::from_slice(&succeeds(&program(arguments).output().unwrap())).unwrap();
        assert_eq!(result["live"], if arguments.contains(&"1") { 1 } else { 3 });
    }
}

#[test]
fn a_pair_that_is_killed_leaves_no_process() {
    let mut pair = Process(program(&["pair", "--targets", "1", "--iterations", "1000000000"]).spawn().unwrap());
    let children = format!("/proc/{0}/task/{0}/children", pair.0.id());
    let sides = loop {
        let text = std::fs::read_to_string(&children).unwrap();
        let sides: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if sides.len() == 2 && sides.iter().all(|side| command_line(side).contains("uwarp-log")) {
            break sides;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Long enough for each side to have begun.
    std::thread::sleep(Duration::from_millis(500));
    pair.0.kill().unwrap();
    pair.0.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while sides.iter().any(|side| command_line(side).contains("uwarp-log")) {
        assert!(Instant::now() < deadline, "{sides:?} go on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process's command line; empty if it has ended.
fn command_line(process: &str) -> String {
    std::fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default()
}

#[test]
fn a_target_gets_memory_back_without_a_broken_connection() {
    let places = Places::new();
    let (target, mut control, mut said) = places.controlled_target();
    let mut command = places.append(1, &["--overwrite", "--acknowledge"]);
    let mut writer = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = writer.0.stdin.take().unwrap();
    let mut acknowledged = BufReader::new(writer.0.stdout.take().unwrap()).lines();
    let mut append = |from: usize| {
        for number in from..from + 100 {
            writeln!(lines, "{number} {}", "x".repeat(9000)).unwrap();
        }
        lines.flush().unwrap();
        (0..100).map(|_| acknowledged.next().unwrap().unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    let first = append(0);
    let before = std::fs::metadata(places.file(0)).unwrap().len();
    writeln!(control, "shrink 600K").unwrap();
    let answer = said.next().unwrap().unwrap();
    assert!(answer.starts_with("gave memory back"), "{answer}");
    let after = std::fs::metadata(places.file(0)).unwrap().len();
    assert!(after <= 600 << 10 && after < before, "{before} {after}");
    let second = append(100);
    // The same writer: nothing was interrupted, or another epoch's mark would be in between.
    assert_eq!(second[0], first[99] + 1);
    drop((writer, target));
    let copy = places.read(0);
    assert!(copy[&second[99]].starts_with("199 x"));
}

#[test]
fn lines_are_read_as_they_were_appended_or_reading_fails() {
    const LINES: &[u8] = b"caf\xe9\n\x00\xff\nlast\n";
    let places = Places::new();
    let _target = places.target(0);
    let mut writer = places.append(1, &[]).stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.take().unwrap().write_all(LINES).unwrap();
    assert!(writer.wait().unwrap().success());
    let read = || {
        let mut command = program(&["read"]);
        command.arg(places.file(0));
        command
    };
    let output = read().output().unwrap();
    assert!(output.status.success() && output.stdout == LINES, "{output:?}");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = read().stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output cannot be written"), "{output:?}");
}

#[test]
fn what_was_read_before_the_input_failed_is_appended() {
    let places = Places::new();
    let _target = places.target(0);
    let (input, mut own) = UnixStream::pair().unwrap();
    // It is never read, so the end of this side is a reset for the other one, behind the lines.
    (&input).write_all(b"x").unwrap();
    // By one call: a socket has no room for many small ones.
    let lines: String = (0..200).map(|number| format!("line {number}\n")).collect();
    own.write_all(lines.as_bytes()).unwrap();
    drop(own);
    let mut command = places.append(1, &["--acknowledge"]);
    let output = command.stdin(OwnedFd::from(input)).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("after 200 records, the next line cannot be read: Connection reset by peer"), "{said}");
    let acknowledged = String::from_utf8(output.stdout).unwrap();
    assert_eq!((acknowledged.lines().count(), places.read(0).len()), (200, 200), "{acknowledged}");
}

/// A target whose standard error nobody reads any more goes on when it has something to say there.
#[test]
fn a_target_that_nobody_listens_to_goes_on() {
    let places = Places::new();
    let mut command = places.program(&["serve", "--size", "4M", "--allow", "10.77.0.99"]);
    command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut target = Process(command.spawn().unwrap());
    drop(target.0.stderr.take());
    let mut refused = places.program(&["append", "--patience", "3s", "--target"]);
    assert!(!refused.arg(places.socket(0)).stdin(Stdio::null()).output().unwrap().status.success());
    assert!(target.0.try_wait().unwrap().is_none());
}

#[test]
fn a_writer_is_asked_for_memory_that_was_wanted_before_it_came() {
    let places = Places::new();
    let (_target, mut control, mut said) = places.controlled_target();
    // Commands are carried out one after another.
    writeln!(control, "shrink 600K\nstatus").unwrap();
    assert!(said.next().unwrap().unwrap().ends_with("no writer"));
    let mut writer = Process(places.append(1, &[]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut lines = writer.0.stdin.take().unwrap();
    writeln!(lines, "a line").unwrap();
    let answer = said.next().unwrap().unwrap();
    assert!(answer.starts_with("gave memory back"), "{answer}");
    assert!(std::fs::metadata(places.file(0)).unwrap().len() <= 600 << 10);
    // Once is enough.
    drop(lines);
    assert!(writer.0.wait().unwrap().success());
    succeeds(&places.append(1, &[]).output().unwrap());
    writeln!(control, "status").unwrap();
    let answer = said.next().unwrap().unwrap();
    assert!(answer.starts_with("epoch 2, "), "{answer}");
}

#[test]
fn a_writer_goes_on_with_two_targets_when_the_third_is_none() {
    let places = Places::new();
    let mut targets: Vec<Target> = (0..3).map(|number| places.target(number)).collect();
    succeeds(&places.append_lines(&["--all"], "the first\n"));
    targets.pop();
    let context = stranger(&places.socket(2), Role::Server);
    let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
    let mut writer = places.append(3, &["--acknowledge"]);
    let writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut writer = Process(writer);
    let mut lines = writer.0.stdin.take().unwrap();
    let domain = context.allocate_domain();
    let mut channels = Vec::new();
    let reply = auth::reply(&secret(), &[7; 32]);
    for greeting in [&b"another program"[..], &reply, &reply] {
        let request = listener.next(PATIENCE).unwrap().expect("the writer tries");
        let mut channel = Channel::new(&context, &domain, SHAPE).unwrap();
        let options = AcceptOptions::default().private_data(greeting).features(FEATURES);
        request.accept(&mut channel.queue_pair().control, options).unwrap();
        // The first one does not receive this.
        let _ = channel.send(b"no message of a target");
        channels.push(channel);
    }
    writeln!(lines, "the second").unwrap();
    drop(lines);
    let mut said = String::new();
    writer.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(writer.0.wait().unwrap().success(), "{said}");
    for warning in ["target 2 is left out: what answers there is not uwarp-log", "none of this version's"] {
        assert_eq!(said.matches(warning).count(), 1, "said once: {said}");
    }
    drop(targets);
    assert!(places.read(0).into_values().eq(["the first", "the second"]));
}

#[test]
fn only_the_writer_tells_of_records() {
    let places = Places::new();
    let mut command = places.program(&["serve", "--follow"]);
    command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).stdout(Stdio::piped());
    let mut target = Process(command.spawn().unwrap());
    let mut said = BufReader::new(target.0.stdout.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("serving on"));
    let append = |line: &str, more: &[&str]| {
        let lines = places.path("lines");
        std::fs::write(&lines, line).unwrap();
        succeeds(&places.append(1, more).arg(lines).output().unwrap());
    };
    append("not told of", &[]);
    let context = stranger(&places.socket(0), Role::Client);
    let domain = context.allocate_domain();
    let (mut channel, established) = join(&context, &domain, &secret());
    prove(&mut channel, &established);
    for number in [0, 1 << 40] {
        channel.queue_pair().send.post(&[SendRequest::immediate(number, number).signalled()]).unwrap();
    }
    part(&context, channel.queue_pair()).unwrap();
    drop(channel);
    context.close().unwrap();
    append("told of", &["--notify"]);
    assert_eq!(said.next().unwrap().unwrap(), "told of");
}

#[test]
fn a_former_writer_cannot_write_by_another_connection_and_its_old_stag() {
    let places = Places::new();
    let (_target, _control, _said) = places.controlled_target();
    let context = stranger(&places.socket(0), Role::Client);
    let domain = context.allocate_domain();
    let mut former = Hand::new(&context, &domain);
    let old = former.claim(1, false);
    assert!(matches!(former.write(old, b"former 1"), Ok(Event::Done(_))));
    let mut later = Hand::new(&context, &domain);
    let new = later.claim(2, false);
    assert_ne!(old.1.stag, new.1.stag);
    assert!(matches!(former.next(), Ok(Event::Closed)));
    let kept = || {
        let file = std::fs::read(places.file(0)).unwrap();
        file[(PAGE + new.0.slot(0)) as usize..][..8].to_vec()
    };
    assert_eq!(kept(), b"former 1", "what was committed is there");
    let mut former = Hand::new(&context, &domain);
    let refused = former.write(old, b"former 2").unwrap_err().to_string();
    assert_eq!(refused, "a request failed: RemoteAccess");
    // RFC 5041 §8.2: a tagged buffer error, an invalid STag.
    let code = TerminateCode { layer: 1, error_type: 1, code: 0 };
    assert!(former.channel.queue_pair().control.wait_disconnected(PATIENCE).unwrap());
    assert_eq!(former.channel.queue_pair().control.disconnect_reason(), Some(DisconnectReason::PeerTerminated(code)));
    // A Commit of these octets by the writer would keep what was placed.
    let commit = [uwarp::Sge { stag: new.1.stag, length: 8, offset: new.1.offset + new.0.slot(0) }];
    later.channel.queue_pair().send.post(&[SendRequest::commit(1, &commit).signalled()]).unwrap();
    assert!(matches!(later.next(), Ok(Event::Done(_))));
    assert_eq!(kept(), b"former 1");
    assert!(matches!(later.write(new, b"later 01"), Ok(Event::Done(_))));
    assert_eq!(kept(), b"later 01");
    // Its work may be under way when it claims again.
    assert_eq!(later.claim(3, false), new);
    assert!(matches!(later.write(new, b"later 02"), Ok(Event::Done(_))));
    part(&context, later.channel.queue_pair()).unwrap();
    let mut later = Hand::new(&context, &domain);
    let newer = later.claim(3, true);
    assert_ne!(newer.1.stag, new.1.stag);
    assert!(matches!(later.write(newer, b"later 03"), Ok(Event::Done(_))));
    assert_eq!(kept(), b"later 03");
}

#[test]
fn a_target_whose_words_are_damaged_does_not_start() {
    let places = Places::new();
    let targets: Vec<Target> = (0..3).map(|number| places.target(number)).collect();
    succeeds(&places.append_lines(&["--all"], "the first\n"));
    drop(targets);
    let whole = std::fs::read(places.file(0)).unwrap();
    for word in [START, HEAD] {
        let mut octets = whole.clone();
        octets[(PAGE + word) as usize..][..8].copy_from_slice(&(u64::MAX - 4095).to_le_bytes());
        std::fs::write(places.file(0), octets).unwrap();
        for arguments in [&["serve", "--socket", places.socket(0).to_str().unwrap()][..], &["read"]] {
            let output = places.program(arguments).arg(places.file(0)).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("the words of a region are damaged"), "{said}");
        }
    }
}

#[test]
fn the_targets_program_hears_of_records_that_are_durable() {
    let places = Places::new();
    let mut command = places.program(&["serve", "--follow"]);
    command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).stdout(Stdio::piped());
    let mut target = Process(command.spawn().unwrap());
    let mut said = BufReader::new(target.0.stdout.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("serving on"));
    let mut command = places.append(1, &["--notify"]);
    let mut writer = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = writer.stdin.take().unwrap();
    for number in 0..500 {
        writeln!(lines, "record {number}").unwrap();
    }
    for number in 0..500 {
        assert_eq!(said.next().unwrap().unwrap(), format!("record {number}"));
    }
    drop(lines);
    assert!(writer.wait().unwrap().success());
}

#[test]
fn a_follower_whose_output_stands_still_keeps_nobody_waiting() {
    let places = Places::new();
    let mut command = places.program(&["serve", "--follow", "--size", "2M"]);
    command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut target = Process(command.spawn().unwrap());
    let mut said = BufReader::new(target.0.stdout.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().starts_with("serving on"));
    // More than the pipe takes, and than there are receives.
    let line = |writer: &str, number: usize| format!("{writer} {number} {}", "x".repeat(200));
    let append = |writer: &str, count: usize, more: &[&str]| {
        let lines: Vec<String> = (0..count).map(|number| line(writer, number)).collect();
        std::fs::write(places.path("lines"), lines.join("\n")).unwrap();
        let output = places.append(1, more).arg(places.path("lines")).output().unwrap();
        succeeds(&output);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    };
    append("one", 2000, &["--notify"]);
    append("two", 10, &[]);
    append("three", 1000, &["--notify"]);
    for (writer, count) in [("one", 2000), ("three", 1000)] {
        for number in 0..count {
            assert_eq!(said.next().unwrap().unwrap(), line(writer, number));
        }
    }
    // Records that are no longer there are counted.
    append("four", 2000, &["--notify"]);
    append("five", 10_000, &["--notify", "--overwrite"]);
    let printed: Vec<String> =
        said.by_ref().map(Result::unwrap).take_while(|text| *text != line("five", 9_999)).collect();
    drop(said);
    let before = printed.iter().position(|text| text.starts_with("five")).expect("the last are there");
    let (fours, fives) = printed.split_at(before);
    for (number, text) in fours.iter().enumerate() {
        assert_eq!(*text, line("four", number));
    }
    for (number, text) in fives.iter().rev().enumerate() {
        assert_eq!(*text, line("five", 9_998 - number));
    }
    target.0.kill().unwrap();
    let mut complaints = String::new();
    target.0.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    let gone = |complaint: &str| {
        let count = complaint
            .strip_prefix("uwarp-log: ")?
            .strip_suffix(" records cannot be printed: they were dropped or replaced before")?;
        count.parse::<usize>().ok()
    };
    let counts: Vec<usize> = complaints.lines().map(|complaint| gone(complaint).expect(&complaints)).collect();
    assert_eq!(counts, [2000 - fours.len(), 10_000 - 1 - fives.len()], "{complaints}");
}

/// The frames in a capture.
fn frames(capture: &Path) -> Vec<Vec<u8>> {
    let mut reader = pcap_file::pcapng::PcapNgReader::new(std::fs::File::open(capture).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        frames.extend(block.unwrap().into_enhanced_packet().map(|packet| packet.data.into_owned()));
    }
    frames
}

/// Opcodes of the messages in each TCP segment with the writer's data (RFC 5040 §4.1), in order, without
/// retransmissions.
fn segments_of_the_writer(capture: &Path) -> Vec<Vec<u8>> {
    let (mut segments, mut next) = (Vec::new(), None);
    for packet in frames(capture) {
        // Ethernet; IPv4 without options, of the writer; TCP.
        let Some(ip) = packet.get(14..).filter(|ip| ip[0] == 0x45 && ip[9] == 6) else { continue };
        let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let (tcp, own) = (&ip[20..length], ip[12..16] == CLIENT_ADDRESS.octets());
        let (sequence, data) =
            (u32::from_be_bytes(*tcp[4..].first_chunk().unwrap()), &tcp[usize::from(tcp[12] >> 4) * 4..]);
        // The frames of MPA's start-up are not FPDUs.
        if !own || data.is_empty() || data.starts_with(b"MPA ") || next.is_some_and(|next| sequence != next) {
            continue;
        }
        next = Some(sequence.wrapping_add(data.len() as u32));
        let (mut rest, mut opcodes) = (data, Vec::new());
        while let [high, low, _ddp, rdmap, ..] = *rest {
            opcodes.push(rdmap & 15);
            // Length, ULPDU, padding, CRC (RFC 5044 §4.1).
            let length = 2 + usize::from(u16::from_be_bytes([high, low]));
            rest = &rest[length.next_multiple_of(4) + 4..];
        }
        segments.push(opcodes);
    }
    segments
}

/// A record over 63 segments takes more requests than a short one, and its Commit lists more regions than fit into one
/// request. All of them are sent on the first connection.
#[test]
fn records_over_many_segments_are_appended_without_a_break() {
    let places = Places::new();
    let mut command = places.program(&["serve", "--size", "32M", "--segment", "4K"]);
    command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).stdout(Stdio::null());
    let _target = Process(command.spawn().unwrap());
    let lines: Vec<String> = (0..100).map(|number| format!("{number:03} {}", "x".repeat(250_000))).collect();
    let (input, capture) = (places.path("lines"), places.path("writer.pcap"));
    std::fs::write(&input, lines.join("\n")).unwrap();
    let output = places.append(1, &["--pcap"]).arg(&capture).arg(&input).output().unwrap();
    succeeds(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(places.read(0).into_values().eq(lines));
    let mut opened = std::collections::BTreeSet::new();
    for packet in frames(&capture) {
        // As above: the writer's SYNs, by its port.
        let Some(ip) = packet.get(14..).filter(|ip| ip[0] == 0x45 && ip[9] == 6) else { continue };
        if ip[12..16] == CLIENT_ADDRESS.octets() && ip[33] & 0x12 == 2 {
            opened.insert([ip[20], ip[21]]);
        }
    }
    assert_eq!(opened.len(), 1, "connections");
}

/// Immediate Data is not part of the request: a request has a single operation behind its Write, here the Commit. It
/// follows without waiting for anything.
#[test]
fn a_record_and_its_commit_share_a_segment_and_immediate_data_is_right_behind() {
    const RECORDS: usize = 5;
    const WRITE: u8 = 0;
    const IMMEDIATE: u8 = 8;
    const COMMIT: u8 = 12;
    let places = Places::new();
    let _target = places.target(0);
    let capture = places.path("writer.pcap");
    let mut command = places.append(1, &["--notify", "--acknowledge", "--pcap"]);
    let mut writer = Process(command.arg(&capture).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = writer.0.stdin.take().unwrap();
    let mut acknowledged = BufReader::new(writer.0.stdout.take().unwrap()).lines();
    // One at a time, so that nothing of another record is in between.
    for number in 0..RECORDS {
        writeln!(lines, "record {number} {}", "x".repeat(500 * (number % 3))).unwrap();
        acknowledged.next().unwrap().unwrap();
    }
    drop(lines);
    assert!(writer.0.wait().unwrap().success());
    let segments = segments_of_the_writer(&capture);
    let mut told = 0;
    for (index, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.contains(&IMMEDIATE)) {
        // If it shares their segment one day, all the better.
        let before = if segment[0] == IMMEDIATE { &segments[index - 1] } else { segment };
        assert!(before.windows(2).any(|pair| pair == [WRITE, COMMIT]), "{index} of {segments:?}");
        told += 1;
    }
    assert_eq!(told, RECORDS, "{segments:?}");
}

#[test]
fn the_ways_to_append_differ_in_round_trips_and_wakes() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        program(&["bench", "--iterations", "100", "--json", "-", "--directory"]).arg(folder.path()).output().unwrap();
    let reports: Vec<Value> = serde_json::from_slice(&succeeds(&output)).unwrap();
    let of = |store: &str| -> Vec<&str> {
        let reports = reports.iter().filter(|report| report["store"] == store);
        reports.map(|report| report["method"].as_str().unwrap()).collect()
    };
    assert_eq!(of("memory"), ["local", "local-polled", "pull", "send", "commit"]);
    assert_eq!(
        of("file"),
        ["local", "local-polled", "pull", "send", "commit", "commit-on-server-cpu", "commit-in-engine"]
    );
    for report in &reports {
        let round_trips = report["round_trips"].as_f64();
        match report["method"].as_str().unwrap() {
            "local" | "local-polled" => assert_eq!(round_trips, None),
            "pull" => assert_eq!(round_trips, Some(2.0), "{report}"),
            "send" => assert_eq!(round_trips, Some(1.0), "{report}"),
            _ => {
                assert_eq!(round_trips, Some(1.0), "{report}");
                assert_eq!(report["wakes"], 0.0, "{report}");
            }
        }
        // A histogram that only records its bounds would be the same for all.
        let [min, max] = ["min", "max"].map(|name| report["latency_ns"][name].as_u64().unwrap());
        assert!(min < max, "{report}");
    }
}

#[test]
fn a_line_that_is_too_long_is_named_when_those_before_it_are_appended() {
    let places = Places::new();
    let _target = places.target(0);
    let lines = places.path("lines");
    let mut text: String = (1..=10).map(|line| format!("line {line}\n")).collect();
    text += &"x".repeat(300_000);
    text += "\nbehind it\n";
    std::fs::write(&lines, text).unwrap();
    let output = places.append(1, &[lines.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("line 11 is too long"), "{said}");
    let found: Vec<String> = places.read(0).into_values().collect();
    assert_eq!(found, (1..=10).map(|line| format!("line {line}")).collect::<Vec<_>>());
}

#[test]
fn mistakes_get_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, vec![7; 10_000]).unwrap();
    let other = other.to_str().unwrap();
    let new = folder.path().join("new");
    let new = new.to_str().unwrap();
    let secret = |name: &str, octets: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, octets).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let public = &*secret("public", "0123456789abcdef", 0o640);
    let short = &*secret("short", "0123456789abcde\n", 0o600);
    for (arguments, status, expected) in [
        (&["append", "--target", "/tmp/a", "--target", "/tmp/b"][..], 2, "one target or three"),
        (&["append", "--target", "somewhere"], 2, "is no target"),
        (&["append", "--target", "/nonexistent/s", "--patience", "1s"], 1, "1 of 1 targets are needed"),
        (&["read", "/nonexistent"], 1, "/nonexistent"),
        (&["read", other], 1, "not a log's file"),
        (&["serve", other, "--allow", "10.77.0.2"], 1, "not a log's file"),
        (&["serve", new, "--segment", "1000"], 2, "multiple of 4K"),
        (&["serve", new, "--allow", "10.77.0.2", "--engine", "inline"], 2, "sleeps"),
        (&["serve", new], 2, "name a --secret-file, or the addresses that may connect with --allow"),
        (&["serve", new, "--secret-file", "/nonexistent"], 2, "--secret-file /nonexistent: cannot be read"),
        (&["serve", new, "--secret-file", public], 2, "mode 640): make it yours alone with chmod 600"),
        (&["append", "--secret-file", public], 2, "mode 640): make it yours alone with chmod 600"),
        (&["serve", new, "--secret-file", short], 2, "a secret has 16 to 4096 octets, and this one has 15"),
        (&["pair", "--targets", "2"], 2, "one target or three"),
        (&["pair", "--config", "/nonexistent"], 2, "--config is one process's"),
        (&["pair", "--address", "10.0.0.1/24"], 2, "--address is one process's"),
        (&["pair", "--pcap", new], 2, "--pcap is one process's"),
        (&["bench", "--pcap", new], 2, "--pcap is one process's"),
    ] {
        let output = program(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(expected) && text.starts_with("uwarp-log: "), "{arguments:?}: {text}");
    }
    assert!(!Path::new(new).exists());
}

const FULL: &str = "a_full_disk_is_told_of_and_nothing_that_was_acknowledged_is_lost";

#[test]
fn a_full_disk_is_told_of_and_nothing_that_was_acknowledged_is_lost() {
    uwarp_netns::test_among_own_mounts(FULL, || {
        let places = Places::new();
        let disk = places.path("disk");
        std::fs::create_dir(&disk).unwrap();
        let mount = |options: &str| {
            let mut command = Command::new("mount");
            uwarp_netns::run(command.args(["-t", "tmpfs", "-o", options, "none"]).arg(&disk)).unwrap();
        };
        mount("size=1M");
        std::os::unix::fs::symlink(disk.join("log"), places.file(0)).unwrap();
        // Not even a new file has room.
        let filler = disk.join("filler");
        std::fs::write(&filler, vec![1; 2 << 20]).unwrap_err();
        let mut command = places.program(&["serve", "--size", "4M"]);
        let output = command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(said.contains("0.log cannot be made") && said.contains("No space left on device"), "{said}");
        // Nothing of it blocks the next attempt, when there is some room, but not for all records.
        std::fs::remove_file(filler).unwrap();
        let target = places.target(0);
        let lines: String = (0..300).map(|number| format!("{number} {}\n", "x".repeat(9000))).collect();
        std::fs::write(places.path("lines"), lines).unwrap();
        let mut command = places.program(&["append", "--patience", "5s", "--acknowledge", "--target"]);
        let output = command.arg(places.socket(0)).arg(places.path("lines")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(said.contains("a commit failed at the target (there is no space left for its file)"), "{said}");
        let acknowledged: Vec<u64> =
            String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert!((10..300).contains(&acknowledged.len()), "{} records", acknowledged.len());
        drop(target);
        let has_all = |copy: &std::collections::BTreeMap<u64, String>| {
            for (line, number) in acknowledged.iter().enumerate() {
                assert!(copy[number].starts_with(&format!("{line} x")), "record {number}");
            }
        };
        has_all(&places.read(0));
        // With more room it continues.
        mount("remount,size=8M");
        let _target = places.target(0);
        std::fs::write(places.path("lines"), "behind them").unwrap();
        succeeds(&places.append(1, &[]).arg(places.path("lines")).output().unwrap());
        let copy = places.read(0);
        has_all(&copy);
        assert_eq!(copy.last_key_value().unwrap().1, "behind them");
    });
}
