//! Wishes about plain streams.

use crate::config::Congestion;
use std::io::{self, ErrorKind};
use std::time::Duration;
use uwarp_engine::stream::{MAX_STREAM_BUFFER, MIN_STREAM_BUFFER, StreamOptions};

/// Wishes about a plain stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpStreamOptions {
    /// Octets that may wait to be sent: a power of two, or rounded up to one; 4 KiB to 1 GiB.
    pub send_buffer: usize,
    /// Octets that may wait to be read, and the largest window that is offered: as `send_buffer`.
    pub receive_buffer: usize,
    /// Small segments leave although others are not acknowledged: no Nagle's rule (RFC 9293 §3.7.4).
    pub nodelay: bool,
    /// Congestion control, if not the context's.
    pub congestion: Option<Congestion>,
    /// Limit on the handshake of an open.
    pub connect_timeout: Duration,
    /// Local TCP port of an open; `None` lets the engine choose.
    pub local_port: Option<u16>,
}

impl Default for TcpStreamOptions {
    /// 256 KiB each way, nothing held back, ten seconds for the handshake.
    fn default() -> Self {
        let StreamOptions { send_buffer, receive_buffer, nagle, .. } = StreamOptions::default();
        Self {
            send_buffer,
            receive_buffer,
            nodelay: !nagle,
            congestion: None,
            connect_timeout: Duration::from_secs(10),
            local_port: None,
        }
    }
}

impl TcpStreamOptions {
    /// Sets both buffers.
    pub fn buffers(mut self, send: usize, receive: usize) -> Self {
        self.send_buffer = send;
        self.receive_buffer = receive;
        self
    }

    /// Sets the limit on the handshake.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the congestion control.
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = Some(congestion);
        self
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        for (what, octets) in [("send buffer", self.send_buffer), ("receive buffer", self.receive_buffer)] {
            if !(MIN_STREAM_BUFFER..=MAX_STREAM_BUFFER).contains(&octets) {
                return Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("the {what} has {octets} octets: choose {MIN_STREAM_BUFFER} to {MAX_STREAM_BUFFER}"),
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn engine_options(&self) -> StreamOptions {
        StreamOptions {
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
            nagle: !self.nodelay,
            congestion: self.congestion.map(crate::open::tcp_congestion),
        }
    }
}
