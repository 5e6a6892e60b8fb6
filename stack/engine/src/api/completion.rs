//! Completions: the results of work.

/// Octets in front of a received datagram, in place of InfiniBand's global route header: its IP header, and one of IPv4
/// in the last of them.
pub const GRH_LEN: usize = 40;

/// A notifier armed for any completion,
pub const ANY_COMPLETION: u8 = 1;
/// or for solicited ones (RFC 5040 §5.3) and failures.
pub const URGENT_COMPLETION: u8 = 2;

/// What kind of work completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionOpcode {
    /// A Send of any kind.
    Send = 0,
    /// An RDMA Write, with or without Immediate Data behind it.
    Write = 1,
    /// An RDMA Read.
    Read = 2,
    /// A receive queue element, taken by an incoming Send or Immediate Data.
    Receive = 3,
    /// Immediate Data.
    Immediate = 4,
    /// A FetchAdd.
    FetchAdd = 5,
    /// A CmpSwap.
    CompareSwap = 6,
    /// A window was bound, or an STag registered.
    Bind = 7,
    /// An STag of this side was invalidated.
    LocalInvalidate = 8,
    /// A Commit, with or without the Write before it.
    Commit = 9,
}

/// How work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Status {
    /// It succeeded.
    Success = 0,
    /// The incoming message was longer than the receive buffer.
    LocalLength = 1,
    /// A local entry names memory that is not registered, is out of bounds or lacks a right; or a window cannot be
    /// bound, or an STag not be invalidated.
    LocalProtection = 2,
    /// The element itself is invalid: malformed, or with an opcode that the queue pair does not support.
    LocalOperation = 3,
    /// The peer refused access to its memory: its Terminate named a protection fault.
    RemoteAccess = 4,
    /// The peer could not carry out the request: its Terminate named an operation fault.
    RemoteOperation = 5,
    /// The peer sent something unacceptable: a bad CRC, header or message number.
    PeerProtocol = 6,
    /// Not executed as far as is known: the queue pair left the ready state before, for instance because its connection
    /// ended or was lost. The event of that end has the reason. The memory of a receive or a Read may hold a part of
    /// the data; its contents are indeterminate (RFC 5040 §3.1).
    Flushed = 7,
    /// The completion queue overflowed.
    CompletionQueueOverflow = 9,
    /// The device or its engine failed.
    Fatal = 10,
    /// A Commit failed with a status ([`Completion::commit_status`]); or, for a receive, what the peer wrote before
    /// could not be made durable. The connection continues, and a received message is delivered.
    CommitFailed = 11,
    /// The peer has gone, or was never reached. Only a queue pair that outlives its peer says so
    /// ([`Rules::outlives_peer`](crate::command::Rules::outlives_peer)), of its first request then.
    PeerGone = 12,
    /// The peer had no receive posted for the message, for longer than the message waits. Like the next one, it comes
    /// only with [`Features::infiniband`](crate::command::Features::infiniband), and is
    /// [`Status::RemoteOperation`] without it.
    ReceiverNotReady = 13,
    /// The peer had a receive posted that was too short, or does not support the operation.
    RemoteInvalidRequest = 14,
}

impl Status {
    /// Whether the work succeeded.
    pub const fn is_success(self) -> bool {
        matches!(self, Status::Success)
    }
}

/// Flags of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompletionFlags(pub u8);

impl CompletionFlags {
    /// The peer asked for a solicited event.
    pub const SOLICITED: CompletionFlags = CompletionFlags(1);
    /// [`Completion::invalidated`] names an STag that the peer's Send invalidated.
    pub const INVALIDATED: CompletionFlags = CompletionFlags(2);
    /// [`Completion::immediate`] holds immediate data.
    pub const IMMEDIATE: CompletionFlags = CompletionFlags(4);
    /// It is a datagram's: [`Completion::immediate`] holds in its upper half the number of the sender's queue pair.
    pub const DATAGRAM: CompletionFlags = CompletionFlags(8);
    /// The immediate data came beside the octets of a Send.
    pub const WITH_SEND: CompletionFlags = CompletionFlags(16);

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: CompletionFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: CompletionFlags) -> CompletionFlags {
        CompletionFlags(self.0 | other.0)
    }
}

/// One entry of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The poster's identifier.
    pub id: u64,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Octets in memory: of the received message for a receive (0 for Immediate Data; a datagram's with [`GRH_LEN`]),
    /// of the message for other work.
    pub length: u32,
    /// STag that the peer invalidated, with [`CompletionFlags::INVALIDATED`].
    pub invalidated: u32,
    /// What kind of work.
    pub opcode: CompletionOpcode,
    /// How it ended.
    pub status: Status,
    /// Flags.
    pub flags: CompletionFlags,
    /// Immediate data, with [`CompletionFlags::IMMEDIATE`]; for a successful atomic operation, the original value in
    /// the peer's memory; for a Commit, its status at the peer.
    pub immediate: u64,
}

const _: () = assert!(size_of::<Completion>() == 32);

impl Default for Completion {
    /// An empty completion, for arrays to poll into.
    fn default() -> Completion {
        Completion {
            id: 0,
            queue_pair: 0,
            length: 0,
            invalidated: 0,
            opcode: CompletionOpcode::Send,
            status: Status::Success,
            flags: CompletionFlags(0),
            immediate: 0,
        }
    }
}

impl Completion {
    /// The eight octets of the peer's Immediate Data, as a big-endian number.
    pub fn immediate_data(&self) -> Option<u64> {
        self.flags.contains(CompletionFlags::IMMEDIATE).then_some(self.immediate)
    }

    /// The same as a number of 32 bits, as programs written for verbs have it: the last four octets. The drop-in
    /// libraries put into the others what the verbs tell of the message.
    pub fn immediate_data_32(&self) -> Option<u32> {
        self.immediate_data().map(|data| data as u32)
    }

    /// In [`Completion::immediate`], for a datagram that came over IPv6.
    pub(crate) const IPV6_DATAGRAM: u64 = 1 << 63;

    /// The number of the queue pair that has sent a received datagram.
    pub fn datagram_source(&self) -> Option<u32> {
        self.flags.contains(CompletionFlags::DATAGRAM).then_some((self.immediate >> 32) as u32 & 0xff_ffff)
    }

    /// Whether a received datagram came over IPv6.
    pub fn is_datagram_over_ipv6(&self) -> bool {
        self.flags.contains(CompletionFlags::DATAGRAM) && self.immediate & Self::IPV6_DATAGRAM != 0
    }

    /// What stood in the peer's memory before an atomic operation.
    pub fn original_value(&self) -> Option<u64> {
        let atomic = matches!(self.opcode, CompletionOpcode::FetchAdd | CompletionOpcode::CompareSwap);
        (atomic && self.status.is_success()).then_some(self.immediate)
    }

    /// The status of a Commit at the peer: 0 is success, any other value a failure.
    /// [`CommitStatus::from_code`](uwarp_memory::CommitStatus::from_code) knows what this product means by it; the
    /// document defines no meaning.
    pub fn commit_status(&self) -> Option<u32> {
        let answered = matches!(self.status, Status::Success | Status::CommitFailed);
        (self.opcode == CompletionOpcode::Commit && answered).then_some(self.immediate as u32)
    }

    /// The STag that the peer's Send with Invalidate revoked.
    pub fn invalidated_stag(&self) -> Option<u32> {
        self.flags.contains(CompletionFlags::INVALIDATED).then_some(self.invalidated)
    }
}
