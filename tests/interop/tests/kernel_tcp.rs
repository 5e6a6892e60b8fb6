//! The Linux kernel's TCP as the peer of plain streams, over af_packet on a veth pair and over tap, over IPv4 and IPv6, each in a
//! namespace of its own: whole transfers by hash, faults of every kind on the wire, short connections, half close, resets in every
//! state.
//!
//! The kernel uses CUBIC (said for each socket) with a floor of 5 ms under its retransmission timer, so that a lossy cell does
//! not take its 200 ms for each loss. Both ends ask for ECN. Faults are thrown by the stack's own port, both ways, by seed; a router
//! that drops by nftables' dice is a second source of loss, which shares nothing with the stack.
//!
//! `UWARP_LONG=1` moves a gibibyte for each device, opener and direction, 32 MiB a cell, and opens ten thousand connections;
//! `UWARP_FIGURES=FOLDER` keeps the table of goodput.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use uwarp::config::Ecn;
use uwarp::{Config, Context, DeviceConfig, FaultOptions, TcpInfo, TcpListener, TcpStream, TcpStreamOptions};
use uwarp_interop_tests::flows::{self, PATIENCE, Table, join};
use uwarp_interop_tests::is_long;
use uwarp_interop_tests::witness;
use uwarp_netns::{self as netns, End, Namespace};

const MIB: u64 = 1 << 20;

/// Addresses of both ends, on one link or with a router in between.
#[derive(Clone, Copy)]
struct Addresses {
    stack: &'static str,
    kernel: &'static str,
    /// The router's addresses on the stack's link and on the kernel's, and the kernel's own there.
    routed: [&'static str; 3],
    /// As tshark calls the protocol.
    field: &'static str,
}

const V4: Addresses = Addresses {
    stack: "10.77.0.1/24",
    kernel: "10.77.0.2/24",
    routed: ["10.77.0.254/24", "10.78.0.254/24", "10.78.0.2/24"],
    field: "ip",
};
const V6: Addresses = Addresses {
    stack: "fd77::1/64",
    kernel: "fd77::2/64",
    routed: ["fd77::fe/64", "fd78::fe/64", "fd78::2/64"],
    field: "ipv6",
};

/// The address without its prefix length.
fn bare(address: &str) -> IpAddr {
    let (address, _) = address.split_once('/').expect("a prefix length");
    address.parse().expect("an address")
}

fn count<T>(normal: T, long: T) -> T {
    if is_long() { long } else { normal }
}

/// Who opens the connection.
#[derive(Clone, Copy, Debug)]
enum Opens {
    Kernel,
    Stack,
}

/// Octets each way.
#[derive(Clone, Copy, Debug)]
struct Amount {
    to_kernel: u64,
    to_stack: u64,
}

struct Bed {
    context: Context,
    addresses: Addresses,
    kernel: IpAddr,
    /// Where the kernel's sockets are, if not in this process's namespace.
    host: Option<Namespace>,
    name: &'static str,
    table: Table,
    port: u16,
}

fn settings() {
    let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).expect(name);
    set("tcp_rto_min_us", "5000");
    set("tcp_no_metrics_save", "1");
    set("tcp_ecn", "1");
}

fn configure(device: DeviceConfig, addresses: Addresses) -> Context {
    open(Config::new(device, addresses.stack).expect("a good address"))
}

fn open(config: Config) -> Context {
    open_with_wait(config, Duration::from_millis(50))
}

/// With so long a TIME-WAIT.
fn open_with_wait(config: Config, time_wait: Duration) -> Context {
    let mut config = uwarp_middlebox::behind(config.without_monitor());
    config.tcp.rto_min = Duration::from_millis(5);
    config.tcp.time_wait = time_wait;
    config.tcp.timestamps = true;
    config.tcp.ecn = Ecn::Offer;
    Context::open(config).expect("the context opens")
}

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
    // The driver computes checksums behind the faults, and would vouch for what they damage.
    all(Bed::new(context, name, addresses), false);
}

/// The state that lasts when all is over. Tests of their own, since its length is asserted.
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

/// `ready` is called once the device is there.
fn resets_in_time_wait(device: DeviceConfig, name: &'static str, addresses: Addresses, ready: impl FnOnce()) {
    let time_wait = Duration::from_secs(1);
    let config = Config::new(device, addresses.stack).expect("a good address");
    let context = open_with_wait(config, time_wait);
    ready();
    let mut bed = Bed::new(context, name, addresses);
    for opens in [Opens::Kernel, Opens::Stack] {
        bed.resets_do_not_end_our_time_wait(opens, time_wait);
        bed.resets_end_the_kernels_time_wait(opens);
    }
}

