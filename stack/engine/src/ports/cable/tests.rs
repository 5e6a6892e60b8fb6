use std::net::{IpAddr, Ipv4Addr};

use crossbeam::channel::{Sender, unbounded};
use uwarp_ring::cable::{Cable, OwnerTable};
use uwarp_wire::ethernet::EthernetAddress;
use uwarp_wire::frame::{Path, TcpChecksum, prepend_tcp};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

use super::*;
use crate::link::port::TransmitChecksums;
use std::sync::Arc;
use uwarp_ring::Notifier;
use uwarp_ring::cable::{Owner, Owners};

const SWITCH: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Ports of the client, and of its peers.
const OWN: u16 = 100;
const PEER: u16 = 200;
const OTHER: u16 = 300;
const STRANGE: u16 = 400;

/// A client, the switch's end of its cable, and the ends of its two peers.
struct Rig {
    port: SwitchedPort,
    switch: CableEnd,
    peers: [CableEnd; 2],
    table: OwnerTable,
    news: Sender<CableNews>,
}

fn cable() -> (CableEnd, CableEnd) {
    let directory = tempfile::tempdir().unwrap();
    let (near, far) = Cable::pair(directory.path()).unwrap();
    (near.connect().unwrap(), far.connect().unwrap())
}

fn rig() -> Rig {
    let (table, (news, heard)) = (OwnerTable::new().unwrap(), unbounded());
    for (number, port) in [OWN, PEER, OTHER].into_iter().enumerate() {
        table.set(0, port, Owner::One(number as u16));
    }
    let (near, switch) = cable();
    let mut port = SwitchedPort::new(SwitchedOptions {
        switch: near,
        owners: Owners::map(&table).unwrap(),
        number: 0,
        mac: [2, 0, 0, 0, 0, 1],
        switch_mac: SWITCH,
        network: 0,
        addresses: vec![(HOST.into(), 0)],
        mtu: 1500,
        receive_buffers: 64,
        transmit_buffers: 64,
        news: heard,
        told: Arc::new(Notifier::new().unwrap()),
    })
    .unwrap();
    let peers = [1, 2].map(|peer| {
        let (near, far) = cable();
        far.receiver.attend();
        news.send(CableNews::Plugged { peer, end: near }).unwrap();
        far
    });
    assert_eq!(port.rx_burst(&mut Batch::new()), 0);
    Rig { port, switch, peers, table, news }
}

/// A segment with `payload` octets.
fn segment(ports: (u16, u16), flags: TcpFlags, payload: usize) -> Vec<u8> {
    between(HOST.into(), HOST.into(), ports, flags, payload)
}

fn between(source: IpAddr, destination: IpAddr, ports: (u16, u16), flags: TcpFlags, payload: usize) -> Vec<u8> {
    let mut header = TcpHeader::new(flags);
    (header.source_port, header.destination_port) = ports;
    header.sequence = SeqNumber(1000);
    let macs = [[2, 0, 0, 0, 0, 1], SWITCH].map(EthernetAddress);
    let path = Path::new(macs[0], macs[1], source.into(), destination.into());
    let mut frame = vec![7; 128 + payload];
    let sum = uwarp_wire::checksum::sum(&frame[128..]);
    let checksum = TcpChecksum::Full { payload_sum: sum };
    let length = prepend_tcp(&mut frame[..128], &path, &header, 0, payload, checksum).unwrap();
    frame.split_off(128 - length)
}

impl Rig {
    fn send(&mut self, frame: &[u8], work: TransmitChecksums) {
        let mut buffer = self.port.alloc().unwrap();
        buffer.fill(frame);
        buffer.set_transmit_checksums(work);
        assert_eq!(self.port.tx_burst(&mut VecDeque::from([buffer])), 1);
    }

    /// What the engine gets: the octets of each frame.
    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.port.rx_burst(&mut batch);
        batch.iter().map(|frame| frame.data().to_vec()).collect()
    }
}

/// A peer's frame as the engine gets it: as from the switch.
fn readdressed(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&SWITCH);
    frame
}

/// What waits in a cable.
fn taken(end: &mut CableEnd) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut room = vec![0; LONGEST_FRAME];
    while let Some(arrival) = end.receiver.receive(&mut room) {
        frames.push(room[..arrival.length].to_vec());
    }
    end.receiver.release();
    frames
}

const LEFT_OUT: TransmitChecksums =
    TransmitChecksums { ip: true, tcp: true, link_length: 14, ip_length: 20, tcp_length: 20, segment_size: 0 };

