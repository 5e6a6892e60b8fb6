//! A plain kernel socket exchanges MPA, DDP and RDMAP with the stack, over tap and over af_packet.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use uwarp::{
    AcceptOptions, Access, CompletionFlags, CompletionOpcode, ConnectError, ConnectOptions, Context, DeviceConfig,
    DisconnectReason, Error, Features, ReadyToReceiveKinds, ReceiveRequest, SendRequest, Status, TerminateCode,
};
use uwarp_interop_tests::raw_peer::{self, Marking, RawPeer};
use uwarp_interop_tests::stack::{self, Endpoint, PATIENCE};
use uwarp_netns::{self as netns, End};

const STACK: &str = "10.77.0.1/24";
const KERNEL: &str = "10.77.0.2/24";
const STACK6: &str = "fd77::1/64";
const KERNEL6: &str = "fd77::2/64";

#[test]
fn a_kernel_socket_speaks_with_the_stack_over_af_packet() {
    netns::test_inside("a_kernel_socket_speaks_with_the_stack_over_af_packet", || {
        netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &[KERNEL])]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        every_conversation(&stack::open(device, STACK));
    });
}

#[test]
fn a_kernel_socket_speaks_ipv6_with_the_stack_over_af_packet() {
    netns::test_inside("a_kernel_socket_speaks_ipv6_with_the_stack_over_af_packet", || {
        netns::veth(1500, [End::silent("stack0"), End::kernel("kernel0", &[KERNEL6])]).expect("a veth pair");
        let device = DeviceConfig::AfPacket { interface: "stack0".into(), netns: None, frame_count: None };
        every_conversation(&stack::open(device, STACK6));
    });
}

#[test]
fn a_kernel_socket_speaks_ipv6_with_the_stack_over_tap() {
    netns::test_inside("a_kernel_socket_speaks_ipv6_with_the_stack_over_tap", || {
        let device = DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None };
        let context = stack::open(device, STACK6);
        End::kernel("tap0", &[KERNEL6]).bring_up().expect("an address on the tap");
        every_conversation(&context);
    });
}

#[test]
fn a_kernel_socket_speaks_with_the_stack_over_tap() {
    netns::test_inside("a_kernel_socket_speaks_with_the_stack_over_tap", || {
        let device = DeviceConfig::Tap { name: "tap0".into(), mac: None, netns: None };
        let context = stack::open(device, STACK);
        End::kernel("tap0", &[KERNEL]).bring_up().expect("an address on the tap");
        every_conversation(&context);
    });
}

fn every_conversation(context: &Context) {
    the_kernel_connects(context);
    the_stack_connects(context);
    a_reset_of_the_request_is_no_refusal(context);
    octets_arrive_one_by_one(context);
    several_fpdus_come_in_one_segment(context);
    urgent_data_is_data(context);
    faults_cost_their_own_connection(context);
    a_rejected_request_carries_private_data(context);
    the_kernel_leaves_in_the_middle(context);
    the_kernel_speaks_first_to_a_peer_to_peer_initiator(context);
    the_stack_speaks_first_to_a_peer_to_peer_kernel(context);
    extensions_go_both_ways(context);
    a_peer_like_siw_knows_no_extensions(context);
    markers_go_either_way(context);
}

/// Connects a raw peer to a fresh endpoint of the stack.
fn connected(context: &Context, port: u16) -> (Endpoint, RawPeer) {
    let mut endpoint = Endpoint::new(context);
    let receives: Vec<_> = (0..2).map(|index| endpoint.region.sge(index * 1024..(index + 1) * 1024).unwrap()).collect();
    for (id, sge) in receives.iter().enumerate() {
        endpoint.queue_pair.receive.post(&[ReceiveRequest::new(id as u64, &[*sge])]).expect("room");
    }
    let address = context.socket_address(port);
    let mut peer = None;
    endpoint.accept(context, port, || {
        peer = Some(thread::spawn(move || {
            let mut peer = RawPeer::connect(address).expect("the stack accepts TCP");
            peer.send_request(4, 4, b"hello").expect("a request goes out");
            let (flags, revision, data) = peer.read_startup().expect("a reply");
            assert_eq!(flags & 0xe0, 0x40, "CRC asked for, no markers, not rejected");
            assert_eq!((revision, &data[4..]), (2, &b"hello"[..]));
            peer
        }));
    });
    (endpoint, peer.expect("started").join().expect("the peer's start-up"))
}

