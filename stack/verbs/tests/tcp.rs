//! Plain streams between two contexts in this process, and within one.

mod common;

use common::{LONG, Mode, PORT, config, in_both_modes, pair};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};
use uwarp::{Context, FaultOptions, Interest, TcpAcceptOptions, TcpListener, TcpStream, TcpStreamOptions};

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

/// A connection from the first context to the second.
fn joined_with(
    a: &Context,
    b: &Context,
    client: &TcpStreamOptions,
    server: TcpStreamOptions,
) -> (TcpListener, TcpStream, TcpStream) {
    let options = TcpAcceptOptions { stream: server, ..TcpAcceptOptions::default() };
    let mut listener = TcpListener::bind_with(b, PORT, &options).unwrap();
    let client = TcpStream::connect_with(a, listener.local_addr(), client).unwrap();
    let (server, peer) = listener.accept_timeout(LONG).unwrap().expect("the connection comes");
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(server.peer_addr(), peer);
    assert_eq!(client.peer_addr(), server.local_addr().unwrap());
    (listener, client, server)
}

fn joined(a: &Context, b: &Context) -> (TcpListener, TcpStream, TcpStream) {
    joined_with(a, b, &TcpStreamOptions::default(), TcpStreamOptions::default())
}

/// Sends all of `sent[n]` by stream n and ends its half; gives what each received until the end. One thread serves
/// both.
fn exchange(streams: [&mut TcpStream; 2], sent: [&[u8]; 2]) -> [Vec<u8>; 2] {
    let mut at = [0; 2];
    let mut received = [Vec::new(), Vec::new()];
    let mut ended = [false; 2];
    let mut room = vec![0; 70_000];
    let [a, b] = streams;
    let end = Instant::now() + LONG;
    while !(ended[0] && ended[1]) {
        assert!(Instant::now() < end, "sent {at:?}, received {} and {}", received[0].len(), received[1].len());
        for (index, stream) in [&mut *a, &mut *b].into_iter().enumerate() {
            stream.set_nonblocking(true);
            if at[index] < sent[index].len() {
                match stream.write(&sent[index][at[index]..]) {
                    Ok(count) => at[index] += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            if at[index] == sent[index].len() {
                stream.shutdown_write();
            }
            match stream.read(&mut room) {
                Ok(0) => ended[index] = true,
                Ok(count) => received[index].extend_from_slice(&room[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
    received
}

#[test]
fn octets_come_through_in_both_directions_and_halves_close_one_by_one() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (_listener, mut client, mut server) = joined(&a, &b);
        assert!(client.writable() > 0 && server.writable() > 0);
        let (up, down) = (pattern(3 << 20, 1), pattern(1 << 20, 2));
        let [at_client, at_server] = exchange([&mut client, &mut server], [&up, &down]);
        assert!(at_server == up && at_client == down);
        assert_eq!(client.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_blocking_echo_between_threads() {
    let (a, b) = pair(Mode::Threaded);
    let (_listener, mut client, mut server) = joined(&a, &b);
    let echo = std::thread::spawn(move || {
        let mut room = [0; 1000];
        loop {
            match server.read(&mut room).unwrap() {
                0 => break,
                count => server.write_all(&room[..count]).unwrap(),
            }
        }
        server.write_all(b"bye").unwrap();
    });
    for size in [1, 64, 1460, 100_000] {
        let sent = pattern(size, size as u64);
        client.write_all(&sent).unwrap();
        let mut back = vec![0; size];
        client.read_exact(&mut back).unwrap();
        assert!(back == sent, "{size} octets");
    }
    client.shutdown_write();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"bye");
    echo.join().unwrap();
}

#[test]
fn a_slow_reader_shuts_the_window_and_loses_nothing() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let small = TcpStreamOptions::default().buffers(16 << 10, 16 << 10);
        let (_listener, mut client, mut server) = joined_with(&a, &b, &small, small.clone());
        client.set_nonblocking(true);
        let sent = pattern(200_000, 3);
        let mut at = 0;
        // Until nothing goes on for a while: both rings and what is between them are full.
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(300) {
            a.poll();
            b.poll();
            if let Ok(count) = client.write(&sent[at..]) {
                at += count;
                last = Instant::now();
            }
        }
        assert!((32 << 10..80 << 10).contains(&at), "{at} octets went without anybody reading");
        assert_eq!(server.readable(), 16 << 10);
        let info = client.tcp_info().unwrap().expect("it lives");
        assert_eq!(info.send_window, 0, "{info:?}");
        let [_, received] = exchange([&mut client, &mut server], [&sent[at..], b""]);
        assert!(received == sent);
    });
}

#[test]
fn what_was_written_before_a_drop_arrives() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let big = TcpStreamOptions::default().buffers(1 << 20, 1 << 20);
        let (_listener, mut client, mut server) = joined_with(&a, &b, &big, big.clone());
        let sent = pattern(900_000, 4);
        client.write_all(&sent).unwrap();
        drop(client);
        let mut received = Vec::new();
        server.set_read_timeout(Some(LONG));
        server.read_to_end(&mut received).unwrap();
        assert!(received == sent);
        drop(server);
    });
}

#[test]
fn a_closing_context_lingers_for_what_was_written() {
    let (a, b) = pair(Mode::Threaded);
    let big = TcpStreamOptions::default().buffers(1 << 20, 1 << 20);
    let (_listener, mut client, mut server) = joined_with(&a, &b, &big, big.clone());
    let sent = pattern(900_000, 5);
    client.write_all(&sent).unwrap();
    a.close().unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert!(received == sent);
}

/// RFC 6056 §3.2, §3.3.1: over the whole range, and not one behind the other.
#[test]
fn source_ports_are_of_the_whole_range_and_hard_to_guess() {
    let (a, b) = pair(Mode::Inline);
    let mut listener = TcpListener::bind(&b, PORT).unwrap();
    let ports: Vec<u16> = (0..100)
        .map(|_| {
            let client = TcpStream::connect(&a, listener.local_addr()).unwrap();
            listener.accept().unwrap();
            client.local_addr().unwrap().port()
        })
        .collect();
    // A quarter of the range has none of a hundred ports once in 10^12 runs.
    for quarter in 0..4 {
        let range = 1024 + quarter * 16_128..=1023 + (quarter + 1) * 16_128;
        assert!(ports.iter().any(|port| range.contains(&u32::from(*port))), "{range:?}: {ports:?}");
    }
    let near = ports.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 100).count();
    assert!(near < 10, "{near} of 100 are guessed from the one before: {ports:?}");
}

