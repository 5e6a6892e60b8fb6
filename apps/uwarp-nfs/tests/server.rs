//! A server of a directory, and clients over RDMA and over TCP in the same process.

mod raw;

use nfs3_types::mount::mountres3;
use nfs3_types::nfs3::{
    CREATE3args, CREATE3res, LOOKUP3args, LOOKUP3res, Nfs3Result, READ3args, READ3res, REMOVE3args, WRITE3args,
    WRITE3res, createhow3, diropargs3, filename3, nfs_fh3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use raw::{Raw, parse};
use std::fs::Permissions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uwarp::{Config, Context, TcpStream, TcpStreamOptions};
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::directory::procedures::number;
use uwarp_nfs::directory::{Directory, DirectoryOptions};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::records::{Records, record};
use uwarp_nfs::server::{OF_A_CALL, Ports, Server};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, OwnedAuth, ReplyHeader, Status, auth_sys, system_credential};
use uwarp_rpcrdma::walk::{Removed, Walk, split};
use uwarp_rpcrdma::xdr::{put_opaque, put_padding, put_u32};
use uwarp_vdev_tests::disk::{self, Disk, Mounted, Trouble};

/// Far longer than anything takes: only a defect makes a test wait for it.
const LONG: Duration = Duration::from_secs(60);

struct Rig {
    here: Context,
    there: Context,
    server: Server,
    metrics: Arc<Metrics>,
    folder: tempfile::TempDir,
    /// Port of the next stream: each has one of its own, which is reserved.
    next_port: u16,
}

fn packed(value: &impl Pack) -> Vec<u8> {
    let mut octets = Vec::new();
    value.pack(&mut octets).unwrap();
    octets
}

/// A call of NFS as a client over RDMA makes it.
fn call_of(procedure: u32, arguments: &impl Pack, rooms: Vec<Vec<u8>>) -> Call {
    let octets = packed(arguments);
    let mut walk = Walk::new(&octets, 0, Removed::Nothing);
    Nfs3.arguments(3, procedure, &mut walk).unwrap();
    let arguments = split(&octets, &walk.finish().unwrap(), |_| unreachable!()).unwrap();
    let credential = OwnedAuth::from(system_credential(&auth_sys(1, "client", 0, 0, &[])));
    Call { program: 100_003, version: 3, procedure, credential, arguments, rooms, ..Call::default() }
}

/// Sends what is left of some octets, as far as the stream takes it, and reads what is there.
fn exchange(stream: &mut TcpStream, octets: &[u8], sent: &mut usize, records: &mut Records) {
    if *sent < octets.len() {
        *sent += stream.write(&octets[*sent..]).unwrap_or(0);
    }
    let mut room = [0; 16 << 10];
    match stream.read(&mut room) {
        Ok(0) => panic!("the server has closed the stream"),
        Ok(count) => records.push(&room[..count]),
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    }
}

impl Rig {
    fn new(allow: &[&str]) -> Self {
        let allow = allow.iter().map(|subnet| subnet.parse().unwrap()).collect();
        Self::with_rules(ClientRules { allow, ..ClientRules::default() })
    }

    fn with_rules(rules: ClientRules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let served = folder.path().to_owned();
        Self::serving(folder, &served, rules, 1 << 30)
    }

    /// Serves a folder in `folder`, with so much memory for calls.
    fn serving(folder: tempfile::TempDir, served: &Path, rules: ClientRules, memory: u64) -> Self {
        let config = |host| {
            let config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor().inline();
            let mut config = config.another_address(format!("fd00::{host}/64").parse().unwrap());
            config.duplicate_address_detection = 0;
            uwarp_middlebox::behind(config)
        };
        let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
        let metrics = Arc::new(Metrics::default());
        let options = DirectoryOptions { read_only: false, squash_root: false };
        let directory = Directory::open(served, options, Arc::clone(&metrics)).unwrap();
        let server =
            Server::start(&there, Ports::default(), directory, Arc::clone(&metrics), rules, 2, memory).unwrap();
        Self { here, there, server, metrics, folder, next_port: 600 }
    }

    fn requester(&mut self) -> Requester {
        self.requester_to(self.there.socket_address(Ports::default().rdma))
    }

