//! A client over RDMA, the gateway, and another project's NFS server behind it.

mod losses;
#[path = "../raw/mod.rs"]
mod raw;
mod rig;

use nfs3_types::nfs3::{
    CREATE3args, CREATE3resfail, CREATE3resok, GETATTR3args, Nfs3Option, Nfs3Result, READ3args, READ3resfail,
    READ3resok, READDIR3args, READDIR3resfail, READDIR3resok, WRITE3args, WRITE3resfail, WRITE3resok, cookieverf3,
    createhow3, diropargs3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;
use raw::Raw;
use rig::{
    CREATE, DATA, DESTROY, FSINFO, GETATTR, INIT, LONG, NULL, READ, READDIR, REMOVE, RENAME, Rig, WRITE, accepted,
    config, gss, packed, pattern, read_results, received, reply, reply_stale, root, server,
};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::Context;
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::gateway::{PORT, Policy};
use uwarp_nfs::gateways::{Gateways, OF_A_CALL, Ports};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::records::{Records, record};
use uwarp_rpcrdma::binding::{Binding, Greatest};
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::requester::{Call, CallId, Requester, RequesterOptions};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, OwnedAuth, ReplyHeader, Status};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::{put_opaque, put_padding};

fn new_file(root: &nfs_fh3, name: &str) -> CREATE3args<'static> {
    let where_ = diropargs3 { dir: root.clone(), name: name.as_bytes().to_vec().into() };
    CREATE3args { where_, how: createhow3::UNCHECKED(sattr3::default()) }
}

#[test]
fn files_are_read_and_written_through_the_gateway() {
    let server = server();
    let root = root(server);
    let mut rig = Rig::new(server, Policy::default());
    let large = rig.lookup(&root, "large");
    // By Write chunks, by a long reply, and within messages.
    for (size, reduced) in [(1 << 20, true), (262_144, false), (2000, true)] {
        if size == 2000 {
            let small = rig.lookup(&root, "file-299");
            assert_eq!(rig.read(&small, size, reduced), [0; 299]);
        } else {
            assert!(rig.read(&large, size, reduced) == pattern(1, 3_000_001), "{size}");
        }
    }
    let Nfs3Result::<CREATE3resok, CREATE3resfail>::Ok(made) = rig.call(CREATE, &new_file(&root, "new"), vec![]) else {
        panic!("no CREATE");
    };
    let Nfs3Option::Some(file) = made.obj else { panic!("no handle") };
    let data = pattern(2, 1_500_003);
    for (index, piece) in data.chunks(400_001).enumerate() {
        let arguments = WRITE3args {
            file: file.clone(),
            offset: index as u64 * 400_001,
            count: piece.len() as u32,
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(piece),
        };
        let Nfs3Result::<WRITE3resok, WRITE3resfail>::Ok(done) = rig.call(WRITE, &arguments, vec![]) else {
            panic!("no WRITE");
        };
        assert_eq!((done.count, done.committed), (piece.len() as u32, stable_how::FILE_SYNC));
    }
    assert!(rig.read(&file, 1 << 20, true) == data);
    let stats = rig.gateways[0].stats();
    assert!(stats.read >= 1_500_003, "by RDMA Read: {stats:?}");
    assert!(stats.written >= 2 * 3_000_001 + 1_500_003, "by RDMA Write: {stats:?}");
    assert_eq!(rig.client.stats().connections, 1);
}

#[test]
fn a_directory_of_many_names_comes_in_long_replies() {
    let server = server();
    let root = root(server);
    let mut rig = Rig::new(server, Policy::default());
    let (mut names, mut cookie, mut cookieverf) = (Vec::new(), 0, cookieverf3::default());
    loop {
        let arguments = READDIR3args { dir: root.clone(), cookie, cookieverf, count: 8192 };
        let Nfs3Result::<READDIR3resok<'static>, READDIR3resfail>::Ok(page) = rig.call(READDIR, &arguments, vec![])
        else {
            panic!("no READDIR");
        };
        cookieverf = page.cookieverf;
        for entry in &page.reply.entries.0 {
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name.0.as_ref().to_vec()).unwrap());
        }
        if page.reply.eof {
            break;
        }
    }
    names.retain(|name| name.starts_with("file-"));
    names.sort();
    assert_eq!(names, (0..300).map(|number| format!("file-{number:03}")).collect::<Vec<_>>());
    assert!(rig.gateways[0].stats().long_replies > 0);
}

