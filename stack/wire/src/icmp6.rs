//! ICMPv6: echo, errors (RFC 4443) and Neighbor Discovery (RFC 4861; nonce: RFC 3971 §5.3.2, used by RFC 7527).

#[cfg(test)]
mod tests;

use core::net::Ipv6Addr;

use crate::WireError;
use crate::address::IpAddress;
use crate::checksum;
use crate::ethernet::EthernetAddress;
use crate::icmp::QuotedTcp;
use crate::octets::{put_u16, put_u32, u16_at, u32_at};

/// Octets of an ICMPv6 header.
pub const HEADER_LEN: usize = 8;
/// The protocol number of ICMPv6.
pub const PROTOCOL: u8 = 58;
/// The hop limit of every Neighbor Discovery packet: no router has touched it (RFC 4861 §3.1).
pub const NEIGHBOUR_HOP_LIMIT: u8 = 255;

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

const SOURCE_ADDRESS_OPTION: u8 = 1;
const TARGET_ADDRESS_OPTION: u8 = 2;
const NONCE_OPTION: u8 = 14;
/// Octets of a link-layer address option for Ethernet, and of a nonce of 6 octets.
const OPTION_LEN: usize = 8;

/// Codes of Destination Unreachable (RFC 4443 §3.1).
pub mod unreachable {
    /// The address does not answer.
    pub const ADDRESS: u8 = 3;
    /// Port unreachable.
    pub const PORT: u8 = 4;
}

/// Time Exceeded: not all fragments came in time (RFC 4443 §3.3).
pub const REASSEMBLY_TIME: u8 = 1;

/// An ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp6Message<'a> {
    /// Echo request.
    EchoRequest {
        /// Echoed.
        identifier: u16,
        /// Echoed.
        sequence: u16,
        /// Echoed.
        data: &'a [u8],
    },
    /// Echo reply.
    EchoReply {
        /// As in the request.
        identifier: u16,
        /// As in the request.
        sequence: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// A packet could not be delivered.
    DestinationUnreachable {
        /// Why: see [`mod@unreachable`].
        code: u8,
        /// The packet's beginning.
        quoted: &'a [u8],
    },
    /// A packet exceeds the MTU of a link on its path.
    PacketTooBig {
        /// The MTU of that link, in octets.
        mtu: u32,
        /// The packet's beginning.
        quoted: &'a [u8],
    },
    /// The hop limit of a packet, or the time to reassemble it, was exceeded.
    TimeExceeded {
        /// Which of the two.
        code: u8,
        /// The packet's beginning.
        quoted: &'a [u8],
    },
    /// The receiver could not process a header.
    ParameterProblem {
        /// The kind of problem.
        code: u8,
        /// The octet at fault.
        pointer: u32,
        /// The packet's beginning.
        quoted: &'a [u8],
    },
    /// Who has the target address?
    NeighbourSolicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// Hardware address of the sender; none while it checks an address for duplicates.
        source_mac: Option<EthernetAddress>,
        /// Lets a sender recognise its own solicitation (RFC 7527).
        nonce: Option<[u8; 6]>,
    },
    /// The sender, or a node that it is a proxy for, has the target address.
    NeighbourAdvertisement {
        /// The sender is a router.
        router: bool,
        /// This is the unicast answer to a solicitation.
        solicited: bool,
        /// Overrides an existing cache entry.
        overrides: bool,
        /// The address in question.
        target: Ipv6Addr,
        /// Its hardware address.
        target_mac: Option<EthernetAddress>,
    },
    /// A Redirect; its contents are ignored.
    Redirect,
    /// Any other message.
    Other {
        /// The message's type.
        kind: u8,
        /// The message's code.
        code: u8,
    },
}

