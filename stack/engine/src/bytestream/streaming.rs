//! The engine's part of a plain stream.

use crate::bytestream::conversion::Lent;
use crate::bytestream::ends::{Interest, StreamFailure, StreamSetup, StreamShared};
use std::sync::Arc;
use uwarp_memory::kernels;
use uwarp_ring::{ByteConsumer, ByteProducer};

/// A plain stream.
#[derive(Debug)]
pub(crate) struct Streaming {
    /// Received octets go here.
    pub(crate) receive: ByteProducer,
    /// Octets to be sent come from here.
    pub(crate) send: ByteConsumer,
    pub(crate) shared: Arc<StreamShared>,
    /// The application's part, while MPA starts up.
    pub(crate) lent: Option<Box<Lent>>,
    /// What the application is to be woken for at the end of the turn.
    pub(crate) wakeup: Interest,
    /// The connection was opened.
    pub(crate) opened: bool,
    /// Nothing more is taken from the application: what lies in its ring is the last.
    pub(crate) finishing: bool,
    /// TCP was closed on our side.
    pub(crate) closed: bool,
    /// The peer has closed its side.
    pub(crate) peer_closed: bool,
    /// Octets came after the application had left.
    pub(crate) unread: bool,
    /// What the peer had acknowledged when the limit of a stream without an application was set.
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

    /// Whether it is open in both directions, and in its application's hands.
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

    /// Whether something that was written is not with TCP yet.
    pub(crate) fn has_text(&mut self) -> bool {
        self.send.available() > 0
    }

    /// Whether the application has left, and octets that it never read.
    pub(crate) fn has_lost(&mut self) -> bool {
        self.receive.is_closed() && (self.unread || self.receive.free() < self.receive.capacity())
    }

    /// What was told of urgent data is over: the octets up to here have another reader.
    pub(crate) fn forget_urgent(&self) {
        self.shared.set_urgent(self.receive.position());
    }

    /// What the ring can take. Looks at the application's cursor only when that may matter.
    #[inline]
    pub(crate) fn space(&mut self) -> u32 {
        if self.receive.is_closed() {
            // Nobody reads: what comes is thrown away.
            return u32::MAX;
        }
        let known = self.receive.known_free();
        let free = if known * 2 < self.receive.capacity() { self.receive.free() } else { known };
        free as u32
    }

    /// Asks for what a received segment and its answer touch.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.receive.places().into_iter().chain(self.send.places()).for_each(kernels::prefetch_line);
        kernels::prefetch(&*self.shared);
    }

    /// Whether a segment that owes no answer leaves nothing to do: nothing waits in the application's ring.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.send.known() == 0 && !self.finishing
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        if !self.peer_closed {
            // Whoever had a better reason has said so.
            self.shared.fail(StreamFailure::Fatal);
        }
        self.receive.close();
        self.shared.fire(Interest::BOTH.and(Interest::URGENT));
    }
}
