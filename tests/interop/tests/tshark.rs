//! What the tools send on the wire, as tshark reads it: every CRC valid, nothing malformed, no expert error.

use std::path::Path;
use std::process::Command;

use uwarp::{
    AcceptOptions, Access, CompareSwap, CompletionFlags, Config, ConnectOptions, Context, DeviceConfig, Features,
    ListenOptions, ReceiveRequest, SendRequest, Status,
};
use uwarp_interop_tests::stack::{Endpoint, PATIENCE, open};
use uwarp_interop_tests::tools::{Guarded, run, tool, wait_for};
use uwarp_interop_tests::witness::{count, count_calls, count_with, examine};

const WRITE: usize = 0;
const READ_REQUEST: usize = 1;
const READ_RESPONSE: usize = 2;
const SEND: usize = 3;
const SEND_INVALIDATE: usize = 4;
const SEND_SOLICITED_INVALIDATE: usize = 6;
const ATOMIC_REQUEST: usize = 10;
const ATOMIC_RESPONSE: usize = 11;

#[test]
fn tshark_finds_nothing_wrong_with_a_ping() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, capture) = (folder.path().join("socket"), folder.path().join("ping.pcap"));
    let ping = || {
        let mut command = Command::new(tool("uwarp-ping"));
        command.arg("--socket").arg(&socket).args(["-C", "10"]);
        command
    };
    let server = Guarded::start(ping().args(["serve", "--once"]));
    wait_for(&socket);
    // 4096 octets take three segments each way.
    run(ping().args(["run", "--server", "10.77.0.1", "-S", "4096", "-V", "--pcap"]).arg(&capture));
    server.finish();
    let Some(testimony) = examine(&capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(testimony.opcodes[SEND], 40, "four Sends a round");
    assert_eq!(testimony.opcodes[READ_REQUEST], 10, "one Read a round");
    assert_eq!(testimony.opcodes[READ_RESPONSE], 30, "three segments each");
    assert!(
        (30..=35).contains(&testimony.opcodes[WRITE]),
        "the same, and what a slow server is nudged by: {testimony:?}"
    );
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
}

#[test]
fn tshark_finds_nothing_wrong_with_a_ping_over_ipv6_in_a_vlan() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, capture) = (folder.path().join("socket"), folder.path().join("ping.pcap"));
    let ping = || {
        let mut command = Command::new(tool("uwarp-ping"));
        // Not the default device, which gets unfinished checksums: here they are complete.
        command.args(["--device", "memif"]).arg("--socket").arg(&socket).args(["-C", "10", "--ipv6", "--vlan", "7"]);
        command
    };
    let server = Guarded::start(ping().args(["serve", "--once"]));
    wait_for(&socket);
    run(ping().args(["run", "-S", "4096", "-V", "--pcap"]).arg(&capture));
    server.finish();
    let Some(testimony) = examine(&capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(testimony.opcodes[SEND], 40, "four Sends a round");
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    // Every frame has the tag; every checksum of TCP and ICMPv6 is valid; and neighbours found each other.
    let all = count(&capture, "frame");
    assert!(all > 100, "{all} frames");
    assert_eq!(count(&capture, "vlan.id == 7 && ipv6"), all);
    let checked = ["-o", "tcp.check_checksum:TRUE"];
    assert_eq!(count_with(&capture, &checked, "tcp.checksum.status == Good"), count(&capture, "tcp"));
    assert_eq!(count(&capture, "icmpv6.checksum.status == Good"), count(&capture, "icmpv6"));
    assert!(count(&capture, "icmpv6.type == 135") > 0 && count(&capture, "icmpv6.type == 136") > 0);
}

#[test]
fn tshark_finds_nothing_wrong_with_atomics() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("atomics.pcap");
    run(Command::new(tool("uwarp-perf"))
        .args(["pair", "atomic-latency", "--iterations", "50", "--pcap"])
        .arg(&capture));
    let Some(testimony) = examine(&capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    let (requests, responses) = (testimony.opcodes[ATOMIC_REQUEST], testimony.opcodes[ATOMIC_RESPONSE]);
    assert!(requests >= 50 && responses == requests, "{testimony:?}");
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    // It dissects the fields of an Atomic Request, here of FetchAdd.
    assert_eq!(count(&capture, "iwarp_rdma.opcode == 10 && iwarp_rdma.atomic.opcode == 0"), requests);
}

/// Two connected ends in this process.
struct Joined {
    contexts: [Context; 2],
    target: Endpoint,
    source: Endpoint,
}

