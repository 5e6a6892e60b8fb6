//! Bits of a header that RFC 5041 §4 and RFC 5040 §4.1 reserve, and what two ends put there that have agreed on it.
//!
//! Without that agreement they are zero when sent, and ignored when received.
//!
//! | octet | bits | what they say |
//! |---|---|---|
//! | DDP control | `0010_0000` | the sender has said how long it waits for a receive |
//! | | `0001_1100` | [`NotReadyRetries`] |
//! | RDMAP control | `0010_0000` | the Send has immediate data: [`Control::with_immediate`](crate::rdmap::Control) |
//!
//! The immediate data of a Send stands in the four octets that only a Send with Invalidate uses otherwise.

const IS_SAID: u8 = 0x20;
const COUNT: u8 = 0x1c;
const COUNT_SHIFT: u32 = 2;

/// How often a message may find no receive before it fails, as InfiniBand counts it: the waits between the attempts,
/// and 7 for no end. How long a wait is, is the receiver's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NotReadyRetries(u8);

impl NotReadyRetries {
    /// There is no end.
    pub const FOR_EVER: NotReadyRetries = NotReadyRetries(7);

    /// So many; `None` above 7.
    pub const fn new(count: u8) -> Option<NotReadyRetries> {
        if count <= 7 { Some(NotReadyRetries(count)) } else { None }
    }

    /// The waits, or `None` if there is no end.
    pub const fn count(self) -> Option<u32> {
        if self.0 == Self::FOR_EVER.0 { None } else { Some(self.0 as u32) }
    }

    /// The bits that say so in the first octet of a header.
    #[inline]
    pub const fn bits(self) -> u8 {
        IS_SAID | self.0 << COUNT_SHIFT
    }

    /// What the first octet of a header says; `None` if it says nothing. It means this between two ends that have
    /// agreed on it.
    #[inline]
    pub const fn of(ddp_control: u8) -> Option<NotReadyRetries> {
        if ddp_control & IS_SAID == 0 { None } else { Some(NotReadyRetries((ddp_control & COUNT) >> COUNT_SHIFT)) }
    }
}

impl Default for NotReadyRetries {
    fn default() -> Self {
        Self::FOR_EVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::{Header, MessageSequenceNumber, QueueNumber, Stag, UntaggedHeader};
    use crate::rdmap::{Control, Opcode};

    #[test]
    fn what_the_spare_bits_say_is_read_again_and_changes_nothing_else() {
        let header = UntaggedHeader {
            last: true,
            control: Control::new(Opcode::Send),
            invalidate_stag: Stag(0),
            queue: QueueNumber::SEND,
            message_sequence_number: MessageSequenceNumber(5),
            message_offset: 77,
        };
        let plain = header.to_octets();
        assert_eq!(NotReadyRetries::of(plain[0]), None);
        assert!(!header.control.has_immediate());
        for count in 0..8 {
            let retries = NotReadyRetries::new(count).expect("up to 7");
            let mut octets = plain;
            octets[0] |= retries.bits();
            assert_eq!(NotReadyRetries::of(octets[0]), Some(retries));
            assert_eq!(retries.count(), (count < 7).then_some(u32::from(count)));
            assert_eq!(Header::parse(&octets), Ok(Header::Untagged(header)));
        }
        assert_eq!(NotReadyRetries::new(8), None);
        let with = Control::with_immediate(Opcode::SendSolicited);
        assert!(with.has_immediate() && with.parse() == Ok(Opcode::SendSolicited));
    }
}
