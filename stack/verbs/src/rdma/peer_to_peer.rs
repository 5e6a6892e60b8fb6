//! Who may send first.

use uwarp_engine::command::ReadyToReceiveKinds;

/// Peer-to-peer start-up (RFC 6581 §9.2): whether the responder may send first. The engine then opens the stream with
/// one of the given ready-to-receive indications, which takes nothing of either side's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerToPeer {
    /// Client-server: the responder is silent until this side has sent something.
    #[default]
    Never,
    /// Peer-to-peer with a peer that knows it, client-server with another:
    /// [`Established::peer_to_peer`](crate::Established#structfield.peer_to_peer) tells which. A responder that knows
    /// it and understands none of the indications is no such peer: there is no connection.
    Prefer(ReadyToReceiveKinds),
    /// Peer-to-peer, or no connection.
    Require(ReadyToReceiveKinds),
}

impl PeerToPeer {
    /// The indications, if there is to be one.
    pub const fn kinds(self) -> Option<ReadyToReceiveKinds> {
        match self {
            Self::Never => None,
            Self::Prefer(kinds) | Self::Require(kinds) => Some(kinds),
        }
    }
}