#[test]
fn segments_go_by_the_cable_of_their_peer_and_all_else_by_the_switch() {
    let mut rig = rig();
    let ack = TcpFlags::ACK;
    for (index, port) in [PEER, OTHER].into_iter().enumerate() {
        let frame = segment((OWN, port), ack, 100);
        rig.send(&frame, TransmitChecksums::default());
        assert_eq!(taken(&mut rig.peers[index]), [frame]);
        assert!(taken(&mut rig.peers[1 - index]).is_empty() && taken(&mut rig.switch).is_empty());
    }
    let mut elsewhere = segment((OWN, PEER), ack, 1);
    elsewhere[5] ^= 1;
    let mut fragment = segment((OWN, PEER), ack, 1);
    fragment[20] |= 0x20;
    let (nobody, others) = (segment((OWN, STRANGE), ack, 1), segment((STRANGE, PEER), ack, 1));
    for frame in [elsewhere, fragment, nobody, others, segment((OWN, PEER), TcpFlags::SYN, 0), vec![9; 60], vec![9; 7]]
    {
        rig.send(&frame, TransmitChecksums::default());
        assert_eq!(taken(&mut rig.switch), [frame]);
        assert!(rig.peers.iter_mut().all(|peer| taken(peer).is_empty()));
    }
}

#[test]
fn a_peer_that_does_not_attend_yet_or_has_gone_is_reached_by_the_switch() {
    let mut rig = rig();
    let frame = segment((OWN, STRANGE), TcpFlags::ACK, 10);
    rig.table.set(0, STRANGE, Owner::One(7));
    let (near, mut far) = cable();
    rig.news.send(CableNews::Plugged { peer: 7, end: near }).unwrap();
    rig.received();
    rig.send(&frame, TransmitChecksums::default());
    assert!(taken(&mut rig.switch) == [frame.as_slice()]);
    far.receiver.attend();
    rig.send(&frame, TransmitChecksums::default());
    assert_eq!((taken(&mut rig.switch).len(), taken(&mut far)), (0, vec![frame.clone()]));
    // What it sent last is received, and then there is no cable any more.
    let last = segment((STRANGE, OWN), TcpFlags::ACK, 20);
    assert!(far.sender.send(&last, true));
    rig.table.set(0, STRANGE, Owner::Past(7));
    rig.news.send(CableNews::Unplugged { peer: 7 }).unwrap();
    assert_eq!(rig.received()[0][14..], last[14..]);
    rig.received();
    rig.send(&frame, TransmitChecksums::default());
    assert_eq!(taken(&mut rig.switch), [frame]);
}

#[test]
fn the_switch_is_told_how_connections_begin_and_end() {
    let mut rig = rig();
    let flags = |frame: &[u8]| frame[47];
    rig.send(&segment((OWN, PEER), TcpFlags::SYN, 0), TransmitChecksums::default());
    taken(&mut rig.switch);
    for (segment_flags, is_told) in [
        (TcpFlags::ACK, true),
        (TcpFlags::ACK, false),
        (TcpFlags::ACK | TcpFlags::FIN, true),
        (TcpFlags::RST, true),
        (TcpFlags::ACK, false),
    ] {
        rig.send(&segment((OWN, PEER), segment_flags, 500), TransmitChecksums::default());
        assert_eq!(taken(&mut rig.peers[0]).len(), 1);
        let told = taken(&mut rig.switch);
        assert_eq!(told.len(), usize::from(is_told), "{segment_flags:?}");
        for note in told {
            assert_eq!((&note[..6], note.len(), flags(&note)), (&NOTE_MAC[..], 54, segment_flags.bits() as u8));
            assert_eq!(note[16..18], 40_u16.to_be_bytes());
        }
    }
}

#[test]
fn frames_that_a_device_would_complete_and_cut_are_completed_and_cut_for_the_switch_alone() {
    let mut rig = rig();
    let mut whole = segment((OWN, PEER), TcpFlags::ACK | TcpFlags::PSH, 10_000);
    let to_peer = whole.clone();
    rig.send(&to_peer, TransmitChecksums { segment_size: 1460, ..LEFT_OUT });
    assert_eq!(taken(&mut rig.peers[0]), [to_peer]);
    whole[36..38].copy_from_slice(&STRANGE.to_be_bytes());
    rig.send(&whole, TransmitChecksums { segment_size: 1460, ..LEFT_OUT });
    let pieces = taken(&mut rig.switch);
    assert_eq!(pieces.len(), 10_000_usize.div_ceil(1460));
    let payload: usize = pieces.iter().map(|piece| piece.len() - 54).sum();
    assert_eq!(payload, 10_000);
    for piece in &pieces {
        let Ok(uwarp_wire::frame::Frame::Tcp(tcp)) = uwarp_wire::frame::classify(piece, piece.len()) else { panic!() };
        assert!(piece.len() <= 1514 && tcp.checksum_is_good(piece, uwarp_wire::checksum::sum));
    }
}

