//! Plain TCP streams: octets between segments and an application's rings, and the way into RDMA and back.

pub(crate) mod conversion;
pub mod ends;
pub(crate) mod streaming;
pub(crate) mod transfer;

/// What all plain streams of an engine have in common.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Connections whose applications are woken at the end of the turn.
    pub(crate) wakeups: Vec<u32>,
}
