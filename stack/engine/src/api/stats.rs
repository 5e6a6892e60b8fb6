//! Snapshots of what goes on inside an engine: plain values that can be serialised.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::link::port::PoolLevels;

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a received frame, or its payload, went no further. Each has a counter.
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
    /// The TCP, ICMP or ICMPv6 checksum is wrong.
    L4Checksum = "l4-checksum",
    /// Not for our hardware address.
    NotForUs = "not-for-us",
    /// Not for our IP address.
    WrongAddress = "wrong-address",
    /// An IP fragment that cannot be used: it overlaps another, came too late, or is beyond the budget.
    Fragment = "fragment",
    /// Of another VLAN, or without the tag that the port's VLAN has.
    WrongVlan = "wrong-vlan",
    /// An ICMP error that speaks of no connection of ours, or of nothing that is in flight.
    IcmpForged = "icmp-forged",
    /// A message that a packet was too big which tells nothing new, or asks for less than IPv6 allows.
    IcmpStale = "icmp-stale",
    /// A Neighbor Discovery message that came from beyond the link, or that is not for us.
    BadDiscovery = "bad-discovery",
    /// A protocol that the engine does not speak.
    UnknownProtocol = "unknown-protocol",
    /// A TCP segment without a connection (answered with a reset where one is due).
    NoConnection = "no-connection",
    /// A SYN to a listener whose backlog is full.
    BacklogFull = "backlog-full",
    /// A SYN when the limit of connections is reached.
    ConnectionLimit = "connection-limit",
    /// A SYN of which the other engines could not be told: the table of all their flows has no room, or another one has it
    /// since a moment ago.
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
    /// Payload for a stream that takes no more input.
    StreamEnded = "stream-ended",
    /// For another engine, whose ring is full.
    HandoffFull = "handoff-full",
    /// No buffer for an answer.
    NoTransmitBuffer = "no-transmit-buffer",
}

/// Number of drop reasons.
pub const DROP_REASONS: usize = DropReason::ALL.len();

