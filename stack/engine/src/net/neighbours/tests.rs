use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 10];

fn host() -> IpAddress {
    Ipv4Addr::new(10, 0, 0, 2).into()
}

fn fixed() -> IpAddress {
    Ipv4Addr::new(10, 0, 0, 9).into()
}

fn host6() -> IpAddress {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into()
}

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

fn table() -> Neighbours {
    Neighbours::new(8, [(fixed(), MAC)].into_iter(), KeyedHash::new([1, 2]))
}

fn answer(solicited: bool, overrides: bool, mac: [u8; 6]) -> Advertisement {
    Advertisement { mac: Some(mac), solicited, overrides }
}

/// A table in which the host is reachable since time 0.
fn reachable(address: IpAddress) -> Neighbours {
    let mut table = table();
    table.resolve(at(0), address);
    table.poll_request();
    table.advertised(at(0), address, answer(true, true, MAC));
    table
}

/// Runs all deadlines up to `until`; gives the requests with their times in ms.
fn run(table: &mut Neighbours, until: u64) -> Vec<(u64, Option<[u8; 6]>)> {
    let mut asked = Vec::new();
    while let Some(deadline) = table.deadline().filter(|deadline| *deadline <= at(until)) {
        table.on_deadline(deadline);
        while let Some(request) = table.poll_request() {
            asked.push((deadline.as_nanos() / 1_000_000, request.mac));
        }
    }
    asked
}

#[test]
fn an_answer_makes_the_address_known() {
    for address in [host(), host6()] {
        let mut table = table();
        let epoch = table.epoch();
        assert_eq!(table.resolve(at(0), address), Resolution::Pending);
        assert_eq!(table.poll_request(), Some(Request { target: address, mac: None }));
        table.advertised(at(1), address, answer(true, true, MAC));
        assert_ne!(table.epoch(), epoch);
        assert_eq!(table.resolve(at(2), address), Resolution::Known(MAC));
    }
}

#[test]
fn silence_is_unreachable() {
    // Three solicitations a second apart (RFC 4861 §7.2.2, §10); ARP is quicker at first.
    for (address, asked, given_up) in [(host(), 4, 3100), (host6(), 2, 3000)] {
        let mut table = table();
        table.resolve(at(0), address);
        table.poll_request();
        assert_eq!(run(&mut table, given_up - 1).len(), asked);
        assert_eq!(table.poll_unreachable(), None);
        run(&mut table, given_up);
        assert_eq!(table.poll_unreachable(), Some(address));
    }
}

#[test]
fn an_address_in_use_is_confirmed_by_unicast_and_then_given_up() {
    // RFC 4861 §7.3.3: Reachable, Stale, with the next packet Delay for 5 s, Probe three times a second apart.
    for address in [host(), host6()] {
        let mut table = reachable(address);
        let epoch = table.epoch();
        assert_eq!(run(&mut table, 14_999), []);
        assert_eq!(table.epoch(), epoch, "reachable for half of the base time at least");
        assert_eq!(run(&mut table, 45_000), []);
        assert_ne!(table.epoch(), epoch, "whoever sends has to look again");
        assert_eq!(table.resolve(at(50_000), address), Resolution::Known(MAC));
        assert_eq!(run(&mut table, 57_999), [(55_000, Some(MAC)), (56_000, Some(MAC)), (57_000, Some(MAC))]);
        assert_eq!(table.resolve(at(57_999), address), Resolution::Known(MAC), "in use until the last moment");
        run(&mut table, 58_000);
        assert_eq!(table.resolve(at(58_001), address), Resolution::Pending);
    }
}

#[test]
fn an_answer_to_a_probe_changes_nothing_for_its_users() {
    let mut table = reachable(host());
    run(&mut table, 45_000);
    table.resolve(at(45_000), host());
    run(&mut table, 50_500);
    let epoch = table.epoch();
    table.advertised(at(50_600), host(), answer(true, true, MAC));
    assert_eq!(table.epoch(), epoch);
    assert_eq!(run(&mut table, 50_600 + 14_999), []);
}

#[test]
fn advertisements_override_as_they_say() {
    // RFC 4861 §7.2.5, appendix C.
    let epoch_after = |said: Advertisement| {
        let mut table = reachable(host6());
        let epoch = table.epoch();
        table.advertised(at(1), host6(), said);
        let Resolution::Known(mac) = table.resolve(at(1), host6()) else { panic!("known") };
        // What is no longer held for reachable is probed 5 s after its next use.
        (mac, table.epoch() != epoch, run(&mut table, 5_001).len() == 1)
    };
    assert_eq!(epoch_after(answer(false, false, OTHER)), (MAC, true, true), "doubt, and nothing else");
    assert_eq!(epoch_after(answer(true, false, OTHER)), (MAC, true, true));
    assert_eq!(epoch_after(answer(false, true, OTHER)), (OTHER, true, true));
    assert_eq!(epoch_after(answer(true, true, OTHER)), (OTHER, true, false));
    assert_eq!(epoch_after(answer(false, true, MAC)), (MAC, false, false));
    assert_eq!(epoch_after(Advertisement { mac: None, solicited: true, overrides: false }), (MAC, false, false));
    // Without a hardware address there is nothing to resolve by.
    let mut table = table();
    table.resolve(at(0), host6());
    table.advertised(at(1), host6(), Advertisement { mac: None, solicited: true, overrides: true });
    assert_eq!(table.resolve(at(2), host6()), Resolution::Pending);
    // Nobody makes an entry by an advertisement.
    table.advertised(at(1), host(), answer(true, true, MAC));
    assert_eq!(table.len(), 2);
}

