use core::net::Ipv4Addr;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr};

use super::*;
use crate::address::{FlowKey, IpAddress};
use crate::ethernet::EthernetAddress;
use crate::frame::{Path, TcpChecksum, prepend_tcp};
use crate::tcp::{SeqNumber, TcpFlags, TcpHeader};

fn emit(message: &IcmpMessage<'_>) -> Vec<u8> {
    let mut octets = vec![0; message.emit_len()];
    message.emit(&mut octets).unwrap();
    octets
}

proptest! {
    #[test]
    fn any_octets_parse_without_panic(octets in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut octets = octets;
        let _ = IcmpMessage::parse(&octets);
        let _ = QuotedTcp::parse(&octets);
        let _ = forbids_error(&octets);
        if octets.len() >= HEADER_LEN {
            octets[2..4].fill(0);
            let value = checksum::finish(checksum::sum(&octets));
            octets[2..4].copy_from_slice(&value.to_be_bytes());
            let _ = IcmpMessage::parse(&octets).unwrap().quoted_tcp();
        }
    }

    #[test]
    fn messages_survive_emit_and_parse(
        numbers in any::<(u16, u16, u8)>(), data in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let (identifier, sequence, code) = numbers;
        for message in [
            IcmpMessage::EchoRequest { identifier, sequence, data: &data },
            IcmpMessage::EchoReply { identifier, sequence, data: &data },
            IcmpMessage::DestinationUnreachable {
                code,
                next_hop_mtu: if code == unreachable::FRAGMENTATION_NEEDED { sequence } else { 0 },
                quoted: &data,
            },
            IcmpMessage::TimeExceeded { code, quoted: &data },
            IcmpMessage::Other { kind: 13, code },
        ] {
            let octets = emit(&message);
            prop_assert_eq!(IcmpMessage::parse(&octets), Ok(message));
        }
    }

    #[test]
    fn smoltcp_reads_an_echo(ident in any::<u16>(), seq_no in any::<u16>(), data in prop::collection::vec(any::<u8>(), 0..100)) {
        let octets = emit(&IcmpMessage::EchoReply { identifier: ident, sequence: seq_no, data: &data });
        let packet = Icmpv4Packet::new_checked(&octets[..]).unwrap();
        let theirs = Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()).unwrap();
        prop_assert_eq!(theirs, Icmpv4Repr::EchoReply { ident, seq_no, data: &data });
    }
}

#[test]
fn fragmentation_needed_names_our_segment_and_the_mtu() {
    let address = |last| IpAddress::from(Ipv4Addr::new(10, 0, 0, last));
    let path = Path::new(EthernetAddress([2; 6]), EthernetAddress([4; 6]), address(1), address(2));
    let mut header = TcpHeader::new(TcpFlags::ACK);
    header.source_port = 4000;
    header.destination_port = 20049;
    header.sequence = SeqNumber(0xfeed_beef);
    let mut frame = [0; 54];
    let checksum = TcpChecksum::Full { payload_sum: 0 };
    assert_eq!(prepend_tcp(&mut frame, &path, &header, 0, 0, checksum), Ok(54));
    let expected = QuotedTcp {
        flow: FlowKey { remote: address(2), local: address(1), remote_port: 20049, local_port: 4000 },
        sequence: SeqNumber(0xfeed_beef),
        packet_len: 0xff28,
    };

    // A router has to quote only 8 octets behind the IP header, and may have changed the header.
    let mut quoted = frame[14..42].to_vec();
    quoted[8] = 1;
    quoted[2] = 0xff;
    let message = IcmpMessage::DestinationUnreachable {
        code: unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu: 1400,
        quoted: &quoted,
    };
    let octets = emit(&message);
    let parsed = IcmpMessage::parse(&octets).unwrap();
    assert_eq!(parsed, message);
    assert_eq!(parsed.quoted_tcp(), Some(expected));

    for (at, value) in [(0, 0x65), (0, 0x44), (9, 17), (7, 1)] {
        let mut other = quoted.clone();
        other[at] = value;
        assert_eq!(QuotedTcp::parse(&other), None, "octet {at}");
    }
    assert_eq!(QuotedTcp::parse(&quoted[..27]), None);
}

#[test]
fn damaged_and_short_messages_are_refused() {
    let mut octets = emit(&IcmpMessage::EchoRequest { identifier: 1, sequence: 2, data: b"abc" });
    assert_eq!(IcmpMessage::parse(&octets[..7]), Err(WireError::Truncated));
    octets[9] ^= 1;
    assert_eq!(IcmpMessage::parse(&octets), Err(WireError::IcmpChecksum));
    let message = IcmpMessage::Other { kind: 13, code: 0 };
    assert_eq!(message.emit(&mut [0; 7]), Err(WireError::NoRoom));
}

/// RFC 1122 §3.2.2: no error about an error, nor about a fragment other than the first.
#[test]
fn packets_that_are_errors_or_later_fragments_forbid_errors() {
    let packet = |options: usize, protocol: u8, offset: u16, payload: &[u8]| {
        let mut octets = vec![0; ipv4::HEADER_LEN + 4 * options];
        (octets[0], octets[9]) = (0x45 + options as u8, protocol);
        octets[6..8].copy_from_slice(&(0x2000 | offset).to_be_bytes());
        octets.extend_from_slice(payload);
        octets
    };
    for options in [0, 1, 10] {
        for kind in 0..=255 {
            let forbids = [3, 4, 5, 11, 12].contains(&kind);
            assert_eq!(forbids_error(&packet(options, PROTOCOL, 0, &[kind])), forbids, "type {kind}");
            assert!(!forbids_error(&packet(options, 17, 0, &[kind])));
        }
        assert!(!forbids_error(&packet(options, 17, 0, &[])));
        assert!(forbids_error(&packet(options, 17, 1, &[0; 8])), "a later fragment");
        assert!(forbids_error(&packet(options, PROTOCOL, 0, &[])), "its type is not there");
        assert!(forbids_error(&packet(options, 17, 0, &[])[..19]), "half a header");
    }
    assert!(forbids_error(&[]));
}
