//! MPA Request and Reply frames (RFC 5044 §7.1, RFC 6581 §6 and §9).

use crate::WireError;
use crate::octets::{put_u16, u16_at};

/// Octets of a frame before its private data.
pub const STARTUP_HEADER_LEN: usize = 20;
/// The most octets of private data, including the 4 octets of enhanced data.
pub const MAXIMUM_PRIVATE_DATA: usize = 512;
/// Octets of enhanced data in front of the ULP's private data.
pub const ENHANCED_DATA_LEN: usize = 4;
/// The value of IRD or ORD that leaves it to the ULP (RFC 6581 §9.1).
pub const NOT_NEGOTIATED: u16 = 0x3fff;

const KEY_LEN: usize = 16;
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// The lowest revision in which the flag of enhanced data is not a reserved bit.
const ENHANCED_REVISION: u8 = 2;
const MAXIMUM_REVISION: u8 = 2;

/// Who sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// From the Initiator.
    Request,
    /// From the Responder.
    Reply,
}

impl FrameKind {
    /// The key that such a frame begins with.
    pub const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            FrameKind::Request => b"MPA ID Req Frame",
            FrameKind::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// The enhanced connection establishment data (RFC 6581 §9): IRD, ORD and the ready-to-receive options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EnhancedData {
    /// A: peer-to-peer; the Initiator sends a ready-to-receive indication.
    pub peer_to_peer: bool,
    /// B: a zero-length Send may be the indication.
    pub ready_by_send: bool,
    /// C: a zero-length RDMA Write may be the indication.
    pub ready_by_write: bool,
    /// D: a zero-length RDMA Read may be the indication.
    pub ready_by_read: bool,
    /// Inbound RDMA Read queue depth, 14 bits; [`NOT_NEGOTIATED`] leaves it to the ULP.
    pub ird: u16,
    /// Outbound RDMA Read queue depth, 14 bits; [`NOT_NEGOTIATED`] leaves it to the ULP.
    pub ord: u16,
}

impl EnhancedData {
    /// The four octets; IRD and ORD above 14 bits are cut to the largest number.
    pub fn to_octets(self) -> [u8; ENHANCED_DATA_LEN] {
        let word = |first: bool, second: bool, depth: u16| {
            (u16::from(first) << 15) | (u16::from(second) << 14) | depth.min(NOT_NEGOTIATED)
        };
        let mut octets = [0; ENHANCED_DATA_LEN];
        put_u16(&mut octets, 0, word(self.peer_to_peer, self.ready_by_send, self.ird));
        put_u16(&mut octets, 2, word(self.ready_by_write, self.ready_by_read, self.ord));
        octets
    }

    /// Reads the four octets.
    pub fn from_octets(octets: [u8; ENHANCED_DATA_LEN]) -> EnhancedData {
        let (ird, ord) = (u16_at(&octets, 0), u16_at(&octets, 2));
        EnhancedData {
            peer_to_peer: ird & 0x8000 != 0,
            ready_by_send: ird & 0x4000 != 0,
            ready_by_write: ord & 0x8000 != 0,
            ready_by_read: ord & 0x4000 != 0,
            ird: ird & NOT_NEGOTIATED,
            ord: ord & NOT_NEGOTIATED,
        }
    }
}

/// A Request or Reply frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupFrame<'a> {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the sender wants to receive markers.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: the Responder rejects the connection; meaningless in a Request.
    pub reject: bool,
    /// Rev: 0 (RDMA Consortium), 1 (RFC 5044) or 2 (RFC 6581).
    pub revision: u8,
    /// S and its data; only with revision 2.
    pub enhanced: Option<EnhancedData>,
    /// The ULP's data: at most 512 octets, 508 beside enhanced data.
    pub private_data: &'a [u8],
}

impl<'a> StartupFrame<'a> {
    /// Octets that [`StartupFrame::emit`] writes.
    pub const fn emit_len(&self) -> usize {
        STARTUP_HEADER_LEN + if self.enhanced.is_some() { ENHANCED_DATA_LEN } else { 0 } + self.private_data.len()
    }

    /// Writes the frame and returns its length. Reserved bits are 0.
    ///
    /// # Errors
    /// [`WireError::MpaRevision`] above revision 2, [`WireError::MpaEnhancedData`] if an earlier revision has enhanced
    /// data, [`WireError::MpaPrivateDataLength`] above 512 octets (enhanced data included), [`WireError::NoRoom`] if
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if self.revision > MAXIMUM_REVISION {
            return Err(WireError::MpaRevision);
        }
        if self.enhanced.is_some() && self.revision < ENHANCED_REVISION {
            return Err(WireError::MpaEnhancedData);
        }
        let length = self.emit_len();
        if length > STARTUP_HEADER_LEN + MAXIMUM_PRIVATE_DATA {
            return Err(WireError::MpaPrivateDataLength);
        }
        let out = out.get_mut(..length).ok_or(WireError::NoRoom)?;
        let (header, mut data) = out.split_at_mut(STARTUP_HEADER_LEN);
        header[..KEY_LEN].copy_from_slice(self.kind.key());
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        header[16] = flag(self.markers, MARKERS)
            | flag(self.crc, CRC)
            | flag(self.reject, REJECT)
            | flag(self.enhanced.is_some(), ENHANCED);
        header[17] = self.revision;
        put_u16(header, 18, data.len() as u16);
        if let Some(enhanced) = self.enhanced {
            let (words, rest) = data.split_at_mut(ENHANCED_DATA_LEN);
            words.copy_from_slice(&enhanced.to_octets());
            data = rest;
        }
        data.copy_from_slice(self.private_data);
        Ok(length)
    }

    /// Reads a frame at the start of the octets that a stream has delivered so far. Returns `None` while octets are
    /// missing, then the frame and its length in octets.
    ///
    /// A frame that cannot become valid is refused at the first octet that shows it. Reserved bits are ignored; the S
    /// bit is one of them below revision 2.
    ///
    /// # Errors
    /// [`WireError::MpaKey`], [`WireError::MpaRevision`], [`WireError::MpaPrivateDataLength`],
    /// [`WireError::MpaEnhancedData`].
    pub fn parse(kind: FrameKind, octets: &'a [u8]) -> Result<Option<(StartupFrame<'a>, usize)>, WireError> {
        let key_octets = octets.len().min(KEY_LEN);
        if octets[..key_octets] != kind.key()[..key_octets] {
            return Err(WireError::MpaKey);
        }
        if octets.get(17).is_some_and(|&revision| revision > MAXIMUM_REVISION) {
            return Err(WireError::MpaRevision);
        }
        let Some((header, rest)) = octets.split_first_chunk::<STARTUP_HEADER_LEN>() else {
            return Ok(None);
        };
        let (flags, revision) = (header[16], header[17]);
        let length = usize::from(u16_at(header, 18));
        if length > MAXIMUM_PRIVATE_DATA {
            return Err(WireError::MpaPrivateDataLength);
        }
        let enhanced = flags & ENHANCED != 0 && revision >= ENHANCED_REVISION;
        if enhanced && length < ENHANCED_DATA_LEN {
            return Err(WireError::MpaEnhancedData);
        }
        let Some(mut private_data) = rest.get(..length) else {
            return Ok(None);
        };
        let mut enhanced_data = None;
        if enhanced && let Some((words, behind)) = private_data.split_first_chunk() {
            enhanced_data = Some(EnhancedData::from_octets(*words));
            private_data = behind;
        }
        let frame = StartupFrame {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0,
            revision,
            enhanced: enhanced_data,
            private_data,
        };
        Ok(Some((frame, STARTUP_HEADER_LEN + length)))
    }
}
