//! What its plain stream means for a connection.

use uwarp_tcp::State;

use crate::api::command::DisconnectReason;
use crate::api::ends::StreamFailure;
use crate::connection::Connection;
use crate::connection::ending::CLOSING_LIMIT;
use crate::connection::phase::{Phase, StreamLimit};
use crate::connection::streaming::Streaming;

impl Connection {
    /// Sets the space that the owner can take, which becomes the window.
    #[inline]
    pub(crate) fn set_receive_space(&mut self, space: u32) {
        self.tcp.set_receive_space(space);
    }

    /// The deadline of a connection has passed. True if this is a stream that its application has dropped, and the peer
    /// has since taken its octets at [`Limits::least_rate`](crate::config::Limits::least_rate). Then the time limit
    /// starts again, so a slow peer gets all of them.
    pub(crate) fn was_taken_since_last(&mut self, least_rate: u32) -> bool {
        let acknowledged = self.tcp.octets_acknowledged();
        let Some(stream) = &mut self.stream else { return false };
        let taken = acknowledged - std::mem::replace(&mut stream.taken, acknowledged);
        stream.opened && stream.receive.is_closed() && taken >= CLOSING_LIMIT.as_secs() * u64::from(least_rate)
    }

    /// The context is closing: nothing written from now on is sent. False: the stream was not open yet.
    pub(crate) fn end_writes(&mut self) -> bool {
        match &mut self.stream {
            Some(stream) if !stream.opened => false,
            Some(stream) => {
                stream.finishing = true;
                self.quiet = false;
                true
            }
            None => true,
        }
    }

    /// The connection of a stream is over: reports why.
    pub(crate) fn plain_stream_over(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        match self.end {
            Some(DisconnectReason::Reset) if !stream.opened => stream.fail(StreamFailure::Refused),
            Some(DisconnectReason::Reset) => stream.fail(StreamFailure::Reset),
            Some(DisconnectReason::TimedOut) => stream.fail(StreamFailure::TimedOut),
            Some(DisconnectReason::Aborted) => stream.fail(StreamFailure::Aborted),
            Some(DisconnectReason::LocalError(_)) => stream.fail(StreamFailure::Fatal),
            _ if stream.peer_closed => {}
            _ => stream.fail(StreamFailure::ShuttingDown),
        }
    }

    /// Whether we opened it and the handshake is not done.
    pub(crate) fn is_opening(&self) -> bool {
        match &self.phase {
            Phase::Initiating(_) => true,
            Phase::Stream(_) => self.tcp.state() == State::SynSent,
            _ => false,
        }
    }

    /// The space that its owner can take. Without a stream, TCP's own limit is the only one.
    #[inline]
    pub(crate) fn owner_space(&mut self) -> u32 {
        self.stream.as_mut().map_or(u32::MAX, Streaming::space)
    }

    /// Makes the stream plain again after a rejection, behind the Reply. False: it was never plain.
    pub(crate) fn resume_stream(&mut self) -> bool {
        if !self.stream.as_ref().is_some_and(|stream| stream.is_lent()) {
            return false;
        }
        self.phase.enter(Phase::Stream(StreamLimit::None));
        self.quiet = false;
        true
    }

    /// MPA has started for good: the plain stream is over.
    pub(crate) fn leave_stream(&mut self, settings: &uwarp_tcp::Config) {
        if self.stream.take().is_some() {
            self.set_receive_space(u32::MAX);
            self.tcp.set_fin_wait_2(settings.fin_wait_2);
            // The application chose Nagle for its own octets. Records of an RDMA stream never wait for each other.
            self.tcp.set_nagle(false);
        }
    }
}
