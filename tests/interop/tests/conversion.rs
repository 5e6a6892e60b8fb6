//! A text handshake with a kernel socket, then MPA on the same connection, in both roles.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream};
use std::thread;

use uwarp::{
    AcceptOptions, ConnectOptions, Context, DeviceConfig, ReceiveRequest, SendRequest, Status, TcpListener, TcpStream,
};
use uwarp_interop_tests::raw_peer::{self, RawPeer};
use uwarp_interop_tests::stack::{self, Endpoint, PATIENCE};
use uwarp_netns::{self as netns, End};

const STACK: &str = "10.78.0.1/24";
const KERNEL: &str = "10.78.0.2/24";

#[test]
fn a_kernel_socket_and_a_stream_agree_on_rdma_over_af_packet() {
    netns::test_inside("a_kernel_socket_and_a_stream_agree_on_rdma_over_af_packet", || {
        netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &[KERNEL])]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        let context = stack::open(device, STACK);
        the_stack_responds(&context);
        the_stack_initiates(&context);
    });
}

/// Reads this many octets of text.
fn words(stream: &mut impl Read, count: usize) -> String {
    let mut text = vec![0; count];
    stream.read_exact(&mut text).expect("text comes");
    String::from_utf8(text).expect("text")
}

/// The kernel writes text and an MPA Request at once; the first attempt is rejected, and the text continues.
fn the_stack_responds(context: &Context) {
    let mut listener = TcpListener::bind(context, 7101).expect("a free port");
    let address = context.socket_address(7101);
    let kernel = thread::spawn(move || {
        let mut stream = KernelStream::connect(address).expect("the stack accepts TCP");
        let request = raw_peer::startup_frame(b"MPA ID Req Frame", 0x50, 2, b"\0\x04\0\x04hello");
        stream.write_all(&[&b"RDMA now\n"[..], &request].concat()).unwrap();
        let mut peer = RawPeer::from_stream(stream).unwrap();
        let (flags, _, data) = peer.read_startup().expect("a reply");
        assert_eq!((flags & 0x20, &data[4..]), (0x20, &b"later"[..]), "rejected, with words");
        assert_eq!(words(peer.stream(), 6), "again\n");
        peer.send(&request).unwrap();
        let (flags, _, _) = peer.read_startup().expect("a reply");
        assert_eq!(flags & 0x20, 0, "accepted");
        peer.send_ulpdu(&raw_peer::send(1, b"sent by the kernel")).unwrap();
        assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::send(1, b"an answer"));
        peer
    });
    let (mut stream, _) = listener.accept_timeout(PATIENCE).unwrap().expect("the kernel connects");
    assert_eq!(words(&mut stream, 9), "RDMA now\n");
    let request = stream.into_responder(PATIENCE).expect("the Request lies behind the text");
    assert_eq!(request.private_data(), b"hello");
    let mut stream = request.reject_to_stream(b"later").expect("the stream goes on");
    stream.write_all(b"again\n").unwrap();
    let request = stream.into_responder(PATIENCE).expect("another Request");
    let mut endpoint = Endpoint::new(context);
    let sge = endpoint.region.sge(0..1024).unwrap();
    endpoint.queue_pair.receive.post(&[ReceiveRequest::new(1, &[sge])]).unwrap();
    request.accept(&mut endpoint.queue_pair.control, AcceptOptions::default()).expect("the start-up succeeds");
    let received = endpoint.completion();
    assert_eq!((received.status, received.length), (Status::Success, 18));
    assert_eq!(endpoint.octets(0, 18), b"sent by the kernel");
    endpoint.region.write(8192, b"an answer").unwrap();
    endpoint.queue_pair.send.post(&[SendRequest::send(2, &[endpoint.region.sge(8192..8201).unwrap()])]).unwrap();
    let mut peer = kernel.join().unwrap();
    endpoint.queue_pair.control.disconnect();
    peer.expect_end();
    drop(peer);
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
}

fn the_stack_initiates(context: &Context) {
    let listener = KernelListener::bind("10.78.0.2:7102").expect("the kernel listens");
    let kernel = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the stack connects");
        assert_eq!(words(&mut stream, 6), "RDMA?\n");
        stream.write_all(b"yes\n").unwrap();
        let mut peer = RawPeer::from_stream(stream).unwrap();
        let (_, _, data) = peer.read_startup().expect("a request");
        assert_eq!(&data[4..], b"first");
        // The Reply with the reject bit, and text behind it in the same segment.
        let reply = raw_peer::startup_frame(b"MPA ID Rep Frame", 0x70, 2, b"\0\x04\0\x04no");
        peer.send(&[&reply[..], b"ask again\n"].concat()).unwrap();
        assert_eq!(words(peer.stream(), 6), "RDMA!\n");
        peer.read_startup().expect("a request, behind the text");
        peer.send_reply(4, 4, b"fine").unwrap();
        assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::send(1, b"a message"));
        peer
    });
    let to: SocketAddr = "10.78.0.2:7102".parse().unwrap();
    let mut stream = TcpStream::connect(context, to).expect("the kernel accepts");
    stream.write_all(b"RDMA?\n").unwrap();
    assert_eq!(words(&mut stream, 4), "yes\n");
    let mut endpoint = Endpoint::new(context);
    let first = ConnectOptions::default().private_data(&b"first"[..]);
    let rejected = stream.into_initiator(&mut endpoint.queue_pair.control, first).unwrap_err();
    assert_eq!(rejected.error.rejection(), Some(&b"no"[..]));
    let mut stream = *rejected.stream.expect("the stream goes on");
    assert_eq!(words(&mut stream, 10), "ask again\n");
    stream.write_all(b"RDMA!\n").unwrap();
    let established = stream.into_initiator(&mut endpoint.queue_pair.control, ConnectOptions::default()).unwrap();
    assert_eq!(established.private_data, b"fine");
    endpoint.region.write(8192, b"a message").unwrap();
    endpoint.queue_pair.send.post(&[SendRequest::send(1, &[endpoint.region.sge(8192..8201).unwrap()])]).unwrap();
    let mut peer = kernel.join().unwrap();
    endpoint.queue_pair.control.disconnect();
    peer.expect_end();
    drop(peer);
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
}
