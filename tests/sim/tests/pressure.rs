//! Buffer pools that are far too small for the load: slower, never stuck.

use std::time::Duration;

use uwarp_sim_tests::traffic::{Plan, run};
use uwarp_testkit::rig::HostOptions;
use uwarp_testkit::sim::SimOptions;

/// A tenth of the usual pools, 5 % loss.
fn short_of_buffers(streams: usize) -> Plan {
    Plan {
        network: SimOptions { delay: Duration::from_micros(20), loss: 0.05, ..SimOptions::default() },
        host: HostOptions {
            mtu: 1500,
            receive_buffers: 409,
            transmit_buffers: 409,
            queue_pairs: 1024,
            device_holds: 0,
            segmentation: 0,
        },
        streams,
        octets: 8 << 10,
        longest: 8 << 10,
        source: 16 << 10,
        // Of a thousand streams, some lose the same segment or all answers to probes several times.
        patient: true,
        limit: Duration::from_secs(600),
        ..Plan::default()
    }
}

#[test]
fn a_thousand_queue_pairs_share_a_tenth_of_the_buffers_at_five_percent_loss() {
    let seeds = if std::env::var("UWARP_LONG").is_ok_and(|long| !long.is_empty() && long != "0") { 300 } else { 5 };
    for seed in 1..=seeds {
        if let Err(error) = run(seed, &short_of_buffers(1000)) {
            panic!("{error}");
        }
    }
}

#[test]
fn a_handful_of_buffers_is_enough_to_go_on() {
    for seed in 0..20 {
        let mut plan = short_of_buffers(8);
        plan.host.receive_buffers = 16;
        plan.host.transmit_buffers = 24;
        plan.octets = 64 << 10;
        if let Err(error) = run(seed, &plan) {
            panic!("{error}");
        }
    }
}
