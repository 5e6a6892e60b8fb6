use core::net::Ipv4Addr;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{EthernetFrame, IpAddress as SmoltcpAddress, Ipv4Packet, TcpPacket, TcpRepr};

use super::*;
use crate::ipv4;
use crate::tcp::tests::any_header;
use crate::tcp::{SeqNumber, TcpFlags, Timestamps};

const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 2]);

fn path(vlan: Option<VlanTag>) -> Path {
    let mut path = Path::new(MAC, PEER_MAC, Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
    path.vlan = vlan;
    path
}

fn path6() -> Path {
    let address = |last| core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into();
    Path::new(MAC, PEER_MAC, address(1), address(2))
}

/// A frame as we send it.
fn build(path: &Path, header: &TcpHeader, ecn: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 128];
    frame.extend_from_slice(payload);
    let checksum = TcpChecksum::Full { payload_sum: checksum::sum(payload) };
    let length = prepend_tcp(&mut frame[..128], path, header, ecn, payload.len(), checksum).unwrap();
    assert_eq!(length, tcp_headers_len(path, header));
    assert!(frame[..128 - length].iter().all(|octet| *octet == 0));
    frame.split_off(128 - length)
}

fn data_segment(payload: &[u8]) -> Vec<u8> {
    let mut header = TcpHeader::new(TcpFlags::ACK | TcpFlags::PSH);
    header.source_port = 1000;
    header.destination_port = 2000;
    build(&path(None), &header, 0, payload)
}

fn tcp_of(frame: &[u8]) -> TcpFrame {
    match classify(frame, frame.len()) {
        Ok(Frame::Tcp(tcp)) => tcp,
        other => panic!("{other:?}"),
    }
}

