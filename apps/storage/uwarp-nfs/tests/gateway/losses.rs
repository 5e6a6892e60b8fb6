//! What happens to calls when the server or a client is lost and returns.

use crate::raw::{Raw, parse};
use crate::rig::{
    DATA, GETATTR, LONG, REMOVE, Rig, WRITE, accepted, config, first_received, gss, pattern, received, reply,
    reply_stale,
};
use nfs3_types::nfs3::{GETATTR3args, WRITE3args, diropargs3, nfs_fh3, stable_how};
use nfs3_types::xdr_codec::Opaque;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;
use uwarp::Context;
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::gateway::{PORT, Policy};
use uwarp_nfs::gateways::{Gateways, Ports};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::records::Records;
use uwarp_rpcrdma::rpc::{CallHeader, OwnedAuth, ReplyHeader, Status};
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::put_opaque;

pub fn calls_outlive_a_server_that_was_away() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"handle") };
    let id = rig.start(GETATTR, &GETATTR3args { object: file }, vec![]);
    let mut xids = Vec::new();
    for round in 0..3 {
        // It receives the call, and ends twice without an answer.
        let mut stream = accepted(&mut rig, &backend);
        let record = received(&mut rig, &mut stream);
        let (call, _) = CallHeader::parse(&record).unwrap();
        assert_eq!((call.program, call.procedure, call.credential.flavor), (100_003, GETATTR, 1));
        xids.push(call.xid);
        if round == 2 {
            reply_stale(&mut stream, call.xid);
            let finished = rig.finished();
            assert_eq!(finished.id, id);
            assert_eq!(finished.outcome.unwrap().results, [Part::Octets(70_u32.to_be_bytes().to_vec())]);
        }
    }
    assert!(xids.iter().all(|xid| *xid == xids[0]), "the server can know the call again");
    assert_eq!(rig.gateways[0].outstanding(), 0);
}

/// The server dies with a call that it has half received, with one that it has answered, and with one that it has half
/// answered, and once more with a call left over.
pub fn each_call_is_answered_once_by_a_server_that_dies_and_comes_back() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = backend.local_addr().unwrap();
    let mut rig = Rig::new(address, Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"handle") };
    let getattr = GETATTR3args { object: file.clone() };
    // The first reply grants credits for more.
    let warm = rig.start(GETATTR, &getattr, vec![]);
    let mut first = accepted(&mut rig, &backend);
    first.set_nodelay(true).unwrap();
    let port = first.peer_addr().unwrap();
    let record = received(&mut rig, &mut first);
    reply_stale(&mut first, CallHeader::parse(&record).unwrap().0.xid);
    assert_eq!(rig.finished().id, warm);
    let name = diropargs3 { dir: file.clone(), name: b"name".to_vec().into() };
    let answered = rig.start(GETATTR, &getattr, vec![]);
    let half_answered = rig.start(REMOVE, &nfs3_types::nfs3::REMOVE3args { object: name }, vec![]);
    let calls = [received(&mut rig, &mut first), received(&mut rig, &mut first)];
    let headers = calls.each_ref().map(|record| CallHeader::parse(record).unwrap().0);
    assert_eq!(headers.each_ref().map(|call| call.procedure), [GETATTR, REMOVE]);
    // Longer than what the kernel buffers: the gateway is in the middle of it.
    let data = pattern(3, 24 << 20);
    let count = data.len() as u32;
    let arguments = WRITE3args { file, offset: 0, count, stable: stable_how::FILE_SYNC, data: Opaque::borrowed(&data) };
    let half_sent = rig.start(WRITE, &arguments, vec![]);
    let deadline = Instant::now() + LONG;
    while first.peek(&mut [0]).is_err() {
        rig.step();
        assert!(rig.client.poll().is_none());
        assert!(Instant::now() < deadline);
    }
    for _ in 0..1000 {
        rig.step();
    }
    reply_stale(&mut first, headers[0].xid);
    first.write_all(&[0x80, 0, 0, 28]).unwrap();
    first.write_all(&headers[1].xid.to_be_bytes()).unwrap();
    // The server's host resets the connection, since octets are unread, and its port is unused for a while.
    drop((first, backend));
    let finished = rig.finished();
    assert_eq!((finished.id, finished.outcome.unwrap().results[0].octets()), (answered, &70_u32.to_be_bytes()[..]));
    assert_eq!(rig.gateways[0].outstanding(), 2);
    let backend = TcpListener::bind(address).unwrap();
    let mut second = accepted(&mut rig, &backend);
    assert_eq!(second.peer_addr().unwrap(), port, "by which the server knows calls that come again");
    assert!(received(&mut rig, &mut second) == calls[1], "the same octets");
    let whole = received(&mut rig, &mut second);
    let (write, _) = CallHeader::parse(&whole).unwrap();
    assert_eq!(write.procedure, WRITE);
    assert!(whole.ends_with(&data));
    // The second call is answered first, and its reply repeated; the other is left over again.
    reply_stale(&mut second, write.xid);
    reply_stale(&mut second, write.xid);
    assert_eq!(rig.finished().id, half_sent);
    drop(second);
    let mut third = accepted(&mut rig, &backend);
    assert_eq!(third.peer_addr().unwrap(), port);
    assert!(received(&mut rig, &mut third) == calls[1]);
    reply_stale(&mut third, headers[1].xid);
    assert_eq!(rig.finished().id, half_answered);
    for _ in 0..1000 {
        rig.step();
        assert!(rig.client.poll().is_none());
    }
    third.set_nonblocking(true).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nothing more is asked");
    assert_eq!((rig.gateways[0].outstanding(), rig.gateways[0].stats().replies), (0, 4));
    assert_eq!(rig.client.stats().connections, 1, "the client has noticed nothing");
}

