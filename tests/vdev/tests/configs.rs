//! Every example in `config/` starts, with its sockets in a folder and its interfaces in a namespace of the test.
//!
//! The two ends of a pair start as a pair and exchange data. The kernel answers the ends of a kernel interface. On a
//! machine without the NIC, its example must name the address that it looked for.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use uwarp::{Config, ConnectOptions, Context, DeviceConfig, ListenOptions};
use uwarp_netns::{self as netns, End, Namespace};
use uwarp_vdev_tests::PATIENCE;
use uwarp_vdev_tests::endpoint::{Endpoint, PORT, Place, answer, exchange, prepare_answer};
use uwarp_vdev_tests::peer::{self, Peer};

const LENGTH: usize = 100_000;

#[derive(Serialize, Deserialize)]
struct Task {
    /// The file that the server starts with.
    file: String,
    socket: String,
}

fn example(file: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(file);
    // Only the path of the monitor's socket differs from the example.
    uwarp_middlebox::behind(Config::from_toml_file(path).expect("the example is read").without_monitor())
}

/// The example with its socket elsewhere.
fn moved(file: &str, place: &str) -> Config {
    let mut config = example(file);
    match config.device.as_mut().expect("a device") {
        DeviceConfig::Memif { socket, .. }
        | DeviceConfig::VirtioUser { socket, .. }
        | DeviceConfig::Vhost { socket, .. } => *socket = place.into(),
        other => panic!("{other:?} has no socket"),
    }
    config
}

fn pair(test: &str, server: &str, client: &str) {
    if let Some(task) = peer::task::<Task>() {
        let context = Context::open(moved(&task.file, &task.socket)).expect("the server starts");
        let mut listener = context.listen(PORT, ListenOptions::default()).expect("a free port");
        let mut endpoint = Endpoint::new(&context, 64 + 2 * LENGTH);
        prepare_answer(&mut endpoint);
        peer::tell("open");
        endpoint.accept(&context, &mut listener);
        answer(&mut endpoint, LENGTH);
        assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).expect("waiting works"));
        return;
    }
    let folder = tempfile::Builder::new().prefix("uw").tempdir().expect("a temporary directory");
    let socket = folder.path().join("s").to_str().expect("a plain path").to_owned();
    let address = SocketAddr::new(example(server).address.address, PORT);
    let peer = Peer::start(test, &Task { file: server.to_owned(), socket: socket.clone() });
    let context = Context::open(moved(client, &socket)).expect("the client starts");
    assert_eq!(peer.told(), "open");
    let mut endpoint = Endpoint::new(&context, 64 + 2 * LENGTH);
    let options = ConnectOptions::default().private_data(Place::of(&endpoint.region).to_octets()).timeout(PATIENCE);
    let established =
        context.connect(&mut endpoint.queue_pair.control, address, options).expect("the two examples connect");
    endpoint.place = Some(Place::from_octets(&established.private_data));
    exchange(&mut endpoint, 1, LENGTH);
    endpoint.disconnect();
    drop(endpoint);
    context.close().expect("closed");
    assert!(peer.end(|| {}).success());
}

#[test]
fn virtio_user_and_vhost() {
    pair("virtio_user_and_vhost", "virtio-user.toml", "vhost.toml");
}

#[test]
fn memif_server_and_client() {
    pair("memif_server_and_client", "memif-server.toml", "memif-client.toml");
}

/// The kernel at the other end resolves our address and connects to a port without a listener: it is refused at once,
/// which only a running stack does.
fn is_refused_by_us(namespace: &Namespace, context: &Context, address: IpAddr) {
    let done = AtomicBool::new(false);
    let answer = std::thread::scope(|scope| {
        let kernel = scope.spawn(|| {
            let connect = || TcpStream::connect_timeout(&SocketAddr::new(address, 9), PATIENCE);
            let answer = namespace.inside(connect).expect("the namespace can be entered");
            done.store(true, Ordering::Release);
            answer
        });
        while !done.load(Ordering::Acquire) {
            context.poll();
            std::thread::yield_now();
        }
        kernel.join().expect("the kernel's side")
    });
    assert_eq!(answer.expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn tap() {
    if uwarp_notes::lacks_root("a network namespace") {
        return;
    }
    let namespace = Namespace::new("tap").expect("a network namespace");
    let mut config = example("tap.toml");
    let Some(DeviceConfig::Tap { name, netns, .. }) = &mut config.device else { panic!("a tap") };
    *netns = Some(namespace.name().to_owned());
    let interface = name.clone();
    let address = config.address.address;
    let context = Context::open(config).expect("the example starts");
    End::kernel(&interface, &["10.99.1.2/24"]).of(&namespace).bring_up().expect("the kernel's end");
    is_refused_by_us(&namespace, &context, address);
}

#[test]
fn af_packet() {
    if uwarp_notes::lacks_root("a network namespace") {
        return;
    }
    let namespace = Namespace::new("afp").expect("a network namespace");
    let mut config = example("af-packet.toml");
    let Some(DeviceConfig::AfPacket { interface, netns, .. }) = &mut config.device else { panic!("a packet socket") };
    *netns = Some(namespace.name().to_owned());
    let ours = interface.clone();
    let address = config.address.address;
    let other = Namespace::new("afp-peer").expect("a network namespace");
    let ends = [End::silent(&ours).of(&namespace), End::kernel("peer", &["10.99.2.2/24"]).of(&other)];
    netns::veth(1500, ends).expect("a veth pair");
    let context = Context::open(config).expect("the example starts");
    is_refused_by_us(&other, &context, address);
}

#[test]
fn a_nic_that_is_not_there_is_named() {
    let mut config = example("nic.toml");
    let Some(DeviceConfig::Pci { address }) = &config.device else { panic!("a PCI device") };
    let address = address.clone();
    if Path::new("/sys/bus/pci/devices").join(&address).exists() {
        uwarp_notes::skipped(&format!("there is a PCI device {address}, and it is not a test's to take"));
        return;
    }
    // Neither hugepages nor as many cores exist here, and their lack would be reported first.
    config.eal.hugepages = false;
    config.engine.cpus.clear();
    let error = Context::open(config).expect_err("there is no such device").to_string();
    assert!(error.contains(&address), "{error}");
}