#[test]
fn many_calls_at_once_keep_their_replies() {
    let server = server();
    let root = root(server);
    let mut rig = Rig::new(server, Policy::default());
    let files: Vec<nfs_fh3> = (0..40).map(|number| rig.lookup(&root, &format!("file-{:03}", 7 * number))).collect();
    let calls: Vec<CallId> = files
        .iter()
        .map(|file| rig.start(READ, &READ3args { file: file.clone(), offset: 0, count: 5000 }, vec![vec![1; 5000]]))
        .collect();
    for _ in 0..40 {
        let finished = rig.finished();
        let number = calls.iter().position(|id| *id == finished.id).unwrap();
        let Nfs3Result::<READ3resok<'static>, READ3resfail>::Ok(read) = read_results(finished) else {
            panic!("no READ");
        };
        assert_eq!(read.data.as_ref(), vec![0; 7 * number]);
    }
}

#[test]
fn a_read_only_gateway_lets_nothing_through_that_changes_something() {
    let server = server();
    let root = root(server);
    let mut rig = Rig::new(server, Policy { read_only: true });
    let large = rig.lookup(&root, "large");
    let before = rig.read(&large, 1 << 20, true);
    assert_eq!(before.len(), 3_000_001);
    let Nfs3Result::<CREATE3resok, CREATE3resfail>::Err((status, _)) =
        rig.call(CREATE, &new_file(&root, "new"), vec![])
    else {
        panic!("a file was made");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_ROFS);
    let arguments =
        WRITE3args { file: large, offset: 0, count: 5, stable: stable_how::UNSTABLE, data: Opaque::borrowed(b"hello") };
    let Nfs3Result::<WRITE3resok, WRITE3resfail>::Err((status, _)) = rig.call(WRITE, &arguments, vec![]) else {
        panic!("a file was changed");
    };
    assert_eq!(status, nfsstat3::NFS3ERR_ROFS);
    use nfs3_types::nfs3::{REMOVE3args, REMOVE3resfail, REMOVE3resok, RENAME3args, RENAME3resfail, RENAME3resok};
    let name = |name: &str| diropargs3 { dir: root.clone(), name: name.as_bytes().to_vec().into() };
    let removed: Nfs3Result<REMOVE3resok, REMOVE3resfail> =
        rig.call(REMOVE, &REMOVE3args { object: name("large") }, vec![]);
    assert!(matches!(removed, Nfs3Result::Err((nfsstat3::NFS3ERR_ROFS, _))));
    let renamed: Nfs3Result<RENAME3resok, RENAME3resfail> =
        rig.call(RENAME, &RENAME3args { from: name("large"), to: name("other") }, vec![]);
    assert!(matches!(renamed, Nfs3Result::Err((nfsstat3::NFS3ERR_ROFS, _))));
    // Nor under RPCSEC_GSS, which any client may claim to use. A denial needs no verifier, which only the server could
    // make.
    let unreadable = OwnedAuth { flavor: 6, body: Vec::new() };
    for credential in [gss(DATA, 1, 1), gss(DATA, 2, 2), gss(DATA, 3, 3), unreadable] {
        let arguments = vec![Part::Octets(packed(&arguments))];
        let greatest = Some(Greatest::of(1000));
        let call =
            Call { program: 100_003, version: 3, procedure: WRITE, credential, arguments, greatest, ..Call::default() };
        rig.client.start(call).unwrap();
        assert_eq!(rig.finished().outcome.unwrap().status, Status::AuthError(5));
    }
    let large = rig.lookup(&root, "large");
    assert!(rig.read(&large, 1 << 20, true) == before);
}