    fn requester_to(&mut self, server: SocketAddr) -> Requester {
        let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
        Requester::start_connect(&self.here, server, vec![Arc::new(Nfs3)], options).unwrap()
    }

    fn stream(&mut self, port: u16) -> TcpStream {
        self.next_port += 1;
        self.stream_from(self.next_port, self.there.socket_address(port))
    }

    fn stream_from(&mut self, local_port: u16, server: SocketAddr) -> TcpStream {
        let options = TcpStreamOptions { local_port: Some(local_port), ..TcpStreamOptions::default() };
        let mut stream = TcpStream::start_connect(&self.here, server, &options).unwrap();
        stream.set_nonblocking(true);
        self.until(|_| stream.check_connected().unwrap());
        stream
    }

    fn until<T>(&mut self, mut look: impl FnMut(&mut Server) -> Option<T>) -> T {
        let deadline = Instant::now() + LONG;
        loop {
            self.server.step().unwrap();
            self.here.poll();
            if let Some(found) = look(&mut self.server) {
                return found;
            }
            assert!(Instant::now() < deadline, "nothing comes: {:?}", self.server);
        }
    }

    /// A call over TCP: its results, or how it ended.
    fn ask(&mut self, stream: &mut TcpStream, call: (u32, u32, u32), arguments: &[u8]) -> Result<Vec<u8>, Status> {
        let mut message = Vec::new();
        let body = auth_sys(1, "client", 0, 0, &[]);
        let credential = system_credential(&body);
        let (program, version, procedure) = call;
        CallHeader { xid: 77, program, version, procedure, credential, verifier: Auth::NONE }.encode(&mut message);
        message.extend_from_slice(arguments);
        let message = record([&message[..]]);
        let (mut sent, mut records) = (0, Records::new(4 << 20));
        let reply = self.until(|_| {
            exchange(stream, &message, &mut sent, &mut records);
            records.take().unwrap()
        });
        let (header, at) = ReplyHeader::parse(&reply).unwrap();
        assert_eq!(header.xid, 77);
        if header.status == Status::Success { Ok(reply[at..].to_vec()) } else { Err(header.status) }
    }

    /// A call over RDMA.
    fn call<T: Unpack>(&mut self, client: &mut Requester, procedure: u32, arguments: &impl Pack, room: usize) -> T {
        let rooms = if room > 0 { vec![vec![0; room]] } else { vec![] };
        client.start(call_of(procedure, arguments, rooms)).unwrap();
        let reply = self.until(|_| client.poll()).outcome.unwrap();
        assert_eq!(reply.status, Status::Success);
        let mut octets = Vec::new();
        for part in &reply.results {
            octets.extend_from_slice(part.octets());
            put_padding(&mut octets, part.octets().len());
        }
        T::unpack(&mut &octets[..]).unwrap().0
    }

    /// Makes a file of this name in a directory.
    fn create(&mut self, client: &mut Requester, dir: nfs_fh3, name: &'static str) -> nfs_fh3 {
        let where_ = diropargs3 { dir, name: filename3(Opaque::borrowed(name.as_bytes())) };
        let made = CREATE3args { where_, how: createhow3::UNCHECKED(sattr3::default()) };
        let made: CREATE3res = self.call(client, number::CREATE, &made, 0);
        made.unwrap().obj.unwrap()
    }

    /// As a client mounts: asks for the port of MOUNT, and there for the root.
    /// The handle of a name.
    fn find(&mut self, stream: &mut TcpStream, dir: nfs_fh3, name: &'static str) -> nfs_fh3 {
        let what = diropargs3 { dir, name: filename3(Opaque::borrowed(name.as_bytes())) };
        let found = self.ask(stream, (100_003, 3, number::LOOKUP), &packed(&LOOKUP3args { what })).unwrap();
        let Nfs3Result::Ok(found) = LOOKUP3res::unpack(&mut &found[..]).unwrap().0 else { panic!("no {name}") };
        found.object
    }

