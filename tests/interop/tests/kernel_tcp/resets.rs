//! Resets in every state, by either side.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use uwarp::{Config, DeviceConfig, FaultOptions, TcpListener, TcpStream, TcpStreamOptions};
use uwarp_interop_tests::flows::{self, PATIENCE};
use uwarp_interop_tests::witness;

use crate::bed::{Addresses, Bed, Opens, kernel_state, kernel_state_of, open_with_wait};
use crate::drops::Drops;

/// `ready` is called once the device exists.
pub fn resets_in_time_wait(device: DeviceConfig, name: &'static str, addresses: Addresses, ready: impl FnOnce()) {
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

impl Bed {
    /// A reset ends a connection in every state that a user can bring it to, and either side is told.
    pub fn resets(&mut self) {
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

    /// Resets in the states that last as long as a segment travels: an acknowledgment is held back meanwhile.
    pub fn resets_at_the_end(&mut self) {
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
                self.wait_for("the end", |bed| bed.stack_state(port) == "CLOSED");
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

    /// The hazard of RFC 1337 §2: the acknowledgment that ends the kernel's connection arrives twice, and the second
    /// one finds no connection. The kernel resets with exactly the number that the stack expects.
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
        // The stack's clock and the system's do not agree to the microsecond; a TIME-WAIT that a reset ends is over at
        // once.
        assert!(begin.elapsed() >= time_wait.mul_f64(0.9), "TIME-WAIT is over after {:?}", begin.elapsed());
        self.context.stop_capture();
        let field = self.addresses.field;
        // The number behind the kernel's SYN and FIN.
        let filter = format!("{field}.src == {} && tcp.flags.reset == 1 && tcp.seq == 2", self.kernel);
        assert!(witness::count(&capture, &filter) > 0, "{}: a reset with the number that is expected", self.name);
    }

    /// The same with the stack's connection gone and the kernel in TIME-WAIT, which such a reset ends unless the kernel
    /// is configured otherwise (RFC 9293 §3.10.7.4, second check; `tcp_rfc1337`).
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

    /// The kernel has not answered the octet of a window probe: whether it accepted it or not, one of the two resets
    /// has the number that it expects. The kernel's own segments do not arrive either.
    pub fn resets_behind_a_window_probe(&mut self) {
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
                    // The probe may arrive as soon as there is room, before everything else is read.
                    let waiting = rustix::io::ioctl_fionread(&kernel).expect("FIONREAD") as usize;
                    kernel.set_read_timeout(Some(PATIENCE)).unwrap();
                    let (mut read, mut room) = (0, [0; 4096]);
                    while read <= waiting {
                        read += kernel.read(&mut room).expect("what is there, and the octet of a probe");
                    }
                    assert_eq!(read, waiting + 1);
                } else {
                    let before = self.stack_tcp(port).traffic.segments_sent;
                    self.wait_for("a probe", |bed| bed.stack_tcp(port).traffic.segments_sent > before);
                }
                stack.abort();
                self.wait_for("the kernel's end", |_| kernel_state(ports).is_none());
                assert_eq!(until_error(&mut kernel), Some(ErrorKind::ConnectionReset), "taken: {taken}");
                drop(drops);
            }
        }
    }

    /// Resets of a handshake that is half done.
    pub fn resets_while_opening(&mut self) {
        // The stack's answer is lost; when it is retransmitted, the kernel has given up.
        self.port += 1;
        let port = self.port;
        let mut listener = TcpListener::bind(&self.context, port).expect("a free port");
        self.context.set_faults(Some(FaultOptions { loss: 100.0, ..FaultOptions::default() })).expect("percentages");
        let socket = flows::kernel_begins(self.context.socket_address(port)).expect("a socket");
        self.wait_for("SYN-RECEIVED", |bed| bed.stack_state(port) == "SYN-RECEIVED");
        drop(socket);
        self.context.set_faults(uwarp_middlebox::standing()).expect("no faults");
        self.wait_for("SYN-RECEIVED", |bed| bed.stack_state(port) == "CLOSED");
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
}

/// Reads until an error; `None` at the end of the stream.
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
