use std::net::Ipv4Addr;

use super::*;

fn flow(number: u32) -> FlowKey {
    FlowKey {
        remote: Ipv4Addr::from(0x0a00_0000 | number).into(),
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        remote_port: number as u16,
        local_port: 7471,
    }
}

#[test]
fn a_flow_has_one_owner_at_a_time() {
    let owners = FlowOwners::new(100, [7, 1]);
    assert_eq!(owners.find(&flow(1)), None);
    assert_eq!([0, 0, 3].map(|engine| owners.claim(&flow(1), engine)), [Claim::Granted, Claim::Granted, Claim::Taken]);
    assert_eq!((owners.find(&flow(1)), owners.len()), (Some(0), 1));
    owners.release(&flow(1), 3);
    assert_eq!(owners.find(&flow(1)), Some(0), "only its owner takes it out");
    owners.release(&flow(1), 0);
    assert!(owners.is_empty() && owners.claim(&flow(1), 3) == Claim::Granted);
}

/// A flow that is refused is refused again as long as its neighbours live, and so is the peer that wants it.
#[test]
fn a_table_has_room_for_as_many_flows_as_it_was_made_for_and_mistakes_none() {
    for (flows, secret) in [(8, 1), (100, 2), (1000, 3), (1024, 4), (65_536, 5)] {
        let owners = FlowOwners::new(flows, [secret, 1]);
        let flows = flows as u32;
        for number in 0..flows {
            assert_eq!(owners.claim(&flow(number), (number % 5) as u16), Claim::Granted, "{number} of {flows}");
        }
        assert_eq!(owners.len(), flows as usize);
        for number in 0..flows {
            assert_eq!(owners.find(&flow(number)), Some((number % 5) as u16));
        }
        assert!((flows..3 * flows).all(|number| owners.find(&flow(number)).is_none()), "strangers");
        for number in 0..flows {
            owners.release(&flow(number), (number % 5) as u16);
        }
        assert!(owners.is_empty());
    }
}

/// Flows come and go for long: the room does not get less.
#[test]
fn a_table_that_stays_full_takes_new_flows_for_old_ones() {
    let owners = FlowOwners::new(1024, [9, 1]);
    for number in 0..200_000 {
        if number >= 1024 {
            owners.release(&flow(number - 1024), 1);
        }
        assert_eq!(owners.claim(&flow(number), 1), Claim::Granted, "{number}");
    }
    assert_eq!(owners.len(), 1024);
}

#[test]
fn a_full_table_says_so() {
    let owners = FlowOwners::new(8, [7, 1]);
    let claims: Vec<Claim> = (0..40).map(|number| owners.claim(&flow(number), 0)).collect();
    assert_eq!(claims.iter().filter(|claim| **claim == Claim::Granted).count(), 16);
    assert!(claims[16..].iter().all(|claim| *claim == Claim::NoRoom), "who finds no room is told so");
}

#[test]
fn of_many_threads_that_want_the_same_flow_at_most_one_has_it() {
    for round in 0..200 {
        let owners = FlowOwners::new(16, [round, 1]);
        let won: usize = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..4)
                .map(|engine| {
                    scope.spawn({
                        let owners = &owners;
                        move || usize::from(owners.claim(&flow(9), engine) == Claim::Granted)
                    })
                })
                .collect();
            claims.into_iter().map(|claim| claim.join().expect("no panic")).sum()
        });
        assert!(won <= 1, "{won} have it");
        assert_eq!(owners.len(), won);
    }
}

#[test]
fn frames_of_any_length_pass_the_rings_whole_and_in_order() {
    let mut parts = Handoff::between(3, 16, 16, [1, 1]);
    let mut last = parts.pop().expect("three");
    let mut first = parts.remove(0);
    // The last one is a joined one.
    let lengths = [0, 1, 251, 252, 253, 508, 1514, 9014, 65_535 + 18];
    let frame = |length: usize| (0..length).map(|at| (at * 3) as u8).collect::<Vec<u8>>();
    let (mut sent, mut received) = (Counters::default(), Counters::default());
    for length in lengths {
        let octets = frame(length);
        let (a, b) = octets.split_at(length / 3);
        first.send(&mut sent, 2, length, length % 2 == 0, [a, b].into_iter());
    }
    assert!(last.has_frames() && !parts[0].has_frames());
    let mut out = Vec::new();
    for length in lengths {
        assert_eq!(last.receive(&mut received, &mut out), Some(length % 2 == 0));
        assert_eq!(out, frame(length));
    }
    assert!(last.receive(&mut received, &mut out).is_none() && !last.has_frames());
    // A full ring takes no part of a frame, and that is counted.
    let before = sent.handed_off;
    while sent.drops[DropReason::HandoffFull as usize] == 0 {
        first.send(&mut sent, 2, 1514, true, std::iter::once(&frame(1514)[..]));
    }
    let mut taken = 0;
    while last.receive(&mut received, &mut out).is_some() {
        assert_eq!(out, frame(1514));
        taken += 1;
    }
    assert_eq!(before + taken, sent.handed_off);
}

#[test]
fn a_flood_from_one_engine_does_not_keep_the_others_waiting() {
    let mut parts = Handoff::between(4, 16, 16, [1, 1]);
    let mut last = parts.pop().expect("four");
    let mut counters = Counters::default();
    for (sender, frames) in [(0, 8), (1, 2), (2, 1)] {
        for _ in 0..frames {
            parts[sender].send(&mut counters, 3, 60, true, std::iter::once(&[sender as u8; 60][..]));
        }
    }
    let mut out = Vec::new();
    let mut senders = Vec::new();
    while last.receive(&mut counters, &mut out).is_some() {
        senders.push(out[0]);
    }
    assert_eq!(senders, [1, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "not as long as the frame"))]
fn a_frame_that_is_not_as_long_as_it_says_is_not_handed_over() {
    let mut parts = Handoff::between(2, 16, 16, [1, 1]);
    let mut counters = Counters::default();
    let long = [0; 2000];
    for octets in [999, 1001, 2000] {
        parts[0].send(&mut counters, 1, 1000, true, std::iter::once(&long[..octets]));
    }
    assert_eq!((counters.internal_faults, counters.handed_off, parts[1].has_frames()), (3, 0, false));
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "an engine that is not there"))]
fn no_engine_hands_a_frame_to_itself() {
    let mut parts = Handoff::between(2, 16, 16, [1, 1]);
    let mut counters = Counters::default();
    parts[0].send(&mut counters, 0, 10, true, std::iter::once(&[0; 10][..]));
    assert_eq!((counters.internal_faults, counters.handed_off), (1, 0));
}

/// Two flows with one tag would be taken for one, and the second refused.
#[test]
fn flows_from_addresses_that_a_peer_chooses_are_told_apart_under_any_secret() {
    for network in [0x3f53_d648_3683_af22u64, 0xc0ac_29b7_c97c_50dd] {
        for secret in [[0, 0], [1, 2], [u64::MAX, 7]] {
            let owners = FlowOwners::new(1000, secret);
            for host in 0..1000u128 {
                let remote = std::net::Ipv6Addr::from((u128::from(network) << 64) | (host * host)).into();
                let flow = FlowKey { remote, local: std::net::Ipv6Addr::LOCALHOST.into(), ..flow(7) };
                assert_eq!(owners.claim(&flow, (host % 3) as u16), Claim::Granted, "host {host}");
            }
        }
    }
}