/// Loss that the stack's own dice have no part in: a router between it and the kernel drops what it is to forward.
#[test]
fn the_kernel_behind_a_router_that_drops() {
    netns::test_inside("the_kernel_behind_a_router_that_drops", || {
        for (name, addresses) in [("router", V4), ("router IPv6", V6)] {
            behind_a_router(name, addresses);
        }
    });
}

/// The stack and, beyond a router, a kernel. Both ends go with the link `stack0`.
fn routed(name: &'static str, addresses: Addresses) -> (Namespace, Bed) {
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

/// A kernel that sends to the stack, and in turn with it the same kernel that sends to another one, through a router that drops
/// one in twenty segments either way. Nothing is asserted of the two but that every octet comes: their goodput is printed, and
/// kept with
/// `UWARP_FIGURES`. `perf/README.md` has figures of the long run.
#[test]
fn loss_towards_the_stack_and_towards_a_kernel() {
    const OTHER: &str = "10.79.0.2/24";
    netns::test_inside("loss_towards_the_stack_and_towards_a_kernel", || {
        let (router, mut bed) = routed("five per cent", V4);
        let other = Namespace::new("other").expect("a namespace");
        // By hand, since a namespace has each index once, and the router has both of those of `netns::veth`.
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

fn behind_a_router(name: &'static str, addresses: Addresses) {
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

/// A table of nftables in a namespace, which drops; it goes with the value.
struct Drops<'a>(Option<&'a Namespace>);

impl<'a> Drops<'a> {
    const TABLE: [&'static str; 2] = ["inet", "uwarp"];

    fn new(namespace: Option<&'a Namespace>, hook: &str, rule: &str) -> Self {
        let drops = Drops(namespace);
        let table = Self::TABLE.join(" ");
        drops.nft(&format!("add table {table}"));
        drops.nft(&format!("add chain {table} drops {{ type filter hook {hook} priority 0; }}"));
        drops.nft(&format!("add rule {table} drops meta l4proto tcp {rule} counter drop"));
        drops
    }

    /// Of so many in a thousand segments that are forwarded.
    fn in_forwarding(router: &'a Namespace, permille: u32) -> Self {
        Drops::new(Some(router), "forward", &format!("numgen random mod 1000 < {permille}"))
    }

    /// Of all that the kernel of this process's namespace would say to a SYN.
    fn answers_to_a_syn() -> Drops<'static> {
        Drops::new(None, "output", "tcp flags & (syn | ack) == syn | ack")
    }

    /// Of all that it says.
    fn of_the_kernel() -> Drops<'static> {
        Drops::new(None, "output", "")
    }

    fn nft(&self, command: &str) -> String {
        let mut program = self.0.map_or_else(|| Command::new("nft"), |namespace| namespace.command("nft"));
        let output =
            program.arg(command).stdin(Stdio::null()).output().expect("nft is there (apt-get install nftables)");
        assert!(output.status.success(), "nft {command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Segments dropped.
    fn count(&self) -> u64 {
        let text = self.nft(&format!("list table {}", Self::TABLE.join(" ")));
        let (_, behind) = text.split_once("counter packets ").expect("a counter");
        behind.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }
}

impl Drop for Drops<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.nft(&format!("delete table {}", Self::TABLE.join(" ")));
        }
    }
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

impl Bed {
    fn new(context: Context, name: &'static str, addresses: Addresses) -> Self {
        let kernel = bare(addresses.kernel);
        Self { context, addresses, kernel, host: None, name, table: Table::default(), port: 7000 }
    }

    /// Runs `work` where the kernel's sockets are.
    fn at_the_kernel<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.host {
            Some(host) => host.inside(work).expect("a thread inside"),
            None => work(),
        }
    }

    /// The table of goodput.
    fn finish(&self) {
        println!("{}", self.table.text());
        if let Some(path) = std::env::var_os("UWARP_FIGURES") {
            let file = Path::new(&path).join(format!("kernel-tcp-{}.txt", self.name.replace(' ', "-").to_lowercase()));
            std::fs::write(file, self.table.text()).expect("the figures are written");
        }
    }

    /// A connection: the kernel's end and the stack's.
    fn connect(&mut self, opens: Opens) -> (std::net::TcpStream, TcpStream) {
        match opens {
            Opens::Kernel => {
                self.port += 1;
                let mut listener = TcpListener::bind(&self.context, self.port).expect("a free port");
                let to = self.context.socket_address(self.port);
                let (accepted, kernel) = thread::scope(|scope| {
                    let kernel = scope.spawn(|| self.at_the_kernel(|| flows::kernel_connects(to)));
                    (listener.accept_timeout(PATIENCE), kernel.join().unwrap())
                });
                let Some((stream, peer)) = accepted.expect("the listener works") else {
                    let stats = &self.context.stats().engines[0];
                    panic!(
                        "nobody came; the kernel says {kernel:?}, the stack has {:?}, {stats:?}",
                        self.stack_tcp(self.port)
                    );
                };
                let kernel = kernel.expect("the stack answers");
                assert_eq!(peer, kernel.local_addr().unwrap());
                (kernel, stream)
            }
            Opens::Stack => {
                let listener = self.at_the_kernel(|| flows::kernel_listens(self.kernel)).expect("a listening socket");
                let to = listener.local_addr().unwrap();
                let stream = TcpStream::connect(&self.context, to).expect("the kernel answers");
                let (kernel, _) = listener.accept().unwrap();
                (flows::patient(kernel).unwrap(), stream)
            }
        }
    }

    /// One transfer, both ways at once if both have something to say; every octet by hash.
    fn transfer(&mut self, cell: &str, opens: Opens, amount: Amount) {
        let ends = self.connect(opens);
        self.transfer_between(cell, ends, amount);
    }

    fn transfer_between(
        &mut self,
        cell: &str,
        (mut kernel, mut stack): (std::net::TcpStream, TcpStream),
        amount: Amount,
    ) {
        stack.set_read_timeout(Some(PATIENCE));
        stack.set_write_timeout(Some(PATIENCE));
        let seed = u64::from(self.port) << 32 | amount.to_kernel ^ amount.to_stack;
        let begin = Instant::now();
        let mut kernel_reads = kernel.try_clone().expect("a second handle");
        let outcome = thread::scope(|scope| {
            let kernel_writer = scope.spawn(|| {
                let sent = flows::send(&mut kernel, seed, amount.to_stack)?;
                kernel.shutdown(Shutdown::Write)?;
                Ok(sent)
            });
            let kernel_reader = scope.spawn(|| flows::receive(&mut kernel_reads));
            let stack_end = duplex(&mut stack, seed + 1, amount.to_kernel);
            let (sent, received) =
                (join("the kernel writes", kernel_writer)?, join("the kernel reads", kernel_reader)?);
            let (stack_sent, stack_received) = stack_end?;
            assert_eq!(sent, stack_received, "from the kernel");
            assert_eq!(stack_sent, received, "to the kernel");
            Ok::<_, io::Error>(())
        });
        if let Err(error) = outcome {
            panic!("{} {cell}: {error}\n{:#?}\n{:#?}", self.name, stack.tcp_info(), self.context.stats());
        }
        self.table.note(format!("{} {cell}", self.name), amount.to_kernel + amount.to_stack, begin);
    }

    /// From the kernel to another one.
    fn transfer_to_another(&mut self, other: &Namespace, address: IpAddr, octets: u64) {
        let listener = other.inside(|| flows::kernel_listens(address)).expect("a thread inside").expect("a socket");
        let to = listener.local_addr().unwrap();
        let begin = Instant::now();
        let (sent, received) = thread::scope(|scope| {
            let receiver = scope.spawn(|| flows::receive(&mut flows::patient(listener.accept()?.0)?));
            let sent = self.at_the_kernel(|| {
                let mut stream = flows::kernel_connects(to)?;
                let sent = flows::send(&mut stream, 1, octets)?;
                stream.shutdown(Shutdown::Write)?;
                Ok::<_, io::Error>(sent)
            });
            (sent.expect("the kernel sends"), join("the other kernel", receiver).expect("it receives"))
        });
        assert_eq!(sent, received, "from kernel to kernel");
        self.table.note(format!("{} to a kernel", self.name), octets, begin);
    }

    fn whole_transfers(&mut self) {
        let size = count(64 * MIB, 1024 * MIB);
        for opens in [Opens::Kernel, Opens::Stack] {
            let opener = format!("{opens:?} opens").to_lowercase();
            self.transfer(&format!("{opener}, to the kernel"), opens, Amount { to_kernel: size, to_stack: 0 });
            self.transfer(&format!("{opener}, to the stack"), opens, Amount { to_kernel: 0, to_stack: size });
        }
    }

    fn cells(&mut self, corruption: bool) {
        let size = count(4 * MIB, 32 * MIB);
        let none = FaultOptions { incoming: true, ..uwarp_middlebox::faults() };
        let mut cells = vec![
            ("loss 0.1 %", FaultOptions { loss: 0.1, ..none }),
            ("loss 1 %", FaultOptions { loss: 1.0, ..none }),
            ("loss 5 %", FaultOptions { loss: 5.0, ..none }),
            ("reordering 5 %", FaultOptions { reorder: 5.0, ..none }),
            ("duplication 5 %", FaultOptions { duplicate: 5.0, ..none }),
            ("CE marks 5 %", FaultOptions { mark: 5.0, ..none }),
            ("segments cut and joined", FaultOptions { recut: 30.0, ..none }),
            ("all of them 1 %", FaultOptions { loss: 1.0, reorder: 1.0, duplicate: 1.0, recut: 5.0, ..none }),
        ];
        if corruption {
            cells.push(("corruption 1 %", FaultOptions { corrupt: 1.0, ..none }));
        }
        for (number, (name, faults)) in cells.into_iter().enumerate() {
            let opens = if number % 2 == 0 { Opens::Kernel } else { Opens::Stack };
            self.context.set_faults(Some(FaultOptions { seed: number as u64, ..faults })).expect("percentages");
            self.transfer(&format!("{name}, to the kernel"), opens, Amount { to_kernel: size, to_stack: 0 });
            self.transfer(&format!("{name}, to the stack"), opens, Amount { to_kernel: 0, to_stack: size });
            self.transfer(&format!("{name}, both ways"), opens, Amount { to_kernel: size, to_stack: size });
            let seen: u64 = self.context.stats().engines.iter().flat_map(|engine| engine.faults.values()).sum();
            assert!(seen > 0, "{name}: nothing befell any frame");
        }
        self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
    }

    /// Connections that carry one question and one answer, and are closed by who asked.
    fn short_connections(&mut self, opens: Opens) {
        let connections = count(1000, 10_000);
        let begin = Instant::now();
        let question = |number: u32| number.to_be_bytes();
        match opens {
            Opens::Kernel => {
                self.port += 1;
                let mut listener = TcpListener::bind(&self.context, self.port).expect("a free port");
                let to = self.context.socket_address(self.port);
                thread::scope(|scope| {
                    let client = scope.spawn(move || {
                        for number in 0..connections {
                            let mut stream = flows::kernel_connects(to)?;
                            stream.write_all(&question(number))?;
                            let mut answer = Vec::new();
                            stream.read_to_end(&mut answer)?;
                            assert_eq!(answer, question(!number));
                        }
                        Ok(())
                    });
                    for number in 0..connections {
                        let (mut stream, _) =
                            listener.accept_timeout(PATIENCE).expect("works").expect("another connection");
                        stream.set_read_timeout(Some(PATIENCE));
                        let mut asked = [0; 4];
                        stream.read_exact(&mut asked).expect("a question");
                        assert_eq!(asked, question(number));
                        stream.write_all(&question(!number)).expect("an answer");
                    }
                    join("the kernel connects", client).expect("every connection works");
                });
            }
            Opens::Stack => {
                let listener = flows::kernel_listens(self.kernel).expect("a listening socket");
                let to = listener.local_addr().unwrap();
                thread::scope(|scope| {
                    let server = scope.spawn(move || {
                        for number in 0..connections {
                            let (stream, _) = listener.accept()?;
                            let mut stream = flows::patient(stream)?;
                            let mut asked = [0; 4];
                            stream.read_exact(&mut asked)?;
                            assert_eq!(asked, question(number));
                            stream.write_all(&question(!number))?;
                        }
                        Ok(())
                    });
                    for number in 0..connections {
                        let mut stream = TcpStream::connect(&self.context, to).expect("the kernel answers");
                        stream.set_read_timeout(Some(PATIENCE));
                        stream.write_all(&question(number)).expect("a question");
                        let mut answer = Vec::new();
                        stream.read_to_end(&mut answer).expect("an answer and the end");
                        assert_eq!(answer, question(!number));
                    }
                    join("the kernel accepts", server).expect("every connection works");
                });
            }
        }
        let octets = u64::from(connections) * 8;
        let opener = format!("{opens:?}").to_lowercase();
        self.table.note(format!("{} {connections} connections by the {opener}", self.name), octets, begin);
    }

    /// The side that has said its last goes on to listen (RFC 9293 §3.6).
    fn half_close(&mut self) {
        for opens in [Opens::Kernel, Opens::Stack] {
            let (mut kernel, mut stack) = self.connect(opens);
            stack.set_read_timeout(Some(PATIENCE));
            stack.write_all(b"last words of the stack").unwrap();
            stack.shutdown_write();
            let mut heard = String::new();
            kernel.read_to_string(&mut heard).expect("up to the FIN");
            assert_eq!(heard, "last words of the stack");
            let sender = thread::spawn(move || flows::send(&mut kernel, 5, MIB));
            let after = flows::receive(&mut stack).expect("all of it");
            assert_eq!(after, sender.join().unwrap().expect("the stack still listens"));

            let (mut kernel, mut stack) = self.connect(opens);
            stack.set_read_timeout(Some(PATIENCE));
            kernel.write_all(b"last words of the kernel").unwrap();
            kernel.shutdown(Shutdown::Write).unwrap();
            let mut heard = String::new();
            stack.read_to_string(&mut heard).expect("up to the FIN");
            assert_eq!(heard, "last words of the kernel");
            let sender = thread::spawn(move || {
                let sent = flows::send(&mut stack, 6, MIB);
                stack.shutdown_write();
                (sent, stack)
            });
            let received = flows::receive(&mut kernel).expect("the stack still speaks");
            let (sent, _stack) = sender.join().unwrap();
            assert_eq!(received, sent.expect("room"));
        }
    }

    /// A reset ends a connection in every state that a user can bring it to, and either side hears of it.
    fn resets(&mut self) {
        type Prepare = fn(&mut std::net::TcpStream, &mut TcpStream);
        let states: [(&str, Prepare); 5] = [
            ("ESTABLISHED", |_, _| {}),
            ("ESTABLISHED with data on the way", |kernel, stack| {
                kernel.write_all(&[1; 5000]).unwrap();
                stack.write_all(&[2; 5000]).unwrap();
            }),
            ("CLOSE-WAIT", |kernel, stack| {
                kernel.shutdown(Shutdown::Write).unwrap();
                assert_eq!(stack.read(&mut [0; 1]).unwrap(), 0);
            }),
            ("FIN-WAIT-2", |kernel, stack| {
                stack.shutdown_write();
                assert_eq!(kernel.read(&mut [0; 1]).unwrap(), 0);
            }),
            ("with unread data", |kernel, _| {
                kernel.write_all(&[1; 100]).unwrap();
                thread::sleep(Duration::from_millis(20));
            }),
        ];
        for (state, prepare) in states {
            for opens in [Opens::Kernel, Opens::Stack] {
                let (mut kernel, mut stack) = self.connect(opens);
                stack.set_read_timeout(Some(PATIENCE));
                prepare(&mut kernel, &mut stack);
                sockopt::set_socket_linger(&kernel, Some(Duration::ZERO)).unwrap();
                drop(kernel);
                let heard = until_error(&mut stack).or_else(|| until_refused(&mut stack));
                assert_eq!(heard, Some(ErrorKind::ConnectionReset), "{state}: the stack hears of the kernel's reset");

                let (mut kernel, mut stack) = self.connect(opens);
                prepare(&mut kernel, &mut stack);
                stack.abort();
                let heard = until_error(&mut kernel).or_else(|| until_refused(&mut kernel));
                let reset = [Some(ErrorKind::ConnectionReset), Some(ErrorKind::BrokenPipe)].contains(&heard);
                assert!(reset, "{state}: the kernel hears of the stack's reset: {heard:?}");
            }
        }
    }

    /// Resets in the states that last as long as a segment's way: an acknowledgment is kept away meanwhile.
    fn resets_at_the_end(&mut self) {
        let (close_wait, states) = (0x08, [("FIN-WAIT-1", 0x04), ("CLOSING", 0x0b), ("LAST-ACK", 0x09)]);
        for (state, number) in states {
            for opens in [Opens::Kernel, Opens::Stack] {
                let (kernel, mut stack) = self.connect(opens);
                let port = stack.local_addr().expect("open").port();
                if state == "LAST-ACK" {
                    kernel.shutdown(Shutdown::Write).unwrap();
                    self.wait_for("CLOSE-WAIT", |bed| bed.stack_state(port) == "CLOSE-WAIT");
                }
                let silence = FaultOptions { loss: 100.0, ..FaultOptions::default() };
                self.context.set_faults(Some(silence)).expect("percentages");
                stack.shutdown_write();
                if state == "CLOSING" {
                    self.wait_for("FIN-WAIT-1", |bed| bed.stack_state(port) == "FIN-WAIT-1");
                    kernel.shutdown(Shutdown::Write).unwrap();
                }
                self.wait_for(state, |bed| bed.stack_state(port) == state);
                sockopt::set_socket_linger(&kernel, Some(Duration::ZERO)).unwrap();
                drop(kernel);
                self.wait_for("the end", |bed| bed.stack_state(port).is_empty());
                self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
                let heard = until_error(&mut stack).or_else(|| until_refused(&mut stack));
                assert_eq!(heard, Some(ErrorKind::ConnectionReset), "{state}: the stack hears of the kernel's reset");

                let (kernel, mut stack) = self.connect(opens);
                let ports = (kernel.local_addr().unwrap().port(), kernel.peer_addr().unwrap().port());
                if state == "LAST-ACK" {
                    stack.shutdown_write();
                    self.wait_for("CLOSE-WAIT", |_| kernel_state(ports) == Some(close_wait));
                }
                let drops = Drops::of_the_kernel();
                kernel.shutdown(Shutdown::Write).unwrap();
                if state == "CLOSING" {
                    stack.shutdown_write();
                }
                self.wait_for(state, |_| kernel_state(ports) == Some(number));
                stack.abort();
                self.wait_for("the end", |_| kernel_state(ports).is_none());
                drop(drops);
            }
        }
    }

    /// The hazard of RFC 1337 §2: the acknowledgment that ends the kernel's connection comes twice, and the second one finds nobody
    /// there. The kernel resets, with just the number that the stack expects.
    fn resets_do_not_end_our_time_wait(&mut self, opens: Opens, time_wait: Duration) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let capture = folder.path().join("capture.pcap");
        self.context.start_capture(&capture).expect("a capture");
        let (mut kernel, mut stack) = self.connect(opens);
        stack.set_read_timeout(Some(PATIENCE));
        stack.shutdown_write();
        assert_eq!(kernel.read(&mut [0; 1]).unwrap(), 0);
        let twice = FaultOptions { duplicate: 100.0, ..uwarp_middlebox::faults() };
        self.context.set_faults(Some(twice)).expect("percentages");
        let (before, begin) = (self.in_bad_state(), Instant::now());
        drop(kernel);
        assert_eq!(stack.read(&mut [0; 1]).unwrap(), 0);
        drop(stack);
        self.wait_for("the kernel's reset", |bed| bed.in_bad_state() > before);
        self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
        self.wait_for("the end of TIME-WAIT", |bed| bed.in_time_wait() == 0);
        // The stack's clock and the system's do not agree to the microsecond; a wait that a reset ends is over at once.
        assert!(begin.elapsed() >= time_wait.mul_f64(0.9), "TIME-WAIT is over after {:?}", begin.elapsed());
        self.context.stop_capture();
        let field = self.addresses.field;
        // What is behind the kernel's SYN and FIN.
        let filter = format!("{field}.src == {} && tcp.flags.reset == 1 && tcp.seq == 2", self.kernel);
        assert!(witness::count(&capture, &filter) > 0, "{}: a reset with the number that is expected", self.name);
    }

    /// The same with the stack as the end that is gone and the kernel in TIME-WAIT, which heeds such a reset unless it is told not
    /// to (RFC 9293 §3.10.7.4, second check; `tcp_rfc1337`).
    fn resets_end_the_kernels_time_wait(&mut self, opens: Opens) {
        for heeded in [false, true] {
            let rule = if heeded { "0" } else { "1" };
            std::fs::write("/proc/sys/net/ipv4/tcp_rfc1337", rule).expect("tcp_rfc1337");
            let (kernel, mut stack) = self.connect(opens);
            stack.set_read_timeout(Some(PATIENCE));
            let ports = (kernel.local_addr().unwrap().port(), kernel.peer_addr().unwrap().port());
            kernel.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stack.read(&mut [0; 1]).unwrap(), 0);
            let twice = FaultOptions { duplicate: 100.0, incoming: true, ..uwarp_middlebox::faults() };
            self.context.set_faults(Some(twice)).expect("percentages");
            let before = self.resets_sent();
            stack.shutdown_write();
            self.wait_for("a reset of the stack", |bed| bed.resets_sent() > before);
            self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
            if heeded {
                self.wait_for("the end of the kernel's TIME-WAIT", |_| kernel_state(ports).is_none());
            } else {
                thread::sleep(Duration::from_millis(50));
                assert_eq!(kernel_state(ports), Some(0x06), "TIME-WAIT, with the same segments");
            }
        }
    }

    /// The kernel has said nothing to the octet of a window probe: whether it took it or not, one of the two resets has the number
    /// that it expects. It cannot ask either: nothing that it says arrives.
    fn resets_behind_a_window_probe(&mut self) {
        for taken in [false, true] {
            for opens in [Opens::Kernel, Opens::Stack] {
                let (mut kernel, mut stack) = self.connect(opens);
                let ports = (kernel.local_addr().unwrap().port(), kernel.peer_addr().unwrap().port());
                let port = stack.local_addr().expect("open").port();
                stack.set_nonblocking(true);
                self.wait_for("a shut window", |bed| {
                    while stack.write(&[7; 4096]).is_ok() {}
                    let tcp = bed.stack_tcp(port);
                    (tcp.send_window, tcp.in_flight) == (0, 0) && tcp.unsent > 0
                });
                let drops = Drops::of_the_kernel();
                if taken {
                    // The probe may come as soon as there is room, before all else is read.
                    let waiting = rustix::io::ioctl_fionread(&kernel).expect("FIONREAD") as usize;
                    kernel.set_read_timeout(Some(PATIENCE)).unwrap();
                    let (mut read, mut room) = (0, [0; 4096]);
                    while read <= waiting {
                        read += kernel.read(&mut room).expect("what is there, and the octet of a probe");
                    }
                    assert_eq!(read, waiting + 1);
                } else {
                    let before = self.stack_tcp(port).segments_sent;
                    self.wait_for("a probe", |bed| bed.stack_tcp(port).segments_sent > before);
                }
                stack.abort();
                self.wait_for("the kernel's end", |_| kernel_state(ports).is_none());
                assert_eq!(until_error(&mut kernel), Some(ErrorKind::ConnectionReset), "taken: {taken}");
                drop(drops);
            }
        }
    }

    /// Resets of a handshake that is half done.
    fn resets_while_opening(&mut self) {
        // The stack's answer is lost, the kernel has given up when it comes again.
        self.port += 1;
        let port = self.port;
        let mut listener = TcpListener::bind(&self.context, port).expect("a free port");
        self.context.set_faults(Some(FaultOptions { loss: 100.0, ..FaultOptions::default() })).expect("percentages");
        let socket = flows::kernel_begins(self.context.socket_address(port)).expect("a socket");
        self.wait_for("SYN-RECEIVED", |bed| bed.stack_state(port) == "SYN-RECEIVED");
        drop(socket);
        self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
        self.wait_for("SYN-RECEIVED", |bed| bed.stack_state(port).is_empty());
        assert!(listener.accept_timeout(Duration::ZERO).expect("it works").is_none(), "nobody was shown it");

        // The same the other way round.
        let listener = flows::kernel_listens(self.kernel).expect("a listening socket");
        let to = listener.local_addr().unwrap();
        let drops = Drops::answers_to_a_syn();
        let stream = TcpStream::start_connect(&self.context, to, &TcpStreamOptions::default()).expect("it begins");
        self.wait_for("SYN-RECEIVED", |_| kernel_state_of(to.port(), 0x03));
        assert!(drops.count() > 0);
        stream.abort();
        drop(drops);
        self.wait_for("SYN-RECEIVED", |_| !kernel_state_of(to.port(), 0x03));
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody was shown it");
    }

    /// The state of the stack's connection with this port, by its name; none if there is no such connection.
    fn stack_state(&self, port: u16) -> String {
        self.stack_tcp(port).state
    }

    /// The stack's connection with this port; the default if there is no such connection.
    fn stack_tcp(&self, port: u16) -> TcpInfo {
        let connections = self.context.stats().engines.into_iter().flat_map(|engine| engine.connections);
        let mut ours = connections.filter(|connection| connection.local.port() == port);
        ours.next().map(|connection| connection.tcp).unwrap_or_default()
    }

    /// The stack's connections in TIME-WAIT.
    fn in_time_wait(&self) -> u64 {
        self.context.stats().engines.iter().map(|engine| engine.time_wait).sum()
    }

    fn resets_sent(&self) -> u64 {
        self.context.stats().engines.iter().map(|engine| engine.resets_sent).sum()
    }

    /// Segments that the stack has not taken for the state of their connection: a reset in TIME-WAIT is such.
    fn in_bad_state(&self) -> u64 {
        let engines = self.context.stats().engines;
        engines.iter().filter_map(|engine| engine.drops.get("bad-state")).sum()
    }

    fn wait_for(&self, what: &str, mut seen: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !seen(self) {
            assert!(begin.elapsed() < PATIENCE, "{}: {what}: {:#?}", self.name, self.context.stats().engines);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn nobody_listens(&mut self) {
        let to = self.context.socket_address(9);
        assert_eq!(flows::kernel_connects(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let to = SocketAddr::new(self.kernel, 9);
        assert_eq!(TcpStream::connect(&self.context, to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    /// What both were seen to use, by tshark.
    fn options_are_used(&mut self) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let capture = folder.path().join("capture.pcap");
        self.context.start_capture(&capture).expect("a capture");
        let faults = FaultOptions { loss: 2.0, mark: 2.0, incoming: true, seed: 99, ..uwarp_middlebox::faults() };
        for opens in [Opens::Kernel, Opens::Stack] {
            // Whose SYN is lost does without ECN (RFC 3168 §6.1.1.1).
            let ends = self.connect(opens);
            self.context.set_faults(Some(faults)).expect("percentages");
            self.transfer_between("with a capture", ends, Amount { to_kernel: MIB, to_stack: MIB });
            self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
        }
        self.context.stop_capture();
        let field = self.addresses.field;
        let (class, marks) = if field == "ip" { ("ip.dsfield.ecn", field) } else { ("ipv6.tclass.ecn", field) };
        let ect = format!("tcp.len > 0 && {class} == 2");
        let uses = [
            ("window scaling", "tcp.flags.syn == 1 && tcp.options.wscale"),
            ("SACK permitted", "tcp.flags.syn == 1 && tcp.options.sack_perm"),
            ("SACK blocks", "tcp.options.sack.count > 0"),
            ("timestamps", "tcp.flags.syn == 0 && tcp.options.timestamp.tsval"),
            ("ECN asked for", "tcp.flags.syn == 1 && tcp.flags.ack == 0 && tcp.flags.ece == 1 && tcp.flags.cwr == 1"),
            ("ECN granted", "tcp.flags.syn == 1 && tcp.flags.ack == 1 && tcp.flags.ece == 1 && tcp.flags.cwr == 0"),
            ("ECT on data", &ect),
            ("echoes of marks", "tcp.flags.syn == 0 && tcp.flags.ece == 1"),
            ("reactions to them", "tcp.flags.syn == 0 && tcp.flags.cwr == 1 && tcp.len > 0"),
        ];
        for (who, name) in [(self.kernel, "the kernel"), (bare(self.addresses.stack), "the stack")] {
            for (what, filter) in uses {
                let count = witness::count(&capture, &format!("{marks}.src == {who} && {filter}"));
                println!("{:<14} {name}: {what} in {count} segments", self.name);
                assert!(count > 0, "{name}: {what}");
            }
        }
    }
}

/// The state of the kernel's socket with this port, and this one of its peer, as the system numbers it; none if there is no such
/// socket.
fn kernel_state(ports: (u16, u16)) -> Option<u8> {
    kernel_sockets().into_iter().find(|(local, peer, _)| (*local, *peer) == ports).map(|(_, _, state)| state)
}

/// Whether a socket of the kernel with this local port is in this state.
fn kernel_state_of(local: u16, wanted: u8) -> bool {
    kernel_sockets().into_iter().any(|(port, _, state)| port == local && state == wanted)
}

/// Local port, peer's port and state of every TCP socket in this namespace.
fn kernel_sockets() -> Vec<(u16, u16, u8)> {
    let text =
        ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default());
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    let socket = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, peer, state, ..] = words[..] else { return None };
        Some((port(local)?, port(peer)?, u8::from_str_radix(state, 16).ok()?))
    };
    text.iter().flat_map(|text| text.lines()).filter_map(socket).collect()
}

/// Sends and receives at once on one stream of the stack; ends its own half behind the last octet.
fn duplex(stream: &mut TcpStream, seed: u64, octets: u64) -> io::Result<(flows::Digested, flows::Digested)> {
    let mut sender = flows::Source::new(seed, octets);
    let mut sink = flows::Sink::default();
    stream.set_nonblocking(true);
    let (mut ended, mut last) = (false, Instant::now());
    while !(ended && sink.is_over()) {
        let mut moved = false;
        match sender.write(stream) {
            Ok(0) if !ended => {
                stream.shutdown_write();
                (ended, moved) = (true, true);
            }
            Ok(count) => moved |= count > 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        match sink.read(stream) {
            Ok(count) => moved |= count > 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if moved {
            last = Instant::now();
        } else if last.elapsed() > PATIENCE {
            return Err(io::Error::new(ErrorKind::TimedOut, "nothing moves"));
        } else {
            thread::sleep(Duration::from_micros(50));
        }
    }
    Ok((sender.digest(), sink.digest()))
}

/// Reads until something is wrong; `None` at the end of the stream.
fn until_error(stream: &mut impl Read) -> Option<ErrorKind> {
    let mut octets = [0; 4096];
    loop {
        match stream.read(&mut octets) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Some(error.kind()),
        }
    }
}

/// Writes until it is refused.
fn until_refused(stream: &mut impl Write) -> Option<ErrorKind> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match stream.write(&[0]) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Some(error.kind()),
            _ => {}
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}
