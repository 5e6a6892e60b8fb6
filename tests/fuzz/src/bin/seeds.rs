//! Regenerates the seed corpus from the test vectors and the recorded captures: `seeds DIRECTORY`.
//!
//! A frame is kept if its kind (flags, length of the TCP header, RDMAP operation) differs from those before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use uwarp_wire::arp::ArpPacket;
use uwarp_wire::checksum;
use uwarp_wire::ethernet::{EthernetAddress, VlanTag};
use uwarp_wire::frame::{Frame, Path as NetworkPath, TcpChecksum, classify, emit_icmp, prepend_tcp, tcp_headers_len};
use uwarp_wire::icmp::{IcmpMessage, unreachable};
use uwarp_wire::mpa::{FrameKind, StartupFrame};
use uwarp_wire::tcp::{SackBlock, SackBlocks, SeqNumber, TcpFlags, TcpHeader, TcpOptions, Timestamps};

/// Octets of the longest recorded frame that is kept: long payloads only slow a fuzzer down.
const LONGEST_RECORDED: usize = 400;

fn main() {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        std::process::exit(2);
    };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data");
    let frames = Corpus::new(&directory, "frame");
    let startups = Corpus::new(&directory, "mpa_startup");
    made_frames(&frames);
    let messages = Corpus::new(&directory, "rpc_header");
    // The contents that the Linux kernel's NFS client puts into its MPA Request.
    messages.add("private-data", &[0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3]);
    vectors(&data, &frames, &startups, &Corpus::new(&directory, "markers"), &messages);
    recorded(&data, &frames, &startups);
    calls(&data, &Corpus::new(&directory, "nfs_call"));
    lives(&Corpus::new(&directory, "tcp"));
    conversations(&Corpus::new(&directory, "queue_pair"));
    by_chance(&Corpus::new(&directory, "cable"), 512);
    by_chance(&Corpus::new(&directory, "verbs_calls"), 2048);
    let clients = Corpus::new(&directory, "memif_control");
    clients.add("usual", &USUAL_MEMIF_CLIENT);
    by_chance(&clients, 256);
}

/// A client that connects with one region and two rings, rings, reads and says goodbye.
const USUAL_MEMIF_CLIENT: [u8; 40] = [
    1, 0, 0, 0, 0, // connected, and INIT
    2, 0, 4, 0, // a region of 64 KiB
    4, 0, 6, 0, 0, 1, 0, 0, // the ring to the server
    4, 0, 6, 0, 1, 0, 0, 0, // the ring from it
    6, b'u', // CONNECT
    10, 10, 10, 10, 10, 10, 10, // turns of the server
    7, b'x', 90, 10, 10, 11, // DISCONNECT, and the end
];

/// Octets by chance, for targets in whose language any octets are a program.
fn by_chance(corpus: &Corpus, len: usize) {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let octets: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        corpus.add(&format!("by-chance-{seed}"), &octets);
    }
}

