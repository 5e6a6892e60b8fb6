//! Errors name their cause and their remedy.

mod common;

use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use common::{PATIENCE, directory, eal, memif, open, options, vhost, virtio};
use uwarp_dpdk::{DeviceConfig, Eal, EalConfig, Error, MemifRole, Port, PortOptions, list_drivers};

const SHORT: Duration = Duration::from_millis(200);

fn refused(device: &DeviceConfig, options: &PortOptions) -> Error {
    match Port::open(&eal(), device, options) {
        Ok(_) => panic!("{device:?} opened"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text}");
            error
        }
    }
}

#[test]
fn eal_starts_once() {
    let first = eal();
    assert_eq!(Eal::get().unwrap().config(), first.config());
    eal();
    let other = EalConfig { memory_mib: 128, ..EalConfig::default() };
    assert!(matches!(Eal::init(&other), Err(Error::AlreadyInitialised { .. })));
}

#[test]
fn a_program_that_this_process_starts_does_not_inherit_dpdks_memory() {
    let _eal = eal();
    let in_memory = |list: &str| list.lines().filter(|line| line.contains("/memfd:")).count();
    let own: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| Some(std::fs::read_link(entry.ok()?.path()).ok()?.display().to_string()))
        .collect();
    assert!(in_memory(&own.join("\n")) > 0, "{own:?}");
    let output = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let inherited = String::from_utf8(output.stdout).unwrap();
    assert!(inherited.contains("-> pipe:") && in_memory(&inherited) == 0, "{inherited}");
}

#[test]
fn eal_leaves_the_callers_affinity_alone() {
    let mut one = rustix::thread::CpuSet::new();
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..1024).find(|&cpu| before.is_set(cpu)).unwrap();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    eal();
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), one);
}

#[test]
fn eal_leaves_no_directory_behind() {
    eal();
    let name = format!("uwarp-{}", std::process::id());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into());
    for place in [std::path::Path::new("/var/run"), std::path::Path::new(&runtime), std::path::Path::new("/tmp")] {
        assert!(!place.join("dpdk").join(&name).exists());
    }
}

#[test]
fn a_bad_eal_configuration_leaves_a_second_try() {
    assert!(matches!(Eal::init(&EalConfig { memory_mib: 1, ..EalConfig::default() }), Err(Error::Configuration(_))));
    let pages = common::hugepages();
    if uwarp_dpdk::eal::free_hugepages() == 0 {
        let error = Eal::init(&EalConfig { hugepages: true, ..EalConfig::default() }).unwrap_err();
        assert!(matches!(error, Error::NoHugepages));
        assert!(error.to_string().contains("hugepages = false"), "{error}");
    }
    drop(pages);
    eal();
}

#[test]
fn an_argument_that_dpdk_does_not_know_leaves_a_second_try() {
    let config = EalConfig { extra: vec!["--no-such-option".to_owned()], ..EalConfig::default() };
    assert!(matches!(Eal::init(&config), Err(Error::Configuration(_))));
    // EAL has not seen it, so its one attempt is left.
    eal();
}

#[test]
fn drivers_are_listed() {
    let drivers = list_drivers();
    for driver in ["net_memif", "net_virtio_user", "net_vhost", "net_tap", "net_af_packet", "net_ring", "net_null"] {
        assert!(drivers.iter().any(|name| name == driver), "{driver} of {drivers:?}");
    }
}

#[test]
fn an_absent_peer_is_waited_for_with_a_limit() {
    eal();
    let directory = directory();
    let socket = directory.path().join("s");
    let options = PortOptions { wait_for_peer: SHORT, ..options(1500) };
    for device in [
        memif(MemifRole::Client, socket.clone(), false),
        virtio(socket.clone(), false, false),
        virtio(socket.clone(), true, false),
    ] {
        let start = Instant::now();
        let error = refused(&device, &options);
        assert!(matches!(error, Error::PeerAbsent { .. }), "{device:?}: {error:?}");
        assert!(start.elapsed() >= SHORT);
        assert!(!socket.exists());
    }
}

