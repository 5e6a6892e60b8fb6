//! What is sent, and when: each new segment of TCP holds whole FPDUs (RFC 5044 §5.1), small ones do not wait for
//! others, messages do not interleave (RFC 5041 §5.4), a Terminate overtakes waiting data (RFC 5040 §7.1), and work
//! completes when TCP has taken responsibility for it, not before (RFC 5041 §5.3).

use std::collections::HashSet;
use std::time::Duration;

use uwarp_engine::command::{Command, ConnectionEvent, DisconnectReason, TerminateCode};
use uwarp_engine::work::{CompletionOpcode, SendOpcode, Sge, Status};
use uwarp_iwarp::framing::{LENGTH_LEN, fpdu_len};
use uwarp_memory::{Access, Registration};
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World, is_skipped};
use uwarp_testkit::sim::SimOptions;
use uwarp_wire::ddp::Header;
use uwarp_wire::frame::{Frame, TcpFrame, classify};

const PORT: u16 = 7471;
const REGION: u32 = 256 << 10;

struct Bench {
    world: World,
    client: Pair,
    server: Pair,
    source: Registration,
    target: Registration,
}

/// Two hosts and a stream between them; the first host's segments are captured from before its connection on.
fn bench(seed: u64, options: SimOptions, capture: Option<&std::path::Path>) -> Bench {
    bench_of(seed, options, HostOptions::default(), PairOptions::default(), capture.map(|path| (0, path)))
}

/// The same with hosts and a client of any kind, and a capture at either host.
fn bench_of(
    seed: u64,
    options: SimOptions,
    host: HostOptions,
    client: PairOptions,
    capture: Option<(usize, &std::path::Path)>,
) -> Bench {
    let mut world = World::new(seed, options);
    for _ in 0..2 {
        world.add(host, |_| {});
    }
    if let Some((number, path)) = capture {
        let (reply, opened) = crossbeam::channel::unbounded();
        world.hosts[number].command(Command::StartCapture { path: path.to_owned(), reply });
        world.run(Duration::from_micros(10));
        assert_eq!(opened.try_recv(), Ok(Ok(())));
    }
    let requests = world.hosts[1].listen(PORT);
    let client = world.hosts[0].pair(client);
    let server = world.hosts[1].pair(PairOptions::default());
    world.join((0, &client), (1, &server), &requests, PORT);
    let source = world.hosts[0].register(vec![0x5a; REGION as usize], Access::LOCAL_READ);
    let target = world.hosts[1].register(vec![0; REGION as usize], Access::REMOTE_WRITE);
    Bench { world, client, server, source, target }
}

impl Bench {
    fn write(&mut self, id: u64, length: u32) {
        let local = Sge { stag: self.source.stag(), length, offset: self.source.base_offset() };
        let remote = (self.target.stag(), self.target.base_offset());
        assert!(self.client.post_simple(id, SendOpcode::Write, Some(local), remote));
    }

    /// Waits for `wanted` completions.
    fn complete(&mut self, wanted: usize) {
        let mut done = 0;
        let client = &mut self.client;
        assert!(self.world.run_until(Duration::from_secs(60), |_| {
            for completion in client.poll_all() {
                assert_eq!(completion.status, Status::Success);
                done += 1;
            }
            done == wanted
        }));
    }
}

/// A segment of the capture with octets that were never sent before.
#[derive(Debug)]
struct Fresh {
    /// Position of its first octet in the stream of FPDUs.
    at: u64,
    octets: Vec<u8>,
    ip_packet: usize,
}

/// The client's segments in a capture: those with new octets behind MPA's Request, and the number of retransmissions.
fn segments(path: &std::path::Path) -> (Vec<Fresh>, usize) {
    let (mut fresh, mut repeated) = (Vec::new(), 0);
    let mut next = None;
    let mut start = None;
    for frame in uwarp_testkit::capture::frames(path) {
        let Ok(Frame::Tcp(TcpFrame { header, payload_offset, payload_len, ip_offset, .. })) =
            classify(&frame, frame.len())
        else {
            continue;
        };
        if header.destination_port != PORT || payload_len == 0 {
            continue;
        }
        let octets = &frame[payload_offset..payload_offset + payload_len];
        let first = *next.get_or_insert(header.sequence);
        if header.sequence != first {
            repeated += 1;
            continue;
        }
        next = Some(header.sequence + payload_len as u32);
        match start {
            // The first segment is MPA's Request.
            None => start = Some(header.sequence + payload_len as u32),
            Some(start) => fresh.push(Fresh {
                at: (header.sequence - start) as u64,
                octets: octets.to_vec(),
                ip_packet: payload_offset + payload_len - ip_offset,
            }),
        }
    }
    (fresh, repeated)
}