/// Calls of the Linux client: each after those that return its handles, and many in sequence.
fn calls(data: &Path, corpus: &Corpus) {
    let text = fs::read(data.join("nfs-calls.json")).expect("the calls are in the tree");
    let all: Value = serde_json::from_slice(&text).expect("they are JSON");
    let recorded: Vec<(&str, Vec<u8>)> = all["calls"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| (entry["procedure"].as_str().expect("a name"), octets(entry["call"].as_str().expect("octets"))))
        .collect();
    let (_, access) = recorded.iter().find(|(procedure, _)| *procedure == "access").expect("it asks for access");
    // Header and credential, up to the arguments, which begin with a handle and its length.
    let header = &access[..access.len() - 4 - 28];
    let call = |procedure: u8, folder: u8, arguments: &[u8]| {
        let mut message = header.to_vec();
        message[23] = procedure;
        message.extend_from_slice(&[0, 0, 0, 24, 0x75, 0x77, 0, 1, 0xff, 0xff, 0xff, 0xff, folder]);
        message.extend_from_slice(&[0; 15]);
        message.extend_from_slice(arguments);
        framed(&message)
    };
    const LOOKUP: u8 = 3;
    const COMMIT: u8 = 21;
    let known = [
        call(LOOKUP, 0, b"\0\0\0\x05hello\0\0\0"),
        call(LOOKUP, 1, b"\0\0\0\x04file"),
        call(LOOKUP, 0, b"\0\0\0\x04link"),
        call(LOOKUP, 0, b"\0\0\0\x03out\0"),
    ]
    .concat();
    let mut several = Vec::new();
    for (number, (procedure, message)) in recorded.iter().enumerate() {
        let first = recorded.iter().position(|(other, _)| other == procedure) == Some(number);
        if first {
            // Options: neither read-only nor with root squashed.
            corpus.add(procedure, &[&[0], &known[..], &framed(message)].concat());
        }
        several.push(framed(message));
    }
    // From the creation of the folder to its removal: the calls in between use its contents.
    let at = |name| recorded.iter().position(|(procedure, _)| *procedure == name).expect("it is among them");
    let between: Vec<u8> =
        recorded[at("mkdir")..=at("rmdir")].iter().flat_map(|(_, message)| framed(message)).collect();
    corpus.add("made-and-removed", &[&[0], &known[..], &between].concat());
    corpus.add("commit", &[&[0], &known[..], &call(COMMIT, 2, &[0; 12])].concat());
    for (part, calls) in several.chunks(20).enumerate() {
        for (name, options) in [("all", 0), ("read-only", 3)] {
            corpus.add(&format!("{name}-{part}"), &[&[options], &known[..], &calls.concat()].concat());
        }
    }
}

fn octets(hex: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// A call behind its length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("a short call");
    [&length.to_be_bytes()[..], message].concat()
}

/// Exchanges between a peer and an application, in the language of the target `queue_pair`.
fn conversations(corpus: &Corpus) {
    // All features, three reads.
    const SETTINGS: &[u8] = &[0x37];
    const WAIT: &[u8] = &[14, 1];
    const RECEIVE: &[u8] = &[9];
    const COMMITTERS: &[u8] = &[13];
    // Octets for a segment with nothing unusual.
    const PLAIN: &[u8] = &[0, 0, 0];
    let write = |region: u8, at: u8| [&[2, region, at, 0, 8, 0][..], b"contents"].concat();
    let message = |opcode: u8, octets: &[u8]| [&[5, opcode, octets.len() as u8][..], octets, PLAIN].concat();
    let request = |kind: u8, region: u8, at: u8| [&[6, kind, 32, region, at][..], PLAIN].concat();
    let response = |kind: u8, identifier: u8| [&[8, kind, identifier, 0, 0, 0][..], PLAIN].concat();
    let work = |kind: u8| vec![10, kind, 64];
    let hello = write(0, 0);
    let add =
        |name: &str, steps: &[&[u8]]| corpus.add(name, &[&[SETTINGS, &hello][..], steps, &[WAIT]].concat().concat());
    add("write", &[&write(1, 200)]);
    add("write-beyond", &[&write(1, 250)]);
    add("write-to-read-only", &[&write(4, 0)]);
    add("send", &[RECEIVE, &message(3, b"a message")]);
    add("send-too-long", &[RECEIVE, &message(3, &[1; 40])]);
    add("send-without-receive", &[&message(3, b"")]);
    // The position of the STag is before the plain octets.
    add("send-invalidate", &[RECEIVE, &[5, 4, 0, 0, 0, 1, 0, 0], WAIT, &write(1, 0)]);
    add("immediate", &[RECEIVE, &message(8, &[7; 8])]);
    add("read", &[&request(0, 4, 10), &request(1, 0, 0)]);
    add("read-beyond", &[&request(0, 4, 250)]);
    add("reads-beyond-the-limit", &[&request(0, 4, 10).repeat(6)]);
    add("atomics", &[&request(2, 0, 8), &request(6, 0, 16), &request(2, 0, 9)]);
    add("commit", &[&request(3, 2, 10), WAIT, COMMITTERS]);
    add("commit-of-several", &[&[6, 7, 32, 2, 10, 3, 0, 16], PLAIN, WAIT, COMMITTERS]);
    add("told-when-durable", &[RECEIVE, &write(3, 0), &message(3, b"log"), WAIT, COMMITTERS]);
    add("terminate", &[RECEIVE, &work(2), &message(7, &[0x12, 5, 0, 0])]);
    add("not-framed", &[&[1, 8, 0, 2, 1, 2, 3, 4, 5, 6]]);
    let all: Vec<u8> = (0..7).flat_map(work).collect();
    add("work", &[&all, WAIT, &[8, 0, 0, 0, 0, 0], PLAIN]);
    // A Read Response into the second half of the inbox.
    add("work-read", &[&work(2), WAIT, &[2, 8, 128, 1, 32, 0], &[9; 32]]);
    let all: Vec<u8> = (7..12).flat_map(work).collect();
    add("work-extensions", &[&all, WAIT, &response(0, 0)]);
    // A window over open memory, with a write through it; and one that is invalid again.
    add("work-window", &[&work(10), WAIT, &write(9, 0)]);
    add("work-window-invalidated", &[&work(10), &work(11), WAIT, &write(9, 0)]);
    // The peer makes the window's STag invalid.
    add("work-window-revoked", &[&work(10), RECEIVE, WAIT, &[5, 4, 0, 0, 0, 9, 0, 0], WAIT, &write(9, 0)]);
    add("work-atomic", &[&work(4), WAIT, &response(0, 0)]);
    add("work-commit", &[&work(5), &work(6), WAIT, &response(1, 0), &response(1, 1)]);
    add("disconnect", &[RECEIVE, &work(0), &[15, 0], WAIT, &[15, 1]]);
    add("invalidate", &[&[15, 2], &write(2, 0)]);
}

