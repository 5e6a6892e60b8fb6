//! TCP header and options (RFC 9293 §3.1; window scale and timestamps: RFC 7323; SACK: RFC 2018).

mod options;
mod sequence;
#[cfg(test)]
pub(crate) mod tests;

pub use options::{MAXIMUM_SACK_BLOCKS, SackBlock, SackBlocks, TcpOptions, Timestamps};
pub use sequence::SeqNumber;

use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign};

use crate::WireError;
use crate::octets::{put_u16, put_u32, u16_at, u32_at};

/// Octets of a header without options.
pub const HEADER_LEN: usize = 20;
/// Offset of the checksum field in the header.
pub const CHECKSUM_OFFSET: usize = 16;
/// The IP protocol number of TCP.
pub const PROTOCOL: u8 = 6;

/// The control bits of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(u16);

impl TcpFlags {
    /// No bit set.
    pub const NONE: TcpFlags = TcpFlags(0);
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x001);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x002);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x004);
    /// Push function.
    pub const PSH: TcpFlags = TcpFlags(0x008);
    /// The acknowledgment field is significant.
    pub const ACK: TcpFlags = TcpFlags(0x010);
    /// The urgent field is significant.
    pub const URG: TcpFlags = TcpFlags(0x020);
    /// ECN echo (RFC 3168 §6.1).
    pub const ECE: TcpFlags = TcpFlags(0x040);
    /// Congestion window reduced (RFC 3168 §6.1).
    pub const CWR: TcpFlags = TcpFlags(0x080);
    /// Accurate ECN (RFC 9768), formerly the nonce sum.
    pub const AE: TcpFlags = TcpFlags(0x100);

    const MASK: u16 = 0x1ff;

    /// From the low 9 bits of the header's control word; the others are dropped.
    #[inline]
    pub const fn from_bits(bits: u16) -> TcpFlags {
        TcpFlags(bits & TcpFlags::MASK)
    }

    /// The bits as in the header's control word.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether every bit of `other` is set.
    #[inline]
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether at least one bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: TcpFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets together.
    #[inline]
    pub const fn with(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }

    /// The set without the bits of `other`.
    #[inline]
    pub const fn without(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & !other.0)
    }

    /// Whether no bit is set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Sequence numbers that the flags alone take: one for SYN, one for FIN.
    #[inline]
    pub const fn sequence_len(self) -> u32 {
        (self.0 & 1) as u32 + (self.0 >> 1 & 1) as u32
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;
    #[inline]
    fn bitor(self, other: TcpFlags) -> TcpFlags {
        self.with(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: TcpFlags) {
        self.0 |= other.0;
    }
}

impl BitAnd for TcpFlags {
    type Output = TcpFlags;
    #[inline]
    fn bitand(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & other.0)
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 9] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR", "AE"];
        let mut separator = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 >> bit & 1 != 0 {
                write!(formatter, "{separator}{name}")?;
                separator = "|";
            }
        }
        if self.is_empty() { formatter.write_str("-") } else { Ok(()) }
    }
}

/// A TCP header as values. The checksum is not one of them: see [`crate::frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Sequence number of the first octet, or of the SYN.
    pub sequence: SeqNumber,
    /// The next sequence number that the sender expects; significant with ACK only.
    pub acknowledgment: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field as it stands in the header, not scaled.
    pub window: u16,
    /// The urgent pointer; significant with URG only.
    pub urgent: u16,
    /// The options.
    pub options: TcpOptions,
}

impl TcpHeader {
    /// A header with these flags and everything else zero, to be filled in.
    pub const fn new(flags: TcpFlags) -> TcpHeader {
        TcpHeader {
            source_port: 0,
            destination_port: 0,
            sequence: SeqNumber(0),
            acknowledgment: SeqNumber(0),
            flags,
            window: 0,
            urgent: 0,
            options: TcpOptions::NONE,
        }
    }

    /// Octets that [`TcpHeader::emit`] writes: 20 to 60, a multiple of 4.
    #[inline]
    pub fn emit_len(&self) -> usize {
        HEADER_LEN + self.options.emit_len()
    }

    /// Sequence numbers that a segment with this header and `payload_len` octets takes (SEG.LEN).
    #[inline]
    pub const fn segment_len(&self, payload_len: u32) -> u32 {
        payload_len.wrapping_add(self.flags.sequence_len())
    }

    /// Writes the header with a checksum field of zero and returns its length.
    ///
    /// SACK blocks that do not fit into the 40 octets of options are left out, the last ones first.
    ///
    /// # Panics
    /// If `out` is shorter than [`TcpHeader::emit_len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (fixed, options) = out.split_at_mut(HEADER_LEN);
        put_u16(fixed, 0, self.source_port);
        put_u16(fixed, 2, self.destination_port);
        put_u32(fixed, 4, self.sequence.0);
        put_u32(fixed, 8, self.acknowledgment.0);
        let length = HEADER_LEN + self.options.emit(options);
        put_u16(fixed, 12, ((length as u16) << 10) | self.flags.0);
        put_u16(fixed, 14, self.window);
        put_u16(fixed, 16, 0);
        put_u16(fixed, 18, self.urgent);
        length
    }

    /// Reads a header at the start of `octets`; returns it with its length in octets.
    ///
    /// Unknown options, and known ones with an impossible length, are skipped. The checksum is
    /// ignored.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below 20 octets, [`WireError::HeaderLength`] if the data offset is below 5
    /// or beyond the input, [`WireError::OptionLength`] if an option passes the end of the header.
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<(TcpHeader, usize), WireError> {
        let (mut header, length, usual) = TcpHeader::parse_fixed(octets)?;
        match usual {
            Some(timestamps) => header.options.timestamps = timestamps,
            None => header.options = TcpOptions::parse(&octets[HEADER_LEN..length])?,
        }
        Ok((header, length))
    }

    /// The header without its options, its length, and the result of [`TcpOptions::parse_usual`].
    #[inline(always)]
    #[allow(clippy::type_complexity)]
    pub(crate) fn parse_fixed(octets: &[u8]) -> Result<(TcpHeader, usize, Option<Option<Timestamps>>), WireError> {
        let fixed: &[u8; HEADER_LEN] = octets.first_chunk().ok_or(WireError::Truncated)?;
        let control = u16_at(fixed, 12);
        let length = usize::from(control >> 12) * 4;
        if length < HEADER_LEN || length > octets.len() {
            return Err(WireError::HeaderLength);
        }
        let header = TcpHeader {
            source_port: u16_at(fixed, 0),
            destination_port: u16_at(fixed, 2),
            sequence: SeqNumber(u32_at(fixed, 4)),
            acknowledgment: SeqNumber(u32_at(fixed, 8)),
            flags: TcpFlags::from_bits(control),
            window: u16_at(fixed, 14),
            urgent: u16_at(fixed, 18),
            options: TcpOptions::NONE,
        };
        Ok((header, length, TcpOptions::parse_usual(&octets[HEADER_LEN..length])))
    }
}
