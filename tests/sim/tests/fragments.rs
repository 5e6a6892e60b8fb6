//! Fragments in whole hosts: fragmented segments and echoes, and the answers to packets that never become complete.

use std::net::Ipv4Addr;
use std::time::Duration;

use uwarp_engine::stats::EngineStats;
use uwarp_sim_tests::beside::{Beside, HOST_MAC};
use uwarp_testkit::rig::{address6, with_ipv6};
use uwarp_wire::frame::{Frame, Path, TcpChecksum, classify, emit_fragment, prepend_tcp};
use uwarp_wire::icmp::{self, IcmpMessage};
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::tcp::{self, SeqNumber, TcpFlags, TcpHeader};

const MILLISECOND: Duration = Duration::from_millis(1);

struct Bench {
    beside: Beside,
    path: Path,
}

fn bench(v6: bool) -> Bench {
    let mut beside = Beside::new(with_ipv6(0));
    let mac = beside.mac;
    let path = if v6 {
        Path::new(mac, HOST_MAC, address6(8).into(), address6(0).into())
    } else {
        Path::new(mac, HOST_MAC, Ipv4Addr::new(10, 0, 0, 9).into(), Ipv4Addr::new(10, 0, 0, 1).into())
    };
    beside.receive(Duration::from_secs(5));
    Bench { beside, path }
}

impl Bench {
    fn receive(&mut self, time: Duration) -> Vec<Vec<u8>> {
        self.beside.receive(time)
    }

    /// Sends an upper-layer packet in fragments of `most` octets, last ones first.
    fn send_pieces(&mut self, protocol: u8, id: u32, packet: &[u8], most: usize, all: bool) {
        let pieces: Vec<(usize, &[u8])> =
            packet.chunks(most).enumerate().map(|(at, piece)| (at * most, piece)).collect();
        for (offset, piece) in pieces.into_iter().rev() {
            let more = offset + piece.len() < packet.len();
            if !more && !all {
                continue;
            }
            let mut frame = vec![0; 1600];
            let length = emit_fragment(&mut frame, &self.path, protocol, id, (offset, more), piece).expect("it fits");
            self.beside.send(&frame[..length]);
        }
    }

    fn stats(&self) -> EngineStats {
        self.beside.stats()
    }

    /// An echo request with these data.
    fn echo(&self, data: &[u8]) -> (u8, Vec<u8>) {
        let mut packet = vec![0; 8 + data.len()];
        if self.path.source.is_ipv4() {
            let message = IcmpMessage::EchoRequest { identifier: 1, sequence: 2, data };
            message.emit(&mut packet).expect("it fits");
            (icmp::PROTOCOL, packet)
        } else {
            let message = Icmp6Message::EchoRequest { identifier: 1, sequence: 2, data };
            message.emit(&mut packet, self.path.source, self.path.destination).expect("it fits");
            (icmp6::PROTOCOL, packet)
        }
    }
}

#[test]
fn an_echo_longer_than_the_mtu_goes_both_ways_in_pieces() {
    for v6 in [false, true] {
        let mut bench = bench(v6);
        let data: Vec<u8> = (0..8000).map(|at| (at * 3) as u8).collect();
        let (protocol, packet) = bench.echo(&data);
        bench.send_pieces(protocol, 77, &packet, 1448, true);
        let answers = bench.receive(MILLISECOND);
        let mut whole = vec![0; packet.len()];
        let mut covered = 0;
        for frame in &answers {
            let Ok(Frame::Fragment(fragment)) = classify(frame, frame.len()) else { continue };
            assert!(fragment.route.ip_len <= 1500);
            let piece = &frame[fragment.payload_offset..][..fragment.payload_len];
            whole[fragment.offset..fragment.offset + piece.len()].copy_from_slice(piece);
            covered += piece.len();
        }
        assert_eq!(covered, packet.len());
        assert!(whole[8..] == data);
        let stats = bench.stats();
        assert_eq!((stats.counters.reassembled, stats.fragment_octets, stats.counters.echoes), (1, 0, 1));
    }
}

