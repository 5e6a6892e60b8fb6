//! Ethernet to RDMAP in one go.

use std::net::Ipv4Addr;

use uwarp_wire::WireError;
use uwarp_wire::arp::{ArpOperation, ArpPacket};
use uwarp_wire::checksum;
use uwarp_wire::ethernet::EthernetHeader;
use uwarp_wire::frame::{
    Frame, Path, Route, TcpChecksum, TcpFrame, classify, emit_icmp, emit_icmp6, prepend_tcp, tcp_headers_len,
};
use uwarp_wire::icmp::IcmpMessage;
use uwarp_wire::icmp6::{self, Icmp6Message};
use uwarp_wire::ipv6::{self, Ipv6Header, Walked};
use uwarp_wire::roce;
use uwarp_wire::tcp::SackBlocks;

use crate::stream;

/// Treats `data` as a received frame. Wrong checksums are corrected once, so that not every changed octet ends at the
/// IPv4 header. The payload of a TCP segment is treated as a stream of FPDUs.
pub fn frame(data: &[u8]) {
    let mut octets = data.to_vec();
    for _ in 0..3 {
        match classify(&octets, octets.len()) {
            Ok(frame) => return handle(&frame, &octets),
            Err(WireError::HeaderChecksum) => repair_ipv4(&mut octets),
            Err(WireError::IcmpChecksum) => repair_icmp(&mut octets),
            Err(_) => break,
        }
    }
    // Whatever the headers are, the layers above must accept any octets.
    stream::receive(data);
}

