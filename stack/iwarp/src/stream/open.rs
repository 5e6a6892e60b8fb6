//! Messages of the peer of which a segment has arrived, but not the last one.

use uwarp_wire::ddp::Stag;

use crate::transmit::SendKind;

/// The open messages of a stream: at most one of each kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenMessages {
    pub(crate) send: Option<OpenSend>,
    pub(crate) tagged: OpenTagged,
    /// The part of a segmented Commit Request received so far, at most as long as the largest request.
    pub(crate) request: Option<Vec<u8>>,
}

impl OpenMessages {
    /// Whether a message has begun but not ended.
    pub(crate) fn any(&self) -> bool {
        self.send.is_some() || self.tagged != OpenTagged::None || self.request.is_some()
    }
}

/// The open Send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenSend {
    pub(crate) kind: SendKind,
    /// Octets of the open message so far.
    pub(crate) received: u32,
}

/// The open tagged message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpenTagged {
    #[default]
    None,
    Write(Stag),
    ReadResponse,
}
