//! Conversion of a plain stream to RDMA.

use crate::error::{ConnectError, Error};
use crate::rdma::connection::{self, ConnectOptions, ConnectRequest, Connecting};
use crate::rdma::queue_pair::QueuePairControl;
use crate::runtime::core::{NoReply, Origin};
use crate::tcp::TcpStream;
use crossbeam::channel::bounded;
use std::time::{Duration, Instant};
use uwarp_engine::command::{ConnectionRequest, ConversionRole, Established, EventSink};

/// The conversion of a plain stream failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConversionError {
    /// The reason.
    #[source]
    pub error: Error,
    /// The stream, if it can continue: after a rejection, or if the conversion did not start.
    pub stream: Option<Box<TcpStream>>,
}

impl ConversionError {
    fn new(error: Error, stream: Option<TcpStream>) -> Self {
        Self { error, stream: stream.map(Box::new) }
    }
}

impl TcpStream {
    /// Converts the stream into an RDMA stream of an idle queue pair, as MPA's initiator, and waits until it is in full
    /// operation. Both ends must have agreed on this in the plain stream. What was written leaves first, then the MPA
    /// Request (RFC 5044 §7.1). Unread octets count as MPA's. The local port in the options is ignored.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason. After a rejection the error contains the stream, which continues behind the
    /// peer's Reply.
    pub fn into_initiator(
        self,
        queue_pair: &mut QueuePairControl,
        options: ConnectOptions,
    ) -> Result<Established, ConversionError> {
        let shared = std::sync::Arc::clone(self.shared());
        let (peer, timeout) = (self.peer_addr(), options.timeout);
        let prepared = shared.check_here().and_then(|()| {
            let options = connection::initiator_options(&shared, options)?;
            self.check_whole()?;
            connection::check_context(&shared, queue_pair)?;
            queue_pair.bind(Some(self.engine()))?;
            Ok(options)
        });
        let options = match prepared {
            Ok(options) => options,
            Err(error) => return Err(ConversionError::new(error, Some(self))),
        };
        queue_pair.set_connecting(options.features);
        let role = ConversionRole::Initiator { queue_pair: queue_pair.number(), options };
        let lent = self.lend(role);
        match Connecting::new(peer, false, timeout).wait(queue_pair) {
            Ok(established) => Ok(established),
            Err(error) => {
                let stream = lent.back();
                Err(ConversionError::new(error, stream))
            }
        }
    }

    /// Waits for an MPA Request on the stream, as MPA's responder. Both ends must have agreed on this in the plain
    /// stream. Unread octets count as MPA's. Accept the request with a queue pair, or reject it with
    /// [`ConnectRequest::reject_to_stream`], which returns the stream.
    ///
    /// # Errors
    /// [`Error::Accept`] if the peer is silent, gone, or sends something else. The connection is then reset.
    pub fn into_responder(self, timeout: Duration) -> Result<ConnectRequest, ConversionError> {
        let shared = std::sync::Arc::clone(self.shared());
        let (peer, engine) = (self.peer_addr(), self.engine());
        if let Err(error) = shared.check_here().and_then(|()| self.check_whole()) {
            return Err(ConversionError::new(error, Some(self)));
        }
        let (sender, requests) = bounded::<ConnectionRequest>(1);
        let lent = self.lend(ConversionRole::Responder { requests: EventSink::new(sender, None), timeout });
        let deadline = Instant::now().checked_add(timeout.saturating_add(Duration::from_secs(2)));
        match shared.receive(&requests, Origin::One(engine), deadline) {
            Ok(request) => Ok(ConnectRequest::of_stream(&shared, request, lent)),
            Err(reason) => {
                let error = match reason {
                    NoReply::WrongThread => Error::WrongThread,
                    NoReply::TimedOut => Error::Accept { peer, reason: ConnectError::TimedOut(timeout) },
                    NoReply::Gone => match shared.check_alive() {
                        Err(error) => error,
                        Ok(()) => Error::Accept { peer, reason: ConnectError::Closed },
                    },
                };
                Err(ConversionError::new(error, lent.back()))
            }
        }
    }
}

impl ConnectRequest {
    /// Rejects a request that came on what was a plain stream, as [`reject`](Self::reject), and gives the stream back:
    /// it goes on behind the MPA Reply.
    ///
    /// # Errors
    /// The request came to a listener, or the connection is over.
    pub fn reject_to_stream(mut self, private_data: &[u8]) -> Result<TcpStream, Error> {
        self.check_private_data(private_data)?;
        self.shared.check_here()?;
        let peer = self.peer();
        let Some(lent) = self.lent.take() else {
            return Err(Error::State { state: "made by a listener", expected: "reject it without a stream" });
        };
        self.refuse(private_data.to_vec());
        lent.back().ok_or(Error::Accept { peer, reason: ConnectError::Closed })
    }
}
