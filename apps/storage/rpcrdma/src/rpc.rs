//! The headers of ONC RPC messages (RFC 5531 §9), as far as a transport needs them.
//!
//! Existing crates do not fit. `onc-rpc` limits credentials and verifiers to 200 octets, where RFC 5531 §8.2 has 400,
//! and panics when it has to write a longer one. It also requires a record mark, which does not exist here (RFC 8166
//! §3.2). `nfs3_types` knows four flavors and eight reasons of refusal, but neither RPCSEC_GSS nor its reasons. Both
//! would refuse messages that must be passed through. So these few words are parsed here, and `onc-rpc` is a witness in
//! the tests.

use crate::xdr::{Reader, XdrError, padding, put_opaque, put_padding, put_u32, put_words};

/// The version of ONC RPC (RFC 5531 §9).
pub const RPC_VERSION: u32 = 2;
/// Most octets in the body of a credential or verifier (RFC 5531 §8.2).
pub const MAX_AUTH: usize = 400;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// The flavor RPCSEC_GSS (RFC 2203 §4).
pub const RPCSEC_GSS: u32 = 6;

/// A credential or a verifier (RFC 5531 §8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Auth<'a> {
    /// The flavor's number.
    pub flavor: u32,
    /// Its body; at most [`MAX_AUTH`] octets.
    pub body: &'a [u8],
}

/// What RPCSEC_GSS does to a call's arguments and results (RFC 2203 §5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// They are not wrapped; also for flavors other than RPCSEC_GSS.
    None,
    /// They are wrapped, or they belong to the security mechanism: nothing in them may be reduced (RFC 8166 §8.2.2.1).
    Wrapped,
}

impl<'a> Auth<'a> {
    /// AUTH_NONE.
    pub const NONE: Auth<'static> = Auth { flavor: AUTH_NONE, body: &[] };

    fn parse(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(Self { flavor: reader.u32()?, body: reader.opaque(MAX_AUTH)? })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        // At most MAX_AUTH octets.
        put_words(out, [self.flavor, self.body.len() as u32]);
        if !self.body.is_empty() {
            out.extend_from_slice(self.body);
            put_padding(out, self.body.len());
        }
    }

    /// What this credential says about the arguments behind it. An unreadable one counts as wrapped.
    pub fn protection(&self) -> Protection {
        if self.flavor != RPCSEC_GSS {
            return Protection::None;
        }
        let mut reader = Reader::new(self.body);
        // RFC 2203 §5: version 1, procedure RPCSEC_GSS_DATA, any sequence number, rpc_gss_svc_none.
        let mut words = [0; 4];
        for word in &mut words {
            match reader.u32() {
                Ok(value) => *word = value,
                Err(XdrError) => return Protection::Wrapped,
            }
        }
        if matches!(words, [1, 0, _, 1]) { Protection::None } else { Protection::Wrapped }
    }

    /// Octets of the largest verifier in a reply to a call with this credential (RFC 8166 §8.2.2.2): AUTH_NONE is
    /// answered with AUTH_NONE, others with anything.
    pub fn largest_reply_verifier(&self) -> usize {
        if self.flavor == AUTH_NONE { 8 } else { 8 + MAX_AUTH }
    }
}

/// A credential or a verifier that owns its body. The default is AUTH_NONE.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnedAuth {
    /// The flavor's number.
    pub flavor: u32,
    /// Its body; at most [`MAX_AUTH`] octets.
    pub body: Vec<u8>,
}

impl OwnedAuth {
    /// The same, borrowed.
    pub fn as_auth(&self) -> Auth<'_> {
        Auth { flavor: self.flavor, body: &self.body }
    }
}

impl From<Auth<'_>> for OwnedAuth {
    fn from(auth: Auth<'_>) -> Self {
        Self { flavor: auth.flavor, body: auth.body.to_vec() }
    }
}

