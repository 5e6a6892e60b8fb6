//! A client over RDMA, the gateway, and an NFS server of somebody else's behind it.

mod raw;

use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp as _, NFSTcpListener};
use nfs3_types::nfs3::{
    CREATE3args, CREATE3resfail, CREATE3resok, GETATTR3args, LOOKUP3args, LOOKUP3resfail, LOOKUP3resok, Nfs3Option,
    Nfs3Result, READ3args, READ3resfail, READ3resok, READDIR3args, READDIR3resfail, READDIR3resok, WRITE3args,
    WRITE3resfail, WRITE3resok, cookieverf3, createhow3, diropargs3, nfs_fh3, nfsstat3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use raw::{Raw, parse};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{Config, Context, ListenOptions, Listener};
use uwarp_nfs::gateway::{Gateway, PORT, Policy};
use uwarp_nfs::gateways::{Gateways, OF_A_CALL, Ports};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::records::{Records, record};
use uwarp_rpcrdma::binding::{Binding, Greatest};
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::requester::{Call, CallId, Finished, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Common, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, OwnedAuth, ReplyHeader, Status, auth_sys, system_credential};
use uwarp_rpcrdma::walk::{Part, Removed, Walk, split};
use uwarp_rpcrdma::xdr::{put_opaque, put_padding};

/// Far longer than anything takes: only a defect makes a test wait for it.
const LONG: Duration = Duration::from_secs(60);

const GETATTR: u32 = 1;
const LOOKUP: u32 = 3;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const REMOVE: u32 = 12;
const RENAME: u32 = 14;
const READDIR: u32 = 16;
const FSINFO: u32 = 19;

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

/// A server with one large file and many small ones. It ends with the process.
fn server() -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut config = MemFsConfig::default();
            config.add_file("/large", pattern(1, 3_000_001));
            for number in 0..300 {
                config.add_file(&format!("/file-{number:03}"), vec![0; number]);
            }
            let listener = NFSTcpListener::bind("127.0.0.1:0", MemFs::new(config).unwrap()).await.unwrap();
            sender.send(listener.get_listen_port()).unwrap();
            listener.handle_forever().await.unwrap();
        });
    });
    SocketAddr::from(([127, 0, 0, 1], receiver.recv().unwrap()))
}

