//! rsockets: rdma-core's programs, programs of sockets by its librspreload, and one of our own in C
//! (`c/rsockets.c`).

use std::path::Path;

use uwarp_verbs_tests::{ADDRESS, Host};

/// Where Debian has the library that puts rsockets under programs of sockets.
const PRELOAD: &str = "rsocket/librspreload.so";

#[test]
fn calls_answer_as_those_of_sockets() {
    let host = Host::new("rsockets");
    let tests = ["arguments", "connect", "halves", "epoll", "poll", "both", "small", "maps", "killed"];
    for device in ["iwarp", "roce"] {
        host.run_tests(&[("UWARP_DEVICE", device)], "rsockets", &tests, &[ADDRESS]);
    }
}

#[test]
fn rstream_goes_both_ways_in_every_mode() {
    let host = Host::new("rstream");
    for options in ["-T b", "-T n", "-T a", "-T r", "-T a -T b", "-f ip -T n", "-B 3000 -T b", "-k 5 -T b"] {
        // Each exchange is checked octet by octet.
        for size in ["-S 1 -C 100 -I 10", "-S 65537 -C 10 -I 3", "-S 4194304 -C 1 -I 3"] {
            let options: Vec<&str> = ["-T", "v"].into_iter().chain(options.split(' ')).chain(size.split(' ')).collect();
            let (server, client) = host
                .pair(&[&["rstream"], &options[..]].concat(), &[&["rstream", "-s", ADDRESS], &options[..]].concat());
            assert!(server.contains("custom") && client.contains("custom"), "{options:?}\n{server}\n{client}");
        }
    }
}

/// Each side looks at its memory until the last octet has come, and calls nothing meanwhile.
#[test]
fn riostream_writes_into_the_peers_memory() {
    let host = Host::new("riostream");
    for size in ["-S 64 -C 5 -I 20", "-S 1000000 -C 2 -I 5"] {
        let options: Vec<&str> = ["-T", "v"].into_iter().chain(size.split(' ')).collect();
        let (server, client) = host
            .pair(&[&["riostream"], &options[..]].concat(), &[&["riostream", "-s", ADDRESS], &options[..]].concat());
        assert!(server.contains("custom") && client.contains("custom"), "{size}\n{server}\n{client}");
    }
}

#[test]
fn rcopy_copies_a_file_by_uwarp() {
    const OCTETS: usize = 8_000_000;
    let host = Host::new("rcopy");
    let octets: Vec<u8> = (0..OCTETS).map(|index| (index * 31 + index / 977) as u8).collect();
    let (source, copy) = (host.directory().join("source"), host.directory().join("copy"));
    std::fs::write(&source, &octets).expect("the directory is ours");
    // It serves until it is ended.
    let server = host.serve(&["rcopy"]);
    let to = format!("{ADDRESS}:{}", copy.display());
    let copied = host.run(&["rcopy", source.to_str().expect("a path"), &to]);
    assert!(copied.succeeded().contains(&format!("{OCTETS} bytes")), "{}", copied.output);
    assert!(std::fs::read(&copy).expect("the copy") == octets, "the copy differs:\n{}", server.printed());
    let monitor = uwarp::monitor::sockets(server.id());
    let seen = uwarp::monitor::query(monitor.first().expect("the server's monitor")).expect("it answers");
    let received: u64 = seen.engines.iter().map(|engine| engine.counters.work.octets_received).sum();
    assert!(received > OCTETS as u64, "{seen:#?}");
}

#[test]
fn iperf3_by_librspreload_sends_over_uwarp() {
    let host = Host::new("iperf3");
    let library = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .map(|machine| Path::new("/usr/lib").join(machine).join(PRELOAD))
        .into_iter()
        .find(|library| library.exists())
        .expect("librdmacm1 is installed");
    let preload = [("LD_PRELOAD", library.to_str().expect("a path"))];
    for options in [&[][..], &["-R"], &["-P", "3"]] {
        let words = ["iperf3", "-s", "-1", "-p", "5301"];
        let server = Host::wait_until(host.start_with(&preload, &words), &words, |_| host.listens(5301));
        let client =
            host.start_with(&preload, &[&["iperf3", "-c", ADDRESS, "-p", "5301", "-n", "200M"], options].concat());
        let client = client.wait();
        assert!(client.succeeded().contains("iperf Done"), "{}", client.output);
        server.wait().succeeded();
    }
}
