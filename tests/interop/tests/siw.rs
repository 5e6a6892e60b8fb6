//! The Linux kernel's own iWARP (siw, in a guest) as the peer: rping against `uwarp-ping`, and a program in the guest
//! that the test controls. tshark reads what went over the wire.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use uwarp::{
    AcceptOptions, AsyncEvent, Completion, CompletionFlags, CompletionOpcode, Config, ConnectError, ConnectOptions,
    Context, DisconnectReason, Error, Established, Features, ListenOptions, ReceiveRequest, SendRequest, Sge, Status,
    TcpListener, TcpStreamOptions, TerminateCode,
};
use uwarp_interop_tests::is_long;
use uwarp_interop_tests::link::{Kind, Link};
use uwarp_interop_tests::siw::{GUEST, GUEST6, Guest, Outcome};
use uwarp_interop_tests::stack::{Endpoint, PATIENCE};
use uwarp_interop_tests::tools::{Guarded, run};
use uwarp_interop_tests::witness::{count, examine};
use uwarp_netns as netns;

/// Longest message, and octets of the largest Write and Read.
const LARGE: usize = 1 << 20;

const WRITE: usize = 0;
const READ_REQUEST: usize = 1;
const SEND: usize = 3;
const SEND_INVALIDATE: usize = 4;
const SEND_SOLICITED: usize = 5;
const TERMINATE: usize = 7;
const IMMEDIATE: usize = 8;
const ATOMIC_REQUEST: usize = 10;
const COMMIT_REQUEST: usize = 12;

// --- rping ---

/// Rounds and octets of each: a segment, and rping's maximum.
const PINGS: [(usize, usize); 4] = [(100, 64), (100, 65535), (1, 64), (1, 65535)];

/// Without CRCs, the normal run has no connections that end after their first round: nothing in those depends on a CRC.
fn pings(crc: bool) -> &'static [(usize, usize)] {
    if crc || is_long() { &PINGS } else { &PINGS[..2] }
}

/// Waits until the stack answers. If its server is just about to listen, rping's connection is refused, and it does not
/// retry.
const UNTIL_ANSWERED: &str = "timeout 60 sh -c 'until ping -c 1 -W 1 10.77.0.1; do usleep 50000; done' >/dev/null 2>&1";

/// Checks the end of an rping client. When all is done, it closes its event channel. The thread that waits there may
/// find it closed and end the process with an error before the process ends without one. It reports no other error
/// then.
#[track_caller]
fn check_rping(outcome: &Outcome) {
    let closed = "rdma_get_cm_event: Bad file descriptor";
    let mut lines = outcome.output.lines().map(str::trim).filter(|line| !line.is_empty());
    let was_done = outcome.status == 255
        && outcome.output.contains(closed)
        && lines.all(|line| [closed, "client DISCONNECT EVENT..."].contains(&line));
    assert!(outcome.status == 0 || was_done, "in the guest: {outcome:?}");
}

/// Prints how many rounds an rping server has seen.
const COUNT: &str = "grep -c '^server ping data: rdma-ping-' /tmp/rping";

#[test]
fn rping_and_uwarp_ping_understand_each_other() {
    every_ping(&Link::vhost(false));
}

#[test]
fn rping_and_uwarp_ping_understand_each_other_with_the_guests_segmentation_offload() {
    every_ping(&Link::vhost(true));
}

/// Both are over tap in one guest, because starting it takes longer than either.
#[test]
fn rping_and_uwarp_ping_understand_and_survive_each_other_over_tap() {
    netns::test_inside("rping_and_uwarp_ping_understand_and_survive_each_other_over_tap", || {
        let link = Link::tap();
        let guest = every_ping(&link);
        every_death(&link, Some(guest));
    });
}

fn every_ping(link: &Link) -> Guest {
    let capture = link.path("capture.pcap");
    let pcap = ["--pcap", capture.to_str().expect("a path in UTF-8")];
    let mut guest = None;
    for crc in [true, false] {
        let flags: &[&str] = if crc { &pcap } else { &[&pcap[..], &["--no-crc"]].concat() };
        let server = link.server(flags);
        let guest = guest.get_or_insert_with(|| link.guest());
        for (rounds, size) in pings(crc) {
            let rping = format!("{UNTIL_ANSWERED} && rping -c -a 10.77.0.1 -C {rounds} -S {size} -V");
            check_rping(&guest.run(&rping));
        }
        server.end();
        let expected: usize = pings(crc).iter().map(|(rounds, _)| rounds).sum();
        check_ping(&capture, expected, crc);

        for (rounds, size) in pings(crc) {
            let (rounds, size) = (rounds.to_string(), size.to_string());
            let server = guest.start(&format!("rping -s -S {size} -v >/tmp/rping 2>/dev/null; {COUNT}"));
            run(link.client(&["-C", &rounds, "-S", &size, "-V"]).args(flags));
            assert_eq!(guest.finish(server).success().trim(), rounds);
            check_ping(&capture, rounds.parse().expect("a number"), crc);
        }
    }
    guest.expect("it has been started")
}