/// Short lives of a TCP connection, in the language of the target `tcp`.
fn lives(corpus: &Corpus) {
    const POLL: &[u8] = &[255];
    // A segment: kind of flags, exact numbers, window, options, no blocks; length and ECN follow.
    let segment = |kind: u8, options: &[u8], len: u16, ecn: u8| -> Vec<u8> {
        [&[0, kind, 0, 0, 0x40, 0][..], options, &[0], &len.to_be_bytes(), &[ecn]].concat()
    };
    // MSS 1000, shift 7, SACK.
    let syn_options: &[u8] = &[7, 3, 232, 7];
    let (ack, fin, syn_ack) = (0, 3, 4);
    let plain = |kind| segment(kind, &[0], 0, 0);
    let passive = |settings: u8, kind: u8| [&[settings, kind, 0x40, 0], syn_options, POLL, &plain(ack)[..]].concat();
    let push: &[u8] = &[160, 3, 232];
    let wait: &[u8] = &[200, 0, 200, 10];
    let close: &[u8] = &[233];
    corpus.add(
        "active",
        &[&[0x66, 0xf1], POLL, &segment(syn_ack, syn_options, 0, 0), push, POLL, &plain(ack), close, POLL, &plain(fin)]
            .concat(),
    );
    corpus.add("passive-data", &[&passive(0x66, 0xf0)[..], &segment(ack, &[0], 1000, 0), POLL, &plain(fin)].concat());
    corpus.add("peer-closes", &[&passive(0x66, 0xf2)[..], &plain(fin), POLL, push, close, POLL, &plain(ack)].concat());
    corpus.add("time-outs", &[&passive(0x60, 0xf0)[..], push, push, POLL, wait, wait, &plain(ack), POLL].concat());
    corpus.add("grows", &[&passive(0x6e, 0xf0)[..], push, POLL, push, &[180, 0, 50], POLL, &plain(ack), POLL].concat());
    corpus.add(
        "path-and-window",
        &[&passive(0xa6, 0xf0)[..], push, push, POLL, &[195, 2, 0], POLL, &[190, 0, 0, 0], &plain(ack), POLL, wait]
            .concat(),
    );
    // Ahead of a gap, twice, overlapping, and then the gap.
    let ahead =
        |distance: u8, len: u16| [&[0, ack, 1, distance, 0, 0x40, 0, 0, 0][..], &len.to_be_bytes(), &[0]].concat();
    corpus.add(
        "gaps",
        &[&passive(0x66, 0xf0)[..], &ahead(100, 50), &ahead(60, 60), &ahead(100, 50), POLL, &ahead(0, 200), POLL]
            .concat(),
    );
    // With ECN, and DCTCP's echo.
    corpus.add(
        "marks",
        &[&passive(0x66, 0xf4)[..], &segment(ack, &[0], 900, 3), &segment(ack, &[0], 900, 2), POLL, push, POLL]
            .concat(),
    );
}

