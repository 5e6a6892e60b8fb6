//! MPA: the frames of connection start-up, and the geometry of FPDUs and markers (RFC 5044, RFC 6581).

mod fpdu;
mod marker;
mod startup;
#[cfg(test)]
mod tests;

pub use fpdu::{
    CRC_LEN, FPDU_ALIGNMENT, LENGTH_LEN, MAXIMUM_MULPDU, MINIMUM_MULPDU, crc_from_octets, crc_to_octets, fpdu_len,
    mulpdu, padding_len,
};
pub use marker::{
    MARKER_INTERVAL, MARKER_LEN, Marker, MarkerPlace, MarkerPlaces, marked_len, marker_places, mulpdu_with_markers,
};
pub use startup::{
    ENHANCED_DATA_LEN, EnhancedData, FrameKind, MAXIMUM_PRIVATE_DATA, NOT_NEGOTIATED, STARTUP_HEADER_LEN, StartupFrame,
};
