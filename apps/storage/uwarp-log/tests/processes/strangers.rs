//! Peers that must not get in: without the secret, from other addresses, or in great numbers. And how far one would
//! get.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use uwarp::{AcceptOptions, ConnectOptions, ListenOptions};
use uwarp_app::Role;
use uwarp_app::channel::{Channel, Event, part};
use uwarp_app::network::SERVER_ADDRESS;
use uwarp_log::auth::{self, Answer, Greeting, Proof, Secret, Side};
use uwarp_log::layout::Identity;
use uwarp_log::message::{ToClient, ToTarget};
use uwarp_vdev_tests::confined::Probe;

use crate::hand::{FEATURES, Hand, PORT, SHAPE, answer, handshake, join, offer, prove, secret, stranger, stranger_at};
use crate::places::{PATIENCE, Places, Process, program, succeeds};

fn refusal(answer: Option<Answer>) -> String {
    match answer {
        Some(Answer::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

fn wrong_secret() -> Secret {
    Secret::new(b"what somebody else has guessed").unwrap()
}

/// The latest writer that a target has admitted.
fn epoch(places: &Places) -> u64 {
    Identity::from_octets(std::fs::read(places.file(0)).unwrap()[..64].try_into().unwrap()).unwrap().epoch
}

#[test]
fn nobody_becomes_the_writer_without_the_secret() {
    let places = Places::new();
    let (_target, _control, _said) = places.controlled_target();
    let context = stranger(&places.socket(0), Role::Client);
    let domain = context.allocate_domain();
    let mut writer = Hand::new(&context, &domain);
    let region = writer.claim(1, false);
    let claim = serde_json::to_vec(&ToTarget::Claim { epoch: 2, established: false, log: 1, replicas: 1 }).unwrap();

    // A peer that says it has no secret, or uses another version, gets no connection.
    for (private_data, expected) in
        [(&b"uwarp-log 2"[..], "of another version"), (&auth::greeting(&Secret::default()), "wants the log's secret")]
    {
        let options = ConnectOptions::default().private_data(private_data).features(FEATURES);
        let mut channel = Channel::new(&context, &domain, SHAPE).unwrap();
        let error =
            context.connect(&mut channel.queue_pair().control, (SERVER_ADDRESS, PORT).into(), options).unwrap_err();
        let reason = String::from_utf8_lossy(error.rejection().expect("a rejection"));
        assert!(reason.contains(expected), "{reason}");
    }
    // A claim without a proof.
    let (mut channel, _) = join(&context, &domain, &secret());
    channel.send(&claim).unwrap();
    assert_eq!(refusal(answer(&mut channel)), "the first message has to be a proof");
    assert_eq!(channel.next(PATIENCE).unwrap(), Some(Event::Closed));
    // A proof under another secret, alone and with a claim right behind it, which costs the peer the answer.
    for has_claim in [false, true] {
        let (mut channel, established) = join(&context, &domain, &secret());
        let guess = handshake(&established, [5; 32]).prove(&wrong_secret(), Side::Writer);
        channel.send(&serde_json::to_vec(&Proof { challenge: [5; 32], proof: guess }).unwrap()).unwrap();
        if has_claim {
            let _ = channel.send(&claim);
        }
        match answer(&mut channel) {
            Some(Answer::Refused(reason)) => assert!(reason.starts_with("its secret is not this target's"), "{reason}"),
            other => assert!(has_claim && other.is_none(), "{other:?}"),
        }
        assert_eq!(channel.next(PATIENCE).unwrap(), Some(Event::Closed));
    }
    // A proof that counted on another connection.
    let (mut first, established) = join(&context, &domain, &secret());
    let replayed = Proof { challenge: [6; 32], proof: handshake(&established, [6; 32]).prove(&secret(), Side::Writer) };
    assert!(matches!(offer(&mut first, replayed), Some(Answer::Proven(_))));
    part(&context, first.queue_pair()).unwrap();
    let (mut second, _) = join(&context, &domain, &secret());
    assert!(refusal(offer(&mut second, replayed)).starts_with("its secret is not this target's"));
    // The target's own proof, as the writer's.
    let (mut first, established) = join(&context, &domain, &secret());
    let target_challenge = handshake(&established, [0; 32]).target_challenge;
    let reflected = handshake(&established, target_challenge).prove(&secret(), Side::Target);
    let answer = offer(&mut first, Proof { challenge: target_challenge, proof: reflected });
    assert!(refusal(answer).starts_with("its secret is not this target's"));

    // None of them was admitted, and the writer was not disturbed.
    assert_eq!(epoch(&places), 1);
    assert!(matches!(writer.write(region, b"writer 1"), Ok(Event::Done(_))));
}

/// A false target relays the messages of a writer and a target, from an address of its own, and reflects a writer's own
/// proof.
#[test]
fn a_proof_is_worth_nothing_to_a_false_target() {
    let places = Places::new();
    let (_target, _control, _said) = places.controlled_target();
    let to_target = stranger_at(&places.socket(0), Role::Client, Some("10.77.0.3/24"));
    let to_writer = stranger(&places.socket(1), Role::Server);
    let mut listener = to_writer.listen(PORT, ListenOptions::default()).unwrap();
    let mut command = places.program(&["append", "--patience", "60s", "--target"]);
    let mut writer =
        Process(command.arg(places.socket(1)).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(writer.0.stderr.take().unwrap()).lines();
    let (target_domain, writer_domain) = (to_target.allocate_domain(), to_writer.allocate_domain());
    let mut last = None;
    // Relayed, then reflected, then without a secret.
    for (reflect, has_secret) in [(false, true), (true, true), (false, false)] {
        let (mut channel, established) = join(&to_target, &target_domain, &secret());
        let greeting = Greeting::parse(&established.private_data).unwrap();
        let private_data =
            if has_secret { established.private_data.clone() } else { auth::reply(&Secret::default(), &[1; 32]) };
        assert!(greeting.has_secret);
        let request = listener.next(PATIENCE).unwrap().expect("the writer tries");
        let mut victim = Channel::new(&to_writer, &writer_domain, SHAPE).unwrap();
        let options = AcceptOptions::default().private_data(private_data).features(FEATURES);
        request.accept(&mut victim.queue_pair().control, options).unwrap();
        if has_secret {
            let Some(Event::Message(octets)) = victim.next(PATIENCE).unwrap() else { panic!("a proof") };
            let proof: Proof = serde_json::from_slice(&octets).unwrap();
            if reflect {
                victim.send(&serde_json::to_vec(&Answer::Proven(proof.proof)).unwrap()).unwrap();
            } else {
                assert!(refusal(offer(&mut channel, proof)).starts_with("its secret is not this target's"));
                victim.send(&serde_json::to_vec(&Answer::Proven([0; 32])).unwrap()).unwrap();
            }
        }
        let expected = if has_secret { "it does not know the log's secret" } else { "it has no secret" };
        // The same is not said twice.
        if last != Some(expected) {
            let line = said.next().unwrap().unwrap();
            assert!(line.contains(&format!("target 0 is left out: {expected}")), "{line}");
            last = Some(expected);
        }
        // It gets no message after that.
        assert_eq!(victim.next(PATIENCE).unwrap(), Some(Event::Closed));
    }
    assert_eq!(epoch(&places), 0);
}

#[test]
fn silent_connections_keep_no_writer_out() {
    const SILENT: usize = 200;
    let places = Places::new();
    let (_target, _control, _said) = places.controlled_target();
    let context = stranger(&places.socket(0), Role::Client);
    let domain = context.allocate_domain();
    let mut writer = Hand::new(&context, &domain);
    let region = writer.claim(1, false);
    let mut silent = Vec::new();
    for number in 0..SILENT {
        silent.push(join(&context, &domain, &secret()).0);
        assert!(matches!(writer.write(region, b"writer 1"), Ok(Event::Done(_))), "{number}");
    }
    // The flood continues, and the next writer gets in.
    let mut next = Hand::new(&context, &domain);
    let region = next.claim(2, false);
    assert!(matches!(next.write(region, b"writer 2"), Ok(Event::Done(_))));
    // It takes the place of one of four.
    let is_open = |channel: &mut Channel| !matches!(channel.poll().unwrap(), Some(Event::Closed));
    let is_few = || silent.iter_mut().filter_map(|channel| is_open(channel).then_some(())).count() <= 4;
    wait_until(is_few, "those in excess are ended");
    // The others have their time.
    let is_none = || !silent.iter_mut().any(is_open);
    wait_until(is_none, "those that prove nothing are ended");
    assert!(matches!(next.write(region, b"writer 3"), Ok(Event::Done(_))));
    // Not even a peer with the secret gets in by silence.
    let (mut channel, established) = join(&context, &domain, &secret());
    prove(&mut channel, &established);
    channel.send(&serde_json::to_vec(&ToTarget::Hello { renew: false }).unwrap()).unwrap();
    let Some(Event::Message(octets)) = channel.next(PATIENCE).unwrap() else { panic!("a welcome") };
    assert!(matches!(serde_json::from_slice(&octets).unwrap(), ToClient::Welcome { epoch: 2, .. }));
}

fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn both_sides_say_why_a_writer_does_not_get_in() {
    let places = Places::new();
    places.secret_file("other", "the secret of another log");
    std::fs::write(places.path("lines"), "a line").unwrap();
    let file = |name: &str| places.path(name).to_str().unwrap().to_owned();
    let (right, other) = (file("secret"), file("other"));
    let (right, other) = (["--secret-file", &right], ["--secret-file", &other]);
    let (near, far) = (["--allow", "10.77.0.0/24"], ["--allow", "10.77.0.3/32"]);
    let target = |arguments: &[&str]| {
        let mut command = program(&["serve", "--size", "4M"]);
        command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).args(arguments);
        let mut target = Process(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let complaints = BufReader::new(target.0.stderr.take().unwrap()).lines();
        (target, complaints)
    };
    let append = |arguments: &[&str]| {
        let mut command = program(&["append", "--patience", "60s", "--target"]);
        command.arg(places.socket(0)).args(arguments).arg(places.path("lines"));
        command
    };
    for (of_target, of_writer, heard, said) in [
        (&right, &[][..], "it rejects the connection: this target wants the log's secret", "wants the log's secret"),
        (&right, &other[..], "its secret is not this target's", "its secret is another one"),
        (&near, &right[..], "it rejects the connection: this target has no secret", "has no secret"),
        (&far, &[][..], "it rejects the connection: this server does not serve 10.77.0.2", "--allow has to name"),
    ] {
        let (_target, mut complaints) = target(of_target);
        let mut writer = Process(append(of_writer).stderr(Stdio::piped()).spawn().unwrap());
        let line = BufReader::new(writer.0.stderr.take().unwrap()).lines().next().unwrap().unwrap();
        assert!(line.starts_with(&format!("uwarp-log: target 0 is left out: {heard}")), "{line}");
        let line = complaints.next().unwrap().unwrap();
        assert!(line.starts_with("uwarp-log: 10.77.0.2:") && line.contains(said), "{line}");
    }
    assert_eq!(epoch(&places), 0);
    for (of_target, of_writer) in
        [(&[&right[..], &near].concat()[..], &right[..]), (&near, &[]), (&far, &["--address", "10.77.0.3/24"])]
    {
        let (_target, _complaints) = target(of_target);
        succeeds(&append(of_writer).output().unwrap());
    }
    assert_eq!(places.read(0).len(), 3);
}

#[test]
fn a_target_and_a_writer_reach_their_own_files_only() {
    let places = Places::new();
    let (of_target, of_writer) = (Probe::new(), Probe::new());
    let mut command = places.program(&["serve", "--size", "4M"]);
    of_target.load(command.arg(places.file(0)).arg("--socket").arg(places.socket(0)).stdout(Stdio::piped()));
    let mut target = Process(command.spawn().unwrap());
    assert!(BufReader::new(target.0.stdout.take().unwrap()).lines().next().unwrap().unwrap().starts_with("serving on"));
    let mut command = places.append(1, &["--acknowledge"]);
    of_writer.load(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut writer = Process(command.spawn().unwrap());
    let mut lines = writer.0.stdin.take().unwrap();
    let mut acknowledged = BufReader::new(writer.0.stdout.take().unwrap()).lines();
    for round in 0..2 {
        writeln!(lines, "line {round}").unwrap();
        acknowledged.next().unwrap().unwrap();
        // Not even the secret, which has been read.
        of_target.check(&target.0, &places.file(0), &places.path("secret"));
        of_writer.check(&writer.0, Path::new("/proc/self/status"), &places.path("secret"));
    }
    drop(lines);
    assert!(writer.0.wait().unwrap().success());
}
