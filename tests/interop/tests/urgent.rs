//! Urgent data (RFC 9293 §3.8.5, RFC 6093) with the Linux kernel as the peer, in both directions.
//!
//! Both send a pointer to the octet behind the urgent data. As a receiver, Linux treats only the octet before that as
//! urgent. Its mark is in front of that octet, which is taken out of line unless SO_OOBINLINE is set. With `tcp_stdurg`
//! the mark is behind the octet, where our urgent data ends.

use std::io::{Read, Write};
use std::net::TcpStream as KernelStream;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{self, RecvFlags, SendFlags, sockopt};
use rustix::time::Timespec;
use uwarp::{Config, Context, DeviceConfig, FaultOptions, Interest, TcpListener, TcpStream, TcpStreamOptions};
use uwarp_interop_tests::flows::{self, PATIENCE};
use uwarp_middlebox::{behind, faults, standing};
use uwarp_netns::{self as netns, End};

const STACK: &str = "10.77.0.1/24";
const KERNEL: &str = "10.77.0.2/24";

#[test]
fn urgent_data_with_the_kernel_over_af_packet() {
    netns::test_inside("urgent_data_with_the_kernel_over_af_packet", || {
        netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &[KERNEL])]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        everything(&open(device));
    });
}

#[test]
fn urgent_data_with_the_kernel_over_tap() {
    netns::test_inside("urgent_data_with_the_kernel_over_tap", || {
        let device = DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None };
        let context = open(device);
        End::kernel("tap0", &[KERNEL]).bring_up().expect("an address on the tap");
        everything(&context);
    });
}

fn open(device: DeviceConfig) -> Context {
    std::fs::write("/proc/sys/net/ipv4/tcp_rto_min_us", "5000").expect("tcp_rto_min_us");
    let mut config = Config::new(device, STACK).expect("a good address").without_monitor();
    config.tcp.rto_min = Duration::from_millis(5);
    Context::open(behind(config)).expect("the context opens")
}

fn everything(context: &Context) {
    the_kernel_tells_of_urgent_data(context);
    a_shut_window_does_not_hold_the_kernels_word_up(context);
    losses_keep_the_kernels_end_of_urgent_data(context);
    the_kernel_is_told_of_the_last_octet(context);
    a_shut_window_of_the_kernel_does_not_hold_the_word_up(context);
    losses_keep_our_end_of_urgent_data(context);
}

/// A connection that the kernel opens: its end and the stack's.
fn connected(context: &Context, port: u16, receive_buffer: usize) -> (KernelStream, TcpStream) {
    let options = uwarp::TcpAcceptOptions {
        stream: TcpStreamOptions { receive_buffer, ..TcpStreamOptions::default() },
        ..uwarp::TcpAcceptOptions::default()
    };
    let mut listener = TcpListener::bind_with(context, port, &options).expect("a free port");
    let to = listener.local_addr();
    let kernel = thread::spawn(move || flows::kernel_connects(to));
    let (mut stack, _) = listener.accept_timeout(PATIENCE).expect("the listener works").expect("the kernel connects");
    stack.set_read_timeout(Some(PATIENCE));
    (kernel.join().unwrap().expect("the stack answers"), stack)
}

/// Sends all of it with MSG_OOB: the last octet is the kernel's urgent one.
fn send_urgent(kernel: &KernelStream, octets: &[u8]) {
    assert_eq!(net::send(kernel, octets, SendFlags::OOB), Ok(octets.len()));
}

/// Waits until the stack knows of urgent data, and returns how much of the stream precedes its end.
fn remaining(stack: &mut TcpStream) -> usize {
    let late = Instant::now() + PATIENCE;
    loop {
        stack.arm(Interest::URGENT);
        if let Some(count) = stack.urgent_remaining() {
            return count.get();
        }
        assert!(Instant::now() < late, "nothing is told of urgent data");
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(stack.as_fd(), PollFlags::IN)], Some(&limit)).expect("poll");
    }
}

fn the_kernel_tells_of_urgent_data(context: &Context) {
    let (mut kernel, mut stack) = connected(context, 7101, 1 << 18);
    assert_eq!(stack.urgent_remaining(), None);
    kernel.write_all(b"plain ").unwrap();
    send_urgent(&kernel, b"urgent");
    assert_eq!(remaining(&mut stack), 12);
    kernel.write_all(b" plain").unwrap();
    let mut octets = [0; 12];
    stack.read_exact(&mut octets[..10]).unwrap();
    assert_eq!(remaining(&mut stack), 2, "of the 12");
    stack.read_exact(&mut octets[10..]).unwrap();
    assert_eq!((&octets, stack.urgent_remaining()), (b"plain urgent", None));
    stack.read_exact(&mut octets[..6]).unwrap();
    assert_eq!((&octets[..6], stack.urgent_remaining()), (&b" plain"[..], None));
}

