//! What a program has set of an rsocket.

use libc::{c_int, linger};
use std::time::Duration;

/// What a connection is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Requests of its send queue.
    pub(crate) requests: u16,
    /// Messages that the peer may send before this side has read one.
    pub(crate) credits: u16,
    /// Octets of the ring for each direction.
    pub(crate) send_buffer: usize,
    pub(crate) receive_buffer: usize,
    /// Memory of the peer's program that can be mapped at a time.
    pub(crate) maps: u16,
}

/// What a program has set, and asks for again.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) sizes: Sizes,
    /// How long calls wait; none: without a limit.
    pub(crate) receive_limit: Option<Duration>,
    pub(crate) send_limit: Option<Duration>,
    /// IPV6_V6ONLY.
    pub(crate) one_version: bool,
    pub(crate) linger: linger,
    /// TCP_KEEPIDLE, RDMA_INLINE.
    pub(crate) keep_idle: c_int,
    pub(crate) inline: c_int,
    /// Those that change nothing here: level, name, value.
    switches: Vec<(c_int, c_int, c_int)>,
}

impl Default for Options {
    /// As rdma-core has them.
    fn default() -> Self {
        let buffer = 1 << 17;
        Options {
            sizes: Sizes { requests: 384, credits: 384, send_buffer: buffer, receive_buffer: buffer, maps: 0 },
            receive_limit: None,
            send_limit: None,
            one_version: false,
            linger: linger { l_onoff: 0, l_linger: 0 },
            keep_idle: 7200,
            inline: 64,
            switches: Vec::new(),
        }
    }
}

impl Options {
    /// Closing drops what the peer does not have.
    pub(crate) fn is_abrupt(&self) -> bool {
        self.linger.l_onoff != 0 && self.linger.l_linger == 0
    }

    /// The value of an option that changes nothing here.
    pub(crate) fn kept(&self, level: c_int, name: c_int) -> c_int {
        self.switches.iter().find(|(of, kept, _)| (*of, *kept) == (level, name)).map_or(0, |(.., value)| *value)
    }

    pub(crate) fn keep(&mut self, level: c_int, name: c_int, value: c_int) {
        self.switches.retain(|(of, kept, _)| (*of, *kept) != (level, name));
        self.switches.push((level, name, value));
    }
}
