use proptest::prelude::*;

use super::*;

const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

proptest! {
    #[test]
    fn any_octets_parse_without_panic(octets in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = ArpPacket::parse(&octets);
    }

    #[test]
    fn a_packet_survives_emit_and_parse(
        reply in any::<bool>(), macs in any::<([u8; 6], [u8; 6])>(), addresses in any::<(u32, u32)>(),
    ) {
        let packet = ArpPacket {
            operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
            sender_mac: EthernetAddress(macs.0),
            sender_address: Ipv4Addr::from_bits(addresses.0),
            target_mac: EthernetAddress(macs.1),
            target_address: Ipv4Addr::from_bits(addresses.1),
        };
        let mut octets = [0xaa; 46];
        prop_assert_eq!(packet.emit(&mut octets), Ok(PACKET_LEN));
        prop_assert_eq!(ArpPacket::parse(&octets), Ok(packet));
    }
}

#[test]
fn a_request_has_the_octets_of_rfc_826_and_is_answered() {
    let request = ArpPacket::request(MAC, ADDRESS, PEER);
    let mut frame = [0; FRAME_LEN];
    assert_eq!(request.emit_frame(&mut frame), Ok(FRAME_LEN));
    let expected = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1,
        10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];
    assert_eq!(frame, expected);
    let reply = request.reply(PEER_MAC);
    assert_eq!(reply.operation, ArpOperation::Reply);
    assert_eq!((reply.sender_mac, reply.sender_address), (PEER_MAC, PEER));
    assert_eq!((reply.target_mac, reply.target_address), (MAC, ADDRESS));
    assert_eq!(reply.destination(), MAC);
    assert!(!request.is_gratuitous() && !request.is_probe());
}

#[test]
fn announcements_and_probes_are_known() {
    assert!(ArpPacket::announcement(MAC, ADDRESS).is_gratuitous());
    assert_eq!(ArpPacket::announcement(MAC, ADDRESS).destination(), EthernetAddress::BROADCAST);
    assert!(ArpPacket::request(MAC, Ipv4Addr::UNSPECIFIED, PEER).is_probe());
}

#[test]
fn packets_for_other_protocols_are_refused() {
    let mut octets = [0; PACKET_LEN];
    ArpPacket::request(MAC, ADDRESS, PEER).emit(&mut octets).unwrap();
    for (at, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16), (7, 3)] {
        let mut bad = octets;
        bad[at] = value;
        assert!(ArpPacket::parse(&bad).is_err(), "octet {at}");
    }
    assert_eq!(ArpPacket::parse(&octets[..27]), Err(WireError::Truncated));
    assert_eq!(ArpPacket::announcement(MAC, ADDRESS).emit_frame(&mut [0; 41]), Err(WireError::NoRoom));
}