/// Four Sends, a Read and at least one Write per round; every FPDU has a valid CRC, or none has.
fn check_ping(capture: &Path, rounds: usize, crc: bool) {
    let Some(testimony) = examine(capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(testimony.opcodes[SEND], 4 * rounds, "{testimony:?}");
    assert_eq!(testimony.opcodes[READ_REQUEST], rounds, "{testimony:?}");
    assert!(testimony.opcodes[WRITE] >= rounds, "{testimony:?}");
    let fpdus: usize = testimony.opcodes.iter().sum();
    assert_eq!(testimony.good_crcs, if crc { fpdus } else { 0 }, "{testimony:?}");
}

/// No FPDU, and nothing to complain of.
fn check_silence(capture: &Path) {
    let Some(testimony) = examine(capture) else { return };
    assert_eq!((testimony.complaints, testimony.opcodes), (vec![], [0; 16]));
}

/// At least this many rounds, and no fault on either side. The guest may also retransmit on the stream of a process
/// that was killed before.
fn check_end(capture: &Path, rounds: usize) {
    let Some(testimony) = examine(capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert!(testimony.opcodes[SEND] >= 4 * rounds, "{testimony:?}");
    assert!(testimony.opcodes[READ_REQUEST] >= rounds, "{testimony:?}");
    assert_eq!(testimony.opcodes[TERMINATE], 0, "{testimony:?}");
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "{testimony:?}");
}

#[test]
fn siw_opens_streams_as_it_can_and_says_so_where_it_cannot() {
    let link = Link::vhost(false);
    let capture = link.path("capture.pcap");
    let pcap = ["--pcap", capture.to_str().expect("a path in UTF-8")];
    let server = link.server(&["--markers", pcap[0], pcap[1]]);
    let mut guest = link.guest();
    // siw does not support markers, as initiator or responder; only as responder can it reject them.
    guest.run(UNTIL_ANSWERED).success();
    let refused = guest.run("timeout 60 rping -c -a 10.77.0.1 -C 1");
    assert_ne!(refused.status, 0, "{refused:?}");
    server.end();
    check_silence(&capture);
    // Of a start-up frame that a middlebox cuts, tshark dissects nothing.
    let is_dissected = !uwarp_middlebox::is_skipped("start-up frames are not looked for in captures");
    if is_dissected {
        assert!(count(&capture, "iwarp_mpa.rep && iwarp_mpa.marker_flag == 1") > 0, "the answer wants markers");
    }
    let rping = guest.start("rping -s");
    let output = link.client(&["-C", "1", "--markers"]).args(pcap).output().expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("rejects the connection"), "{text}");
    check_silence(&capture);
    if is_dissected {
        assert_eq!(count(&capture, "iwarp_mpa.req && iwarp_mpa.marker_flag == 1"), 1);
        assert_eq!(count(&capture, "iwarp_mpa.rep && iwarp_mpa.rej_flag == 1"), 1);
    }
    // rping ignores a rejection by the kernel and continues to wait.
    guest.run("killall rping").success();
    assert_ne!(guest.finish(rping).status, 0);
    for kind in ["--peer-to-peer", "--peer-to-peer=write", "--peer-to-peer=read"] {
        let rping = guest.start("timeout 60 rping -s -v");
        run(link.client(&["-C", "3", "-V", kind]).args(pcap));
        let output = guest.finish(rping).output;
        assert_eq!(output.matches("server ping data: rdma-ping-").count(), 3, "{kind}: {output}");
        let Some(testimony) = examine(&capture) else { continue };
        assert_eq!(testimony.complaints, [""; 0]);
        // The indication before the rounds. What nudges siw, if it is slow, is a Write, too.
        let (reads, writes) = (testimony.opcodes[READ_REQUEST], testimony.opcodes[WRITE]);
        let expected = if kind.ends_with("read") { (3 + 1, 3) } else { (3, 3 + 1) };
        assert!(reads == expected.0 && writes >= expected.1, "{kind}: {testimony:?}");
    }
}

