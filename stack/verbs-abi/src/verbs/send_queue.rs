//! The send queue of a queue pair, as programs see it.

use crate::errno::{EINVAL, ENOMEM, Errno};
use std::sync::atomic::{AtomicU32, Ordering};
use uwarp::{SendHalf, SendRequest, StagedRequests};

/// What a send queue of datagrams knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The queue pair's key.
    pub(crate) key: u32,
    /// Octets of a message.
    pub(crate) octets: u64,
}

/// A send queue. As in the verbs, a signalled request holds its place until the program has polled its completion: a
/// completion queue with room for the places of all its send queues and receives does not overflow.
pub(crate) struct SendQueue {
    pub(crate) half: SendHalf,
    /// Places; 0 while it is closed.
    depth: u32,
    /// Places while it is open.
    full_depth: u32,
    signal_all: bool,
    /// Signalled requests that were posted. Like `taken`, it wraps around.
    signalled: u32,
    taken: &'static AtomicU32,
    /// Of a queue pair of datagrams.
    pub(crate) datagrams: Option<Limits>,
}

impl SendQueue {
    /// A queue of `depth` places. `taken`: the counter of its queue pair.
    pub(crate) fn new(half: SendHalf, depth: u32, signal_all: bool, taken: &'static AtomicU32) -> SendQueue {
        let signalled = taken.load(Ordering::Acquire);
        SendQueue { half, depth, full_depth: depth, signal_all, signalled, taken, datagrams: None }
    }

    /// The queue pair is reset, and its completions are purged.
    pub(crate) fn reset(&mut self) {
        self.signalled = self.taken.load(Ordering::Acquire);
    }

    /// Takes no requests before it is opened: the queue pair is not ready to send.
    pub(crate) fn close(&mut self) {
        self.depth = 0;
    }

    /// Takes requests again.
    pub(crate) fn open(&mut self) {
        self.depth = self.full_depth;
    }

    /// Why requests have no place.
    #[cold]
    pub(crate) fn refusal(&self) -> Errno {
        if self.depth == 0 { EINVAL } else { ENOMEM }
    }

    /// Whether so many more requests have a place.
    #[inline]
    pub(crate) fn has_places(&self, requests: usize) -> bool {
        // Flushed requests complete even without the flag, so more may be taken than was counted.
        let held = self.signalled.wrapping_sub(self.taken.load(Ordering::Acquire)).cast_signed();
        i64::from(held) + requests as i64 <= i64::from(self.depth)
    }

    /// Posts what `fill` gives, all of it or nothing.
    #[inline]
    pub(crate) fn post_whole(
        &mut self,
        fill: impl FnOnce(&mut Batch<'_, '_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut signalled = 0;
        self.half.post_whole(|requests| {
            let mut batch = Batch { requests, signal_all: self.signal_all, signalled: 0 };
            fill(&mut batch)?;
            signalled = batch.signalled;
            Ok::<_, Errno>(())
        })?;
        self.signalled = self.signalled.wrapping_add(signalled);
        Ok(())
    }
}

/// What takes requests.
pub(crate) trait Post {
    /// Takes one.
    fn post(&mut self, request: SendRequest<'_>, is_signalled: bool) -> Result<(), Errno>;
}

/// Each is posted at once, if it has a place.
impl Post for SendQueue {
    #[inline]
    fn post(&mut self, request: SendRequest<'_>, is_signalled: bool) -> Result<(), Errno> {
        if !self.has_places(1) {
            return Err(self.refusal());
        }
        self.half.post(&[request]).map_err(|error| error.reason)?;
        self.signalled = self.signalled.wrapping_add(u32::from(is_signalled | self.signal_all));
        Ok(())
    }
}

/// Requests that are posted together. Whoever makes it has seen to their places.
pub(crate) struct Batch<'a, 'b> {
    requests: &'a mut StagedRequests<'b>,
    signal_all: bool,
    signalled: u32,
}

impl Post for Batch<'_, '_> {
    #[inline]
    fn post(&mut self, request: SendRequest<'_>, is_signalled: bool) -> Result<(), Errno> {
        self.requests.push(&request)?;
        self.signalled += u32::from(is_signalled | self.signal_all);
        Ok(())
    }
}
