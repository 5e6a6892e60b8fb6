use proptest::prelude::*;
use smoltcp::wire::Ipv4Packet;

use super::*;

fn any_ipv4() -> impl Strategy<Value = Ipv4Header> {
    (any::<(u8, u16, bool, bool)>(), 0u16..0x2000, any::<(u8, u8, u32, u32)>(), 20usize..200).prop_map(
        |(
            (traffic_class, identification, dont_fragment, more_fragments),
            fragment_offset,
            (hop_limit, protocol, source, destination),
            total_len,
        )| Ipv4Header {
            header_len: HEADER_LEN,
            total_len,
            traffic_class,
            identification,
            dont_fragment,
            more_fragments,
            fragment_offset,
            hop_limit,
            protocol,
            source: Ipv4Addr::from_bits(source),
            destination: Ipv4Addr::from_bits(destination),
        },
    )
}

proptest! {
    #[test]
    fn any_octets_parse_without_panic(
        octets in prop::collection::vec(any::<u8>(), 0..80), available in 0usize..3000,
    ) {
        let _ = Ipv4Header::parse(&octets, available.max(octets.len()));
    }

    #[test]
    fn a_header_survives_emit_and_parse(header in any_ipv4()) {
        let mut octets = [0xaa; 200];
        prop_assert_eq!(header.emit(&mut octets), Ok(HEADER_LEN));
        prop_assert_eq!(Ipv4Header::parse(&octets, 200), Ok(header));
        prop_assert_eq!(Ipv4Header::parse(&octets[..20], 200), Ok(header));
    }

    #[test]
    fn smoltcp_reads_the_same(header in any_ipv4()) {
        let mut octets = [0; 200];
        header.emit(&mut octets).unwrap();
        let packet = Ipv4Packet::new_checked(&octets[..]).unwrap();
        prop_assert!(packet.verify_checksum());
        prop_assert_eq!(usize::from(packet.total_len()), header.total_len);
        prop_assert_eq!(usize::from(packet.header_len()), header.header_len);
        prop_assert_eq!((packet.dscp() << 2) | packet.ecn(), header.traffic_class);
        prop_assert_eq!(packet.ecn(), header.ecn());
        prop_assert_eq!(packet.ident(), header.identification);
        prop_assert_eq!(packet.dont_frag(), header.dont_fragment);
        prop_assert_eq!(packet.more_frags(), header.more_fragments);
        prop_assert_eq!(packet.frag_offset(), header.fragment_offset * 8);
        prop_assert_eq!(packet.hop_limit(), header.hop_limit);
        prop_assert_eq!(u8::from(packet.next_header()), header.protocol);
        prop_assert_eq!(packet.src_addr(), header.source);
        prop_assert_eq!(packet.dst_addr(), header.destination);
    }

    #[test]
    fn octets_that_we_take_smoltcp_takes_too(
        octets in prop::collection::vec(any::<u8>(), 60..80),
        header_words in 4u8..8,
        total_len in 0u16..90,
    ) {
        let mut octets = octets;
        octets[0] = 0x40 | header_words;
        octets[2..4].copy_from_slice(&total_len.to_be_bytes());
        octets[10..12].fill(0);
        if header_words >= 5 {
            let length = usize::from(header_words) * 4;
            let value = checksum::finish(checksum::sum(&octets[..length]));
            octets[10..12].copy_from_slice(&value.to_be_bytes());
        }
        let theirs = Ipv4Packet::new_checked(&octets[..]).ok().filter(|it| it.verify_checksum());
        match Ipv4Header::parse(&octets, octets.len()) {
            Ok(ours) => {
                let theirs = theirs.unwrap();
                prop_assert_eq!(ours.payload_len(), theirs.payload().len());
                prop_assert_eq!(ours.header_len, usize::from(theirs.header_len()));
            }
            // smoltcp accepts a header length below 20 octets.
            Err(_) => prop_assert!(theirs.is_none() || header_words < 5),
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed(header in any_ipv4(), bit in 0usize..160) {
        let mut octets = [0; 20];
        header.emit(&mut octets).unwrap();
        octets[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Ipv4Header::parse(&octets, 65536).is_err());
    }
}

fn valid(total_len: usize) -> [u8; 24] {
    let header = Ipv4Header {
        header_len: 20,
        total_len,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        hop_limit: 64,
        protocol: 6,
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(10, 0, 0, 2),
    };
    let mut octets = [0; 24];
    header.emit(&mut octets).unwrap();
    octets
}

#[test]
fn lengths_are_held_against_the_frame() {
    let octets = valid(40);
    assert_eq!(Ipv4Header::parse(&octets[..19], 19), Err(WireError::Truncated));
    assert_eq!(Ipv4Header::parse(&octets[..19], 40), Err(WireError::NotContiguous));
    assert_eq!(Ipv4Header::parse(&octets, 39), Err(WireError::TotalLength));
    assert_eq!(Ipv4Header::parse(&octets, 40).unwrap().payload_len(), 20);
    // Padding of the frame.
    assert_eq!(Ipv4Header::parse(&octets, 46).unwrap().payload_len(), 20);

    let mut with_options = octets;
    with_options[0] = 0x46;
    with_options[10] = with_options[10].wrapping_sub(1);
    assert_eq!(Ipv4Header::parse(&with_options, 40).unwrap().header_len, 24);
    assert_eq!(Ipv4Header::parse(&with_options[..22], 40), Err(WireError::NotContiguous));
    assert_eq!(Ipv4Header::parse(&with_options, 23), Err(WireError::HeaderLength));
    with_options[21] = 1;
    assert_eq!(Ipv4Header::parse(&with_options, 40), Err(WireError::HeaderChecksum));

    let mut header = Ipv4Header::parse(&octets, 40).unwrap();
    header.total_len = 65536;
    assert_eq!(header.emit(&mut [0; 20]), Err(WireError::TotalLength));
    header.total_len = 19;
    assert_eq!(header.emit(&mut [0; 20]), Err(WireError::TotalLength));
    assert_eq!(header.emit(&mut [0; 19]), Err(WireError::NoRoom));
}
