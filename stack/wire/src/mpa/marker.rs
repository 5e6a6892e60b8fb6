//! Markers: their octets and their places in a stream (RFC 5044 §4.3).

use super::fpdu::{CRC_LEN, FPDU_ALIGNMENT, clamp};

/// Octets of a marker.
pub const MARKER_LEN: usize = 4;
/// Octets of the stream from the start of a marker to the start of the next one, counted from the
/// first octet of full operation, which is itself the start of a marker.
pub const MARKER_INTERVAL: usize = 512;

const DATA_PER_INTERVAL: usize = MARKER_INTERVAL - MARKER_LEN;

/// The content of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// FPDUPTR: octets of the stream from the length field of the FPDU to the marker; 0 for a marker in
    /// front of the length field. A multiple of 4.
    pub pointer: u16,
}

impl Marker {
    /// The marker's octets; the reserved half is 0.
    pub const fn to_octets(self) -> [u8; MARKER_LEN] {
        let [high, low] = self.pointer.to_be_bytes();
        [0, 0, high, low & !3]
    }

    /// Reads a marker; the reserved half and the pointer's two lowest bits are ignored.
    pub const fn from_octets(octets: [u8; MARKER_LEN]) -> Marker {
        Marker { pointer: u16::from_be_bytes([octets[2], octets[3] & !3]) }
    }
}

/// Where a marker stands in its FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerPlace {
    /// Octets of the FPDU before the marker, earlier markers included.
    pub at: usize,
    /// The marker's content.
    pub marker: Marker,
}

/// Octets from a stream position to the next position where a marker must begin.
#[inline]
const fn to_next_marker(stream_offset: u64) -> usize {
    (stream_offset.wrapping_neg() % MARKER_INTERVAL as u64) as usize
}

/// The length, markers included, of an FPDU that has `fpdu_len` octets without markers and begins at `stream_offset` of
/// its direction (where its leading marker is, if there is one).
///
/// A marker that falls behind the last octet belongs to the next FPDU and does not count.
#[inline]
pub const fn marked_len(stream_offset: u64, fpdu_len: usize) -> usize {
    let before_first = to_next_marker(stream_offset);
    if fpdu_len <= before_first {
        return fpdu_len;
    }
    fpdu_len + (fpdu_len - before_first).div_ceil(DATA_PER_INTERVAL) * MARKER_LEN
}

/// The markers of an FPDU that has `fpdu_len` octets without them and begins at `stream_offset`, in order.
pub const fn marker_places(stream_offset: u64, fpdu_len: usize) -> MarkerPlaces {
    let first = to_next_marker(stream_offset);
    MarkerPlaces {
        next: first,
        end: marked_len(stream_offset, fpdu_len),
        leading: if first == 0 { MARKER_LEN } else { 0 },
    }
}

/// Iterator over the markers of one FPDU.
#[derive(Clone, Debug)]
pub struct MarkerPlaces {
    next: usize,
    end: usize,
    /// Octets before the length field: those of a leading marker, or 0.
    leading: usize,
}

impl Iterator for MarkerPlaces {
    type Item = MarkerPlace;

    fn next(&mut self) -> Option<MarkerPlace> {
        if self.next >= self.end {
            return None;
        }
        let at = self.next;
        self.next += MARKER_INTERVAL;
        let pointer = at.saturating_sub(self.leading) as u16;
        Some(MarkerPlace { at, marker: Marker { pointer } })
    }
}

const _: () = assert!(MARKER_INTERVAL.is_multiple_of(FPDU_ALIGNMENT) && CRC_LEN == MARKER_LEN);

/// As [`mulpdu`](super::mulpdu), on a stream with markers, however they fall.
#[inline]
pub const fn mulpdu_with_markers(emss: u32) -> u16 {
    let markers = emss.div_ceil(MARKER_INTERVAL as u32);
    clamp(emss.saturating_sub(6 + emss % 4).saturating_sub(4 * markers))
}
