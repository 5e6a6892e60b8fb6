//! The kernel behind a router that drops.

use uwarp::{Config, DeviceConfig};
use uwarp_netns::{self as netns, End, Namespace};

use crate::bed::{Addresses, Amount, Bed, MIB, Opens, bare, count, open, settings};
use crate::drops::Drops;

/// The stack and a kernel beyond a router. The link `stack0` exists while both values live.
pub fn routed(name: &'static str, addresses: Addresses) -> (Namespace, Bed) {
    let [near, far, kernel] = addresses.routed;
    let (router, host) = (Namespace::new("router").expect("a namespace"), Namespace::new("host").expect("a namespace"));
    let near_end = [near];
    netns::veth(1500, [End::silent("stack0"), End::kernel("near0", &near_end).of(&router)]).expect("a veth pair");
    let (far_end, kernel_end) = ([far], [kernel]);
    netns::veth(1500, [End::kernel("far0", &far_end).of(&router), End::kernel("kernel0", &kernel_end).of(&host)])
        .expect("a veth pair");
    let write = |path: &str, value: &str| std::fs::write(path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    router
        .inside(|| {
            write("/proc/sys/net/ipv4/ip_forward", "1");
            write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        })
        .expect("a thread inside");
    host.ip(&["route", "add", "default", "via", &bare(far).to_string()]).expect("a route");
    host.inside(settings).expect("a thread inside");
    let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
    let config = Config::new(device, addresses.stack).expect("a good address").gateway(bare(near));
    let mut bed = Bed::new(open(config), name, Addresses { kernel, ..addresses });
    bed.host = Some(host);
    (router, bed)
}

pub fn behind_a_router(name: &'static str, addresses: Addresses) {
    let (router, mut bed) = routed(name, addresses);
    let size = count(4 * MIB, 32 * MIB);
    for permille in [1, 10, 50] {
        let drops = Drops::in_forwarding(&router, permille);
        let cell = format!("loss {} %", f64::from(permille) / 10.0);
        for (opens, way, to_kernel, to_stack) in [
            (Opens::Kernel, "to the kernel", size, 0),
            (Opens::Stack, "to the stack", 0, size),
            (Opens::Kernel, "both ways", size, size),
        ] {
            bed.transfer(&format!("{cell}, {way}"), opens, Amount { to_kernel, to_stack });
        }
        assert!(drops.count() > 0, "{cell}: the router has dropped nothing");
    }
    bed.finish();
    drop(bed);
    netns::ip(["link", "delete", "stack0"]).expect("the veth pair goes");
}
