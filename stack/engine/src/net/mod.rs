//! The engine as a host of its network: own addresses, neighbours, ICMP, path MTUs, fragments.

use std::time::Duration;

use uwarp_tcp::Instant;
use uwarp_wire::WireError;
use uwarp_wire::frame::Frame;
use uwarp_wire::icmp::QuotedTcp;

use crate::api::command::{AsyncEvent, EventSink};
use crate::api::common::Common;
use crate::api::stats::{DropReason, EngineStats};
use crate::link::Link;
use crate::link::port::Port;
use crate::net::addresses::Addresses;
use crate::net::error_limit::ErrorLimit;
use crate::net::neighbours::Neighbours;
use crate::net::path::Paths;
use crate::net::reassembly::Reassembly;

pub(crate) mod addresses;
pub(crate) mod discovery;
pub(crate) mod error_limit;
pub(crate) mod fragments;
pub(crate) mod icmp;
pub(crate) mod neighbours;
pub(crate) mod path;
pub(crate) mod reassembly;

/// Time between two announcements (ANNOUNCE_INTERVAL of RFC 5227 §1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// What a frame that is no segment leaves to others.
#[derive(Debug)]
pub(crate) enum Left {
    /// The frame of a packet whose last fragment it was.
    Whole(Vec<u8>),
    /// A router says that a segment did not fit, and which MTU would, or 0.
    TooBig(Option<QuotedTcp>, u32),
    /// A router says that a segment did not reach its destination.
    SoftError(Option<QuotedTcp>),
}

/// The state of this room.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) addresses: Addresses,
    /// Where conflicts about our addresses are reported.
    pub(crate) events: EventSink<AsyncEvent>,
    pub(crate) random: fastrand::Rng,
    pub(crate) neighbours: Neighbours,
    /// Connections that wait for a hardware address.
    pub(crate) unresolved: Vec<u32>,
    /// Epoch of the neighbour table when `unresolved` was last processed.
    pub(crate) known_epoch: u32,
    pub(crate) paths: Paths,
    pub(crate) reassembly: Reassembly,
    /// Limits the ICMP errors sent.
    pub(crate) icmp_errors: ErrorLimit,
    /// Whether our addresses have been announced.
    pub(crate) announced: bool,
    /// When our addresses are announced again.
    pub(crate) announce_at: Option<Instant>,
    /// When an address of ours was last defended, or never.
    pub(crate) defended_at: Option<Instant>,
    /// When rare work is due: addresses, announcements.
    pub(crate) chores_at: Option<Instant>,
}

impl Net {
    /// Takes a frame that is no segment; `octets` are all of it.
    #[cold]
    pub(crate) fn receive<P: Port>(
        &mut self,
        link: &mut Link<P>,
        common: &mut Common,
        frame: Result<Frame<'_>, WireError>,
        octets: &[u8],
    ) -> Option<Left> {
        let vlan = match &frame {
            Ok(Frame::Arp(frame)) => frame.vlan,
            Ok(Frame::Icmp(frame)) => frame.route.vlan,
            Ok(Frame::Icmp6(frame)) => frame.route.vlan,
            Ok(Frame::Fragment(frame)) => frame.route.vlan,
            Ok(Frame::Refused(frame)) => frame.route.vlan,
            Ok(Frame::Tcp(_) | Frame::Other(_)) | Err(_) => link.vlan,
        };
        if !link.is_our_vlan(vlan) {
            common.counters.count_drop(DropReason::WrongVlan);
            return None;
        }
        match frame {
            Ok(Frame::Arp(frame)) => {
                link.share(&mut common.counters, octets);
                self.receive_arp(link, common, &frame);
            }
            Ok(Frame::Icmp(frame)) => {
                let flow = frame.message.quoted_tcp().map(|quoted| quoted.flow);
                if !flow.is_some_and(|flow| link.hand_off_octets(&mut common.counters, &flow, octets)) {
                    return self.receive_icmp(link, &mut common.counters, &frame);
                }
            }
            Ok(Frame::Icmp6(frame)) => {
                let flow = frame.message.quoted_tcp().map(|quoted| quoted.flow);
                if frame.message.is_discovery() {
                    link.share(&mut common.counters, octets);
                }
                if !flow.is_some_and(|flow| link.hand_off_octets(&mut common.counters, &flow, octets)) {
                    return self.receive_icmp6(link, common, &frame);
                }
            }
            Ok(Frame::Fragment(frame)) => {
                return self.take_fragment(link, common, &frame, octets).map(Left::Whole);
            }
            Ok(Frame::Refused(frame)) => self.refuse_packet(link, common, &frame, octets),
            Ok(Frame::Other(_)) => common.counters.count_drop(DropReason::UnknownProtocol),
            Ok(Frame::Tcp(_)) => common.counters.cannot_be("a segment is taken for another packet"),
            Err(WireError::HeaderChecksum) => common.counters.count_drop(DropReason::IpChecksum),
            Err(WireError::IcmpChecksum) => common.counters.count_drop(DropReason::L4Checksum),
            Err(WireError::Neighbour) => common.counters.count_drop(DropReason::BadDiscovery),
            Err(_) => common.counters.count_drop(DropReason::Malformed),
        }
        None
    }

    /// What the room has to say of itself.
    pub(crate) fn describe(&self, stats: &mut EngineStats) {
        stats.path_mtus = self.paths.iter().map(|(address, mtu)| (address.to_string(), mtu)).collect();
        stats.fragment_octets = self.reassembly.used() as u64;
        stats.fragments = self.reassembly.pieces() as u64;
        stats.neighbours = self.neighbours.len() as u64;
    }
}