fn a_shut_window_does_not_hold_the_kernels_word_up(context: &Context) {
    const BEFORE: usize = 30_000;
    let (mut kernel, mut stack) = connected(context, 7102, 8192);
    kernel.write_all(&[1; BEFORE]).unwrap();
    let late = Instant::now() + PATIENCE;
    while stack.readable() < 8192 {
        assert!(Instant::now() < late, "{} octets", stack.readable());
        thread::sleep(Duration::from_millis(1));
    }
    send_urgent(&kernel, b"!");
    assert_eq!((remaining(&mut stack), stack.readable()), (BEFORE + 1, 8192));
    let mut octets = vec![0; BEFORE + 1];
    stack.read_exact(&mut octets).unwrap();
    assert_eq!((octets.last(), stack.urgent_remaining()), (Some(&b'!'), None));
}

/// Parts of urgent data in a stream of half a mebibyte over a lossy path: a reader who checks before each read knows
/// the last end.
fn losses_keep_the_kernels_end_of_urgent_data(context: &Context) {
    const PIECE: usize = 4096;
    const PIECES: usize = 128;
    let with = FaultOptions { loss: 3.0, reorder: 2.0, incoming: true, seed: 7, ..faults() };
    let (mut kernel, mut stack) = connected(context, 7103, 1 << 16);
    context.set_faults(Some(with)).expect("percentages");
    let sender = thread::spawn(move || {
        for piece in 0..PIECES {
            if piece % 8 == 3 {
                send_whole_urgent(&kernel, &[piece as u8; PIECE])
            } else {
                kernel.write_all(&[piece as u8; PIECE]).unwrap()
            }
        }
        kernel
    });
    let (mut received, mut known) = (0, 0);
    let mut room = [0; 1000];
    while received < PIECE * PIECES {
        if let Some(ahead) = stack.urgent_remaining() {
            known = known.max(received + ahead.get());
        }
        let count = stack.read(&mut room).expect("octets");
        assert!(room[..count].iter().enumerate().all(|(at, octet)| *octet == ((received + at) / PIECE) as u8));
        received += count;
    }
    context.set_faults(standing()).expect("no faults");
    sender.join().unwrap();
    // The last urgent piece is number 123.
    assert_eq!((known, stack.urgent_remaining()), (124 * PIECE, None));
}

/// Sends all of it as urgent data, however much of it is sent at once.
fn send_whole_urgent(kernel: &KernelStream, mut octets: &[u8]) {
    while !octets.is_empty() {
        let count = net::send(kernel, octets, SendFlags::OOB).expect("room");
        octets = &octets[count..];
    }
}

