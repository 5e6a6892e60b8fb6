//! A client over RDMA, the gateway, and the server behind it: another project's, or a test that acts as one.

use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp as _, NFSTcpListener};
use nfs3_types::nfs3::{
    LOOKUP3args, LOOKUP3resfail, LOOKUP3resok, Nfs3Result, READ3args, READ3resfail, READ3resok, diropargs3, nfs_fh3,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uwarp::{Config, Context, ListenOptions, Listener};
use uwarp_nfs::gateway::{Gateway, PORT, Policy};
use uwarp_nfs::metrics::Metrics;
use uwarp_rpcrdma::binding::Binding;
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::requester::{Call, CallId, Finished, Requester, RequesterOptions};
use uwarp_rpcrdma::responder::{Common, Responder, ResponderOptions};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, OwnedAuth, ReplyHeader, Status, auth_sys, system_credential};
use uwarp_rpcrdma::walk::{Removed, Walk, split};
use uwarp_rpcrdma::xdr::{put_opaque, put_padding};

/// Far longer than anything takes: only a defect makes a test wait this long.
pub const LONG: Duration = Duration::from_secs(60);

pub const NULL: u32 = 0;
pub const GETATTR: u32 = 1;
pub const LOOKUP: u32 = 3;
pub const READ: u32 = 6;
pub const WRITE: u32 = 7;
pub const CREATE: u32 = 8;
pub const REMOVE: u32 = 12;
pub const RENAME: u32 = 14;
pub const READDIR: u32 = 16;
pub const FSINFO: u32 = 19;

pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

/// A server with one large file and many small ones. It ends with the process.
pub fn server() -> SocketAddr {
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

/// The handle of the export's root, requested from the server itself by the MOUNT protocol over TCP.
pub fn root(server: SocketAddr) -> nfs_fh3 {
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

pub fn packed(value: &impl Pack) -> Vec<u8> {
    let mut octets = Vec::new();
    value.pack(&mut octets).unwrap();
    octets
}

pub struct Rig {
    pub client: Requester,
    pub there: Context,
    pub listener: Listener,
    pub server: SocketAddr,
    pub policy: Policy,
    pub metrics: Arc<Metrics>,
    pub gateways: Vec<Gateway>,
}

pub fn config(host: u8) -> Config {
    let config = Config::without_device(&format!("10.0.0.{host}/24")).unwrap().without_monitor().inline();
    uwarp_middlebox::behind(config)
}

impl Rig {
    pub fn new(server: SocketAddr, policy: Policy) -> Self {
        let (here, there) = Context::pair_in_process(config(1), config(2)).unwrap();
        Self::between(&here, &there, server, policy)
    }

    pub fn between(here: &Context, there: &Context, server: SocketAddr, policy: Policy) -> Self {
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

    pub fn step(&mut self) {
        if let Some(request) = self.listener.try_next().unwrap() {
            let bindings: Arc<[Arc<dyn Binding>]> = Arc::new([Arc::new(Nfs3)]);
            let (options, common) = (ResponderOptions::default(), Arc::new(Common::default()));
            let responder = Responder::accept(&self.there, request, bindings, options, common).unwrap();
            self.gateways.push(Gateway::new(responder, self.server, self.policy, Arc::clone(&self.metrics)));
        }
        self.gateways.retain_mut(|gateway| gateway.step().is_ok());
    }

    pub fn start(&mut self, procedure: u32, arguments: &impl Pack, rooms: Vec<Vec<u8>>) -> CallId {
        let octets = packed(arguments);
        let mut walk = Walk::new(&octets, 0, Removed::Nothing);
        Nfs3.arguments(3, procedure, &mut walk).unwrap();
        let items = walk.finish().unwrap();
        let arguments = split(&octets, &items, |_| unreachable!()).unwrap();
        let credential = OwnedAuth::from(system_credential(&auth_sys(1, "client", 0, 0, &[])));
        let call = Call { program: 100_003, version: 3, procedure, credential, arguments, rooms, ..Call::default() };
        self.client.start(call).unwrap()
    }

    pub fn finished(&mut self) -> Finished {
        let deadline = Instant::now() + LONG;
        loop {
            self.step();
            if let Some(finished) = self.client.poll() {
                return finished;
            }
            assert!(Instant::now() < deadline, "no end: {:?} {:?}", self.client, self.client.stats());
        }
    }

    /// Makes a call, and returns the results as another project's types.
    pub fn call<T: Unpack>(&mut self, procedure: u32, arguments: &impl Pack, rooms: Vec<Vec<u8>>) -> T {
        let id = self.start(procedure, arguments, rooms);
        let finished = self.finished();
        assert_eq!(finished.id, id);
        read_results(finished)
    }

    pub fn lookup(&mut self, root: &nfs_fh3, name: &str) -> nfs_fh3 {
        let what = diropargs3 { dir: root.clone(), name: name.as_bytes().to_vec().into() };
        match self.call(LOOKUP, &LOOKUP3args { what }, vec![]) {
            Nfs3Result::<LOOKUP3resok, LOOKUP3resfail>::Ok(found) => found.object,
            Nfs3Result::Err((status, _)) => panic!("{name}: {status:?}"),
        }
    }

    /// Reads a file in parts, as a client that is mounted with that rsize.
    pub fn read(&mut self, file: &nfs_fh3, size: u32, reduced: bool) -> Vec<u8> {
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

pub fn read_results<T: Unpack>(finished: Finished) -> T {
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

/// Procedures of RPCSEC_GSS (RFC 2203 §5).
pub const DATA: u32 = 0;
pub const INIT: u32 = 1;
pub const DESTROY: u32 = 3;

/// A credential of RPCSEC_GSS (RFC 2203 §5): its procedure, the sequence number, and the service.
pub fn gss(procedure: u32, number: u32, service: u32) -> OwnedAuth {
    let mut body = [1, procedure, number, service].map(u32::to_be_bytes).concat();
    put_opaque(&mut body, b"context");
    OwnedAuth { flavor: 6, body }
}

/// The gateway's connection to the server.
pub fn accepted(rig: &mut Rig, backend: &TcpListener) -> TcpStream {
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
pub fn received(rig: &mut Rig, stream: &mut TcpStream) -> Vec<u8> {
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

pub fn reply(stream: &mut TcpStream, message: &[u8]) {
    stream.set_nonblocking(false).unwrap();
    stream.write_all(&(1 << 31 | message.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(message).unwrap();
}

/// A reply of NFS3ERR_STALE.
pub fn reply_stale(stream: &mut TcpStream, xid: u32) {
    let mut message = Vec::new();
    ReplyHeader { xid, verifier: Auth::NONE, status: Status::Success }.encode(&mut message);
    message.extend_from_slice(&70_u32.to_be_bytes());
    reply(stream, &message);
}

/// Removes and returns the first record that arrives on one of these streams.
pub fn first_received(rig: &mut Rig, streams: &mut Vec<TcpStream>) -> (Vec<u8>, TcpStream) {
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
