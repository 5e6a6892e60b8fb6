//! One row per RDMAP opcode (RFC 5040 §4.3, draft-ietf-storm-rdmap-ext §4, draft-talpey-rdma-commit §3): whether it is
//! tagged, its queue, the form of its message, and whether it is enabled.
//!
//! The extensions have rows but are disabled by default: a peer that probes for one gets "Unexpected OpCode", which is
//! how the documents let it find out.

use uwarp_wire::ddp::QueueNumber;
use uwarp_wire::rdmap::Opcode;

/// Optional parts of RDMAP that the upper layer must have agreed on with its peer. All are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Atomic operations.
    pub atomics: bool,
    /// Immediate Data.
    pub immediate: bool,
    /// RDMA Commit.
    pub commit: bool,
    /// Rules of InfiniBand: Sends say in reserved bits how long they wait for a receive, and may have immediate data
    /// beside their octets. See [`NotReadyRetries`](uwarp_wire::ddp::NotReadyRetries) and
    /// [`Control::with_immediate`](uwarp_wire::rdmap::Control::with_immediate).
    pub infiniband: bool,
}

/// Which switch an opcode hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enabled {
    /// RFC 5040: always.
    Always,
    /// [`Features::atomics`].
    Atomics,
    /// [`Features::immediate`].
    Immediate,
    /// [`Features::commit`].
    Commit,
}

/// Length of a message of an opcode, without the DDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Upper-layer payload of 0 to 2^32-1 octets, in any number of segments.
    Payload,
    /// One segment with exactly this many octets.
    Exactly(u16),
    /// One segment whose header has at least and at most this many octets.
    Between(u16, u16),
    /// A request of `fixed + k * each` octets, k ≥ 1, that may be segmented.
    List {
        /// Octets before the list.
        fixed: u16,
        /// Octets of one element.
        each: u16,
    },
}

/// Where messages of an opcode go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Tagged: the segment names its buffer.
    Tagged,
    /// Untagged: the queue with this number.
    Untagged(QueueNumber),
}

/// One row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The opcode.
    pub opcode: Opcode,
    /// The name in the documents.
    pub name: &'static str,
    /// Tagged, or the untagged queue.
    pub buffer: Buffer,
    /// What follows the DDP header.
    pub body: Body,
    /// The switch.
    pub enabled: Enabled,
    /// The Invalidate STag word of the DDP header is meaningful.
    pub invalidates: bool,
    /// The receiver may raise a solicited event.
    pub solicited: bool,
}

const fn row(opcode: Opcode, name: &'static str, buffer: Buffer, body: Body, enabled: Enabled) -> Row {
    Row { opcode, name, buffer, body, enabled, invalidates: false, solicited: false }
}

const fn flags(row: Row, invalidates: bool, solicited: bool) -> Row {
    Row { invalidates, solicited, ..row }
}

/// The opcode table, indexed by opcode.
pub const TABLE: [Row; 14] = {
    use Body::{Between, Exactly, List, Payload};
    use Buffer::{Tagged, Untagged};
    use Enabled::{Always, Atomics, Commit, Immediate};
    use Opcode as O;
    [
        row(O::Write, "RDMA Write", Tagged, Payload, Always),
        row(O::ReadRequest, "RDMA Read Request", Untagged(QueueNumber::READ_REQUEST), Exactly(28), Always),
        row(O::ReadResponse, "RDMA Read Response", Tagged, Payload, Always),
        row(O::Send, "Send", Untagged(QueueNumber::SEND), Payload, Always),
        flags(
            row(O::SendInvalidate, "Send with Invalidate", Untagged(QueueNumber::SEND), Payload, Always),
            true,
            false,
        ),
        flags(row(O::SendSolicited, "Send with SE", Untagged(QueueNumber::SEND), Payload, Always), false, true),
        flags(
            row(
                O::SendSolicitedInvalidate,
                "Send with SE and Invalidate",
                Untagged(QueueNumber::SEND),
                Payload,
                Always,
            ),
            true,
            true,
        ),
        row(O::Terminate, "Terminate", Untagged(QueueNumber::TERMINATE), Between(4, 52), Always),
        row(O::Immediate, "Immediate Data", Untagged(QueueNumber::SEND), Exactly(8), Immediate),
        flags(
            row(O::ImmediateSolicited, "Immediate Data with SE", Untagged(QueueNumber::SEND), Exactly(8), Immediate),
            false,
            true,
        ),
        row(O::AtomicRequest, "Atomic Request", Untagged(QueueNumber::READ_REQUEST), Exactly(52), Atomics),
        row(O::AtomicResponse, "Atomic Response", Untagged(QueueNumber::ATOMIC_RESPONSE), Exactly(12), Atomics),
        row(
            O::CommitRequest,
            "RDMA Commit Request",
            Untagged(QueueNumber::READ_REQUEST),
            List { fixed: 4, each: 16 },
            Commit,
        ),
        row(O::CommitResponse, "RDMA Commit Response", Untagged(QueueNumber::ATOMIC_RESPONSE), Exactly(8), Commit),
    ]
};

