//! The Terminate message (RFC 5040 §4.8).

use super::{READ_REQUEST_LEN, ReadRequest};
use crate::WireError;
use crate::ddp::{self, Header, UNTAGGED_HEADER_LEN};
use crate::octets::{put_u16, put_u32, u16_at, u32_at};

/// Octets of the Terminate control word, which every Terminate has.
pub const TERMINATE_CONTROL_LEN: usize = 4;
/// Octets of the longest Terminate: control, segment length, untagged header, Read Request.
pub const MAXIMUM_TERMINATE_LEN: usize = TERMINATE_CONTROL_LEN + 2 + UNTAGGED_HEADER_LEN + READ_REQUEST_LEN;

const SEGMENT_LENGTH_VALID: u32 = 0x8000;
const DDP_HEADER_INCLUDED: u32 = 0x4000;
const RDMA_HEADER_INCLUDED: u32 = 0x2000;

/// The layer that found the fault (RFC 5040 Figure 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminateLayer {
    /// 0: RDMAP.
    Rdmap,
    /// 1: DDP.
    Ddp,
    /// 2: the lower layer, which is MPA here.
    Mpa,
    /// Not assigned: 3 to 15.
    Unassigned(u8),
}

impl TerminateLayer {
    /// From the 4-bit field; higher bits are dropped.
    pub const fn from_code(code: u8) -> TerminateLayer {
        match code & 0x0f {
            0 => TerminateLayer::Rdmap,
            1 => TerminateLayer::Ddp,
            2 => TerminateLayer::Mpa,
            other => TerminateLayer::Unassigned(other),
        }
    }

    /// The 4-bit field.
    pub const fn code(self) -> u8 {
        match self {
            TerminateLayer::Rdmap => 0,
            TerminateLayer::Ddp => 1,
            TerminateLayer::Mpa => 2,
            TerminateLayer::Unassigned(code) => code & 0x0f,
        }
    }
}

/// The DDP header of the segment at fault, verbatim: it may be one that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminatedHeader {
    octets: [u8; UNTAGGED_HEADER_LEN],
    length: u8,
}

impl TerminatedHeader {
    /// Takes the header from the start of a segment. Its T bit gives the header's length. `None` if the segment is
    /// shorter.
    pub fn from_segment(segment: &[u8]) -> Option<TerminatedHeader> {
        let length = ddp::header_len(*segment.first()?);
        let header = segment.get(..length)?;
        let mut octets = [0; UNTAGGED_HEADER_LEN];
        octets[..length].copy_from_slice(header);
        Some(TerminatedHeader { octets, length: length as u8 })
    }

    /// The header's octets: 14 or 18.
    pub fn as_slice(&self) -> &[u8] {
        &self.octets[..usize::from(self.length)]
    }

    /// The header as values.
    ///
    /// # Errors
    /// As [`Header::parse`].
    pub fn parse(&self) -> Result<Header, WireError> {
        Header::parse(self.as_slice())
    }
}

/// A Terminate message. The flags M, D and R follow from the parts that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The layer that found the fault.
    pub layer: TerminateLayer,
    /// EType, 4 bits; its meaning depends on the layer.
    pub error_type: u8,
    /// Error code; its meaning depends on layer and type.
    pub code: u8,
    /// Length of the DDP segment at fault (its ULPDU length); M.
    pub segment_length: Option<u16>,
    /// Its DDP header; D. Only with a segment length.
    pub ddp_header: Option<TerminatedHeader>,
    /// The Read Request at fault; R. Only with a DDP header.
    pub read_request: Option<ReadRequest>,
}

impl Terminate {
    /// A Terminate that names the fault and no segment.
    pub const fn new(layer: TerminateLayer, error_type: u8, code: u8) -> Terminate {
        Terminate { layer, error_type, code, segment_length: None, ddp_header: None, read_request: None }
    }

    /// The parts that are sent: each needs the one before it.
    fn parts(&self) -> (Option<u16>, Option<TerminatedHeader>, Option<ReadRequest>) {
        let ddp_header = self.segment_length.and(self.ddp_header);
        (self.segment_length, ddp_header, ddp_header.and(self.read_request))
    }

    /// Octets that [`Terminate::emit`] writes: 4 to 52.
    pub fn emit_len(&self) -> usize {
        let (segment_length, ddp_header, read_request) = self.parts();
        TERMINATE_CONTROL_LEN
            + segment_length.map_or(0, |_| 2)
            + ddp_header.map_or(0, |header| header.as_slice().len())
            + read_request.map_or(0, |_| READ_REQUEST_LEN)
    }

    /// Writes the message and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Terminate::emit_len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (segment_length, ddp_header, read_request) = self.parts();
        let mut word = u32::from_be_bytes([(self.layer.code() << 4) | (self.error_type & 0x0f), self.code, 0, 0]);
        let mut at = TERMINATE_CONTROL_LEN;
        if let Some(length) = segment_length {
            word |= SEGMENT_LENGTH_VALID;
            put_u16(out, at, length);
            at += 2;
        }
        if let Some(header) = ddp_header {
            word |= DDP_HEADER_INCLUDED;
            let octets = header.as_slice();
            out[at..at + octets.len()].copy_from_slice(octets);
            at += octets.len();
        }
        if let Some(request) = read_request {
            word |= RDMA_HEADER_INCLUDED;
            out[at..at + READ_REQUEST_LEN].copy_from_slice(&request.to_octets());
            at += READ_REQUEST_LEN;
        }
        put_u32(out, 0, word);
        at
    }

    /// Reads a message; `message` is everything behind the DDP header.
    ///
    /// Known peers announce parts that they do not send, send zeros for parts that they do not announce, or order the
    /// bits of the word differently. The fault matters most, so only the control word is required. A part that is
    /// announced but cut off counts as absent; octets behind the announced parts are ignored.
    ///
    /// # Errors
    /// [`WireError::MessageLength`] below 4 octets.
    pub fn parse(message: &[u8]) -> Result<Terminate, WireError> {
        let control: &[u8; TERMINATE_CONTROL_LEN] = message.first_chunk().ok_or(WireError::MessageLength)?;
        let word = u32_at(control, 0);
        let mut terminate = Terminate::new(TerminateLayer::from_code(control[0] >> 4), control[0] & 0x0f, control[1]);
        // The length field is present if either flag is set: RFC 5040 calls it "present" for one and "valid" for the
        // other.
        if word & (SEGMENT_LENGTH_VALID | DDP_HEADER_INCLUDED) != 0 {
            let rest = &message[TERMINATE_CONTROL_LEN..];
            if rest.len() >= 2 {
                terminate.segment_length = Some(u16_at(rest, 0));
                if word & DDP_HEADER_INCLUDED != 0 {
                    terminate.parse_headers(&rest[2..], word & RDMA_HEADER_INCLUDED != 0);
                }
            }
        }
        Ok(terminate)
    }

    fn parse_headers(&mut self, rest: &[u8], read_request: bool) {
        self.ddp_header = TerminatedHeader::from_segment(rest);
        if let Some(header) = self.ddp_header
            && read_request
        {
            self.read_request = rest[header.as_slice().len()..]
                .get(..READ_REQUEST_LEN)
                .and_then(|octets| ReadRequest::parse(octets).ok());
        }
    }
}
