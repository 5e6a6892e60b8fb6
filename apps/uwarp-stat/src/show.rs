//! A snapshot as tables.

use crate::rates::Rates;
use std::fmt::Write as _;
use std::time::Duration;
use uwarp::StatsSnapshot;
use uwarp::stats::{ConnectionStats, EngineStats, QueuePairStats};
use uwarp_app::output;
use uwarp_app::units::{format_nanoseconds, format_size};

/// All tables of a context.
pub fn snapshot(now: &StatsSnapshot, rates: &Rates, rows: usize) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "uwarp {} · process {} context {} · {} · mtu {} · {} · up {}",
        now.version,
        now.pid,
        now.context,
        now.address,
        now.mtu,
        now.mode,
        up(now.uptime_ns)
    );
    port(&mut text, now);
    engines(&mut text, now, rates);
    connections(&mut text, now, rows);
    queue_pairs(&mut text, now, rows);
    let objects = &now.objects;
    let _ = writeln!(
        text,
        "queue pairs {} of {} · completion queues {} of {} · regions {} of {} · registered {} of {} octets",
        objects.queue_pairs,
        objects.queue_pairs_limit,
        objects.completion_queues,
        objects.completion_queues_limit,
        objects.regions,
        objects.regions_limit,
        objects.registered_octets,
        format_size(objects.registered_octets_limit),
    );
    text
}