macro_rules! work {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Work that peers cause, in units on which a cost can be put. Counted since the engine was made.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case", default)]
        pub struct Work {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Work {
            /// What was added since `earlier`.
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
    /// Connections visited because of something that concerns other connections too: a path's MTU, a neighbour's address.
    connections_scanned,
    /// Next hops looked up again because the neighbour table changed.
    neighbour_lookups,
    /// Octets copied to put FPDUs together that arrive in pieces, growth of their buffers included.
    octets_gathered,
    /// Places of the tables of connections and of TIME-WAITs passed over since other flows have them.
    flow_probes,
    /// Sent segments looked at to process SACK blocks and to find losses.
    sack_segments_walked,
}

/// State of one TCP connection, like the kernel's TCP_INFO.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct TcpInfo {
    /// State by its name in RFC 9293.
    pub state: String,
    /// Smoothed round-trip time in nanoseconds.
    pub smoothed_rtt_ns: u64,
    /// Its mean deviation in nanoseconds.
    pub rtt_variation_ns: u64,
    /// Smallest round-trip time of late, in nanoseconds.
    pub minimum_rtt_ns: u64,
    /// Retransmission time-out in nanoseconds.
    pub retransmission_timeout_ns: u64,
    /// Congestion window in octets.
    pub congestion_window: u64,
    /// Slow-start threshold in octets.
    pub slow_start_threshold: u64,
    /// The peer's window in octets.
    pub send_window: u64,
    /// Our window in octets.
    pub receive_window: u64,
    /// Payload of a full segment in octets.
    pub effective_mss: u32,
    /// Octets sent and not acknowledged.
    pub in_flight: u64,
    /// Octets handed to TCP and not sent.
    pub unsent: u64,
    /// Octets that the peer has out of order.
    pub selectively_acknowledged: u64,
    /// Octets held for lost and not sent again yet.
    pub lost: u64,
    /// Octets sent, retransmissions included.
    pub octets_sent: u64,
    /// Octets sent again.
    pub octets_retransmitted: u64,
    /// Octets acknowledged by the peer.
    pub octets_acknowledged: u64,
    /// Octets received in order.
    pub octets_received: u64,
    /// Segments sent.
    pub segments_sent: u64,
    /// Segments received.
    pub segments_received: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Sent segments looked at to process SACK blocks and to find losses.
    pub sack_segments_walked: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Probes for losses at the end of a flight.
    pub tail_loss_probes: u64,
    /// Times that loss recovery began without a time-out.
    pub fast_recoveries: u64,
    /// Buffers held out of order.
    pub out_of_order_buffers: u64,
    /// Duplicate segments that the peer reported.
    pub duplicates_reported: u64,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionStats {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The queue pair, once bound.
    pub queue_pair: Option<u32>,
    /// Phase of the iWARP stream.
    pub phase: String,
    /// Transmit buffers that it holds: records that are not acknowledged.
    pub transmit_buffers: u64,
    /// Octets that the pieces of an FPDU take.
    pub gather_octets: u64,
    /// Its TCP.
    pub tcp: TcpInfo,
}

/// One queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct QueuePairStats {
    /// Its number.
    pub number: u32,
    /// Its state.
    pub state: String,
    /// Send elements completed, signalled or not.
    pub sends_completed: u64,
    /// Receive elements completed.
    pub receives_completed: u64,
    /// Reads outstanding.
    pub reads_outstanding: u32,
    /// Inbound Read Requests being answered.
    pub reads_inbound: u32,
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

/// Everything about one engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct EngineStats {
    /// Its index in the context.
    pub index: u16,
    /// Turns.
    pub turns: u64,
    /// Turns that had something to do.
    pub busy_turns: u64,
    /// Sleeps, by what ended them.
    pub wakeups: Wakeups,
    /// Whether the link is up.
    pub link_up: bool,
    /// Frames received.
    pub frames_received: u64,
    /// Octets received.
    pub octets_received: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Octets sent.
    pub octets_sent: u64,
    /// FPDUs received whole and right.
    pub fpdus_received: u64,
    /// FPDUs received in several pieces and put together.
    pub fpdus_gathered: u64,
    /// Octets of memory that FPDUs take of which some pieces have come and others not.
    pub gather_octets: u64,
    /// FPDUs built.
    pub fpdus_sent: u64,
    /// FPDUs with a wrong CRC.
    pub crc_errors: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Retransmissions that needed a copy since the device still held the buffer.
    pub retransmission_copies: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Frames of pure acknowledgments.
    pub pure_acknowledgments: u64,
    /// Frames of several segments, left to the device to cut.
    pub frames_to_be_cut: u64,
    /// SYNs answered with a cookie, since the limit of half-open connections was reached.
    pub cookies_sent: u64,
    /// Connections that a cookie opened.
    pub cookies_accepted: u64,
    /// Segments that could have been the answer to a cookie, and fitted none.
    pub cookies_wrong: u64,
    /// Segments that were not compared with a cookie, since too many in the name of their address had fitted none.
    pub cookies_not_compared: u64,
    /// Connections in TIME-WAIT now.
    pub time_wait: u64,
    /// TimeWaits that were cut short because too many connections were in TIME-WAIT.
    pub time_wait_cut_short: u64,
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
    /// Times that a path's MTU was lowered.
    pub path_mtu_changes: u64,
    /// Messages about a path's MTU that were doubted at first.
    pub path_mtu_doubts: u64,
    /// MTU of the paths that take less than the port, by destination.
    pub path_mtus: BTreeMap<String, u16>,
    /// Fragmented packets put together.
    pub reassembled: u64,
    /// Octets of fragments that wait for others.
    pub fragment_octets: u64,
    /// Fragments that wait for others. Counted when it is asked for, not kept.
    pub fragments: u64,
    /// Echoes answered.
    pub echoes: u64,
    /// Packets in which another host spoke for an address of ours.
    pub address_conflicts: u64,
    /// Octets that commits have written to stores, or written back in persistent memory. What several commits of a region ask for
    /// together is counted once.
    pub commit_octets: u64,
    /// Terminates sent.
    pub terminates_sent: u64,
    /// Terminates received.
    pub terminates_received: u64,
    /// Connections opened, either way.
    pub connections_opened: u64,
    /// Connections ended.
    pub connections_closed: u64,
    /// Connections ended because they had buffers, memory or places that others needed.
    pub evicted: u64,
    /// Completions that did not fit into their queue at once.
    pub completion_overflows: u64,
    /// Work that peers caused.
    pub work: Work,
    /// Drops by reason, without those that never happened.
    pub drops: BTreeMap<String, u64>,
    /// Faults that the port was told to make, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Buffers free and in all.
    pub pools: PoolLevels,
    /// Buffers held: out-of-order payload and unacknowledged records.
    pub buffers_held: u64,
    /// Connections, those in TIME-WAIT included.
    pub flows: u64,
    /// Octets of memory that connections take, with what hangs on them. Left out are buffers of frames, rings to applications, and
    /// connections in TIME-WAIT. Counted when it is asked for, not kept.
    pub connection_octets: u64,
    /// Neighbours known.
    pub neighbours: u64,
    /// Connections.
    pub connections: Vec<ConnectionStats>,
    /// Queue pairs.
    pub queue_pairs: Vec<QueuePairStats>,
}