fn the_kernel_connects(context: &Context) {
    let (mut endpoint, mut peer) = connected(context, 7001);
    let (stag, base) = (endpoint.region.stag(), endpoint.region.remote_offset());

    peer.send_ulpdu(&raw_peer::write(stag, base + 4096, b"written by the kernel")).unwrap();
    peer.send_ulpdu(&raw_peer::send(1, b"sent by the kernel")).unwrap();
    let received = endpoint.completion();
    assert_eq!((received.opcode, received.status), (CompletionOpcode::Receive, Status::Success));
    assert_eq!(endpoint.octets(0, received.length as usize), b"sent by the kernel");
    assert_eq!(endpoint.octets(4096, 21), b"written by the kernel", "a Send is delivered after earlier Writes");

    // The sink's STag and offset are returned uninterpreted (RFC 5040 §4.4).
    peer.send_ulpdu(&raw_peer::read_request(1, (0xdead_beef, 77), 21, (stag, base + 4096))).unwrap();
    let response = peer.read_ulpdu().unwrap();
    assert_eq!(response.0, raw_peer::read_response(0xdead_beef, 77, b"written by the kernel"));

    the_stack_speaks(&mut endpoint, &mut peer);

    endpoint.queue_pair.control.disconnect();
    peer.expect_end();
    drop(peer);
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
}

/// Send, Write and Read from the stack, checked as octets on the wire.
fn the_stack_speaks(endpoint: &mut Endpoint, peer: &mut RawPeer) {
    endpoint.region.write(8192, b"out of the stack").unwrap();
    let source = [endpoint.region.sge(8192..8208).unwrap()];
    let sink = [endpoint.region.sge(9000..9005).unwrap()];
    endpoint.queue_pair.send.post(&[SendRequest::send(10, &source)]).unwrap();
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::send(1, b"out of the stack"));
    endpoint.queue_pair.send.post(&[SendRequest::write(11, &source, 0x1234_5678, 0x42)]).unwrap();
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::write(0x1234_5678, 0x42, b"out of the stack"));
    endpoint.queue_pair.send.post(&[SendRequest::read(12, &sink, 0x9abc_def0, 0x1000)]).unwrap();
    let request = peer.read_ulpdu().unwrap();
    let (sink_stag, sink_offset) = (sink[0].stag, sink[0].offset);
    assert_eq!(request.0, raw_peer::read_request(1, (sink_stag, sink_offset), 5, (0x9abc_def0, 0x1000)));
    peer.send_ulpdu(&raw_peer::read_response(sink_stag, sink_offset, b"reply")).unwrap();
    for id in [10, 11, 12] {
        let completion = endpoint.completion();
        assert_eq!((completion.id, completion.status), (id, Status::Success));
    }
    assert_eq!(endpoint.octets(9000, 5), b"reply");
}

/// A port of the kernel, at its address of the context's IP version.
fn of_kernel(context: &Context, port: u16) -> SocketAddr {
    let kernel = if context.socket_address(port).is_ipv6() { KERNEL6 } else { KERNEL };
    let (address, _) = kernel.split_once('/').expect("with a prefix");
    SocketAddr::new(address.parse().expect("an address"), port)
}

fn the_stack_connects(context: &Context) {
    let to = of_kernel(context, 7002);
    let listener = TcpListener::bind(to).expect("the kernel listens");
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the stack connects");
        let mut peer = RawPeer::from_stream(stream).unwrap();
        let (flags, revision, data) = peer.read_startup().expect("a request");
        assert_eq!((flags, revision), (0x50, 2), "CRC and enhanced data, nothing else");
        assert_eq!(data, [0, 3, 0, 2, b'h', b'i'], "IRD 3, ORD 2, private data");
        peer.send_reply(2, 3, b"welcome").unwrap();
        peer
    });
    let mut endpoint = Endpoint::new(context);
    let options = ConnectOptions::default().private_data(&b"hi"[..]).reads(3, 2);
    let established = context.connect(&mut endpoint.queue_pair.control, to, options).expect("the start-up succeeds");
    assert_eq!((established.ird, established.ord), (3, 2));
    assert_eq!(established.private_data, b"welcome");
    let mut peer = server.join().unwrap();
    the_stack_speaks(&mut endpoint, &mut peer);
    // The kernel ends properly, on a message boundary.
    peer.stream().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
}

