//! What came of frames, counted.

use serde::{Deserialize, Serialize};

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropReason {
    /// The headers contradict themselves or each other.
    Malformed,
    /// It is longer than the MTU allows, or in several buffers.
    TooLong,
    /// A VLAN tag, IP options, a fragment, or a protocol that the switch does not carry.
    Unsupported,
    /// Its source is another's hardware address.
    SourceMac,
    /// A client's: its source is none of the shared addresses. From the uplink: its source is one of them, or no
    /// host's.
    SourceAddress,
    /// Its source is a port, or a queue pair of datagrams, that the client does not own.
    SourcePort,
    /// An ICMP error about a segment that the client did not receive.
    ForgedIcmp,
    /// The receiver's ring is full: it does not read, or not fast enough.
    RingFull,
    /// The device found its checksum to be wrong.
    Checksum,
    /// It is for another host, and does not go to one station, or is a datagram.
    Destination,
    /// It is for another host, and the uplink is down.
    LinkDown,
    /// It tells a neighbour's hardware address, and no client has asked.
    Unasked,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [DropReason; 12] = [
        DropReason::Malformed,
        DropReason::TooLong,
        DropReason::Unsupported,
        DropReason::SourceMac,
        DropReason::SourceAddress,
        DropReason::SourcePort,
        DropReason::ForgedIcmp,
        DropReason::RingFull,
        DropReason::Checksum,
        DropReason::Destination,
        DropReason::LinkDown,
        DropReason::Unasked,
    ];

    /// As it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Malformed => "malformed",
            DropReason::TooLong => "too-long",
            DropReason::Unsupported => "unsupported",
            DropReason::SourceMac => "source-mac",
            DropReason::SourceAddress => "source-address",
            DropReason::SourcePort => "source-port",
            DropReason::ForgedIcmp => "forged-icmp",
            DropReason::RingFull => "ring-full",
            DropReason::Checksum => "checksum",
            DropReason::Destination => "destination",
            DropReason::LinkDown => "link-down",
            DropReason::Unasked => "unasked",
        }
    }
}

/// What a client's frames came to. `RingFull` counts frames for this client, every other reason frames from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames from the client.
    pub received: u64,
    /// Their octets.
    pub received_octets: u64,
    /// Frames that its device took.
    pub sent: u64,
    /// Resets, ICMP errors and answers to ARP and Neighbor Discovery among them, which the switch made.
    pub answered: u64,
    pub(super) drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Frames dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}