fn up(nanoseconds: u64) -> String {
    let seconds = Duration::from_nanos(nanoseconds).as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn port(text: &mut String, now: &StatsSnapshot) {
    let Some(port) = &now.port else {
        match &now.switch {
            Some(switch) => text.push_str(&format!("on the switch {}\n", switch.display())),
            None => text.push_str("no device\n"),
        }
        return;
    };
    let mut table = output::table([
        "port",
        "driver",
        "mac",
        "link",
        "rx packets",
        "rx octets",
        "tx packets",
        "tx octets",
        "missed",
        "rx errors",
        "tx errors",
        "no buffer",
    ]);
    table.add_row([
        port.device.clone(),
        port.driver.clone(),
        port.mac.clone(),
        if port.link_up { "up" } else { "down" }.to_owned(),
        port.rx_packets.to_string(),
        port.rx_octets.to_string(),
        port.tx_packets.to_string(),
        port.tx_octets.to_string(),
        port.rx_missed.to_string(),
        port.rx_errors.to_string(),
        port.tx_errors.to_string(),
        port.rx_no_buffer.to_string(),
    ]);
    output::align_numbers(&mut table, 4);
    let _ = writeln!(text, "{table}");
}

fn engines(text: &mut String, now: &StatsSnapshot, rates: &Rates) {
    let mut table = output::table([
        "engine",
        "busy",
        "wakes/s",
        "frames/s in",
        "out",
        "Mbit/s in",
        "out",
        "hot in",
        "out",
        "FPDUs in",
        "gathered",
        "out",
        "bad CRC",
        "ACKs",
        "resent",
        "timed out",
        "rx free",
        "tx free",
        "held",
        "flows",
        "their KiB",
    ]);
    for (engine, rate) in now.engines.iter().zip(&rates.engines) {
        table.add_row([
            engine.index.to_string(),
            format!("{:.1} %", rate.busy * 100.0),
            format!("{:.0}", rate.wakeups),
            format!("{:.0}", rate.frames_in),
            format!("{:.0}", rate.frames_out),
            format!("{:.1}", rate.octets_in * 8e-6),
            format!("{:.1}", rate.octets_out * 8e-6),
            format!("{:.1} %", 100.0 * engine.hot_share_received()),
            format!("{:.1} %", 100.0 * engine.hot_share_sent()),
            engine.counters.fpdus_received.to_string(),
            engine.counters.fpdus_gathered.to_string(),
            engine.counters.fpdus_sent.to_string(),
            engine.counters.crc_errors.to_string(),
            engine.counters.pure_acknowledgments.to_string(),
            engine.counters.retransmissions.to_string(),
            engine.counters.connections_timed_out.to_string(),
            format!("{}/{}", engine.pools.receive_free, engine.pools.receive_total),
            format!("{}/{}", engine.pools.transmit_free, engine.pools.transmit_total),
            engine.buffers_held.to_string(),
            engine.flows.to_string(),
            engine.connection_octets.div_ceil(1024).to_string(),
        ]);
    }
    output::align_numbers(&mut table, 1);
    let _ = writeln!(text, "{table}");
    for engine in &now.engines {
        counts(text, engine, "drops", &engine.drops);
        if engine.counters.evicted > 0 {
            let _ = writeln!(
                text,
                "engine {} ended connections that held what others needed: {}",
                engine.index, engine.counters.evicted
            );
        }
        if engine.counters.internal_faults > 0 {
            let _ = writeln!(
                text,
                "engine {} found {} faults of its own: please report them",
                engine.index, engine.counters.internal_faults
            );
        }
        if engine.counters.receive_waits > 0 {
            let _ = writeln!(
                text,
                "engine {} let messages wait for a receive: {}, in vain: {}",
                engine.index, engine.counters.receive_waits, engine.counters.receive_waits_expired
            );
        }
        if engine.counters.nudges_sent > 0 {
            let _ = writeln!(
                text,
                "engine {} sent Writes of nothing to silent peers: {}",
                engine.index, engine.counters.nudges_sent
            );
        }
        counts(text, engine, "injected faults", &engine.faults);
    }
    for silent in &now.silent_engines {
        let _ = writeln!(text, "engine {} is silent: {}", silent.index, silent.reason);
    }
}

fn counts(text: &mut String, engine: &EngineStats, what: &str, counts: &std::collections::BTreeMap<String, u64>) {
    let list: Vec<String> =
        counts.iter().filter(|(_, count)| **count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if !list.is_empty() {
        let _ = writeln!(text, "engine {} {what}: {}", engine.index, list.join(", "));
    }
}

fn connections(text: &mut String, now: &StatsSnapshot, rows: usize) {
    let mut all: Vec<&ConnectionStats> = now.engines.iter().flat_map(|engine| &engine.connections).collect();
    // First those that hold most of what they share with others.
    all.sort_by_key(|connection| std::cmp::Reverse(connection.transmit_buffers + connection.tcp.out_of_order_buffers));
    if all.is_empty() {
        return;
    }
    let mut table = output::table([
        "connection",
        "qp",
        "phase",
        "tcp",
        "rtt",
        "rto",
        "mss",
        "cwnd",
        "ssthresh",
        "snd wnd",
        "rcv wnd",
        "in flight",
        "sacked",
        "lost",
        "sent",
        "acked",
        "received",
        "resent",
        "RTOs",
        "TLPs",
        "tx bufs",
        "ooo",
        "gather",
        "dsack",
    ]);
    for connection in all.iter().take(rows) {
        let tcp = &connection.tcp;
        table.add_row([
            format!("{} → {}", connection.local, connection.remote),
            connection.queue_pair.map_or("-".to_owned(), |number| number.to_string()),
            connection.phase.clone(),
            tcp.state.to_string(),
            format!("{} ± {}", format_nanoseconds(tcp.smoothed_rtt_ns), format_nanoseconds(tcp.rtt_variation_ns)),
            format_nanoseconds(tcp.retransmission_timeout_ns),
            tcp.effective_mss.to_string(),
            tcp.congestion_window.to_string(),
            // Before the first loss it has its type's maximum.
            if tcp.slow_start_threshold == u32::MAX { "-".to_owned() } else { tcp.slow_start_threshold.to_string() },
            tcp.send_window.to_string(),
            tcp.receive_window.to_string(),
            tcp.in_flight.to_string(),
            tcp.selectively_acknowledged.to_string(),
            tcp.lost.to_string(),
            tcp.traffic.octets_sent.to_string(),
            tcp.octets_acknowledged.to_string(),
            tcp.octets_received.to_string(),
            tcp.counters.retransmissions.to_string(),
            tcp.counters.timeouts.to_string(),
            tcp.counters.tail_loss_probes.to_string(),
            connection.transmit_buffers.to_string(),
            tcp.out_of_order_buffers.to_string(),
            connection.gather_octets.to_string(),
            tcp.counters.duplicates_reported.to_string(),
        ]);
    }
    output::align_numbers(&mut table, 4);
    let _ = writeln!(text, "{table}");
    more(text, all.len(), rows, "connections");
}

fn queue_pairs(text: &mut String, now: &StatsSnapshot, rows: usize) {
    let all: Vec<&QueuePairStats> = now.engines.iter().flat_map(|engine| &engine.queue_pairs).collect();
    if all.is_empty() {
        return;
    }
    let mut table = output::table(["queue pair", "state", "sent", "received", "reads out", "reads in"]);
    for queue_pair in all.iter().take(rows) {
        table.add_row([
            queue_pair.number.to_string(),
            queue_pair.state.clone(),
            queue_pair.sends_completed.to_string(),
            queue_pair.receives_completed.to_string(),
            queue_pair.reads_outstanding.to_string(),
            queue_pair.reads_inbound.to_string(),
        ]);
    }
    output::align_numbers(&mut table, 2);
    let _ = writeln!(text, "{table}");
    more(text, all.len(), rows, "queue pairs");
}

fn more(text: &mut String, all: usize, rows: usize, what: &str) {
    if all > rows {
        let _ = writeln!(text, "and {} more {what} (--rows shows them)", all - rows);
    }
}
