//! The counters of an engine. Statistics contain them as they are.

use serde::{Deserialize, Serialize};

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a received frame, or its payload, was dropped. Each reason has a counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$doc])* $name,)*
        }

        impl DropReason {
            /// Every reason.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// The name in statistics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DropReason::$name => $text,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The frame cannot be parsed: too short, lengths that disagree.
    Malformed = "malformed",
    /// The IPv4 header checksum is wrong.
    IpChecksum = "ip-checksum",
    /// The TCP, ICMP or ICMPv6 checksum is wrong, or the CRC of a datagram.
    L4Checksum = "l4-checksum",
    /// Not for our hardware address.
    NotForUs = "not-for-us",
    /// Not for our IP address.
    WrongAddress = "wrong-address",
    /// An IP fragment that cannot be used: it overlaps another, is late, or exceeds the budget.
    Fragment = "fragment",
    /// Of another VLAN, or without the tag of the port's VLAN.
    WrongVlan = "wrong-vlan",
    /// An ICMP error about an unknown connection, or about nothing that is in flight.
    IcmpForged = "icmp-forged",
    /// A packet-too-big message without news, or below IPv6's minimum.
    IcmpStale = "icmp-stale",
    /// A Neighbor Discovery message from beyond the link, or not for us.
    BadDiscovery = "bad-discovery",
    /// A protocol that the engine does not speak.
    UnknownProtocol = "unknown-protocol",
    /// A TCP segment without a connection (answered with a reset where one is due).
    NoConnection = "no-connection",
    /// A SYN to a listener whose backlog is full.
    BacklogFull = "backlog-full",
    /// A SYN when the limit of connections is reached.
    ConnectionLimit = "connection-limit",
    /// A SYN whose flow could not be claimed: the table of all engines' flows is full, or another engine has just
    /// claimed it.
    NotEntered = "not-entered",
    /// TCP: outside the receive window.
    OutOfWindow = "out-of-window",
    /// TCP: payload that was received before.
    Duplicate = "duplicate",
    /// TCP: out-of-order payload beyond the budget.
    OutOfOrderBudget = "out-of-order-budget",
    /// TCP: the acknowledgment is not acceptable.
    BadAcknowledgment = "bad-acknowledgment",
    /// TCP: an old timestamp (PAWS).
    OldTimestamp = "old-timestamp",
    /// TCP: a SYN or RST that could be blind, answered with a challenge ACK.
    Challenged = "challenged",
    /// TCP: not acceptable in the connection's state.
    BadState = "bad-state",
    /// Payload for a stream that accepts no more input.
    StreamEnded = "stream-ended",
    /// For another engine, whose ring is full.
    HandoffFull = "handoff-full",
    /// A datagram for a queue pair that there is not, or that is not ready.
    NoQueuePair = "no-queue-pair",
    /// A datagram with another key than its queue pair's.
    WrongKey = "wrong-key",
    /// A datagram that found no receive, or too short a one.
    NoReceive = "no-receive",
    /// A frame of ours for which there was no buffer, or no room in the device's queue.
    NoTransmitBuffer = "no-transmit-buffer",
}