#[test]
fn calls_under_rpcsec_gss_go_through_as_they_are() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let mut stream = None;
    // Integrity and privacy: only the two ends can read the arguments, so these need not even be those of a WRITE. A
    // context is created and ended by NULL, which then has tokens for arguments and results.
    for (procedure, credential, length) in [
        (NULL, gss(INIT, 0, 1), 700),
        (WRITE, gss(DATA, 1, 2), 40),
        (WRITE, gss(DATA, 2, 3), 100_000),
        (NULL, gss(DESTROY, 3, 1), 0),
    ] {
        let wrapped = pattern(7, length);
        let verifier = OwnedAuth { flavor: 6, body: pattern(7, 28) };
        let call = Call {
            program: 100_003,
            version: 3,
            procedure,
            credential: credential.clone(),
            verifier: verifier.clone(),
            arguments: vec![Part::Octets(wrapped.clone())],
            greatest: Some(Greatest::of(1000)),
            ..Call::default()
        };
        let id = rig.client.start(call).unwrap();
        let stream = stream.get_or_insert_with(|| accepted(&mut rig, &backend));
        let record = received(&mut rig, stream);
        let (call, at) = CallHeader::parse(&record).unwrap();
        assert_eq!((call.program, call.version, call.procedure), (100_003, 3, procedure));
        assert_eq!((OwnedAuth::from(call.credential), OwnedAuth::from(call.verifier)), (credential, verifier));
        assert!(record[at..] == wrapped);
        let (verifier, results) = (OwnedAuth { flavor: 6, body: pattern(8, 37) }, pattern(9, 60));
        let mut message = Vec::new();
        ReplyHeader { xid: call.xid, verifier: verifier.as_auth(), status: Status::Success }.encode(&mut message);
        message.extend_from_slice(&results);
        reply(stream, &message);
        let finished = rig.finished();
        assert_eq!(finished.id, id);
        let outcome = finished.outcome.unwrap();
        assert_eq!((outcome.verifier, outcome.results), (verifier, vec![Part::Octets(results)]));
    }
}

/// A call's verifier covers the header, and a reply's the sequence number (RFC 2203 §5.3.1, §5.3.3.2). Without a
/// service nothing protects arguments and results, so sizes are lowered as for other flavors.
#[test]
fn calls_under_rpcsec_gss_without_a_service_keep_all_but_their_sizes() {
    const MOST: u32 = 1 << 20;
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"odd-handle") };
    let data = pattern(3, 5003);
    let asked = |count| packed(&READ3args { file: file.clone(), offset: 1 << 40, count });
    let written = packed(&WRITE3args {
        file: file.clone(),
        offset: 5,
        count: 5003,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(&data),
    });
    let sizes = |most: u32| {
        let words = [0, 0, most, most, 4096, most, most, 8192, 32_768, 0, 0, 0, 1, 0];
        words.map(u32::to_be_bytes).concat()
    };
    let mut read = [0, 0, 5003, 1].map(u32::to_be_bytes).concat();
    put_opaque(&mut read, &data);
    let stale = 70_u32.to_be_bytes().to_vec();
    let handle = packed(&GETATTR3args { object: file.clone() });
    let mut stream = None;
    for (number, (procedure, sent, arrives, answered, comes)) in [
        (READ, asked(4 * MOST), asked(MOST), read.clone(), read),
        (FSINFO, handle.clone(), handle, sizes(4 * MOST), sizes(MOST)),
        (WRITE, written.clone(), written, stale.clone(), stale),
    ]
    .into_iter()
    .enumerate()
    {
        let mut walk = Walk::new(&sent, 0, Removed::Nothing);
        Nfs3.arguments(3, procedure, &mut walk).unwrap();
        let arguments = split(&sent, &walk.finish().unwrap(), |_| unreachable!()).unwrap();
        let credential = gss(DATA, number as u32, 1);
        let verifier = OwnedAuth { flavor: 6, body: pattern(7, 28) };
        let call = Call {
            program: 100_003,
            version: 3,
            procedure,
            credential: credential.clone(),
            verifier: verifier.clone(),
            arguments,
            rooms: if procedure == READ { vec![vec![0; 4 * MOST as usize]] } else { vec![] },
            ..Call::default()
        };
        rig.client.start(call).unwrap();
        let stream = stream.get_or_insert_with(|| accepted(&mut rig, &backend));
        let record = received(&mut rig, stream);
        let (call, at) = CallHeader::parse(&record).unwrap();
        assert_eq!((OwnedAuth::from(call.credential), OwnedAuth::from(call.verifier)), (credential, verifier));
        assert!(record[at..] == arrives, "{procedure}");
        let verifier = OwnedAuth { flavor: 6, body: pattern(8, 37) };
        let mut message = Vec::new();
        ReplyHeader { xid: call.xid, verifier: verifier.as_auth(), status: Status::Success }.encode(&mut message);
        message.extend_from_slice(&answered);
        reply(stream, &message);
        let outcome = rig.finished().outcome.unwrap();
        assert_eq!(outcome.verifier, verifier);
        let mut results = Vec::new();
        for part in &outcome.results {
            results.extend_from_slice(part.octets());
            put_padding(&mut results, part.octets().len());
        }
        assert!(results == comes, "{procedure}");
    }
    assert!(rig.gateways[0].stats().written >= 5003, "by RDMA Write");
}