#[test]
fn the_switch_gets_complete_ip_headers_also_behind_what_waits_for_room() {
    let mut rig = rig();
    let whole = segment((OWN, STRANGE), TcpFlags::ACK, 60_000);
    for _ in 0..10 {
        rig.send(&whole, TransmitChecksums { segment_size: 10_000, ..LEFT_OUT });
    }
    let mut last = segment((OWN, STRANGE), TcpFlags::ACK, 5);
    last[24..26].fill(0);
    rig.send(&last, LEFT_OUT);
    let mut got = Vec::new();
    while !rig.port.enable_wakeups() {
        got.append(&mut taken(&mut rig.switch));
        rig.received();
    }
    got.append(&mut taken(&mut rig.switch));
    assert_eq!(got.len(), 61);
    for frame in &got {
        assert_eq!(uwarp_wire::checksum::fold(uwarp_wire::checksum::sum(&frame[14..34])), 0xffff);
    }
    assert_eq!(got[60][34..], last[34..]);
}

#[test]
fn a_port_is_one_clients_in_each_network() {
    const FAR: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
    const FARTHER: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, 2);
    let mut rig = rig();
    let ack = TcpFlags::ACK;
    // The second peer is of another network, and has the first one's port there.
    rig.table.set(3, PEER, Owner::One(2));
    let addresses = vec![(HOST.into(), 0), (FAR.into(), 3), (FARTHER.into(), 3)];
    rig.news.send(CableNews::Addresses(addresses)).unwrap();
    rig.received();
    for (index, source) in [(0, HOST.into()), (1, FAR.into()), (1, FARTHER.into())] {
        let mut good = between(source, source, (PEER, OWN), ack, 10);
        for (peer, expected) in [(1 - index, Vec::new()), (index, good.clone())] {
            assert!(rig.peers[peer].sender.send(&good, true));
            let received = rig.received();
            let payload = |frame: &[u8]| frame.get(12..).map(<[u8]>::to_vec);
            assert_eq!(payload(&received[0]), payload(&expected), "{source}");
        }
        // To each of the two by its address.
        good = between(if source.is_ipv4() { HOST.into() } else { source }, source, (OWN, PEER), ack, 10);
        rig.send(&good, TransmitChecksums::default());
        assert_eq!(taken(&mut rig.peers[index]), [good], "{source}");
        assert!(taken(&mut rig.peers[1 - index]).is_empty() && taken(&mut rig.switch).is_empty());
    }
    // Nobody has the address.
    let strange = between(HOST.into(), Ipv4Addr::new(10, 8, 0, 3).into(), (OWN, PEER), ack, 10);
    rig.send(&strange, TransmitChecksums::default());
    assert_eq!(taken(&mut rig.switch), [strange]);
}

#[test]
fn nothing_in_anothers_name_comes_from_a_peer() {
    let mut rig = rig();
    let ack = TcpFlags::ACK;
    rig.table.set(0, STRANGE, Owner::Several);
    let bad = [
        segment((OTHER, OWN), ack, 10),
        segment((OWN, OWN), ack, 10),
        segment((STRANGE, OWN), ack, 10),
        segment((1, OWN), ack, 10),
        segment((PEER, OWN), TcpFlags::SYN, 0),
        segment((PEER, OWN), TcpFlags::SYN | ack, 0),
        between(Ipv4Addr::new(10, 0, 0, 9).into(), HOST.into(), (PEER, OWN), ack, 10),
        vec![1; 60],
        vec![1; 5],
    ];
    for frame in &bad {
        assert!(rig.peers[0].sender.send(frame, true));
        assert_eq!(rig.received(), [Vec::<u8>::new()], "{frame:?}");
    }
    let good = segment((PEER, OWN), ack, 10);
    assert!(rig.peers[0].sender.send(&good, true));
    assert_eq!(rig.received(), [readdressed(&good)]);
}