struct Corpus(PathBuf);

impl Corpus {
    fn new(directory: &Path, target: &str) -> Corpus {
        let directory = directory.join(target);
        fs::create_dir_all(&directory).expect("the corpus directory can be made");
        Corpus(directory)
    }

    fn add(&self, name: &str, octets: &[u8]) {
        fs::write(self.0.join(name), octets).expect("a seed can be written");
    }

    /// A start-up frame, behind options (bit 3: CRC; bits 0-2: kinds of ready-to-receive) and the seed of the cuts.
    fn add_startup(&self, name: &str, octets: &[u8]) {
        let options = if octets.get(16).is_some_and(|flags| flags & 0x10 != 0) { 0x2f } else { 0x28 };
        let seed = if octets.get(17) == Some(&2) { 2 } else { 3 };
        self.add(name, &[&[options, seed], octets].concat());
    }
}

fn path() -> NetworkPath {
    NetworkPath::new(
        EthernetAddress([2, 0, 0, 0, 0, 1]),
        EthernetAddress([2, 0, 0, 0, 0, 2]),
        Ipv4Addr::new(10, 0, 0, 1).into(),
        Ipv4Addr::new(10, 0, 0, 2).into(),
    )
}

fn segment(path: &NetworkPath, flags: TcpFlags, options: TcpOptions, payload: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(flags);
    header.source_port = 40000;
    header.destination_port = 20049;
    header.sequence = SeqNumber(1000);
    header.acknowledgment = SeqNumber(2000);
    header.window = 8192;
    header.options = options;
    let headers = tcp_headers_len(path, &header);
    let mut frame = vec![0; headers];
    frame.extend_from_slice(payload);
    let checksum = TcpChecksum::Full { payload_sum: checksum::sum(payload) };
    prepend_tcp(&mut frame[..headers], path, &header, 0, payload.len(), checksum).expect("a small segment");
    frame
}