/// An AUTH_SYS credential's body (RFC 5531 appendix A). `machine` is truncated to 255 octets, `groups` to 16 entries.
pub fn auth_sys(stamp: u32, machine: &str, user: u32, group: u32, groups: &[u32]) -> Vec<u8> {
    let machine = &machine.as_bytes()[..machine.len().min(255)];
    let groups = &groups[..groups.len().min(16)];
    let mut body = Vec::new();
    put_u32(&mut body, stamp);
    put_opaque(&mut body, machine);
    // At most 16.
    for word in [user, group, groups.len() as u32].iter().chain(groups) {
        put_u32(&mut body, *word);
    }
    body
}

/// The AUTH_SYS flavor with a body of [`auth_sys`].
pub fn system_credential(body: &[u8]) -> Auth<'_> {
    Auth { flavor: AUTH_SYS, body }
}

/// The header of a call (RFC 5531 §9); the arguments follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// Transaction identifier.
    pub xid: u32,
    /// Program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Auth<'a>,
    /// What proves it.
    pub verifier: Auth<'a>,
}

/// Why the octets are not the header of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallHeaderError {
    /// It is not a call, it is truncated, or a credential is too long. No answer is possible.
    #[error("not the header of a call")]
    Garbage,
    /// It is a call of another version of ONC RPC, to be denied with RPC_MISMATCH.
    #[error("a call of RPC version {0}")]
    RpcVersion(u32),
}

impl<'a> CallHeader<'a> {
    /// Parses the header, and returns its length.
    ///
    /// # Errors
    /// [`CallHeaderError`].
    pub fn parse(octets: &'a [u8]) -> Result<(Self, usize), CallHeaderError> {
        let mut reader = Reader::new(octets);
        let garbage = |_: XdrError| CallHeaderError::Garbage;
        let xid = reader.u32().map_err(garbage)?;
        if reader.u32().map_err(garbage)? != CALL {
            return Err(CallHeaderError::Garbage);
        }
        let version = reader.u32().map_err(garbage)?;
        if version != RPC_VERSION {
            return Err(CallHeaderError::RpcVersion(version));
        }
        let header = Self::rest(xid, &mut reader).map_err(garbage)?;
        Ok((header, reader.at()))
    }

    fn rest(xid: u32, reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            xid,
            program: reader.u32()?,
            version: reader.u32()?,
            procedure: reader.u32()?,
            credential: Auth::parse(reader)?,
            verifier: Auth::parse(reader)?,
        })
    }

    /// Octets of the header.
    pub fn encoded_len(&self) -> usize {
        let auth = |auth: &Auth<'_>| 8 + auth.body.len() + padding(auth.body.len());
        24 + auth(&self.credential) + auth(&self.verifier)
    }

    /// Appends the header to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        put_words(out, [self.xid, CALL, RPC_VERSION, self.program, self.version, self.procedure]);
        self.credential.encode(out);
        self.verifier.encode(out);
    }
}

/// How a call ended (RFC 5531 §9, accept_stat and reject_stat).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// SUCCESS: the results follow.
    Success,
    /// PROG_UNAVAIL: nobody here has the program.
    ProgramUnavailable,
    /// PROG_MISMATCH: the program is available in these versions.
    ProgramMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no such procedure.
    ProcedureUnavailable,
    /// GARBAGE_ARGS: the arguments cannot be read.
    GarbageArguments,
    /// SYSTEM_ERR: the server failed.
    SystemError,
    /// RPC_MISMATCH: another version of ONC RPC is supported.
    RpcMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// AUTH_ERROR: the caller is refused; the number is an auth_stat.
    AuthError(u32),
}

/// The header of a reply; with [`Status::Success`] the results follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader<'a> {
    /// Transaction identifier of the call.
    pub xid: u32,
    /// The responder's verifier. A denial has none.
    pub verifier: Auth<'a>,
    /// How the call ended.
    pub status: Status,
}