#[test]
fn siw_speaks_over_ipv6() {
    let link = Link::vhost(false);
    let capture = link.path("capture.pcap");
    let pcap = ["--pcap", capture.to_str().expect("a path in UTF-8")];
    let server = Guarded::start(&mut link.ping_as("uwarp6.toml", &[&["serve"], &pcap[..]].concat()));
    let mut guest = link.guest();
    // From this address: until the guest has checked it for duplicates (RFC 4862 §5.4), it sends from its link-local
    // one. rping cannot connect from that, reports it and does not end.
    guest.run(&UNTIL_ANSWERED.replace("10.77.0.1", &format!("-I {GUEST6} fd77::1"))).success();
    check_rping(&guest.run("rping -c -a fd77::1 -C 10 -S 65535 -V"));
    server.end();
    check_ping(&capture, 10, true);
    let are_cut = uwarp_middlebox::is_skipped("segments are not counted: tshark wants FPDUs to begin with a segment");
    assert!(are_cut || count(&capture, "ipv6 and iwarp_mpa") > 40);

    let server = guest.start(&format!("rping -s -a {GUEST6} -S 65535 -v >/tmp/rping 2>/dev/null; {COUNT}"));
    let arguments = ["run", "--server", GUEST6, "-C", "10", "-S", "65535", "-V"];
    run(&mut link.ping_as("uwarp6.toml", &[&arguments, &pcap[..]].concat()));
    assert_eq!(guest.finish(server).success().trim(), "10");
    check_ping(&capture, 10, true);
}

/// Waits until the guest has a stream in full operation, and lets it run for a while.
const UNTIL_RUNNING: &str =
    "timeout 60 sh -c 'until rdma resource show cm_id | grep -q CONNECT; do usleep 50000; done' && sleep 1";

/// Waits until its server of rping has printed three rounds of 4096 octets, of which the first two are complete. The
/// stream of a client that was killed before may be in full operation still.
const UNTIL_ROUNDS: &str = "timeout 60 sh -c 'until test $(stat -c %s /tmp/rounds) -gt 12288; do usleep 50000; done'";

#[test]
fn either_side_survives_the_others_death() {
    every_death(&Link::vhost(false), None);
}

#[test]
fn either_side_survives_the_others_death_with_the_guests_segmentation_offload() {
    every_death(&Link::vhost(true), None);
}

/// With a guest that is on this link, or a new one.
fn every_death(link: &Link, guest: Option<Guest>) {
    let capture = link.path("capture.pcap");
    let pcap = ["--pcap", capture.to_str().expect("a path in UTF-8")];
    let server = link.server(&[]);
    let mut guest = guest.unwrap_or_else(|| link.guest());
    let endless = "echo $$ >/tmp/pid; exec rping -c -a 10.77.0.1 -C 1000000 -S 4096";
    let again = &format!("{UNTIL_ANSWERED} && rping -c -a 10.77.0.1 -C 5 -V");

    guest.run(UNTIL_ANSWERED).success();
    let rping = guest.start(endless);
    guest.run(&format!("{UNTIL_RUNNING} && kill -9 $(cat /tmp/pid)")).success();
    assert_eq!(guest.finish(rping).status, 128 + 9);
    check_rping(&guest.run(again));

    // rping may wait for a message that never comes, and has no keep-alive, so it notices nothing.
    let rping = guest.start(endless);
    guest.run(UNTIL_RUNNING).success();
    drop(server);
    let server = link.server(&pcap);
    check_rping(&guest.run(again));
    // Or it has noticed, by the reset with which the next server answers: for rping that is an ordinary end.
    guest.run("kill -9 $(cat /tmp/pid) || true").success();
    guest.finish(rping);
    server.end();
    check_end(&capture, 5);

    // The other way round.
    let rping = guest.start("echo $$ >/tmp/pid; exec rping -s -P -S 4096 -v >>/tmp/rounds 2>/dev/null");
    let client = Guarded::start(&mut link.client(&["-C", "0", "-S", "4096"]));
    guest.run(UNTIL_RUNNING).success();
    drop(client);
    // The server does not notice either when a client dies that waits for it; it still serves the next one.
    run(link.client(&["-C", "5", "-V"]).args(pcap));
    check_end(&capture, 5);
    guest.run(": >/tmp/rounds").success();
    let mut client = link.client(&["-C", "0", "-S", "4096"]);
    let mut client = client.args(pcap).stdin(Stdio::null()).spawn().expect("the tool starts");
    guest.run(UNTIL_ROUNDS).success();
    guest.run("kill -9 $(cat /tmp/pid)").success();
    assert_eq!(guest.finish(rping).status, 128 + 9);
    assert_eq!(client.wait().expect("a child").code(), Some(1), "the client says that the connection is over");
    check_end(&capture, 1);

    let rping = guest.start("rping -s -P -S 4096");
    let mut client = link.client(&["-C", "0", "-S", "4096"]).stdin(Stdio::null()).spawn().expect("the tool starts");
    guest.run(UNTIL_RUNNING).success();
    drop(rping);
    guest.kill();
    assert_eq!(client.wait().expect("a child").code(), Some(1), "nobody is there any more to say so");
}

