//! Whole transfers by hash, faults of every kind on the wire, and the options that both ends use on it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown};
use std::thread;
use std::time::{Duration, Instant};

use uwarp::{FaultOptions, TcpStream};
use uwarp_interop_tests::flows::{self, PATIENCE, join};
use uwarp_interop_tests::witness;
use uwarp_netns::Namespace;

use crate::bed::{Amount, Bed, MIB, Opens, bare, count};

impl Bed {
    /// One transfer, in both directions at once if both sides send; every octet by hash.
    pub fn transfer(&mut self, cell: &str, opens: Opens, amount: Amount) {
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
    pub fn transfer_to_another(&mut self, other: &Namespace, address: IpAddr, octets: u64) {
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

    pub fn whole_transfers(&mut self) {
        let size = count(64 * MIB, 1024 * MIB);
        for opens in [Opens::Kernel, Opens::Stack] {
            let opener = format!("{opens:?} opens").to_lowercase();
            self.transfer(&format!("{opener}, to the kernel"), opens, Amount { to_kernel: size, to_stack: 0 });
            self.transfer(&format!("{opener}, to the stack"), opens, Amount { to_kernel: 0, to_stack: size });
        }
    }

    pub fn cells(&mut self, corruption: bool) {
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

    /// The options that both used, according to tshark.
    pub fn options_are_used(&mut self) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let capture = folder.path().join("capture.pcap");
        self.context.start_capture(&capture).expect("a capture");
        let faults = FaultOptions { loss: 2.0, mark: 2.0, incoming: true, seed: 99, ..uwarp_middlebox::faults() };
        for opens in [Opens::Kernel, Opens::Stack] {
            // An end whose SYN is lost does not use ECN (RFC 3168 §6.1.1.1).
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

/// Sends and receives at once on one stream of the stack; closes its own half behind the last octet.
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
