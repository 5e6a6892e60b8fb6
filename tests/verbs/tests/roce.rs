//! The device of RoCE, whose queue pairs programs connect themselves: stock programs without rdma_cm, and one of our
//! own in C (`c/roce.c`).

use std::net::SocketAddr;
use std::time::Duration;

use uwarp::{Config, ConnectError, ConnectOptions, Context, Error, QueuePairOptions, ReadyToReceiveKinds};
use uwarp_verbs_tests::{ADDRESS, Ended, Host, LONG, ROCE, TRIES};

/// Where perftest and rdma-core's programs listen on the kernel's TCP, to exchange the numbers of queue pairs.
const PORT: u16 = 18_515;

/// A program with both ends: the client has the server's address behind the same arguments.
#[track_caller]
fn both(host: &Host, words: &[&str]) -> (String, String) {
    let client: Vec<&str> = words.iter().copied().chain([ADDRESS]).collect();
    let start = || {
        let server = host.start_with(&[ROCE], words);
        let server = Host::wait_until(server, words, |server| Host::listens_on_kernels(server, PORT));
        (server, host.start_with(&[ROCE], &client).wait_within(LONG))
    };
    let (mut server, mut ended) = start();
    for _ in 1..TRIES {
        if !ended.lost_its_clock() {
            break;
        }
        server.kill();
        (server, ended) = start();
    }
    let Ended { status, output } = ended;
    assert!(status.success(), "{client:?}: {status}\n{output}\nServer:\n{}", server.printed());
    (server.wait().succeeded().to_owned(), output)
}

#[test]
fn semantics_of_infiniband() {
    let host = Host::new("roce");
    let tests =
        ["device", "masks", "posts", "pair", "contexts", "itself", "early", "reset", "nobody", "gone", "nothing"];
    host.run_tests(&[ROCE], "roce", &tests, &[]);
}

#[test]
fn pingpongs_of_rdma_core() {
    let host = Host::new("roce-pp");
    for words in [
        &["ibv_rc_pingpong", "-n", "500"][..],
        &["ibv_rc_pingpong", "-n", "500", "-g", "0", "-e"],
        &["ibv_rc_pingpong", "-n", "500", "-g", "0", "-c", "-m", "4096"],
        &["ibv_srq_pingpong", "-n", "500", "-g", "0"],
        &["ibv_srq_pingpong", "-n", "500", "-g", "0", "-e", "-q", "4"],
    ] {
        let (_, client) = both(&host, words);
        assert!(client.contains("iters in"), "{words:?}: {client}");
    }
}

#[test]
fn perftest_without_rdma_cm() {
    let host = Host::new("roce-pt");
    for words in [
        &["ib_send_bw", "-n", "500"][..],
        &["ib_send_bw", "-n", "500", "-e"],
        &["ib_write_bw", "-n", "500", "-q", "4"],
        &["ib_read_bw", "-n", "500"],
        &["ib_atomic_bw", "-n", "500"],
        &["ib_send_lat", "-n", "500"],
        &["ib_read_lat", "-n", "500"],
        &["ib_atomic_lat", "-n", "500"],
    ] {
        let (_, client) = both(&host, words);
        assert!(client.contains("#bytes"), "{words:?}: {client}");
    }
}

#[test]
fn rc_tests_of_qperf_by_the_lid_alone() {
    let host = Host::new("roce-qperf");
    let words = ["qperf"];
    let _server =
        Host::wait_until(host.start_with(&[ROCE], &words), &words, |server| Host::listens_on_kernels(server, 19_765));
    for test in ["rc_lat", "rc_bw", "rc_rdma_write_lat", "rc_rdma_read_bw", "rc_fetch_add_mr", "ver_rc_compare_swap"] {
        let ended = host.start_with(&[ROCE], &["qperf", "-t", "1", ADDRESS, test]).wait();
        assert!(ended.status.success() && ended.output.contains(" = "), "{test}: {}", ended.output);
    }
}

