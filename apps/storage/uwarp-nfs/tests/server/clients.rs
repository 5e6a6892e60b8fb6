//! Which clients are served, and how much of the server one of them may use.

use crate::raw::Raw;
use crate::rig::{LONG, Rig, exchange, packed};
use nfs3_types::nfs3::{CREATE3args, createhow3, diropargs3, filename3, sattr3};
use nfs3_types::xdr_codec::Opaque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uwarp::TcpStream;
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::directory::number;
use uwarp_nfs::records::{Records, record};
use uwarp_nfs::server::Ports;
use uwarp_rpcrdma::requester::{Call, Requester};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, Status};
use uwarp_rpcrdma::xdr::put_opaque;

/// Ports below 1024 are reserved for the client's root, who vouches for the users that the calls name.
#[test]
fn calls_over_tcp_from_ports_that_are_not_reserved_are_denied_unless_told_otherwise() {
    const TOO_WEAK: Status = Status::AuthError(5);
    for (port, insecure_ports, may_call) in [(1023, false, true), (1024, false, false), (1024, true, true)] {
        let mut rig = Rig::with_rules(ClientRules { insecure_ports, ..ClientRules::default() });
        let root = rig.mount();
        let mut stream = rig.stream_from(port, rig.there.socket_address(2049));
        let mut path = Vec::new();
        put_opaque(&mut path, b"/");
        let mut handle = Vec::new();
        put_opaque(&mut handle, &root.data);
        let new = CREATE3args {
            where_: diropargs3 { dir: root.clone(), name: filename3(Opaque::borrowed(b"new")) },
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        for (call, arguments) in [
            ((100_005, 3, 1), &path),
            ((100_005, 3, 3), &path),
            ((100_003, 3, number::GETATTR), &handle),
            ((100_003, 3, number::CREATE), &packed(&new)),
            ((100_003, 4, 1), &handle),
        ] {
            let result = rig.ask(&mut stream, call, arguments);
            assert_eq!(result == Err(TOO_WEAK), !may_call, "{call:?} from {port}: {result:?}");
        }
        assert_eq!(rig.folder.path().join("new").exists(), may_call);
        // Calls that every client may make: whether a program exists, what is exported, and on which ports.
        for call in [(100_003, 3, 0), (100_005, 3, 0), (100_005, 3, 2), (100_005, 3, 5), (100_000, 2, 4)] {
            assert!(rig.ask(&mut stream, call, &[]).is_ok(), "{call:?} from {port}");
        }
        // No harmless call is long, and memory for one is for trusted clients only.
        let mut octets = [7; 5000];
        octets[..4].copy_from_slice(&(1_u32 << 20).to_be_bytes());
        assert_eq!(stream.write(&octets).unwrap(), octets.len());
        let mut is_over = false;
        rig.idle(|| {
            is_over = is_over || stream.read(&mut [0; 10]).is_ok_and(|count| count == 0);
            false
        });
        assert_eq!(is_over, !may_call);
    }
}

/// A client that sends refused calls, without end and without waiting for replies, must not take all of the server's
/// time.
#[test]
fn a_step_refuses_so_many_calls_of_a_client_and_no_more() {
    const CALLS: u64 = 2000;
    const STEP: u64 = 32;
    let mut rig = Rig::new(&[]);
    let mut stream = rig.stream_from(1024, rig.there.socket_address(2049));
    let (program, version, procedure) = (100_003, 3, number::GETATTR);
    let mut message = Vec::new();
    CallHeader { xid: 7, program, version, procedure, credential: Auth::NONE, verifier: Auth::NONE }
        .encode(&mut message);
    put_opaque(&mut message, b"handle");
    let messages = record([&message[..]]).repeat(CALLS as usize);
    assert_eq!(stream.write(&messages).unwrap(), messages.len());
    // All of them have arrived before the server runs.
    for _ in 0..10_000 {
        rig.here.poll();
        rig.there.poll();
    }
    let refused = |rig: &Rig| rig.metrics.refused.load(Ordering::Relaxed);
    let (mut records, mut replies, mut most) = (Records::new(1000), 0, 0);
    let deadline = Instant::now() + LONG;
    while replies < CALLS {
        let before = refused(&rig);
        rig.server.step().unwrap();
        most = most.max(refused(&rig) - before);
        exchange(&mut stream, &[], &mut 0, &mut records);
        while records.take().unwrap().is_some() {
            replies += 1;
        }
        rig.here.poll();
        assert!(Instant::now() < deadline, "{replies} replies");
    }
    assert_eq!(refused(&rig), CALLS);
    assert!((1..=STEP).contains(&most), "{most} in one step");
}

#[test]
fn one_address_has_so_many_connections_and_no_more_and_another_is_served() {
    const MOST: usize = 2;
    let mut rig = Rig::with_rules(ClientRules { per_address: MOST, ..ClientRules::default() });
    let null = || Call { program: 100_003, version: 3, ..Call::default() };
    let turned_away = |rig: &Rig| rig.metrics.turned_away.load(Ordering::Relaxed);
    // The client's address is of the family of the server's.
    let servers =
        |port| [rig.there.socket_address(port), ("fd00::2".parse::<std::net::IpAddr>().unwrap(), port).into()];
    let [rdma, rdma_elsewhere] = servers(Ports::default().rdma);
    let [_, tcp_elsewhere] = servers(2049);
    let is_served = |rig: &mut Rig, client: &mut Requester| {
        client.start(null()).unwrap();
        rig.until(|_| client.poll()).outcome.is_ok()
    };
    let mut clients = Vec::new();
    for number in 0..=MOST {
        let mut client = rig.requester_to(rdma);
        assert_eq!(is_served(&mut rig, &mut client), number < MOST);
        clients.push(client);
    }
    assert_eq!((rig.server.rdma_clients(), turned_away(&rig)), (MOST, 1));
    let mut other = rig.requester_to(rdma_elsewhere);
    assert!(is_served(&mut rig, &mut other), "of another address");
    // Over TCP, the same number again.
    let mut streams: Vec<TcpStream> = (0..=MOST).map(|_| rig.stream(2049)).collect();
    let mut room = [0; 10];
    rig.until(|_| match streams[MOST].read(&mut room) {
        Ok(0) => Some(()),
        Ok(_) => panic!("an answer"),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(()),
    });
    for stream in &mut streams[..MOST] {
        rig.ask(stream, (100_003, 3, 0), &[]).unwrap();
    }
    assert_eq!((rig.server.tcp_clients(), turned_away(&rig)), (MOST, 2));
    let mut other = rig.stream_from(700, tcp_elsewhere);
    rig.ask(&mut other, (100_003, 3, 0), &[]).unwrap();
    // A client that leaves makes room for the next.
    drop((clients, streams));
    rig.until(|server| ((server.rdma_clients(), server.tcp_clients()) == (1, 1)).then_some(()));
    let mut client = rig.requester_to(rdma);
    assert!(is_served(&mut rig, &mut client));
    let mut stream = rig.stream(2049);
    rig.ask(&mut stream, (100_003, 3, 0), &[]).unwrap();
    assert_eq!(turned_away(&rig), 2);
}

#[test]
fn idle_clients_are_disconnected_and_those_with_half_a_call_too() {
    let mut rig = Rig::with_rules(ClientRules { idle: Duration::from_millis(300), ..ClientRules::default() });
    let (here, peer) = (rig.here.clone(), rig.there.socket_address(Ports::default().rdma));
    let client = Raw::connect(&here, peer, || _ = rig.server.step().unwrap());
    let mut stream = rig.stream(2049);
    let half = &record([&[7; 100][..]])[..50];
    assert_eq!(stream.write(half).unwrap(), half.len());
    let timed_out = |rig: &Rig| rig.metrics.timed_out.load(Ordering::Relaxed);
    let deadline = Instant::now() + LONG;
    while timed_out(&rig) < 2 {
        rig.server.step().unwrap();
        here.poll();
        assert!(Instant::now() < deadline);
    }
    assert_eq!((rig.server.rdma_clients(), rig.server.tcp_clients()), (0, 0));
    let mut room = [0; 10];
    rig.until(|_| match stream.read(&mut room) {
        Ok(0) => Some(()),
        Ok(_) => panic!("an answer"),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(()),
    });
    drop(client);
}
