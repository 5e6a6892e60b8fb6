//! Contexts that exist before their devices, and what they leave alone of their process.

mod common;

use common::*;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::Duration;
use uwarp::{
    AcceptOptions, Access, Config, ConnectOptions, Context, DeviceConfig, Error, ListenOptions, QueuePairOptions,
    ReceiveRequest, SendRequest, TcpListener, TcpStream,
};

/// Names of this process's threads that uwarp or DPDK started, with their signal masks and CPUs.
fn threads() -> Vec<(String, u64, String)> {
    let line =
        |status: &str, name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
        .map(|status| {
            let blocked = u64::from_str_radix(&line(&status, "SigBlk:"), 16).unwrap();
            (line(&status, "Name:"), blocked, line(&status, "Cpus_allowed_list:"))
        })
        .filter(|(name, ..)| name.starts_with("uwarp-"))
        .collect()
}

fn alone() -> Config {
    Config::without_device("10.0.0.1/24").unwrap().without_monitor()
}

/// A context that has made whatever it can before it is started connects two of its queue pairs.
#[test]
fn everything_but_the_network_is_there_before_the_start() {
    let mut config = alone();
    config.limits.completion_queues = 4;
    let context = Context::prepare(config).unwrap();
    let own: Vec<_> = threads().into_iter().filter(|(name, ..)| *name == format!("uwarp-{}-0", context.id())).collect();
    assert!(own.is_empty() && !context.is_started(), "{own:?}");
    assert_eq!(context.stats().silent_engines[0].reason, "the context has not been started");
    // More than an engine's list of queues has room for, one after the other.
    for _ in 0..100 {
        context.create_completion_queue(16).unwrap();
    }
    context.set_faults(None).unwrap();
    let (mut client, mut server) = (Side::new(&context), Side::new(&context));
    server.qp.receive.post(&[ReceiveRequest::new(1, &[server.mr.sge(..64).unwrap()])]).unwrap();
    assert!(client.qp.send.post(&[SendRequest::send(1, &[])]).is_err());
    assert_eq!(client.qp.control.tcp_info().unwrap(), None);
    assert!(!context.is_started());

    let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
    assert!(context.is_started());
    context.start().unwrap();
    connect_by(&mut listener, &mut client, &mut server);
    client.qp.send.post(&[SendRequest::send_inline(2, b"from before").signalled()]).unwrap();
    client.expect(2);
    assert_eq!(server.expect(1).length, 11);
    assert_eq!(server.octets(0, 11), b"from before");
}

#[test]
fn whatever_needs_the_network_starts_the_context() {
    let prepare = || Context::prepare(alone()).unwrap();
    let context = prepare();
    let mut side = Side::new(&context);
    // Nobody is there, which only an engine finds out.
    let nobody = "10.0.0.9:1".parse().unwrap();
    let limit = ConnectOptions::default().timeout(Duration::from_millis(50));
    assert!(matches!(context.connect(&mut side.qp.control, nobody, limit), Err(Error::Connect { .. })));
    assert!(context.is_started());
    let context = prepare();
    let listener = TcpListener::bind(&context, 7).unwrap();
    TcpStream::connect(&context, listener.local_addr()).unwrap();
    let context = prepare();
    let capture = tempfile::tempdir().unwrap();
    context.start_capture(capture.path().join("c.pcap")).unwrap();
    assert!(context.is_started());
}

#[test]
fn an_inline_context_starts_at_once() {
    assert!(Context::prepare(alone().inline()).unwrap().is_started());
}

#[test]
fn closing_before_the_start_ends_at_once_and_nothing_starts_afterwards() {
    let context = Context::prepare(alone().linger(LONG)).unwrap();
    let (again, mut side) = (context.clone(), Side::new(&context));
    context.close().unwrap();
    assert!(matches!(again.start(), Err(Error::ContextClosed)));
    let peer = again.socket_address(1);
    assert!(matches!(again.connect(&mut side.qp.control, peer, ConnectOptions::default()), Err(Error::ContextClosed)));
    drop((side, again));
}

#[test]
fn a_start_that_fails_can_be_repeated() {
    // What the configuration asks for is not there at first.
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("later");
    let mut config = alone().pcap(folder.join("c.pcap"));
    config.monitor.enabled = true;
    config.monitor.socket = Some(folder.join("monitor.sock"));
    let context = Context::prepare(config).unwrap();
    let mut queue_pairs = (Side::new(&context), Side::new(&context));
    for _ in 0..2 {
        let error = context.start().unwrap_err();
        assert!(error.to_string().contains("c.pcap"), "{error}");
        assert!(matches!(context.listen(PORT, ListenOptions::default()), Err(Error::Control(_))));
    }
    std::fs::create_dir(&folder).unwrap();
    connect(&mut queue_pairs.0, &mut queue_pairs.1);
    assert_eq!(context.monitor_socket(), Some(folder.join("monitor.sock").as_path()));
    assert!(folder.join("c.pcap").exists());
}