/// A kernel that closes a socket with unread octets resets the connection, as siw does with a Request that it rejects:
/// that differs from a port without a listener.
fn a_reset_of_the_request_is_no_refusal(context: &Context) {
    let to = of_kernel(context, 7003);
    let listener = TcpListener::bind(to).expect("the kernel listens");
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the stack connects");
        stream.peek(&mut [0; 20]).expect("the request comes");
    });
    let mut endpoint = Endpoint::new(context);
    let error =
        context.connect(&mut endpoint.queue_pair.control, to, ConnectOptions::default()).expect_err("no start-up");
    assert!(matches!(error, Error::Connect { reason: ConnectError::Closed, .. }), "{error}");
    server.join().unwrap();
    let error =
        context.connect(&mut endpoint.queue_pair.control, to, ConnectOptions::default()).expect_err("no listener");
    assert!(matches!(error, Error::Connect { reason: ConnectError::Refused, .. }), "{error}");
}

/// The three ready-to-receive indications (RFC 6581 §9.2): flags of the two words, and the ULPDU.
fn indications() -> [(u16, u16, ReadyToReceiveKinds, Vec<u8>); 3] {
    let none = ReadyToReceiveKinds::NONE;
    [
        (0xc000, 0, ReadyToReceiveKinds { send: true, ..none }, raw_peer::send(1, b"")),
        (0x8000, 0x8000, ReadyToReceiveKinds { write: true, ..none }, raw_peer::write(1, 0, b"")),
        (0x8000, 0x4000, ReadyToReceiveKinds { read: true, ..none }, raw_peer::read_request(1, (1, 0), 0, (1, 0))),
    ]
}

/// The stack as peer-to-peer initiator: its first FPDU is the indication, and only then the kernel sends.
fn the_kernel_speaks_first_to_a_peer_to_peer_initiator(context: &Context) {
    for (index, (first, second, kinds, indication)) in indications().into_iter().enumerate() {
        let address = of_kernel(context, 7300 + index as u16);
        let listener = TcpListener::bind(address).expect("the kernel listens");
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("the stack connects");
            let mut peer = RawPeer::from_stream(stream).unwrap();
            let (_, _, data) = peer.read_startup().expect("a request");
            let words = [u16::from_be_bytes([data[0], data[1]]), u16::from_be_bytes([data[2], data[3]])];
            assert_eq!(words, [first | 4, second | 4], "A, this one kind, and the limits");
            peer.send_reply(first | 4, second | 4, b"").unwrap();
            assert_eq!(peer.read_ulpdu().expect("the indication").0, indication);
            if second == 0x4000 {
                peer.send_ulpdu(&raw_peer::read_response(1, 0, b"")).unwrap();
            }
            peer.send_ulpdu(&raw_peer::send(1, b"the kernel first")).unwrap();
            peer
        });
        let mut endpoint = Endpoint::new(context);
        let receive = [endpoint.region.sge(0..1024).unwrap()];
        endpoint.queue_pair.receive.post(&[ReceiveRequest::new(1, &receive)]).unwrap();
        let options = ConnectOptions::default().reads(4, 4).peer_to_peer(kinds);
        let established =
            context.connect(&mut endpoint.queue_pair.control, address, options).expect("the start-up succeeds");
        assert!(established.peer_to_peer);
        let received = endpoint.completion();
        assert_eq!((received.opcode, received.status), (CompletionOpcode::Receive, Status::Success));
        assert_eq!(endpoint.octets(0, received.length as usize), b"the kernel first");
        let mut peer = server.join().unwrap();
        peer.stream().shutdown(std::net::Shutdown::Write).unwrap();
        assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
    }
}