/// The handle of the export's root, by the MOUNT protocol as a client asks for it: over TCP, of the server itself.
fn root(server: SocketAddr) -> nfs_fh3 {
    let mut call = Vec::new();
    CallHeader { xid: 7, program: 100_005, version: 3, procedure: 1, credential: Auth::NONE, verifier: Auth::NONE }
        .encode(&mut call);
    put_opaque(&mut call, b"/");
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(&(1 << 31 | call.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(&call).unwrap();
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).unwrap();
    let (header, at) = ReplyHeader::parse(&record).unwrap();
    assert_eq!(header.status, Status::Success);
    assert_eq!(record[at..at + 4], [0; 4], "MNT3_OK");
    nfs_fh3 { data: Opaque::owned(Opaque::unpack(&mut &record[at + 4..]).unwrap().0.as_ref().to_vec()) }
}

struct Rig {
    client: Requester,
    there: Context,
    listener: Listener,
    server: SocketAddr,
    policy: Policy,
    metrics: Arc<Metrics>,
    gateways: Vec<Gateway>,
}

fn config(host: u8) -> Config {
    let config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor().inline();
    uwarp_middlebox::behind(config)
}

impl Rig {
    fn new(server: SocketAddr, policy: Policy) -> Self {
        let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
        Self::between(&here, &there, server, policy)
    }

    fn between(here: &Context, there: &Context, server: SocketAddr, policy: Policy) -> Self {
        let listener = there.listen(PORT, ListenOptions::default()).unwrap();
        let bindings: Vec<Arc<dyn Binding>> = vec![Arc::new(Nfs3)];
        let client =
            Requester::start_connect(here, there.socket_address(PORT), bindings, RequesterOptions::default()).unwrap();
        Self {
            client,
            there: there.clone(),
            listener,
            server,
            policy,
            metrics: Arc::new(Metrics::of_gateway()),
            gateways: Vec::new(),
        }
    }

    fn step(&mut self) {
        if let Some(request) = self.listener.try_next().unwrap() {
            let bindings: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Nfs3)]);
            let (options, common) = (ResponderOptions::default(), Arc::new(Common::default()));
            let responder = Responder::accept(&self.there, request, bindings, options, common).unwrap();
            self.gateways.push(Gateway::new(responder, self.server, self.policy, Arc::clone(&self.metrics)));
        }
        self.gateways.retain_mut(|gateway| gateway.step().is_ok());
    }

    fn start(&mut self, procedure: u32, arguments: &impl Pack, rooms: Vec<Vec<u8>>) -> CallId {
        let mut octets = Vec::new();
        arguments.pack(&mut octets).unwrap();
        let mut walk = Walk::new(&octets, 0, Removed::Nothing);
        Nfs3.arguments(3, procedure, &mut walk).unwrap();
        let items = walk.finish().unwrap();
        let arguments = split(&octets, &items, |_| unreachable!()).unwrap();
        let credential = OwnedAuth::from(system_credential(&auth_sys(1, "client", 0, 0, &[])));
        let call = Call { program: 100_003, version: 3, procedure, credential, arguments, rooms, ..Call::default() };
        self.client.start(call).unwrap()
    }

    fn finished(&mut self) -> Finished {
        let deadline = Instant::now() + LONG;
        loop {
            self.step();
            if let Some(finished) = self.client.poll() {
                return finished;
            }
            assert!(Instant::now() < deadline, "no end: {:?} {:?}", self.client, self.client.stats());
        }
    }

    /// Calls, and gives the results as the types of somebody else read them.
    fn call<T: Unpack>(&mut self, procedure: u32, arguments: &impl Pack, rooms: Vec<Vec<u8>>) -> T {
        let id = self.start(procedure, arguments, rooms);
        let finished = self.finished();
        assert_eq!(finished.id, id);
        read_results(finished)
    }

    fn lookup(&mut self, root: &nfs_fh3, name: &str) -> nfs_fh3 {
        let what = diropargs3 { dir: root.clone(), name: name.as_bytes().to_vec().into() };
        match self.call(LOOKUP, &LOOKUP3args { what }, vec![]) {
            Nfs3Result::<LOOKUP3resok, LOOKUP3resfail>::Ok(found) => found.object,
            Nfs3Result::Err((status, _)) => panic!("{name}: {status:?}"),
        }
    }

    /// Reads a file in pieces, as a client does that mounted with that rsize.
    fn read(&mut self, file: &nfs_fh3, size: u32, reduced: bool) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let arguments = READ3args { file: file.clone(), offset: out.len() as u64, count: size };
            let rooms = if reduced { vec![vec![0; size as usize]] } else { vec![] };
            let Nfs3Result::<READ3resok<'static>, READ3resfail>::Ok(piece) = self.call(READ, &arguments, rooms) else {
                panic!("no READ");
            };
            out.extend_from_slice(piece.data.as_ref());
            if piece.eof {
                return out;
            }
        }
    }
}

fn read_results<T: Unpack>(finished: Finished) -> T {
    let reply = finished.outcome.unwrap();
    assert_eq!(reply.status, Status::Success);
    let mut octets = Vec::new();
    for part in &reply.results {
        octets.extend_from_slice(part.octets());
        put_padding(&mut octets, part.octets().len());
    }
    let (results, length) = T::unpack(&mut &octets[..]).unwrap();
    assert_eq!(length, octets.len(), "nothing is left over");
    results
}

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
    // Into Write chunks, in a long reply, and within messages.
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
    // Nor under RPCSEC_GSS, which any client may say that it uses.
    let unreadable = OwnedAuth { flavor: 6, body: Vec::new() };
    for credential in [gss(2), gss(3), unreadable] {
        let mut octets = Vec::new();
        arguments.pack(&mut octets).unwrap();
        let arguments = vec![Part::Octets(octets)];
        let greatest = Some(Greatest::of(1000));
        let call =
            Call { program: 100_003, version: 3, procedure: WRITE, credential, arguments, greatest, ..Call::default() };
        rig.client.start(call).unwrap();
        assert_eq!(rig.finished().outcome.unwrap().status, Status::AuthError(5));
    }
    let large = rig.lookup(&root, "large");
    assert!(rig.read(&large, 1 << 20, true) == before);
}

