//! MPA framing (RFC 5044 §4): finding FPDUs in a stream's octets, and the layout of the frame around a segment to send.
//!
//! Streams with markers are in [`deframe_marked`] and [`insert_markers`].

use core::ops::Range;

pub use uwarp_wire::mpa::{CRC_LEN, LENGTH_LEN, MAXIMUM_MULPDU, MINIMUM_MULPDU, fpdu_len, mulpdu, padding_len};
use uwarp_wire::mpa::{crc_from_octets, crc_to_octets};
pub use uwarp_wire::mpa::{marked_len, mulpdu_with_markers};

mod markers;

pub use markers::{Marked, deframe_marked, insert_markers};

/// A CRC32c over octets (not inverted or swapped further by the caller): `"123456789"` gives `0xE306_9283`.
pub type Crc32c = fn(&[u8]) -> u32;

/// The largest ULPDU that the length field can hold; it is accepted.
pub const LARGEST_ULPDU: usize = 65535;

/// The result of looking for an FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A complete FPDU; its CRC is valid or unchecked.
    Fpdu {
        /// Position of the ULPDU (one DDP segment) in the octets given.
        ulpdu: Range<usize>,
        /// Octets of the FPDU; the next one follows it.
        fpdu_len: usize,
    },
    /// More octets are wanted.
    Incomplete {
        /// Octets of the complete FPDU, once its length field is complete.
        needed: Option<usize>,
    },
    /// A complete FPDU with a wrong CRC: use nothing of it ([`crate::Fault::Crc`]).
    BadCrc {
        /// Octets of the FPDU.
        fpdu_len: usize,
    },
}

/// Looks for the FPDU that starts at the first octet of `octets`, which may hold less than one FPDU or many.
///
/// The CRC is checked if `crc` is given. The padding is not checked, but the CRC covers it. Any length from 0 to
/// [`LARGEST_ULPDU`] is accepted; [`crate::Stream::inspect`] judges the ULPDU.
#[inline]
pub fn deframe(octets: &[u8], crc: Option<Crc32c>) -> Framed {
    let Some((length, _)) = octets.split_first_chunk::<LENGTH_LEN>() else {
        return Framed::Incomplete { needed: None };
    };
    let ulpdu_len = usize::from(u16::from_be_bytes(*length));
    let total = fpdu_len(ulpdu_len);
    let Some((fpdu, _)) = octets.split_at_checked(total) else {
        return Framed::Incomplete { needed: Some(total) };
    };
    if let Some(crc) = crc {
        let Some((covered, field)) = fpdu.split_last_chunk::<CRC_LEN>() else {
            return Framed::Incomplete { needed: Some(total) };
        };
        if crc(covered) != crc_from_octets(*field) {
            return Framed::BadCrc { fpdu_len: total };
        }
    }
    Framed::Fpdu { ulpdu: LENGTH_LEN..LENGTH_LEN + ulpdu_len, fpdu_len: total }
}

/// The octets behind a ULPDU: padding, then the CRC field.
///
/// The sender writes [`LENGTH_LEN`] octets of length, the ULPDU and this. The CRC covers all octets before its field.
/// Without CRC the field is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    octets: [u8; 3 + CRC_LEN],
    padding: u8,
}

impl Trailer {
    /// The padding of a ULPDU of `ulpdu_len` octets, which the CRC covers, too.
    #[inline]
    pub const fn padding_octets(ulpdu_len: usize) -> &'static [u8] {
        const ZEROES: [u8; 3] = [0; 3];
        ZEROES.split_at(padding_len(ulpdu_len)).0
    }

    /// The trailer of a ULPDU of `ulpdu_len` octets. `crc` includes the padding; `None` if CRCs are off.
    #[inline]
    pub fn new(ulpdu_len: usize, crc: Option<u32>) -> Trailer {
        let padding = padding_len(ulpdu_len);
        let mut octets = [0; 3 + CRC_LEN];
        octets[padding..padding + CRC_LEN].copy_from_slice(&crc_to_octets(crc.unwrap_or(0)));
        Trailer { octets, padding: padding as u8 }
    }

    /// The octets to write.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.octets[..usize::from(self.padding) + CRC_LEN]
    }
}

#[cfg(test)]
mod tests;
