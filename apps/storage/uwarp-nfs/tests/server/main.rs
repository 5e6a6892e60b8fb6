//! A server of a directory, and clients over RDMA and over TCP in the same process.

mod clients;
mod duplicates;
#[path = "../raw/mod.rs"]
mod raw;
mod rig;

use nfs3_types::nfs3::{
    Nfs3Result, READ3args, READ3res, REMOVE3args, WRITE3args, WRITE3res, diropargs3, filename3, stable_how,
};
use nfs3_types::xdr_codec::{Opaque, Unpack as _};
use raw::{Raw, parse};
use rig::{LONG, Rig, call_of, exchange, packed};
use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use uwarp_nfs::clients::ClientRules;
use uwarp_nfs::directory::number;
use uwarp_nfs::records::{Records, record};
use uwarp_nfs::server::{OF_A_CALL, Ports};
use uwarp_rpcrdma::nfs3::Nfs3;
use uwarp_rpcrdma::requester::{Call, Requester, RequesterOptions};
use uwarp_rpcrdma::rpc::{Auth, CallHeader, Status, auth_sys, system_credential};
use uwarp_vdev_tests::disk::{self, Disk, Mounted, Trouble};

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
    // The server disconnects them, and they notice.
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
    // Each waits for the disk, so some are under way when the first is answered.
    for index in 0..CALLS {
        let (data, offset) = (Opaque::owned(vec![7; SIZE]), index * SIZE as u64);
        let stable = stable_how::FILE_SYNC;
        let write = WRITE3args { file: file.clone(), offset, count: SIZE as u32, stable, data };
        client.start(call_of(number::WRITE, &write, vec![])).unwrap();
    }
    let first = rig.until(|_| client.poll());
    assert_eq!(first.outcome.unwrap().status, Status::Success);
    // Stopping uses a separate thread here; the engines stay with this one.
    let Rig { here, there, server, folder, metrics, .. } = rig;
    let stopping = std::thread::spawn(move || server.stop(LONG));
    let deadline = Instant::now() + LONG;
    let (mut finished, mut answered) = (1, 1);
    while finished < CALLS || !stopping.is_finished() {
        here.poll();
        there.poll();
        // Calls that had not reached the server are for the client to send to another one.
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

/// RFC 1813 §4.5: the server's work is done once, whatever happens to the connection.
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
    // Only the server runs. The client's engine does not even see the reply.
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
        // Every other one is refused at once, which costs a reply, too.
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
    // It gets all of them when it reads.
    let (mut records, mut replies) = (Records::new(4 << 20), 0);
    rig.until(|_| {
        exchange(&mut stream, &messages, &mut sent, &mut records);
        while records.take().unwrap().is_some() {
            replies += 1;
        }
        (replies == CALLS).then_some(())
    });
}

/// The calls under way of many clients over TCP are bounded by the memory for all of them.
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

/// A server thread waits for the disk: a failing test must not wait for that thread.
struct Stuck<'a>(&'a Mounted);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.set_trouble(None);
    }
}

/// Calls of clients that have left continue, and hold their memory: clients that reconnect faster than the disk works
/// have to wait.
#[test]
fn nobody_is_let_in_while_those_who_left_have_all_the_memory() {
    if uwarp_notes::lacks_root("callers of different users") {
        return;
    }
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
        // There is memory for two calls: for this one, and for its repetition.
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
    // Data that is not RPC ends the stream, and so does a record without end.
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