/// The stack as peer-to-peer responder: silent until the kernel's indication, then it sends first.
fn the_stack_speaks_first_to_a_peer_to_peer_kernel(context: &Context) {
    for (index, (first, second, _, indication)) in indications().into_iter().enumerate() {
        let port = 7310 + index as u16;
        let mut endpoint = Endpoint::new(context);
        let address = context.socket_address(port);
        let mut peer = None;
        endpoint.accept(context, port, || {
            peer = Some(thread::spawn(move || {
                let mut peer = RawPeer::connect(address).expect("the stack accepts TCP");
                peer.send_request(first | 4, second | 4, b"").expect("a request goes out");
                let (_, _, data) = peer.read_startup().expect("a reply");
                assert_eq!(
                    (data[0] & 0xc0, data[2] & 0xc0),
                    ((first >> 8) as u8, (second >> 8) as u8),
                    "the common kind"
                );
                peer
            }));
        });
        let mut peer = peer.expect("started").join().expect("the peer's start-up");
        endpoint.queue_pair.send.post(&[SendRequest::send_inline(3, b"the stack first")]).unwrap();
        peer.expect_silence(Duration::from_millis(100));
        peer.send_ulpdu(&indication).unwrap();
        if second == 0x4000 {
            assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::read_response(1, 0, b""));
        }
        assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::send(1, b"the stack first"));
        assert_eq!(endpoint.completion().status, Status::Success);
        endpoint.queue_pair.control.disconnect();
        peer.expect_end();
        drop(peer);
        assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
    }
}

const EXTENSIONS: Features = Features { atomics: true, immediate: true, commit: false, infiniband: false };

/// A kernel socket that the stack, with the extensions enabled, has accepted; `flags` are those of the Request.
fn extended(context: &Context, port: u16, flags: u8, markers: bool) -> (Endpoint, RawPeer) {
    let mut endpoint = Endpoint::new(context);
    for id in 0..4 {
        endpoint.queue_pair.receive.post(&[ReceiveRequest::new(id, &[endpoint.region.sge(0..1024).unwrap()])]).unwrap();
    }
    let mut listener = context.listen(port, uwarp::ListenOptions::default()).unwrap();
    let address = context.socket_address(port);
    let peer = thread::spawn(move || {
        let mut peer = RawPeer::connect(address).expect("the stack accepts TCP");
        peer.send(&raw_peer::startup_frame(b"MPA ID Req Frame", flags, 1, b"")).unwrap();
        let (flags, revision, _) = peer.read_startup().expect("a reply");
        assert_eq!((flags & 0x80 != 0, revision), (markers, 1));
        peer
    });
    let request = listener.next(PATIENCE).unwrap().expect("a request");
    let options = AcceptOptions { markers, ..AcceptOptions::default().features(EXTENSIONS) };
    let established = request.accept(&mut endpoint.queue_pair.control, options).expect("the start-up succeeds");
    assert_eq!((established.transmit_markers, established.receive_markers), (flags & 0x80 != 0, markers));
    (endpoint, peer.join().unwrap())
}

