//! The engine's half of a plain stream.

use std::sync::Arc;

use crossbeam::channel::Sender;
use uwarp_memory::kernels;
use uwarp_ring::{ByteConsumer, ByteProducer};

use crate::api::ends::{Interest, StreamEnds, StreamFailure, StreamSetup, StreamShared};

/// The engine's half of a plain stream.
#[derive(Debug)]
pub(crate) struct Streaming {
    /// Ring for received octets.
    pub(crate) receive: ByteProducer,
    /// Ring of octets to send.
    pub(crate) send: ByteConsumer,
    pub(crate) shared: Arc<StreamShared>,
    /// The application's half, while MPA starts up.
    pub(crate) lent: Option<Box<Lent>>,
    /// What the application is woken for at the end of the turn.
    pub(crate) wakeup: Interest,
    /// The connection was established.
    pub(crate) opened: bool,
    /// The application writes no more: the ring's contents are the last octets.
    pub(crate) finishing: bool,
    /// Our side of TCP is closed.
    pub(crate) closed: bool,
    /// The peer's side of TCP is closed.
    pub(crate) peer_closed: bool,
    /// Octets arrived after the application had left.
    pub(crate) unread: bool,
    /// Octets that the peer had acknowledged when the time limit of an abandoned stream was last set.
    pub(crate) taken: u64,
}

impl Streaming {
    pub(crate) fn new(setup: StreamSetup) -> Streaming {
        Streaming {
            receive: setup.receive,
            send: setup.send,
            shared: setup.shared,
            lent: None,
            wakeup: Interest::NONE,
            opened: false,
            finishing: false,
            closed: false,
            peer_closed: false,
            unread: false,
            taken: 0,
        }
    }

    pub(crate) fn fail(&self, failure: StreamFailure) {
        self.shared.fail(failure);
    }

    /// Whether it is open in both directions and not lent.
    pub(crate) fn is_whole(&self) -> bool {
        self.opened && !self.closed && !self.finishing && !self.peer_closed && self.lent.is_none()
    }

    pub(crate) fn lend(&mut self, lent: Lent) {
        self.lent = Some(Box::new(lent));
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    pub(crate) fn take_lent(&mut self) -> Option<Lent> {
        self.lent.take().map(|lent| *lent)
    }

    /// Whether TCP lacks octets that were written.
    pub(crate) fn has_text(&mut self) -> bool {
        self.send.available() > 0
    }

    /// Whether the application left without reading everything.
    pub(crate) fn has_lost(&mut self) -> bool {
        self.receive.is_closed() && (self.unread || self.receive.free() < self.receive.capacity())
    }

    /// Ends the report of urgent data: the octets up to here have another reader.
    pub(crate) fn forget_urgent(&self) {
        self.shared.set_urgent(self.receive.position());
    }

    /// Free space of the receive ring. Reads the application's cursor only when that may matter.
    #[inline]
    pub(crate) fn space(&mut self) -> u32 {
        if self.receive.is_closed() {
            // Nobody reads: received octets are discarded.
            return u32::MAX;
        }
        let known = self.receive.known_free();
        let free = if known * 2 < self.receive.capacity() { self.receive.free() } else { known };
        free as u32
    }

    /// Prefetches what a received segment and its answer touch.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.receive.places().into_iter().chain(self.send.places()).for_each(kernels::prefetch_line);
        kernels::prefetch(&*self.shared);
    }

    /// Whether a segment that needs no answer leaves nothing to do: no octets wait in the application's ring.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.send.known() == 0 && !self.finishing
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        if !self.peer_closed {
            // A better reason, if there is one, was recorded before.
            self.shared.fail(StreamFailure::Fatal);
        }
        self.receive.close();
        self.shared.fire(Interest::BOTH.and(Interest::URGENT));
    }
}

/// The application's half of a stream while MPA starts up.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) ends: StreamEnds,
    pub(crate) returned: Sender<StreamEnds>,
}
