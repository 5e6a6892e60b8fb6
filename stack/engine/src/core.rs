//! The engine's state: one part for each room.
//!
//! A room's functions take up to three parts. What needs more is a method of [`Core`], in `turn`.

use std::collections::VecDeque;

use uwarp_tcp::{Instant, IsnGenerator, SynCookies};
use uwarp_wire::ethernet::{EthernetAddress, VlanTag};
use uwarp_wire::ipv6;

use crate::api::Control;
use crate::api::common::Common;
use crate::api::config::EngineConfig;
use crate::api::counters::Counters;
use crate::bytestream::Streams;
use crate::channels::{EngineChannels, EngineError};
use crate::connection::flow::FlowTable;
use crate::connection::guesses::Guesses;
use crate::connection::listener::Listeners;
use crate::connection::shares::Pressure;
use crate::connection::slab::{BufferStore, Slab};
use crate::connection::time_wait::TimeWaits;
use crate::connection::wheel::Wheel;
use crate::connection::{Connections, HeldFrames, Opening};
use crate::link::hash::KeyedHash;
use crate::link::port::Port;
use crate::link::{FRAME_OCTETS, Link, Transmit};
use crate::net::Net;
use crate::net::addresses::Addresses;
use crate::net::error_limit::ErrorLimit;
use crate::net::neighbours::Neighbours;
use crate::net::path::{IPV6_AND_TCP, Paths};
use crate::net::reassembly::Reassembly;
use crate::rdma::Rdma;
use crate::rdma::commits::Commits;

/// The whole engine, apart from its registration for memory epochs.
#[derive(Debug)]
pub(crate) struct Core<P: Port> {
    pub(crate) common: Common,
    /// Until then only frames, doorbells, commands and the ready list make work for a turn. Zero: look.
    pub(crate) quiet_until: Instant,
    /// Something rare may have to be done in this turn.
    pub(crate) needs_attention: bool,
    /// This turn used only short ways, so no rare work became due.
    pub(crate) only_short_ways: bool,
    pub(crate) link: Link<P>,
    pub(crate) net: Net,
    pub(crate) connections: Connections<P::Buffer>,
    pub(crate) rdma: Rdma,
    pub(crate) streams: Streams,
    pub(crate) control: Control,
}

impl<P: Port> Core<P> {
    pub(crate) fn new(config: EngineConfig, port: P, channels: EngineChannels) -> Result<Core<P>, EngineError> {
        let capabilities = port.capabilities().clone();
        let mut random = fastrand::Rng::with_seed(config.seed);
        let addresses = Addresses::new(&config, capabilities.mac, &mut random).map_err(EngineError::Config)?;
        if addresses.has_ipv6() && capabilities.mtu < ipv6::MINIMUM_MTU {
            return Err(EngineError::Config("the device's MTU is below 1280, which IPv6 needs"));
        }
        if config.ephemeral_ports.0 == 0 || config.ephemeral_ports.0 > config.ephemeral_ports.1 {
            return Err(EngineError::Config("the range of ports for active opens is empty"));
        }
        if capabilities.mtu < 576 {
            return Err(EngineError::Config("the device's MTU is below 576"));
        }
        if channels.doorbells.count() < config.limits.doorbells() {
            return Err(EngineError::Config("there are fewer doorbells than queue pairs and connections"));
        }
        // An Ethernet header with a VLAN tag, an IPv6 header, and the longest TCP header.
        let payload_start = capabilities.headroom.max(18 + 40 + 60);
        let mss = capabilities.mtu - 40;
        if payload_start + usize::from(mss) > capabilities.data_room {
            return Err(EngineError::Config("transmit buffers are too small for the device's MTU"));
        }
        let cuts = capabilities.segmentation && capabilities.transmit_tcp_checksum;
        let mut tcp_config = config.tcp;
        tcp_config.mss = tcp_config.mss.min(mss);
        let levels = port.pool_levels();
        let held_frames = config.budgets.out_of_order.unwrap_or(levels.receive_total / 2).max(4);
        let held_copies = (levels.transmit_total / 8).min(held_frames).max(4);
        let reserve = config.budgets.transmit_reserve.unwrap_or((levels.transmit_total / 8).clamp(8, 256)) as usize;
        let secret = config.secret;
        let hash = KeyedHash::new(secret);
        let fixed = config.neighbours.iter().map(|(address, mac)| ((*address).into(), *mac));
        let neighbours = Neighbours::new(config.limits.neighbours as usize, fixed, hash);
        let transmit_buffers = levels.transmit_total as usize;
        let backlog = config.budgets.transmit_backlog.max(8) as usize;
        let time_wait = config.limits.time_wait as usize;
        let rdma = Rdma::new(&config, Commits::new(channels.waker, &config.iwarp), channels.events.clone());
        Ok(Core {
            quiet_until: Instant::ZERO,
            needs_attention: false,
            only_short_ways: false,
            link: Link {
                port,
                own_mac: EthernetAddress(capabilities.mac),
                vlan: config.vlan.map(VlanTag),
                is_up: true,
                check_at: Instant::ZERO,
                check_is_late: false,
                handoff: channels.handoff,
                loopback: VecDeque::new(),
                scratch: Vec::with_capacity(70_000),
                passed_over: false,
                payload_start,
                offload_tcp: capabilities.transmit_tcp_checksum,
                frame_octets: if cuts { (capabilities.data_room - payload_start).min(FRAME_OCTETS) as u32 } else { 0 },
                transmit: Transmit {
                    queue: VecDeque::with_capacity(2 * backlog + 64),
                    backlog,
                    frames_each: config.budgets.frames_per_connection,
                    greedy: 0,
                    flushed: 0,
                    taken: 0,
                    reserve,
                    free_known: 0,
                },
            },
            net: Net {
                addresses,
                events: channels.events.clone(),
                random,
                known_epoch: neighbours.epoch(),
                neighbours,
                unresolved: Vec::new(),
                paths: Paths::new(hash, capabilities.mtu),
                reassembly: Reassembly::new(config.limits.reassembly_octets as usize),
                icmp_errors: ErrorLimit::new(config.limits.icmp_errors),
                announced: false,
                announce_at: None,
                defended_at: None,
                chores_at: None,
            },
            connections: Connections {
                table: Slab::new(),
                flows: FlowTable::new(hash),
                guess: None,
                time_wait: TimeWaits::new(hash, time_wait),
                opening: Opening {
                    listeners: Listeners::default(),
                    half_open: 0,
                    is_closed: false,
                    isn: IsnGenerator::new(secret),
                    mss6: capabilities.mtu - IPV6_AND_TCP,
                    cookies: SynCookies::new(config.cookie_secret),
                    cookies_until: Instant::ZERO,
                    guesses: Guesses::new(hash),
                    reserved: channels.ports,
                    retries: Vec::new(),
                },
                wheel: Wheel::new(),
                timers_waited: 0,
                // Room for the first on the engine's own thread, whoever turns it.
                fired: Vec::with_capacity(64),
                ready: VecDeque::with_capacity(64),
                starved: false,
                pressure: Pressure::default(),
                held: HeldFrames::new(held_frames as usize, held_copies as usize),
                records: BufferStore::with_capacity(transmit_buffers),
                tcp_config,
                ending: Vec::new(),
            },
            rdma,
            streams: Streams { wakeups: Vec::with_capacity(64) },
            control: Control {
                commands: channels.commands,
                events: channels.events,
                doorbells: channels.doorbells,
                rung: Vec::with_capacity(64),
                shutdown: None,
                farewells: Vec::new(),
            },
            common: Common { config, now: Instant::ZERO, counters: Counters::default() },
        })
    }
}