/// Linux' own server also recognises calls by their source port.
pub fn a_client_that_comes_back_reaches_the_server_from_the_same_port() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    backend.set_nonblocking(true).unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (ports, server) = (Ports { rdma: PORT, tcp: 2049 }, backend.local_addr().unwrap());
    let metrics = Arc::new(Metrics::of_gateway());
    let mut gateways =
        Gateways::start(&there, ports, server, Policy::default(), ClientRules::default(), metrics, 1 << 30).unwrap();
    let mut arguments = Vec::new();
    put_opaque(&mut arguments, b"directory");
    put_opaque(&mut arguments, b"name");
    let deadline = Instant::now() + LONG;
    let mut before = None;
    for _ in 0..3 {
        let mut client = Raw::connect(&here, there.socket_address(PORT), || assert!(gateways.step().is_ok()));
        client.call(7, REMOVE, &arguments);
        let (mut stream, from) = loop {
            gateways.step().unwrap();
            if let Ok(accepted) = backend.accept() {
                break accepted;
            }
            assert!(Instant::now() < deadline);
        };
        stream.set_nonblocking(true).unwrap();
        let mut records = Records::new(1000);
        let mut room = [0; 1000];
        let call = loop {
            gateways.step().unwrap();
            if let Ok(length @ 1..) = stream.read(&mut room) {
                records.push(&room[..length]);
            }
            if let Some(call) = records.take().unwrap() {
                break call;
            }
            assert!(Instant::now() < deadline);
        };
        assert_eq!(*before.get_or_insert((from, call.clone())), (from, call));
        // The server has the call when its client dies.
        drop(client);
        while stream.read(&mut room).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            gateways.step().unwrap();
            here.poll();
            assert!(Instant::now() < deadline);
        }
    }
}

pub fn a_call_that_comes_again_while_the_server_has_it_gets_the_same_reply() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let mut rig = Rig::between(&here, &there, backend.local_addr().unwrap(), Policy::default());
    let mut raw = Raw::connect(&here, there.socket_address(PORT), || rig.step());
    let deadline = Instant::now() + LONG;
    let mut getattr = |handle: &[u8]| {
        let mut arguments = Vec::new();
        put_opaque(&mut arguments, handle);
        raw.call(7, GETATTR, &arguments);
    };
    getattr(b"one");
    getattr(b"one");
    // Another call with the same number cannot be distinguished from it.
    getattr(b"two");
    while raw.messages.is_empty() {
        rig.step();
        raw.poll();
        assert!(Instant::now() < deadline);
    }
    assert_eq!(parse(&raw.messages.remove(0)).0.status, Status::SystemError);
    // The connection of the other client exists, too.
    let mut streams = vec![accepted(&mut rig, &backend), accepted(&mut rig, &backend)];
    let (record, mut stream) = first_received(&mut rig, &mut streams);
    reply_stale(&mut stream, 7);
    let (call, at) = CallHeader::parse(&record).unwrap();
    assert_eq!((call.xid, &record[at + 4..]), (7, &b"one\0"[..]), "once, and nothing behind it");
    while raw.messages.len() < 2 {
        rig.step();
        raw.poll();
        assert!(Instant::now() < deadline);
    }
    for message in &raw.messages {
        assert_eq!(parse(message).1, 70_u32.to_be_bytes(), "NFS3ERR_STALE");
    }
    let text = rig.metrics.text();
    for line in [
        "calls_total{procedure=\"getattr\"} 1",
        "errors_total{procedure=\"getattr\"} 1",
        "duplicates_total 1",
        "refused_total 1",
    ] {
        assert!(text.contains(&format!("uwarp_nfs_{line}\n")), "{line} in {text}");
    }
}