impl<'a> ReplyHeader<'a> {
    /// Parses the header, and returns its length.
    ///
    /// # Errors
    /// It is not the header of a reply.
    pub fn parse(octets: &'a [u8]) -> Result<(Self, usize), XdrError> {
        let mut reader = Reader::new(octets);
        let xid = reader.u32()?;
        if reader.u32()? != REPLY {
            return Err(XdrError);
        }
        // MSG_ACCEPTED or MSG_DENIED, whose values happen to be those of a boolean.
        let (verifier, status) = if reader.boolean()? {
            let status = match reader.u32()? {
                0 => Status::RpcMismatch { low: reader.u32()?, high: reader.u32()? },
                1 => Status::AuthError(reader.u32()?),
                _ => return Err(XdrError),
            };
            (Auth::NONE, status)
        } else {
            let verifier = Auth::parse(&mut reader)?;
            let status = match reader.u32()? {
                0 => Status::Success,
                1 => Status::ProgramUnavailable,
                2 => Status::ProgramMismatch { low: reader.u32()?, high: reader.u32()? },
                3 => Status::ProcedureUnavailable,
                4 => Status::GarbageArguments,
                5 => Status::SystemError,
                _ => return Err(XdrError),
            };
            (verifier, status)
        };
        Ok((Self { xid, verifier, status }, reader.at()))
    }