impl Joined {
    /// Over a ring of this name. What the source sends and receives is captured.
    fn new(name: &str, capture: &Path, features: Features) -> Self {
        let device = || DeviceConfig::Ring { name: name.to_owned(), loopback: false };
        let server = open(device(), "10.0.0.1/24");
        let config = uwarp_middlebox::behind(Config::new(device(), "10.0.0.2/24").unwrap().without_monitor());
        let client = Context::open(Config { pcap: Some(capture.to_owned()), ..config }).unwrap();
        let (mut target, mut source) = (Endpoint::new(&server), Endpoint::new(&client));
        let mut listener = server.listen(7471, ListenOptions::default()).unwrap();
        std::thread::scope(|scope| {
            let target = &mut target;
            scope.spawn(move || {
                let request = listener.next(PATIENCE).unwrap().expect("a request comes");
                request.accept(&mut target.queue_pair.control, AcceptOptions::default().features(features)).unwrap();
            });
            let peer = "10.0.0.1:7471".parse().unwrap();
            let options = ConnectOptions::default().features(features);
            client.connect(&mut source.queue_pair.control, peer, options).unwrap();
        });
        Self { contexts: [server, client], target, source }
    }

    /// Ends the capture.
    fn close(self) {
        drop((self.target, self.source));
        self.contexts.into_iter().for_each(|context| context.close().unwrap());
    }
}

#[test]
fn tshark_reads_the_operands_of_a_comparison_under_masks() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("comparison.pcap");
    let features = Features { atomics: true, ..Features::default() };
    let Joined { contexts, target, mut source } = Joined::new("comparison", &capture, features);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let word = target.domain.register(vec![0; 64], access).unwrap();
    word.fetch_add_u64(8, 0x1234_5678).unwrap();
    let (stag, offset) = (word.stag(), word.remote_offset() + 8);
    // Equal under the mask, and different: either way the answer is the previous value.
    let equal = CompareSwap { compare: 0x5600, compare_mask: 0xff00, swap: 0xab_0000, swap_mask: 0xff_0000 };
    let other = CompareSwap { compare: 0x5700, ..equal };
    for (id, operands) in [(1, equal), (2, other)] {
        source.queue_pair.send.post(&[SendRequest::compare_swap_masked(id, stag, offset, &operands)]).unwrap();
    }
    for (id, original) in [(1, 0x1234_5678), (2, 0x12ab_5678)] {
        let completion = source.completion();
        assert_eq!((completion.id, completion.status), (id, Status::Success), "{completion:?}");
        assert_eq!(completion.original_value(), Some(original));
    }
    drop(word);
    Joined { contexts, target, source }.close();
    let Some(testimony) = examine(&capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!((testimony.opcodes[ATOMIC_REQUEST], testimony.opcodes[ATOMIC_RESPONSE]), (2, 2), "{testimony:?}");
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    for operands in [equal, other] {
        let CompareSwap { compare, compare_mask, swap, swap_mask } = operands;
        let filter = format!(
            "iwarp_rdma.atomic.opcode == 2 && iwarp_rdma.atomic.remote_stag == {stag} \
             && iwarp_rdma.atomic.remote_tagged_offset == {offset} \
             && iwarp_rdma.atomic.swap_data == {swap} && iwarp_rdma.atomic.swap_mask == {swap_mask} \
             && iwarp_rdma.atomic.compare_data == {compare} && iwarp_rdma.atomic.compare_mask == {compare_mask}"
        );
        assert_eq!(count(&capture, &filter), 1, "{filter}");
    }
    for original in [0x1234_5678, 0x12ab_5678] {
        let filter = format!("iwarp_rdma.atomic.original_remote_data_value == {original}");
        assert_eq!(count(&capture, &filter), 1, "{filter}");
    }
}

#[test]
fn tshark_finds_nothing_wrong_with_messages_that_invalidate() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("invalidate.pcap");
    let Joined { contexts, mut target, mut source } = Joined::new("invalidate", &capture, Features::default());
    let offered = [(); 2].map(|()| target.domain.register(vec![0; 64], Access::REMOTE_WRITE).unwrap());
    for id in 0..2 {
        target.queue_pair.receive.post(&[ReceiveRequest::new(id, &[target.region.sge(..64).unwrap()])]).unwrap();
    }
    let stags = offered.each_ref().map(|region| region.stag());
    source
        .queue_pair
        .send
        .post(&[
            SendRequest::send_inline(1, b"invalidates").invalidate(stags[0]),
            SendRequest::send_inline(2, b"and calls").invalidate(stags[1]).solicited(),
        ])
        .unwrap();
    for (number, length) in [11, 9].into_iter().enumerate() {
        let received = target.completion();
        assert_eq!((received.status, received.length), (Status::Success, length), "{received:?}");
        assert_eq!(received.invalidated, stags[number]);
        assert_eq!(received.flags.contains(CompletionFlags::SOLICITED), number == 1, "{received:?}");
        assert_eq!(source.completion().status, Status::Success);
        assert!(!offered[number].is_valid());
    }
    Joined { contexts, target, source }.close();
    let Some(testimony) = examine(&capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!((testimony.opcodes[SEND_INVALIDATE], testimony.opcodes[SEND_SOLICITED_INVALIDATE]), (1, 1));
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    // The STag that it finds in each is the offered one.
    for (opcode, stag) in [(4, stags[0]), (6, stags[1])] {
        let filter = format!("iwarp_rdma.opcode == {opcode} && iwarp_rdma.inval_stag == {stag}");
        assert_eq!(count(&capture, &filter), 1, "{filter}");
    }
}

