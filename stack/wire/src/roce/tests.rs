use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::address::IpAddress;
use crate::ethernet::{self, EthernetAddress};
use crate::frame::{Frame, Path, Refusal, classify, emit_datagram};

const V4: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
const V6: [IpAddr; 2] =
    [IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))];

const HEADER: Header = Header {
    destination: 0x01_8000,
    source: 0x00_8001,
    key: 0x1122_3344,
    sequence: 7,
    solicited: true,
    immediate: None,
};

fn frame(header: &Header, payload: &[u8], [source, destination]: [IpAddr; 2]) -> Vec<u8> {
    let mac = |last| EthernetAddress([2, 0, 0, 0, 0, last]);
    let path = Path::new(mac(1), mac(2), IpAddress::from(source), IpAddress::from(destination));
    let mut out = vec![0xaa; 300 + payload.len()];
    let length = emit_datagram(&mut out, &path, header, payload.len(), |room| {
        room.copy_from_slice(payload);
        Ok::<(), WireError>(())
    });
    out.truncate(length.unwrap());
    out
}

fn packet(header: &Header, payload: &[u8], addresses: [IpAddr; 2]) -> Vec<u8> {
    frame(header, payload, addresses).split_off(ethernet::HEADER_LEN)
}

/// Octet by octet, by the polynomial's definition.
fn slow_crc32(octets: &[u8]) -> u32 {
    octets.iter().fold(u32::MAX, |register, octet| {
        (0..8).fold(register ^ u32::from(*octet), |register, _| {
            register >> 1 ^ if register & 1 != 0 { 0xedb8_8320 } else { 0 }
        })
    })
}

#[test]
fn the_crc_is_that_of_ethernet() {
    assert_eq!(!crc32(u32::MAX, b"123456789"), 0xcbf4_3926);
    // What Linux' rxe begins with, in place of the link header's eight octets of ones.
    assert_eq!(crc32(u32::MAX, &[0xff; 8]), 0xdebb_20e3);
}

#[test]
fn every_octet_that_routers_leave_alone_is_covered() {
    for (addresses, may_change) in [(V4, &[1, 8, 10, 11, 26, 27, 32][..]), (V6, &[1, 2, 3, 7, 46, 47, 52][..])] {
        let whole = packet(&Header { immediate: Some(9), ..HEADER }, b"abcdefghijk", addresses);
        assert!(parse(&whole).is_ok());
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            // Four bits are the version's, which the next octet shares with the traffic class.
            changed[at] ^= if at == 0 && addresses == V6 { 0x10 } else { 0x80 };
            // Lengths, ports and kinds are looked at before.
            assert_eq!(parse(&changed).is_ok(), may_change.contains(&at), "octet {at}");
        }
    }
}

#[test]
fn a_frame_of_another_kind_is_none() {
    let whole = packet(&HEADER, b"abcd", V4);
    for length in 0..whole.len() {
        assert_eq!(parse(&whole[..length]), Err(WireError::Datagram), "{length}");
    }
    // UDP's length, the kind, the version, the partition.
    for (at, octet) in [(25, 1), (28, 0x04), (29, 0x81), (30, 0x7e)] {
        let mut wrong = whole.clone();
        wrong[at] = octet;
        assert_eq!(parse(&wrong), Err(WireError::Datagram), "octet {at}");
    }
    // More padding than there is payload, with a good CRC.
    let mut empty = packet(&HEADER, b"", V4);
    empty[29] |= 0x30;
    seal(&mut empty);
    assert_eq!(parse(&empty), Err(WireError::Datagram));
    // Immediate data that are not there.
    let mut short = packet(&HEADER, b"", V4);
    short[28] = SEND_IMMEDIATE;
    seal(&mut short);
    assert_eq!(parse(&short), Err(WireError::Datagram));
}

#[test]
fn a_datagram_is_a_packet_that_nothing_else_takes() {
    for addresses in [V4, V6] {
        let frame = frame(&HEADER, b"abc", addresses);
        let Ok(Frame::Refused(refused)) = classify(&frame, frame.len()) else { panic!("not refused") };
        assert!(matches!(refused.refusal, Refusal::Protocol { protocol: PROTOCOL, .. }));
        let packet = &frame[refused.route.ip_offset..][..refused.route.ip_len];
        assert!(is_in(packet));
        assert_eq!(ends(packet), Some((HEADER.source, HEADER.destination)));
        assert_eq!(parse(packet), Ok((HEADER, &b"abc"[..])));
    }
}

proptest! {
    #[test]
    fn datagrams_survive_emit_and_parse(
        ends in any::<[u32; 2]>(), key in any::<u32>(), sequence in any::<u32>(), solicited in any::<bool>(),
        immediate in any::<Option<u32>>(), payload in prop::collection::vec(any::<u8>(), 0..100), v6 in any::<bool>(),
    ) {
        let [destination, source] = ends.map(|end| end & NUMBER);
        let header = Header { destination, source, key, sequence: sequence & NUMBER, solicited, immediate };
        let octets = packet(&header, &payload, if v6 { V6 } else { V4 });
        prop_assert_eq!(parse(&octets), Ok((header, &payload[..])));
    }

    #[test]
    fn any_octets_parse_without_panic(
        octets in prop::collection::vec(any::<u8>(), 0..120), first in prop::sample::select(vec![0x45u8, 0x60]),
    ) {
        let mut octets = octets;
        let _ = (parse(&octets), ends(&octets));
        // Far enough to be read.
        for (at, octet) in [(0, first), (9, PROTOCOL), (6, PROTOCOL), (28, SEND), (48, SEND)] {
            if let Some(place) = octets.get_mut(at) {
                *place = octet;
            }
        }
        seal(&mut octets);
        let _ = (parse(&octets), ends(&octets));
    }

    #[test]
    fn the_tables_give_what_the_polynomial_does(octets in prop::collection::vec(any::<u8>(), 0..70)) {
        prop_assert_eq!(crc32(u32::MAX, &octets), slow_crc32(&octets));
    }
}