    /// Turns until nothing has happened for so many turns; should that be too early on a slow machine, less is seen.
    fn idle(&mut self, mut look: impl FnMut() -> bool) {
        let mut idle = 0;
        while idle < 20_000 {
            idle += 1;
            if self.server.step().unwrap() | look() {
                idle = 0;
            }
            self.here.poll();
            std::thread::yield_now();
        }
    }

    fn mount(&mut self) -> nfs_fh3 {
        let mut mapper = self.stream(111);
        let mut asked = Vec::new();
        for word in [100_005, 3, 6, 0] {
            put_u32(&mut asked, word);
        }
        let port = self.ask(&mut mapper, (100_000, 2, 3), &asked).unwrap();
        let port = u32::from_be_bytes(port.try_into().unwrap());
        let mut mount = self.stream(port.try_into().unwrap());
        let mut path = Vec::new();
        put_opaque(&mut path, b"/");
        let found = self.ask(&mut mount, (100_005, 3, 1), &path).unwrap();
        match mountres3::unpack(&mut &found[..]).unwrap().0 {
            mountres3::Ok(ok) => nfs_fh3 { data: Opaque::owned(ok.fhandle.0.to_vec()) },
            mountres3::Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_client_mounts_over_tcp_and_moves_data_over_rdma() {
    let mut rig = Rig::new(&[]);
    let root = rig.mount();
    let mut client = rig.requester();
    let file = rig.create(&mut client, root, "file");
    let data: Vec<u8> = (0..700_001_u32).map(|number| (number / 3) as u8).collect();
    let write = |offset: u64, data: &[u8]| WRITE3args {
        file: file.clone(),
        offset,
        count: data.len() as u32,
        stable: stable_how::UNSTABLE,
        data: Opaque::owned(data.to_vec()),
    };
    for (offset, piece) in [(300_000, &data[300_000..]), (0, &data[..300_000])] {
        let done: WRITE3res = rig.call(&mut client, number::WRITE, &write(offset, piece), 0);
        assert_eq!(done.unwrap().count as usize, piece.len());
    }
    assert!(std::fs::read(rig.folder.path().join("file")).unwrap() == data);
    let read = READ3args { file, offset: 1, count: 1 << 20 };
    let got: READ3res<'static> = rig.call(&mut client, number::READ, &read, 1 << 20);
    let got = got.unwrap();
    assert!(got.eof && got.data.as_ref() == &data[1..]);
    // The same over TCP.
    let mut stream = rig.stream(2049);
    let found = rig.ask(&mut stream, (100_003, 3, number::READ), &packed(&read)).unwrap();
    let Nfs3Result::Ok(over_tcp) = READ3res::unpack(&mut &found[..]).unwrap().0 else { panic!("no READ") };
    assert!(over_tcp.data.as_ref() == &data[1..]);
    let written = rig.metrics.written.load(Ordering::Relaxed);
    assert_eq!(written, 700_001);
    // It lets them go, and says so to them.
    rig.server.dismiss();
    rig.until(|server| {
        assert!(client.poll().is_none());
        (server.rdma_clients() == 0).then_some(())
    });
}

#[test]
fn what_was_carried_out_before_the_end_is_answered() {
    const SIZE: usize = 300_000;
    const CALLS: u64 = 20;
    let mut rig = Rig::new(&[]);
    let dir = rig.mount();
    let mut client = rig.requester();
    let file = rig.create(&mut client, dir, "file");
    // Each waits for the disk, so that some are under way when the first is answered.
    for index in 0..CALLS {
        let (data, offset) = (Opaque::owned(vec![7; SIZE]), index * SIZE as u64);
        let stable = stable_how::FILE_SYNC;
        let write = WRITE3args { file: file.clone(), offset, count: SIZE as u32, stable, data };
        client.start(call_of(number::WRITE, &write, vec![])).unwrap();
    }
    let first = rig.until(|_| client.poll());
    assert_eq!(first.outcome.unwrap().status, Status::Success);
    // Stopping takes a thread of its own here; the engines stay with this one.
    let Rig { here, there, server, folder, metrics, .. } = rig;
    let stopping = std::thread::spawn(move || server.stop(LONG));
    let deadline = Instant::now() + LONG;
    let (mut finished, mut answered) = (1, 1);
    while finished < CALLS || !stopping.is_finished() {
        here.poll();
        there.poll();
        // What had not come to the server is for the client to send to another one.
        if let Some(call) = client.poll() {
            finished += 1;
            answered += u64::from(call.outcome.is_ok());
        }
        assert!(Instant::now() < deadline, "{finished} finished, {answered} answered: {client:?}");
    }
    stopping.join().unwrap();
    assert_eq!(metrics.written.load(Ordering::Relaxed), answered * SIZE as u64);
    assert!(std::fs::metadata(folder.path().join("file")).unwrap().len() >= answered * SIZE as u64);
}

/// RFC 1813 §4.5: the server's work is done once, whatever becomes of the connection.
#[test]
fn a_call_whose_client_died_before_its_reply_is_known_on_the_next_connection() {
    let mut rig = Rig::new(&[]);
    let dir = rig.mount();
    std::fs::write(rig.folder.path().join("file"), "data").unwrap();
    let object = diropargs3 { dir, name: filename3(Opaque::borrowed(b"file")) };
    let arguments = packed(&REMOVE3args { object });
    let (here, peer) = (rig.here.clone(), rig.there.socket_address(Ports::default().rdma));
    let carried_out = |rig: &Rig, times: u32| {
        let text = rig.metrics.text();
        text.contains(&format!("uwarp_nfs_calls_total{{procedure=\"remove\"}} {times}\n"))
    };
    let connect = |rig: &mut Rig| Raw::connect(&here, peer, || _ = rig.server.step().unwrap());
    let ask = |rig: &mut Rig, client: &mut Raw, xid| {
        client.call(xid, number::REMOVE, &arguments);
        rig.until(|_| {
            client.poll();
            let message = client.messages.pop()?;
            let (header, results) = parse(&message);
            assert_eq!((header.xid, header.status), (xid, Status::Success));
            Some(u32::from_be_bytes(results[..4].try_into().unwrap()))
        })
    };
    let mut first = connect(&mut rig);
    first.call(7, number::REMOVE, &arguments);
    // The server alone goes on. The client's engine does not even see that the reply has come.
    let deadline = Instant::now() + LONG;
    while !carried_out(&rig, 1) {
        rig.server.step().unwrap();
        assert!(Instant::now() < deadline);
    }
    assert!(!rig.folder.path().join("file").exists() && first.messages.is_empty());
    drop(first);
    let mut second = connect(&mut rig);
    assert_eq!(ask(&mut rig, &mut second, 7), 0, "what it was told in vain");
    assert!(carried_out(&rig, 1));
    assert_eq!(rig.metrics.duplicates.load(Ordering::Relaxed), 1);
    assert_eq!(ask(&mut rig, &mut second, 8), 2, "NFS3ERR_NOENT: another call");
    assert_eq!(rig.metrics.rdma_clients.load(Ordering::Relaxed), 2);
}

/// Arguments of a WRITE to the beginning of a file.
fn write_of(file: &nfs_fh3, data: &[u8]) -> Vec<u8> {
    let (count, stable) = (data.len() as u32, stable_how::FILE_SYNC);
    packed(&WRITE3args { file: file.clone(), offset: 0, count, stable, data: Opaque::borrowed(data) })
}

/// Two pieces of data that differ in octet 300 only.
fn two_alike() -> [Vec<u8>; 2] {
    let (first, mut second) = (vec![7; 512], vec![7; 512]);
    second[300] = 8;
    [first, second]
}

/// Clients may come to an XID again, and choose their XIDs as they like.
#[test]
fn writes_over_rdma_of_one_xid_that_differ_late_in_their_data_are_both_written() {
    for chunked in [false, true] {
        let mut rig = Rig::new(&[]);
        let path = rig.folder.path().join("file");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let dir = rig.mount();
        let mut stream = rig.stream(2049);
        let file = rig.find(&mut stream, dir, "file");
        let (here, peer) = (rig.here.clone(), rig.there.socket_address(Ports::default().rdma));
        let connect = |rig: &mut Rig| Raw::connect(&here, peer, || _ = rig.server.step().unwrap());
        let write = |rig: &mut Rig, client: &mut Raw, uid, data: &[u8]| {
            let arguments = write_of(&file, data);
            let (inline, chunk) = arguments.split_at(arguments.len() - if chunked { data.len() } else { 0 });
            let body = auth_sys(1, "client", uid, 0, &[]);
            client.call_with_chunk(7, number::WRITE, system_credential(&body), inline, chunk);
            let message = rig.until(|_| {
                client.poll();
                client.messages.pop()
            });
            let (header, results) = parse(&message);
            assert_eq!((header.xid, header.status, &results[..4]), (7, Status::Success, &[0; 4][..]));
        };
        let duplicates = |rig: &Rig| rig.metrics.duplicates.load(Ordering::Relaxed);
        let mut client = connect(&mut rig);
        let [first, second] = two_alike();
        for data in [&first, &second] {
            write(&mut rig, &mut client, 0, data);
            assert!(std::fs::read(&path).unwrap() == *data, "chunked: {chunked}");
        }
        assert_eq!(duplicates(&rig), 0);
        // One that comes again, over another connection, is answered and not carried out.
        drop(client);
        let mut client = connect(&mut rig);
        std::fs::write(&path, "written later by somebody else").unwrap();
        write(&mut rig, &mut client, 0, &second);
        assert_eq!(std::fs::read(&path).unwrap(), b"written later by somebody else");
        assert_eq!(duplicates(&rig), 1);
        // Another user's is another call.
        write(&mut rig, &mut client, 1000, &second);
        assert!(std::fs::read(&path).unwrap() == second);
        assert_eq!(duplicates(&rig), 1);
    }
}

#[test]
fn writes_over_tcp_of_one_xid_that_differ_late_in_their_data_are_both_written() {
    let mut rig = Rig::new(&[]);
    let path = rig.folder.path().join("file");
    std::fs::write(&path, "").unwrap();
    let dir = rig.mount();
    let mut stream = rig.stream(2049);
    let file = rig.find(&mut stream, dir, "file");
    let write = |rig: &mut Rig, stream: &mut TcpStream, data: &[u8]| {
        let results = rig.ask(stream, (100_003, 3, number::WRITE), &write_of(&file, data)).unwrap();
        assert_eq!(results[..4], [0; 4]);
    };
    let duplicates = |rig: &Rig| rig.metrics.duplicates.load(Ordering::Relaxed);
    let [first, second] = two_alike();
    for data in [&first, &second] {
        write(&mut rig, &mut stream, data);
        assert!(std::fs::read(&path).unwrap() == *data);
    }
    assert_eq!(duplicates(&rig), 0);
    std::fs::write(&path, "written later by somebody else").unwrap();
    write(&mut rig, &mut stream, &second);
    assert_eq!(std::fs::read(&path).unwrap(), b"written later by somebody else", "the call came again");
    assert_eq!(duplicates(&rig), 1);
    // Two programs of one host may choose the same XIDs.
    let mut other = rig.stream(2049);
    write(&mut rig, &mut other, &second);
    assert!(std::fs::read(&path).unwrap() == second);
    assert_eq!(duplicates(&rig), 1);
}

#[test]
fn a_client_that_takes_no_replies_is_not_read_from() {
    const CALLS: u32 = 400;
    const SIZE: u32 = 64 << 10;
    let mut rig = Rig::new(&[]);
    std::fs::write(rig.folder.path().join("file"), vec![7; SIZE as usize]).unwrap();
    let dir = rig.mount();
    let mut stream = rig.stream(2049);
    let object = rig.find(&mut stream, dir, "file");
    let read = packed(&READ3args { file: object, offset: 0, count: SIZE });
    let body = auth_sys(1, "client", 0, 0, &[]);
    let mut messages = Vec::new();
    for xid in 0..CALLS {
        let mut message = Vec::new();
        let credential = system_credential(&body);
        let procedure = number::READ;
        CallHeader { xid, program: 100_003, version: 3, procedure, credential, verifier: Auth::NONE }
            .encode(&mut message);
        // Every other one is refused as it stands, which costs a reply, too.
        message.extend_from_slice(if xid % 2 == 0 { &read } else { &[9; 4] });
        messages.extend(record([&message[..]]));
    }
    let mut sent = 0;
    rig.idle(|| {
        let count = if sent < messages.len() { stream.write(&messages[sent..]).unwrap_or(0) } else { 0 };
        sent += count;
        count > 0
    });
    let octets = rig.metrics.read.load(Ordering::Relaxed);
    assert!(octets < u64::from(CALLS / 2 * SIZE) / 2, "{octets} octets are kept for a client that does not want them");
    // It gets all of them when it takes them.
    let (mut records, mut replies) = (Records::new(4 << 20), 0);
    rig.until(|_| {
        exchange(&mut stream, &messages, &mut sent, &mut records);
        while records.take().unwrap().is_some() {
            replies += 1;
        }
        (replies == CALLS).then_some(())
    });
}

/// What many clients over TCP have under way is bounded by the memory that there is for all of them.
#[test]
fn clients_over_tcp_share_the_memory_for_calls() {
    const CALLS: u32 = 12;
    const SIZE: u32 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().to_owned();
    // Of one call, and each has one.
    let mut rig = Rig::serving(folder, &served, ClientRules::default(), 1);
    std::fs::write(served.join("file"), vec![7; SIZE as usize]).unwrap();
    let dir = rig.mount();
    let mut streams = [(); 3].map(|()| rig.stream(2049));
    let file = rig.find(&mut streams[0], dir, "file");
    let mut messages = Vec::new();
    for xid in 0..CALLS {
        let mut message = Vec::new();
        let credential = system_credential(&[0; 20]);
        CallHeader { xid, program: 100_003, version: 3, procedure: number::READ, credential, verifier: Auth::NONE }
            .encode(&mut message);
        message.extend_from_slice(&packed(&READ3args { file: file.clone(), offset: 0, count: SIZE }));
        messages.extend(record([&message[..]]));
    }
    let mut sent = [0; 3];
    rig.idle(|| {
        let mut count = 0;
        for (stream, sent) in streams.iter_mut().zip(&mut sent) {
            let more = if *sent < messages.len() { stream.write(&messages[*sent..]).unwrap_or(0) } else { 0 };
            *sent += more;
            count += more;
        }
        count > 0
    });
    let octets = rig.metrics.read.load(Ordering::Relaxed);
    // One reply waits, and the stream's buffers may hold another one.
    assert!(octets <= 3 * 2 * u64::from(SIZE), "{octets} octets are kept for clients that do not want them");
    for (stream, sent) in streams.iter_mut().zip(&mut sent) {
        let (mut records, mut replies) = (Records::new(4 << 20), 0);
        rig.until(|_| {
            exchange(stream, &messages, sent, &mut records);
            while records.take().unwrap().is_some() {
                replies += 1;
            }
            (replies == CALLS).then_some(())
        });
    }
}

/// A thread of the server's waits for the disk: a test that fails must not wait for that thread.
struct Stuck<'a>(&'a Mounted);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.set_trouble(None);
    }
}

