//! The side that sends the Request.

use uwarp_wire::mpa::{EnhancedData, FrameKind, NOT_NEGOTIATED, StartupFrame};

use super::{
    Collector, OptionsError, Parameters, ReadLimits, ReadyToReceive, ReadyToReceiveKinds, Rejection, Role,
    StartupError, emit,
};
use crate::fault::Fault;

/// The MPA revision that an Initiator requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Revision {
    /// RFC 5044: no negotiation of read limits.
    One,
    /// RFC 6581, enhanced: read limits are exchanged.
    #[default]
    Two,
}

/// What an Initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitiatorOptions {
    /// The revision.
    pub revision: Revision,
    /// Request CRCs. Only an administrator should disable this; a peer that requests CRCs gets them anyway.
    pub crc: bool,
    /// Request markers in what is received.
    pub markers: bool,
    /// Limits of reads.
    pub limits: ReadLimits,
    /// Peer-to-peer with one of these indications; the empty set is client-server.
    pub ready_to_receive: ReadyToReceiveKinds,
}

impl Default for InitiatorOptions {
    fn default() -> InitiatorOptions {
        InitiatorOptions {
            revision: Revision::Two,
            crc: true,
            markers: false,
            limits: ReadLimits::default(),
            ready_to_receive: ReadyToReceiveKinds::NONE,
        }
    }
}

/// The result of the Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Full operation begins. If [`Parameters::ready_to_receive`] is set, that indication must be the first FPDU.
    Established(Parameters),
    /// The peer rejects the connection. TCP is left to the consumer.
    Rejected(Rejection),
    /// The peer accepted, but this side cannot. Full operation begins only to send the Terminate of this fault
    /// ([`Fault::InsufficientIrd`] or [`Fault::NoMatchingRtr`]); then the connection ends (RFC 6581 §9.1, §9.2).
    Refused(Parameters, Fault),
}

/// MPA start-up as the Initiator.
#[derive(Clone, Debug)]
pub struct Initiator {
    options: InitiatorOptions,
    /// Client-server will do if the peer does not know peer-to-peer.
    falls_back: bool,
    request: Vec<u8>,
    reply: Collector,
}

impl Initiator {
    /// Prepares the Request.
    ///
    /// # Errors
    /// [`OptionsError`] if the options or the private data do not fit into a frame.
    pub fn new(options: InitiatorOptions, private_data: &[u8]) -> Result<Initiator, OptionsError> {
        let limits = &options.limits;
        limits.check()?;
        let peer_to_peer = !options.ready_to_receive.is_empty();
        let (revision, enhanced) = match options.revision {
            Revision::One if peer_to_peer => return Err(OptionsError::PeerToPeer),
            Revision::One => (1, None),
            Revision::Two => {
                let (ird, ord) =
                    if limits.negotiate { (limits.ird, limits.ord) } else { (NOT_NEGOTIATED, NOT_NEGOTIATED) };
                (2, Some(options.ready_to_receive.with_limits(ird, ord)))
            }
        };
        let request = emit(&StartupFrame {
            kind: FrameKind::Request,
            markers: options.markers,
            crc: options.crc,
            reject: false,
            revision,
            enhanced,
            private_data,
        })?;
        Ok(Initiator { options, falls_back: false, request, reply: Collector::default() })
    }

    /// Goes on as client-server if the Reply to a peer-to-peer Request is one to a client-server Request: the peer does
    /// not know peer-to-peer (RFC 6581 §9.2). Otherwise that is [`Fault::NoMatchingRtr`].
    pub fn fall_back_to_client_server(&mut self) {
        self.falls_back = true;
    }

    /// The Request frame, to be sent first on the TCP connection.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Processes octets of the stream. Returns `None` until the Reply is complete; then the outcome, and how many of
    /// `octets` belong to the Reply. The octets behind it are full operation.
    ///
    /// # Errors
    /// [`StartupError`]: close TCP.
    pub fn receive(&mut self, octets: &[u8]) -> Result<Option<(Outcome, usize)>, StartupError> {
        let (options, falls_back) = (&self.options, self.falls_back);
        self.reply.feed(octets, |octets| {
            let parsed = StartupFrame::parse(FrameKind::Reply, octets).map_err(StartupError::of)?;
            match parsed {
                Some((reply, len)) => Ok(Some((outcome(options, falls_back, &reply)?, len))),
                None => Ok(None),
            }
        })
    }
}

fn outcome(options: &InitiatorOptions, falls_back: bool, reply: &StartupFrame<'_>) -> Result<Outcome, StartupError> {
    let asked = match options.revision {
        Revision::One => 1,
        Revision::Two => 2,
    };
    if reply.revision == 0 || reply.revision > asked {
        return Err(StartupError::Revision);
    }
    let peer_ird = reply.enhanced.map(|data| data.ird);
    let peer_ord = reply.enhanced.map(|data| data.ord);
    if reply.reject {
        return Ok(Outcome::Rejected(Rejection { peer_ird, peer_ord, private_data: reply.private_data.to_vec() }));
    }
    let limits = &options.limits;
    let mut parameters = Parameters {
        role: Role::Initiator,
        revision: reply.revision,
        crc: options.crc || reply.crc,
        transmit_markers: reply.markers,
        receive_markers: options.markers,
        ird: limits.ird,
        ord: limits.ord,
        peer_ird,
        peer_ord,
        ready_to_receive: None,
        expects_ready_to_receive: false,
        expects_ready_by_send: false,
        private_data: reply.private_data.to_vec(),
    };
    let mut fault = None;
    if let Some(data) = &reply.enhanced {
        if data.ird != NOT_NEGOTIATED {
            parameters.ord = limits.ord.min(data.ird);
            if parameters.ord < limits.minimum_ord {
                fault = Some(Fault::InsufficientIrd);
            }
        }
        if data.ord != NOT_NEGOTIATED && data.ord > limits.ird {
            if data.ord <= limits.maximum_ird {
                parameters.ird = data.ord;
            } else {
                fault = Some(Fault::InsufficientIrd);
            }
        }
    }
    if !options.ready_to_receive.is_empty() {
        parameters.ready_to_receive = reply.enhanced.as_ref().and_then(|data| choose(options.ready_to_receive, data));
        let is_client_server = reply.enhanced.is_none_or(|data| !data.peer_to_peer);
        if parameters.ready_to_receive.is_none() && !(falls_back && is_client_server) {
            fault = fault.or(Some(Fault::NoMatchingRtr));
        }
    }
    Ok(match fault {
        None => Outcome::Established(parameters),
        Some(fault) => Outcome::Refused(parameters, fault),
    })
}

/// The indication to send: one that both frames contain. The Write is preferred, as it costs nothing on either side;
/// the Read only if the peer serves at least one.
fn choose(own: ReadyToReceiveKinds, reply: &EnhancedData) -> Option<ReadyToReceive> {
    if !reply.peer_to_peer {
        return None;
    }
    let common = own.and(ReadyToReceiveKinds::of(reply));
    if common.write {
        Some(ReadyToReceive::Write)
    } else if common.read && reply.ird >= 1 {
        Some(ReadyToReceive::Read)
    } else if common.send {
        Some(ReadyToReceive::Send)
    } else {
        None
    }
}
