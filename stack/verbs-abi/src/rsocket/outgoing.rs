//! Bookkeeping of what is sent: a ring of octets that requests are made from, the memory that the peer has given, and
//! the credits for messages.

use crate::rsocket::protocol::{MOST_DATA, Target};

/// Most octets of one message, so that the peer may read while the next is under way.
const MOST_AT_ONCE: usize = 1 << 16;
/// Nothing is sent while fewer octets of the ring are free, so that messages do not get small.
const LEAST_FREE: usize = 2048;
/// Requests of a message and the Write before it.
const PAIR: usize = 2;
/// Messages without data that may be under way.
pub(crate) const CONTROLS: usize = 4;
/// Receives of the peer that are left to messages without data.
const LEFT_TO_CONTROLS: u16 = CONTROLS as u16;

/// The state of a ring of octets to be sent, whose memory somebody else has.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Octets of the ring.
    size: usize,
    /// Where the next octets go, and how many are free.
    end: usize,
    free: usize,
    /// Requests that the send queue takes, apart from those of messages without data.
    requests: usize,
    controls: usize,
    /// The peer's memory that is left.
    target: Target,
    /// Messages sent, modulo 2^16, and the number that may not be sent any more.
    sent: u16,
    limit: u16,
}

impl Outgoing {
    /// For a ring of `size` octets, and as many requests of data. Nothing can be sent yet.
    pub(crate) fn new(size: usize, requests: usize) -> Outgoing {
        Outgoing {
            size,
            end: 0,
            free: size,
            requests,
            controls: CONTROLS,
            target: Target::default(),
            sent: 0,
            limit: 0,
        }
    }

    /// Messages up to `limit` may be sent.
    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Whether the peer's memory is used up.
    pub(crate) fn needs_target(&self) -> bool {
        self.target.length == 0
    }

    /// The peer has memory for what comes next.
    pub(crate) fn set_target(&mut self, target: Target) {
        self.target = target;
    }

    /// Whether there are credit and requests for a message that takes one of the peer's credits.
    pub(crate) fn has_credit(&self) -> bool {
        self.requests >= PAIR && self.limit.wrapping_sub(self.sent) > LEFT_TO_CONTROLS
    }

    /// Octets that one message may have now; 0: none can be sent.
    pub(crate) fn room(&self) -> usize {
        if self.has_credit() { self.direct_room().min(self.target.length as usize) } else { 0 }
    }

    /// Octets that one Write into memory of the program may have now.
    pub(crate) fn direct_room(&self) -> usize {
        if self.requests < PAIR || self.free < LEAST_FREE.min(self.size) {
            return 0;
        }
        self.free.min(MOST_AT_ONCE).min(MOST_DATA)
    }

    /// Where the octets at `at` of the next message go, and how many of `left` fit there in one place.
    pub(crate) fn place(&self, at: usize, left: usize) -> (usize, usize) {
        let start = (self.end + at) % self.size;
        (start, left.min(self.size - start))
    }

    /// A message with so many octets is sent. Returns the peer's memory for them.
    pub(crate) fn send(&mut self, octets: usize) -> Target {
        let target = Target { length: octets as u32, ..self.target };
        self.target.address = self.target.address.wrapping_add(octets as u64);
        self.target.length -= octets as u32;
        self.sent = self.sent.wrapping_add(1);
        self.take(octets, PAIR);
        target
    }

    /// A Write of so many octets is sent, which no message follows.
    pub(crate) fn send_directly(&mut self, octets: usize) {
        self.take(octets, 1);
    }

    /// A message is sent that takes one of the peer's credits and nothing of the ring.
    pub(crate) fn send_map(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.requests -= PAIR;
    }

    fn take(&mut self, octets: usize, requests: usize) {
        self.end = (self.end + octets) % self.size;
        self.free -= octets;
        self.requests -= requests;
    }

    /// So many octets and requests have completed.
    pub(crate) fn completed(&mut self, octets: usize, requests: usize) {
        self.free += octets;
        self.requests += requests;
        debug_assert!(self.free <= self.size);
    }

    /// Whether a message without data can be sent.
    pub(crate) fn has_control(&self) -> bool {
        self.controls > 0
    }

    pub(crate) fn send_control(&mut self) {
        self.controls -= 1;
    }

    pub(crate) fn control_completed(&mut self) {
        self.controls += 1;
    }

    /// Whether all that was sent has completed; `requests`: what the ring was made for.
    pub(crate) fn is_idle(&self, requests: usize) -> bool {
        self.requests == requests && self.controls == CONTROLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { address: 100, key: 7, length: 5000 };

    #[test]
    fn room_goes_by_credits_requests_memory_here_and_memory_there() {
        let mut ring = Outgoing::new(4096, 6);
        assert_eq!(ring.room(), 0);
        ring.set_limit(16);
        assert!(ring.needs_target() && ring.room() == 0);
        ring.set_target(TARGET);
        assert_eq!(ring.room(), 4096);
        assert_eq!(ring.send(2000), Target { length: 2000, ..TARGET });
        assert_eq!((ring.room(), ring.place(0, 3000), ring.place(2096, 100)), (2096, (2000, 2096), (0, 100)));
        assert_eq!(ring.send(96).address, 2100);
        assert_eq!(ring.room(), 0, "less than the least is free");
        ring.completed(2000, 2);
        ring.set_target(Target { length: 10, ..TARGET });
        assert_eq!(ring.room(), 10);
        ring.send(10);
        assert!(ring.needs_target() && !ring.is_idle(6));
        ring.completed(106, 4);
        assert!(ring.is_idle(6));
        ring.send_control();
        assert!(!ring.is_idle(6));
    }

    #[test]
    fn some_credits_are_left_to_messages_without_data() {
        let mut ring = Outgoing::new(4096, 1000);
        ring.set_limit(16);
        ring.set_target(TARGET);
        let mut sent = 0;
        while ring.room() > 0 {
            ring.send(1);
            sent += 1;
            ring.completed(1, 2);
        }
        assert_eq!(sent, 12);
        ring.set_limit(17);
        assert_eq!(ring.room(), 4096);
    }
}