/// Calls of clients who have left go on, and hold their memory: who comes and goes faster than the disk is kept waiting.
#[test]
fn nobody_is_let_in_while_those_who_left_have_all_the_memory() {
    const NAME: &str = "nobody_is_let_in_while_those_who_left_have_all_the_memory";
    uwarp_netns::test_among_own_mounts(NAME, || {
        let folder = tempfile::tempdir().unwrap();
        let (platter, mountpoint) = (folder.path().join("platter"), folder.path().join("mountpoint"));
        std::fs::write(&platter, "........").unwrap();
        std::fs::create_dir(&mountpoint).unwrap();
        let disk = Disk { platter, mountpoint: mountpoint.clone(), deceitful: false };
        let mounted = disk.mount().unwrap();
        let mut rig = Rig::serving(folder, &mountpoint, ClientRules::default(), 2 * OF_A_CALL);
        let dir = rig.mount();
        let mut stream = rig.stream(2049);
        let file = rig.find(&mut stream, dir, disk::NAME);
        mounted.set_trouble(Some(Trouble::Stuck));
        let stuck = Stuck(&mounted);
        let (here, peer) = (rig.here.clone(), rig.there.socket_address(Ports::default().rdma));
        let first = Raw::connect(&here, peer, || _ = rig.server.step().unwrap());
        let write =
            WRITE3args { file, offset: 0, count: 4, stable: stable_how::FILE_SYNC, data: Opaque::borrowed(b"data") };
        // There is memory for two calls: for this one, and for the same when it comes again.
        let write = packed(&write);
        for mut client in [first, Raw::connect(&here, peer, || _ = rig.server.step().unwrap())] {
            client.call(7, number::WRITE, &write);
            rig.idle(|| false);
            drop(client);
        }
        rig.until(|server| (server.rdma_clients() == 0).then_some(()));
        assert_eq!(rig.metrics.duplicates.load(Ordering::Relaxed), 1);
        let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
        let mut second = Requester::start_connect(&here, peer, vec![Arc::new(Nfs3)], options).unwrap();
        rig.idle(|| false);
        let (clients, durable) = (rig.server.rdma_clients(), std::fs::read(&disk.platter).unwrap());
        drop(stuck);
        assert_eq!((clients, &durable[..]), (0, &b"........"[..]));
        rig.until(|server| (server.rdma_clients() == 1).then_some(()));
        assert_eq!(std::fs::read(&disk.platter).unwrap(), b"data....");
        _ = second.poll();
    });
}