/// Corrects the IPv4 header checksum after a change.
fn repair_ip(frame: &mut [u8]) {
    let length = usize::from(frame[14] & 0x0f) * 4;
    frame[24..26].fill(0);
    let value = checksum::finish(checksum::sum(&frame[14..14 + length]));
    frame[24..26].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn a_peek_sees_the_flow_of_usual_frames_and_of_no_others() {
    for path in [path(None), path(Some(VlanTag(7))), path6(), Path { vlan: Some(VlanTag(1)), ..path6() }] {
        let mut header = TcpHeader::new(TcpFlags::ACK);
        (header.source_port, header.destination_port) = (1000, 2000);
        let frame = build(&path, &header, 0, b"octets");
        assert_eq!(peek_flow(&frame), Some(tcp_of(&frame).flow));
        let ip = path.headers_len() - if path.source.is_ipv4() { 20 } else { 40 };
        let protocol = ip + if path.source.is_ipv4() { 9 } else { 6 };
        for length in 0..path.headers_len() + 4 {
            assert_eq!(peek_flow(&frame[..length]), None, "{length}");
        }
        let mut other = frame.clone();
        other[protocol] = 17;
        assert_eq!(peek_flow(&other), None);
        other = frame.clone();
        other[ip - 2..ip].copy_from_slice(&[8, 6]);
        assert_eq!(peek_flow(&other), None);
    }
}

proptest! {
    #[test]
    fn any_octets_classify_without_panic(
        octets in prop::collection::vec(any::<u8>(), 0..120), more in 0usize..3000,
    ) {
        let _ = classify(&octets, octets.len() + more);
    }

    #[test]
    fn the_short_way_says_what_the_long_one_says(
        mut header in any_header(),
        stamped in any::<bool>(),
        usual in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((0usize..70, any::<u8>()), 0..3),
        (cut, padding) in (0usize..400, 0usize..20),
        (repair, ecn) in (any::<bool>(), 0u8..4),
    ) {
        if usual {
            let timestamps = stamped.then_some(Timestamps { value: header.sequence.0, echo: header.acknowledgment.0 });
            header.options = TcpOptions { timestamps, ..TcpOptions::NONE };
        }
        let mut frame = build(&path(None), &header, ecn, &payload);
        for (at, value) in changes {
            if let Some(octet) = frame.get_mut(at) {
                *octet = value;
            }
        }
        if repair && 14 + usize::from(frame[14] & 0x0f) * 4 <= frame.len() {
            repair_ip(&mut frame);
        }
        frame.resize(frame.len() + padding, 0);
        let piece = &frame[..cut.min(frame.len())];
        for total in [0, piece.len(), frame.len()] {
            prop_assert_eq!(classify(piece, total), classify_any(piece, total));
        }
    }

    #[test]
    fn any_change_of_a_segment_classifies_without_panic(
        header in any_header(),
        payload in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((0usize..120, any::<u8>()), 0..4),
        cut in 0usize..200,
        repair in any::<bool>(),
        v6 in any::<bool>(),
    ) {
        let path = if v6 { path6() } else { path(None) };
        let mut frame = build(&path, &header, 0, &payload);
        let length = frame.len();
        for (at, value) in changes {
            frame[at % length] = value;
        }
        if repair && !v6 && 14 + usize::from(frame[14] & 0x0f) * 4 <= frame.len() {
            repair_ip(&mut frame);
        }
        let piece = &frame[..cut.min(length)];
        for total in [piece.len(), length] {
            if let Ok(Frame::Tcp(tcp)) = classify(piece, total) {
                prop_assert!(tcp.payload_offset + tcp.payload_len <= total);
                prop_assert!(tcp.payload_offset <= piece.len());
                let _ = tcp.checksum_is_good(piece, checksum::sum);
                let _ = tcp.checksum_is_good_chained([piece, &frame[piece.len()..]], checksum::sum);
            }
        }
    }

    #[test]
    fn what_is_built_is_classified_as_such(
        header in any_header(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        vlan in prop::option::of(any::<u16>()),
        ecn in 0u8..4,
        padding in 0usize..20,
        v6 in any::<bool>(),
    ) {
        let mut path = if v6 { path6() } else { path(None) };
        path.vlan = vlan.map(VlanTag);
        let mut frame = build(&path, &header, ecn, &payload);
        frame.extend(vec![0x55; padding]);
        let tcp = tcp_of(&frame);
        prop_assert_eq!(tcp.header, header);
        prop_assert_eq!(tcp.flow.remote, path.source);
        prop_assert_eq!(tcp.flow.local, path.destination);
        prop_assert_eq!(tcp.flow.remote_port, header.source_port);
        prop_assert_eq!(tcp.flow.local_port, header.destination_port);
        prop_assert_eq!(tcp.flow.reversed().reversed(), tcp.flow);
        prop_assert_eq!(&frame[tcp.payload_offset..][..tcp.payload_len], &payload[..]);
        prop_assert_eq!((tcp.ecn, tcp.vlan), (ecn, path.vlan));
        prop_assert_eq!((tcp.source_mac, tcp.destination_mac), (MAC, PEER_MAC));
        prop_assert!(tcp.checksum_is_good(&frame, checksum::sum));
        // The device's half of the checksum yields the same value.
        let l4 = tcp.l4_offset..tcp.l4_offset + tcp.l4_len();
        let headers = l4.start..l4.end - payload.len();
        let mut offloaded = frame.clone();
        let room = &mut offloaded[..headers.end];
        prepend_tcp(room, &path, &header, ecn, payload.len(), TcpChecksum::PseudoHeaderOnly).unwrap();
        let value = checksum::finish(checksum::sum(&offloaded[l4.clone()]));
        offloaded[l4.start + tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&value.to_be_bytes());
        prop_assert!(tcp.checksum_is_good(&offloaded, checksum::sum));
    }

    #[test]
    fn a_chain_of_any_pieces_has_the_same_checksum(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(0usize..400, 0..6),
        flip in prop::option::of(0usize..300),
    ) {
        let mut frame = data_segment(&payload);
        let tcp = tcp_of(&frame);
        if let Some(at) = flip
            && let Some(octet) = frame.get_mut(tcp.l4_offset + 20 + at)
        {
            *octet ^= 0x10;
        }
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(frame.len())).collect();
        cuts.extend([0, frame.len()]);
        cuts.sort_unstable();
        let pieces = || cuts.windows(2).map(|pair| &frame[pair[0]..pair[1]]);
        let damaged = flip.is_some_and(|at| at < payload.len());
        prop_assert_eq!(tcp.checksum_is_good_chained(pieces(), checksum::sum), !damaged);
        prop_assert_eq!(tcp.checksum_is_good(&frame, checksum::sum), !damaged);
        prop_assert!(!tcp.checksum_is_good(&frame[..frame.len() - 1], checksum::sum));
        let short = [&frame[..frame.len() - 1]];
        prop_assert!(!tcp.checksum_is_good_chained(short, checksum::sum));
    }

    #[test]
    fn smoltcp_reads_our_segments(
        header in any_header(), payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let frame = build(&path(None), &header, 0, &payload);
        let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
        prop_assert_eq!((ethernet.src_addr(), ethernet.dst_addr()), (MAC, PEER_MAC));
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        prop_assert!(ip.verify_checksum() && ip.dont_frag());
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        prop_assert_eq!(source, Ipv4Addr::new(10, 0, 0, 1));
        prop_assert_eq!(destination, Ipv4Addr::new(10, 0, 0, 2));
        let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
        let (source, destination) =
            (SmoltcpAddress::Ipv4(source), SmoltcpAddress::Ipv4(destination));
        prop_assert!(tcp.verify_checksum(&source, &destination));
        prop_assert_eq!(tcp.payload(), &payload[..]);
        // smoltcp refuses some combinations of flags, and port 0.
        if let Ok(theirs) =
            TcpRepr::parse(&tcp, &source, &destination, &ChecksumCapabilities::default())
        {
            prop_assert_eq!(SeqNumber(theirs.seq_number.0 as u32), header.sequence);
            prop_assert_eq!(theirs.ack_number.is_some(), header.flags.contains(TcpFlags::ACK));
            prop_assert_eq!(theirs.max_seg_size, header.options.mss);
        }
    }
}

#[test]
fn headers_split_over_pieces_are_told_from_bad_ones() {
    let frame = data_segment(b"payload");
    let total = frame.len();
    for cut in 14..54 {
        let result = classify(&frame[..cut], total);
        assert_eq!(result, Err(WireError::NotContiguous), "first piece of {cut} octets");
    }
    assert!(matches!(classify(&frame[..54], total), Ok(Frame::Tcp(_))));
    assert_eq!(classify(&frame[..13], total), Err(WireError::Truncated));
    assert_eq!(classify(&frame[..40], 40), Err(WireError::TotalLength));

    // A data offset beyond the IP packet.
    let mut bad = data_segment(b"1234");
    bad[46] = 0x70;
    assert_eq!(classify(&bad, bad.len()), Err(WireError::HeaderLength));
    assert_eq!(classify(&bad[..54], bad.len()), Err(WireError::HeaderLength));
    bad[46] = 0x60;
    assert_eq!(classify(&bad[..54], bad.len()), Err(WireError::NotContiguous));
    bad[46] = 0x40;
    assert_eq!(classify(&bad[..54], bad.len()), Err(WireError::HeaderLength));

    // An IP packet too short for a TCP header.
    let mut short = data_segment(b"");
    short[17] = 39;
    repair_ip(&mut short);
    assert_eq!(classify(&short, short.len()), Err(WireError::Truncated));
}

#[test]
fn ip_options_are_stepped_over() {
    let frame = data_segment(b"payload");
    let mut longer = frame[..34].to_vec();
    longer.extend([1, 1, 1, 0]);
    longer.extend(&frame[34..]);
    longer[14] = 0x46;
    longer[17] += 4;
    repair_ip(&mut longer);
    let tcp = tcp_of(&longer);
    assert_eq!((tcp.ip_offset, tcp.l4_offset, tcp.payload_offset), (14, 38, 58));
    assert_eq!(&longer[tcp.payload_offset..][..tcp.payload_len], b"payload");
    assert!(tcp.checksum_is_good(&longer, checksum::sum));
}

#[test]
fn fragments_and_strangers_are_reported() {
    let frame = data_segment(b"payload");
    for (at, value) in [(20, 0x20), (21, 1)] {
        let mut fragment = frame.clone();
        fragment[at] = value;
        repair_ip(&mut fragment);
        let Ok(Frame::Fragment(found)) = classify(&fragment, fragment.len()) else { panic!("a fragment") };
        assert_eq!((found.offset, found.more, found.protocol), (usize::from(fragment[21]) * 8, at == 20, 6));
        assert_eq!(fragment[found.payload_offset..].len(), found.payload_len);
    }
    let mut udp = frame.clone();
    udp[23] = 17;
    repair_ip(&mut udp);
    let Ok(Frame::Refused(refused)) = classify(&udp, udp.len()) else { panic!("refused") };
    assert_eq!(refused.refusal, Refusal::Protocol { protocol: 17, named_at: 9 });
    // RFC 1122 §3.2.1.3: the first octet of the source.
    for first in 0..=255 {
        let mut other = frame.clone();
        other[26] = first;
        repair_ip(&mut other);
        let refused = classify(&other, other.len()) == Err(WireError::SourceAddress);
        assert_eq!(refused, first == 0 || first == 127 || first >= 224, "{first}");
    }
    let mut version = frame.clone();
    version[14] = 0x65;
    assert_eq!(classify(&version, version.len()), Err(WireError::IpVersion));
    let mut damaged = frame.clone();
    damaged[22] ^= 1;
    assert_eq!(classify(&damaged, damaged.len()), Err(WireError::HeaderChecksum));
    for ether_type in [EtherType(0x88cc), EtherType(60)] {
        let mut other = frame.clone();
        other[12..14].copy_from_slice(&ether_type.0.to_be_bytes());
        assert_eq!(classify(&other, other.len()), Ok(Frame::Other(ether_type)));
    }
    // A second VLAN tag.
    let mut tagged = build(&path(Some(VlanTag(0xe001))), &TcpHeader::new(TcpFlags::ACK), 0, b"");
    let tag = tcp_of(&tagged).vlan.unwrap();
    assert_eq!((tag.identifier(), tag.priority()), (1, 7));
    tagged[16..18].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
    let expected = Frame::Other(EtherType::VLAN);
    assert_eq!(classify(&tagged, tagged.len()), Ok(expected));
}

#[test]
fn arp_and_echo_arrive_and_are_answered() {
    let request = ArpPacket::request(PEER_MAC, Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
    let mut out = [0; 128];
    let length = request.emit_frame(&mut out).unwrap();
    // Padded to the minimum of Ethernet.
    assert!(length < 60);
    let expected = ArpFrame { destination_mac: EthernetAddress::BROADCAST, vlan: None, packet: request };
    assert_eq!(classify(&out[..60], 60), Ok(Frame::Arp(expected)));

    let message = IcmpMessage::EchoRequest { identifier: 7, sequence: 8, data: b"0123456789abc" };
    let there = path(None);
    let length = emit_icmp(&mut out, &there, &message).unwrap();
    out[length..60].fill(0x77);
    let Ok(Frame::Icmp(echo)) = classify(&out[..60], 60) else { panic!() };
    assert_eq!(echo.message, message);
    assert_eq!((echo.route.source, echo.route.destination), (there.source, there.destination));
    assert_eq!((echo.route.source_mac, echo.route.destination_mac), (MAC, PEER_MAC));
    assert_eq!(classify(&out[..50], 60), Err(WireError::NotContiguous));
    assert_eq!(emit_icmp(&mut [0; 40], &there, &message), Err(WireError::NoRoom));
}

#[test]
fn headers_that_cannot_be_built_are_errors() {
    let header = TcpHeader::new(TcpFlags::ACK);
    let checksum = TcpChecksum::PseudoHeaderOnly;
    let mut out = [0; 54];
    let room = &mut out[..53];
    assert_eq!(prepend_tcp(room, &path(None), &header, 0, 0, checksum), Err(WireError::NoRoom));
    let too_long = 65536 - ipv4::HEADER_LEN - tcp::HEADER_LEN;
    let result = prepend_tcp(&mut out, &path(None), &header, 0, too_long, checksum);
    assert_eq!(result, Err(WireError::TotalLength));
    assert!(prepend_tcp(&mut out, &path(None), &header, 0, too_long - 1, checksum).is_ok());
    let mut v6 = path(None);
    v6.source = IpAddress::UNSPECIFIED;
    let result = prepend_tcp(&mut [0; 74], &v6, &header, 0, 0, checksum);
    assert_eq!(result, Err(WireError::AddressFamily));
}

#[test]
fn addresses_keep_their_version() {
    let v4 = Ipv4Addr::new(192, 0, 2, 1);
    let address = IpAddress::from(v4);
    assert!(address.is_ipv4());
    assert_eq!(address.to_ipv4(), Some(v4));
    assert_eq!(core::net::IpAddr::from(address), v4);
    assert_eq!(address.to_string(), "192.0.2.1");
    assert_eq!(IpAddress::from(core::net::IpAddr::V6(v4.to_ipv6_mapped())), address);
    let v6: core::net::Ipv6Addr = "2001:db8::1".parse().unwrap();
    assert_eq!(IpAddress::from(v6).to_ipv4(), None);
    assert_eq!(IpAddress::from(v6).to_ip_addr(), v6);
    assert!(IpAddress::UNSPECIFIED.is_unspecified() && !address.is_unspecified());
    assert!(IpAddress::from(Ipv4Addr::UNSPECIFIED).is_unspecified());
}

#[test]
fn smoltcp_reads_our_segments_over_ipv6() {
    let mut header = TcpHeader::new(TcpFlags::ACK | TcpFlags::PSH);
    (header.source_port, header.destination_port) = (1000, 2000);
    header.sequence = SeqNumber(77);
    let frame = build(&path6(), &header, 2, b"payload");
    let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
    let ip = smoltcp::wire::Ipv6Packet::new_checked(ethernet.payload()).unwrap();
    assert_eq!((ip.traffic_class(), ip.hop_limit()), (2, 64));
    let addresses = [SmoltcpAddress::Ipv6(ip.src_addr()), SmoltcpAddress::Ipv6(ip.dst_addr())];
    let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
    assert!(tcp.verify_checksum(&addresses[0], &addresses[1]));
    assert_eq!((tcp.src_port(), tcp.dst_port(), tcp.payload()), (1000, 2000, &b"payload"[..]));
}

#[test]
fn ipv6_packets_are_told_apart() {
    let good = build(&path6(), &TcpHeader::new(TcpFlags::ACK), 0, b"payload");
    assert_eq!(tcp_of(&good).payload_len, 7);
    let total = good.len();
    for cut in 14..74 {
        assert_eq!(classify(&good[..cut], total), Err(WireError::NotContiguous), "first piece of {cut} octets");
    }
    // TCP behind destination options.
    let mut longer = good[..54].to_vec();
    longer.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    longer.extend(&good[54..]);
    (longer[20], longer[19]) = (60, longer[19] + 8);
    let tcp = tcp_of(&longer);
    assert_eq!((tcp.l4_offset, tcp.payload_offset), (62, 82));
    assert!(tcp.checksum_is_good(&longer, checksum::sum));
    // UDP, a source that no host has, and a fragment of something.
    let mut udp = good.clone();
    udp[20] = 17;
    let Ok(Frame::Refused(refused)) = classify(&udp, total) else { panic!("refused") };
    assert_eq!(refused.refusal, Refusal::Protocol { protocol: 17, named_at: 6 });
    assert_eq!((refused.route.ip_offset, refused.route.ip_len), (14, total - 14));
    for source in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
        let mut other = good.clone();
        other[22..38].copy_from_slice(&source.parse::<core::net::Ipv6Addr>().unwrap().octets());
        assert_eq!(classify(&other, total), Err(WireError::SourceAddress), "{source}");
    }
}

#[test]
fn fragments_are_what_they_were_cut_from() {
    for path in [path(None), path6()] {
        let mut out = [0; 200];
        let payload: Vec<u8> = (0..64).collect();
        let length = emit_fragment(&mut out, &path, 17, 0xabcd, (1480, true), &payload).unwrap();
        let Ok(Frame::Fragment(found)) = classify(&out[..length], length) else { panic!("a fragment") };
        assert_eq!((found.identification, found.protocol, found.offset, found.more), (0xabcd, 17, 1480, true));
        assert_eq!((found.route.source, found.route.destination), (path.source, path.destination));
        assert_eq!(&out[found.payload_offset..][..found.payload_len], &payload);
    }
}

#[test]
fn an_icmpv6_echo_arrives() {
    let message = Icmp6Message::EchoRequest { identifier: 7, sequence: 8, data: b"0123456789abc" };
    let mut out = [0; 128];
    let length = emit_icmp6(&mut out, &path6(), &message).unwrap();
    let Ok(Frame::Icmp6(echo)) = classify(&out[..length], length) else { panic!("an echo") };
    assert_eq!((echo.message, echo.hop_limit), (message, 64));
    assert_eq!(emit_icmp6(&mut out, &path(None), &message), Err(WireError::AddressFamily));
    out[60] ^= 1;
    assert_eq!(classify(&out[..length], length), Err(WireError::IcmpChecksum));
}