#[test]
fn a_device_that_is_not_there_costs_the_attempt_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("later").join("s");
    let device = DeviceConfig::Vhost { socket, client: false, tso: false };
    let context = Context::prepare(Config::new(device, "10.0.0.1/24").unwrap().without_monitor()).unwrap();
    let side = Side::new(&context);
    assert!(uwarp_dpdk::Eal::get().is_none(), "DPDK runs before the start");
    for _ in 0..2 {
        let error = context.start().unwrap_err();
        assert!(matches!(error, Error::Device(_)) && error.to_string().contains("later"), "{error}");
        assert!(!context.is_started());
    }
    std::fs::create_dir(directory.path().join("later")).unwrap();
    context.start().unwrap();
    assert_eq!(context.stats().engines.len(), 1);
    assert_eq!(context.stats().objects.queue_pairs, 1);
    drop(side);
}

#[test]
fn bad_configurations_are_refused_before_the_start() {
    let mut config = alone();
    config.engine.count = 0;
    assert!(matches!(Context::prepare(config), Err(Error::Config(_))));
    for (config, field) in [(alone().cpus([1023]), "engine.cpus"), (alone().cpus([1 << 20]), "engine.cpus")] {
        let error = Context::prepare(config).unwrap_err();
        assert!(matches!(&error, Error::Argument { what, .. } if *what == field), "{error}");
        assert!(error.to_string().contains("online"), "{error}");
    }
}

#[test]
fn threads_of_a_context_take_no_signals() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = alone().threaded(2);
    config.monitor.enabled = true;
    config.monitor.socket = Some(directory.path().join("s"));
    let context = Context::open(config).unwrap();
    let domain = context.allocate_domain();
    let mapped = directory.path().join("file");
    std::fs::write(&mapped, [0; 64]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&mapped).unwrap();
    let mut store = uwarp::FileStore::default();
    store.add(&file, 0, 64).unwrap();
    let options = uwarp::RegionOptions::new(Access::ALL).store(store);
    let _region = domain.register(vec![0; 64], options).unwrap();
    // A thread names itself when it has begun: two engines, the monitor and a committer.
    until(&[&context], "all threads have names", || threads().len() >= 4);
    for (name, blocked, _) in threads() {
        // HUP, INT, USR1, PIPE, ALRM, TERM, CHLD.
        for signal in [1, 2, 10, 13, 14, 15, 17] {
            assert_eq!(blocked >> (signal - 1) & 1, 1, "{name} takes signal {signal}");
        }
    }
}

#[test]
fn a_pinned_application_may_have_its_engine_elsewhere_and_stays_pinned() {
    let before = sched_getaffinity(None).unwrap();
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).collect();
    let (first, last) = (usable[0], usable[usable.len() - 1]);
    // In a thread of its own, which is lost to other tests.
    std::thread::spawn(move || {
        let mut here = CpuSet::new();
        here.set(first);
        sched_setaffinity(None, &here).unwrap();
        let context = Context::open(alone().cpus([last])).unwrap();
        let name = format!("uwarp-{}-0", context.id());
        let (_, _, cpus) = threads().into_iter().find(|(own, ..)| *own == name).unwrap();
        assert_eq!(cpus, last.to_string());
        assert!(sched_getaffinity(None).unwrap() == here);
    })
    .join()
    .unwrap();
}

/// Accepting works on a queue pair that was made before the start, by a thread that did not make it.
#[test]
fn two_threads_that_start_at_once_start_one_device() {
    let context = Context::prepare(alone()).unwrap();
    let starters: Vec<_> = (0..4)
        .map(|_| {
            let context = context.clone();
            std::thread::spawn(move || context.start())
        })
        .collect();
    for starter in starters {
        starter.join().unwrap().unwrap();
    }
    let cq = context.create_completion_queue(8).unwrap();
    let mut queue_pair = context.allocate_domain().create_queue_pair(&QueuePairOptions::new(&cq)).unwrap();
    let mut listener = context.listen(PORT, ListenOptions::default()).unwrap();
    let mut client = Side::new(&context);
    let peer = context.socket_address(PORT);
    let connecting = context.start_connect(&mut client.qp.control, peer, ConnectOptions::default()).unwrap();
    let request = listener.next(LONG).unwrap().unwrap();
    request.accept(&mut queue_pair.control, AcceptOptions::default()).unwrap();
    connecting.wait(&mut client.qp.control).unwrap();
    assert_eq!(threads().iter().filter(|(name, ..)| *name == format!("uwarp-{}-0", context.id())).count(), 1);
}