#[test]
fn what_peers_sent_before_comes_before_what_the_switch_says() {
    let mut rig = rig();
    let (last, word) = (segment((PEER, OWN), TcpFlags::ACK, 10), vec![3; 60]);
    for _ in 0..3 * BURST {
        assert!(rig.peers[0].sender.send(&last, true));
    }
    assert!(rig.switch.sender.send(&word, true));
    for _ in 0..3 {
        let received = rig.received();
        assert!(received.len() == BURST && !received.contains(&word));
    }
    assert!(rig.received() == [word.as_slice()]);
    // A peer that never stops holds up the switch no longer than a cable's length.
    assert!(rig.switch.sender.send(&word, true));
    let mut bursts = 0;
    while !rig.received().contains(&word) {
        while rig.peers[0].sender.send(&segment((PEER, OWN), TcpFlags::ACK, 1000), true) {}
        bursts += 1;
        assert!(bursts <= uwarp_ring::cable::LANE_OCTETS / 1024 / BURST + 2, "{bursts} bursts");
    }
}

#[test]
fn a_peer_that_does_not_read_loses_frames_and_holds_up_nobody() {
    let mut rig = rig();
    let big = segment((OWN, PEER), TcpFlags::ACK, 60_000);
    for _ in 0..32 {
        rig.send(&big, LEFT_OUT);
    }
    assert!(!rig.port.enable_wakeups(), "some wait for room, which nobody announces");
    let frame = segment((OWN, OTHER), TcpFlags::ACK, 10);
    rig.send(&frame, LEFT_OUT);
    assert_eq!(taken(&mut rig.peers[1]), [frame]);
    let mut got = 0;
    while !rig.port.enable_wakeups() {
        got += taken(&mut rig.peers[0]).len();
        rig.received();
    }
    got += taken(&mut rig.peers[0]).len();
    assert_eq!((got, rig.port.transmit_free()), (32, 64), "in order, and no buffer is left behind");
}

#[test]
fn several_peers_may_leave_at_once() {
    for phase in 0..3 {
        let mut rig = rig();
        let (near, far) = cable();
        far.receiver.attend();
        rig.news.send(CableNews::Plugged { peer: 3, end: near }).unwrap();
        for _ in 0..phase {
            assert!(rig.received().is_empty());
        }
        for peer in [1, 2] {
            rig.news.send(CableNews::Unplugged { peer }).unwrap();
        }
        for _ in 0..3 {
            assert!(rig.received().is_empty(), "{phase}");
        }
    }
}

#[test]
fn silent_peers_ring_and_are_found_in_some_turn_and_behind_a_sleep() {
    let mut rig = rig();
    let mut ends: Vec<CableEnd> = Vec::new();
    for number in 3..40 {
        let (near, far) = cable();
        far.receiver.attend();
        rig.table.set(0, 1000 + number, Owner::One(number));
        rig.news.send(CableNews::Plugged { peer: number, end: near }).unwrap();
        ends.push(far);
    }
    let (busy, silent) = (segment((PEER, OWN), TcpFlags::ACK, 10), segment((1039, OWN), TcpFlags::ACK, 10));
    let is_rung = |rig: &Rig| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let descriptors = rig.port.wakeup_descriptors();
        let mut wanted: Vec<_> =
            descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
        poll(&mut wanted, Some(&Timespec::default())).unwrap() > 0
    };
    let hush = |rig: &mut Rig| {
        for _ in 0..9000 {
            assert!(rig.peers[0].sender.send(&busy, true));
            assert_eq!(rig.received().len(), 1);
        }
    };
    let send = |end: &mut CableEnd| {
        assert!(end.sender.send(&silent, true));
        end.sender.wake();
    };
    for _ in 0..3 {
        hush(&mut rig);
        rig.port.disable_wakeups();
        // While the port is polled.
        assert!(!is_rung(&rig));
        send(&mut ends[36]);
        assert!(is_rung(&rig), "a peer that has said nothing for long is not polled");
        assert!((0..40).flat_map(|_| rig.received()).eq([readdressed(&silent)]));
        // In a sleep.
        hush(&mut rig);
        assert!(rig.port.enable_wakeups() && !is_rung(&rig));
        send(&mut ends[36]);
        assert!(is_rung(&rig));
        rig.port.disable_wakeups();
        assert_eq!(rig.received(), [readdressed(&silent)]);
        assert!(!is_rung(&rig), "what has rung is taken");
    }
    // What a silent peer sent before its end is received, and its cable goes.
    hush(&mut rig);
    send(&mut ends[36]);
    rig.news.send(CableNews::Unplugged { peer: 39 }).unwrap();
    assert!((0..40).flat_map(|_| rig.received()).eq([readdressed(&silent)]));
    assert!(!is_rung(&rig));
}
