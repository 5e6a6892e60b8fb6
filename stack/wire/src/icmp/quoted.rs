//! What an ICMP error quotes, of IPv4 and of IPv6.

use core::net::Ipv4Addr;

use crate::address::FlowKey;
use crate::ipv4;
use crate::ipv6::{self, Ipv6Header};
use crate::octets::{u16_at, u32_at};
use crate::tcp::{self, SeqNumber};

/// The start of one of our own TCP segments that an error message quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTcp {
    /// The connection, as seen from the segment's sender: us.
    pub flow: FlowKey,
    /// The segment's sequence number, which exposes forged messages (RFC 5927 §4.1).
    pub sequence: SeqNumber,
    /// Length of the quoted packet in octets: the only clue if the router reports no MTU (RFC 1191 §5).
    pub packet_len: usize,
}

impl QuotedTcp {
    /// Reads the IP packet that an ICMP error quotes. Its checksum and length are not verified: routers may have
    /// changed them. `None` if it is not a first fragment with 8 octets of TCP. IPv6 extension headers are not parsed,
    /// as this stack sends none.
    pub fn parse(quoted: &[u8]) -> Option<QuotedTcp> {
        if quoted.first()? >> 4 == 6 {
            let length = quoted.len().max(ipv6::HEADER_LEN + usize::from(u16_at(quoted.get(..6)?, 4)));
            let ip = Ipv6Header::parse(quoted, length).ok()?;
            let ports = quoted.get(ipv6::HEADER_LEN..)?.first_chunk::<8>()?;
            return (ip.next_header == tcp::PROTOCOL).then(|| QuotedTcp {
                flow: FlowKey {
                    remote: ip.destination.into(),
                    local: ip.source.into(),
                    remote_port: u16_at(ports, 2),
                    local_port: u16_at(ports, 0),
                },
                sequence: SeqNumber(u32_at(ports, 4)),
                packet_len: ipv6::HEADER_LEN + ip.payload_len,
            });
        }
        let fixed = quoted.first_chunk::<{ ipv4::HEADER_LEN }>()?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        let first_fragment = u16_at(fixed, 6) & 0x1fff == 0;
        if fixed[0] >> 4 != 4 || header_len < ipv4::HEADER_LEN || fixed[9] != tcp::PROTOCOL || !first_fragment {
            return None;
        }
        let ports = quoted.get(header_len..)?.first_chunk::<8>()?;
        Some(QuotedTcp {
            flow: FlowKey {
                remote: Ipv4Addr::from_bits(u32_at(fixed, 16)).into(),
                local: Ipv4Addr::from_bits(u32_at(fixed, 12)).into(),
                remote_port: u16_at(ports, 2),
                local_port: u16_at(ports, 0),
            },
            sequence: SeqNumber(u32_at(ports, 4)),
            packet_len: usize::from(u16_at(fixed, 2)),
        })
    }
}
