//! The Linux kernel's TCP as the peer of plain streams, over af_packet on a veth pair and over tap, over IPv4 and IPv6,
//! each in a separate namespace: whole transfers by hash, faults of every kind on the wire, short connections, half
//! close, resets in every state.
//!
//! The kernel uses CUBIC (set for each socket) and a minimum of 5 ms for its retransmission timer, so that a lossy cell
//! does not take its 200 ms for each loss. Both ends request ECN. The stack's own port simulates faults, in both
//! directions, by seed. A router on which nftables drops at random is a second source of loss, which shares nothing
//! with the stack.
//!
//! `UWARP_LONG=1` moves a gibibyte for each device, opener and direction, 32 MiB per cell, and opens ten thousand
//! connections; `UWARP_FIGURES=FOLDER` keeps the table of goodput.

mod bed;
mod connections;
mod drops;
mod resets;
mod router;
mod transfers;

use uwarp::DeviceConfig;
use uwarp_netns::{self as netns, End, Namespace};

use bed::{Addresses, Amount, Bed, MIB, Opens, V4, V6, bare, configure, count, settings};
use drops::Drops;
use resets::resets_in_time_wait;
use router::{behind_a_router, routed};

#[test]
fn the_kernel_over_af_packet() {
    netns::test_inside("the_kernel_over_af_packet", || over_af_packet("af_packet", V4));
}

#[test]
fn the_kernel_over_af_packet_and_ipv6() {
    netns::test_inside("the_kernel_over_af_packet_and_ipv6", || over_af_packet("af_packet IPv6", V6));
}

#[test]
fn the_kernel_over_tap() {
    netns::test_inside("the_kernel_over_tap", || over_tap("tap", V4));
}

#[test]
fn the_kernel_over_tap_and_ipv6() {
    netns::test_inside("the_kernel_over_tap_and_ipv6", || over_tap("tap IPv6", V6));
}

fn over_af_packet(name: &'static str, addresses: Addresses) {
    settings();
    netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &[addresses.kernel])]).expect("a veth pair");
    let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
    all(Bed::new(configure(device, addresses), name, addresses), true);
}

fn over_tap(name: &'static str, addresses: Addresses) {
    settings();
    let device = DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None };
    let context = configure(device, addresses);
    End::kernel("tap0", &[addresses.kernel]).bring_up().expect("an address on the tap");
    // The driver verifies checksums before the faults, and vouches for segments that are damaged behind it.
    all(Bed::new(context, name, addresses), false);
}

/// TIME-WAIT outlasts the connection. These are separate tests, since its length is asserted.
#[test]
fn resets_in_time_wait_over_af_packet() {
    netns::test_inside("resets_in_time_wait_over_af_packet", || {
        settings();
        for (name, addresses) in [("af_packet", V4), ("af_packet IPv6", V6)] {
            let kernel = [addresses.kernel];
            netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &kernel)]).expect("a veth pair");
            let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
            resets_in_time_wait(device, name, addresses, || {});
            netns::ip(["link", "delete", "stack0"]).expect("the veth pair goes");
        }
    });
}

#[test]
fn resets_in_time_wait_over_tap() {
    netns::test_inside("resets_in_time_wait_over_tap", || {
        settings();
        for (name, addresses) in [("tap", V4), ("tap IPv6", V6)] {
            let device = DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None };
            resets_in_time_wait(device, name, addresses, || {
                End::kernel("tap0", &[addresses.kernel]).bring_up().expect("an address on the tap");
            });
        }
    });
}

/// Loss that is independent of the stack's own faults: a router between it and the kernel drops segments to be
/// forwarded.
#[test]
fn the_kernel_behind_a_router_that_drops() {
    netns::test_inside("the_kernel_behind_a_router_that_drops", || {
        for (name, addresses) in [("router", V4), ("router IPv6", V6)] {
            behind_a_router(name, addresses);
        }
    });
}

/// A kernel sends to the stack, and in turn the same kernel sends to another one, through a router that drops one in
/// twenty segments in either direction. The test only asserts that every octet arrives. It prints the goodput of both,
/// and keeps it with `UWARP_FIGURES`. `perf/baselines/kernel-tcp` has figures of the long run.
#[test]
fn loss_towards_the_stack_and_towards_a_kernel() {
    const OTHER: &str = "10.79.0.2/24";
    netns::test_inside("loss_towards_the_stack_and_towards_a_kernel", || {
        let (router, mut bed) = routed("five per cent", V4);
        let other = Namespace::new("other").expect("a namespace");
        // By hand, since a namespace has each index once, and both of those of `netns::veth` are taken on the router.
        let words =
            ["link", "add", "side0", "mtu", "1500", "type", "veth", "peer", "name", "kernel1", "netns", other.name()];
        router.ip(&words).expect("a veth pair");
        End::kernel("side0", &["10.79.0.254/24"]).of(&router).bring_up().expect("the router's end");
        End::kernel("kernel1", &[OTHER]).of(&other).bring_up().expect("the other kernel's end");
        other.ip(&["route", "add", "default", "via", "10.79.0.254"]).expect("a route");
        other.inside(settings).expect("a thread inside");
        let size = count(MIB, 4 * MIB);
        let drops = Drops::in_forwarding(&router, 50);
        for _ in 0..count(1, 10) {
            bed.transfer("to the stack", Opens::Kernel, Amount { to_kernel: 0, to_stack: size });
            bed.transfer_to_another(&other, bare(OTHER), size);
        }
        assert!(drops.count() > 0, "the router has dropped nothing");
        bed.finish();
    });
}

fn all(mut bed: Bed, corruption: bool) {
    bed.whole_transfers();
    bed.cells(corruption);
    bed.short_connections(Opens::Kernel);
    bed.short_connections(Opens::Stack);
    bed.half_close();
    bed.resets();
    bed.resets_at_the_end();
    bed.resets_behind_a_window_probe();
    bed.resets_while_opening();
    bed.nobody_listens();
    bed.options_are_used();
    bed.finish();
}
