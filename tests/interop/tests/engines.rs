//! Two engines behind one address over a real device: the kernel chooses the queue of each flow by its own hash, so its
//! answers reach the wrong engine as often as the right one.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;

use uwarp::{Config, Context, DeviceConfig, TcpListener, TcpStream};
use uwarp_interop_tests::stack::PATIENCE;
use uwarp_netns::{self as netns, End};

const STREAMS: u16 = 12;
const KERNEL: [&str; 2] = ["10.77.0.2/24", "fd77::2/64"];

#[test]
fn flows_of_two_engines_meet_the_kernel_over_af_packet() {
    netns::test_inside("flows_of_two_engines_meet_the_kernel_over_af_packet", || {
        netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &KERNEL)]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        let mut config = Config::new(device, "10.77.0.1/24").expect("a good address").without_monitor().threaded(2);
        config.duplicate_address_detection = 0;
        let config = config.another_address("fd77::1/64".parse().expect("a good address"));
        let context = Context::open(uwarp_middlebox::behind(config)).expect("the context opens");
        for (stack, kernel) in [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")] {
            let address = |text: &str, port| SocketAddr::new(text.parse().expect("an address"), port);
            the_stack_connects(&context, address(kernel, 7100));
            the_kernel_connects(&context, address(stack, 7101));
        }
        let stats = context.stats();
        let sum = |count: fn(&uwarp::stats::EngineStats) -> u64| stats.engines.iter().map(count).sum::<u64>();
        let (handed, taken) = (sum(|engine| engine.counters.handed_off), sum(|engine| engine.counters.taken_over));
        // With this many flows it is practically impossible that each was hashed to its own engine.
        assert!(handed > 0 && taken > 0, "{handed} handed off, {taken} taken over: {stats:#?}");
        assert!(stats.engines.iter().all(|engine| engine.counters.connections_opened > 0), "{stats:#?}");
    });
}

fn pattern(number: u16) -> Vec<u8> {
    (0..100_000).map(|at| (at * 7 + usize::from(number)) as u8).collect()
}

/// Sends a pattern and expects it back.
fn speak(stream: &mut (impl Read + Write), number: u16) {
    let sent = pattern(number);
    let mut received = vec![0; sent.len()];
    // Less than either side's buffers at a time: neither side reads while it writes.
    for (sent, received) in sent.chunks(10_000).zip(received.chunks_mut(10_000)) {
        stream.write_all(sent).expect("sent");
        stream.read_exact(received).expect("received");
    }
    assert!(sent == received);
}

/// Echoes what arrives.
fn echo(mut stream: impl Read + Write) {
    let mut room = vec![0; 10_000];
    loop {
        match stream.read(&mut room).expect("the other side is there") {
            0 => return,
            count => stream.write_all(&room[..count]).expect("sent"),
        }
    }
}

fn the_stack_connects(context: &Context, kernel: SocketAddr) {
    let listener = std::net::TcpListener::bind(kernel).expect("the kernel listens");
    let server = thread::spawn(move || {
        let streams: Vec<_> = (0..STREAMS).map(|_| listener.accept().expect("the stack connects").0).collect();
        let echoes: Vec<_> = streams.into_iter().map(|stream| thread::spawn(|| echo(stream))).collect();
        for echo in echoes {
            echo.join().expect("an echo");
        }
    });
    let mut streams: Vec<_> =
        (0..STREAMS).map(|_| TcpStream::connect(context, kernel).expect("the kernel accepts")).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        speak(stream, number as u16);
    }
    for mut stream in streams {
        stream.shutdown_write();
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    }
    server.join().expect("the kernel's side");
}

fn the_kernel_connects(context: &Context, stack: SocketAddr) {
    let mut listener = TcpListener::bind(context, stack.port()).expect("the stack listens");
    let client = thread::spawn(move || {
        for number in 0..STREAMS {
            let mut stream = std::net::TcpStream::connect_timeout(&stack, PATIENCE).expect("the stack accepts");
            stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
            speak(&mut stream, number);
            stream.shutdown(std::net::Shutdown::Write).expect("half closed");
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
        }
    });
    for _ in 0..STREAMS {
        let accepted = listener.accept_timeout(PATIENCE).expect("the listener works");
        echo(accepted.expect("the kernel connects").0);
    }
    client.join().expect("the kernel's side");
}