impl<'a> Icmp6Message<'a> {
    /// Reads a message, which is the whole upper-layer payload of its packet, and verifies its checksum.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::IcmpChecksum`], and [`WireError::Neighbour`] for a Neighbor Discovery
    /// message with an option of length 0, a code that is not 0, or a multicast target (RFC 4861 §7.1), or an
    /// IPv4-mapped one.
    pub fn parse(octets: &'a [u8], source: IpAddress, destination: IpAddress) -> Result<Icmp6Message<'a>, WireError> {
        let (header, rest) = octets.split_first_chunk::<HEADER_LEN>().ok_or(WireError::Truncated)?;
        let pseudo = checksum::pseudo_header(source, destination, PROTOCOL, octets.len());
        if checksum::fold(checksum::combine(pseudo, checksum::sum(octets))) != 0xffff {
            return Err(WireError::IcmpChecksum);
        }
        let (kind, code) = (header[0], header[1]);
        let (identifier, sequence) = (u16_at(header, 4), u16_at(header, 6));
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => Icmp6Message::EchoRequest { identifier, sequence, data: rest },
            (ECHO_REPLY, 0) => Icmp6Message::EchoReply { identifier, sequence, data: rest },
            (DESTINATION_UNREACHABLE, _) => Icmp6Message::DestinationUnreachable { code, quoted: rest },
            // RFC 4443 §3.2: the code is ignored by the receiver.
            (PACKET_TOO_BIG, _) => Icmp6Message::PacketTooBig { mtu: u32_at(header, 4), quoted: rest },
            (TIME_EXCEEDED, _) => Icmp6Message::TimeExceeded { code, quoted: rest },
            (PARAMETER_PROBLEM, _) => Icmp6Message::ParameterProblem { code, pointer: u32_at(header, 4), quoted: rest },
            (NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT, _) => parse_neighbour(kind, code, header, rest)?,
            (REDIRECT, _) => Icmp6Message::Redirect,
            _ => Icmp6Message::Other { kind, code },
        })
    }

    /// Whether this is an error message (RFC 4443 §2.1). Errors are never answered by errors.
    pub const fn is_error(&self) -> bool {
        match self {
            Icmp6Message::DestinationUnreachable { .. }
            | Icmp6Message::PacketTooBig { .. }
            | Icmp6Message::TimeExceeded { .. }
            | Icmp6Message::ParameterProblem { .. }
            | Icmp6Message::Redirect => true,
            Icmp6Message::Other { kind, .. } => is_error_kind(*kind),
            _ => false,
        }
    }

    /// Whether this is a Neighbor Discovery message.
    pub const fn is_discovery(&self) -> bool {
        matches!(self, Icmp6Message::NeighbourSolicitation { .. } | Icmp6Message::NeighbourAdvertisement { .. })
    }

    /// Our segment that an error message quotes.
    pub fn quoted_tcp(&self) -> Option<QuotedTcp> {
        match self {
            Icmp6Message::DestinationUnreachable { quoted, .. }
            | Icmp6Message::PacketTooBig { quoted, .. }
            | Icmp6Message::TimeExceeded { quoted, .. }
            | Icmp6Message::ParameterProblem { quoted, .. } => QuotedTcp::parse(quoted),
            _ => None,
        }
    }

    fn body(&self) -> &'a [u8] {
        match *self {
            Icmp6Message::EchoRequest { data, .. } | Icmp6Message::EchoReply { data, .. } => data,
            Icmp6Message::DestinationUnreachable { quoted, .. }
            | Icmp6Message::PacketTooBig { quoted, .. }
            | Icmp6Message::TimeExceeded { quoted, .. }
            | Icmp6Message::ParameterProblem { quoted, .. } => quoted,
            _ => &[],
        }
    }

    /// Octets that [`Icmp6Message::emit`] writes.
    pub fn emit_len(&self) -> usize {
        let option = |given: bool| if given { OPTION_LEN } else { 0 };
        HEADER_LEN
            + match self {
                Icmp6Message::NeighbourSolicitation { source_mac, nonce, .. } => {
                    16 + option(source_mac.is_some()) + option(nonce.is_some())
                }
                Icmp6Message::NeighbourAdvertisement { target_mac, .. } => 16 + option(target_mac.is_some()),
                _ => self.body().len(),
            }
    }

    /// Writes the message with its checksum and returns its length.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, out: &mut [u8], source: IpAddress, destination: IpAddress) -> Result<usize, WireError> {
        let length = self.emit_len();
        let out = out.get_mut(..length).ok_or(WireError::NoRoom)?;
        let echo = |identifier: u16, sequence: u16| u32::from(identifier) << 16 | u32::from(sequence);
        let (kind, code, word) = match *self {
            Icmp6Message::EchoRequest { identifier, sequence, .. } => (ECHO_REQUEST, 0, echo(identifier, sequence)),
            Icmp6Message::EchoReply { identifier, sequence, .. } => (ECHO_REPLY, 0, echo(identifier, sequence)),
            Icmp6Message::DestinationUnreachable { code, .. } => (DESTINATION_UNREACHABLE, code, 0),
            Icmp6Message::PacketTooBig { mtu, .. } => (PACKET_TOO_BIG, 0, mtu),
            Icmp6Message::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0),
            Icmp6Message::ParameterProblem { code, pointer, .. } => (PARAMETER_PROBLEM, code, pointer),
            Icmp6Message::NeighbourSolicitation { .. } => (NEIGHBOUR_SOLICITATION, 0, 0),
            Icmp6Message::NeighbourAdvertisement { router, solicited, overrides, .. } => {
                let flags = u32::from(router) << 31 | u32::from(solicited) << 30 | u32::from(overrides) << 29;
                (NEIGHBOUR_ADVERTISEMENT, 0, flags)
            }
            Icmp6Message::Redirect => (REDIRECT, 0, 0),
            Icmp6Message::Other { kind, code } => (kind, code, 0),
        };
        out[0] = kind;
        out[1] = code;
        put_u16(out, 2, 0);
        put_u32(out, 4, word);
        let rest = &mut out[HEADER_LEN..];
        match *self {
            Icmp6Message::NeighbourSolicitation { target, source_mac, nonce } => {
                rest[..16].copy_from_slice(&target.octets());
                let mut at = 16;
                for (kind, value) in [(SOURCE_ADDRESS_OPTION, source_mac.map(|mac| mac.0)), (NONCE_OPTION, nonce)] {
                    if let Some(value) = value {
                        put_option(&mut rest[at..at + OPTION_LEN], kind, value);
                        at += OPTION_LEN;
                    }
                }
            }
            Icmp6Message::NeighbourAdvertisement { target, target_mac, .. } => {
                rest[..16].copy_from_slice(&target.octets());
                if let Some(mac) = target_mac {
                    put_option(&mut rest[16..16 + OPTION_LEN], TARGET_ADDRESS_OPTION, mac.0);
                }
            }
            _ => rest.copy_from_slice(self.body()),
        }
        let pseudo = checksum::pseudo_header(source, destination, PROTOCOL, length);
        let value = checksum::finish(checksum::combine(pseudo, checksum::sum(out)));
        put_u16(out, 2, value);
        Ok(length)
    }
}