/// Where FPDUs begin in the stream of octets, and where the last one ends.
fn boundaries(segments: &[Fresh]) -> Vec<u64> {
    let stream: Vec<u8> = segments.iter().flat_map(|segment| segment.octets.iter().copied()).collect();
    let mut all = vec![0];
    let mut at = 0;
    while at < stream.len() {
        at += fpdu_len(usize::from(u16::from_be_bytes([stream[at], stream[at + 1]])));
        all.push(at as u64);
    }
    assert_eq!(at, stream.len(), "the stream ends with an FPDU");
    all
}

fn is_aligned(segment: &Fresh, boundaries: &[u64]) -> bool {
    let end = segment.at + segment.octets.len() as u64;
    boundaries.binary_search(&segment.at).is_ok() && boundaries.binary_search(&end).is_ok()
}

#[test]
fn every_new_segment_holds_whole_fpdus_whatever_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut repeated = 0;
    for seed in 0..10 {
        let path = folder.path().join(format!("{seed}.pcap"));
        let options = SimOptions { loss: 0.02, reordering: 0.02, ..SimOptions::default() };
        let mut bench = bench(seed, options, Some(&path));
        let mut random = fastrand::Rng::with_seed(seed);
        for id in 0..40 {
            let length = if random.bool() { random.u32(..3000) } else { random.u32(..60_000) };
            bench.write(id, length);
        }
        bench.complete(40);
        bench.world.run(Duration::from_secs(1));
        bench.world.hosts[0].command(Command::StopCapture);
        bench.world.run(Duration::from_millis(1));
        let (fresh, again) = segments(&path);
        repeated += again;
        let boundaries = boundaries(&fresh);
        assert!(boundaries.len() > 100, "{} FPDUs, {} segments", boundaries.len(), fresh.len());
        for segment in &fresh {
            assert!(is_aligned(segment, &boundaries), "seed {seed}: {} octets at {}", segment.octets.len(), segment.at);
        }
    }
    assert!(repeated > 100, "{repeated} segments were sent again");
}

#[test]
fn what_the_device_cuts_out_of_one_frame_holds_whole_fpdus_too() {
    if is_skipped("the segments are looked at where they are received, cut at other places") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.pcap");
    let host = HostOptions { segmentation: 60_000, ..HostOptions::default() };
    let mut bench = bench_of(11, SimOptions::default(), host, PairOptions::default(), Some((1, &path)));
    let mut random = fastrand::Rng::with_seed(11);
    for id in 0..60 {
        bench.write(id, random.u32(..200_000));
    }
    bench.complete(60);
    bench.world.run(Duration::from_secs(1));
    bench.world.hosts[1].command(Command::StopCapture);
    bench.world.run(Duration::from_millis(1));
    let (fresh, repeated) = segments(&path);
    assert_eq!(repeated, 0);
    let boundaries = boundaries(&fresh);
    for segment in &fresh {
        assert!(is_aligned(segment, &boundaries), "{} octets at {}", segment.octets.len(), segment.at);
        assert!(segment.ip_packet <= 1500, "{} octets", segment.ip_packet);
    }
    let stats = bench.world.hosts[0].engine.as_ref().expect("it lives").stats();
    assert!(
        stats.counters.frames_sent * 4 < fresh.len() as u64,
        "{} frames, {} segments",
        stats.counters.frames_sent,
        fresh.len()
    );
    assert!(stats.counters.frames_to_be_cut > 60);
}

/// The sender's scoreboard has one entry for a frame, and the peer reports the segments that were cut out of it.
#[test]
fn of_a_frame_that_the_device_cuts_only_what_was_lost_is_sent_again() {
    if is_skipped("losses are counted, and a path in between has others") {
        return;
    }
    let (mut lost, mut repeated, mut cut) = (0, 0, 0);
    for seed in 0..8 {
        // FPDUs are a multiple of four octets long, and segments of half of these MTUs are not.
        let path_mtu = if seed % 2 == 0 { 1500 } else { 1450 };
        let options = SimOptions { loss: 0.003, delay: Duration::from_micros(50), path_mtu, ..SimOptions::default() };
        let host = HostOptions { segmentation: 9216, ..HostOptions::default() };
        let mut bench = bench_of(seed, options, host, PairOptions::default(), None);
        for id in 0..40 {
            bench.write(id, REGION);
        }
        bench.complete(40);
        bench.world.run(Duration::from_secs(1));
        let stats = bench.world.hosts[0].engine.as_ref().expect("it lives").stats();
        repeated += stats.counters.retransmissions;
        cut += stats.counters.frames_to_be_cut;
        lost += bench.world.network.counters().lost;
    }
    assert!(lost > 100 && cut > 1000, "{lost} lost, {cut} frames for the device to cut");
    assert!(repeated < 2 * lost, "{repeated} segments sent again, {lost} lost");
}

