//! Requests that are posted to a queue pair.

use crate::error::PostErrorReason;
use uwarp_engine::work::{ReceiveElement, SendElement, SendFlags, SendOpcode, Sge};

/// What a send request carries.
#[derive(Clone, Copy, Debug)]
enum Payload<'a> {
    /// Registered memory, read (or, by a Read, written) when the engine gets to it.
    Entries(&'a [Sge]),
    /// Octets that are copied into the work queue now, so that their memory is free when posting returns.
    Inline(&'a [u8]),
}

/// One request for the send queue: a Send, an RDMA Write, or an RDMA Read.
///
/// The SGEs and the inline data are copied when it is posted; the memory that SGEs name belongs to the operation until it
/// completes. Without [`signalled`](Self::signalled) a success makes no completion, and the next signalled completion of the
/// queue pair stands for all before it.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest<'a> {
    id: u64,
    opcode: SendOpcode,
    flags: SendFlags,
    stag: u32,
    remote_offset: u64,
    payload: Payload<'a>,
}

impl<'a> SendRequest<'a> {
    fn new(id: u64, opcode: SendOpcode, payload: Payload<'a>) -> Self {
        Self { id, opcode, flags: SendFlags::empty(), stag: 0, remote_offset: 0, payload }
    }

    /// A Send (RFC 5040 §4.3) of registered memory; it takes the peer's next receive. `id` comes back in the completion.
    pub fn send(id: u64, entries: &'a [Sge]) -> Self {
        Self::new(id, SendOpcode::Send, Payload::Entries(entries))
    }

    /// A Send of a few octets that are copied now.
    pub fn send_inline(id: u64, octets: &'a [u8]) -> Self {
        Self::new(id, SendOpcode::Send, Payload::Inline(octets))
    }

    /// An RDMA Write (RFC 5040 §4.2) of registered memory to the peer's region `remote_stag` from tagged offset
    /// `remote_offset` on.
    pub fn write(id: u64, entries: &'a [Sge], remote_stag: u32, remote_offset: u64) -> Self {
        Self { stag: remote_stag, remote_offset, ..Self::new(id, SendOpcode::Write, Payload::Entries(entries)) }
    }

    /// An RDMA Write of a few octets that are copied now.
    pub fn write_inline(id: u64, octets: &'a [u8], remote_stag: u32, remote_offset: u64) -> Self {
        Self { stag: remote_stag, remote_offset, ..Self::new(id, SendOpcode::Write, Payload::Inline(octets)) }
    }

    /// An RDMA Read (RFC 5040 §4.4) from the peer's region `remote_stag`, tagged offset `remote_offset`, into `sink`. iWARP
    /// has one sink per read: a slice of one SGE, made with [`std::slice::from_ref`] or as `&[sge]`.
    pub fn read(id: u64, sink: &'a [Sge], remote_stag: u32, remote_offset: u64) -> Self {
        Self { stag: remote_stag, remote_offset, ..Self::new(id, SendOpcode::Read, Payload::Entries(sink)) }
    }

    /// Asks for a completion on success. A failure makes one in any case.
    pub fn signalled(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SIGNALLED);
        self
    }

    /// Makes a Send raise a solicited event at the peer (RFC 5040 §4.3). Has no effect on other operations.
    pub fn solicited(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::SOLICITED);
        self
    }

    /// Makes a Send revoke the peer's STag when it is delivered (Send with Invalidate). Has no effect on other operations.
    pub fn invalidate(mut self, peer_stag: u32) -> Self {
        if self.opcode == SendOpcode::Send {
            self.opcode = SendOpcode::SendInvalidate;
            self.stag = peer_stag;
        }
        self
    }

    /// Starts this request only when all earlier reads of the queue pair have completed.
    pub fn fenced(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::FENCE);
        self
    }

    /// Completes this request when the peer's TCP has acknowledged it, not when its memory may be reused.
    pub fn complete_on_ack(mut self) -> Self {
        self.flags = self.flags.union(SendFlags::COMPLETE_ON_ACK);
        self
    }

    /// Checks the request against a queue pair's limits and gives the head of its element.
    pub(crate) fn element(&self, limits: &SendLimits) -> Result<(SendElement, &'a [Sge], &'a [u8]), PostErrorReason> {
        let mut flags = self.flags.union(limits.always);
        let (entries, inline): (&[Sge], &[u8]) = match self.payload {
            Payload::Entries(entries) => (entries, &[]),
            Payload::Inline(octets) => (&[], octets),
        };
        let length = match self.payload {
            Payload::Entries(_) => {
                if entries.len() > limits.entries {
                    return Err(PostErrorReason::TooManySges { limit: limits.entries });
                }
                if self.opcode == SendOpcode::Read && entries.len() != 1 {
                    return Err(PostErrorReason::ReadSink);
                }
                total_length(entries)?
            }
            Payload::Inline(octets) => {
                if self.opcode == SendOpcode::Read {
                    return Err(PostErrorReason::InlineRead);
                }
                if octets.len() > limits.inline {
                    return Err(PostErrorReason::InlineTooLong { limit: limits.inline });
                }
                flags = flags.union(SendFlags::INLINE);
                octets.len() as u32
            }
        };
        let element = SendElement {
            id: self.id,
            opcode: self.opcode,
            flags,
            stag: self.stag,
            remote_offset: self.remote_offset,
            length,
            // At most the queue pair's limit, which is far below 256.
            entries: entries.len() as u8,
        };
        Ok((element, entries, inline))
    }
}