#[test]
fn a_segment_in_pieces_is_a_segment() {
    for v6 in [false, true] {
        let mut bench = bench(v6);
        let mut header = TcpHeader::new(TcpFlags::SYN);
        (header.source_port, header.destination_port) = (1234, 80);
        header.sequence = SeqNumber(1000);
        let payload = [7; 5000];
        let mut frame = vec![0; 128];
        let checksum = TcpChecksum::Full { payload_sum: uwarp_wire::checksum::sum(&payload) };
        let length = prepend_tcp(&mut frame, &bench.path, &header, 0, payload.len(), checksum).expect("it fits");
        let headers = bench.path.headers_len();
        let mut packet = frame[128 - length + headers..].to_vec();
        packet.extend(payload);
        // No listener: the answer to each part acknowledges its contents (RFC 9293 §3.10.7.1).
        bench.send_pieces(tcp::PROTOCOL, 5, &packet, 1000, true);
        let answers = bench.receive(MILLISECOND);
        let acknowledged: Vec<u32> = answers
            .iter()
            .filter_map(|frame| match classify(frame, frame.len()) {
                Ok(Frame::Tcp(tcp)) => Some(tcp.header.acknowledgment.0),
                _ => None,
            })
            .collect();
        if acknowledged.is_empty() {
            // IPv6 has not resolved the sender, and answers to where the frames came from.
            panic!("no answer: {:?}", bench.stats().drops);
        }
        assert_eq!(acknowledged.last(), Some(&(1000 + 1 + 5000)), "{acknowledged:?}");
        // With one wrong octet, none of it counts.
        packet[3000] ^= 1;
        bench.send_pieces(tcp::PROTOCOL, 6, &packet, 1000, true);
        assert!(bench.receive(MILLISECOND).is_empty());
        assert_eq!(bench.stats().drops["l4-checksum"], 1);
    }
}

#[test]
fn whoever_sent_a_part_is_told_when_time_is_over() {
    for v6 in [false, true] {
        let mut bench = bench(v6);
        let (protocol, packet) = bench.echo(&[1; 3000]);
        bench.send_pieces(protocol, 1, &packet, 1000, false);
        assert!(bench.receive(Duration::from_secs(59)).iter().all(|frame| classify(frame, frame.len()).is_ok()));
        assert!(bench.stats().fragment_octets > 2000);
        let answers = bench.receive(Duration::from_secs(2));
        let told = answers.iter().any(|frame| match classify(frame, frame.len()) {
            Ok(Frame::Icmp(frame)) => matches!(frame.message, IcmpMessage::TimeExceeded { code: 1, .. }),
            Ok(Frame::Icmp6(frame)) => matches!(frame.message, Icmp6Message::TimeExceeded { code: 1, .. }),
            _ => false,
        });
        assert!(told, "{answers:?}");
        let stats = bench.stats();
        assert_eq!((stats.fragment_octets, stats.drops["fragment"]), (0, 1));
    }
}

/// Of what an error quotes nobody is told, in pieces or not (RFC 1122 §3.2.2, RFC 4443 §2.4 (e)).
#[test]
fn parts_of_an_error_message_and_parts_without_a_beginning_are_given_up_in_silence() {
    for v6 in [false, true] {
        let mut bench = bench(v6);
        let (protocol, redirect) = if v6 { (icmp6::PROTOCOL, 137) } else { (icmp::PROTOCOL, 5) };
        let errors: &[u8] = if v6 { &[1, 2, 3, 4, 100, redirect] } else { &[3, 4, redirect, 11, 12] };
        for (id, kind) in errors.iter().enumerate() {
            let mut packet = vec![0; 3000];
            packet[0] = *kind;
            bench.send_pieces(protocol, id as u32, &packet, 1000, false);
        }
        let mut frame = vec![0; 1600];
        let middle = emit_fragment(&mut frame, &bench.path, 17, 77, (1000, true), &[0; 1000]).expect("it fits");
        bench.beside.send(&frame[..middle]);
        bench.receive(Duration::from_secs(61));
        let stats = bench.stats();
        assert_eq!((stats.fragment_octets, stats.drops["fragment"]), (0, errors.len() as u64 + 1));
        assert_eq!((stats.counters.icmp_errors_sent, stats.counters.icmp_errors_suppressed), (0, 0), "IPv6: {v6}");
    }
}

#[test]
fn a_flood_of_first_fragments_keeps_to_its_budget() {
    let mut bench = bench(false);
    for id in 0..4000 {
        let mut frame = vec![0; 1600];
        let length = emit_fragment(&mut frame, &bench.path, 17, id, (0, true), &[0; 1400]).expect("it fits");
        bench.beside.send(&frame[..length]);
        if id % 100 == 0 {
            bench.receive(Duration::from_micros(10));
        }
    }
    bench.receive(MILLISECOND);
    assert!(bench.stats().fragment_octets <= 1 << 20);
    let (protocol, packet) = bench.echo(&[1; 3000]);
    bench.send_pieces(protocol, 9999, &packet, 1000, true);
    bench.receive(MILLISECOND);
    assert_eq!(bench.stats().counters.echoes, 1);
}