/// It has another sequence number each time (RFC 2203 §5.3.3.1).
pub fn a_call_under_rpcsec_gss_that_comes_again_reaches_the_server_again() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let mut rig = Rig::between(&here, &there, backend.local_addr().unwrap(), Policy::default());
    let mut raw = Raw::connect(&here, there.socket_address(PORT), || rig.step());
    let (times, deadline) = ([gss(DATA, 1, 2), gss(DATA, 2, 2)], Instant::now() + LONG);
    for credential in &times {
        raw.call_as(7, GETATTR, credential.as_auth(), b"wrapped!");
    }
    // Of another flavor it is another call.
    raw.call(7, GETATTR, &[0; 4]);
    while raw.messages.is_empty() {
        rig.step();
        raw.poll();
        assert!(Instant::now() < deadline);
    }
    assert_eq!(parse(&raw.messages.remove(0)).0.status, Status::SystemError);
    // The connection of the other client exists, too.
    let mut streams = vec![accepted(&mut rig, &backend), accepted(&mut rig, &backend)];
    let (mut record, mut stream) = first_received(&mut rig, &mut streams);
    // The first may be written before the second arrives, or only the newest may be sent when the server is there.
    if CallHeader::parse(&record).unwrap().0.credential == times[0].as_auth() {
        record = received(&mut rig, &mut stream);
    }
    let (call, at) = CallHeader::parse(&record).unwrap();
    assert_eq!((call.xid, call.credential, &record[at..]), (7, times[1].as_auth(), &b"wrapped!"[..]));
    let verifier = OwnedAuth { flavor: 6, body: pattern(8, 37) };
    let mut message = Vec::new();
    ReplyHeader { xid: 7, verifier: verifier.as_auth(), status: Status::Success }.encode(&mut message);
    message.extend_from_slice(b"results!");
    reply(&mut stream, &message);
    while raw.messages.len() < 2 {
        rig.step();
        raw.poll();
        assert!(Instant::now() < deadline);
    }
    for message in &raw.messages {
        let (header, results) = parse(message);
        assert_eq!((header.verifier, results), (verifier.as_auth(), &b"results!"[..]));
    }
}

/// Only the server's own cache of replies helps, and it must recognise the call by its XID: here it has nothing else.
pub fn a_call_whose_client_died_reaches_the_server_again_as_it_was() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let mut rig = Rig::between(&here, &there, backend.local_addr().unwrap(), Policy::default());
    let mut arguments = Vec::new();
    put_opaque(&mut arguments, b"directory");
    put_opaque(&mut arguments, b"name");
    let peer = there.socket_address(PORT);
    let mut first = Raw::connect(&here, peer, || rig.step());
    first.call(7, REMOVE, &arguments);
    // The connection of the other client exists, too.
    let mut streams = vec![accepted(&mut rig, &backend), accepted(&mut rig, &backend)];
    let (record, mut stream) = first_received(&mut rig, &mut streams);
    // The server has executed it and answered, but nobody receives that.
    drop(first);
    reply_stale(&mut stream, 7);
    let deadline = Instant::now() + LONG;
    while rig.gateways.len() > 1 {
        rig.step();
        assert!(rig.client.poll().is_none());
        assert!(Instant::now() < deadline);
    }
    let mut second = Raw::connect(&here, peer, || rig.step());
    second.call(7, REMOVE, &arguments);
    let mut next = accepted(&mut rig, &backend);
    assert!(received(&mut rig, &mut next) == record);
    let (call, _) = CallHeader::parse(&record).unwrap();
    assert_eq!((call.xid, call.procedure), (7, REMOVE));
    reply_stale(&mut next, 7);
    while second.messages.is_empty() {
        rig.step();
        second.poll();
        assert!(Instant::now() < deadline);
    }
    assert_eq!(parse(&second.messages[0]).1, 70_u32.to_be_bytes());
    assert!(stream.read(&mut [0]).is_ok_and(|count| count == 0), "the first connection ended with its client");
}
