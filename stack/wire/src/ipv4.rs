//! IPv4 headers (RFC 791; ECN bits: RFC 3168; identification: RFC 6864).

#[cfg(test)]
mod tests;

use core::net::Ipv4Addr;

use crate::WireError;
use crate::checksum;
use crate::octets::{put_u16, put_u32, u16_at, u32_at};

/// Octets of a header without options.
pub const HEADER_LEN: usize = 20;
/// Where the checksum is in a header.
pub const CHECKSUM_OFFSET: usize = 10;

const MORE_FRAGMENTS: u16 = 0x2000;
const DONT_FRAGMENT: u16 = 0x4000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The two ECN bits of the traffic class (RFC 3168 §5).
pub mod ecn {
    /// The transport does not use ECN.
    pub const NOT_CAPABLE: u8 = 0b00;
}

/// An IPv4 header as values. Options are skipped on receipt and never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Octets of the header as received, 20 to 60.
    pub header_len: usize,
    /// Octets of header and payload.
    pub total_len: usize,
    /// Differentiated services code point and ECN bits in one octet.
    pub traffic_class: u8,
    /// Identification; meaningless in a packet that is not a fragment and must not be fragmented.
    pub identification: u16,
    /// Routers must not fragment.
    pub dont_fragment: bool,
    /// Further fragments follow.
    pub more_fragments: bool,
    /// Place of this fragment in units of 8 octets.
    pub fragment_offset: u16,
    /// Hops left.
    pub hop_limit: u8,
    /// The protocol behind the header.
    pub protocol: u8,
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// The ECN bits.
    #[inline]
    pub const fn ecn(&self) -> u8 {
        self.traffic_class & 3
    }

    /// Whether the packet is a part of a fragmented one.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Octets behind the header.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.total_len - self.header_len
    }

    /// Reads the header at the start of `packet` and verifies its checksum. `available` is the number of octets in the
    /// frame from there on. It exceeds `packet.len()` in a chained buffer, and may exceed the total length where the
    /// medium padded the frame.
    ///
    /// # Errors
    /// [`WireError::Truncated`], [`WireError::NotContiguous`], [`WireError::IpVersion`],
    /// [`WireError::HeaderLength`], [`WireError::TotalLength`], [`WireError::HeaderChecksum`].
    #[inline]
    pub fn parse(packet: &[u8], available: usize) -> Result<Ipv4Header, WireError> {
        let Some(fixed) = packet.first_chunk::<HEADER_LEN>() else {
            return Err(if available >= HEADER_LEN { WireError::NotContiguous } else { WireError::Truncated });
        };
        if fixed[0] >> 4 != 4 {
            return Err(WireError::IpVersion);
        }
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        let total_len = usize::from(u16_at(fixed, 2));
        if header_len < HEADER_LEN || header_len > available {
            return Err(WireError::HeaderLength);
        }
        if total_len < header_len || total_len > available {
            return Err(WireError::TotalLength);
        }
        let mut partial = checksum::ipv4_header(fixed);
        if header_len > HEADER_LEN {
            let options = packet.get(HEADER_LEN..header_len).ok_or(WireError::NotContiguous)?;
            partial = checksum::combine(partial, checksum::sum(options));
        }
        if checksum::fold(partial) != 0xffff {
            return Err(WireError::HeaderChecksum);
        }
        let fragment = u16_at(fixed, 6);
        Ok(Ipv4Header {
            header_len,
            total_len,
            traffic_class: fixed[1],
            identification: u16_at(fixed, 4),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: fragment & FRAGMENT_OFFSET,
            hop_limit: fixed[8],
            protocol: fixed[9],
            source: Ipv4Addr::from_bits(u32_at(fixed, 12)),
            destination: Ipv4Addr::from_bits(u32_at(fixed, 16)),
        })
    }

    /// Writes a header of 20 octets with its checksum; `header_len` is ignored.
    ///
    /// # Errors
    /// [`WireError::NoRoom`]; [`WireError::TotalLength`] if the total length is below 20 or above 65535.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let out = out.first_chunk_mut::<HEADER_LEN>().ok_or(WireError::NoRoom)?;
        let total_len = u16::try_from(self.total_len).map_err(|_| WireError::TotalLength)?;
        if self.total_len < HEADER_LEN {
            return Err(WireError::TotalLength);
        }
        out[0] = 0x45;
        out[1] = self.traffic_class;
        put_u16(out, 2, total_len);
        put_u16(out, 4, self.identification);
        put_u16(
            out,
            6,
            (self.fragment_offset & FRAGMENT_OFFSET)
                | if self.dont_fragment { DONT_FRAGMENT } else { 0 }
                | if self.more_fragments { MORE_FRAGMENTS } else { 0 },
        );
        out[8] = self.hop_limit;
        out[9] = self.protocol;
        put_u16(out, 10, 0);
        put_u32(out, 12, self.source.to_bits());
        put_u32(out, 16, self.destination.to_bits());
        let header_checksum = checksum::finish(checksum::ipv4_header(out));
        put_u16(out, 10, header_checksum);
        Ok(HEADER_LEN)
    }
}