    /// Appends the header to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // At most eight words, and a verifier.
        out.reserve(36 + self.verifier.body.len());
        let (denied, words): (bool, &[u32]) = match &self.status {
            Status::Success => (false, &[0]),
            Status::ProgramUnavailable => (false, &[1]),
            Status::ProgramMismatch { low, high } => (false, &[2, *low, *high]),
            Status::ProcedureUnavailable => (false, &[3]),
            Status::GarbageArguments => (false, &[4]),
            Status::SystemError => (false, &[5]),
            Status::RpcMismatch { low, high } => (true, &[0, *low, *high]),
            Status::AuthError(reason) => (true, &[1, *reason]),
        };
        put_words(out, [self.xid, REPLY, u32::from(denied)]);
        if !denied {
            self.verifier.encode(out);
        }
        for word in words {
            put_u32(out, *word);
        }
    }

    /// Octets of the longest header of a reply with results to a call with this credential.
    pub fn longest(credential: &Auth<'_>) -> usize {
        12 + credential.largest_reply_verifier() + 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onc_rpc::auth::{AuthFlavor, AuthUnixParams};
    use onc_rpc::{
        AcceptedReply, AcceptedStatus, AuthError, CallBody, MessageType, RejectedReply, ReplyBody, RpcMessage,
    };

    /// The witness writes a record mark first.
    fn witness(xid: u32, message: MessageType<&[u8], &[u8]>) -> Vec<u8> {
        RpcMessage::new(xid, message).serialise().unwrap().split_off(4)
    }

    #[test]
    fn calls_are_those_of_another_implementation() {
        let sys = auth_sys(7, "client.example", 1000, 100, &[4, 24]);
        let params = AuthUnixParams::new(7, &b"client.example"[..], 1000, 100, [4, 24]);
        let gss = [6; 180];
        for (ours, theirs) in [
            (Auth::NONE, AuthFlavor::AuthNone(None)),
            (system_credential(&sys), AuthFlavor::AuthUnix(params)),
            (Auth { flavor: RPCSEC_GSS, body: &gss }, AuthFlavor::Unknown { id: 6, data: &gss[..] }),
        ] {
            let header = CallHeader {
                xid: 0x1234_5678,
                program: 100_003,
                version: 3,
                procedure: 7,
                credential: ours,
                verifier: Auth::NONE,
            };
            let mut out = Vec::new();
            header.encode(&mut out);
            let length = out.len();
            assert_eq!(header.encoded_len(), length);
            out.extend_from_slice(b"args");
            let body = CallBody::new(100_003, 3, 7, theirs, AuthFlavor::AuthNone(None), &b"args"[..]);
            assert_eq!(out, witness(0x1234_5678, MessageType::Call(body)));
            assert_eq!(CallHeader::parse(&out), Ok((header, length)));
            for cut in 0..length {
                assert_eq!(CallHeader::parse(&out[..cut]), Err(CallHeaderError::Garbage));
            }
        }
    }

    #[test]
    fn replies_are_those_of_another_implementation() {
        let accepted = |status| {
            ReplyBody::Accepted(AcceptedReply::new(AuthFlavor::Unknown { id: 6, data: &b"proof"[..] }, status))
        };
        let rows = [
            (Status::Success, accepted(AcceptedStatus::Success(&b""[..]))),
            (Status::ProgramUnavailable, accepted(AcceptedStatus::ProgramUnavailable)),
            (
                Status::ProgramMismatch { low: 2, high: 4 },
                accepted(AcceptedStatus::ProgramMismatch { low: 2, high: 4 }),
            ),
            (Status::ProcedureUnavailable, accepted(AcceptedStatus::ProcedureUnavailable)),
            (Status::GarbageArguments, accepted(AcceptedStatus::GarbageArgs)),
            (Status::SystemError, accepted(AcceptedStatus::SystemError)),
            (
                Status::RpcMismatch { low: 2, high: 2 },
                ReplyBody::Denied(RejectedReply::RpcVersionMismatch { low: 2, high: 2 }),
            ),
            (Status::AuthError(5), ReplyBody::Denied(RejectedReply::AuthError(AuthError::TooWeak))),
        ];
        for (status, theirs) in rows {
            let denied = matches!(status, Status::RpcMismatch { .. } | Status::AuthError(_));
            let verifier = if denied { Auth::NONE } else { Auth { flavor: 6, body: b"proof" } };
            let header = ReplyHeader { xid: 9, verifier, status };
            let mut out = Vec::new();
            header.encode(&mut out);
            assert_eq!(out, witness(9, MessageType::Reply(theirs)), "{status:?}");
            assert_eq!(ReplyHeader::parse(&out), Ok((header, out.len())));
            for cut in 0..out.len() {
                assert_eq!(ReplyHeader::parse(&out[..cut]), Err(XdrError));
            }
        }
        // CREDPROBLEM of RPCSEC_GSS, which the witness does not know.
        let mut out = Vec::new();
        let header = ReplyHeader { xid: 9, verifier: Auth::NONE, status: Status::AuthError(13) };
        header.encode(&mut out);
        assert_eq!(ReplyHeader::parse(&out), Ok((header, out.len())));
    }

    #[test]
    fn credentials_have_four_hundred_octets_and_not_more() {
        let body = [1; MAX_AUTH + 1];
        for (length, right) in [(MAX_AUTH, true), (MAX_AUTH + 1, false)] {
            let credential = Auth { flavor: RPCSEC_GSS, body: &body[..length] };
            let header = CallHeader { xid: 1, program: 2, version: 3, procedure: 4, credential, verifier: Auth::NONE };
            let mut out = Vec::new();
            header.encode(&mut out);
            assert_eq!(CallHeader::parse(&out).is_ok(), right);
        }
    }

    #[test]
    fn only_calls_of_version_two_are_calls() {
        let mut out = Vec::new();
        CallHeader { xid: 1, program: 2, version: 3, procedure: 4, credential: Auth::NONE, verifier: Auth::NONE }
            .encode(&mut out);
        out[11] = 3;
        assert_eq!(CallHeader::parse(&out), Err(CallHeaderError::RpcVersion(3)));
        out[7] = 1;
        assert_eq!(CallHeader::parse(&out), Err(CallHeaderError::Garbage));
    }

    #[test]
    fn only_data_without_a_service_is_unwrapped() {
        let gss = |words: [u32; 4]| words.map(u32::to_be_bytes).concat();
        for (words, protection) in [
            ([1, 0, 55, 1], Protection::None),
            ([1, 0, 55, 2], Protection::Wrapped),
            ([1, 0, 55, 3], Protection::Wrapped),
            ([1, 1, 0, 1], Protection::Wrapped),
            ([2, 0, 55, 1], Protection::Wrapped),
        ] {
            let body = gss(words);
            assert_eq!(Auth { flavor: RPCSEC_GSS, body: &body }.protection(), protection, "{words:?}");
            assert_eq!(Auth { flavor: RPCSEC_GSS, body: &body[..15] }.protection(), Protection::Wrapped);
            assert_eq!(Auth { flavor: 1, body: &body }.protection(), Protection::None);
        }
    }
}
