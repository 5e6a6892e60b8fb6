//! What the console shows: tables for people, values for programs.

use crate::ports::{Open, Tally};
use crate::reply::Reply;
use crate::session::{Session, Settings};
use serde_json::{Map, Value, json};
use uwarp_app::output::{align_numbers, table};
use uwarp_dpdk::PoolLevels;
use uwarp_engine::ports::decorated::{FaultRates, Rates};

/// An Ethernet address as people write it.
fn address(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// A rate with three figures.
fn rate(value: f64) -> String {
    match value {
        _ if value >= 1e9 => format!("{:.2} G", value / 1e9),
        _ if value >= 1e6 => format!("{:.2} M", value / 1e6),
        _ if value >= 1e3 => format!("{:.2} k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

/// Lays out one column for each port, and the same as values. `of` gives the cells of an open port, in the order of
/// their names.
fn by_port(
    session: &mut Session,
    ports: &[usize],
    names: &[&str],
    mut of: impl FnMut(&mut Open) -> Vec<(String, Value)>,
) -> Reply {
    let mut shown = table([String::new()].into_iter().chain(ports.iter().map(|number| format!("port {number}"))));
    let mut rows: Vec<Vec<String>> = names.iter().map(|name| vec![(*name).to_owned()]).collect();
    let mut values = Vec::new();
    for &number in ports {
        let Some(open) = &mut session.ports[number].open else {
            rows.iter_mut().for_each(|row| row.push("stopped".to_owned()));
            values.push(json!({ "port": number, "state": "stopped" }));
            continue;
        };
        let mut value = Map::from_iter([("port".to_owned(), json!(number)), ("state".to_owned(), json!("started"))]);
        for ((name, row), (text, cell)) in names.iter().zip(&mut rows).zip(of(open)) {
            row.push(text);
            value.insert(name.replace('-', "_").to_lowercase(), cell);
        }
        values.push(value.into());
    }
    rows.into_iter().for_each(|row| {
        shown.add_row(row);
    });
    align_numbers(&mut shown, 1);
    Reply::new(shown, values.into())
}

fn count(value: u64) -> (String, Value) {
    (value.to_string(), value.into())
}

fn per_second(value: f64) -> (String, Value) {
    (rate(value), json!(value.round() as u64))
}

/// `show port info`.
pub fn info(session: &mut Session, ports: &[usize]) -> Reply {
    let mut texts = Vec::new();
    let mut values = Vec::new();
    for &number in ports {
        let slot = &session.ports[number];
        let kind = uwarp_app::network::device_name(Some(&slot.plan.device));
        let Some(open) = &slot.open else {
            texts.push(format!("port {number}: {kind}, stopped"));
            values.push(json!({ "port": number, "kind": kind, "state": "stopped" }));
            continue;
        };
        let (info, link) = (open.port.info(), open.port.link());
        let can = &info.capabilities;
        let state = if link.up { "up" } else { "down" };
        let mut shown = table([format!("port {number}"), kind.clone()]);
        let node = info.numa_node.map_or_else(|| "none".to_owned(), |node| node.to_string());
        let offloads = [
            (can.tx_ipv4_checksum, "IPv4 checksum"),
            (can.tx_tcp_checksum, "TCP checksum"),
            (can.tso, "TSO"),
            (can.rss, "RSS"),
            (can.tx_multi_segment, "frames of several buffers"),
        ];
        let offloads: Vec<&str> = offloads.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        for (name, text) in [
            ("driver", info.driver.clone()),
            ("device", info.device.clone()),
            ("MAC address", address(can.mac)),
            ("link", format!("{state}, {} Mbit/s as the driver says", link.speed)),
            ("MTU", can.mtu.to_string()),
            ("longest frame", can.max_frame.to_string()),
            ("queues", format!("1 of {}", can.max_queues)),
            ("switched on", if offloads.is_empty() { "none of the offloads".to_owned() } else { offloads.join(", ") }),
            ("NUMA node", node),
        ] {
            shown.add_row([name, &text]);
        }
        texts.push(shown.to_string());
        values.push(json!({
            "port": number, "kind": kind, "state": "started", "link": state, "driver": info.driver,
            "device": info.device, "mac": address(can.mac), "speed": link.speed, "numa_node": info.numa_node,
            "capabilities": can,
        }));
    }
    Reply::new(texts.join("\n"), values.into())
}

/// `show port stats`.
pub fn statistics(session: &mut Session, ports: &[usize]) -> Reply {
    let names = [
        "RX-packets",
        "RX-octets",
        "RX-missed",
        "RX-errors",
        "RX-nombuf",
        "TX-packets",
        "TX-octets",
        "TX-errors",
        "Rx-pps",
        "Tx-pps",
    ];
    by_port(session, ports, &names, |open| {
        let (device, rates) = (open.tally().device, open.rates());
        let counts = [
            device.rx_packets,
            device.rx_octets,
            device.rx_missed,
            device.rx_errors,
            device.rx_no_buffer,
            device.tx_packets,
            device.tx_octets,
            device.tx_errors,
        ];
        counts.into_iter().map(count).chain([rates.rx_packets, rates.tx_packets].map(per_second)).collect()
    })
}

/// `show stats`.
pub fn rates(session: &mut Session) -> Reply {
    let all: Vec<usize> = (0..session.ports.len()).collect();
    by_port(session, &all, &["Rx-pps", "Tx-pps", "Rx-bps", "Tx-bps", "TX-dropped"], |open| {
        let (rates, dropped) = (open.rates(), open.tally().full);
        let all = [rates.rx_packets, rates.tx_packets, rates.rx_bits, rates.tx_bits];
        all.map(per_second).into_iter().chain([count(dropped)]).collect()
    })
}

/// `show port xstats`.
pub fn extended(session: &mut Session, ports: &[usize]) -> Reply {
    let mut texts = Vec::new();
    let mut values = Vec::new();
    for &number in ports {
        let Some(open) = &session.ports[number].open else {
            texts.push(format!("port {number}: stopped"));
            values.push(json!({ "port": number, "state": "stopped" }));
            continue;
        };
        let all = open.extended();
        let mut shown = table([format!("port {number}"), String::new()]);
        for (name, value) in &all {
            shown.add_row([name.clone(), value.to_string()]);
        }
        align_numbers(&mut shown, 1);
        texts.push(shown.to_string());
        let all: Map<String, Value> = all.into_iter().map(|(name, value)| (name, value.into())).collect();
        values.push(json!({ "port": number, "state": "started", "xstats": all }));
    }
    Reply::new(texts.join("\n"), values.into())
}

/// `show drops`.
///
/// # Errors
/// The forwarding core has failed.
pub fn drops(session: &mut Session) -> anyhow::Result<Reply> {
    let all: Vec<usize> = (0..session.ports.len()).collect();
    let mut lost = Vec::new();
    for &port in &all {
        let counts = match session.ports[port].open {
            Some(_) => session.fault_counts(port)?,
            None => continue,
        };
        lost.push(counts.iter().filter(|(name, _)| name.ends_with("-lost")).map(|(_, count)| count).sum::<u64>());
    }
    let mut lost = lost.into_iter();
    let names = ["rx-missed", "rx-errors", "rx-nombuf", "tx-errors", "tx-full", "no-buffer", "too-short", "fault"];
    Ok(by_port(session, &all, &names, |open| {
        let Tally { device, full, no_buffer, short, .. } = open.tally();
        let fault = lost.next().unwrap_or(0);
        let all =
            [device.rx_missed, device.rx_errors, device.rx_no_buffer, device.tx_errors, full, no_buffer, short, fault];
        all.into_iter().map(count).collect()
    }))
}

/// What forwarding did, as `stop` says it.
pub fn forwarded(session: &mut Session) -> Reply {
    let all: Vec<usize> = (0..session.ports.len()).collect();
    by_port(session, &all, &["RX-packets", "TX-packets", "TX-dropped", "discarded"], |open| {
        let Tally { forwarded: [received, sent], full, discarded, .. } = open.tally();
        [received, sent, full, discarded].into_iter().map(count).collect()
    })
}

/// `show memory`.
pub fn memory(session: &mut Session) -> Reply {
    let all: Vec<usize> = (0..session.ports.len()).collect();
    let mut reply = by_port(session, &all, &["RX-free", "RX-total", "TX-free", "TX-total"], |open| {
        let PoolLevels { rx_free, rx_total, tx_free, tx_total } = open.port.pool_levels();
        [rx_free, rx_total, tx_free, tx_total].into_iter().map(|number| count(number.into())).collect()
    });
    let config = session.eal.config();
    let unused = session.eal.unused_pools().len();
    let from = if config.hugepages { "hugepages" } else { "ordinary memory" };
    reply.text = format!(
        "DPDK has {} MiB of {from}; {unused} buffer pools wait for another port\n{}",
        config.memory_mib, reply.text
    );
    reply.value = json!({
        "mib": config.memory_mib, "hugepages": config.hugepages, "unused_pools": unused, "ports": reply.value,
    });
    reply
}

/// `show config fwd`.
pub fn forwarding(session: &mut Session) -> Reply {
    let settings = session.running_with.unwrap_or(session.settings);
    let state = if session.is_running() { "running" } else { "stopped" };
    let Settings { mode, topology, burst, length, count, cpu } = settings;
    let exits = Session::exits(topology, session.ports.len());
    let is_alone = matches!(mode, "rxonly" | "txonly");
    let streams: Vec<String> = exits
        .iter()
        .enumerate()
        .map(|(from, to)| match is_alone {
            true => format!("port {from}: {mode}"),
            false => format!("port {from} receives, port {to} sends"),
        })
        .collect();
    let on = cpu.map_or_else(|| "any CPU".to_owned(), |cpu| format!("CPU {cpu}"));
    let mut text = format!(
        "{mode}, {topology}, bursts of {burst}; own frames of {length} octets; one core on {on}, {state}\n{}",
        streams.join("\n")
    );
    if session.running_with.is_some_and(|running| running != session.settings) {
        text.push_str("\nOther settings count from the next 'start' on.");
    }
    let value = json!({
        "state": state, "mode": mode, "topology": topology, "burst": burst, "txpkts": length, "txcount": count,
        "cpu": cpu, "exits": exits,
    });
    Reply::new(text, value)
}

/// The rates of a direction, by the words of `set fault`.
fn shares(rates: &Rates) -> Vec<(&'static str, f64)> {
    let all = [
        ("loss", rates.loss),
        ("duplicate", rates.duplication),
        ("reorder", rates.reordering),
        ("corrupt", rates.corruption),
        ("mark", rates.marking),
    ];
    all.into_iter().filter(|(_, share)| *share > 0.0).map(|(name, share)| (name, share * 100.0)).collect()
}

/// What the faults of a port are, in words and as a value.
fn faults_of(rates: &FaultRates) -> (String, Value) {
    let mut words = Vec::new();
    let mut value = Map::new();
    for (name, direction) in [("transmit", &rates.transmit), ("receive", &rates.receive)] {
        let shares = shares(direction);
        words.extend(shares.iter().map(|(kind, share)| format!("{name} {kind} {share}%")));
        value
            .insert(name.to_owned(), shares.into_iter().map(|(kind, share)| (kind.to_owned(), json!(share))).collect());
    }
    let recut = rates.recutting.cutting * 100.0;
    if recut > 0.0 {
        words.push(format!("recut {recut}%"));
    }
    value.insert("recut".to_owned(), json!(recut));
    value.insert("seed".to_owned(), rates.seed.into());
    (words.join(", "), value.into())
}

/// `show fault`.
///
/// # Errors
/// The forwarding core has failed.
pub fn faults(session: &mut Session) -> anyhow::Result<Reply> {
    let mut texts = Vec::new();
    let mut values = Vec::new();
    for number in 0..session.ports.len() {
        let Some(rates) = session.ports[number].open.as_ref().and_then(|open| open.faults) else { continue };
        let counts = session.fault_counts(number)?;
        let (words, rates) = faults_of(&rates);
        let done: Vec<String> =
            counts.iter().filter(|(_, count)| **count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        let done = if done.is_empty() { "none so far".to_owned() } else { done.join(", ") };
        texts.push(format!("port {number}: {words}; {done}"));
        values.push(json!({ "port": number, "rates": rates, "counts": counts }));
    }
    if texts.is_empty() {
        texts.push("no port has faults: 'help set fault' says how it gets them".to_owned());
    }
    Ok(Reply::new(texts.join("\n"), values.into()))
}
