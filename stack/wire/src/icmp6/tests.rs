use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress};

use super::*;
use crate::icmp::forbids_error;

const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const DESTINATION: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

fn emit(message: &Icmp6Message<'_>) -> Vec<u8> {
    let mut octets = vec![0; message.emit_len()];
    message.emit(&mut octets, SOURCE.into(), DESTINATION.into()).unwrap();
    octets
}

fn parse(octets: &[u8]) -> Result<Icmp6Message<'_>, WireError> {
    Icmp6Message::parse(octets, SOURCE.into(), DESTINATION.into())
}

/// Corrects the checksum after a change.
fn repair(octets: &mut [u8]) {
    octets[2..4].fill(0);
    let pseudo = checksum::pseudo_header(SOURCE.into(), DESTINATION.into(), PROTOCOL, octets.len());
    let value = checksum::finish(checksum::combine(pseudo, checksum::sum(octets)));
    octets[2..4].copy_from_slice(&value.to_be_bytes());
}

proptest! {
    #[test]
    fn any_octets_parse_without_panic(kind in any::<u8>(), octets in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut octets = octets;
        let _ = parse(&octets);
        if octets.len() >= HEADER_LEN {
            octets[0] = kind;
            repair(&mut octets);
            if let Ok(message) = parse(&octets) {
                let _ = (message.quoted_tcp(), message.is_error());
            }
        }
    }

    #[test]
    fn messages_survive_emit_and_parse(
        numbers in any::<(u16, u16, u8, u32)>(), data in prop::collection::vec(any::<u8>(), 0..100),
        macs in any::<[Option<[u8; 6]>; 2]>(), target in any::<u128>(), flags in any::<[bool; 3]>(),
    ) {
        let (identifier, sequence, code, word) = numbers;
        let target = Ipv6Addr::from_bits(target >> 1);
        let [router, solicited, overrides] = flags;
        for message in [
            Icmp6Message::EchoRequest { identifier, sequence, data: &data },
            Icmp6Message::EchoReply { identifier, sequence, data: &data },
            Icmp6Message::DestinationUnreachable { code, quoted: &data },
            Icmp6Message::PacketTooBig { mtu: word, quoted: &data },
            Icmp6Message::TimeExceeded { code, quoted: &data },
            Icmp6Message::ParameterProblem { code, pointer: word, quoted: &data },
            Icmp6Message::NeighbourSolicitation { target, source_mac: macs[0].map(EthernetAddress), nonce: macs[1] },
            Icmp6Message::NeighbourAdvertisement {
                router, solicited, overrides, target, target_mac: macs[0].map(EthernetAddress),
            },
            Icmp6Message::Other { kind: 143, code },
        ] {
            let octets = emit(&message);
            prop_assert_eq!(parse(&octets), Ok(message));
        }
    }

    #[test]
    fn smoltcp_agrees_on_neighbours_and_echoes(
        target in any::<u128>(), mac in any::<[u8; 6]>(), flags in any::<[bool; 3]>(), ident in any::<u16>(),
        data in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let target_addr = Ipv6Addr::from_bits(target >> 1);
        let [router, solicited, overrides] = flags;
        let capabilities = ChecksumCapabilities::default();
        let read = |octets: &[u8]| {
            let packet = Icmpv6Packet::new_checked(octets).unwrap();
            format!("{:?}", Icmpv6Repr::parse(&SOURCE, &DESTINATION, &packet, &capabilities).unwrap())
        };
        let octets = emit(&Icmp6Message::NeighbourAdvertisement {
            router, solicited, overrides, target: target_addr, target_mac: Some(EthernetAddress(mac)),
        });
        let mut bits = NdiscNeighborFlags::empty();
        bits.set(NdiscNeighborFlags::ROUTER, router);
        bits.set(NdiscNeighborFlags::SOLICITED, solicited);
        bits.set(NdiscNeighborFlags::OVERRIDE, overrides);
        let lladdr = Some(RawHardwareAddress::from_bytes(&mac));
        let theirs = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags: bits, target_addr, lladdr });
        prop_assert_eq!(read(&octets), format!("{:?}", theirs));
        let octets = emit(&Icmp6Message::NeighbourSolicitation {
            target: target_addr, source_mac: Some(EthernetAddress(mac)), nonce: None,
        });
        let theirs = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr });
        prop_assert_eq!(read(&octets), format!("{:?}", theirs));
        let octets = emit(&Icmp6Message::EchoReply { identifier: ident, sequence: 3, data: &data });
        let theirs = Icmpv6Repr::EchoReply { ident, seq_no: 3, data: &data };
        prop_assert_eq!(read(&octets), format!("{:?}", theirs));
    }
}

