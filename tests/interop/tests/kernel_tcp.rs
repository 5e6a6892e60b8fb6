//! The Linux kernel's TCP as the peer of plain streams, over af_packet on a veth pair and over tap, each in a namespace of its
//! own: whole transfers by hash, faults of every kind on the wire, short connections, half close, resets.
//!
//! The kernel uses CUBIC (said for each socket) with a floor of 5 ms under its retransmission timer, so that a lossy cell does
//! not take its 200 ms for each loss. Faults are thrown by the stack's own port, both ways, by seed.
//!
//! `UWARP_LONG=1` moves a gibibyte for each device, opener and direction, 32 MiB a cell, and opens ten thousand connections;
//! `UWARP_FIGURES=FOLDER` keeps the table of goodput.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use uwarp::{Config, Context, DeviceConfig, FaultOptions, TcpListener, TcpStream};
use uwarp_interop_tests::flows::{self, PATIENCE, Table, join};
use uwarp_netns::{self as netns, End};

const STACK: &str = "10.77.0.1/24";
const KERNEL: &str = "10.77.0.2/24";
const MIB: u64 = 1 << 20;

/// Whether the run is the long one.
fn is_long() -> bool {
    std::env::var_os("UWARP_LONG").is_some_and(|value| !value.is_empty() && value != "0")
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
    kernel: IpAddr,
    name: &'static str,
    table: Table,
    port: u16,
}

fn settings() {
    let set = |name: &str, value: &str| std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).expect(name);
    set("tcp_rto_min_us", "5000");
    set("tcp_no_metrics_save", "1");
}

fn configure(device: DeviceConfig) -> Context {
    let mut config = Config::new(device, STACK).expect("a good address").without_monitor();
    config.tcp.rto_min = Duration::from_millis(5);
    config.tcp.time_wait = Duration::from_millis(50);
    config.tcp.timestamps = true;
    Context::open(config).expect("the context opens")
}

#[test]
fn the_kernel_over_af_packet() {
    netns::test_inside("the_kernel_over_af_packet", || {
        settings();
        netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &[KERNEL])]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        all(Bed::new(configure(device), "af_packet"), true);
    });
}

#[test]
fn the_kernel_over_tap() {
    netns::test_inside("the_kernel_over_tap", || {
        settings();
        let device = DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None };
        let context = configure(device);
        End::kernel("tap0", &[KERNEL]).bring_up().expect("an address on the tap");
        // The driver computes checksums behind the faults, and would vouch for what they damage.
        all(Bed::new(context, "tap"), false);
    });
}

fn all(mut bed: Bed, corruption: bool) {
    bed.whole_transfers();
    bed.cells(corruption);
    bed.short_connections(Opens::Kernel);
    bed.short_connections(Opens::Stack);
    bed.half_close();
    bed.resets();
    bed.nobody_listens();
    bed.options_are_used();
    println!("{}", bed.table.text());
    if let Some(path) = std::env::var_os("UWARP_FIGURES") {
        let file = Path::new(&path).join(format!("kernel-tcp-{}.txt", bed.name));
        std::fs::write(file, bed.table.text()).expect("the figures are written");
    }
}

impl Bed {
    fn new(context: Context, name: &'static str) -> Self {
        Self { context, kernel: "10.77.0.2".parse().unwrap(), name, table: Table::default(), port: 7000 }
    }

    /// A connection: the kernel's end and the stack's.
    fn connect(&mut self, opens: Opens) -> (std::net::TcpStream, TcpStream) {
        match opens {
            Opens::Kernel => {
                self.port += 1;
                let mut listener = TcpListener::bind(&self.context, self.port).expect("a free port");
                let to = self.context.socket_address(self.port);
                let kernel = thread::spawn(move || flows::kernel_connects(to));
                let accepted = listener.accept_timeout(PATIENCE).expect("the listener works");
                let (stream, peer) = accepted.expect("the kernel connects");
                let kernel = kernel.join().unwrap().expect("the stack answers");
                assert_eq!(peer, kernel.local_addr().unwrap());
                (kernel, stream)
            }
            Opens::Stack => {
                let listener = flows::kernel_listens(self.kernel).expect("a listening socket");
                let to = listener.local_addr().unwrap();
                let stream = TcpStream::connect(&self.context, to).expect("the kernel answers");
                let (kernel, _) = listener.accept().unwrap();
                (flows::patient(kernel).unwrap(), stream)
            }
        }
    }

    /// One transfer, both ways at once if both have something to say; every octet by hash.
    fn transfer(&mut self, cell: &str, opens: Opens, amount: Amount) {
        let (mut kernel, mut stack) = self.connect(opens);
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
        let none = FaultOptions { incoming: true, ..FaultOptions::default() };
        let mut cells = vec![
            ("loss 0.1 %", FaultOptions { loss: 0.1, ..none }),
            ("loss 1 %", FaultOptions { loss: 1.0, ..none }),
            ("loss 5 %", FaultOptions { loss: 5.0, ..none }),
            ("reordering 5 %", FaultOptions { reorder: 5.0, ..none }),
            ("duplication 5 %", FaultOptions { duplicate: 5.0, ..none }),
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
        self.context.set_faults(None).expect("no faults");
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

    fn nobody_listens(&mut self) {
        let to = self.context.socket_address(9);
        assert_eq!(flows::kernel_connects(to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let to = SocketAddr::new(self.kernel, 9);
        assert_eq!(TcpStream::connect(&self.context, to).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }

    /// What the kernel was seen to use, by tshark.
    fn options_are_used(&mut self) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let capture = folder.path().join("capture.pcap");
        self.context.start_capture(&capture).expect("a capture");
        let faults = FaultOptions { loss: 2.0, incoming: true, seed: 99, ..FaultOptions::default() };
        for opens in [Opens::Kernel, Opens::Stack] {
            self.context.set_faults(Some(faults)).expect("percentages");
            self.transfer("with a capture", opens, Amount { to_kernel: MIB, to_stack: MIB });
        }
        self.context.set_faults(None).expect("no faults");
        self.context.stop_capture();
        let frames = |who: &str, filter: &str| {
            let filter = format!("ip.src == {who} && {filter}");
            let output = Command::new("tshark").arg("-r").arg(&capture).args(["-Y", &filter]).output().expect("tshark");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            output.stdout.split(|octet| *octet == b'\n').filter(|line| !line.is_empty()).count()
        };
        let uses = [
            ("window scaling", "tcp.flags.syn == 1 && tcp.options.wscale"),
            ("SACK permitted", "tcp.flags.syn == 1 && tcp.options.sack_perm"),
            ("SACK blocks", "tcp.options.sack.count > 0"),
            ("timestamps", "tcp.flags.syn == 0 && tcp.options.timestamp.tsval"),
        ];
        for (who, name) in [("10.77.0.2", "the kernel"), ("10.77.0.1", "the stack")] {
            for (what, filter) in uses {
                let count = frames(who, filter);
                println!("{:<10} {name}: {what} in {count} segments", self.name);
                assert!(count > 0, "{name} uses {what}");
            }
        }
    }
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
