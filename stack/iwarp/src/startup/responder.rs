//! The side that waits for a Request.

use uwarp_wire::mpa::{EnhancedData, FrameKind, NOT_NEGOTIATED, StartupFrame};

use super::{Collector, OptionsError, Parameters, ReadLimits, ReadyToReceiveKinds, Role, StartupError, emit};

/// How a Responder treats Requests, whatever the consumer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderOptions {
    /// Request CRCs. Only an administrator should disable this; a peer that requests CRCs gets them anyway.
    pub crc: bool,
    /// Request markers in what is received.
    pub markers: bool,
    /// Answer enhanced Requests (RFC 6581). Otherwise they close TCP.
    pub enhanced: bool,
    /// The indications that this side understands when the Initiator requests peer-to-peer. At least one.
    pub ready_to_receive: ReadyToReceiveKinds,
}

impl Default for ResponderOptions {
    fn default() -> ResponderOptions {
        ResponderOptions { crc: true, markers: false, enhanced: true, ready_to_receive: ReadyToReceiveKinds::ALL }
    }
}

/// A Request, for the consumer to accept or reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// Revision of the Request: 1 or 2.
    pub revision: u8,
    /// The peer asks for CRCs.
    pub crc: bool,
    /// The peer wants markers in what it receives.
    pub markers: bool,
    /// IRD and ORD of the peer and its peer-to-peer flags, if the Request is enhanced.
    pub enhanced: Option<EnhancedData>,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

impl PeerRequest {
    /// Reads that the peer serves concurrently; `None` if it does not say. 0x3FFF leaves that to the consumers.
    pub fn ird(&self) -> Option<u16> {
        self.enhanced.map(|data| data.ird)
    }

    /// Reads that the peer wants outstanding; `None` if it does not say.
    pub fn ord(&self) -> Option<u16> {
        self.enhanced.map(|data| data.ord)
    }
}

/// Why a Request could not be accepted. The Responder still waits for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// The options do not fit a frame.
    Options(OptionsError),
    /// The peer serves fewer reads than [`ReadLimits::minimum_ord`]. A rejection tells it how many are needed.
    PeerIrdTooSmall,
    /// There is no Request (yet, or no longer).
    NoRequest,
}

impl From<OptionsError> for AcceptError {
    fn from(error: OptionsError) -> AcceptError {
        AcceptError::Options(error)
    }
}

impl core::fmt::Display for AcceptError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AcceptError::Options(error) => error.fmt(f),
            AcceptError::PeerIrdTooSmall => {
                f.write_str("the peer serves fewer concurrent reads (IRD) than the required minimum (ORD)")
            }
            AcceptError::NoRequest => f.write_str("there is no connection request to answer"),
        }
    }
}

impl std::error::Error for AcceptError {}

#[derive(Clone, Debug)]
enum State {
    AwaitingRequest(Collector),
    Deciding(PeerRequest),
    Answered,
}

/// MPA start-up as the Responder.
#[derive(Clone, Debug)]
pub struct Responder {
    options: ResponderOptions,
    state: State,
}

impl Responder {
    /// Waits for a Request.
    pub fn new(options: ResponderOptions) -> Responder {
        Responder { options, state: State::AwaitingRequest(Collector::default()) }
    }

    /// Processes octets of the stream, and returns the Request once it is complete. Octets behind it, now or before the
    /// answer, violate the protocol.
    ///
    /// # Errors
    /// [`StartupError`]: close TCP.
    pub fn receive(&mut self, octets: &[u8]) -> Result<Option<&PeerRequest>, StartupError> {
        if let State::AwaitingRequest(collector) = &mut self.state {
            let options = &self.options;
            let parsed = collector.feed(octets, |octets| {
                let parsed = StartupFrame::parse(FrameKind::Request, octets).map_err(StartupError::of)?;
                match parsed {
                    Some((frame, len)) => Ok(Some((request(options, &frame)?, len))),
                    None => Ok(None),
                }
            })?;
            let Some((request, used)) = parsed else {
                return Ok(None);
            };
            if used < octets.len() {
                return Err(StartupError::OctetsAfterRequest);
            }
            self.state = State::Deciding(request);
        } else if !octets.is_empty() {
            return Err(StartupError::OctetsAfterRequest);
        }
        Ok(self.request())
    }

    /// Sets the indications that the answer may flag, in place of those in [`ResponderOptions`].
    pub fn set_ready_to_receive(&mut self, kinds: ReadyToReceiveKinds) {
        self.options.ready_to_receive = kinds;
    }

    /// Sets whether the answer requests markers, in place of [`ResponderOptions`].
    pub fn set_markers(&mut self, markers: bool) {
        self.options.markers = markers;
    }

