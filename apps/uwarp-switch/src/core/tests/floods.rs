//! SYN floods at a client that listens: they take no place from the connections that there are.

use super::uplink::{HOST, UPLINK, arrive, arriving, destined, joined, leaving};
use super::*;

const PORT: u16 = 7471;
/// The most connections that are followed on account of one client.
const MOST: usize = 4096;

/// What acknowledges the SYNs that are built here.
const RIGHT: u32 = 1001;

fn acknowledging(mut frame: Vec<u8>, number: u32) -> Vec<u8> {
    frame[42..46].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The listening client answers a SYN from a host's port; the host acknowledges that, or does not.
fn open_outside(switch: &mut Switch, port: u16, number: Option<u32>) {
    arrive(switch, destined(arriving((port, PORT)).flags(TcpFlags::SYN).build(), UPLINK));
    judge(switch, 0, destined(leaving(0, (PORT, port)).flags(TcpFlags::SYN | TcpFlags::ACK).build(), HOST));
    if let Some(number) = number {
        arrive(switch, acknowledging(destined(arriving((port, PORT)).build(), UPLINK), number));
    }
}

/// The same from a port of client 1.
fn open_inside(switch: &mut Switch, port: u16, number: Option<u32>) {
    judge(switch, 1, Segment::new(1, (port, PORT)).flags(TcpFlags::SYN).build());
    judge(switch, 0, Segment::new(0, (PORT, port)).flags(TcpFlags::SYN | TcpFlags::ACK).build());
    if let Some(number) = number {
        judge(switch, 1, acknowledging(Segment::new(1, (port, PORT)).build(), number));
    }
}

/// The ports of the peers that are asked when client 0 is gone.
fn asked(switch: &mut Switch) -> Vec<u16> {
    let frames = switch.leave(client(0)).into_iter().map(|probe| probe.frame);
    let mut ports: Vec<u16> = frames.map(|frame| u16::from_be_bytes([frame[36], frame[37]])).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn half_open_connections_with_hosts_give_way_to_others() {
    let mut switch = joined(1);
    switch.reserve(client(0), PORT, None).unwrap();
    (1..=100).for_each(|port| open_outside(&mut switch, port, Some(RIGHT)));
    // Whoever sends in another's name does not know the right number.
    (1000..7000).for_each(|port| open_outside(&mut switch, port, Some(77)));
    assert_eq!(switch.followed_outside(), MOST);
    // In the middle of a flood one opens, and one that is still on its way is not the first to go.
    open_outside(&mut switch, 101, None);
    (7000..8000).for_each(|port| open_outside(&mut switch, port, None));
    arrive(&mut switch, acknowledging(destined(arriving((101, PORT)).build(), UPLINK), RIGHT));
    (10_000..30_000).for_each(|port| open_outside(&mut switch, port, None));
    assert_eq!(switch.followed_outside(), MOST);
    let asked = asked(&mut switch);
    assert_eq!((asked.len(), &asked[..102]), (MOST, &[(1..=101).collect::<Vec<u16>>(), vec![26_005]].concat()[..]));
}

#[test]
fn half_open_connections_between_clients_give_way_to_others() {
    let mut switch = switch(2);
    let own = first_port(&switch, 1);
    for listener in 0..8 {
        switch.reserve(client(0), PORT + listener, None).unwrap();
    }
    open_inside(&mut switch, own, Some(RIGHT));
    // All other ports of the client, to all listeners.
    for listener in 0..8 {
        for port in own + 1..own + 1024 {
            judge(
                &mut switch,
                0,
                Segment::new(0, (PORT + listener, port)).flags(TcpFlags::SYN | TcpFlags::ACK).build(),
            );
        }
    }
    assert_eq!(switch.followed(), MOST);
    assert_eq!(asked(&mut switch).first(), Some(&own));
    assert_eq!(switch.followed(), 0);
}

#[test]
fn open_connections_give_way_to_none_until_they_end() {
    let mut switch = joined(1);
    switch.reserve(client(0), PORT, None).unwrap();
    (1..=MOST as u16).for_each(|port| open_outside(&mut switch, port, Some(RIGHT)));
    open_outside(&mut switch, 5000, Some(RIGHT));
    // One is reset, and there is room for one.
    arrive(&mut switch, destined(arriving((7, PORT)).flags(TcpFlags::RST).build(), UPLINK));
    open_outside(&mut switch, 5001, None);
    open_outside(&mut switch, 5002, Some(RIGHT));
    assert_eq!(switch.followed_outside(), MOST);
    let asked = asked(&mut switch);
    assert_eq!((asked.len(), asked.contains(&7)), (MOST, false));
    assert_eq!(asked[MOST - 1], 5002);
}

/// Segments in a host's name that end its connection, if they are in the window.
fn end_from_outside(switch: &mut Switch, port: u16) {
    for flags in [TcpFlags::RST, TcpFlags::FIN | TcpFlags::ACK] {
        let (verdict, _) = arrive(switch, destined(arriving((port, PORT)).flags(flags).build(), UPLINK));
        assert!(matches!(verdict, Verdict::Forward { to, .. } if to == client(0)), "its TCP judges");
    }
}

#[test]
fn a_host_that_was_reset_in_its_name_is_told_of_the_clients_death() {
    let mut switch = joined(1);
    switch.reserve(client(0), PORT, None).unwrap();
    open_outside(&mut switch, 1, Some(RIGHT));
    end_from_outside(&mut switch, 1);
    assert_eq!(asked(&mut switch), [1]);
    assert_eq!(switch.followed_outside(), 0);
}

#[test]
fn a_connection_that_was_reset_from_outside_gives_way_unless_its_client_goes_on() {
    let mut switch = joined(1);
    switch.reserve(client(0), PORT, None).unwrap();
    (1..=3).for_each(|port| open_outside(&mut switch, port, Some(RIGHT)));
    // The switch knows the way of such a segment, so it does not look at the next one.
    let go_on = |switch: &mut Switch| judge(switch, 0, destined(leaving(0, (PORT, 2)).build(), HOST));
    go_on(&mut switch);
    end_from_outside(&mut switch, 2);
    end_from_outside(&mut switch, 3);
    go_on(&mut switch);
    // A stranger's acknowledgment says nothing.
    arrive(&mut switch, acknowledging(destined(arriving((3, PORT)).build(), UPLINK), RIGHT));
    (1000..1000 + MOST as u16).for_each(|port| open_outside(&mut switch, port, None));
    let asked = asked(&mut switch);
    assert_eq!((asked.len(), &asked[..3]), (MOST, &[1, 2, 1002][..]));
}