/// Answers that a client accepts from the server only (RFC 2203 §5.3.3.2).
#[test]
fn what_the_gateway_cannot_pass_on_under_rpcsec_gss_is_denied() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"handle") };
    let arguments = packed(&READ3args { file, offset: 0, count: 5 });
    // A reply that is too long and cannot be shortened, and one that is not of the procedure.
    for (number, service) in [(1, 2), (2, 1)] {
        let call = Call {
            program: 100_003,
            version: 3,
            procedure: READ,
            credential: gss(DATA, number, service),
            arguments: vec![Part::Octets(arguments.clone())],
            greatest: Some(Greatest::of(1000)),
            ..Call::default()
        };
        rig.client.start(call).unwrap();
        let mut stream = accepted(&mut rig, &backend);
        let record = received(&mut rig, &mut stream);
        let xid = CallHeader::parse(&record).unwrap().0.xid;
        if service == 2 {
            stream.set_nonblocking(false).unwrap();
            stream.write_all(&((1 << 31) | (2_u32 << 20)).to_be_bytes()).unwrap();
            stream.write_all(&xid.to_be_bytes()).unwrap();
        } else {
            let mut message = Vec::new();
            ReplyHeader { xid, verifier: gss(DATA, 0, 1).as_auth(), status: Status::Success }.encode(&mut message);
            message.extend_from_slice(&[0; 7]);
            reply(&mut stream, &message);
        }
        let outcome = rig.finished().outcome.unwrap();
        assert_eq!((outcome.status, outcome.verifier), (Status::AuthError(5), OwnedAuth::default()));
    }
}

