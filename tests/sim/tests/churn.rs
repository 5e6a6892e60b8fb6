//! Endless connecting, transferring and closing: nothing grows.

use std::time::Duration;

use uwarp_engine::command::{Command, ConnectionEvent, StartupOptions};
use uwarp_engine::work::{SendOpcode, Sge};
use uwarp_memory::Access;
use uwarp_testkit::rig::{HostOptions, Pair, PairOptions, World};
use uwarp_testkit::sim::SimOptions;

const PORT: u16 = 7471;
const MINUTE: Duration = Duration::from_secs(60);

/// Octets of the message that each connection carries: two segments.
const LENGTH: u32 = 2000;

/// `rounds` times `at_once` connections that carry a message, from host 0 to host 1 or the other way, at the given
/// loss.
fn churn(rounds: usize, at_once: usize, loss: f64) {
    let mut world = World::new(3, SimOptions { loss, ..SimOptions::default() });
    for _ in 0..2 {
        world.add(HostOptions { queue_pairs: 256, ..HostOptions::default() }, |config| {
            config.tcp.time_wait = Duration::from_millis(200);
        });
    }
    let requests = [world.hosts[0].listen(PORT), world.hosts[1].listen(PORT)];
    let source = [0, 1].map(|host| world.hosts[host].register(vec![7; LENGTH as usize], Access::LOCAL_READ));
    let inbox = [0, 1].map(|host| world.hosts[host].register(vec![0; at_once * LENGTH as usize], Access::LOCAL_WRITE));
    let options = PairOptions { send_depth: 8, receive_depth: 8, completions: 32, ..PairOptions::default() };
    for round in 0..rounds {
        let (from, to) = (round % 2, 1 - round % 2);
        let mut pairs: Vec<(Pair, Pair)> = (0..at_once)
            .map(|slot| {
                let number = (2 * slot) as u32;
                let client = world.hosts[from].pair_with_number(number, options);
                let server = world.hosts[to].pair_with_number(number + 1, options);
                (client, server)
            })
            .collect();
        let address = world.hosts[to].address;
        inbox[to].write(0, &vec![0; at_once * LENGTH as usize]).expect("in range");
        for (slot, (client, server)) in pairs.iter_mut().enumerate() {
            let offset = inbox[to].base_offset() + slot as u64 * u64::from(LENGTH);
            assert!(server.post_receive(1, &[Sge { stag: inbox[to].stag(), length: LENGTH, offset }]));
            let timeout = MINUTE;
            world.hosts[from].connect(client, (address, PORT), StartupOptions { timeout, ..StartupOptions::default() });
        }
        let (mut accepted, mut received, mut over) = (0, 0, 0);
        let done = world.run_until(MINUTE, |world| {
            while let Ok(request) = requests[to].try_recv() {
                world.hosts[to].accept(&pairs[accepted].1, &request, StartupOptions::default());
                accepted += 1;
            }
            for (client, server) in &mut pairs {
                while let Ok(event) = client.events.try_recv() {
                    match event {
                        ConnectionEvent::Established(_) => {
                            let whole = Sge { stag: source[from].stag(), length: LENGTH, offset: 0 };
                            assert!(client.post_simple(1, SendOpcode::Send, Some(whole), (0, 0)));
                            let queue_pair = client.number;
                            world.hosts[from].command(Command::Disconnect { queue_pair });
                        }
                        ConnectionEvent::Disconnected(_) => over += 1,
                        other => panic!("round {round}: {other:?}"),
                    }
                }
                while let Some(completion) = server.poll() {
                    received += usize::from(completion.status.is_success() && completion.length == LENGTH);
                }
            }
            received == at_once && over == at_once
        });
        assert!(done, "round {round}: {accepted} accepted, {received} received, {over} over");
        let mut octets = vec![0; at_once * LENGTH as usize];
        inbox[to].read(0, &mut octets).expect("in range");
        assert!(octets.iter().all(|octet| *octet == 7), "round {round}");
        for (client, server) in &pairs {
            let commands = [(from, client), (to, server)];
            for (host, pair) in commands {
                let queue_pair = pair.number;
                world.hosts[host].command(Command::DestroyQueuePair { queue_pair, done: None });
            }
        }
    }
    assert!(world.run_until(MINUTE, |world| {
        world.hosts.iter().all(|host| host.engine.as_ref().is_some_and(|engine| engine.flow_count() == 0))
    }));
    for host in &world.hosts {
        let engine = host.engine.as_ref().expect("alive");
        let stats = engine.stats();
        assert_eq!(engine.buffers_held(), 0);
        assert_eq!(stats.pools.transmit_free, stats.pools.transmit_total);
        assert_eq!(stats.pools.receive_free, stats.pools.receive_total);
        assert_eq!(stats.counters.connections_opened, (rounds * at_once) as u64);
        assert_eq!(stats.counters.connections_opened, stats.counters.connections_closed);
        assert!(stats.queue_pairs.is_empty());
    }
}

#[test]
fn ten_thousand_connections_each_way_leave_nothing_behind() {
    churn(200, 100, 0.0);
}

#[test]
fn connections_come_and_go_at_one_percent_loss() {
    churn(20, 100, 0.01);
}