fn extensions_go_both_ways(context: &Context) {
    let (mut endpoint, mut peer) = extended(context, 7320, 0x40, false);
    let word = endpoint.domain.register(vec![0; 64], Access::ALL).unwrap();
    let at = |offset: u64| (word.stag(), word.remote_offset() + offset);
    // The incoming messages.
    peer.send_ulpdu(&raw_peer::immediate(1, true, 0x1122_3344_5566_7788)).unwrap();
    let received = endpoint.completion();
    assert_eq!((received.immediate_data(), received.length), (Some(0x1122_3344_5566_7788), 0));
    assert!(received.flags.contains(CompletionFlags::SOLICITED));
    word.store_release_u64(8, 0xffff_fffe).unwrap();
    peer.send_ulpdu(&raw_peer::atomic_request(1, 0, 0x77, at(8), [5, 0, 0, u64::MAX])).unwrap();
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::atomic_response(1, 0x77, 0xffff_fffe));
    assert_eq!(word.load_acquire_u64(8).unwrap(), 0x1_0000_0003, "in the byte order of this machine");
    peer.send_ulpdu(&raw_peer::atomic_request(2, 2, 0x78, at(8), [9, 0xff, 3, 0xff])).unwrap();
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::atomic_response(2, 0x78, 0x1_0000_0003));
    assert_eq!(word.load_acquire_u64(8).unwrap(), 0x1_0000_0009);
    // The outgoing messages.
    let queue_pair = &mut endpoint.queue_pair;
    queue_pair.send.post(&[SendRequest::immediate(1, 0x0102_0304_0506_0708).solicited()]).unwrap();
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::immediate(1, true, 0x0102_0304_0506_0708));
    queue_pair.send.post(&[SendRequest::write_inline(2, b"and more", 5, 6).with_immediate(7)]).unwrap();
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::write(5, 6, b"and more"));
    assert_eq!(peer.read_ulpdu().unwrap().0, raw_peer::immediate(2, false, 7));
    queue_pair.send.post(&[SendRequest::fetch_add(3, 0xabcd, 0x1000, 5)]).unwrap();
    let request = peer.read_ulpdu().unwrap().0;
    let identifier = u32::from_be_bytes(request[22..26].try_into().unwrap());
    assert_eq!(request, raw_peer::atomic_request(1, 0, identifier, (0xabcd, 0x1000), [5, 0, 0, u64::MAX]));
    peer.send_ulpdu(&raw_peer::atomic_response(1, identifier, 42)).unwrap();
    let done: Vec<_> = (0..3).map(|_| endpoint.completion()).collect();
    assert_eq!(done.iter().map(|one| one.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(done[2].original_value(), Some(42));
    endpoint.queue_pair.control.disconnect();
    peer.expect_end();
}

/// siw answers an unknown opcode with Terminate 0/2/06, on x86 in a bit order of its own.
fn a_peer_like_siw_knows_no_extensions(context: &Context) {
    // In the order of the documents; in siw's bit order, with a header and without, which is what siw sends.
    for (port, control) in [(7321, [0x02, 0x06, 0xc0, 0]), (7322, [0x20, 0x06, 0x03, 0]), (7326, [0x20, 0x06, 0, 0])] {
        let (mut endpoint, mut peer) = extended(context, port, 0x40, false);
        peer.send_ulpdu(&raw_peer::write(1, 0, b"")).unwrap();
        endpoint.queue_pair.send.post(&[SendRequest::fetch_add(3, 0xabcd, 0x1000, 5)]).unwrap();
        let request = peer.read_ulpdu().unwrap().0;
        let mut terminate = control.to_vec();
        if control[2] != 0 {
            terminate.extend([&(request.len() as u16).to_be_bytes(), &request[..18]].concat());
        }
        peer.send_ulpdu(&raw_peer::untagged(true, 7, 2, 1, 0, &terminate)).unwrap();
        let failed = endpoint.completion();
        assert_eq!((failed.id, failed.status), (3, Status::RemoteOperation));
        peer.expect_end();
        drop(peer);
        assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap());
        let code = TerminateCode { layer: 0, error_type: 2, code: 6 };
        assert_eq!(endpoint.queue_pair.control.disconnect_reason(), Some(DisconnectReason::PeerTerminated(code)));
    }
}

/// Markers in what the kernel receives, in what it sends, and both, counted and checked by the test's own code.
fn markers_go_either_way(context: &Context) {
    for (port, to_kernel, to_stack) in [(7323, true, false), (7324, false, true), (7325, true, true)] {
        let flags = if to_kernel { 0xc0 } else { 0x40 };
        let (mut endpoint, mut peer) = extended(context, port, flags, to_stack);
        let (stag, base) = (endpoint.region.stag(), endpoint.region.remote_offset());
        let (mut reading, mut writing) = (Marking::default(), Marking::default());
        let mut say = |peer: &mut RawPeer, ulpdu: &[u8]| {
            let octets = if to_stack { writing.fpdu(ulpdu) } else { raw_peer::fpdu(ulpdu) };
            // In two pieces, cut somewhere.
            let (head, tail) = octets.split_at(octets.len() / 3);
            peer.send(head).unwrap();
            peer.send(tail).unwrap();
        };
        let octets: Vec<u8> = (0..3000u32).map(|at| (at * 7) as u8).collect();
        for (index, piece) in octets.chunks(1000).enumerate() {
            say(&mut peer, &raw_peer::write(stag, base + 4096 + 1000 * index as u64, piece));
        }
        say(&mut peer, &raw_peer::send(1, b"all there"));
        assert_eq!(endpoint.completion().status, Status::Success);
        assert_eq!(endpoint.octets(4096, 3000), octets);
        let source = [endpoint.region.sge(4096..7096).unwrap()];
        endpoint.queue_pair.send.post(&[SendRequest::write(9, &source, 0x1234, 0)]).unwrap();
        endpoint.queue_pair.send.post(&[SendRequest::send_inline(10, b"the end")]).unwrap();
        let mut hear = |peer: &mut RawPeer| match to_kernel {
            true => reading.read(peer.stream()).expect("an FPDU with markers"),
            false => peer.read_ulpdu().expect("an FPDU"),
        };
        let mut came = Vec::new();
        while came.len() < 3000 {
            let ulpdu = hear(&mut peer);
            assert_eq!(ulpdu.opcode(), 0);
            came.extend_from_slice(ulpdu.payload());
        }
        assert_eq!(came, octets);
        assert_eq!(hear(&mut peer).0, raw_peer::send(1, b"the end"));
        if to_stack {
            // A marker with a wrong pointer, under a valid CRC (RFC 5044 §8, code 3).
            say(&mut peer, &raw_peer::write(1, 0, b""));
            let mut misplaced = raw_peer::fpdu(&raw_peer::write(stag, base, &[1; 1000]));
            misplaced.resize(misplaced.len() + 8, 0);
            let crc_at = misplaced.len() - 4;
            let crc = crc32c::crc32c(&misplaced[..crc_at]);
            misplaced[crc_at..].copy_from_slice(&crc.to_le_bytes());
            peer.send(&misplaced).unwrap();
            let answer = hear(&mut peer);
            assert_eq!(answer.terminate(), Some((2, 0, 3)));
        } else {
            endpoint.queue_pair.control.disconnect();
        }
        peer.expect_end();
    }
}