/// What a queue pair allows in its send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) entries: usize,
    pub(crate) inline: usize,
    /// Flags that every element gets.
    pub(crate) always: SendFlags,
}

/// One request for the receive queue: where the next Send of the peer goes.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct ReceiveRequest<'a> {
    id: u64,
    entries: &'a [Sge],
}

impl<'a> ReceiveRequest<'a> {
    /// A receive into registered memory with local write access, filled in the order of the SGEs. `id` comes back in the
    /// completion. No SGE at all takes an empty Send.
    pub fn new(id: u64, entries: &'a [Sge]) -> Self {
        Self { id, entries }
    }

    pub(crate) fn element(&self, limit: usize) -> Result<(ReceiveElement, &'a [Sge]), PostErrorReason> {
        if self.entries.len() > limit {
            return Err(PostErrorReason::TooManySges { limit });
        }
        let element =
            ReceiveElement { id: self.id, length: total_length(self.entries)?, entries: self.entries.len() as u8 };
        Ok((element, self.entries))
    }
}

fn total_length(entries: &[Sge]) -> Result<u32, PostErrorReason> {
    entries.iter().try_fold(0_u32, |total, entry| total.checked_add(entry.length).ok_or(PostErrorReason::TooLong))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SendLimits = SendLimits { entries: 4, inline: 100, always: SendFlags::empty() };

    fn sges(count: usize, length: u32) -> Vec<Sge> {
        vec![Sge { stag: 7, length, offset: 0 }; count]
    }

    #[test]
    fn limits_are_checked_before_anything_is_posted() {
        let five = sges(5, 1);
        let request = SendRequest::send(1, &five);
        assert_eq!(request.element(&LIMITS).unwrap_err(), PostErrorReason::TooManySges { limit: 4 });
        let octets = [0; 101];
        assert_eq!(
            SendRequest::send_inline(1, &octets).element(&LIMITS).unwrap_err(),
            PostErrorReason::InlineTooLong { limit: 100 }
        );
        let two = sges(2, u32::MAX);
        assert_eq!(SendRequest::write(1, &two, 1, 0).element(&LIMITS).unwrap_err(), PostErrorReason::TooLong);
        assert_eq!(SendRequest::read(1, &two, 1, 0).element(&LIMITS).unwrap_err(), PostErrorReason::ReadSink);
        assert_eq!(ReceiveRequest::new(1, &five).element(4).unwrap_err(), PostErrorReason::TooManySges { limit: 4 });
    }

    #[test]
    fn invalidate_changes_sends_only() {
        let (element, ..) = SendRequest::send(1, &[]).invalidate(9).element(&LIMITS).unwrap();
        assert_eq!((element.opcode, element.stag), (SendOpcode::SendInvalidate, 9));
        let (element, ..) = SendRequest::write(1, &[], 5, 6).invalidate(9).element(&LIMITS).unwrap();
        assert_eq!((element.opcode, element.stag), (SendOpcode::Write, 5));
    }

    #[test]
    fn flags_of_the_queue_pair_are_added() {
        let limits = SendLimits { always: SendFlags::SIGNALLED, ..LIMITS };
        let (element, _, inline) = SendRequest::send_inline(3, b"abc").element(&limits).unwrap();
        assert!(element.flags.contains(SendFlags::SIGNALLED.union(SendFlags::INLINE)));
        assert_eq!((element.length, inline), (3, b"abc".as_slice()));
    }
}