/// Waits until the kernel's socket has this many octets in line before its mark, or in total if there is none.
fn wait_for_octets(kernel: &KernelStream, count: u64) {
    let late = Instant::now() + PATIENCE;
    loop {
        let found = rustix::io::ioctl_fionread(kernel).expect("FIONREAD");
        if found == count {
            return;
        }
        assert!(Instant::now() < late && found < count, "{found} octets and not {count}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the kernel's socket has urgent data (POLLPRI).
fn wait_for_urgent(kernel: &KernelStream) {
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(kernel, PollFlags::PRI)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "the kernel is not told of urgent data");
}

/// The octets of one read, which ends at the mark.
fn one_read(kernel: &mut KernelStream) -> Vec<u8> {
    let mut room = [0; 100];
    let count = kernel.read(&mut room).expect("octets");
    room[..count].to_vec()
}

fn the_kernel_is_told_of_the_last_octet(context: &Context) {
    let stdurg = |on: bool| {
        std::fs::write("/proc/sys/net/ipv4/tcp_stdurg", if on { "1" } else { "0" }).expect("tcp_stdurg");
    };
    // In line: the mark is in front of our last urgent octet.
    let (mut kernel, mut stack) = connected(context, 7104, 1 << 16);
    sockopt::set_socket_oobinline(&kernel, true).unwrap();
    stack.write_all(b"plain ").unwrap();
    assert_eq!(stack.write_urgent(b"urgent").unwrap(), 6);
    stack.write_all(b" plain").unwrap();
    wait_for_urgent(&kernel);
    wait_for_octets(&kernel, 18);
    assert_eq!(one_read(&mut kernel), b"plain urgen");
    assert_eq!(one_read(&mut kernel), b"t plain");

    // Not in line: that octet is removed, and FIONREAD counts up to the mark.
    let (mut kernel, mut stack) = connected(context, 7105, 1 << 16);
    stack.write_all(b"plain ").unwrap();
    stack.write_urgent(b"urgent").unwrap();
    wait_for_urgent(&kernel);
    wait_for_octets(&kernel, 11);
    let mut octet = [0; 1];
    let (count, _) = net::recv(&kernel, &mut octet[..], RecvFlags::OOB).expect("the urgent octet");
    assert_eq!((count, octet), (1, *b"t"));
    assert_eq!(one_read(&mut kernel), b"plain urgen");
    stack.write_all(b" plain").unwrap();
    // FIONREAD does not look beyond the mark until a read has.
    let mut rest = [0; 6];
    kernel.read_exact(&mut rest).expect("what follows");
    assert_eq!(&rest, b" plain");

    // As in RFC 1122, by `tcp_stdurg`: the mark is where our urgent data ends.
    stdurg(true);
    let (mut kernel, mut stack) = connected(context, 7106, 1 << 16);
    sockopt::set_socket_oobinline(&kernel, true).unwrap();
    stack.write_all(b"plain ").unwrap();
    stack.write_urgent(b"urgent").unwrap();
    wait_for_octets(&kernel, 12);
    stack.write_all(b" plain").unwrap();
    wait_for_octets(&kernel, 18);
    assert_eq!(one_read(&mut kernel), b"plain urgent");
    assert_eq!(one_read(&mut kernel), b" plain");
    stdurg(false);
}

/// The kernel raises SIGURG for the acknowledgment that announces urgent data ahead of it, but POLLPRI only once the
/// octet is there, which is behind the data that fills the window.
fn a_shut_window_of_the_kernel_does_not_hold_the_word_up(context: &Context) {
    let (mut kernel, mut stack) = connected(context, 7107, 1 << 16);
    sockopt::set_socket_oobinline(&kernel, true).unwrap();
    stack.set_nonblocking(true);
    let mut written: usize = 0;
    let mut still = Instant::now();
    // Until the kernel accepts no more, and some room is left here.
    while still.elapsed() < Duration::from_millis(300) {
        if stack.writable() > 1 << 16
            && let Ok(count) = stack.write(&[1; 1 << 15])
        {
            written += count;
            still = Instant::now();
        }
        thread::sleep(Duration::from_millis(1));
    }
    let capture = tempfile::tempdir().expect("a temporary directory");
    let capture = capture.path().join("capture.pcap");
    context.start_capture(&capture).expect("a capture");
    assert_eq!(stack.write_urgent(b"!").unwrap(), 1);
    thread::sleep(Duration::from_millis(50));
    context.stop_capture();
    // The engine answers in order.
    stack.tcp_info().expect("the engine lives");
    let told = uwarp_interop_tests::witness::count(
        &capture,
        "tcp.srcport == 7107 && tcp.flags.urg == 1 && tcp.urgent_pointer > 0",
    );
    assert!(told > 0, "the word waits for the window");
    let mut room = vec![0; 1 << 16];
    let mut received = 0;
    while received < written + 1 {
        received += kernel.read(&mut room).expect("octets");
    }
    assert_eq!(received, written + 1);
}

fn losses_keep_our_end_of_urgent_data(context: &Context) {
    let with = FaultOptions { loss: 20.0, incoming: true, seed: 8, ..faults() };
    for round in 0..20 {
        let (mut kernel, mut stack) = connected(context, 7110 + round, 1 << 16);
        sockopt::set_socket_oobinline(&kernel, true).unwrap();
        context.set_faults(Some(with)).expect("percentages");
        stack.write_all(&[1; 5000]).unwrap();
        assert_eq!(stack.write_urgent(&[2; 3000]).unwrap(), 3000);
        stack.write_all(&[3; 500]).unwrap();
        wait_for_octets(&kernel, 8500);
        context.set_faults(standing()).expect("no faults");
        wait_for_urgent(&kernel);
        let mut room = [0; 9000];
        let mut reads = Vec::new();
        while reads.iter().sum::<usize>() < 8500 {
            reads.push(kernel.read(&mut room).expect("octets"));
        }
        assert_eq!(reads, [7999, 501], "the mark stands in front of the last urgent octet");
    }
}