const _: () = {
    let mut index = 0;
    while index < TABLE.len() {
        assert!(TABLE[index].opcode as usize == index);
        index += 1;
    }
};

/// The most regions that a Commit Request may list. A longer one is answered with a status and not carried out.
pub const COMMIT_REGION_LIMIT: u32 = 64;

/// Octets of the largest request that queue 1 accepts, whatever is enabled: a Commit Request of one region above the
/// limit, so that it can be answered. A longer one does not fit its buffer.
pub const LARGEST_REQUEST: u32 = 4 + 16 * (COMMIT_REGION_LIMIT + 1);

impl Features {
    /// Whether the opcode of `row` is enabled.
    pub const fn allow(self, row: &Row) -> bool {
        match row.enabled {
            Enabled::Always => true,
            Enabled::Atomics => self.atomics,
            Enabled::Immediate => self.immediate,
            Enabled::Commit => self.commit,
        }
    }

    /// The row of an enabled opcode.
    pub const fn row(self, opcode: Opcode) -> Option<&'static Row> {
        let row = &TABLE[opcode as usize];
        if self.allow(row) { Some(row) } else { None }
    }

    /// Whether the untagged queue exists. Queue 3 needs atomics or commit.
    pub const fn has_queue(self, queue: QueueNumber) -> bool {
        queue.0 < QueueNumber::ATOMIC_RESPONSE.0
            || (queue.0 == QueueNumber::ATOMIC_RESPONSE.0 && (self.atomics || self.commit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table as text, compared with the table of messages in the documents.
    #[test]
    fn opcode_table_is_frozen() {
        let text: String = TABLE
            .iter()
            .map(|row| {
                format!(
                    "{:x} {} | {:?} {:?} {:?}{}{}\n",
                    row.opcode.code(),
                    row.name,
                    row.buffer,
                    row.body,
                    row.enabled,
                    if row.invalidates { " invalidates" } else { "" },
                    if row.solicited { " solicited" } else { "" },
                )
            })
            .collect();
        assert_eq!(
            text,
            "\
0 RDMA Write | Tagged Payload Always
1 RDMA Read Request | Untagged(QueueNumber(1)) Exactly(28) Always
2 RDMA Read Response | Tagged Payload Always
3 Send | Untagged(QueueNumber(0)) Payload Always
4 Send with Invalidate | Untagged(QueueNumber(0)) Payload Always invalidates
5 Send with SE | Untagged(QueueNumber(0)) Payload Always solicited
6 Send with SE and Invalidate | Untagged(QueueNumber(0)) Payload Always invalidates solicited
7 Terminate | Untagged(QueueNumber(2)) Between(4, 52) Always
8 Immediate Data | Untagged(QueueNumber(0)) Exactly(8) Immediate
9 Immediate Data with SE | Untagged(QueueNumber(0)) Exactly(8) Immediate solicited
a Atomic Request | Untagged(QueueNumber(1)) Exactly(52) Atomics
b Atomic Response | Untagged(QueueNumber(3)) Exactly(12) Atomics
c RDMA Commit Request | Untagged(QueueNumber(1)) List { fixed: 4, each: 16 } Commit
d RDMA Commit Response | Untagged(QueueNumber(3)) Exactly(8) Commit
"
        );
    }

    #[test]
    fn extensions_are_off_by_default() {
        let features = Features::default();
        for row in &TABLE {
            assert_eq!(features.allow(row), row.opcode.code() < 8, "{}", row.name);
        }
        assert!(features.has_queue(QueueNumber::TERMINATE));
        assert!(!features.has_queue(QueueNumber::ATOMIC_RESPONSE));
        assert!(Features { commit: true, ..features }.has_queue(QueueNumber::ATOMIC_RESPONSE));
        assert!(!Features { atomics: true, ..features }.has_queue(QueueNumber(4)));
    }
}
