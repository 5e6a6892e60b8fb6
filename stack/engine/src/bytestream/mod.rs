//! Plain TCP streams: octets between segments and an application's rings, and conversion to RDMA and back.

pub(crate) mod conversion;
pub(crate) mod transfer;

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Connections whose applications are woken at the end of the turn.
    pub(crate) wakeups: Vec<u32>,
}
