//! FPDUs with markers (RFC 5044 §4.3): inserting markers when sending, and removing them on receipt.
//!
//! Positions count from the first octet of full operation of their direction, whatever was sent before it. Markers are
//! rare, so each side simply copies an FPDU once more.

use uwarp_wire::mpa::{MARKER_INTERVAL, MARKER_LEN, Marker, marked_len, marker_places};
use uwarp_wire::mpa::{crc_from_octets, crc_to_octets};

use super::{CRC_LEN, Crc32c, LENGTH_LEN, fpdu_len};

/// The result of looking for an FPDU on a stream with markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// A complete FPDU with valid markers; its CRC is valid or unchecked. Its ULPDU was copied out.
    Fpdu {
        /// Octets of the FPDU with its markers; the next one follows it.
        len: usize,
    },
    /// More octets are wanted.
    Incomplete {
        /// Octets of the complete FPDU, once its length field is complete.
        needed: Option<usize>,
    },
    /// A complete FPDU with a wrong CRC: use nothing of it ([`crate::Fault::Crc`]).
    BadCrc,
    /// A complete FPDU with the right CRC in which a marker does not point to the length field
    /// ([`crate::Fault::MarkerMismatch`]).
    Mismatch,
}

/// Looks for the FPDU that starts at the first octet of `octets`, which is octet `stream_offset` of full operation. A
/// marker in front of its length field belongs to it. Its ULPDU replaces the contents of `ulpdu`.
pub fn deframe_marked(octets: &[u8], stream_offset: u64, crc: Option<Crc32c>, ulpdu: &mut Vec<u8>) -> Marked {
    let leading = if stream_offset.is_multiple_of(MARKER_INTERVAL as u64) { MARKER_LEN } else { 0 };
    let Some((length, _)) = octets.get(leading..).and_then(|rest| rest.split_first_chunk::<LENGTH_LEN>()) else {
        return Marked::Incomplete { needed: None };
    };
    let ulpdu_len = usize::from(u16::from_be_bytes(*length));
    let len = marked_len(stream_offset, fpdu_len(ulpdu_len));
    let Some(fpdu) = octets.get(..len) else { return Marked::Incomplete { needed: Some(len) } };
    let Some((covered, field)) = fpdu.split_last_chunk::<CRC_LEN>() else {
        return Marked::Incomplete { needed: Some(len) };
    };
    if let Some(crc) = crc
        && crc(covered) != crc_from_octets(*field)
    {
        return Marked::BadCrc;
    }
    ulpdu.clear();
    let mut from = 0;
    for place in marker_places(stream_offset, fpdu_len(ulpdu_len)) {
        let Some(marker) = fpdu.get(place.at..).and_then(|rest| rest.first_chunk::<MARKER_LEN>()) else {
            return Marked::Mismatch;
        };
        if Marker::from_octets(*marker) != place.marker {
            return Marked::Mismatch;
        }
        ulpdu.extend_from_slice(&fpdu[from..place.at]);
        from = place.at + MARKER_LEN;
    }
    ulpdu.extend_from_slice(&fpdu[from..]);
    ulpdu.drain(..LENGTH_LEN);
    ulpdu.truncate(ulpdu_len);
    Marked::Fpdu { len }
}

/// Inserts markers into the FPDU in the first `fpdu_len` octets of `room`, which will start at octet `stream_offset` of
/// full operation, and writes the CRC. An FPDU without a marker is left unchanged. Returns the new length of the FPDU.
///
/// # Panics
/// If `room` is too short for it ([`marked_len`]).
pub fn insert_markers(room: &mut [u8], fpdu_len: usize, stream_offset: u64, crc: Option<Crc32c>) -> usize {
    let len = marked_len(stream_offset, fpdu_len);
    let count = (len - fpdu_len) / MARKER_LEN;
    let mut places = marker_places(stream_offset, fpdu_len);
    let Some(first) = places.next() else { return len };
    let leading = if first.at == 0 { MARKER_LEN } else { 0 };
    // Work backwards, so that the octets to be moved are not overwritten.
    let mut end = fpdu_len;
    for index in (0..count).rev() {
        let at = first.at + index * MARKER_INTERVAL;
        let from = at - index * MARKER_LEN;
        room.copy_within(from..end, at + MARKER_LEN);
        let marker = Marker { pointer: at.saturating_sub(leading) as u16 };
        room[at..at + MARKER_LEN].copy_from_slice(&marker.to_octets());
        end = from;
    }
    if let Some(crc) = crc {
        let value = crc(&room[..len - CRC_LEN]);
        room[len - CRC_LEN..len].copy_from_slice(&crc_to_octets(value));
    }
    len
}