/// A port below 1024 is root's on the client, who vouches for the users that the calls name.
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
        // What anybody may ask: whether a program is there, what is exported, and on which ports.
        for call in [(100_003, 3, 0), (100_005, 3, 0), (100_005, 3, 2), (100_005, 3, 5), (100_000, 2, 4)] {
            assert!(rig.ask(&mut stream, call, &[]).is_ok(), "{call:?} from {port}");
        }
    }
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
    // Over TCP as many again.
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
    // One that goes makes room for the next.
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

#[test]
fn what_is_no_call_of_its_programs_is_refused() {
    let mut rig = Rig::new(&["10.0.0.0/24"]);
    let mut stream = rig.stream(2049);
    for (call, expected) in [
        ((100_003, 4, 0), Status::ProgramMismatch { low: 3, high: 3 }),
        ((100_005, 1, 0), Status::ProgramMismatch { low: 3, high: 3 }),
        ((100_000, 9, 0), Status::ProgramMismatch { low: 2, high: 4 }),
        ((100_227, 3, 0), Status::ProgramUnavailable),
        ((100_003, 3, 99), Status::ProcedureUnavailable),
        ((100_003, 3, number::WRITE), Status::GarbageArguments),
        ((100_003, 3, number::LOOKUP), Status::GarbageArguments),
    ] {
        assert_eq!(rig.ask(&mut stream, call, &[]), Err(expected), "{call:?}");
    }
    for program in [100_003, 100_005, 100_000] {
        assert_eq!(rig.ask(&mut stream, (program, 3, 0), &[]), Ok(vec![]), "null");
    }
    // What is no RPC ends the stream, and a record without end too.
    for wrong in [&record([&[9; 40][..]])[..], &[0x7f, 0xff, 0xff, 0xff]] {
        let mut stream = rig.stream(2049);
        let (mut sent, mut room) = (false, [0; 10]);
        rig.until(|_| {
            sent = sent || stream.write(wrong).unwrap() == wrong.len();
            match stream.read(&mut room) {
                Ok(0) => Some(()),
                Ok(_) => panic!("an answer"),
                Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(()),
            }
        });
    }
}

#[test]
fn clients_of_other_subnets_are_kept_out() {
    let mut rig = Rig::new(&["10.9.0.0/16"]);
    let mut client = rig.requester();
    client.start(Call { program: 100_003, version: 3, ..Call::default() }).unwrap();
    assert!(rig.until(|_| client.poll()).outcome.is_err());
    let mut stream = rig.stream(111);
    let mut room = [0; 10];
    rig.until(|_| match stream.read(&mut room) {
        Ok(0) => Some(()),
        Ok(_) => panic!("an answer"),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then_some(()),
    });
    assert_eq!(rig.metrics.not_allowed.load(Ordering::Relaxed), 2);
    assert_eq!(rig.server.rdma_clients(), 0);
}
