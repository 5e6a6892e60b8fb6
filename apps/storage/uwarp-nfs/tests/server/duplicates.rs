//! Repeated calls, and others that look like them.

use crate::raw::{Raw, parse};
use crate::rig::{Rig, packed};
use nfs3_types::nfs3::{WRITE3args, nfs_fh3, stable_how};
use nfs3_types::xdr_codec::Opaque;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::Ordering;
use uwarp::TcpStream;
use uwarp_nfs::directory::number;
use uwarp_nfs::server::Ports;
use uwarp_rpcrdma::rpc::{Status, auth_sys, system_credential};

/// Arguments of a WRITE at the beginning of a file.
fn write_of(file: &nfs_fh3, data: &[u8]) -> Vec<u8> {
    let (count, stable) = (data.len() as u32, stable_how::FILE_SYNC);
    packed(&WRITE3args { file: file.clone(), offset: 0, count, stable, data: Opaque::borrowed(data) })
}

/// Two blocks of data that differ in octet 300 only.
fn two_alike() -> [Vec<u8>; 2] {
    let (first, mut second) = (vec![7; 512], vec![7; 512]);
    second[300] = 8;
    [first, second]
}

/// Clients may reuse an XID, and choose XIDs freely.
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
        // A call that is repeated over another connection is answered and not executed.
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