fn octets_arrive_one_by_one(context: &Context) {
    let (mut endpoint, mut peer) = connected(context, 7003);
    for octet in raw_peer::fpdu(&raw_peer::send(1, b"drop by drop")) {
        peer.send(&[octet]).unwrap();
        thread::sleep(Duration::from_micros(200));
    }
    let received = endpoint.completion();
    assert_eq!(endpoint.octets(0, received.length as usize), b"drop by drop");
}

fn several_fpdus_come_in_one_segment(context: &Context) {
    let (mut endpoint, mut peer) = connected(context, 7004);
    let (stag, base) = (endpoint.region.stag(), endpoint.region.remote_offset());
    let mut octets = Vec::new();
    for index in 0..100_u64 {
        octets.extend(raw_peer::fpdu(&raw_peer::write(stag, base + 4096 + index, &[index as u8])));
    }
    octets.extend(raw_peer::fpdu(&raw_peer::send(1, b"all")));
    peer.send(&octets).unwrap();
    assert_eq!(endpoint.completion().status, Status::Success);
    assert_eq!(endpoint.octets(4096, 100), (0..100).collect::<Vec<u8>>());
}

/// MPA does not use urgent data (RFC 5044). It stays in line: whole FPDUs of it, parts of one, and more that is
/// announced ahead.
fn urgent_data_is_data(context: &Context) {
    let (mut endpoint, mut peer) = connected(context, 7060);
    let (stag, base) = (endpoint.region.stag(), endpoint.region.remote_offset());
    peer.send_urgent(&raw_peer::fpdu(&raw_peer::write(stag, base + 4096, b"written in haste"))).unwrap();
    let send = raw_peer::fpdu(&raw_peer::send(1, b"sent"));
    peer.send_urgent(&send[..5]).unwrap();
    peer.send(&send[5..]).unwrap();
    assert_eq!(endpoint.completion().status, Status::Success);
    assert_eq!((endpoint.octets(0, 4), endpoint.octets(4096, 16)), (b"sent".to_vec(), b"written in haste".to_vec()));
}