#[test]
fn a_path_that_grows_repeats_nothing_of_what_the_device_cuts() {
    if is_skipped("the path's MTU is that of another path") {
        return;
    }
    let host = HostOptions { segmentation: 9216, ..HostOptions::default() };
    let small = SimOptions { path_mtu: 1000, delay: Duration::from_millis(5), ..SimOptions::default() };
    let mut bench = bench_of(7, small, host, PairOptions::default(), None);
    let sent_again =
        |bench: &Bench| bench.world.hosts[0].engine.as_ref().expect("it lives").stats().counters.retransmissions;
    bench.write(0, REGION);
    bench.complete(1);
    assert!(sent_again(&bench) > 0, "the path was found to be smaller");
    bench.world.network.set_options(SimOptions { path_mtu: 1500, ..small });
    // A larger MTU is tried after ten minutes. Before that, slow start fills the receiver's ring.
    bench.world.run(Duration::from_secs(595));
    let start = bench.world.now();
    bench.write(1, REGION);
    let mut before = 0;
    for id in 2.. {
        bench.write(id, REGION);
        bench.complete(1);
        let stats = bench.world.hosts[0].engine.as_ref().expect("it lives").stats();
        if stats.connections[0].tcp.effective_mss > 1000 {
            break;
        }
        before = stats.counters.retransmissions;
        assert!(bench.world.now() < start + Duration::from_secs(10), "the path stays small");
    }
    bench.complete(1);
    assert_eq!(sent_again(&bench), before);
}

#[test]
fn alignment_comes_back_when_the_path_shrinks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("shrinks.pcap");
    let mut bench = bench(3, SimOptions::default(), Some(&path));
    for id in 0..4 {
        bench.write(id, 200_000);
    }
    bench.complete(1);
    bench.world.network.set_options(SimOptions { path_mtu: 1000, ..SimOptions::default() });
    bench.complete(3);
    for id in 4..8 {
        bench.write(id, 200_000);
    }
    bench.complete(4);
    bench.world.run(Duration::from_secs(1));
    bench.world.hosts[0].command(Command::StopCapture);
    bench.world.run(Duration::from_millis(1));
    let (fresh, repeated) = segments(&path);
    assert!(repeated > 0, "what was too long was sent again in pieces");
    let boundaries = boundaries(&fresh);
    let small = fresh.iter().position(|segment| segment.ip_packet <= 1000 && segment.ip_packet > 900);
    let after = &fresh[small.expect("segments of the new length")..];
    let astray = after.iter().rposition(|segment| !is_aligned(segment, &boundaries)).map_or(0, |last| last + 1);
    // FPDUs that TCP already held keep their length; those built afterwards fit.
    assert!(after.len() - astray > 800, "{} segments, the last astray is {astray}", after.len());
    assert!(after[astray..].iter().all(|segment| segment.ip_packet <= 1000));
}

