//! The ready list.

use std::collections::VecDeque;

use uwarp_tcp::Instant;

use crate::connection::{Connection, Connections};
use crate::link::port::Buffer;

impl Connection {
    /// Puts the connection on the ready list.
    #[inline]
    pub(crate) fn schedule(&mut self, ready: &mut VecDeque<u32>) {
        if !self.scheduled {
            self.scheduled = true;
            ready.push_back(self.index);
        }
    }
}

impl<B: Buffer> Connections<B> {
    /// Records that a connection waits for a transmit buffer and holds none that an acknowledgment could free.
    #[cold]
    pub(crate) fn note_starved(&mut self) {
        self.starved = true;
    }

    /// Makes every connection find out whether its peer is there. Probes show at once what a keep-alive shows later.
    pub(crate) fn probe(&mut self, now: Instant) {
        for (_, connection) in self.table.disturb_all() {
            connection.tcp.link_lost(now);
            connection.schedule(&mut self.ready);
        }
    }

    /// Puts the connection at `index` on the ready list. It may be gone: the doorbell of a stream can be late.
    pub(crate) fn schedule_index(&mut self, index: u32) {
        if let Some((connection, _)) = self.table.get_with_mark(index) {
            connection.schedule(&mut self.ready);
        }
    }
}
