use proptest::prelude::*;
use smoltcp::wire::{Ipv6Packet, Ipv6Repr};

use super::*;

fn address(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)
}

fn header(next_header: u8, payload_len: usize) -> Ipv6Header {
    Ipv6Header {
        traffic_class: 2,
        flow_label: 7,
        payload_len,
        next_header,
        hop_limit: 64,
        source: address(1),
        destination: address(2),
    }
}

/// A packet of these octets behind the header.
fn packet(next_header: u8, rest: &[u8]) -> (Ipv6Header, Vec<u8>) {
    let header = header(next_header, rest.len());
    let mut octets = vec![0; HEADER_LEN];
    header.emit(&mut octets).unwrap();
    octets.extend_from_slice(rest);
    (header, octets)
}

fn walked(next_header: u8, rest: &[u8]) -> Result<Walked, WireError> {
    let (header, octets) = packet(next_header, rest);
    walk(&header, &octets)
}

proptest! {
    #[test]
    fn smoltcp_reads_our_headers(
        class in any::<u8>(), label in 0u32..1 << 20, hops in any::<u8>(), next in any::<u8>(),
        addresses in any::<[u128; 2]>(), payload in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let [source, destination] = addresses.map(|bits| Ipv6Addr::from_bits(bits >> 8 | 0x20 << 120));
        let header = Ipv6Header {
            traffic_class: class, flow_label: label, payload_len: payload.len(), next_header: next, hop_limit: hops,
            source, destination,
        };
        let mut octets = vec![0; HEADER_LEN];
        prop_assert_eq!(header.emit(&mut octets), Ok(HEADER_LEN));
        octets.extend_from_slice(&payload);
        prop_assert_eq!(Ipv6Header::parse(&octets, octets.len()), Ok(header));
        let theirs = Ipv6Packet::new_checked(&octets[..]).unwrap();
        prop_assert_eq!((theirs.traffic_class(), theirs.flow_label()), (class, label));
        let theirs = Ipv6Repr::parse(&theirs).unwrap();
        prop_assert_eq!((theirs.src_addr, theirs.dst_addr), (source, destination));
        prop_assert_eq!((theirs.hop_limit, u8::from(theirs.next_header)), (hops, next));
        prop_assert_eq!(theirs.payload_len, payload.len());
    }

    #[test]
    fn any_octets_are_walked_without_panic(
        next in prop::sample::select(vec![0u8, 6, 43, 44, 59, 60, 58, 99]),
        rest in prop::collection::vec(any::<u8>(), 0..100), cut in 0usize..140,
    ) {
        let (header, octets) = packet(next, &rest);
        let _ = Ipv6Header::parse(&octets[..cut.min(octets.len())], octets.len());
        if let Ok(Walked::Upper { offset, .. } | Walked::Fragment { offset, .. }) =
            walk(&header, &octets[..cut.min(octets.len())])
        {
            prop_assert!(offset <= octets.len());
        }
    }
}

#[test]
fn extension_headers_are_stepped_over() {
    // Hop-by-hop with a router alert, destination options with PadN, a finished routing header, and an atomic fragment.
    let rest = [
        [60, 0, 5, 2, 0, 0, 1, 0],
        [43, 0, 1, 4, 0, 0, 0, 0],
        [44, 0, 4, 0, 0, 0, 0, 0],
        [6, 0, 0, 0, 1, 2, 3, 4],
        [0; 8],
    ]
    .concat();
    assert_eq!(walked(0, &rest), Ok(Walked::Upper { protocol: 6, offset: 72, named_at: 64 }));
    assert_eq!(walked(59, &[]), Ok(Walked::Nothing));
}

#[test]
fn fragments_say_where_they_belong() {
    let rest = [17, 0, 0x05, 0xa9, 0xde, 0xad, 0xbe, 0xef, 1, 2];
    let header = FragmentHeader { next_header: 17, offset: 0x05a8, more: true, identification: 0xdead_beef };
    assert_eq!(walked(44, &rest), Ok(Walked::Fragment { header, offset: 48 }));
    let mut out = [0; 8];
    header.emit(&mut out);
    assert_eq!(out, rest[..8]);
}

#[test]
fn options_that_demand_an_answer_get_one() {
    // RFC 8200 §4.2: the two highest bits of an unknown option's type.
    let with = |kind: u8| walked(60, &[59, 0, kind, 4, 0, 0, 0, 0]);
    let problem = |even_multicast| Ok(Walked::Problem { code: 2, pointer: 42, even_multicast });
    assert_eq!(with(0x1e), Ok(Walked::Nothing));
    assert_eq!(with(0x5e), Ok(Walked::Discard));
    assert_eq!(with(0x9e), problem(true));
    assert_eq!(with(0xde), problem(false));
    // RFC 8200 §4.4: an unknown routing type with segments left.
    let routing = walked(43, &[59, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(routing, Ok(Walked::Problem { code: 0, pointer: 42, even_multicast: false }));
    // RFC 8200 §4.3: hop-by-hop options in another place.
    let late = walked(60, &[0, 0, 1, 4, 0, 0, 0, 0, 59, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(late, Ok(Walked::Problem { code: 1, pointer: 40, even_multicast: false }));
}

#[test]
fn chains_that_do_not_end_in_the_packet_are_refused() {
    assert_eq!(walked(60, &[59, 1, 1, 4, 0, 0, 0, 0]), Err(WireError::HeaderLength));
    assert_eq!(walked(60, &[59, 0, 1, 9, 0, 0, 0, 0]), Ok(Walked::Discard));
    let endless = [60, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    assert_eq!(walked(60, &endless), Err(WireError::HeaderLength));
    // Within the packet, but beyond the first part of its chain.
    let (header, octets) = packet(60, &[59, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(walk(&header, &octets[..44]), Err(WireError::NotContiguous));
}

#[test]
fn addresses_of_the_other_version_do_not_pass() {
    let (_, mut octets) = packet(59, &[]);
    octets[8..24].copy_from_slice(&std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets());
    assert_eq!(Ipv6Header::parse(&octets, 40), Err(WireError::SourceAddress));
    let (_, octets) = packet(59, &[0; 8]);
    assert_eq!(Ipv6Header::parse(&octets, 47), Err(WireError::TotalLength));
    assert_eq!(Ipv6Header::parse(&octets[..39], 48), Err(WireError::NotContiguous));
}

/// The Linux kernel sends an echo request from `::1` while its only other address is tentative.
#[test]
fn the_loopback_address_does_not_come_over_a_link() {
    for at in [8, 24] {
        let (_, mut octets) = packet(58, &[0; 8]);
        octets[at..at + 16].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        assert_eq!(Ipv6Header::parse(&octets, 48), Err(WireError::SourceAddress));
    }
}

#[test]
fn addresses_of_the_link_follow_their_documents() {
    // The examples of RFC 4291 §2.7.1 and RFC 2464 §4 and §7.
    let address: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
    assert_eq!(solicited_node(address), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
    assert_eq!(multicast_mac(solicited_node(address)).0, [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    let identifier = link_local([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
    assert_eq!(identifier, "fe80::3656:78ff:fe9a:bcde".parse::<Ipv6Addr>().unwrap());
}