#[test]
fn messages_do_not_interleave() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("messages.pcap");
    let mut bench = bench(5, SimOptions { loss: 0.005, ..SimOptions::default() }, Some(&path));
    // Responses to the peer's Reads share the stream with messages of our own.
    let shared = bench.world.hosts[0].register(vec![1; REGION as usize], Access::REMOTE_READ);
    let sink = bench.world.hosts[1].register(vec![0; REGION as usize], Access::LOCAL_WRITE);
    let inbox = bench.world.hosts[1].register(vec![0; 20_000], Access::LOCAL_WRITE);
    let entry = |region: &Registration, length| Sge { stag: region.stag(), length, offset: region.base_offset() };
    for id in 0..12 {
        assert!(bench.server.post_receive(id, &[entry(&inbox, 20_000)]));
        let remote = (shared.stag(), shared.base_offset());
        assert!(bench.server.post_simple(id, SendOpcode::Read, Some(entry(&sink, 30_000)), remote));
        bench.write(id, 25_000);
        assert!(bench.client.post_simple(id, SendOpcode::Send, Some(entry(&bench.source, 20_000)), (0, 0)));
    }
    bench.complete(24);
    let mut reads = 0;
    let server = &mut bench.server;
    assert!(bench.world.run_until(Duration::from_secs(60), |_| {
        reads += server.poll_all().iter().filter(|one| one.opcode == CompletionOpcode::Read).count();
        reads == 12
    }));
    bench.world.run(Duration::from_secs(1));
    bench.world.hosts[0].command(Command::StopCapture);
    bench.world.run(Duration::from_millis(1));
    let (fresh, _) = segments(&path);
    let stream: Vec<u8> = fresh.iter().flat_map(|segment| segment.octets.iter().copied()).collect();
    let (mut open, mut kinds, mut changes) = (None, HashSet::new(), 0);
    for at in boundaries(&fresh).windows(2).map(|pair| pair[0] as usize) {
        let header = Header::parse(&stream[at + LENGTH_LEN..]).expect("a DDP header");
        let message = match header {
            Header::Tagged(header) => (header.control, header.stag.0),
            Header::Untagged(header) => (header.control, header.message_sequence_number.0),
        };
        assert!(open.is_none_or(|open| open == message), "{message:?} inside {open:?}");
        open = (!header.last()).then_some(message);
        changes += usize::from(kinds.insert(message.0));
    }
    assert_eq!((open, changes), (None, 3), "Writes, Sends and Read Responses were on the stream");
}

#[test]
fn a_terminate_overtakes_work_that_waits() {
    let mut bench = bench(6, SimOptions { delay: Duration::from_millis(1), ..SimOptions::default() }, None);
    for id in 0..40 {
        bench.write(id, 250_000);
    }
    bench.world.run(Duration::from_millis(4));
    // The peer names a buffer that does not exist.
    assert!(bench.server.post_simple(1, SendOpcode::Write, None, (0, 0)));
    let local = bench.world.hosts[1].register(vec![0; 8], Access::LOCAL_READ);
    let entry = Sge { stag: local.stag(), length: 8, offset: local.base_offset() };
    assert!(bench.server.post_simple(2, SendOpcode::Write, Some(entry), (0xdead_beef, 0)));
    let asked = bench.world.now();
    let mut end = None;
    let server = &bench.server;
    assert!(bench.world.run_until(Duration::from_secs(10), |_| {
        end = server.events.try_recv().ok();
        end.is_some()
    }));
    let reason = DisconnectReason::PeerTerminated(TerminateCode { layer: 1, error_type: 1, code: 0 });
    assert_eq!(end, Some(ConnectionEvent::Disconnected(reason)));
    // A round trip takes two milliseconds; the ten million waiting octets would take a hundred.
    let took = bench.world.now().as_nanos() - asked.as_nanos();
    assert!(took < 20_000_000, "{took} ns");
    let done = bench.client.poll_all();
    let flushed = done.iter().filter(|completion| completion.status == Status::Flushed).count();
    assert_eq!(done.len(), 40);
    assert!(flushed > 20, "{flushed} Writes were flushed");
}

#[test]
fn a_small_fpdu_does_not_wait_for_the_acknowledgment_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("small.pcap");
    let delay = Duration::from_millis(10);
    let mut bench = bench(1, SimOptions { delay, ..SimOptions::default() }, Some(&path));
    bench.world.run(4 * delay);
    for id in 0..5 {
        bench.write(id, 16);
        bench.world.run(delay / 100);
    }
    // No acknowledgment can have arrived yet.
    bench.world.hosts[0].command(Command::StopCapture);
    bench.world.run(delay / 100);
    let (fresh, repeated) = segments(&path);
    assert_eq!((fresh.len(), repeated), (5, 0));
    assert_eq!(boundaries(&fresh).len(), 6);
}

