//! Chunks that open and close a DDP stream over SCTP (RFC 5043 §5.2.3, RFC 6581 §7). Formats only: there is no SCTP
//! yet.

use crate::WireError;
use crate::mpa::{ENHANCED_DATA_LEN, EnhancedData, MAXIMUM_PRIVATE_DATA};
use crate::octets::{put_u16, u16_at};

/// SCTP's payload protocol identifier of a chunk with a DDP segment (RFC 5043 §5.2).
pub const DDP_SEGMENT: u32 = 16;
/// SCTP's payload protocol identifier of a session control chunk (RFC 5043 §5.2).
pub const SESSION_CONTROL: u32 = 17;
/// Octets of a session control chunk's payload before its private data.
pub const SESSION_HEADER_LEN: usize = 4;

/// The function of a session control chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Function {
    /// The active side wants a stream.
    Initiate = 1,
    /// The passive side agrees.
    Accept = 2,
    /// The passive side refuses.
    Reject = 3,
    /// Either side ends the stream, whichever way it was set up (RFC 6581 §7).
    Terminate = 4,
    /// `Initiate` with enhanced data.
    EnhancedInitiate = 5,
    /// `Accept` with enhanced data.
    EnhancedAccept = 6,
    /// `Reject` because of the enhanced data; the stream would be accepted without it.
    EnhancedReject = 7,
}

impl Function {
    /// The function of a code.
    pub const fn from_code(code: u16) -> Option<Function> {
        Some(match code {
            1 => Function::Initiate,
            2 => Function::Accept,
            3 => Function::Reject,
            4 => Function::Terminate,
            5 => Function::EnhancedInitiate,
            6 => Function::EnhancedAccept,
            7 => Function::EnhancedReject,
            _ => return None,
        })
    }

    /// Whether enhanced data precedes the private data (RFC 6581 §7, §9).
    pub const fn has_enhanced_data(self) -> bool {
        matches!(self, Function::EnhancedInitiate | Function::EnhancedAccept)
    }
}

/// The payload of a session control chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionControl<'a> {
    /// DDP-SSN: the sequence number of the chunk in its stream; 0 for the first one of a session (RFC 5043 §5.2.1,
    /// §6.1).
    pub sequence: u16,
    /// What it is.
    pub function: Function,
    /// Present if and only if [`Function::has_enhanced_data`].
    pub enhanced: Option<EnhancedData>,
    /// The ULP's data: at most 512 octets, 508 behind enhanced data; none in a `Terminate`.
    pub private_data: &'a [u8],
}

impl<'a> SessionControl<'a> {
    /// Octets that [`SessionControl::emit`] writes.
    pub const fn emit_len(&self) -> usize {
        SESSION_HEADER_LEN + if self.enhanced.is_some() { ENHANCED_DATA_LEN } else { 0 } + self.private_data.len()
    }

    /// Writes the payload and returns its length.
    ///
    /// # Errors
    /// [`WireError::MpaEnhancedData`] if enhanced data is present but the function has none, or the reverse;
    /// [`WireError::SessionPrivateData`] above 512 octets (enhanced data included), or for any in a `Terminate`;
    /// [`WireError::NoRoom`] if `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if self.enhanced.is_some() != self.function.has_enhanced_data() {
            return Err(WireError::MpaEnhancedData);
        }
        let length = self.emit_len();
        check_private_data(self.function, length - SESSION_HEADER_LEN)?;
        let out = out.get_mut(..length).ok_or(WireError::NoRoom)?;
        let (header, mut data) = out.split_at_mut(SESSION_HEADER_LEN);
        put_u16(header, 0, self.sequence);
        put_u16(header, 2, self.function as u16);
        if let Some(enhanced) = self.enhanced {
            let (words, rest) = data.split_at_mut(ENHANCED_DATA_LEN);
            words.copy_from_slice(&enhanced.to_octets());
            data = rest;
        }
        data.copy_from_slice(self.private_data);
        Ok(length)
    }

    /// Reads the whole payload of a chunk.
    ///
    /// # Errors
    /// [`WireError::Truncated`] below four octets, [`WireError::SessionFunction`], [`WireError::SessionPrivateData`],
    /// [`WireError::MpaEnhancedData`] if enhanced data are cut short.
    pub fn parse(octets: &'a [u8]) -> Result<SessionControl<'a>, WireError> {
        let (header, mut private_data) =
            octets.split_first_chunk::<SESSION_HEADER_LEN>().ok_or(WireError::Truncated)?;
        let function = Function::from_code(u16_at(header, 2)).ok_or(WireError::SessionFunction)?;
        check_private_data(function, private_data.len())?;
        let mut enhanced = None;
        if function.has_enhanced_data() {
            let (words, rest) = private_data.split_first_chunk().ok_or(WireError::MpaEnhancedData)?;
            enhanced = Some(EnhancedData::from_octets(*words));
            private_data = rest;
        }
        Ok(SessionControl { sequence: u16_at(header, 0), function, enhanced, private_data })
    }
}