#[test]
fn strangers_make_no_entry_and_cannot_move_a_static_one() {
    let mut table = table();
    table.observe(at(0), host(), MAC, false);
    table.observe(at(0), fixed(), [6; 6], true);
    table.advertised(at(0), fixed(), answer(true, true, [6; 6]));
    assert_eq!(table.len(), 1);
    assert_eq!(table.resolve(at(0), fixed()), Resolution::Known(MAC));
    table.observe(at(0), host(), MAC, true);
    assert_eq!(table.resolve(at(1), host()), Resolution::Known(MAC));
    assert_eq!(run(&mut table, 5_001), [(5_001, Some(MAC))], "heard of, but not known to hear us");
}

#[test]
fn a_full_table_forgets_who_is_quiet_and_never_who_is_asked_for() {
    let mut table = table();
    for last in 20..27 {
        table.observe(at(last), Ipv4Addr::new(10, 0, 0, last as u8).into(), MAC, true);
    }
    assert_eq!(table.len(), 8);
    for last in 40..47u8 {
        assert_eq!(table.resolve(at(100), Ipv4Addr::new(10, 0, 0, last).into()), Resolution::Pending);
    }
    assert_eq!(table.resolve(at(100), host()), Resolution::Full);
    table.observe(at(100), host(), MAC, true);
    assert_eq!(table.len(), 8);
}

#[test]
fn a_flood_of_strangers_leaves_who_is_in_use_and_keeps_no_list_of_them() {
    let mut table = reachable(host());
    table.observe(at(1), host6(), MAC, true);
    assert_eq!(table.resolve(at(1), host6()), Resolution::Known(MAC));
    for stranger in 0..10_000u32 {
        let address = Ipv4Addr::from(0x0a01_0000 + stranger).into();
        table.observe(at(2), address, OTHER, true);
        assert_eq!(table.table[&address].mac, OTHER, "the newest is there");
        assert!(table.len() <= 8 && table.quiet.len() <= 17, "{} and {}", table.len(), table.quiet.len());
    }
    // Who comes and goes makes no list either.
    for round in 0..1_000u64 {
        let mac = if round % 2 == 0 { MAC } else { OTHER };
        table.observe(at(3), Ipv4Addr::from(0x0a01_0000 + 9_999).into(), mac, true);
        assert!(table.quiet.len() <= 17, "{}", table.quiet.len());
    }
    for address in [host(), host6(), fixed()] {
        assert_eq!(table.resolve(at(4), address), Resolution::Known(MAC));
    }
}

#[test]
fn of_stale_entries_the_one_that_was_quiet_longest_goes_and_then_the_one_confirmed_first() {
    let address = |last: u8| IpAddress::from(Ipv4Addr::new(10, 0, 0, last));
    let mut table = table();
    for last in 20..27 {
        table.observe(at(u64::from(last)), address(last), MAC, true);
    }
    // It moved: heard of again.
    table.observe(at(30), address(20), OTHER, true);
    for last in [21, 22] {
        table.table.insert(address(last), Neighbour { mac: MAC, state: State::Reachable { until: at(last.into()) } });
    }
    let mut gone = Vec::new();
    for last in 40..47 {
        let before: Vec<_> = table.table.keys().copied().collect();
        assert_eq!(table.resolve(at(50), address(last)), Resolution::Pending);
        gone.extend(before.into_iter().filter(|known| !table.table.contains_key(known)));
    }
    assert_eq!(gone, [23, 24, 25, 26, 20, 21, 22].map(address));
}

#[test]
fn what_nobody_uses_is_forgotten() {
    let mut table = reachable(host());
    run(&mut table, 700_000);
    assert_eq!(table.len(), 1);
    assert_eq!(table.deadline(), None);
}

/// A connection whose copy is void looks its next hop up again.
#[test]
fn a_flood_of_strangers_voids_no_copy() {
    let mut table = table();
    let known = Ipv4Addr::new(10, 0, 0, 3).into();
    table.resolve(at(0), known);
    table.advertised(at(0), known, answer(true, true, OTHER));
    let epoch = table.epoch();
    for stranger in 0..1000 {
        table.observe(at(1), Ipv4Addr::from(0x0a01_0000 + stranger).into(), MAC, true);
    }
    assert_eq!((table.epoch(), table.len()), (epoch, 8));
    assert_eq!(table.resolve(at(2), known), Resolution::Known(OTHER));
}