fn put(octets: &mut [u8], at: usize, value: u16) {
    octets[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn ip_offset(octets: &[u8]) -> usize {
    EthernetHeader::parse(octets).map_or(0, |header| header.len())
}

fn repair_ipv4(octets: &mut [u8]) {
    let at = ip_offset(octets);
    let end = at + usize::from(octets[at] & 0x0f) * 4;
    put(octets, at + 10, 0);
    let value = checksum::finish(checksum::sum(&octets[at..end]));
    put(octets, at + 10, value);
}

fn repair_icmp(octets: &mut [u8]) {
    let at = ip_offset(octets);
    if octets[at] >> 4 == 6 {
        return repair_icmp6(octets, at);
    }
    let start = at + usize::from(octets[at] & 0x0f) * 4;
    let end = at + usize::from(u16::from_be_bytes([octets[at + 2], octets[at + 3]]));
    put(octets, start + 2, 0);
    let value = checksum::finish(checksum::sum(&octets[start..end]));
    put(octets, start + 2, value);
}

fn repair_icmp6(octets: &mut [u8], at: usize) {
    let Ok(ip) = Ipv6Header::parse(&octets[at..], octets.len() - at) else { return };
    let Ok(Walked::Upper { offset, .. }) = ipv6::walk(&ip, &octets[at..]) else { return };
    let (start, end) = (at + offset, at + ipv6::HEADER_LEN + ip.payload_len);
    put(octets, start + 2, 0);
    let pseudo = checksum::pseudo_header(ip.source.into(), ip.destination.into(), icmp6::PROTOCOL, end - start);
    let value = checksum::finish(checksum::combine(pseudo, checksum::sum(&octets[start..end])));
    put(octets, start + 2, value);
}

fn handle(frame: &Frame<'_>, octets: &[u8]) {
    match frame {
        Frame::Tcp(tcp) => handle_tcp(tcp, octets),
        Frame::Icmp(icmp) => {
            let _ = icmp.message.quoted_tcp();
            let path = path(&icmp.route);
            let mut out = vec![0; path.headers_len() + icmp.message.emit_len()];
            let length = emit_icmp(&mut out, &path, &icmp.message).expect("it came in a frame");
            let Ok(Frame::Icmp(again)) = classify(&out[..length], length) else {
                panic!("our own ICMP message is not one: {:?}", icmp.message);
            };
            if !matches!(icmp.message, IcmpMessage::Other { .. }) {
                assert_eq!(again.message, icmp.message);
            }
        }
        Frame::Arp(arp) => {
            let mut out = [0; 64];
            let length = arp.packet.emit(&mut out).expect("64 octets are enough");
            assert_eq!(ArpPacket::parse(&out[..length]), Ok(arp.packet));
            let reply = arp.packet.reply(arp.packet.sender_mac);
            assert_eq!(reply.operation, ArpOperation::Reply);
            let _ = (reply.destination(), reply.is_gratuitous(), reply.is_probe());
        }
        Frame::Icmp6(icmp) => {
            let _ = (icmp.message.quoted_tcp(), icmp.message.is_error());
            let path = path(&icmp.route);
            let mut out = vec![0; path.headers_len() + icmp.message.emit_len()];
            let length = emit_icmp6(&mut out, &path, &icmp.message).expect("it came in a frame");
            let Ok(Frame::Icmp6(again)) = classify(&out[..length], length) else {
                panic!("our own ICMPv6 message is not one: {:?}", icmp.message);
            };
            if !matches!(icmp.message, Icmp6Message::Other { .. } | Icmp6Message::Redirect) {
                assert_eq!(again.message, icmp.message);
            }
        }
        Frame::Fragment(fragment) => {
            let end = fragment.payload_offset + fragment.payload_len;
            assert!(end <= octets.len() && fragment.route.ip_offset + fragment.route.ip_len <= octets.len());
        }
        Frame::Refused(refused) => {
            let packet = &octets[refused.route.ip_offset..][..refused.route.ip_len];
            if let Ok((header, payload)) = roce::parse(packet) {
                assert_eq!(roce::ends(packet), Some((header.source, header.destination)));
                assert!(roce::is_in(packet) && payload.len() < packet.len());
            }
        }
        Frame::Other(_) => {}
    }
}

fn path(route: &Route) -> Path {
    let mut path = Path::new(route.source_mac, route.destination_mac, route.source, route.destination);
    path.vlan = route.vlan;
    path
}

fn handle_tcp(tcp: &TcpFrame, octets: &[u8]) {
    let end = tcp.payload_offset + tcp.payload_len;
    assert!(tcp.payload_offset <= end && end <= octets.len());
    let payload = &octets[tcp.payload_offset..end];

    // The checksum does not depend on how the frame is cut.
    let good = tcp.checksum_is_good(octets, checksum::sum);
    let cut = usize::from(tcp.header.window) % (octets.len() + 1);
    let (first, second) = octets.split_at(cut);
    assert_eq!(tcp.checksum_is_good_chained([first, second], checksum::sum), good);
    // Headers in a first part are equivalent to headers in a complete frame.
    match classify(first, octets.len()) {
        Ok(Frame::Tcp(again)) => assert_eq!(&again, tcp),
        Ok(other) => panic!("a shorter first piece turned {tcp:?} into {other:?}"),
        Err(error) => assert!(cut < tcp.payload_offset, "{error:?} at {cut}"),
    }

    rebuild(tcp, payload);
    stream::receive(payload);
}

/// A received frame can be sent, and is then received with the same values.
fn rebuild(tcp: &TcpFrame, payload: &[u8]) {
    let mut path = Path::new(tcp.source_mac, tcp.destination_mac, tcp.flow.remote, tcp.flow.local);
    path.vlan = tcp.vlan;
    assert_ne!(path.source, Ipv4Addr::BROADCAST.into());
    let headers = tcp_headers_len(&path, &tcp.header);
    let mut out = vec![0; headers];
    out.extend_from_slice(payload);
    let checksum = TcpChecksum::Full { payload_sum: checksum::sum(payload) };
    let room = &mut out[..headers];
    match prepend_tcp(room, &path, &tcp.header, tcp.ecn, payload.len(), checksum) {
        Ok(length) => assert_eq!(length, headers),
        // Options padded to words may push a packet of nearly 65535 octets over the limit.
        Err(WireError::TotalLength) if payload.len() > 65000 => return,
        Err(error) => panic!("{error:?}"),
    }
    let Ok(Frame::Tcp(again)) = classify(&out, out.len()) else { panic!("our own segment is not one") };
    assert!(again.checksum_is_good(&out, checksum::sum));
    assert_eq!((again.flow, again.vlan, again.ecn), (tcp.flow, tcp.vlan, tcp.ecn));
    assert_eq!(again.payload_len, payload.len());
    // A SACK block may have been displaced by the padding of other options.
    let (mut sent, mut received) = (tcp.header, again.header);
    let (before, after) = (sent.options.sack, received.options.sack);
    assert_eq!(before.as_slice()[..after.len()], *after.as_slice());
    sent.options.sack = SackBlocks::NONE;
    received.options.sack = SackBlocks::NONE;
    assert_eq!(sent, received);
}