macro_rules! work {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Work that peers cause, in units that have a cost. Counted since the engine was created.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case", default)]
        pub struct Work {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Work {
            /// The difference to `earlier`.
            pub fn since(&self, earlier: &Work) -> Work {
                Work { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

work! {
    /// Frames received.
    frames_received,
    /// Octets received.
    octets_received,
    /// Frames given to the device.
    frames_sent,
    /// Octets of frames built.
    octets_sent,
    /// Connections visited for an event that concerns several: a path's MTU, a neighbour's address.
    connections_scanned,
    /// Ready connections visited while the device was full.
    visits_without_room,
    /// Next hops looked up again because the neighbour table changed.
    neighbour_lookups,
    /// Octets copied to assemble FPDUs that arrive in pieces, including copies when buffers grow.
    octets_gathered,
    /// Occupied places passed in searches of the tables of connections and of TIME-WAIT.
    flow_probes,
    /// Sent segments visited to process SACK blocks and to find losses.
    sack_segments_walked,
}

/// Sleeps of an engine, by what ended them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Wakeups {
    /// The device announced a frame or a change of its link.
    pub device: u64,
    /// The application posted work or a command, or another engine or a committer had something for this one.
    pub doorbell: u64,
    /// A timer was due, or it was time to look at a device that announces nothing.
    pub timer: u64,
}

/// Counters since the engine was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Counters {
    /// Turns.
    pub turns: u64,
    /// Turns that had work.
    pub busy_turns: u64,
    /// Sleeps, by what ended them.
    pub wakeups: Wakeups,
    /// Frames received.
    pub frames_received: u64,
    /// Octets received.
    pub octets_received: u64,
    /// Received segments that took the short way.
    pub hot_received: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Octets sent.
    pub octets_sent: u64,
    /// Segments that the short way sent.
    pub hot_sent: u64,
    /// Complete, valid FPDUs received.
    pub fpdus_received: u64,
    /// FPDUs that arrived in several pieces.
    pub fpdus_gathered: u64,
    /// FPDUs built.
    pub fpdus_sent: u64,
    /// Messages that found no posted receive and waited for one.
    pub receive_waits: u64,
    /// Those that waited in vain: their streams ended.
    pub receive_waits_expired: u64,
    /// FPDUs with a wrong CRC.
    pub crc_errors: u64,
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Retransmissions that needed a copy, because the device still held the buffer.
    pub retransmission_copies: u64,
    /// Connections that ended because their peers fell silent: by the user time-out or keep-alive probes.
    pub connections_timed_out: u64,
    /// Frames of pure acknowledgments.
    pub pure_acknowledgments: u64,
    /// Frames of several segments that the device had to cut.
    pub frames_to_be_cut: u64,
    /// SYNs answered with a cookie, because too many connections were half open.
    pub cookies_sent: u64,
    /// Connections that a cookie opened.
    pub cookies_accepted: u64,
    /// Segments that could have answered a cookie, and matched none.
    pub cookies_wrong: u64,
    /// Segments that were not compared with cookies, because too many from their address had matched none.
    pub cookies_not_compared: u64,
    /// Resets sent for segments without a connection.
    pub resets_sent: u64,
    /// ICMP errors sent.
    pub icmp_errors_sent: u64,
    /// ICMP errors that were not sent, to keep within the limit.
    pub icmp_errors_suppressed: u64,
    /// Frames that were handed to another engine of the context.
    pub handed_off: u64,
    /// Frames that other engines handed to this one.
    pub taken_over: u64,
    /// Times that a path MTU was lowered.
    pub path_mtu_changes: u64,
    /// Messages about a path MTU that were doubted at first.
    pub path_mtu_doubts: u64,
    /// Fragmented packets reassembled.
    pub reassembled: u64,
    /// Echoes answered.
    pub echoes: u64,
    /// Packets in which another host claimed an address of ours.
    pub address_conflicts: u64,
    /// Writes of nothing to silent peers that may have left our first FPDU unread.
    pub nudges_sent: u64,
    /// Terminates sent.
    pub terminates_sent: u64,
    /// Terminates received.
    pub terminates_received: u64,
    /// Connections opened, either way.
    pub connections_opened: u64,
    /// Connections ended.
    pub connections_closed: u64,
    /// Connections ended because others needed their buffers, memory or places.
    pub evicted: u64,
    /// Completions that did not fit into their queue.
    pub completion_overflows: u64,
    /// What cannot happen and did: each is a fault of uwarp.
    pub internal_faults: u64,
    /// Work that peers caused. What is counted elsewhere joins it in `Connections::work_done`.
    pub work: Work,
    /// Drops by reason. `EngineStats` shows them by name.
    #[serde(skip)]
    pub(crate) drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Counts what goes no further.
    #[inline]
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Counts what cannot happen, and leaves undone what it prevents. Tests notice it at once.
    #[cold]
    pub(crate) fn cannot_be(&mut self, what: &str) {
        debug_assert!(false, "{what}");
        self.internal_faults += 1;
    }
}

/// What cannot happen, and did. A table has a count of its own, since its functions are called where the counters are
/// not at hand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults(u64);

impl Faults {
    /// Counts one. Tests notice it at once.
    #[cold]
    pub(crate) fn note(&mut self, what: &str) {
        debug_assert!(false, "{what}");
        self.0 += 1;
    }

    pub(crate) fn count(self) -> u64 {
        self.0
    }
}