    /// The Request that awaits a decision.
    pub fn request(&self) -> Option<&PeerRequest> {
        match &self.state {
            State::Deciding(request) => Some(request),
            State::AwaitingRequest(_) | State::Answered => None,
        }
    }

    /// Accepts: returns the Reply frame, with which full operation begins, and the agreed parameters.
    ///
    /// # Errors
    /// [`AcceptError`]; the Request can still be accepted with other limits, or rejected.
    pub fn accept(&mut self, limits: &ReadLimits, private_data: &[u8]) -> Result<(Vec<u8>, Parameters), AcceptError> {
        let request = self.request().ok_or(AcceptError::NoRequest)?;
        limits.check()?;
        let mut parameters = Parameters {
            role: Role::Responder,
            revision: request.revision,
            crc: self.options.crc || request.crc,
            transmit_markers: request.markers,
            receive_markers: self.options.markers,
            ird: limits.ird,
            ord: limits.ord,
            peer_ird: request.ird(),
            peer_ord: request.ord(),
            ready_to_receive: None,
            expects_ready_to_receive: false,
            expects_ready_by_send: false,
            private_data: Vec::new(),
        };
        let mut enhanced = None;
        if let Some(data) = &request.enhanced {
            let kinds = self.kinds(data).for_limits(limits);
            parameters.expects_ready_to_receive = data.peer_to_peer;
            parameters.expects_ready_by_send = data.peer_to_peer && data.ready_by_send && kinds.send;
            if data.ord != NOT_NEGOTIATED {
                parameters.ird = limits.ird.max(data.ord.min(limits.maximum_ird));
            }
            if kinds.read {
                parameters.ird = parameters.ird.max(1);
            }
            if data.ird != NOT_NEGOTIATED {
                parameters.ord = limits.ord.min(data.ird);
                if parameters.ord < limits.minimum_ord {
                    return Err(AcceptError::PeerIrdTooSmall);
                }
            }
            enhanced = Some(kinds.with_limits(
                if data.ord == NOT_NEGOTIATED { NOT_NEGOTIATED } else { parameters.ird },
                if data.ird == NOT_NEGOTIATED { NOT_NEGOTIATED } else { parameters.ord },
            ));
        }
        let frame = emit(&StartupFrame {
            kind: FrameKind::Reply,
            markers: self.options.markers,
            crc: parameters.crc,
            reject: false,
            revision: request.revision,
            enhanced,
            private_data,
        })?;
        if let State::Deciding(request) = core::mem::replace(&mut self.state, State::Answered) {
            parameters.private_data = request.private_data;
        }
        Ok((frame, parameters))
    }

    /// Rejects: returns the Reply frame. It tells an enhanced peer the limits that would be accepted. TCP stays open
    /// for the consumer (RFC 5044 §7.1.2).
    ///
    /// # Errors
    /// [`AcceptError`]; the Request still awaits a decision.
    pub fn reject(&mut self, wanted: &ReadLimits, private_data: &[u8]) -> Result<Vec<u8>, AcceptError> {
        let request = self.request().ok_or(AcceptError::NoRequest)?;
        wanted.check()?;
        let enhanced = request.enhanced.as_ref().map(|data| self.kinds(data).with_limits(wanted.ird, wanted.ord));
        let frame = emit(&StartupFrame {
            kind: FrameKind::Reply,
            markers: self.options.markers,
            crc: self.options.crc || request.crc,
            reject: true,
            revision: request.revision,
            enhanced,
            private_data,
        })?;
        self.state = State::Answered;
        Ok(frame)
    }

    /// The indications that the Reply flags. None for a client-server Request. Otherwise those that both sides have, or
    /// if there is none, those of this side, so that the Initiator sees why start-up fails.
    fn kinds(&self, request: &EnhancedData) -> ReadyToReceiveKinds {
        if !request.peer_to_peer {
            return ReadyToReceiveKinds::NONE;
        }
        let own = match self.options.ready_to_receive {
            kinds if kinds.is_empty() => ReadyToReceiveKinds { write: true, ..kinds },
            kinds => kinds,
        };
        match own.and(ReadyToReceiveKinds::of(request)) {
            common if common.is_empty() => own,
            common => common,
        }
    }
}

fn request(options: &ResponderOptions, frame: &StartupFrame<'_>) -> Result<PeerRequest, StartupError> {
    if frame.revision == 0 {
        return Err(StartupError::Revision);
    }
    if frame.enhanced.is_some() && !options.enhanced {
        return Err(StartupError::EnhancedNotSupported);
    }
    Ok(PeerRequest {
        revision: frame.revision,
        crc: frame.crc,
        markers: frame.markers,
        enhanced: frame.enhanced,
        private_data: frame.private_data.to_vec(),
    })
}