// --- a program that the test controls --------------------------------------------------------------------------------

/// Operations of `siw-peer`.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Offer = 1,
    Write = 2,
    Read = 3,
    SendInvalidate = 4,
    SendSolicited = 5,
    Part = 6,
}

/// Memory that a side offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    stag: u32,
    offset: u64,
    length: u32,
}

impl Place {
    fn of(octets: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(octets[at..at + 4].try_into().expect("four octets"));
        assert_eq!((octets.len(), word(0)), (24, 0), "siw-peer says that it is done");
        Self { stag: word(4), offset: u64::from(word(8)) << 32 | u64::from(word(12)), length: word(16) }
    }
}

/// A queue pair with siw-peer at its other end. The first half of its region is the source, the second the sink.
struct Told {
    endpoint: Endpoint,
    established: Established,
}

/// The options with an unused port: for tshark, a Request on a used port is an FPDU of the former connection, and an
/// invalid one.
fn connect_options(options: ConnectOptions) -> ConnectOptions {
    static PORT: AtomicU16 = AtomicU16::new(61_000);
    let local_port = Some(PORT.fetch_add(1, Ordering::Relaxed));
    ConnectOptions { local_port, ..options }
}

impl Told {
    fn connect(context: &Context, port: u16, size: usize, features: Features) -> Self {
        let peer = SocketAddr::new(GUEST.parse().expect("an address"), port);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut endpoint = Endpoint::with_region(context, 2 * size);
            let options = connect_options(ConnectOptions { features, ..ConnectOptions::default() });
            match context.connect(&mut endpoint.queue_pair.control, peer, options) {
                Ok(established) => return Self { endpoint, established },
                // It may be starting.
                Err(Error::Connect { reason: ConnectError::Refused, .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn half(&self) -> usize {
        self.endpoint.region.len() / 2
    }

    fn source(&self) -> Place {
        let region = &self.endpoint.region;
        Place { stag: region.stag(), offset: region.remote_offset(), length: self.half() as u32 }
    }

    fn sink(&self) -> Place {
        let source = self.source();
        Place { offset: source.offset + self.half() as u64, ..source }
    }

    fn receive(&mut self) {
        let half = self.half();
        let entry = self.endpoint.region.sge(half..).expect("the second half");
        self.endpoint.queue_pair.receive.post(&[ReceiveRequest::new(0, &[entry])]).expect("room");
    }

    /// Posts work and waits for its success.
    fn work(&mut self, request: SendRequest<'_>) {
        self.endpoint.queue_pair.send.post(&[request]).expect("room");
        let completion = self.endpoint.completion();
        assert_eq!(
            completion.status,
            Status::Success,
            "{completion:?}, {:?}",
            self.endpoint.queue_pair.control.disconnect_reason()
        );
    }

    /// Sends a message and waits for the answer.
    fn exchange(&mut self, message: SendRequest<'_>) -> (Completion, Vec<u8>) {
        self.receive();
        self.endpoint.queue_pair.send.post(&[message]).expect("room");
        self.next_message()
    }

    fn next_message(&mut self) -> (Completion, Vec<u8>) {
        loop {
            let completion = self.endpoint.completion();
            let why = self.endpoint.queue_pair.control.disconnect_reason();
            assert_eq!(completion.status, Status::Success, "{completion:?}, {why:?}");
            if completion.opcode == CompletionOpcode::Receive {
                let octets = self.endpoint.octets(self.half(), completion.length as usize);
                return (completion, octets);
            }
        }
    }

    fn words(operation: Operation, place: Place) -> Vec<u8> {
        let mut words = (operation as u32).to_be_bytes().to_vec();
        words.extend(place.stag.to_be_bytes());
        words.extend(place.offset.to_be_bytes());
        words.extend(place.length.to_be_bytes());
        words.extend([0; 4]);
        words
    }

    /// Sends a command, and waits until it is executed: returns the completion of the answer, and the memory that the
    /// peer offers.
    fn command(&mut self, operation: Operation, place: Place) -> (Completion, Place) {
        let (completion, octets) = self.exchange(SendRequest::send_inline(1, &Self::words(operation, place)));
        (completion, Place::of(&octets))
    }

    fn offer(&mut self) -> Place {
        let nothing = Place { stag: 0, offset: 0, length: 0 };
        self.command(Operation::Offer, nothing).1
    }

    fn ended(mut self) -> DisconnectReason {
        assert!(
            self.endpoint.queue_pair.control.wait_disconnected(PATIENCE).expect("the engine works"),
            "it does not end"
        );
        self.endpoint.queue_pair.control.disconnect_reason().expect("a reason")
    }

    fn close(mut self) -> DisconnectReason {
        self.endpoint.queue_pair.control.disconnect();
        self.ended()
    }
}

fn pattern(seed: u64, octets: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pattern = vec![0; octets];
    random.fill(&mut pattern);
    pattern
}

const LISTENING: u16 = 7471;
const NO_FEATURES: Features = Features { atomics: false, immediate: false, commit: false, infiniband: false };

fn every_conversation(context: &Context, guest: &mut Guest) {
    let listener = guest.start(&format!("siw-peer listen {LISTENING} {LARGE}"));
    data_goes_every_way(context);
    stags_are_invalidated_either_way(context);
    extensions_are_refused_by_siw(context);
    either_side_parts(context, guest);
    many_connections_one_after_another_and_at_once(context, guest);
    start_up_frames_at_siws_limits(context);
    // The kernel has kept nothing of it all except the listener, which is still running.
    guest.run("for i in $(seq 300); do rdma resource show qp | grep -q lqpn || exit 0; usleep 100000; done; rdma resource show qp; exit 1").success();
    // And the memory of each was returned: the guest has room for some seventy.
    let resident = guest.run("awk '/VmRSS/ { print $2 }' /proc/$(pidof siw-peer)/status").success();
    let resident: u32 = resident.trim().parse().expect("one siw-peer, and its KiB");
    assert!(resident < 16 << 10, "siw-peer holds {resident} KiB");
    drop(listener);
}

fn data_goes_every_way(context: &Context) {
    let mut told = Told::connect(context, LISTENING, LARGE, NO_FEATURES);
    for (seed, length) in [(1, 1), (2, 0), (3, 1443), (4, 65536), (5, LARGE)] {
        let message = pattern(seed, length);
        told.endpoint.region.write(0, &message).expect("inside the region");
        let entry = told.endpoint.region.sge(..length).expect("inside the region");
        assert!(told.exchange(SendRequest::send(1, &[entry])).1 == message, "a message of {length} octets comes back");
    }
    let siw = told.offer();
    assert_eq!(siw.length as usize, LARGE);
    // Written by us and read back by us; written by siw, read by siw, read back by us.
    let content = pattern(6, LARGE);
    told.endpoint.region.write(0, &content).expect("inside the region");
    let source = told.endpoint.region.sge(..LARGE).expect("the first half");
    let sink = told.endpoint.region.sge(LARGE..).expect("the second half");
    let back = |told: &Told| told.endpoint.octets(LARGE, LARGE);
    told.work(SendRequest::write(1, &[source], siw.stag, siw.offset));
    told.work(SendRequest::read(2, &[sink], siw.stag, siw.offset));
    assert!(back(&told) == content);
    told.endpoint.region.fill(LARGE..2 * LARGE, 0).expect("inside the region");
    // The answer also arrives in the sink, over its first octets.
    told.command(Operation::Write, told.sink());
    assert!(back(&told)[24..] == content[24..]);
    let content = pattern(7, LARGE);
    told.endpoint.region.write(0, &content).expect("inside the region");
    told.command(Operation::Read, told.source());
    told.work(SendRequest::read(3, &[sink], siw.stag, siw.offset));
    assert!(back(&told) == content);
    let (answer, _) = told.command(Operation::SendSolicited, told.source());
    assert!(answer.flags.contains(CompletionFlags::SOLICITED), "{answer:?}");
    assert_eq!(told.close(), DisconnectReason::Local);
}

/// The same, in a separate context, as large as before.
fn data_goes_every_way_without_crcs(link: &Link, guest: &mut Guest) {
    let capture = link.path("without-crcs.pcap");
    let mut config = Config { pcap: Some(capture.clone()), ..link.configuration() };
    config.mpa.crc = false;
    let context = Context::open(config).expect("the context opens");
    // The guest's device returns when it finds the new one.
    guest.run(UNTIL_ANSWERED).success();
    data_goes_every_way(&context);
    context.close().expect("closed");
    let Some(testimony) = examine(&capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert!(testimony.opcodes[WRITE] >= 2 * LARGE / 1500 && testimony.opcodes[SEND] >= LARGE / 1500, "{testimony:?}");
    assert_eq!(testimony.good_crcs, 0, "{testimony:?}");
}

fn stags_are_invalidated_either_way(context: &Context) {
    let mut told = Told::connect(context, LISTENING, 4096, NO_FEATURES);
    let rights = uwarp::Access::REMOTE_WRITE;
    let window = told.endpoint.domain.register(vec![0; 64], rights).expect("a region");
    let place = Place { stag: window.stag(), offset: window.remote_offset(), length: 64 };
    told.command(Operation::Write, place);
    let (answer, siw) = told.command(Operation::SendInvalidate, place);
    assert!(answer.flags.contains(CompletionFlags::INVALIDATED), "{answer:?}");
    assert_eq!(answer.invalidated, window.stag());
    assert!(!window.is_valid());

    let words = Told::words(Operation::Offer, place);
    let request = SendRequest::send_inline(1, &words).invalidate(siw.stag);
    assert_eq!(Place::of(&told.exchange(request).1), siw);
    // The offered memory no longer exists: invalid STag, found by DDP (RFC 5041 §8.2).
    let entry = told.endpoint.region.sge(..64).expect("inside the region");
    told.endpoint.queue_pair.send.post(&[SendRequest::write(2, &[entry], siw.stag, siw.offset)]).expect("room");
    let reason = told.ended();
    let expected = TerminateCode { layer: 1, error_type: 1, code: 0 };
    assert_eq!(reason, DisconnectReason::PeerTerminated(expected));
}

fn extensions_are_refused_by_siw(context: &Context) {
    let all = Features { atomics: true, immediate: true, commit: true, infiniband: false };
    for opcode in [ATOMIC_REQUEST, IMMEDIATE, COMMIT_REQUEST] {
        let mut told = Told::connect(context, LISTENING, 4096, all);
        let siw = told.offer();
        let commit = [Sge { stag: siw.stag, length: siw.length, offset: siw.offset }];
        let request = match opcode {
            ATOMIC_REQUEST => SendRequest::fetch_add(7, siw.stag, siw.offset, 1),
            IMMEDIATE => SendRequest::immediate(7, 1),
            _ => SendRequest::commit(7, &commit),
        };
        told.endpoint.queue_pair.send.post(&[request]).expect("room");
        let completion = told.endpoint.completion();
        if opcode != IMMEDIATE {
            assert_eq!((completion.id, completion.status), (7, Status::RemoteOperation), "{completion:?}");
        }
        // Unexpected opcode (RFC 5040 §7.1).
        let expected = TerminateCode { layer: 0, error_type: 2, code: 6 };
        assert_eq!(told.ended(), DisconnectReason::PeerTerminated(expected));
    }
}

fn either_side_parts(context: &Context, guest: &mut Guest) {
    let mut told = Told::connect(context, LISTENING, 4096, NO_FEATURES);
    told.offer();
    let words = Told::words(Operation::Part, told.source());
    told.work(SendRequest::send_inline(1, &words));
    assert_eq!(told.ended(), DisconnectReason::PeerClosed);

    // siw as the initiator.
    let mut listener = context.listen(7472, ListenOptions::default()).expect("a free port");
    let peer = guest.start("siw-peer connect 10.77.0.1 7472 4096");
    let mut told = accept(context, &mut listener);
    let siw = Place::of(&told.next_message().1);
    assert_eq!(told.offer(), siw);
    told.command(Operation::Write, told.sink());
    assert_eq!(told.close(), DisconnectReason::Local);
    guest.finish(peer).success();
}

/// Accepts a connection of siw-peer, with a receive for its first message.
fn accept(context: &Context, listener: &mut uwarp::Listener) -> Told {
    let request = listener.next(PATIENCE).expect("the listener works").expect("siw-peer connects");
    let mut endpoint = Endpoint::with_region(context, 2 * 4096);
    let entry = endpoint.region.sge(4096..).expect("the second half");
    endpoint.queue_pair.receive.post(&[ReceiveRequest::new(0, &[entry])]).expect("room");
    let established =
        request.accept(&mut endpoint.queue_pair.control, AcceptOptions::default()).expect("the start-up succeeds");
    Told { endpoint, established }
}

/// Connections, one after the other, so many of ours and so many of siw's, on which the initiator sends at once.
fn connections_in_a_row(context: &Context, guest: &mut Guest, (ours, theirs): (usize, usize)) {
    for _ in 0..ours {
        let mut told = Told::connect(context, LISTENING, 4096, NO_FEATURES);
        told.offer();
        assert_eq!(told.close(), DisconnectReason::Local);
    }
    let mut listener = context.listen(7474, ListenOptions::default()).expect("a free port");
    let connect = "siw-peer connect 10.77.0.1 7474 4096 || exit 1";
    let peers = guest.start(&format!("for i in $(seq {theirs}); do {connect}; done"));
    for _ in 0..theirs {
        let mut told = accept(context, &mut listener);
        let siw = Place::of(&told.next_message().1);
        assert_eq!(told.offer(), siw);
        assert_eq!(told.close(), DisconnectReason::Local);
    }
    guest.finish(peers).success();
}

fn many_connections_one_after_another_and_at_once(context: &Context, guest: &mut Guest) {
    connections_in_a_row(context, guest, (50, if is_long() { 50 } else { 5 }));
    let mut all: Vec<Told> = (0..16).map(|_| Told::connect(context, LISTENING, 4096, NO_FEATURES)).collect();
    for (seed, told) in all.iter_mut().enumerate() {
        told.receive();
        told.endpoint.region.write(0, &pattern(seed as u64, 4096)).expect("inside the region");
        let entry = told.endpoint.region.sge(..4096).expect("the first half");
        told.endpoint.queue_pair.send.post(&[SendRequest::send(1, &[entry])]).expect("room");
    }
    for (seed, told) in all.iter_mut().enumerate() {
        assert!(told.next_message().1 == pattern(seed as u64, 4096));
    }
    for told in &mut all {
        told.endpoint.queue_pair.control.disconnect();
    }
    for told in all {
        assert_eq!(told.ended(), DisconnectReason::Local);
    }

    let mut listener = context.listen(7473, ListenOptions::default()).expect("a free port");
    let peers =
        guest.start("for i in $(seq 16); do (siw-peer connect 10.77.0.1 7473 4096 || echo failed) & done; wait");
    let mut all: Vec<Told> = (0..16).map(|_| accept(context, &mut listener)).collect();
    for told in &mut all {
        let siw = Place::of(&told.next_message().1);
        assert_eq!(told.offer(), siw);
    }
    for told in all {
        assert_eq!(told.close(), DisconnectReason::Local);
    }
    assert_eq!(guest.finish(peers).success(), "");
}

fn start_up_frames_at_siws_limits(context: &Context) {
    let peer = SocketAddr::new(GUEST.parse().expect("an address"), LISTENING);
    let connect = |options: ConnectOptions| {
        let mut endpoint = Endpoint::new(context);
        let established = context.connect(&mut endpoint.queue_pair.control, peer, connect_options(options))?;
        Ok::<_, Error>(Told { endpoint, established })
    };
    // It accepts 256 octets, including IRD and ORD, and resets the connection for more.
    let mut told = connect(ConnectOptions::default().private_data(vec![7; 252])).expect("private data that siw takes");
    assert_eq!((told.established.crc, told.established.peer_to_peer), (true, false));
    // siw would not even notice a FIN right behind its Reply.
    told.offer();
    told.close();
    let error = connect(ConnectOptions::default().private_data(vec![7; 300])).err().expect("too much for siw");
    assert!(matches!(error, Error::Connect { reason: ConnectError::Closed, .. }), "{error}");
    // Revision 1 has no IRD and ORD.
    let mut told = connect(ConnectOptions { mpa_revision: 1, ..ConnectOptions::default() }).expect("revision 1");
    assert_eq!((told.established.peer_ird, told.established.peer_ord), (None, None));
    told.offer();
    told.close();
    // 0x3FFF, which leaves the numbers to the applications, is an ordinary large number for siw: it answers with its
    // own limits.
    let options = ConnectOptions { negotiate_reads: false, ..ConnectOptions::default() };
    let mut told = connect(options).expect("no negotiation");
    assert!(told.established.peer_ird.is_some_and(|ird| ird < 0x3FFF), "{:?}", told.established);
    told.offer();
    told.close();
}

/// The events outside the application's calls: siw's Terminates and no errors.
fn check_events(context: &Context) {
    let events = context.events();
    let mut terminates = 0;
    while let Some(event) = events.try_next() {
        match event {
            AsyncEvent::PeerTerminated { .. } => terminates += 1,
            AsyncEvent::QueuePairFatal { .. } | AsyncEvent::OctetsNotAcknowledged { .. } | AsyncEvent::Link { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(terminates, 4);
}

fn check_conversations(capture: &Path) {
    let Some(testimony) = examine(capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    let expected = [
        (WRITE, 2 * LARGE / 1500),
        (READ_REQUEST, 3),
        (SEND, 100),
        (SEND_INVALIDATE, 2),
        (SEND_SOLICITED, 1),
        (TERMINATE, 4),
        (IMMEDIATE, 1),
        (ATOMIC_REQUEST, 1),
        (COMMIT_REQUEST, 1),
    ];
    for (opcode, least) in expected {
        assert!(testimony.opcodes[opcode] >= least, "opcode {opcode}: {testimony:?}");
    }
    // siw's Terminate has a CRC, too.
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>());
    assert!(count(capture, "iwarp_mpa.req") > 60, "each connection begins with a Request");
}

/// How often the guest's sender is blocked until it has a backlog.
const BACKLOGS: usize = 5;
/// Whether the guest's device has VIRTIO_NET_F_HOST_TSO4, the bit 11.
const HAS_TSO: &str = "cut -c 12 /sys/bus/virtio/drivers/virtio_net/virtio*/features";

/// Waits until the guest's sender to port 7480 has 16 KiB that it may not send yet: `tx_queue` of its one socket.
const UNTIL_BACKLOG: &str = concat!(
    r#"timeout 60 sh -c 'until awk "\$3 ~ /:1D38\$/ && substr(\$5, 1, 8) \"\" >= \"00004000\" { found = 1 } "#,
    r#"END { exit !found }" /proc/net/tcp; do usleep 20000; done'"#,
);

/// siw passes its FPDUs to TCP one by one. A plain stream arrives in segments that no wire would carry, in chains of
/// buffers, as soon as its sender has more to send than the window permits. So nothing is read before it has, however
/// slow it is.
fn a_plain_stream_comes_in_segments_beyond_the_mtu(context: &Context, guest: &mut Guest) {
    guest.run("yes abcdefg | head -c 4000000 >/tmp/plain").success();
    let mut listener = TcpListener::bind(context, 7480).expect("a free port");
    let sender = guest.start("nc 10.77.0.1 7480 </tmp/plain");
    let accepted = listener.accept_timeout(PATIENCE).expect("the listener works");
    let (mut stream, _) = accepted.expect("the guest connects");
    let window = TcpStreamOptions::default().receive_buffer;
    let mut received = vec![0; BACKLOGS * window];
    for all in received.chunks_mut(window) {
        let deadline = Instant::now() + PATIENCE;
        // Less than one segment of it is left.
        while stream.readable() < window - 1460 {
            assert!(Instant::now() < deadline, "the window does not fill: {} octets", stream.readable());
            std::thread::sleep(Duration::from_millis(1));
        }
        guest.run(UNTIL_BACKLOG).success();
        stream.read_exact(all).expect("it is there, or comes");
    }
    stream.read_to_end(&mut received).expect("all of it comes");
    assert!(received.len() == 4_000_000 && received.chunks(8).all(|line| line == b"abcdefg\n"));
    drop(stream);
    guest.finish(sender).success();
}

#[test]
fn a_current_siw_and_the_stack_connect_to_each_other() {
    let link = Link::vhost(false);
    let context = Context::open(link.configuration()).expect("the context opens");
    let mut guest = link.current_guest();
    guest.run(UNTIL_ANSWERED).success();
    let listener = guest.start(&format!("siw-peer listen {LISTENING} {LARGE}"));
    let each = if is_long() { 50 } else { 5 };
    connections_in_a_row(&context, &mut guest, (each, each));
    let nudges: u64 = context.stats().engines.iter().map(|engine| engine.counters.nudges_sent).sum();
    println!("{nudges} Writes of nothing for {each} connections to {}", guest.run("uname -r").success());
    data_goes_every_way(&context);
    drop(listener);
    context.close().expect("closed");
}

#[test]
fn siw_and_the_stack_do_as_each_is_told_over_vhost() {
    as_each_is_told(&Link::vhost(true));
}

#[test]
fn siw_and_the_stack_do_as_each_is_told_over_vhost_without_the_guests_segmentation_offload() {
    as_each_is_told(&Link::vhost(false));
}

#[test]
fn siw_and_the_stack_do_as_each_is_told_over_tap() {
    netns::test_inside("siw_and_the_stack_do_as_each_is_told_over_tap", || as_each_is_told(&Link::tap()));
}

fn as_each_is_told(link: &Link) {
    let capture = link.path("capture.pcap");
    let context =
        Context::open(Config { pcap: Some(capture.clone()), ..link.configuration() }).expect("the context opens");
    let mut guest = link.guest();
    every_conversation(&context, &mut guest);
    check_events(&context);
    if let Kind::Vhost { offloads } = link.kind() {
        let expected = if offloads { "1" } else { "0" };
        assert_eq!(guest.run(HAS_TSO).success().trim(), expected, "whether the guest's driver has the offload");
    }
    let cuts = link.kind() == Kind::Vhost { offloads: true };
    if cuts {
        a_plain_stream_comes_in_segments_beyond_the_mtu(&context, &mut guest);
    }
    context.close().expect("closed");
    check_conversations(&capture);
    if cuts {
        let large = count(&capture, "tcp.len > 1460");
        assert!(large >= BACKLOGS, "the plain stream came in large segments: {large}");
    }
    data_goes_every_way_without_crcs(link, &mut guest);
}