#[test]
fn neighbour_messages_that_cannot_be_are_refused() {
    let target = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
    let good =
        emit(&Icmp6Message::NeighbourSolicitation { target, source_mac: Some(EthernetAddress([2; 6])), nonce: None });
    assert!(parse(&good).is_ok());
    // RFC 4861 §7.1.1: an option of length 0, a code, a multicast target, fewer than 24 octets.
    for (at, value) in [(25, 0), (25, 2), (1, 1), (8, 0xff)] {
        let mut bad = good.clone();
        bad[at] = value;
        repair(&mut bad);
        assert_eq!(parse(&bad), Err(WireError::Neighbour), "octet {at}");
    }
    let mut mapped = good.clone();
    mapped[8..24].copy_from_slice(&std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
    repair(&mut mapped);
    assert_eq!(parse(&mapped), Err(WireError::Neighbour));
    let mut short = good[..20].to_vec();
    repair(&mut short);
    assert_eq!(parse(&short), Err(WireError::Truncated));
    // An unknown option, and one of another length, are skipped.
    let mut other = good.clone();
    other[24] = 77;
    repair(&mut other);
    assert_eq!(parse(&other), Ok(Icmp6Message::NeighbourSolicitation { target, source_mac: None, nonce: None }));
    let mut damaged = good;
    damaged[10] ^= 1;
    assert_eq!(parse(&damaged), Err(WireError::IcmpChecksum));
}

#[test]
fn an_error_is_told_from_an_informational_message() {
    let message = |kind: u8| {
        let mut octets = vec![0; 48];
        octets[0] = kind;
        repair(&mut octets);
        octets
    };
    // RFC 4443 §2.1: types below 128. A Redirect is informational, but §2.4 (e.2) treats it as an error.
    for kind in [1, 2, 3, 4, 100, 127, REDIRECT] {
        assert!(parse(&message(kind)).unwrap().is_error(), "{kind}");
    }
    for kind in [128, 129, 143, 200, 255] {
        assert!(!parse(&message(kind)).unwrap().is_error(), "{kind}");
    }
}

#[test]
fn packet_too_big_names_our_segment_and_the_mtu() {
    let mut quoted = [0; 48];
    quoted[0] = 0x60;
    quoted[4..8].copy_from_slice(&[5, 0xdc, 6, 64]);
    quoted[8..24].copy_from_slice(&SOURCE.octets());
    quoted[24..40].copy_from_slice(&DESTINATION.octets());
    quoted[40..].copy_from_slice(&[0x0f, 0xa0, 0x4e, 0x51, 0xfe, 0xed, 0xbe, 0xef]);
    let octets = emit(&Icmp6Message::PacketTooBig { mtu: 1400, quoted: &quoted });
    let message = parse(&octets).unwrap();
    let segment = message.quoted_tcp().unwrap();
    assert_eq!((segment.flow.local, segment.flow.remote), (SOURCE.into(), DESTINATION.into()));
    assert_eq!((segment.flow.local_port, segment.flow.remote_port), (4000, 20049));
    assert_eq!((segment.sequence.0, segment.packet_len), (0xfeed_beef, 40 + 1500));

    assert_eq!(QuotedTcp::parse(&quoted[..47]), None, "too little of TCP");
    quoted[6] = 17;
    assert_eq!(QuotedTcp::parse(&quoted), None, "UDP");
}

/// RFC 4443 §2.4 (e): no error about an error, whatever extension headers are in front of it.
#[test]
fn packets_that_are_errors_forbid_errors() {
    // A Hop-by-Hop Options, Routing and Destination Options header, one of the latter of 16 octets, an Authentication
    // header, and the Fragment header of a first fragment: number, and octets behind the next header's.
    let extensions: [(u8, &[u8]); 6] = [
        (0, &[0, 1, 4, 0, 0, 0, 0]),
        (43, &[0, 9, 0, 0, 0, 0, 0]),
        (60, &[0, 1, 4, 0, 0, 0, 0]),
        (60, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (51, &[2, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]),
        (44, &[0, 0, 1, 0, 0, 0, 7]),
    ];
    let packet = |chain: &[(u8, &[u8])], protocol: u8, payload: &[u8]| {
        let mut octets = vec![0; 40];
        (octets[0], octets[6]) = (0x60, chain.first().map_or(protocol, |(number, _)| *number));
        for (index, (_, extension)) in chain.iter().enumerate() {
            octets.push(chain.get(index + 1).map_or(protocol, |(number, _)| *number));
            octets.extend_from_slice(extension);
        }
        octets.extend_from_slice(payload);
        octets
    };
    let mut chains = vec![vec![], extensions.to_vec()];
    chains.extend(extensions.map(|extension| vec![extension]));
    chains.push(vec![extensions[2]; 8]);
    for chain in chains {
        for kind in 0..=255 {
            let forbids = kind < 128 || kind == REDIRECT;
            assert_eq!(forbids_error(&packet(&chain, PROTOCOL, &[kind])), forbids, "type {kind} behind {chain:?}");
            assert!(!forbids_error(&packet(&chain, 17, &[kind])));
        }
        assert!(!forbids_error(&packet(&chain, 59, &[])), "nothing behind them");
        let whole = packet(&chain, PROTOCOL, &[ECHO_REQUEST]);
        for length in 0..whole.len() {
            assert!(forbids_error(&whole[..length]), "{length} octets of {chain:?}");
        }
    }
    assert!(forbids_error(&packet(&[extensions[2]; 9], 17, &[0; 8])), "more than are looked at");
    let later: (u8, &[u8]) = (44, &[0, 0, 8, 0, 0, 0, 7]);
    assert!(forbids_error(&packet(&[later], PROTOCOL, &[ECHO_REQUEST])), "its type is in another fragment");
    assert!(forbids_error(&packet(&[later], 60, &[PROTOCOL, 0, 0, 0, 0, 0, 0, 0])), "so are its headers");
    assert!(!forbids_error(&packet(&[later], 17, &[])), "UDP, wherever it begins");
}