#[test]
fn small_fpdus_posted_together_share_segments_as_far_as_they_fit_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("together.pcap");
    let mut bench = bench(12, SimOptions::default(), Some(&path));
    let mut random = fastrand::Rng::with_seed(12);
    for id in 0..60 {
        bench.write(id, random.u32(..200));
    }
    bench.complete(60);
    let shared = bench.world.hosts[0].register(vec![1; 64], Access::REMOTE_READ);
    let sink = bench.world.hosts[1].register(vec![0; 64], Access::LOCAL_WRITE);
    let entry = Sge { stag: sink.stag(), length: 64, offset: sink.base_offset() };
    for id in 0..10 {
        let remote = (shared.stag(), shared.base_offset());
        assert!(bench.server.post_simple(id, SendOpcode::Read, Some(entry), remote));
    }
    bench.world.run(Duration::from_secs(1));
    assert_eq!(bench.server.poll_all().len(), 10);
    bench.world.hosts[0].command(Command::StopCapture);
    bench.world.run(Duration::from_millis(1));
    let (fresh, repeated) = segments(&path);
    assert_eq!(repeated, 0);
    let boundaries = boundaries(&fresh);
    assert_eq!(boundaries.len() - 1, 70);
    for segment in &fresh {
        assert!(is_aligned(segment, &boundaries), "{} octets at {}", segment.octets.len(), segment.at);
    }
    let (responses, writes) = fresh.split_last().expect("segments");
    assert_eq!(responses.octets.len(), 10 * fpdu_len(14 + 64), "the responses share a segment");
    for pair in writes.windows(2) {
        let next = fpdu_len(usize::from(u16::from_be_bytes([pair[1].octets[0], pair[1].octets[1]])));
        assert!(pair[0].octets.len() + next > 1448, "{next} octets more fit behind {}", pair[0].octets.len());
    }
}

#[test]
fn a_write_in_a_shared_segment_completes_when_its_own_octets_are_acknowledged() {
    const WRITES: usize = 17;
    let mut inside = 0;
    for seed in 0..20 {
        let client = PairOptions { complete_on_ack: true, ..PairOptions::default() };
        let mut bench = bench_of(seed, SimOptions::default(), HostOptions::default(), client, None);
        // What leaves as one segment has to be cut, and only some of the pieces arrive.
        bench.world.network.set_options(SimOptions { path_mtu: 700, loss: 0.3, ..SimOptions::default() });
        let local = Sge { stag: bench.source.stag(), length: 64, offset: bench.source.base_offset() };
        for id in 0..WRITES as u64 {
            let remote = (bench.target.stag(), bench.target.base_offset() + id * 64);
            assert!(bench.client.post_simple(id, SendOpcode::Write, Some(local), remote));
        }
        let (client, target) = (&mut bench.client, &bench.target);
        let mut done = 0;
        assert!(bench.world.run_until(Duration::from_secs(60), |_| {
            for completion in client.poll_all() {
                assert_eq!((completion.id, completion.status), (done as u64, Status::Success));
                let mut written = [0; 64];
                target.read(done * 64, &mut written).expect("in range");
                assert_eq!(written, [0x5a; 64], "seed {seed}: Write {done} is complete and not there");
                done += 1;
            }
            inside += usize::from(done > 0 && done < WRITES);
            done == WRITES
        }));
    }
    assert!(inside > 0, "no completion came between those of one record");
}

#[test]
fn work_is_complete_when_tcp_has_taken_it_and_not_before() {
    const WRITES: usize = 60;
    let options = SimOptions::default();
    let mut bench = bench(1, options, None);
    bench.world.network.set_options(SimOptions { loss: 1.0, ..options });
    for id in 0..WRITES as u64 {
        bench.write(id, 1000);
    }
    bench.world.run(Duration::from_secs(1));
    let early = bench.client.poll_all().len();
    // Some fit into TCP's queue; the others stay with the application until the network lets octets through.
    assert!((1..WRITES / 2).contains(&early), "{early} Writes were complete");
    bench.world.run(Duration::from_secs(1));
    assert_eq!(bench.client.poll_all().len(), 0);
    bench.world.network.set_options(options);
    bench.complete(WRITES - early);
}

#[test]
fn an_fpdu_is_never_an_octet_longer_than_a_segment() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lengths.pcap");
    let mut bench = bench(4, SimOptions::default(), Some(&path));
    // 1448 octets of a segment hold a Write of 1428.
    for (id, length) in (0..).zip(1420..1440) {
        bench.write(id, length);
        bench.complete(1);
    }
    bench.world.run(Duration::from_secs(1));
    bench.world.hosts[0].command(Command::StopCapture);
    bench.world.run(Duration::from_millis(1));
    let (fresh, repeated) = segments(&path);
    assert_eq!(repeated, 0);
    let boundaries = boundaries(&fresh);
    assert_eq!(boundaries.len() - 1, 9 + 2 * 11, "those of up to 1428 octets are one FPDU each");
    for segment in &fresh {
        assert!(is_aligned(segment, &boundaries), "{} octets at {}", segment.octets.len(), segment.at);
    }
}