/// Whether messages of a type are errors (RFC 4443 §2.1) or, as RFC 4443 §2.4 (e) counts them, redirects.
pub(crate) const fn is_error_kind(kind: u8) -> bool {
    kind < 128 || kind == REDIRECT
}

fn put_option(out: &mut [u8], kind: u8, value: [u8; 6]) {
    out[0] = kind;
    out[1] = 1;
    out[2..8].copy_from_slice(&value);
}

/// Reads a solicitation or an advertisement.
fn parse_neighbour<'a>(kind: u8, code: u8, header: &[u8; 8], rest: &[u8]) -> Result<Icmp6Message<'a>, WireError> {
    let (target, mut options) = rest.split_first_chunk::<16>().ok_or(WireError::Truncated)?;
    let target = Ipv6Addr::from(*target);
    // An IPv4-mapped one would name a neighbour of IPv4, whose answers are ARP's.
    if code != 0 || target.is_multicast() || target.to_ipv4_mapped().is_some() {
        return Err(WireError::Neighbour);
    }
    let (mut source_mac, mut target_mac, mut nonce) = (None, None, None);
    while !options.is_empty() {
        let length = options.get(1).map_or(0, |length| usize::from(*length) * 8);
        if length == 0 || length > options.len() {
            return Err(WireError::Neighbour);
        }
        let (option, others) = options.split_at(length);
        // Skip options of other lengths (for other links) and unknown ones (RFC 4861 §4.6).
        if let Some(value) = option.get(2..8).and_then(|value| value.first_chunk::<6>())
            && length == OPTION_LEN
        {
            match option[0] {
                SOURCE_ADDRESS_OPTION => source_mac = Some(EthernetAddress(*value)),
                TARGET_ADDRESS_OPTION => target_mac = Some(EthernetAddress(*value)),
                NONCE_OPTION => nonce = Some(*value),
                _ => {}
            }
        }
        options = others;
    }
    if kind == NEIGHBOUR_SOLICITATION {
        return Ok(Icmp6Message::NeighbourSolicitation { target, source_mac, nonce });
    }
    let flag = |bit: u8| header[4] & bit != 0;
    Ok(Icmp6Message::NeighbourAdvertisement {
        router: flag(0x80),
        solicited: flag(0x40),
        overrides: flag(0x20),
        target,
        target_mac,
    })
}