/// All memory of a call is bounded, and so are the requested sizes.
#[test]
fn no_more_is_asked_for_than_a_reply_may_have() {
    const MOST: u32 = 1 << 20;
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"odd-handle") };
    let mut fsinfo = Vec::new();
    put_opaque(&mut fsinfo, b"odd-handle");
    // The server's sizes, without attributes and with some, and what they become.
    let mut stream = None;
    for attributes in [0, 1_u32] {
        let id = rig.start(FSINFO, &GETATTR3args { object: file.clone() }, vec![]);
        let stream = stream.get_or_insert_with(|| accepted(&mut rig, &backend));
        let record = received(&mut rig, stream);
        let (call, at) = CallHeader::parse(&record).unwrap();
        assert_eq!((call.procedure, &record[at..]), (FSINFO, &fsinfo[..]));
        let results = |sizes: [u32; 7]| {
            let mut octets = [0, attributes].map(u32::to_be_bytes).concat();
            octets.resize(8 + 84 * attributes as usize, 0xff);
            sizes.iter().for_each(|size| octets.extend_from_slice(&size.to_be_bytes()));
            octets.resize(octets.len() + 20, 0xff);
            octets
        };
        let mut message = Vec::new();
        ReplyHeader { xid: call.xid, verifier: Auth::NONE, status: Status::Success }.encode(&mut message);
        message.extend_from_slice(&results([4 << 20, 2 << 20, 4096, 8 << 20, MOST, 8192, 32_768]));
        reply(stream, &message);
        let finished = rig.finished();
        assert_eq!(finished.id, id);
        let expected = results([MOST, MOST, 4096, MOST, MOST, 8192, 32_768]);
        assert_eq!(finished.outcome.unwrap().results, [Part::Octets(expected)]);
    }
    let mut stream = stream.unwrap();
    for (count, asked) in [(4 << 20, MOST), (MOST, MOST), (5000, 5000)] {
        let (offset, cookieverf) = (1 << 40, cookieverf3::default());
        let calls = [
            rig.start(READ, &READ3args { file: file.clone(), offset, count }, vec![]),
            rig.start(READDIR, &READDIR3args { dir: file.clone(), cookie: 7, cookieverf, count }, vec![]),
        ];
        for _ in 0..2 {
            let record = received(&mut rig, &mut stream);
            let (call, _) = CallHeader::parse(&record).unwrap();
            assert!(record.ends_with(&asked.to_be_bytes()), "{} of {count}", call.procedure);
            reply_stale(&mut stream, call.xid);
            assert!(calls.contains(&rig.finished().id));
        }
    }
    // A server that returns more anyway: its reply is not awaited repeatedly, and other replies are.
    let calls = [0, 1].map(|offset| rig.start(READ, &READ3args { file: file.clone(), offset, count: 5 }, vec![]));
    let records = [received(&mut rig, &mut stream), received(&mut rig, &mut stream)];
    let xids = records.each_ref().map(|record| CallHeader::parse(record).unwrap().0.xid);
    stream.write_all(&((1 << 31) | (2 * MOST)).to_be_bytes()).unwrap();
    stream.write_all(&xids[0].to_be_bytes()).unwrap();
    let finished = rig.finished();
    assert_eq!((finished.id, finished.outcome.unwrap().status), (calls[0], Status::SystemError));
    let mut stream = accepted(&mut rig, &backend);
    assert!(received(&mut rig, &mut stream) == records[1]);
    reply_stale(&mut stream, xids[1]);
    assert_eq!(rig.finished().id, calls[1]);
}

/// Four calls: all for a single client, or two each. Further calls wait.
#[test]
fn clients_have_equal_parts_of_the_memory_for_calls() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    backend.set_nonblocking(true).unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (ports, server) = (Ports { rdma: PORT, tcp: 2049 }, backend.local_addr().unwrap());
    let metrics = Arc::new(Metrics::of_gateway());
    let mut gateways =
        Gateways::start(&there, ports, server, Policy::default(), ClientRules::default(), metrics, 4 * OF_A_CALL + 1)
            .unwrap();
    let peer = there.socket_address(PORT);
    let mut arguments = Vec::new();
    put_opaque(&mut arguments, b"handle");
    let mut streams: Vec<(TcpStream, Records)> = Vec::new();
    let mut clients: Vec<Raw> = Vec::new();
    // XIDs of calls that the server has received and not answered, by client.
    let mut under_way: [Vec<u32>; 2] = Default::default();
    for (count, expected) in [(1, [4, 0]), (2, [2, 2])] {
        while clients.len() < count {
            let mut client = Raw::connect(&here, peer, || assert!(gateways.step().is_ok()));
            for number in 0..8 {
                client.call(100 * clients.len() as u32 + number, GETATTR, &arguments);
            }
            clients.push(client);
        }
        let deadline = Instant::now() + LONG;
        let mut since = Instant::now();
        // Until nothing has changed for a while.
        while under_way.each_ref().map(Vec::len) != expected || since.elapsed() < Duration::from_millis(100) {
            assert!(Instant::now() < deadline, "{under_way:?} {expected:?}");
            gateways.step().unwrap();
            clients.iter_mut().for_each(Raw::poll);
            if let Ok((stream, _)) = backend.accept() {
                stream.set_nonblocking(true).unwrap();
                streams.push((stream, Records::new(1000)));
            }
            for (stream, records) in &mut streams {
                let mut room = [0; 1000];
                if let Ok(length @ 1..) = stream.read(&mut room) {
                    records.push(&room[..length]);
                }
                while let Some(call) = records.take().unwrap() {
                    let (call, _) = CallHeader::parse(&call).unwrap();
                    under_way[call.xid as usize / 100].push(call.xid);
                    since = Instant::now();
                }
            }
            // The second client is connected: the first one's calls fall to its part.
            if under_way[0].len() > expected[0] {
                let mut message = Vec::new();
                ReplyHeader { xid: under_way[0].remove(0), verifier: Auth::NONE, status: Status::Success }
                    .encode(&mut message);
                message.extend_from_slice(&70_u32.to_be_bytes());
                streams[0].0.write_all(&record([&message[..]])).unwrap();
                since = Instant::now();
            }
        }
    }
}

