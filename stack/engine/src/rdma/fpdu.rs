//! An FPDU that is being built in the buffer that it leaves from (RFC 5044 §4).

use uwarp_iwarp::framing::{CRC_LEN, LENGTH_LEN, padding_len};
use uwarp_memory::{Access, AccessError, Association, OpenRegion, Turn, kernels};
use uwarp_wire::ddp::TAGGED_HEADER_LEN;
use uwarp_wire::mpa::crc_to_octets;

use crate::api::work::Sge;

/// Payload up to this many octets is copied first and summed up together with its headers: one run of the CRC kernel
/// costs less than three. Longer payload is copied and summed up in one pass.
pub(crate) const SHORT: usize = 256;

/// Octets of the length field and the shorter header, that of tagged segments.
const FIRST: usize = LENGTH_LEN + TAGGED_HEADER_LEN;

/// Writes the length field of an FPDU with `ulpdu_len` octets of ULPDU, and as much of the header as fits behind it: as
/// two words, since the CRC reads words, and one that was written in parts has to leave the core first.
#[inline(always)]
fn write_first(room: &mut [u8], ulpdu_len: usize, header: &[u8]) {
    let mut first = [0; FIRST];
    first[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
    first[LENGTH_LEN..].copy_from_slice(&header[..FIRST - LENGTH_LEN]);
    let words = u128::from_le_bytes(first);
    room[..FIRST / 2].copy_from_slice(&(words as u64).to_le_bytes());
    room[FIRST / 2..FIRST].copy_from_slice(&((words >> 64) as u64).to_le_bytes());
}

/// Builds an FPDU of DDP's and RDMAP's headers and the octets of `entry`, at most [`SHORT`]; gives its length. `None`:
/// it does not fit, or the memory is refused.
#[inline(always)]
pub(crate) fn build_short<const HEADER: usize>(
    turn: &Turn<'_>,
    association: Association,
    header: [u8; HEADER],
    entry: Sge,
    crc: bool,
    room: &mut [u8],
) -> Option<usize> {
    debug_assert!(entry.length as usize <= SHORT);
    let payload_at = LENGTH_LEN + HEADER;
    let end = payload_at + entry.length as usize;
    let crc_at = end + padding_len(end - LENGTH_LEN);
    let room = room.get_mut(..crc_at + CRC_LEN)?;
    if entry.length > 0 {
        turn.gather(association, entry.stag, entry.offset, &mut room[payload_at..end], Access::LOCAL_READ).ok()?;
    }
    write_first(room, end - LENGTH_LEN, &header);
    room[FIRST..payload_at].copy_from_slice(&header[FIRST - LENGTH_LEN..]);
    // At most three octets of padding; the CRC field is written over the rest.
    room[end..end + CRC_LEN].fill(0);
    let crc = if crc { kernels::crc32c(&room[..crc_at]) } else { 0 };
    room[crc_at..].copy_from_slice(&crc_to_octets(crc));
    Some(room.len())
}

/// The FPDU: its header is written, its payload is being copied.
#[derive(Debug)]
pub(crate) struct Fpdu<'a> {
    room: &'a mut [u8],
    payload_at: usize,
    payload_len: usize,
    /// Octets of the payload that are copied.
    copied: usize,
    crc: bool,
    /// The register of the CRC so far, where it runs along with the copy.
    register: Option<u32>,
}

impl<'a> Fpdu<'a> {
    /// Begins with the length field. The DDP and RDMAP headers stand behind it already.
    #[inline(always)]
    pub(crate) fn begin(room: &'a mut [u8], header_len: usize, payload_len: u32, crc: bool) -> Fpdu<'a> {
        let payload_len = payload_len as usize;
        let ulpdu_len = header_len + payload_len;
        room[..LENGTH_LEN].copy_from_slice(&(ulpdu_len as u16).to_be_bytes());
        Fpdu::with_header(room, header_len, payload_len, crc)
    }

    /// Begins with the length field and the headers of a tagged segment.
    #[inline(always)]
    pub(crate) fn begin_tagged(
        room: &'a mut [u8],
        header: &[u8; TAGGED_HEADER_LEN],
        payload_len: u32,
        crc: bool,
    ) -> Fpdu<'a> {
        let payload_len = payload_len as usize;
        write_first(room, TAGGED_HEADER_LEN + payload_len, header);
        Fpdu::with_header(room, TAGGED_HEADER_LEN, payload_len, crc)
    }

    #[inline(always)]
    fn with_header(room: &'a mut [u8], header_len: usize, payload_len: usize, crc: bool) -> Fpdu<'a> {
        let payload_at = LENGTH_LEN + header_len;
        let register = (crc && payload_len > SHORT).then(|| kernels::crc32c_update(u32::MAX, &room[..payload_at]));
        Fpdu { room, payload_at, payload_len, copied: 0, crc, register }
    }

    /// Where the payload goes, for a caller that fills it by itself.
    #[inline]
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        self.register = None;
        &mut self.room[self.payload_at..self.payload_at + self.payload_len]
    }

    /// Copies local memory behind what is copied of the payload.
    #[inline(always)]
    pub(crate) fn gather(&mut self, turn: &Turn<'_>, association: Association, piece: Sge) -> Result<(), AccessError> {
        self.gather_with(turn, association, piece, Access::LOCAL_READ)
    }

    /// As [`Fpdu::gather`], with the right that is needed.
    #[inline(always)]
    pub(crate) fn gather_with(
        &mut self,
        turn: &Turn<'_>,
        association: Association,
        piece: Sge,
        need: Access,
    ) -> Result<(), AccessError> {
        if piece.length == 0 {
            return Ok(());
        }
        let from = self.payload_at + self.copied;
        let end = (from + piece.length as usize).min(self.payload_at + self.payload_len);
        let out = &mut self.room[from..end];
        self.copied += out.len();
        match self.register {
            Some(register) => {
                self.register = Some(turn.gather_crc(association, piece.stag, piece.offset, out, register, need)?);
                Ok(())
            }
            None => turn.gather(association, piece.stag, piece.offset, out, need),
        }
    }

    /// Copies the whole payload from `offset` on of a region. False: nothing was done.
    #[inline(always)]
    pub(crate) fn gather_all(&mut self, region: &OpenRegion<'_>, offset: u64) -> bool {
        let Some(register) = self.register else { return false };
        let out = &mut self.room[self.payload_at..self.payload_at + self.payload_len];
        let gathered = region.gather_crc(offset, out, register);
        self.register = gathered.or(self.register);
        gathered.is_some()
    }

    /// Writes padding and CRC; gives the length of the FPDU.
    #[inline(always)]
    pub(crate) fn end(self) -> usize {
        let end = self.payload_at + self.payload_len;
        let crc_at = end + padding_len(end - LENGTH_LEN);
        // At most three octets of padding; the CRC field is written over the rest.
        self.room[end..end + CRC_LEN].fill(0);
        let crc = match (self.crc, self.register) {
            (false, _) => 0,
            (true, None) => kernels::crc32c(&self.room[..crc_at]),
            (true, Some(register)) if crc_at == end => !register,
            (true, Some(register)) => !kernels::crc32c_update(register, &self.room[end..crc_at]),
        };
        self.room[crc_at..crc_at + CRC_LEN].copy_from_slice(&crc_to_octets(crc));
        crc_at + CRC_LEN
    }
}
