//! Lengths of an FPDU and its CRC field (RFC 5044 §4.1, §4.4, §4.5).

/// Octets of the ULPDU length field.
pub const LENGTH_LEN: usize = 2;
/// Octets of the CRC field, which is always there.
pub const CRC_LEN: usize = 4;
/// The length of every FPDU is a multiple of this.
pub const FPDU_ALIGNMENT: usize = 4;
/// The least MULPDU offered to DDP, however small the segments are. The longest Terminate fits.
pub const MINIMUM_MULPDU: u16 = 128;
/// The longest ULPDU that we send, in octets. It keeps the 16-bit pointer of a marker sufficient; without markers it is
/// a harmless limit. (Up to 65535 octets are accepted.)
pub const MAXIMUM_MULPDU: u16 = 64768;

/// Octets of padding behind a ULPDU of this length: 0 to 3.
#[inline]
pub const fn padding_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() % FPDU_ALIGNMENT
}

/// Octets of an FPDU with a ULPDU of this length and no marker.
#[inline]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + padding_len(ulpdu_len) + CRC_LEN
}

/// The nearest permitted MULPDU.
pub(super) const fn clamp(octets: u32) -> u16 {
    if octets < MINIMUM_MULPDU as u32 {
        MINIMUM_MULPDU
    } else if octets > MAXIMUM_MULPDU as u32 {
        MAXIMUM_MULPDU
    } else {
        octets as u16
    }
}

/// The longest ULPDU whose FPDU fits a TCP segment with `emss` octets of payload, on a stream without
/// markers.
///
/// At least [`MINIMUM_MULPDU`] (such an FPDU then takes several segments), at most [`MAXIMUM_MULPDU`].
#[inline]
pub const fn mulpdu(emss: u32) -> u16 {
    clamp(emss.saturating_sub(6 + emss % 4))
}

/// The CRC field for a CRC32c value, least significant octet first as in iSCSI, unlike every other field of the stack.
#[inline]
pub const fn crc_to_octets(crc: u32) -> [u8; CRC_LEN] {
    crc.to_le_bytes()
}

/// The CRC32c value of a CRC field.
#[inline]
pub const fn crc_from_octets(octets: [u8; CRC_LEN]) -> u32 {
    u32::from_le_bytes(octets)
}