/// Longer than those of any client that was told the largest WRITE.
#[test]
fn a_call_that_is_too_long_is_refused() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (ports, server) = (Ports { rdma: PORT, tcp: 2049 }, backend.local_addr().unwrap());
    let metrics = Arc::new(Metrics::of_gateway());
    let mut gateways =
        Gateways::start(&there, ports, server, Policy::default(), ClientRules::default(), metrics, 0).unwrap();
    let bindings: Vec<Arc<dyn Binding>> = vec![Arc::new(Nfs3)];
    let mut client =
        Requester::start_connect(&here, there.socket_address(PORT), bindings, RequesterOptions::default()).unwrap();
    let start = |client: &mut Requester, length| {
        let mut head = Vec::new();
        put_opaque(&mut head, b"handle");
        head.extend_from_slice(&[0; 16]);
        let arguments = vec![Part::Octets(head), Part::Octets((length as u32).to_be_bytes().to_vec())];
        let arguments = [arguments, vec![Part::Item(vec![7; length])]].concat();
        let call = Call { program: 100_003, version: 3, procedure: WRITE, arguments, ..Call::default() };
        client.start(call).unwrap()
    };
    let (long, right) = (start(&mut client, (1 << 20) + (64 << 10) + 4), start(&mut client, 1 << 20));
    let deadline = Instant::now() + LONG;
    let finished = loop {
        gateways.step().unwrap();
        if let Some(finished) = client.poll() {
            break finished;
        }
        assert!(Instant::now() < deadline);
    };
    assert_eq!(finished.id, long);
    finished.outcome.unwrap_err();
    // A client has room for at least one.
    let (mut stream, _) = backend.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut records = Records::new(2 << 20);
    let mut room = vec![0; 1 << 16];
    let record = loop {
        gateways.step().unwrap();
        assert!(client.poll().is_none(), "{right:?}");
        if let Ok(length) = stream.read(&mut room) {
            records.push(&room[..length]);
        }
        if let Some(record) = records.take().unwrap() {
            break record;
        }
        assert!(Instant::now() < deadline);
    };
    assert!(record.ends_with(&[7; 1 << 20]));
}

#[test]
fn calls_outlive_a_server_that_was_away() {
    losses::calls_outlive_a_server_that_was_away();
}

#[test]
fn each_call_is_answered_once_by_a_server_that_dies_and_comes_back() {
    losses::each_call_is_answered_once_by_a_server_that_dies_and_comes_back();
}

#[test]
fn a_client_that_comes_back_reaches_the_server_from_the_same_port() {
    losses::a_client_that_comes_back_reaches_the_server_from_the_same_port();
}

#[test]
fn a_call_that_comes_again_while_the_server_has_it_gets_the_same_reply() {
    losses::a_call_that_comes_again_while_the_server_has_it_gets_the_same_reply();
}

#[test]
fn a_call_under_rpcsec_gss_that_comes_again_reaches_the_server_again() {
    losses::a_call_under_rpcsec_gss_that_comes_again_reaches_the_server_again();
}

#[test]
fn a_call_whose_client_died_reaches_the_server_again_as_it_was() {
    losses::a_call_whose_client_died_reaches_the_server_again_as_it_was();
}
