//! Terminate messages (RFC 5040 §4.8): building one from a fault and the segment at fault, and reading the peer's, also
//! in the bit order of Linux siw.

use uwarp_wire::ddp::{Header, QueueNumber, header_len};
use uwarp_wire::rdmap::{Opcode, ReadRequest, TERMINATE_CONTROL_LEN, Terminate, TerminateLayer, TerminatedHeader};

use crate::fault::{Fault, Headers};

/// The code of DDP for an untagged message that finds no buffer.
const NO_BUFFER: u8 = 2;

/// The parts of a segment at fault that a Terminate may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedSegment {
    /// Octets of the whole segment (its ULPDU length), not only of the parts below.
    pub segment_length: u16,
    /// Its DDP header, verbatim.
    pub ddp_header: TerminatedHeader,
    /// The Read Request behind the DDP header, if there was one.
    pub read_request: Option<ReadRequest>,
}

impl FailedSegment {
    /// The parts of `ulpdu`; `None` if it is too short for a DDP header.
    pub fn of(ulpdu: &[u8]) -> Option<FailedSegment> {
        let ddp_header = TerminatedHeader::from_segment(ulpdu)?;
        let read_request = match ddp_header.parse() {
            Ok(Header::Untagged(header)) if header.control.opcode() == Ok(Opcode::ReadRequest) => {
                ReadRequest::parse(&ulpdu[header_len(ulpdu[0])..]).ok()
            }
            _ => None,
        };
        Some(FailedSegment { segment_length: u16::try_from(ulpdu.len()).ok()?, ddp_header, read_request })
    }
}

/// The Terminate for `fault`. It includes the headers that the fault's row requires, as far as `failed` has them;
/// segment length and DDP header are included together or not at all.
pub fn terminate_for(fault: Fault, failed: Option<FailedSegment>) -> Terminate {
    let row = fault.row();
    let layer = TerminateLayer::from_code(row.layer);
    let mut terminate = Terminate::new(layer, row.error_type, row.code);
    if let (Headers::Ddp | Headers::DdpAndReadRequest, Some(failed)) = (row.headers, failed) {
        terminate.segment_length = Some(failed.segment_length);
        terminate.ddp_header = Some(failed.ddp_header);
        if row.headers == Headers::DdpAndReadRequest {
            terminate.read_request = failed.read_request;
        }
    }
    terminate
}

/// A Terminate from the peer: why it ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedTerminate {
    /// The message. The segment length is unreliable: peers count it differently.
    pub terminate: Terminate,
    /// The control word was in the bit order of Linux siw on a little-endian machine and was corrected.
    pub siw_bit_order: bool,
}

/// What a Terminate from the peer means for our work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteStatus {
    /// The peer refused access to its memory (invalid STag, bounds, rights, association, wrap).
    RemoteAccess,
    /// The peer had no receive posted.
    ReceiverNotReady,
    /// The peer had a receive posted that was too short, or refused the operation of our message.
    RemoteInvalidRequest,
    /// The peer failed for its own reasons.
    RemoteOperation,
    /// The peer's MPA found the stream damaged or start-up unacceptable.
    LowerLayer,
}

impl ReceivedTerminate {
    /// Reads the octets behind the DDP header of a Terminate. Only the first four are required; the following parts are
    /// read as far as they are present, since peers disagree about them and the stream ends anyway. `None` below four
    /// octets.
    ///
    /// siw fills the control word as a C bit field: on little-endian machines the halves of the first octet are
    /// swapped, and the flags are the low bits of the third. That order is assumed in three cases: the word is invalid
    /// in the order of RFC 5040; headers follow that only siw's flags announce; or the word refuses a start-up that is
    /// already over. For the last case, `may_refuse_start_up` says whether this is the first FPDU of an Initiator:
    /// nobody else refuses the contents of a Reply (RFC 6581 §9.1 and §9.2), and siw's "unexpected opcode" has no
    /// header to tell the two apart.
    pub fn parse(message: &[u8], may_refuse_start_up: bool) -> Option<ReceivedTerminate> {
        let &[first, code, flags, low] = message.first_chunk::<TERMINATE_CONTROL_LEN>()?;
        let (high_half, low_half) = (first >> 4, first & 0x0f);
        let announced_by_siw_only = matches!(flags, 1 | 3 | 7) && low == 0 && message.len() > TERMINATE_CONTROL_LEN;
        let late_refusal = (high_half, low_half) == (2, 0) && matches!(code, 6 | 7) && !may_refuse_start_up;
        let siw_bit_order = is_assigned(low_half, high_half, code)
            && (announced_by_siw_only || late_refusal || !is_assigned(high_half, low_half, code));
        let terminate = if siw_bit_order {
            let mut copy = [0; uwarp_wire::rdmap::MAXIMUM_TERMINATE_LEN];
            let len = message.len().min(copy.len());
            copy[..len].copy_from_slice(&message[..len]);
            copy[0] = low_half << 4 | high_half;
            copy[2] = flags.reverse_bits();
            Terminate::parse(&copy[..len])
        } else {
            Terminate::parse(message)
        };
        Some(ReceivedTerminate { terminate: terminate.ok()?, siw_bit_order })
    }

    /// What it means for our outstanding work. The work request that the returned header belongs to, or else the oldest
    /// outstanding one, may be completed with this status; the rest is flushed.
    pub fn status(&self) -> RemoteStatus {
        let message = &self.terminate;
        match (message.layer, message.error_type, message.code) {
            (TerminateLayer::Rdmap | TerminateLayer::Ddp, 1, _) => RemoteStatus::RemoteAccess,
            (TerminateLayer::Ddp, 2, NO_BUFFER) if !self.is_about_request() => RemoteStatus::ReceiverNotReady,
            // "Catastrophic error, global", and an STag that is not to be invalidated.
            (TerminateLayer::Rdmap, 2, 8 | 9) => RemoteStatus::RemoteOperation,
            (TerminateLayer::Rdmap | TerminateLayer::Ddp, 2, _) => RemoteStatus::RemoteInvalidRequest,
            (TerminateLayer::Mpa, ..) => RemoteStatus::LowerLayer,
            _ => RemoteStatus::RemoteOperation,
        }
    }

    /// Whether it returns the header of a request for memory, which takes no receive.
    fn is_about_request(&self) -> bool {
        let header = self.terminate.ddp_header.and_then(|header| header.parse().ok());
        matches!(header, Some(Header::Untagged(header)) if header.queue == QueueNumber::READ_REQUEST)
    }
}

/// Whether a document assigns this combination of layer, type and code.
const fn is_assigned(layer: u8, error_type: u8, code: u8) -> bool {
    match (layer, error_type) {
        (0, 0) | (1, 0) => true,
        (0, 1) => matches!(code, 0..=4 | 9 | 0xff),
        (0, 2) => matches!(code, 5..=9 | 0xff),
        (1, 1) => code <= 4,
        (1, 2) => matches!(code, 1..=6),
        (2, 0) => matches!(code, 1..=7),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