#[test]
fn a_dead_peers_socket_is_an_absent_peer() {
    let directory = directory();
    let socket = directory.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let options = PortOptions { wait_for_peer: SHORT, ..options(1500) };
    for device in [memif(MemifRole::Client, socket.clone(), false), virtio(socket.clone(), false, false)] {
        let error = refused(&device, &options);
        assert!(matches!(error, Error::PeerAbsent { .. }), "{device:?}: {error:?}");
    }
    // A listening end can then use the path.
    let host = open(&eal(), &vhost(socket, false), &options);
    assert!(!host.link_up());
    assert!(matches!(host.wait_link_up(SHORT), Err(Error::LinkDown { .. })));
}

#[test]
fn a_late_server_is_found() {
    let eal = eal();
    let directory = directory();
    let socket = directory.path().join("s");
    let options = options(1500);
    let server = std::thread::scope(|scope| {
        let client = scope.spawn(|| open(&eal, &memif(MemifRole::Client, socket.clone(), false), &options));
        std::thread::sleep(SHORT);
        let server = open(&eal, &memif(MemifRole::Server, socket.clone(), false), &options);
        (server, client.join().unwrap())
    });
    common::connect(&server.0, &server.1);
}

#[test]
fn what_a_socket_cannot_be() {
    let options = options(1500);
    let directory = directory();
    let listening = vhost(directory.path().join("none").join("s"), false);
    assert!(refused(&listening, &options).to_string().contains("directory"));
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    refused(&vhost(file.clone(), false), &options);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let taken = directory.path().join("taken");
    let _host = open(&eal(), &vhost(taken.clone(), false), &options);
    assert!(refused(&vhost(taken, false), &options).to_string().contains("another process listens"));
}

#[test]
fn limits_are_told() {
    let ring = DeviceConfig::Ring { name: "r".to_owned(), loopback: true };
    for mtu in [0, 100, 9001, u16::MAX] {
        assert!(refused(&ring, &PortOptions { mtu, ..options(1500) }).to_string().contains("576 to 9000"));
    }
    assert!(matches!(refused(&ring, &PortOptions { queues: 0, ..options(1500) }), Error::Configuration(_)));
    refused(&ring, &PortOptions { queues: 100, ..options(1500) });
    let long = refused(&DeviceConfig::Null { frame_size: Some(9000) }, &options(1500));
    assert!(long.to_string().contains("frame-size 9000 is more than a packet buffer holds"), "{long}");
    let null = DeviceConfig::Null { frame_size: None };
    refused(&null, &PortOptions { rx_buffers: 3, ..options(1500) });
    assert!(
        refused(&DeviceConfig::Pci { address: "0000:ff:1f.7".to_owned() }, &options(1500))
            .to_string()
            .contains("before any other")
    );
    let absent = DeviceConfig::AfPacket { interface: "uw-none0".to_owned(), netns: None, frame_count: None };
    assert!(refused(&absent, &options(1500)).to_string().contains("uw-none0"));
    let nowhere = DeviceConfig::Tap { name: "uw0".to_owned(), mac: None, netns: Some("uw-no-such".to_owned()) };
    assert!(refused(&nowhere, &options(1500)).to_string().contains("ip netns add"));
}

#[test]
fn a_vhost_that_accepts_and_says_nothing_holds_nobody_up_for_long() {
    let directory = directory();
    let options = PortOptions { wait_for_peer: SHORT, ..options(1500) };
    let silent = directory.path().join("silent");
    let listener = UnixListener::bind(&silent).unwrap();
    let accepted = std::thread::spawn(move || listener.accept().unwrap());
    let start = Instant::now();
    let error = refused(&virtio(silent, false, false), &options);
    assert!(error.to_string().contains("rte_eal_hotplug_add"), "{error}");
    drop(accepted.join().unwrap());

    // The same peer of a device that listens.
    let listening = directory.path().join("listening");
    let path = listening.clone();
    let connected = std::thread::spawn(move || {
        while start.elapsed() < PATIENCE {
            if let Ok(stream) = UnixStream::connect(&path) {
                return Some(stream);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    });
    refused(&virtio(listening, true, false), &PortOptions { wait_for_peer: PATIENCE, ..options });
    assert!(connected.join().unwrap().is_some());
    assert!(start.elapsed() < 3 * PATIENCE, "{:?}", start.elapsed());
}
