//! Captures of Linux siw with itself, decoded from the TCP stream up: every FPDU is accounted for, with the opcode and
//! length that tshark reads.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use pcap_file::pcap::PcapReader;
use uwarp_iwarp::framing::{Crc32c, Framed, deframe};
use uwarp_iwarp::opcode::Features;
use uwarp_iwarp::startup::{
    Initiator, InitiatorOptions, Outcome, Parameters, PeerRequest, ReadLimits, ReadyToReceive, ReadyToReceiveKinds,
    Responder, ResponderOptions, Revision,
};
use uwarp_iwarp::{Delivery, Fault, Message, Stream};
use uwarp_wire::ddp::Header;
use uwarp_wire::rdmap::TerminateLayer;

/// Takes a segment, if nothing is wrong with it.
fn receive<'a>(stream: &mut Stream, ulpdu: &'a [u8]) -> Result<Delivery<'a>, Fault> {
    let delivery = stream.inspect(ulpdu)?;
    stream.commit(&delivery);
    Ok(delivery)
}

/// One direction of the TCP connection: its octets in order, however the segments were cut and ordered.
#[derive(Default)]
struct Direction {
    next: Option<u32>,
    held: BTreeMap<u32, Vec<u8>>,
    octets: VecDeque<u8>,
}

impl Direction {
    fn segment(&mut self, sequence: u32, syn: bool, payload: &[u8]) {
        if syn {
            self.next = Some(sequence.wrapping_add(1));
            return;
        }
        if payload.is_empty() {
            return;
        }
        self.held.insert(sequence, payload.to_vec());
        while let Some(next) = self.next {
            let Some((&sequence, _)) = self.held.iter().find(|(sequence, _)| next.wrapping_sub(**sequence) < 1 << 31)
            else {
                return;
            };
            let payload = self.held.remove(&sequence).unwrap();
            let fresh = &payload[payload.len().min(next.wrapping_sub(sequence) as usize)..];
            self.octets.extend(fresh);
            self.next = Some(next.wrapping_add(fresh.len() as u32));
        }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        self.octets.drain(..len).collect()
    }
}

/// Source address, TCP sequence number, SYN, payload.
fn tcp_segments(path: &Path) -> Vec<(Address, u32, bool, Vec<u8>)> {
    let mut reader = PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut segments = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let frame = &packet.data[..];
        let ip = &frame[14..];
        if frame[12..14] != [0x08, 0x00] || ip[9] != 6 {
            continue;
        }
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let header = usize::from(ip[0] & 0x0f) * 4;
        let tcp = &ip[header..total];
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        segments.push((ip[12..16].try_into().unwrap(), sequence, tcp[13] & 2 != 0, payload.to_vec()));
    }
    segments
}

/// Both state machines process the frames; they must agree on what siw agreed on.
fn start_up(request: &[u8], reply: &[u8]) -> (Parameters, Parameters, PeerRequest) {
    let mut responder = Responder::new(ResponderOptions { crc: false, ..ResponderOptions::default() });
    let asked = responder.receive(request).unwrap().unwrap().clone();
    let limits = |ird, ord| ReadLimits { ird, maximum_ird: ird, ord, minimum_ord: 0, negotiate: true };
    let kinds = asked.enhanced.filter(|data| data.peer_to_peer).map_or(ReadyToReceiveKinds::NONE, |data| {
        ReadyToReceiveKinds { send: data.ready_by_send, write: data.ready_by_write, read: data.ready_by_read }
    });
    let own = limits(asked.ird().unwrap_or(1), asked.ord().unwrap_or(1));
    let mut initiator = Initiator::new(
        InitiatorOptions {
            revision: if asked.revision == 1 { Revision::One } else { Revision::Two },
            crc: asked.crc,
            markers: false,
            limits: own,
            ready_to_receive: kinds,
        },
        &asked.private_data,
    )
    .unwrap();
    let without_reserved = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        frame[16] &= 0xf0;
        frame
    };
    assert_eq!(initiator.request(), without_reserved(request));
    let (outcome, used) = initiator.receive(reply).unwrap().unwrap();
    assert_eq!(used, reply.len());
    let Outcome::Established(client) = outcome else { panic!("{outcome:?}") };
    let (_, server) = responder.accept(&own, &client.private_data).unwrap();
    assert_eq!((client.crc, client.ord), (server.crc, server.ird));
    (client, server, asked)
}

/// RDMAP opcodes and ULPDU lengths that one side sent.
type Fpdus = Vec<(u8, usize)>;
/// An IPv4 address.
type Address = [u8; 4];

/// The contents of a capture, the Initiator's side first.
struct Decoded {
    sent: [Fpdus; 2],
    addresses: [Address; 2],
    indication: Option<ReadyToReceive>,
}

