//! The stack with the kernel as its peer: addresses, settings, connections, and the states at both ends.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use uwarp::config::Ecn;
use uwarp::{Config, Context, DeviceConfig, TcpInfo, TcpListener, TcpStream};
use uwarp_interop_tests::flows::{self, PATIENCE, Table};
use uwarp_interop_tests::is_long;
use uwarp_netns::Namespace;

pub const MIB: u64 = 1 << 20;

/// Addresses of both ends, on one link or with a router in between.
#[derive(Clone, Copy)]
pub struct Addresses {
    pub stack: &'static str,
    pub kernel: &'static str,
    /// The router's addresses on the stack's link and on the kernel's, and the kernel's own there.
    pub routed: [&'static str; 3],
    /// As tshark calls the protocol.
    pub field: &'static str,
}

pub const V4: Addresses = Addresses {
    stack: "10.77.0.1/24",
    kernel: "10.77.0.2/24",
    routed: ["10.77.0.254/24", "10.78.0.254/24", "10.78.0.2/24"],
    field: "ip",
};
pub const V6: Addresses = Addresses {
    stack: "fd77::1/64",
    kernel: "fd77::2/64",
    routed: ["fd77::fe/64", "fd78::fe/64", "fd78::2/64"],
    field: "ipv6",
};

/// The address without its prefix length.
pub fn bare(address: &str) -> IpAddr {
    let (address, _) = address.split_once('/').expect("a prefix length");
    address.parse().expect("an address")
}

pub fn count<T>(normal: T, long: T) -> T {
    if is_long() { long } else { normal }
}

/// Who opens the connection.
#[derive(Clone, Copy, Debug)]
pub enum Opens {
    Kernel,
    Stack,
}

/// Octets each way.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    pub to_kernel: u64,
    pub to_stack: u64,
}

pub struct Bed {
    pub context: Context,
    pub addresses: Addresses,
    pub kernel: IpAddr,
    /// Where the kernel's sockets are, if not in this process's namespace.
    pub host: Option<Namespace>,
    pub name: &'static str,
    pub table: Table,
    pub port: u16,
}

pub fn settings() {
    let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).expect(name);
    set("tcp_rto_min_us", "5000");
    set("tcp_no_metrics_save", "1");
    set("tcp_ecn", "1");
}

pub fn configure(device: DeviceConfig, addresses: Addresses) -> Context {
    open(Config::new(device, addresses.stack).expect("a good address"))
}

pub fn open(config: Config) -> Context {
    open_with_wait(config, Duration::from_millis(50))
}

/// With so long a TIME-WAIT.
pub fn open_with_wait(config: Config, time_wait: Duration) -> Context {
    let mut config = uwarp_middlebox::behind(config.without_monitor());
    config.tcp.rto_min = Duration::from_millis(5);
    config.tcp.time_wait = time_wait;
    config.tcp.timestamps = true;
    config.tcp.ecn = Ecn::Offer;
    Context::open(config).expect("the context opens")
}

impl Bed {
    pub fn new(context: Context, name: &'static str, addresses: Addresses) -> Self {
        let kernel = bare(addresses.kernel);
        Self { context, addresses, kernel, host: None, name, table: Table::default(), port: 7000 }
    }

    /// Runs `work` where the kernel's sockets are.
    pub fn at_the_kernel<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.host {
            Some(host) => host.inside(work).expect("a thread inside"),
            None => work(),
        }
    }

    /// The table of goodput.
    pub fn finish(&self) {
        println!("{}", self.table.text());
        if let Some(path) = std::env::var_os("UWARP_FIGURES").filter(|value| !value.is_empty()) {
            let file = Path::new(&path).join(format!("kernel-tcp-{}.txt", self.name.replace(' ', "-").to_lowercase()));
            std::fs::write(file, self.table.text()).expect("the figures are written");
        }
    }

    /// A connection: the kernel's end and the stack's.
    pub fn connect(&mut self, opens: Opens) -> (std::net::TcpStream, TcpStream) {
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

    /// The name of the state of the stack's connection with this port; that of a closed one if there is none.
    pub fn stack_state(&self, port: u16) -> &'static str {
        self.stack_tcp(port).state.name()
    }

    /// The stack's connection with this port; the default if there is none.
    pub fn stack_tcp(&self, port: u16) -> TcpInfo {
        let connections = self.context.stats().engines.into_iter().flat_map(|engine| engine.connections);
        let mut ours = connections.filter(|connection| connection.local.port() == port);
        ours.next().map(|connection| connection.tcp).unwrap_or_default()
    }

    /// The stack's connections in TIME-WAIT.
    pub fn in_time_wait(&self) -> u64 {
        self.context.stats().engines.iter().map(|engine| engine.time_wait).sum()
    }

    pub fn resets_sent(&self) -> u64 {
        self.context.stats().engines.iter().map(|engine| engine.counters.resets_sent).sum()
    }

    /// Segments that the stack has dropped because of the state of their connection, such as a reset in TIME-WAIT.
    pub fn in_bad_state(&self) -> u64 {
        let engines = self.context.stats().engines;
        engines.iter().filter_map(|engine| engine.drops.get("bad-state")).sum()
    }

    pub fn wait_for(&self, what: &str, mut seen: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !seen(self) {
            assert!(begin.elapsed() < PATIENCE, "{}: {what}: {:#?}", self.name, self.context.stats().engines);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The state of the kernel's socket with this local port and this port of its peer, in the system's numbering; `None`
/// if there is none.
pub fn kernel_state(ports: (u16, u16)) -> Option<u8> {
    kernel_sockets().into_iter().find(|(local, peer, _)| (*local, *peer) == ports).map(|(_, _, state)| state)
}

/// Whether a socket of the kernel with this local port is in this state.
pub fn kernel_state_of(local: u16, wanted: u8) -> bool {
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
