//! Message sequence numbers of the untagged queues (RFC 5041 §5.1).

use uwarp_wire::ddp::MessageSequenceNumber;

/// The next number of each queue in one direction. Queue 2 has one message only, a Terminate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// Queue 0: Sends and Immediate Data.
    pub(crate) send: MessageSequenceNumber,
    /// Queue 1: requests for reads, atomics and commits.
    pub(crate) request: MessageSequenceNumber,
    /// Queue 3: responses to atomics and commits.
    pub(crate) response: MessageSequenceNumber,
}

impl Numbers {
    pub(super) const FIRST: Numbers = Numbers {
        send: MessageSequenceNumber::FIRST,
        request: MessageSequenceNumber::FIRST,
        response: MessageSequenceNumber::FIRST,
    };
}

/// Takes the next number.
#[inline]
pub(super) fn take(next: &mut MessageSequenceNumber) -> MessageSequenceNumber {
    let number = *next;
    *next = number.next();
    number
}
