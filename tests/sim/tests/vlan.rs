//! VLANs (IEEE 802.1Q): hosts of one VLAN receive from each other only.

use std::time::Duration;

use uwarp_engine::command::{ConnectFailure, ConnectionEvent, StartupOptions};
use uwarp_engine::work::{SendOpcode, Sge};
use uwarp_memory::Access;
use uwarp_testkit::rig::{HostOptions, PairOptions, World, address6, with_ipv6};
use uwarp_testkit::sim::SimOptions;

/// Two hosts, perhaps in different VLANs.
fn hosts(vlans: [Option<u16>; 2]) -> World {
    let mut world = World::new(3, SimOptions { loss: 0.01, ..SimOptions::default() });
    for (host, vlan) in vlans.into_iter().enumerate() {
        world.add(HostOptions::default(), |config| {
            with_ipv6(host)(config);
            config.vlan = vlan;
        });
    }
    world
}

#[test]
fn hosts_of_one_vlan_hear_each_other() {
    // A priority of 5 does not make a different VLAN.
    let mut world = hosts([Some(5 << 13 | 7), Some(7)]);
    let requests = world.hosts[1].listen(7471);
    for remote in [(address6(1), 7471).into(), (world.hosts[1].address, 7471).into()] {
        let mut client = world.hosts[0].pair(PairOptions::default());
        let server = world.hosts[1].pair(PairOptions::default());
        world.join_at((0, &client), (1, &server), &requests, remote);
        let length = 100_000;
        let source = world.hosts[0].register((0..length).map(|at| at as u8).collect(), Access::LOCAL_WRITE);
        let sink = world.hosts[1].register(vec![0; length as usize], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let local = Sge { stag: source.stag(), length, offset: source.base_offset() };
        assert!(client.post_simple(1, SendOpcode::Write, Some(local), (sink.stag(), sink.base_offset())));
        world.run(Duration::from_secs(5));
        let (mut sent, mut received) = (vec![0; length as usize], vec![0; length as usize]);
        source.read(0, &mut sent).expect("in range");
        sink.read(0, &mut received).expect("in range");
        assert!(sent == received);
    }
    let stats = world.hosts[0].engine.as_ref().expect("alive").stats();
    assert_eq!(stats.drops.get("wrong-vlan"), None);
}

#[test]
fn hosts_of_other_vlans_are_not_heard() {
    for vlans in [[Some(7), Some(8)], [Some(7), None], [None, Some(7)]] {
        let mut world = hosts(vlans);
        let _requests = world.hosts[1].listen(7471);
        let client = world.hosts[0].pair(PairOptions::default());
        let remote = (world.hosts[1].address, 7471);
        world.hosts[0].connect(&client, remote, StartupOptions::default());
        world.run(Duration::from_secs(20));
        let event = client.events.try_recv();
        assert!(matches!(event, Ok(ConnectionEvent::Failed(ConnectFailure::Unreachable))), "{vlans:?}: {event:?}");
        let stats = world.hosts[1].engine.as_ref().expect("alive").stats();
        assert!(stats.drops["wrong-vlan"] >= 5, "{vlans:?}");
        assert_eq!(stats.neighbours, 0, "nothing is learned from them");
    }
}

#[test]
fn a_tag_without_a_number_is_no_vlan() {
    // A priority tag (number 0) is accepted where frames have no tag, but not where they have one.
    for (own, heard) in [(None, true), (Some(7), false)] {
        let mut world = hosts([Some(5 << 13), own]);
        let _requests = world.hosts[1].listen(7471);
        world.run(Duration::from_secs(3));
        let stats = world.hosts[1].engine.as_ref().expect("alive").stats();
        assert_eq!(!stats.drops.contains_key("wrong-vlan"), heard, "{own:?}");
    }
}
