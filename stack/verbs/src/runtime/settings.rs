//! The engines' settings, by a context's configuration.

use crate::config::{Config, Congestion, Ecn};
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;
use uwarp_engine::steering::Steering;
use uwarp_engine::{Budgets, EngineConfig, IwarpConfig};

pub(crate) fn engine_config(
    config: &Config,
    index: u16,
    rss: Option<&uwarp_dpdk::Rss>,
    tcp: uwarp_tcp::Config,
    cookie_secret: [u64; 2],
) -> EngineConfig {
    let limits = &config.limits;
    EngineConfig {
        index,
        addresses: config
            .addresses()
            .map(|own| uwarp_engine::InterfaceAddress { address: own.address, prefix_length: own.prefix })
            .collect(),
        loop_back: true,
        switch_addresses: Vec::new(),
        gateway: config.gateway,
        gateway6: config.gateway6,
        duplicate_address_detection: config.duplicate_address_detection,
        vlan: config.vlan.map(|vlan| u16::from(vlan.priority) << 13 | vlan.number),
        neighbours: config.neighbours.iter().map(|neighbour| (neighbour.address, neighbour.mac.0)).collect(),
        tcp,
        iwarp: IwarpConfig {
            crc: config.mpa.crc,
            crc_within_host: config.mpa.crc_on_host || config.faults.is_some(),
            startup_timeout: config.mpa.startup_timeout,
            nudge_after: config.mpa.nudge_after,
            receive_wait: limits.receive_wait.unwrap_or_default(),
            switch_timeout: config.tcp.switch_timeout,
            commit_timeout: config.commit.timeout,
            commit_share: config.commit.share,
            strict_commit: config.commit.strict,
            ..IwarpConfig::default()
        },
        limits: engine_limits(config),
        budgets: Budgets { gather_octets: limits.gather_octets, ..Budgets::default() },
        steering: rss.map(|rss| Steering { key: rss.key.clone(), table: rss.table.clone(), queue: index }),
        // The whole usable range (RFC 6056 §3.2): engines of one context know which flows the others have.
        ephemeral_ports: EPHEMERAL_PORTS,
        seed: random(),
        secret: [random(), random()],
        cookie_secret,
        hot: true,
    }
}

pub(crate) fn engine_limits(config: &Config) -> uwarp_engine::Limits {
    let limits = &config.limits;
    uwarp_engine::Limits {
        queue_pairs: limits.queue_pairs as u32,
        half_open: limits.backlog as u32,
        connections: connections(config),
        neighbours: limits.neighbours as u32,
        reassembly_octets: limits.reassembly_octets as u32,
        least_rate: limits.least_rate as u32,
        ..uwarp_engine::Limits::default()
    }
}

/// Ports that active opens draw from, with a random start.
const EPHEMERAL_PORTS: (u16, u16) = (1024, 65_535);

/// Connections of one engine: those in TIME-WAIT have no queue pair any more.
pub(crate) fn connections(config: &Config) -> u32 {
    (4 * config.limits.queue_pairs as u32).max(uwarp_engine::Limits::default().connections)
}

pub(crate) fn tcp_config(config: &Config) -> uwarp_tcp::Config {
    let tcp = &config.tcp;
    uwarp_tcp::Config {
        // IPv4 and TCP without options take 40 octets (RFC 9293 §3.7.1).
        mss: config.mtu - 40,
        receive_window: tcp.receive_window as u32,
        timestamps: tcp.timestamps,
        timestamp_offset: random() as u32,
        rto_initial: tcp.rto_initial,
        rto_min: tcp.rto_min,
        syn_retries: tcp.syn_retries,
        delayed_ack: tcp.delayed_ack,
        keep_alive: tcp.keep_alive.enabled.then_some(uwarp_tcp::KeepAlive {
            idle: tcp.keep_alive.idle,
            interval: tcp.keep_alive.interval,
            probes: tcp.keep_alive.probes,
        }),
        user_timeout: tcp.user_timeout,
        time_wait: tcp.time_wait,
        // For RDMA streams, whose end is one for both directions (RFC 5040 §6.2): a peer that does not close must not
        // hold a queue pair for ever. A plain stream may be half closed for as long as its application likes.
        fin_wait_2: Some(tcp.user_timeout.unwrap_or(Duration::from_secs(60)).max(config.linger)),
        congestion: tcp_congestion(tcp.congestion),
        ecn: match tcp.ecn {
            Ecn::Off => uwarp_tcp::Ecn::Off,
            Ecn::Accept => uwarp_tcp::Ecn::Accept,
            Ecn::Offer => uwarp_tcp::Ecn::Offer,
        },
        ..uwarp_tcp::Config::default()
    }
}

/// The congestion control by TCP's own name.
pub(crate) fn tcp_congestion(congestion: Congestion) -> uwarp_tcp::Congestion {
    match congestion {
        Congestion::Cubic => uwarp_tcp::Congestion::Cubic,
        Congestion::Reno => uwarp_tcp::Congestion::Reno,
        Congestion::Dctcp => uwarp_tcp::Congestion::Dctcp,
    }
}

/// Random bits from the system, by way of the hasher that the standard library seeds with them.
pub(crate) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ() {
        assert_ne!(random(), random());
    }

    fn config() -> Config {
        Config::without_device("10.0.0.1/24").unwrap()
    }

    #[test]
    fn timestamps_are_as_configured() {
        let mut config = config();
        for timestamps in [false, true] {
            config.tcp.timestamps = timestamps;
            assert_eq!(tcp_config(&config).timestamps, timestamps);
        }
    }
}