fn check_private_data(function: Function, length: usize) -> Result<(), WireError> {
    let most = if matches!(function, Function::Terminate) { 0 } else { MAXIMUM_PRIVATE_DATA };
    if length > most { Err(WireError::SessionPrivateData) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENHANCED: EnhancedData = EnhancedData {
        peer_to_peer: true,
        ready_by_send: false,
        ready_by_write: true,
        ready_by_read: true,
        ird: 0x102,
        ord: 3,
    };

    const fn control(
        sequence: u16,
        function: Function,
        enhanced: Option<EnhancedData>,
        private_data: &[u8],
    ) -> SessionControl<'_> {
        SessionControl { sequence, function, enhanced, private_data }
    }

    /// Each function, as octets and as values.
    const VECTORS: [(&[u8], SessionControl<'_>); 8] = [
        (b"\x00\x00\x00\x01hello", control(0, Function::Initiate, None, b"hello")),
        (b"\x00\x00\x00\x02", control(0, Function::Accept, None, b"")),
        (b"\x00\x00\x00\x03no", control(0, Function::Reject, None, b"no")),
        (b"\xff\xfe\x00\x04", control(0xfffe, Function::Terminate, None, b"")),
        (b"\x00\x00\x00\x05\x81\x02\xc0\x03hello", control(0, Function::EnhancedInitiate, Some(ENHANCED), b"hello")),
        (b"\x00\x00\x00\x06\x81\x02\xc0\x03", control(0, Function::EnhancedAccept, Some(ENHANCED), b"")),
        (b"\x00\x00\x00\x07no", control(0, Function::EnhancedReject, None, b"no")),
        // Octets like enhanced data belong to the ULP where the function has no enhanced data.
        (b"\x00\x07\x00\x01\x81\x02\xc0\x03", control(7, Function::Initiate, None, b"\x81\x02\xc0\x03")),
    ];

    #[test]
    fn session_control_vectors_decode_and_encode() {
        for (octets, control) in VECTORS {
            assert_eq!(SessionControl::parse(octets), Ok(control));
            let mut out = [0xaa; 600];
            assert_eq!(control.emit(&mut out), Ok(octets.len()));
            assert_eq!((&out[..octets.len()], out[octets.len()]), (octets, 0xaa));
            assert_eq!(control.emit(&mut out[..octets.len() - 1]), Err(WireError::NoRoom));
        }
        assert_eq!((DDP_SEGMENT, SESSION_CONTROL), (16, 17));
    }

    #[test]
    fn codes_are_those_of_the_registry() {
        for code in 0..=u16::MAX {
            assert_eq!(
                Function::from_code(code).map(|function| function as u16),
                (1..=7).contains(&code).then_some(code)
            );
        }
        assert_eq!(SessionControl::parse(&[0, 0, 0, 8]), Err(WireError::SessionFunction));
        assert_eq!(SessionControl::parse(&[0, 0, 1, 1]), Err(WireError::SessionFunction));
    }

    #[test]
    fn private_data_have_room_for_512_octets_with_the_enhanced_ones() {
        let mut out = [0; 600];
        for (code, enhanced, most) in
            [(1, None, 512), (3, None, 512), (4, None, 0), (5, Some(ENHANCED), 508), (7, None, 512)]
        {
            let function = Function::from_code(code).unwrap();
            let of = |length| SessionControl { sequence: 0, function, enhanced, private_data: &[7; 600][..length] };
            let length = of(most).emit(&mut out).unwrap();
            assert_eq!(SessionControl::parse(&out[..length]), Ok(of(most)));
            assert_eq!(of(most + 1).emit(&mut out), Err(WireError::SessionPrivateData));
            assert_eq!(SessionControl::parse(&out[..length + 1]), Err(WireError::SessionPrivateData));
        }
    }

    #[test]
    fn enhanced_data_belong_to_two_functions() {
        let mut out = [0; 64];
        for code in 1..=7 {
            let function = Function::from_code(code).unwrap();
            let of = |enhanced| SessionControl { sequence: 0, function, enhanced, private_data: b"" };
            let (wrong, right) = if matches!(code, 5 | 6) { (None, Some(ENHANCED)) } else { (Some(ENHANCED), None) };
            assert_eq!(of(wrong).emit(&mut out), Err(WireError::MpaEnhancedData));
            assert!(of(right).emit(&mut out).is_ok());
        }
        for length in 4..8 {
            assert_eq!(SessionControl::parse(&[0, 0, 0, 5, 0, 0, 0, 0][..length]), Err(WireError::MpaEnhancedData));
        }
        for length in 0..4 {
            assert_eq!(SessionControl::parse(&[0, 0, 0, 1][..length]), Err(WireError::Truncated));
        }
    }
}