/// It polls memory at both ends, beside two engine threads.
#[test]
fn latency_of_writes_without_rdma_cm() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < 4 {
        eprintln!("SKIPPED: ib_write_lat spins on memory and needs four processors; there are {processors}");
        return;
    }
    let (_, client) = both(&Host::new("roce-wlat"), &["ib_write_lat", "-n", "500"]);
    assert!(client.contains("#bytes"), "{client}");
}

#[test]
fn rdma_cm_connects_both_shapes() {
    let host = Host::new("roce-cm");
    let server = ["rping", "-s", "-V", "-C", "20"];
    let client = ["rping", "-c", "-a", ADDRESS, "-V", "-C", "20"];
    let shapes = [&[ROCE][..], &[]];
    for (of_server, of_client) in [(0, 0), (0, 1), (1, 0)] {
        let running = host.start_with(shapes[of_server], &server);
        // A device of RoCE listens for queue pairs, too, once there are some.
        let running = Host::wait_until(running, &server, |_| host.listens(7174));
        host.start_with(shapes[of_client], &client).wait().succeeded();
        running.wait().succeeded();
    }
}

/// What a program says for a queue pair of its own to that of another one's, as `stack/verbs-abi/src/rc/hello.rs` has
/// it.
fn hello(from: u32, to: u32) -> Vec<u8> {
    [b"uwrc\0\x02\0\0", &from.to_be_bytes()[..], &to.to_be_bytes(), &[7; 8]].concat()
}

#[test]
fn a_program_cannot_claim_a_queue_pair_of_another_one() {
    let host = Host::new("roce-claim");
    let words = ["stdbuf", "-oL", "ibv_rc_pingpong", "-g", "0"];
    let server = Host::wait_until(host.start_with(&[ROCE], &words), &words, |server| server.printed().contains("QPN"));
    let printed = server.printed();
    let number = printed.split_once("QPN 0x").and_then(|(_, rest)| rest.get(..6)).expect("its number");
    let number = u32::from_str_radix(number, 16).expect("a number in hexadecimal");
    let port = 24_064 + (number >> 15) as u16;

    let context = Context::open(Config::on_switch(host.socket()).without_monitor()).expect("a place on the switch");
    let place = 1 + u32::from(context.switch_place().expect("it has one"));
    // By which the switch says whose queue pairs these are.
    let _own = context.reserve_port(Some(24_064 + place as u16)).expect("the port of its place");
    let queue = context.create_completion_queue(16).expect("a queue");
    let domain = context.allocate_domain();
    // Without an answer, it waits for its turn.
    let asks = |from: u32, to: u32| {
        let mut pair = domain.create_queue_pair(&QueuePairOptions::new(&queue)).expect("a queue pair");
        let options = ConnectOptions::default().private_data(hello(from, to)).timeout(Duration::from_secs(2));
        let peer = SocketAddr::new(ADDRESS.parse().expect("an address"), port);
        context.connect(&mut pair.control, peer, options.peer_to_peer(ReadyToReceiveKinds::ALL)).map(|_| ())
    };
    let is_refused = |outcome| matches!(outcome, Err(Error::Connect { reason: ConnectError::Rejected { .. }, .. }));
    assert!(is_refused(asks((place + 1) << 15, number)), "the queue pair of another program");
    assert!(is_refused(asks(place << 15, number + 1)), "to a queue pair that nobody has");
    let own = asks(place << 15, number);
    assert!(matches!(own, Err(Error::Connect { reason: ConnectError::TimedOut(_), .. })), "{own:?}");
}

#[test]
fn a_shape_that_there_is_not_is_no_device() {
    let host = Host::new("roce-none");
    let ended = host.start_with(&[("UWARP_DEVICE", "rocket")], &["ibv_devices"]).wait();
    assert!(ended.output.contains("uwarp: no device: UWARP_DEVICE is \"rocket\""), "{}", ended.output);
    assert!(!ended.output.contains("uwarp0"));
}
