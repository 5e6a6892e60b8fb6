//! A server of a directory, and clients over RDMA and over TCP in the same process.

use nfs3_types::mount::mountres3;
use nfs3_types::nfs3::{
    CREATE3args, CREATE3res, LOOKUP3args, LOOKUP3res, Nfs3Result, createhow3, diropargs3, filename3, nfs_fh3, sattr3,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{Config, Context, TcpStream, TcpStreamOptions};
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::directory::number;
use uwarp_nfs::directory::{Directory, DirectoryOptions};
use uwarp_nfs::metrics::Metrics;
use uwarp_nfs::records::{Records, record};
use uwarp_nfs::server::{Ports, Server};
use uwarp_rpcrdma::binding::Binding as _;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, OwnedAuth, ReplyHeader, Status, auth_sys, system_credential};
use uwarp_rpcrdma::walk::{Removed, Walk, split};
use uwarp_rpcrdma::xdr::{put_opaque, put_padding, put_u32};

/// Far longer than anything takes: only a defect makes a test wait this long.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Rig {
    pub here: Context,
    pub there: Context,
    pub server: Server,
    pub metrics: Arc<Metrics>,
    pub folder: tempfile::TempDir,
    /// Port of the next stream: each has its own, which is reserved.
    next_port: u16,
}

pub fn packed(value: &impl Pack) -> Vec<u8> {
    let mut octets = Vec::new();
    value.pack(&mut octets).unwrap();
    octets
}

/// An NFS call, as a client over RDMA makes it.
pub fn call_of(procedure: u32, arguments: &impl Pack, rooms: Vec<Vec<u8>>) -> Call {
    let octets = packed(arguments);
    let mut walk = Walk::new(&octets, 0, Removed::Nothing);
    Nfs3.arguments(3, procedure, &mut walk).unwrap();
    let arguments = split(&octets, &walk.finish().unwrap(), |_| unreachable!()).unwrap();
    let credential = OwnedAuth::from(system_credential(&auth_sys(1, "client", 0, 0, &[])));
    Call { program: 100_003, version: 3, procedure, credential, arguments, rooms, ..Call::default() }
}

/// Sends the remaining octets, as far as the stream accepts them, and reads what is there.
pub fn exchange(stream: &mut TcpStream, octets: &[u8], sent: &mut usize, records: &mut Records) {
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
    pub fn new(allow: &[&str]) -> Self {
        let allow = allow.iter().map(|subnet| subnet.parse().unwrap()).collect();
        Self::with_rules(ClientRules { allow, ..ClientRules::default() })
    }

    pub fn with_rules(rules: ClientRules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let served = folder.path().to_owned();
        Self::serving(folder, &served, rules, 1 << 30)
    }

    /// Serves a directory in `folder`, with `memory` octets for calls.
    pub fn serving(folder: tempfile::TempDir, served: &Path, rules: ClientRules, memory: u64) -> Self {
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

    pub fn requester(&mut self) -> Requester {
        self.requester_to(self.there.socket_address(Ports::default().rdma))
    }

    pub fn requester_to(&mut self, server: SocketAddr) -> Requester {
        let options = RequesterOptions { reconnect: Duration::ZERO, ..RequesterOptions::default() };
        Requester::start_connect(&self.here, server, vec![Arc::new(Nfs3)], options).unwrap()
    }

    pub fn stream(&mut self, port: u16) -> TcpStream {
        self.next_port += 1;
        self.stream_from(self.next_port, self.there.socket_address(port))
    }

    pub fn stream_from(&mut self, local_port: u16, server: SocketAddr) -> TcpStream {
        let options = TcpStreamOptions { local_port: Some(local_port), ..TcpStreamOptions::default() };
        let mut stream = TcpStream::start_connect(&self.here, server, &options).unwrap();
        stream.set_nonblocking(true);
        self.until(|_| stream.check_connected().unwrap());
        stream
    }

    pub fn until<T>(&mut self, mut look: impl FnMut(&mut Server) -> Option<T>) -> T {
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

    /// Makes a call over TCP: returns its results, or how it ended.
    pub fn ask(&mut self, stream: &mut TcpStream, call: (u32, u32, u32), arguments: &[u8]) -> Result<Vec<u8>, Status> {
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
    pub fn call<T: Unpack>(&mut self, client: &mut Requester, procedure: u32, arguments: &impl Pack, room: usize) -> T {
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

    /// Creates a file of this name in a directory.
    pub fn create(&mut self, client: &mut Requester, dir: nfs_fh3, name: &'static str) -> nfs_fh3 {
        let where_ = diropargs3 { dir, name: filename3(Opaque::borrowed(name.as_bytes())) };
        let made = CREATE3args { where_, how: createhow3::UNCHECKED(sattr3::default()) };
        let made: CREATE3res = self.call(client, number::CREATE, &made, 0);
        made.unwrap().obj.unwrap()
    }

    /// The handle of a name.
    pub fn find(&mut self, stream: &mut TcpStream, dir: nfs_fh3, name: &'static str) -> nfs_fh3 {
        let what = diropargs3 { dir, name: filename3(Opaque::borrowed(name.as_bytes())) };
        let found = self.ask(stream, (100_003, 3, number::LOOKUP), &packed(&LOOKUP3args { what })).unwrap();
        let Nfs3Result::Ok(found) = LOOKUP3res::unpack(&mut &found[..]).unwrap().0 else { panic!("no {name}") };
        found.object
    }

    /// Turns until nothing has happened for some turns; if that is too early on a slow machine, less is observed.
    pub fn idle(&mut self, mut look: impl FnMut() -> bool) {
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

    /// Mounts as a client does: requests the port of MOUNT, and from there the root.
    pub fn mount(&mut self) -> nfs_fh3 {
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
