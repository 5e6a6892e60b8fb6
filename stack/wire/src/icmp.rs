//! ICMP for IPv4: echo, and the errors that concern a TCP connection (RFC 792, RFC 1191, RFC 5927).

mod quoted;
#[cfg(test)]
mod tests;

pub use quoted::QuotedTcp;

use crate::WireError;
use crate::checksum;
use crate::icmp6;
use crate::ipv4;
use crate::ipv6;
use crate::octets::{put_u16, u16_at};

/// Octets of an ICMP header.
pub const HEADER_LEN: usize = 8;
/// The IP protocol number of ICMP.
pub const PROTOCOL: u8 = 1;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const SOURCE_QUENCH: u8 = 4;
const REDIRECT: u8 = 5;
const PARAMETER_PROBLEM: u8 = 12;

/// Codes of Destination Unreachable.
pub mod unreachable {
    /// Host unreachable.
    pub const HOST: u8 = 1;
    /// Protocol unreachable.
    pub const PROTOCOL: u8 = 2;
    /// Port unreachable.
    pub const PORT: u8 = 3;
    /// Fragmentation needed and DF set; carries the next hop's MTU.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

const fn is_error_kind(kind: u8) -> bool {
    matches!(kind, DESTINATION_UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM)
}

/// Whether a packet must not be answered by an ICMP error because of what it is: an ICMP error message (RFC 1122
/// §3.2.2, RFC 4443 §2.4 (e)), or an IPv4 fragment other than the first. What might be one of them, because its headers
/// are cut short or too many, counts as one. `packet` begins with the IP header.
pub fn forbids_error(packet: &[u8]) -> bool {
    if packet.first().is_some_and(|first| first >> 4 == 6) {
        return match ipv6::upper_layer(packet) {
            Some((icmp6::PROTOCOL, message)) => message.first().is_none_or(|kind| icmp6::is_error_kind(*kind)),
            Some(_) => false,
            None => true,
        };
    }
    let Some(fixed) = packet.first_chunk::<{ ipv4::HEADER_LEN }>() else { return true };
    let message = packet.get(usize::from(fixed[0] & 0x0f) * 4..).unwrap_or(&[]);
    u16_at(fixed, 6) & 0x1fff != 0 || fixed[9] == PROTOCOL && message.first().is_none_or(|kind| is_error_kind(*kind))
}

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMessage<'a> {
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
        /// The next hop's MTU in octets with [`unreachable::FRAGMENTATION_NEEDED`] (RFC 1191 §4), 0 if the router does
        /// not report it.
        next_hop_mtu: u16,
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
    /// Any other message.
    Other {
        /// The message's type.
        kind: u8,
        /// The message's code.
        code: u8,
    },
}

impl<'a> IcmpMessage<'a> {
    /// Reads a message, which is the whole payload of its IP packet, and verifies its checksum.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::IcmpChecksum`].
    pub fn parse(octets: &'a [u8]) -> Result<IcmpMessage<'a>, WireError> {
        let (header, rest) = octets.split_first_chunk::<HEADER_LEN>().ok_or(WireError::Truncated)?;
        if checksum::fold(checksum::sum(octets)) != 0xffff {
            return Err(WireError::IcmpChecksum);
        }
        let (kind, code) = (header[0], header[1]);
        let (identifier, sequence) = (u16_at(header, 4), u16_at(header, 6));
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => IcmpMessage::EchoRequest { identifier, sequence, data: rest },
            (ECHO_REPLY, 0) => IcmpMessage::EchoReply { identifier, sequence, data: rest },
            (DESTINATION_UNREACHABLE, _) => IcmpMessage::DestinationUnreachable {
                code,
                next_hop_mtu: if code == unreachable::FRAGMENTATION_NEEDED { sequence } else { 0 },
                quoted: rest,
            },
            (TIME_EXCEEDED, _) => IcmpMessage::TimeExceeded { code, quoted: rest },
            _ => IcmpMessage::Other { kind, code },
        })
    }

    /// Our segment that an error message quotes.
    pub fn quoted_tcp(&self) -> Option<QuotedTcp> {
        match self {
            IcmpMessage::DestinationUnreachable { quoted, .. } | IcmpMessage::TimeExceeded { quoted, .. } => {
                QuotedTcp::parse(quoted)
            }
            _ => None,
        }
    }

    /// Whether this is an error message. Errors are never answered by errors (RFC 1122 §3.2.2).
    pub const fn is_error(&self) -> bool {
        match self {
            IcmpMessage::DestinationUnreachable { .. } | IcmpMessage::TimeExceeded { .. } => true,
            IcmpMessage::Other { kind, .. } => is_error_kind(*kind),
            _ => false,
        }
    }

    /// What follows the header.
    fn body(&self) -> &'a [u8] {
        match *self {
            IcmpMessage::EchoRequest { data, .. } | IcmpMessage::EchoReply { data, .. } => data,
            IcmpMessage::DestinationUnreachable { quoted, .. } | IcmpMessage::TimeExceeded { quoted, .. } => quoted,
            IcmpMessage::Other { .. } => &[],
        }
    }

    /// Octets that [`IcmpMessage::emit`] writes.
    pub fn emit_len(&self) -> usize {
        HEADER_LEN + self.body().len()
    }

    /// Writes the message with its checksum and returns its length.
    ///
    /// # Errors
    /// [`WireError::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let length = self.emit_len();
        let out = out.get_mut(..length).ok_or(WireError::NoRoom)?;
        let (kind, code, first, second) = match *self {
            IcmpMessage::EchoRequest { identifier, sequence, .. } => (ECHO_REQUEST, 0, identifier, sequence),
            IcmpMessage::EchoReply { identifier, sequence, .. } => (ECHO_REPLY, 0, identifier, sequence),
            IcmpMessage::DestinationUnreachable { code, next_hop_mtu, .. } => {
                (DESTINATION_UNREACHABLE, code, 0, next_hop_mtu)
            }
            IcmpMessage::TimeExceeded { code, .. } => (TIME_EXCEEDED, code, 0, 0),
            IcmpMessage::Other { kind, code } => (kind, code, 0, 0),
        };
        out[0] = kind;
        out[1] = code;
        put_u16(out, 2, 0);
        put_u16(out, 4, first);
        put_u16(out, 6, second);
        out[HEADER_LEN..].copy_from_slice(self.body());
        let value = checksum::finish(checksum::sum(out));
        put_u16(out, 2, value);
        Ok(length)
    }
}
