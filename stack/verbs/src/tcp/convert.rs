//! From a plain stream to RDMA.

use super::TcpStream;
use crate::connection::{self, ConnectOptions, ConnectRequest, Connecting, Established};
use crate::core::NoReply;
use crate::error::{ConnectError, Error};
use crate::queue_pair::QueuePairControl;
use crossbeam::channel::{Receiver, bounded};
use std::time::{Duration, Instant};
use uwarp_engine::command::{Command, ConnectionRequest, ConversionParameters, ConversionRole, EventSink};
use uwarp_engine::stream::StreamEnds;

/// How long the engine may take to give a stream back.
const RETURN_LIMIT: Duration = Duration::from_secs(5);

/// A plain stream did not become an RDMA stream.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConversionError {
    /// Why.
    #[source]
    pub error: Error,
    /// The stream, if it can go on: after a rejection, and when nothing was begun.
    pub stream: Option<Box<TcpStream>>,
}

impl ConversionError {
    fn new(error: Error, stream: Option<TcpStream>) -> Self {
        Self { error, stream: stream.map(Box::new) }
    }
}

/// A stream that was lent to the engine: what to build it from again.
#[derive(Debug)]
pub(crate) struct Lent {
    returned: Receiver<StreamEnds>,
    stream: super::Rest,
}

impl Lent {
    /// The stream, if the engine gives its part back: it does so, or drops it, before long.
    pub(crate) fn back(self) -> Option<TcpStream> {
        let deadline = Instant::now().checked_add(RETURN_LIMIT);
        let ends = self.stream.shared.receive(&self.returned, deadline).ok()?;
        Some(TcpStream { ends, rest: self.stream })
    }
}

impl TcpStream {
    /// Turns the stream into an RDMA stream of an idle queue pair, as MPA's initiator, and waits until it is in full
    /// operation. Both ends must have agreed on this by what they wrote: what was written goes out first, then the MPA Request
    /// (RFC 5044 §7.1); octets that have not been read are taken for MPA's. The options' local port means nothing here.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason. After a rejection the stream is in the error, and usable behind the peer's Reply.
    pub fn into_initiator(
        self,
        queue_pair: &mut QueuePairControl,
        options: ConnectOptions,
    ) -> Result<Established, ConversionError> {
        let shared = std::sync::Arc::clone(&self.rest.shared);
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

    /// Turns the stream into one that awaits an MPA Request, as MPA's responder, and waits for that. Both ends must have
    /// agreed on this by what they wrote: octets that have not been read are taken for MPA's. The request is accepted with a
    /// queue pair, or rejected with [`ConnectRequest::reject_to_stream`], which gives the stream back.
    ///
    /// # Errors
    /// [`Error::Accept`] if the peer is silent, gone, or speaks something else: the connection is reset then.
    pub fn into_responder(self, timeout: Duration) -> Result<ConnectRequest, ConversionError> {
        let shared = std::sync::Arc::clone(&self.rest.shared);
        let peer = self.peer_addr();
        if let Err(error) = shared.check_here().and_then(|()| self.check_whole()) {
            return Err(ConversionError::new(error, Some(self)));
        }
        let (sender, requests) = bounded::<ConnectionRequest>(1);
        let lent = self.lend(ConversionRole::Responder { requests: EventSink::new(sender, None), timeout });
        let deadline = Instant::now().checked_add(timeout.saturating_add(Duration::from_secs(2)));
        match shared.receive(&requests, deadline) {
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

    fn check_whole(&self) -> Result<(), Error> {
        if self.ends.is_finished() || !self.ends.is_open() || self.ends.failure().is_some() {
            return Err(Error::State { state: "not open in both directions", expected: "convert a stream that is" });
        }
        Ok(())
    }

    /// Hands the stream to its engine.
    fn lend(self, role: ConversionRole) -> Lent {
        let (sender, returned) = bounded(1);
        let TcpStream { ends, rest } = self;
        let handle = ends.handle().unwrap_or(u64::MAX);
        let parameters = ConversionParameters { handle, ends, returned: sender, role };
        rest.shared.engines[rest.engine].command(Command::ConvertStream(Box::new(parameters)));
        Lent { returned, stream: rest }
    }
}
