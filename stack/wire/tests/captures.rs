//! Recorded iWARP traffic of other implementations, decoded from the frames up. Every octet is accounted for, and the
//! result compared with what tshark says of the same files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use uwarp_wire::address::FlowKey;
use uwarp_wire::checksum;
use uwarp_wire::ddp::Header;
use uwarp_wire::frame::{Frame, classify};
use uwarp_wire::mpa::{self, FrameKind, StartupFrame};
use uwarp_wire::rdmap::{Opcode, ReadRequest, Terminate};
use uwarp_wire::tcp::{SeqNumber, TcpFlags};

/// The frames of a classic pcap file (little-endian, Ethernet).
fn frames(name: &str) -> Vec<Vec<u8>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/captures/");
    let file = std::fs::read(format!("{directory}{name}.pcap")).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert!(matches!(word(0), 0xa1b2_c3d4 | 0xa1b2_3c4d), "{name} is not a pcap file");
    assert_eq!(word(20), 1, "{name} is not Ethernet");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let (captured, length) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, length, "{name} has truncated frames");
        frames.push(file[at + 16..at + 16 + captured].to_vec());
        at += 16 + captured;
    }
    frames
}

/// One direction of a TCP connection.
#[derive(Default)]
struct Direction {
    next: Option<SeqNumber>,
    stream: Vec<u8>,
}

/// Reassembles each direction of the one connection in a capture, keyed by the flow as its receiver sees it. The first
/// of the two is the Initiator's.
fn streams(name: &str) -> (Vec<u8>, Vec<u8>) {
    let mut directions: BTreeMap<(u16, u16), Direction> = BTreeMap::new();
    let mut initiator: Option<FlowKey> = None;
    for frame in frames(name) {
        let tcp = match classify(&frame, frame.len()) {
            Ok(Frame::Tcp(tcp)) => tcp,
            other => panic!("{name}: {other:?}"),
        };
        // The capture was taken inside the sending guest, before its device filled in the checksum: some frames hold
        // the sum of the pseudo-header only.
        let unfinished = checksum::fold(tcp.pseudo_header_sum()).to_be_bytes();
        let field = &frame[tcp.l4_offset + 16..tcp.l4_offset + 18];
        assert!(tcp.checksum_is_good(&frame, checksum::sum) || field == unfinished);
        let key = (tcp.flow.remote_port, tcp.flow.local_port);
        let direction = directions.entry(key).or_default();
        if tcp.header.flags.contains(TcpFlags::SYN) {
            if !tcp.header.flags.contains(TcpFlags::ACK) {
                assert!(initiator.replace(tcp.flow).is_none(), "{name}: one connection expected");
            }
            direction.next = Some(tcp.header.sequence + 1);
            continue;
        }
        let payload = &frame[tcp.payload_offset..][..tcp.payload_len];
        if payload.is_empty() {
            continue;
        }
        let next = direction.next.unwrap();
        assert!(tcp.header.sequence.le(next), "{name}: the capture has a hole");
        let repeated = next.offset_from(tcp.header.sequence) as usize;
        if repeated < payload.len() {
            direction.stream.extend(&payload[repeated..]);
            direction.next = Some(tcp.header.sequence + payload.len() as u32);
        }
    }
    let flow = initiator.unwrap();
    let mut take = |key| directions.remove(&key).unwrap_or_default().stream;
    (take((flow.remote_port, flow.local_port)), take((flow.local_port, flow.remote_port)))
}

/// Decodes one direction; returns its FPDUs as `length:operation`, runs of equal ones counted.
fn decode(kind: FrameKind, stream: &[u8], crc: bool, revision: u8) -> String {
    let (frame, mut at) = StartupFrame::parse(kind, stream).unwrap().unwrap();
    assert_eq!((frame.markers, frame.reject, frame.revision), (false, false, revision));
    assert_eq!(frame.crc, crc);
    let mut fpdus: Vec<(String, usize)> = Vec::new();
    while at < stream.len() {
        let length = usize::from(u16::from_be_bytes([stream[at], stream[at + 1]]));
        let fpdu = &stream[at..at + mpa::fpdu_len(length)];
        at += fpdu.len();
        let (covered, field) = fpdu.split_last_chunk().unwrap();
        let expected = if crc { crc32c::crc32c(covered) } else { 0 };
        assert_eq!(mpa::crc_from_octets(*field), expected);
        let ulpdu = &fpdu[2..2 + length];
        let header = Header::parse(ulpdu).unwrap();
        let mut emitted = [0; 18];
        let header_len = header.emit(&mut emitted);
        assert_eq!(emitted[..header_len], ulpdu[..header_len]);
        let opcode = header.control().parse().unwrap();
        let body = &ulpdu[header_len..];
        match opcode {
            Opcode::ReadRequest => assert_eq!(ReadRequest::parse(body).unwrap().to_octets(), body),
            // This peer's Terminate orders the bits of its control word differently, so only parsing is checked.
            Opcode::Terminate => assert!(Terminate::parse(body).is_ok()),
            _ => {}
        }
        let text = format!("{length}:{:x}", opcode.code());
        match fpdus.last_mut() {
            Some((last, count)) if *last == text => *count += 1,
            _ => fpdus.push((text, 1)),
        }
    }
    let mut line = String::new();
    for (text, count) in fpdus {
        write!(line, "{}{text}", if line.is_empty() { "" } else { " " }).unwrap();
        if count > 1 {
            write!(line, "*{count}").unwrap();
        }
    }
    line
}

fn check(name: &str, crc: bool, revision: u8, initiator: &str, responder: &str) {
    let streams = streams(name);
    assert_eq!(decode(FrameKind::Request, &streams.0, crc, revision), initiator, "{name}");
    assert_eq!(decode(FrameKind::Reply, &streams.1, crc, revision), responder, "{name}");
}

const CLIENT: &str = "34:3 1442:2*2 158:2 34:3*2 1442:2*2 158:2 34:3";
const SERVER: &str = "46:1 34:3 1442:0*2 158:0 34:3 46:1 34:3 1442:0*2 158:0 34:3";

#[test]
fn captures_without_crc() {
    check(
        "rping",
        false,
        2,
        &format!("{CLIENT}*2 1442:2*2 158:2 34:3"),
        &format!("{SERVER} 46:1 34:3 1442:0*2 158:0 34:3"),
    );
    check("var-default", false, 2, CLIENT, SERVER);
}

#[test]
fn capture_with_crc() {
    check("var-crc-client", true, 2, CLIENT, SERVER);
}

#[test]
fn capture_of_mpa_revision_1() {
    check("var-mpa1", false, 1, "34:3", "");
}

#[test]
fn captures_of_peer_to_peer_connections() {
    check("var-p2p", false, 2, &format!("14:0 {CLIENT}"), SERVER);
    check("var-p2p-read", false, 2, &format!("46:1 {CLIENT}"), &format!("14:2 {SERVER}"));
}

#[test]
fn capture_of_fpdus_larger_than_a_segment() {
    check("var-gso", false, 2, "34:3 30014:2 34:3*2 30014:2 34:3", "46:1 34:3 30014:0 34:3 46:1 34:3 30014:0 34:3");
}

#[test]
fn capture_with_a_terminate() {
    check(
        "term",
        false,
        2,
        "1442:3*2 1266:3 1442:3*2 1266:3 1442:3*2 1266:3 1442:3*2 1266:3 1442:3*2 1266:3",
        "118:3*5 42:7",
    );
}