/// The gateway's connection to the server.
fn accepted(rig: &mut Rig, backend: &TcpListener) -> TcpStream {
    backend.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + LONG;
    loop {
        rig.step();
        assert!(rig.client.poll().is_none());
        if let Ok((stream, _)) = backend.accept() {
            return stream;
        }
        assert!(Instant::now() < deadline);
    }
}

/// The next record that the server gets.
fn received(rig: &mut Rig, stream: &mut TcpStream) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + LONG;
    let mut record = Vec::new();
    let mut room = [0; 100_000];
    loop {
        // Nothing of the next record.
        let mark = record.first_chunk().map(|mark| (u32::from_be_bytes(*mark) & 0x7fff_ffff) as usize);
        let missing = mark.map_or(4, |length| 4 + length) - record.len();
        if missing == 0 {
            return record.split_off(4);
        }
        rig.step();
        assert!(rig.client.poll().is_none());
        if let Ok(count) = stream.read(&mut room[..missing.min(100_000)]) {
            record.extend_from_slice(&room[..count]);
        }
        assert!(Instant::now() < deadline);
    }
}

fn reply(stream: &mut TcpStream, message: &[u8]) {
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&(1 << 31 | message.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(message).unwrap();
}

/// A reply of NFS3ERR_STALE.
fn reply_stale(stream: &mut TcpStream, xid: u32) {
    let mut message = Vec::new();
    ReplyHeader { xid, verifier: Auth::NONE, status: Status::Success }.encode(&mut message);
    message.extend_from_slice(&70_u32.to_be_bytes());
    reply(stream, &message);
}

/// The first record that comes by one of these, which is taken out.
fn first_received(rig: &mut Rig, streams: &mut Vec<TcpStream>) -> (Vec<u8>, TcpStream) {
    let deadline = Instant::now() + LONG;
    loop {
        rig.step();
        for index in 0..streams.len() {
            streams[index].set_nonblocking(true).unwrap();
            if streams[index].peek(&mut [0]).is_ok() {
                let mut stream = streams.swap_remove(index);
                return (received(rig, &mut stream), stream);
            }
        }
        assert!(Instant::now() < deadline);
    }
}

/// A credential of RPCSEC_GSS (RFC 2203 §5.3.1): data, with this service.
fn gss(service: u32) -> OwnedAuth {
    let mut body = Vec::new();
    for word in [1, 0, 4711, service] {
        body.extend_from_slice(&u32::to_be_bytes(word));
    }
    put_opaque(&mut body, b"context");
    OwnedAuth { flavor: 6, body }
}

#[test]
fn calls_under_rpcsec_gss_go_through_as_they_are() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let mut stream = None;
    // Integrity and privacy: nothing but the two ends can read the arguments, so these need not even be any of a WRITE.
    for (service, length) in [(2, 40), (3, 100_000)] {
        let wrapped = pattern(service.into(), length);
        let verifier = OwnedAuth { flavor: 6, body: pattern(7, 28) };
        let call = Call {
            program: 100_003,
            version: 3,
            procedure: WRITE,
            credential: gss(service),
            verifier: verifier.clone(),
            arguments: vec![Part::Octets(wrapped.clone())],
            greatest: Some(Greatest::of(1000)),
            ..Call::default()
        };
        let id = rig.client.start(call).unwrap();
        let stream = stream.get_or_insert_with(|| accepted(&mut rig, &backend));
        let record = received(&mut rig, stream);
        let (call, at) = CallHeader::parse(&record).unwrap();
        assert_eq!((call.program, call.version, call.procedure), (100_003, 3, WRITE));
        assert_eq!((OwnedAuth::from(call.credential), OwnedAuth::from(call.verifier)), (gss(service), verifier));
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

#[test]
fn calls_outlive_a_server_that_was_away() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"handle") };
    let id = rig.start(GETATTR, &GETATTR3args { object: file }, vec![]);
    let mut xids = Vec::new();
    for round in 0..3 {
        // It takes the call, and twice it goes without an answer.
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

/// The server dies with a call that it has half of, with one that it has answered, and with one that it has half answered, and
/// again with a call left over.
#[test]
fn each_call_is_answered_once_by_a_server_that_dies_and_comes_back() {
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
    // Longer than what the kernel holds: the gateway is in the middle of it.
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
    // Its host resets the connection, since it leaves octets unread, and its port is nobody's for a while.
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
    // The second one is done first, and said to be done twice; the other is left over again.
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

/// All of a call's memory is bounded, and so is what a server may be asked for.
#[test]
fn no_more_is_asked_for_than_a_reply_may_have() {
    const MOST: u32 = 1 << 20;
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::new(backend.local_addr().unwrap(), Policy::default());
    let file = nfs_fh3 { data: Opaque::borrowed(b"odd-handle") };
    let mut fsinfo = Vec::new();
    put_opaque(&mut fsinfo, b"odd-handle");
    // The server's words, without attributes and with some, and what becomes of them.
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
    // One that sends more all the same: its reply is not waited for again and again, and those to others are.
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

/// Four calls: a client's alone, or two of each. What else they have sent waits.
#[test]
fn clients_have_equal_parts_of_the_memory_for_calls() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    backend.set_nonblocking(true).unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (ports, server) = (Ports { rdma: PORT, tcp: 2049 }, backend.local_addr().unwrap());
    let metrics = Arc::new(Metrics::of_gateway());
    let mut gateways =
        Gateways::start(&there, ports, server, Policy::default(), vec![], metrics, 4 * OF_A_CALL + 1).unwrap();
    let peer = there.socket_address(PORT);
    let mut arguments = Vec::new();
    put_opaque(&mut arguments, b"handle");
    let mut streams: Vec<(TcpStream, Records)> = Vec::new();
    let mut clients: Vec<Raw> = Vec::new();
    // XIDs of calls that the server has and has not answered, by client.
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
            // The second client is here: the first one's come down to its part.
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

/// Linux' own server knows calls again by the port that they come from, too.
#[test]
fn a_client_that_comes_back_reaches_the_server_from_the_same_port() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    backend.set_nonblocking(true).unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (ports, server) = (Ports { rdma: PORT, tcp: 2049 }, backend.local_addr().unwrap());
    let metrics = Arc::new(Metrics::of_gateway());
    let mut gateways = Gateways::start(&there, ports, server, Policy::default(), vec![], metrics, 1 << 30).unwrap();
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

/// Longer ones than any client sends that was told how long a WRITE may be.
#[test]
fn a_call_that_is_too_long_is_refused() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let (ports, server) = (Ports { rdma: PORT, tcp: 2049 }, backend.local_addr().unwrap());
    let metrics = Arc::new(Metrics::of_gateway());
    let mut gateways = Gateways::start(&there, ports, server, Policy::default(), vec![], metrics, 0).unwrap();
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
    // A client has room for one at least.
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
fn a_call_that_comes_again_while_the_server_has_it_gets_the_same_reply() {
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
    // Another call with the same number cannot be told from it.
    getattr(b"two");
    while raw.messages.is_empty() {
        rig.step();
        raw.poll();
        assert!(Instant::now() < deadline);
    }
    assert_eq!(parse(&raw.messages.remove(0)).0.status, Status::SystemError);
    // The connection of the other client is there too.
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

/// The server's own cache of replies is all that there is, and has to know the call by its XID: by nothing else here can it.
#[test]
fn a_call_whose_client_died_reaches_the_server_again_as_it_was() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
    let mut rig = Rig::between(&here, &there, backend.local_addr().unwrap(), Policy::default());
    let mut arguments = Vec::new();
    put_opaque(&mut arguments, b"directory");
    put_opaque(&mut arguments, b"name");
    let peer = there.socket_address(PORT);
    let mut first = Raw::connect(&here, peer, || rig.step());
    first.call(7, REMOVE, &arguments);
    // The connection of the other client is there too.
    let mut streams = vec![accepted(&mut rig, &backend), accepted(&mut rig, &backend)];
    let (record, mut stream) = first_received(&mut rig, &mut streams);
    // The server has done it and says so, and nobody hears that.
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