fn faults_cost_their_own_connection(context: &Context) {
    let (mut bystander, mut bystanding_peer) = connected(context, 7100);
    let rights_of = |endpoint: &Endpoint| (endpoint.region.stag(), endpoint.region.remote_offset());
    let (stag, base) = rights_of(&bystander);
    let mut bad_crc = raw_peer::fpdu(&raw_peer::write(stag, base, b"never placed"));
    *bad_crc.last_mut().unwrap() ^= 1;
    type Frames = Box<dyn Fn(u32, u64) -> Vec<u8>>;
    let faults: Vec<(&str, (u8, u8, u8), Frames)> = vec![
        ("bad CRC", (2, 0, 2), Box::new(move |_, _| bad_crc.clone())),
        ("unknown STag", (1, 1, 0), Box::new(|stag, base| raw_peer::fpdu(&raw_peer::write(stag ^ 0xff, base, b"x")))),
        (
            "out of range",
            (1, 1, 1),
            Box::new(|stag, base| raw_peer::fpdu(&raw_peer::write(stag, base + 65_535, b"xy"))),
        ),
        ("offset wraps", (1, 1, 3), Box::new(|stag, _| raw_peer::fpdu(&raw_peer::write(stag, u64::MAX, b"xy")))),
        ("wrong MSN", (1, 2, 3), Box::new(|_, _| raw_peer::fpdu(&raw_peer::send(2, b"x")))),
        (
            "wrong offset in the message",
            (1, 2, 4),
            Box::new(|_, _| raw_peer::fpdu(&raw_peer::untagged(true, 3, 0, 1, 4, b"x"))),
        ),
        ("no such queue", (1, 2, 1), Box::new(|_, _| raw_peer::fpdu(&raw_peer::untagged(true, 3, 7, 1, 0, b"x")))),
        (
            "no receive posted",
            (1, 2, 2),
            Box::new(|_, _| (1..=3).flat_map(|sequence| raw_peer::fpdu(&raw_peer::send(sequence, b"x"))).collect()),
        ),
        ("longer than the receive", (1, 2, 5), Box::new(|_, _| raw_peer::fpdu(&raw_peer::send(1, &[0; 1025])))),
        ("unknown opcode", (0, 2, 6), Box::new(|_, _| raw_peer::fpdu(&raw_peer::untagged(true, 0xe, 0, 1, 0, b"")))),
        (
            "read of an unknown STag",
            (0, 1, 0),
            Box::new(|stag, base| raw_peer::fpdu(&raw_peer::read_request(1, (1, 0), 8, (stag ^ 0xff, base)))),
        ),
        (
            "read out of range",
            (0, 1, 1),
            Box::new(|stag, base| raw_peer::fpdu(&raw_peer::read_request(1, (1, 0), 65_537, (stag, base)))),
        ),
    ];
    for (index, (name, terminate, frames)) in faults.iter().enumerate() {
        let (mut endpoint, mut peer) = connected(context, 7101 + index as u16);
        let (stag, base) = rights_of(&endpoint);
        // Before the first valid FPDU the responder is silent, so no Terminate is due (RFC 5044 §7.1.2).
        peer.send_ulpdu(&raw_peer::write(1, 0, b"")).unwrap();
        peer.send(&frames(stag, base)).unwrap();
        let answer = peer.read_ulpdu().unwrap_or_else(|error| panic!("{name}: no Terminate: {error}"));
        assert_eq!(answer.terminate(), Some(*terminate), "{name}");
        peer.expect_end();
        drop(peer);
        assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap(), "{name}");
        assert_eq!(endpoint.octets(4096, 16), [0; 16], "{name}: nothing was placed");
        if *name == "no receive posted" {
            continue; // the first two Sends took all receives
        }
        let last = std::iter::from_fn(|| endpoint.completions.next(Duration::from_millis(200)).unwrap()).last();
        assert!(last.is_some_and(|last| !last.status.is_success()), "{name}: posted receives are flushed");
    }
    // The innocent connection still works.
    bystanding_peer.send_ulpdu(&raw_peer::send(1, b"still here")).unwrap();
    let received = bystander.completion();
    assert_eq!(bystander.octets(0, received.length as usize), b"still here");
}

fn a_rejected_request_carries_private_data(context: &Context) {
    let mut listener = context.listen(7005, uwarp::ListenOptions::default()).unwrap();
    let address = context.socket_address(7005);
    let peer = thread::spawn(move || {
        let mut peer = RawPeer::connect(address).unwrap();
        peer.send_request(1, 1, b"please").unwrap();
        peer.read_startup().expect("a reply")
    });
    let request = listener.next(PATIENCE).unwrap().expect("a request");
    assert_eq!((request.private_data(), request.ird(), request.ord()), (&b"please"[..], Some(1), Some(1)));
    request.reject(b"not today").unwrap();
    let (flags, _, data) = peer.join().unwrap();
    assert_eq!(flags & 0x20, 0x20, "the reject bit");
    assert!(data.ends_with(b"not today"), "{data:?}");
}

fn the_kernel_leaves_in_the_middle(context: &Context) {
    for (port, keep) in [(7006, 1), (7007, 10), (7008, 30)] {
        let (mut endpoint, mut peer) = connected(context, port);
        let frame = raw_peer::fpdu(&raw_peer::send(1, b"half of this never comes"));
        peer.send(&frame[..keep]).unwrap();
        drop(peer);
        assert!(endpoint.queue_pair.control.wait_disconnected(PATIENCE).unwrap(), "{keep} octets, then FIN");
        assert_eq!(endpoint.completion().status, Status::Flushed);
    }
}
