//! Bookkeeping of a ring of octets that a peer writes, and of the messages that count them. The peer gets the ring's
//! two halves in turn.

use crate::errno::Errno;
use std::collections::VecDeque;

/// A peer broke the protocol.
const EPROTO: Errno = Errno(libc::EPROTO);

/// The state of a ring that a peer writes to, whose memory somebody else has.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Octets of the ring. It is even.
    size: usize,
    /// The next octet to read, and how many there are.
    start: usize,
    available: usize,
    /// Octets of each message that is not read to its end, oldest first.
    messages: VecDeque<u32>,
    /// Octets that were read and are not given to the peer again.
    freed: usize,
    /// The half that is given next.
    next_half: usize,
    /// Messages read to their end, modulo 2^16.
    consumed: u16,
    /// The peer is told when `consumed` gets here.
    report_at: u16,
    /// Messages that there are receives for.
    credits: u16,
}

/// What a peer is told: see [`Incoming::report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// It may send messages up to this number.
    pub(crate) limit: u16,
    /// Where a half of the ring begins that it may write to, behind those that it has.
    pub(crate) half: Option<usize>,
}

impl Incoming {
    /// For a ring of `size` octets, whose first half the peer has.
    pub(crate) fn new(size: usize, credits: u16) -> Incoming {
        let half = size / 2;
        Incoming {
            size,
            start: 0,
            available: 0,
            messages: VecDeque::with_capacity(credits.into()),
            freed: half,
            next_half: half,
            consumed: 0,
            report_at: credits / 2,
            credits,
        }
    }

    /// Octets that can be read.
    pub(crate) fn available(&self) -> usize {
        self.available
    }

    /// A message says that so many octets were written.
    ///
    /// # Errors
    /// EPROTO: there was no room for them, or no credit.
    pub(crate) fn arrived(&mut self, octets: u32) -> Result<(), Errno> {
        if octets == 0 {
            self.message_without_data();
            return Ok(());
        }
        let available = self.available + octets as usize;
        if available > self.size - self.freed || self.messages.len() >= self.credits.into() {
            return Err(EPROTO);
        }
        self.available = available;
        self.messages.push_back(octets);
        Ok(())
    }

    /// A message came that takes a credit and has no octets.
    pub(crate) fn message_without_data(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Where the next octets lie, up to `most` of them, and how many there are in one place.
    pub(crate) fn next(&self, skipped: usize, most: usize) -> (usize, usize) {
        let start = (self.start + skipped) % self.size;
        (start, most.min(self.available - skipped).min(self.size - start))
    }

    /// So many octets were read.
    pub(crate) fn consume(&mut self, octets: usize) {
        debug_assert!(octets <= self.available);
        self.start = (self.start + octets) % self.size;
        self.available -= octets;
        self.freed += octets;
        let mut left = octets;
        while left > 0
            && let Some(message) = self.messages.front_mut()
        {
            let taken = left.min(*message as usize);
            *message -= taken as u32;
            left -= taken;
            if *message == 0 {
                self.messages.pop_front();
                self.consumed = self.consumed.wrapping_add(1);
            }
        }
    }

    /// Whether there is something to tell the peer: half of the ring is free, or half of the credits are.
    pub(crate) fn is_report_due(&self) -> bool {
        self.freed >= self.size / 2 || self.consumed.wrapping_sub(self.report_at) as i16 >= 0
    }

    /// What to tell the peer now.
    pub(crate) fn report(&mut self) -> Report {
        let half = self.size / 2;
        self.report_at = self.consumed.wrapping_add(self.credits / 2);
        let is_half_free = self.freed >= half;
        let start = self.next_half;
        if is_half_free {
            self.freed -= half;
            self.next_half = half - start;
        }
        Report { limit: self.consumed.wrapping_add(self.credits), half: is_half_free.then_some(start) }
    }

    /// Octets of half the ring.
    pub(crate) fn half(&self) -> usize {
        self.size / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_given_in_turns_as_they_are_read() {
        let mut ring = Incoming::new(8, 4);
        assert!(ring.is_report_due());
        assert_eq!(ring.report(), Report { limit: 4, half: Some(4) });
        assert!(!ring.is_report_due());
        ring.arrived(3).unwrap();
        ring.arrived(5).unwrap();
        assert_eq!(ring.arrived(1), Err(EPROTO), "there is no room");
        assert_eq!(ring.next(0, 100), (0, 8));
        ring.consume(2);
        assert!(!ring.is_report_due());
        ring.consume(2);
        assert_eq!((ring.available(), ring.report()), (4, Report { limit: 5, half: Some(0) }));
        assert_eq!(ring.next(0, 2), (4, 2));
        ring.arrived(2).unwrap();
        assert_eq!((ring.next(0, 9), ring.next(4, 9)), ((4, 4), (0, 2)));
        ring.consume(6);
        assert_eq!(ring.report(), Report { limit: 7, half: Some(4) });
    }

    #[test]
    fn credits_come_back_when_half_of_them_are_used() {
        let mut ring = Incoming::new(1024, 4);
        ring.report();
        for _ in 0..4 {
            ring.arrived(1).unwrap();
        }
        assert_eq!(ring.arrived(1), Err(EPROTO), "there is no credit");
        ring.consume(1);
        assert!(!ring.is_report_due());
        ring.consume(1);
        assert_eq!(ring.report(), Report { limit: 6, half: None });
        ring.message_without_data();
        ring.arrived(0).unwrap();
        assert_eq!(ring.report(), Report { limit: 8, half: None });
    }

    #[test]
    fn numbers_wrap_around() {
        let mut ring = Incoming::new(64, 16);
        ring.report();
        for round in 0..70_000_u32 {
            ring.arrived(1).unwrap();
            ring.consume(1);
            if ring.is_report_due() {
                let consumed = (round + 1) as u16;
                assert_eq!(ring.report().limit, consumed.wrapping_add(16));
            }
        }
    }
}