#[test]
fn a_closed_port_refuses_and_a_silent_one_times_out() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let refused = if mode == Mode::Threaded {
            TcpStream::connect(&a, b.socket_address(PORT))
        } else {
            TcpStream::connect(&a, a.socket_address(PORT))
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let limit = TcpStreamOptions::default().connect_timeout(Duration::from_millis(50));
        let silent = TcpStream::connect_with(&a, "10.0.0.99:80".parse().unwrap(), &limit);
        assert!(matches!(silent.unwrap_err().kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable));
        let nowhere = TcpStream::connect(&a, "[::1]:80".parse().unwrap());
        assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn an_abort_resets_the_peer_once_it_has_read_what_came_before() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (_listener, mut client, mut server) = joined(&a, &b);
        client.write_all(b"last words").unwrap();
        let mut words = [0; 10];
        server.set_read_timeout(Some(LONG));
        server.read_exact(&mut words[..4]).unwrap();
        client.abort();
        server.read_exact(&mut words[4..]).unwrap();
        assert_eq!(&words, b"last words");
        assert_eq!(server.read(&mut words).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(server.write(b"?").unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_peer_that_sends_to_nobody_is_reset() {
    let (a, b) = pair(Mode::Threaded);
    let (_listener, mut client, server) = joined(&a, &b);
    drop(server);
    let mut none = [0; 1];
    assert_eq!(client.read(&mut none).unwrap(), 0, "the peer ended its half");
    let error = loop {
        if let Err(error) = client.write_all(&[0; 1000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn time_limits_and_non_blocking_calls() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (mut listener, mut client, mut server) = joined(&a, &b);
        assert!(listener.accept_timeout(Duration::from_millis(1)).unwrap().is_none());
        listener.set_nonblocking(true);
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut room = [0; 8];
        client.set_read_timeout(Some(Duration::from_millis(5)));
        assert_eq!(client.read(&mut room).unwrap_err().kind(), ErrorKind::TimedOut);
        client.set_write_timeout(Some(Duration::from_millis(5)));
        let error = loop {
            if let Err(error) = client.write(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        server.set_nonblocking(true);
        let mut count = 0;
        while count < 100_000 {
            match server.read(&mut room) {
                Ok(some) => count += some,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    });
}

#[test]
fn a_started_open_tells_its_outcome() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let mut listener = TcpListener::bind(&b, PORT).unwrap();
        let mut stream = TcpStream::start_connect(&a, listener.local_addr(), &TcpStreamOptions::default()).unwrap();
        stream.set_nonblocking(true);
        let end = Instant::now() + LONG;
        while stream.check_connected().unwrap().is_none() {
            assert!(Instant::now() < end);
            b.poll();
        }
        assert!(listener.accept_timeout(LONG).unwrap().is_some());
    });
}

#[test]
fn descriptors_say_when_something_happens() {
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    let (a, b) = pair(Mode::Threaded);
    let readable = |fd: std::os::fd::BorrowedFd<'_>, limit: i64| {
        let limit = rustix::time::Timespec { tv_sec: limit, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    let mut listener = TcpListener::bind(&b, PORT).unwrap();
    listener.arm();
    assert!(!readable(listener.as_fd(), 0));
    let mut client = TcpStream::connect(&a, listener.local_addr()).unwrap();
    assert!(readable(listener.as_fd(), 30));
    let (mut server, _) = listener.accept().unwrap();
    server.set_nonblocking(true);
    server.arm(Interest::READABLE);
    assert_eq!(server.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(!readable(server.as_fd(), 0));
    client.write_all(b"x").unwrap();
    assert!(readable(server.as_fd(), 30));
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 1);
    // Armed for room, octets to read do not raise it.
    client.arm(Interest::WRITABLE);
    server.write_all(b"y").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    client.arm(Interest::READABLE);
    drop(server);
    assert!(readable(client.as_fd(), 30), "the end is something to read");
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_listener_that_goes_resets_who_was_not_accepted() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let listener = TcpListener::bind(&b, PORT).unwrap();
        assert_eq!(TcpListener::bind(&b, PORT).unwrap_err().kind(), ErrorKind::AddrInUse);
        let mut client = TcpStream::connect(&a, listener.local_addr()).unwrap();
        client.set_read_timeout(Some(LONG));
        drop(listener);
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        TcpListener::bind(&b, PORT).unwrap();
    });
}

#[test]
fn the_backlog_bounds_who_waits() {
    let (a, b) = pair(Mode::Threaded);
    let options = TcpAcceptOptions { backlog: 2, ..TcpAcceptOptions::default() };
    let mut listener = TcpListener::bind_with(&b, PORT, &options).unwrap();
    let limit = TcpStreamOptions::default().connect_timeout(Duration::from_millis(200));
    let first: Vec<_> = (0..2).map(|_| TcpStream::connect(&a, listener.local_addr()).unwrap()).collect();
    let third = TcpStream::connect_with(&a, listener.local_addr(), &limit);
    assert_eq!(third.unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(b.stats().engines[0].drops["backlog-full"] > 0);
    let (_taken, _) = listener.accept().unwrap();
    TcpStream::connect(&a, listener.local_addr()).unwrap();
    drop(first);
}

#[test]
fn both_ends_in_one_context() {
    in_both_modes(|mode| {
        let (a, _b) = pair(mode);
        let (_listener, mut client, mut server) = joined(&a, &a);
        let (up, down) = (pattern(500_000, 6), pattern(300_000, 7));
        let [at_client, at_server] = exchange([&mut client, &mut server], [&up, &down]);
        assert!(at_server == up && at_client == down);
    });
}

#[test]
fn several_engines_share_the_connections() {
    let (mut left, mut right) = (config(1, Mode::Threaded), config(2, Mode::Threaded));
    (left.engine.count, right.engine.count) = (2, 2);
    let (a, b) = Context::pair_in_process(left, right).unwrap();
    let mut listener = TcpListener::bind(&b, PORT).unwrap();
    let mut engines = [0; 2];
    for number in 0..6 {
        let mut client = TcpStream::connect(&a, listener.local_addr()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(client.engine(), server.engine(), "the pair joins engine to engine");
        engines[client.engine()] += 1;
        let sent = pattern(50_000, number);
        let [_, received] = exchange([&mut client, &mut server], [&sent, b""]);
        assert!(received == sent);
    }
    assert_eq!(engines, [3, 3]);
}

#[test]
fn loss_reordering_duplication_and_corruption_change_nothing() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (_listener, mut client, mut server) = joined(&a, &b);
        let faults = FaultOptions {
            loss: 2.0,
            duplicate: 2.0,
            reorder: 2.0,
            corrupt: 1.0,
            seed: 11,
            recut: 20.0,
            ..FaultOptions::default()
        };
        a.set_faults(Some(faults)).unwrap();
        b.set_faults(Some(faults)).unwrap();
        let (up, down) = (pattern(700_000, 8), pattern(500_000, 9));
        let [at_client, at_server] = exchange([&mut client, &mut server], [&up, &down]);
        assert!(at_server == up && at_client == down);
        a.set_faults(uwarp_middlebox::standing()).unwrap();
        b.set_faults(uwarp_middlebox::standing()).unwrap();
    });
}

#[test]
fn a_connection_tells_about_itself() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let options = TcpStreamOptions::default().congestion(uwarp::config::Congestion::Reno);
        let (_listener, mut client, mut server) = joined_with(&a, &b, &options, TcpStreamOptions::default());
        client.set_nodelay(false);
        client.write_all(&[1; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
        let info = server.tcp_info().unwrap().expect("it lives");
        assert_eq!((info.state.name(), info.octets_received), ("ESTABLISHED", 10_000));
        let wrong = TcpStreamOptions::default().buffers(100, 4096);
        let refused = TcpStream::connect_with(&a, b.socket_address(PORT), &wrong).unwrap_err();
        assert!(refused.kind() == ErrorKind::InvalidInput && refused.to_string().contains("4096"), "{refused}");
    });
}

/// Of an inline context the engine has not seen the stream yet when the option is set.
#[test]
fn what_is_set_before_the_engine_knows_the_stream_holds() {
    let (a, b) = pair(Mode::Inline);
    let mut listener = TcpListener::bind(&b, PORT).unwrap();
    for nodelay in [true, false] {
        let options = TcpStreamOptions { nodelay: !nodelay, ..TcpStreamOptions::default() };
        let mut client = TcpStream::start_connect(&a, listener.local_addr(), &options).unwrap();
        client.set_nodelay(nodelay);
        let (_server, _) = listener.accept_timeout(LONG).unwrap().expect("the connection comes");
        while client.check_connected().unwrap().is_none() {}
        let segments = |client: &TcpStream| client.tcp_info().unwrap().expect("it lives").traffic.segments_sent;
        let before = segments(&client);
        // Nobody acknowledges meanwhile: a write does not turn the other context.
        for _ in 0..6 {
            assert_eq!(client.write(&[1]).unwrap(), 1);
        }
        let sent = segments(&client) - before;
        assert!(if nodelay { sent >= 6 } else { sent <= 3 }, "{sent} segments, nodelay {nodelay}");
    }
}

#[test]
fn urgent_data_is_told_of_and_read_in_line() {
    in_both_modes(|mode| {
        let (a, b) = pair(mode);
        let (_listener, mut client, mut server) = joined(&a, &b);
        server.set_read_timeout(Some(LONG));
        client.write_all(b"before ").unwrap();
        assert_eq!(client.write_urgent(b"urgent").unwrap(), 6);
        client.write_all(b" after").unwrap();
        let end = Instant::now() + LONG;
        let mut remaining = None;
        while remaining.is_none() {
            assert!(Instant::now() < end);
            // An inline context moves by itself only.
            client.readable();
            remaining = server.urgent_remaining();
        }
        assert_eq!(
            remaining.map_or(0, |count| count.get()),
            13,
            "up to the octet behind it (RFC 9293 §3.8.5, MUST-62)"
        );
        let mut octets = [0; 13];
        server.read_exact(&mut octets).unwrap();
        assert_eq!((&octets, server.urgent_remaining()), (b"before urgent", None));
        server.read_exact(&mut octets[..6]).unwrap();
        assert_eq!(&octets[..6], b" after");
        assert_eq!(client.write_urgent(b"").unwrap(), 0);
        client.shutdown_write();
        assert_eq!(client.write_urgent(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn urgent_data_raises_the_descriptor_of_who_is_armed_for_it() {
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    let (a, b) = pair(Mode::Threaded);
    let (_listener, mut client, mut server) = joined(&a, &b);
    let raised = |stream: &TcpStream, limit: i64| {
        let limit = rustix::time::Timespec { tv_sec: limit, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    server.arm(Interest::URGENT);
    client.write_all(b"not urgent").unwrap();
    let end = std::time::Instant::now() + LONG;
    while server.readable() < 10 {
        assert!(std::time::Instant::now() < end);
        std::thread::yield_now();
    }
    // A turn tells of octets after it has handed them out.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!raised(&server, 0), "nothing of this is urgent");
    // They are there: this read waits for nothing, and the stream stays armed.
    server.read_exact(&mut [0; 10]).unwrap();
    client.write_urgent(b"urgent").unwrap();
    assert!(raised(&server, 30));
    assert_eq!(server.urgent_remaining().map_or(0, |count| count.get()), 6);
    server.arm(Interest::URGENT);
    client.abort();
    assert!(raised(&server, 30), "there will be no urgent data any more");
}