/// Frames that neither the vectors nor the captures contain.
fn made_frames(corpus: &Corpus) {
    let timestamps = Some(Timestamps { value: 1, echo: 2 });
    let mut sack = SackBlocks::NONE;
    sack.push(SackBlock { left: SeqNumber(3000), right: SeqNumber(4000) });
    let blocks = segment(&path(), TcpFlags::ACK, TcpOptions { timestamps, sack, ..TcpOptions::NONE }, b"");
    corpus.add("tcp-sack", &blocks);
    let mut tagged = path();
    tagged.vlan = Some(VlanTag(0x6005));
    corpus.add("tcp-vlan", &segment(&tagged, TcpFlags::ACK, TcpOptions::NONE, b"data"));
    let plain = segment(&path(), TcpFlags::ACK | TcpFlags::PSH, TcpOptions::NONE, b"data");
    let mut with_options = [&plain[..34], &[7, 3, 4, 0], &plain[34..]].concat();
    with_options[14] = 0x46;
    with_options[17] += 4;
    corpus.add("ipv4-options", &with_options);
    let mut fragment = plain.clone();
    fragment[20] = 0x20;
    corpus.add("ipv4-fragment", &fragment);
    let mut out = [0; 128];
    let request = ArpPacket::request(path().source_mac, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let length = request.emit_frame(&mut out).expect("128 octets are enough");
    corpus.add("arp-request", &out[..length]);
    let quoted = &plain[14..42];
    for (name, message) in [
        ("icmp-echo", IcmpMessage::EchoRequest { identifier: 1, sequence: 2, data: b"ping" }),
        (
            "icmp-fragmentation-needed",
            IcmpMessage::DestinationUnreachable { code: unreachable::FRAGMENTATION_NEEDED, next_hop_mtu: 1400, quoted },
        ),
        ("icmp-time-exceeded", IcmpMessage::TimeExceeded { code: 0, quoted }),
    ] {
        let length = emit_icmp(&mut out, &path(), &message).expect("128 octets are enough");
        corpus.add(name, &out[..length]);
    }
}

fn vectors(data: &Path, frames: &Corpus, startups: &Corpus, markers: &Corpus, messages: &Corpus) {
    let text = fs::read_to_string(data.join("test-vectors.json")).expect("the vectors can be read");
    let list: Vec<Value> = serde_json::from_str(&text).expect("the vectors are JSON");
    let mut fpdus = BTreeMap::new();
    for entry in &list {
        let field = |name: &str| entry[name].as_str().expect("a string");
        let (name, hex) = (field("name"), field("hex"));
        let octets = octets(hex);
        match field("layer") {
            "MPA" => startups.add_startup(name, &octets),
            "FPDU" if entry["fields"]["stream_offset"].is_u64() => {
                let offset = entry["fields"]["stream_offset"].as_u64().unwrap_or(0);
                markers.add(name, &[&((offset / 4) as u16).to_le_bytes(), &octets[..]].concat());
            }
            "RPC" => messages.add(name, &octets),
            // Within a frame, the bodies of RPC are payload.
            "FPDU" if entry["fields"].get("markers").is_none() && !name.contains("rpc") => {
                let flags = TcpFlags::ACK | TcpFlags::PSH;
                frames.add(name, &segment(&path(), flags, TcpOptions::NONE, &octets));
                fpdus.insert(name.to_owned(), octets);
            }
            _ => {}
        }
    }
    // Streams that go on, and end differently.
    let sends = ["send-3", "send-se-2", "send-inv-4"];
    let chains: [(&str, &[&str]); 3] = [
        ("chain-sends", &[sends[0], "write-seg1", sends[1], "write-seg2", sends[2], "term-rdmap-invalid-stag"]),
        ("chain-reads", &["rtr-read0", "read-response-6", "atomic-fetchadd-req", "write-5"]),
        ("chain-fault", &["rtr-write0", "send-3", "read-request", "send-3"]),
    ];
    for (name, chain) in chains {
        let payload: Vec<u8> = chain.iter().flat_map(|name| fpdus[*name].clone()).collect();
        frames.add(name, &segment(&path(), TcpFlags::ACK, TcpOptions::NONE, &payload));
    }
}

fn recorded(data: &Path, frames: &Corpus, startups: &Corpus) {
    let mut kinds = BTreeSet::new();
    let mut captures: Vec<PathBuf> = fs::read_dir(data.join("captures"))
        .expect("the captures can be listed")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    captures.sort();
    for capture in captures {
        let name = capture.file_stem().expect("a file name").to_string_lossy().into_owned();
        let file = fs::read(&capture).expect("a capture can be read");
        let mut at = 24;
        let mut number = 0;
        while let Some(record) = file.get(at..at + 16) {
            let length = u32::from_le_bytes(record[8..12].try_into().expect("four octets")) as usize;
            let frame = &file[at + 16..at + 16 + length];
            at += 16 + length;
            number += 1;
            let Ok(Frame::Tcp(tcp)) = classify(frame, frame.len()) else { continue };
            let payload = &frame[tcp.payload_offset..][..tcp.payload_len];
            let startup = payload.starts_with(b"MPA ID Re");
            if startup {
                let kind = if payload[13] == b'q' { FrameKind::Request } else { FrameKind::Reply };
                if let Ok(Some((_, length))) = StartupFrame::parse(kind, payload)
                    && kinds.insert((0, 0, payload[..length].to_vec()))
                {
                    startups.add_startup(&format!("{name}-{number}"), &payload[..length]);
                }
            }
            let operation =
                if startup { payload[16..18].to_vec() } else { payload.iter().skip(2).take(2).copied().collect() };
            let header_len = tcp.payload_offset - tcp.l4_offset;
            if frame.len() <= LONGEST_RECORDED && kinds.insert((tcp.header.flags.bits(), header_len, operation)) {
                frames.add(&format!("{name}-{number}"), frame);
            }
        }
    }
}
