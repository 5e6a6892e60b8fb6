//! Listeners, and the answers to SYNs.

mod syn;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uwarp_wire::address::IpAddress;

use crate::api::command::{ConnectionRequest, EventSink, ListenerId, Watch};
use crate::bytestream::ends::{IncomingStream, StreamOptions};
use crate::connection::shares::Silent;

/// Time limit of a plain stream's handshake: a little longer than Linux retransmits its SYN-ACK (`tcp_synack_retries`,
/// 63 s). If the peer's ACK is lost and the peer stays silent, it considers the connection open and does not retry;
/// further SYN-ACKs find out. The number of retransmissions cannot be the limit, since repeated SYNs delay them.
const STREAM_OPENING: Duration = Duration::from_secs(64);

/// A listening TCP port.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    /// The own address that it listens on, if not all.
    pub(crate) address: Option<IpAddress>,
    pub(crate) backlog: u32,
    /// Connections not yet accepted or rejected; with plain streams, those in their handshake.
    pub(crate) pending: u32,
    /// Those of them in their handshake.
    pub(crate) half_open: u32,
    /// The peers whose connections hold places of the backlog.
    pub(crate) silent: Silent,
    pub(crate) requests: Requests,
}

/// The kind of a listener, and where its connections go.
#[derive(Debug)]
pub(crate) enum Requests {
    /// RDMA streams, once their MPA Request has come.
    Rdma {
        requests: EventSink<ConnectionRequest>,
        /// Where they go instead, once it is set.
        watch: Watch,
    },
    /// Plain streams, once TCP is open.
    Streams {
        incoming: EventSink<IncomingStream>,
        options: StreamOptions,
        /// Streams that wait to be taken, on all engines.
        waiting: Arc<AtomicU32>,
    },
}

impl Listener {
    /// Whether it takes what comes to an own address.
    pub(crate) fn is_at(&self, address: IpAddress) -> bool {
        self.address.is_none_or(|own| own == address)
    }

    /// How many connections wait for the application.
    fn waiting(&self) -> u32 {
        let streams = match &self.requests {
            Requests::Rdma { .. } => 0,
            Requests::Streams { waiting, .. } => waiting.load(Relaxed),
        };
        self.pending.saturating_sub(self.half_open).saturating_add(streams)
    }
}