#[test]
fn tshark_finds_nothing_wrong_with_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, served) = (folder.path().join("socket"), folder.path().join("served"));
    let captures = [folder.path().join("put.pcap"), folder.path().join("get.pcap")];
    let (original, back) = (folder.path().join("file"), folder.path().join("back"));
    std::fs::create_dir(&served).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let octets: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(300_001).collect();
    std::fs::write(&original, &octets).unwrap();

    let copy = || {
        let mut command = Command::new(tool("uwarp-copy"));
        command.arg("--socket").arg(&socket);
        command
    };
    let _server = Guarded::start(copy().arg("serve").arg(&served));
    wait_for(&socket);
    run(copy().arg("--pcap").arg(&captures[0]).arg("put").arg(&original));
    run(copy().arg("--pcap").arg(&captures[1]).args(["get", "file", "--output"]).arg(&back));
    assert_eq!(std::fs::read(served.join("file")).unwrap(), octets);
    assert_eq!(std::fs::read(&back).unwrap(), octets);
    for capture in &captures {
        let Some(testimony) = examine(capture) else { continue };
        assert_eq!(testimony.complaints, [""; 0], "{}", capture.display());
        let data = testimony.opcodes[WRITE] + testimony.opcodes[READ_RESPONSE];
        assert!(data > 200, "{testimony:?}: 300,001 octets take more than 200 segments");
        assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    }
}

#[test]
fn tshark_reads_calls_over_rdma() {
    // Test, octets, and how they are sent: chunks of calls and of replies, and whether messages are in them.
    let rows: [(&str, &str, &str, &str); 5] = [
        ("null", "0", "rpcordma.msg_type == 0", "rpcordma.msg_type == 0"),
        ("put", "3000", "rpcordma.msg_type == 0 && rpcordma.reads_count == 0", "rpcordma.msg_type == 0"),
        ("put", "100001", "rpcordma.reads_count == 1 && !(rpcordma.writes_count > 0)", "rpcordma.reads_count == 0"),
        ("get", "100001", "rpcordma.writes_count == 1 && !(rpcordma.reads_count > 0)", "rpcordma.writes_count == 1"),
        (
            "echo",
            "20000",
            "rpcordma.msg_type == 1 && rpcordma.reads_count == 1 && rpcordma.reply_count == 1",
            "rpcordma.msg_type == 1 && rpcordma.reads_count == 0 && rpcordma.reply_count == 1",
        ),
    ];
    for (test, size, calls, replies) in rows {
        let folder = tempfile::tempdir().unwrap();
        let (socket, capture) = (folder.path().join("socket"), folder.path().join("rpc.pcap"));
        let rpc = |what: &str| {
            let mut command = Command::new(tool("uwarp-rpc"));
            command.arg(what).arg("--socket").arg(&socket);
            command
        };
        let server = Guarded::start(rpc("serve").arg("--once"));
        wait_for(&socket);
        run(rpc("run")
            .args([test, "--size", size, "--iterations", "20", "--json"])
            .arg(folder.path().join("result"))
            .arg("--pcap")
            .arg(&capture));
        server.finish();
        let Some(testimony) = examine(&capture) else { continue };
        let count = |filter: &str| count_calls(&capture, filter);
        assert_eq!(testimony.complaints, [""; 0], "{test}");
        assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
        // 20 calls, two to warm up; three more have other purposes: the first, and two for the CPU time.
        let (timed, others) = (22, 3);
        assert_eq!(count("rpcordma.version == 1"), 2 * (timed + others), "{test}");
        // Calls, too, some of which are reassembled from data read by RDMA.
        assert_eq!(count("rpc.program == 0x20005752"), 2 * (timed + others), "{test} of {size}");
        assert_eq!(count("rpcordma && rpc.msgtyp == 1 && rpc.state_accept == 0"), timed + others, "{test} of {size}");
        assert_eq!(count("rpcordma.errcode"), 0, "{test}");
        let others = if test == "null" || size == "3000" { others } else { 0 };
        let found = |filter: &str, kind: &str| count(&format!("{kind} && {filter}"));
        // The address identifies the sender: the message of a long call is not in the Send.
        assert_eq!(found(calls, "ip.src == 10.77.0.2"), timed + others, "{test} of {size}: {calls}");
        let least = timed + others;
        assert!(found(replies, "ip.src == 10.77.0.1") >= least, "{test} of {size}: {replies}");
        // A requester exposes memory, and neither reads nor writes remote memory (RFC 8166 §3.1). A slow server is
        // nudged by Writes of nothing, whose STag is 1.
        let touches = "(iwarp_rdma.opcode == 0 && !(iwarp_ddp.stag == 1) || iwarp_rdma.opcode == 1)";
        assert_eq!(count(&format!("ip.src == 10.77.0.2 && {touches}")), 0);
    }
}
