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
    let owners = FlowOwners::new(100, 7);
    assert_eq!(owners.find(&flow(1)), None);
    assert_eq!([0, 0, 3].map(|engine| owners.claim(&flow(1), engine)), [Claim::Granted, Claim::Granted, Claim::Taken]);
    assert_eq!((owners.find(&flow(1)), owners.len()), (Some(0), 1));
    owners.release(&flow(1), 3);
    assert_eq!(owners.find(&flow(1)), Some(0), "only its owner takes it out");
    owners.release(&flow(1), 0);
    assert!(owners.is_empty() && owners.claim(&flow(1), 3) == Claim::Granted);
}

#[test]
fn a_table_as_full_as_it_may_be_knows_nearly_all_and_mistakes_none() {
    let owners = FlowOwners::new(1000, 7);
    let claims: Vec<Claim> = (0..1000).map(|number| owners.claim(&flow(number), (number % 5) as u16)).collect();
    let granted = claims.iter().filter(|claim| **claim == Claim::Granted).count();
    assert_eq!(granted, owners.len());
    assert!(!claims.contains(&Claim::Taken), "who finds no room is told so");
    let known = (0..1000).filter(|number| owners.find(&flow(*number)) == Some((number % 5) as u16)).count();
    let strangers = (1000..3000).filter(|number| owners.find(&flow(*number)).is_some()).count();
    assert_eq!((known, strangers), (owners.len(), 0));
    assert!(known > 990, "{known}");
    for number in 0..1000 {
        owners.release(&flow(number), (number % 5) as u16);
    }
    assert!(owners.is_empty());
}

#[test]
fn of_many_threads_that_want_the_same_flow_at_most_one_has_it() {
    for round in 0..200 {
        let owners = FlowOwners::new(16, round);
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
    let mut parts = Handoff::between(3, 64, 16, 1);
    let mut last = parts.pop().expect("three");
    let mut first = parts.remove(0);
    let lengths = [0, 1, 251, 252, 253, 508, 1514, 9014];
    let frame = |length: usize| (0..length).map(|at| (at * 3) as u8).collect::<Vec<u8>>();
    for length in lengths {
        let octets = frame(length);
        let (a, b) = octets.split_at(length / 3);
        assert!(first.send(2, length, length % 2 == 0, [a, b].into_iter()));
    }
    assert!(last.has_frames() && !parts[0].has_frames());
    let mut out = Vec::new();
    for length in lengths {
        assert_eq!(last.receive(&mut out), Some(length % 2 == 0));
        assert_eq!(out, frame(length));
    }
    assert!(last.receive(&mut out).is_none() && !last.has_frames());
    assert!(!first.send(0, 10, true, std::iter::once(&[0; 10][..])), "nobody hands to himself");
    // A full ring takes no part of a frame.
    while first.send(2, 1514, true, std::iter::once(&frame(1514)[..])) {}
    while last.receive(&mut out).is_some() {
        assert_eq!(out, frame(1514));
    }
}
