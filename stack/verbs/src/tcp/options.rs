//! Options of plain streams.

use crate::config::Congestion;
use std::io::{self, ErrorKind};
use std::time::Duration;
use uwarp_engine::stream::{MAX_STREAM_BUFFER, MIN_STREAM_BUFFER, StreamOptions};

/// Options of a plain stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpStreamOptions {
    /// Most octets that wait to be sent, 4 KiB to 1 GiB; rounded up to a power of two.
    pub send_buffer: usize,
    /// Most octets that wait to be read, which is the largest window offered; as `send_buffer`.
    pub receive_buffer: usize,
    /// Send small segments even while others are unacknowledged: no Nagle (RFC 9293 §3.7.4).
    pub nodelay: bool,
    /// Congestion control; `None`: the context's.
    pub congestion: Option<Congestion>,
    /// Time limit of an open's handshake.
    pub connect_timeout: Duration,
    /// Local TCP port of an open; `None`: the engine chooses.
    pub local_port: Option<u16>,
}

impl Default for TcpStreamOptions {
    /// 256 KiB each way, no Nagle, ten seconds for the handshake.
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

    /// Sets the time limit of the handshake.
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
            congestion: self.congestion.map(crate::runtime::settings::tcp_congestion),
        }
    }
}