fn decode(name: &str) -> Decoded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/captures").join(format!("{name}.pcap"));
    let segments = tcp_segments(&path);
    // The first packet is the Initiator's SYN.
    let client = segments[0].0;
    let server = segments[1].0;
    let mut directions = [Direction::default(), Direction::default()];
    let mut startup: Option<(Parameters, Parameters)> = None;
    let mut frames = [Vec::new(), Vec::new()];
    let mut streams: Vec<Stream> = Vec::new();
    let mut sent = [Vec::new(), Vec::new()];
    // Responses that each side owes, as our own encoder would cut them.
    let mut owed: [VecDeque<Message>; 2] = [VecDeque::new(), VecDeque::new()];
    let mut indication = None;
    for (source, sequence, syn, payload) in &segments {
        let from = usize::from(*source != client);
        directions[from].segment(*sequence, *syn, payload);
        if startup.is_none() {
            for side in [0, 1] {
                let have = &mut directions[side];
                if frames[side].is_empty() && have.octets.len() >= 20 {
                    let private = usize::from(have.octets[18]) << 8 | usize::from(have.octets[19]);
                    frames[side] = have.take(20 + private);
                }
            }
            if frames.iter().all(|frame| !frame.is_empty()) {
                let (client, server, _) = start_up(&frames[0], &frames[1]);
                indication = client.ready_to_receive;
                streams = vec![Stream::new(&client, Features::default()), Stream::new(&server, Features::default())];
                startup = Some((client, server));
            } else {
                continue;
            }
        }
        let crc = startup.as_ref().is_some_and(|(client, _)| client.crc);
        loop {
            let octets = directions[from].octets.make_contiguous();
            let (ulpdu, fpdu_len) = match deframe(octets, crc.then_some(crc32c::crc32c as Crc32c)) {
                Framed::Fpdu { ulpdu, fpdu_len } => (octets[ulpdu].to_vec(), fpdu_len),
                Framed::Incomplete { .. } => break,
                Framed::BadCrc { .. } => panic!("{name}: bad CRC"),
            };
            directions[from].take(fpdu_len);
            let header = Header::parse(&ulpdu).unwrap();
            sent[from].push((header.control().opcode().unwrap().code(), ulpdu.len()));
            let first_of_client = from == 0 && sent[0].len() == 1;
            match receive(&mut streams[1 - from], &ulpdu).unwrap_or_else(|fault| panic!("{name}: {fault}")) {
                Delivery::ReadRequest(inbound) => {
                    // The side that sent it expects the response from now on.
                    if first_of_client && indication.is_some() {
                        // siw's sink STag is 0 here, ours would be 1; both are ignored.
                        assert!(streams[0].ready_to_receive_message().is_some());
                        assert_eq!(inbound.request.length, 0);
                    } else {
                        let ours = streams[from].try_begin_read(&inbound.request);
                        let ours = ours.expect("within the limits").next_segment(1442).unwrap();
                        assert_eq!(ours.header(), ulpdu, "{name}");
                    }
                    owed[1 - from].push_back(streams[1 - from].next_response().unwrap().message);
                    streams[1 - from].response_sent(0);
                    streams[1 - from].acknowledged(0);
                }
                Delivery::ReadResponse { completes, payload, .. } => {
                    let response = owed[from].front_mut().unwrap();
                    let ours = response.next_segment(ulpdu.len().max(128) as u16).unwrap();
                    assert_eq!((ours.header(), ours.payload_len as usize), (&ulpdu[..14], payload.len()), "{name}");
                    assert_eq!(ours.last, completes);
                    if completes {
                        owed[from].pop_front();
                    }
                }
                Delivery::Terminate(received) => {
                    assert_eq!(name, "term");
                    assert!(received.siw_bit_order);
                    assert_eq!(received.terminate.layer, TerminateLayer::Ddp);
                    assert_eq!(received.terminate.error_type, 2);
                }
                Delivery::Write { payload, .. } => {
                    if first_of_client && indication == Some(ReadyToReceive::Write) {
                        assert!(payload.is_empty());
                        let ours = streams[0].ready_to_receive_message().unwrap().next_segment(128).unwrap();
                        assert_eq!(ours.header(), ulpdu);
                    }
                }
                Delivery::Send { .. } => {}
                Delivery::Immediate { .. }
                | Delivery::AtomicRequest(_)
                | Delivery::AtomicResponse { .. }
                | Delivery::CommitRequest(_)
                | Delivery::CommitPart { .. }
                | Delivery::CommitResponse { .. } => {
                    panic!("{name}: siw has no extensions")
                }
                Delivery::ReadyToReceive { .. } => {
                    assert_eq!(indication, Some(ReadyToReceive::Read));
                    owed[from].pop_front().unwrap();
                }
                Delivery::Ignored => assert_eq!(name, "term"),
            }
        }
    }
    for side in [0, 1] {
        assert!(directions[side].octets.is_empty() && directions[side].held.is_empty(), "{name}: octets left over");
        if name != "term" {
            assert_eq!(streams[side].end_of_stream(0), Ok(()), "{name}");
        }
    }
    Decoded { sent, addresses: [client, server], indication }
}

fn expected() -> BTreeMap<(String, Address), Fpdus> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in include_str!("data/tshark-fpdus.tsv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<_> = line.split('\t').collect();
        let source: std::net::Ipv4Addr = fields[1].parse().unwrap();
        all.entry((fields[0].to_owned(), source.octets()))
            .or_default()
            .push((fields[2].parse().unwrap(), fields[3].parse().unwrap()));
    }
    all
}

#[test]
fn every_fpdu_of_siw_is_read_as_tshark_reads_it() {
    let expected = expected();
    let mut names: Vec<_> = expected.keys().map(|(name, _)| name.clone()).collect();
    names.dedup();
    assert_eq!(names.len(), 8);
    let mut total = 0;
    for name in &names {
        let Decoded { sent, addresses, .. } = decode(name);
        for (sent, address) in sent.into_iter().zip(addresses) {
            total += sent.len();
            let expected = expected.get(&(name.clone(), address)).cloned().unwrap_or_default();
            assert_eq!(sent, expected, "{name}: {address:?}");
        }
    }
    assert_eq!(total, 160);
}

#[test]
fn peer_to_peer_captures_begin_with_their_indication() {
    assert_eq!(decode("var-p2p").indication, Some(ReadyToReceive::Write));
    assert_eq!(decode("var-p2p-read").indication, Some(ReadyToReceive::Read));
    assert_eq!(decode("rping").indication, None);
}
