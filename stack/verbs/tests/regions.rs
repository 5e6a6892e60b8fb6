//! Registrations as verbs have them: any tagged base, unchecked SGEs, changes in place.

mod common;

use common::*;
use std::os::unix::fs::FileExt;
use uwarp::{
    Access, ChangeError, DisconnectReason, Error, RegionChange, RegionOptions, SendRequest, Sge, Status, TaggedBase,
    TerminateCode,
};

const INVALID_STAG: TerminateCode = TerminateCode { layer: 1, error_type: 1, code: 0 };

#[test]
fn memory_is_named_by_the_offsets_that_its_owner_chose() {
    for base in [TaggedBase::Zero, TaggedBase::At(0x7000_0000_1000), TaggedBase::At(u64::MAX - 4095)] {
        let (mut client, server) = connected(Mode::Inline);
        let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let options = || RegionOptions::new(access).base(base);
        let target = server.pd.register(vec![0; 4096], options()).unwrap();
        let source = client.pd.register(pattern(1, 4096), options()).unwrap();
        let first = match base {
            TaggedBase::At(base) => base,
            _ => 0,
        };
        assert_eq!((source.remote_offset(), target.remote_offset()), (first, first));
        assert_eq!(source.sge(16..32).unwrap(), Sge::raw(source.stag(), first + 16, 16));
        let entry = [Sge::raw(source.stag(), first, 4096)];
        client.qp.send.post(&[SendRequest::write(1, &entry, target.stag(), first).signalled()]).unwrap();
        client.expect(1);
        until(&[&client.context, &server.context], "the Write is there", || {
            target.to_vec(0, 4096).unwrap() == pattern(1, 4096)
        });
    }
    let (client, _server) = connected(Mode::Inline);
    let beyond = RegionOptions::new(Access::LOCAL_READ).base(TaggedBase::At(u64::MAX - 4094));
    let refused = client.pd.register(vec![7; 4096], beyond).unwrap_err();
    assert!(matches!(refused.error, Error::Register(_)), "{refused}");
    assert_eq!(refused.buffer.as_slice(), [7; 4096]);
}

#[test]
fn an_entry_that_nobody_checked_fails_when_its_turn_comes() {
    let cases: [fn(&Side) -> Sge; 3] = [
        |side| Sge::raw(side.mr.stag(), side.mr.remote_offset(), REGION as u32 + 1),
        |side| Sge::raw(side.mr.stag(), side.mr.remote_offset() - 1, 1),
        |side| Sge::raw(side.mr.stag() ^ 1, side.mr.remote_offset(), 1),
    ];
    for entry in cases {
        let (mut client, mut server) = connected(Mode::Inline);
        let entry = [entry(&client)];
        client.qp.send.post(&[SendRequest::write(1, &entry, server.mr.stag(), server.mr.remote_offset())]).unwrap();
        let failed = client.complete();
        assert_eq!((failed.id, failed.status), (1, Status::LocalProtection));
        assert!(server.qp.control.wait_disconnected(LONG).unwrap());
    }
}

#[test]
fn a_region_changes_under_a_connection() {
    in_both_modes(|mode| {
        let (mut client, mut server) = connected(mode);
        let mut region = server.pd.register(vec![0; 64], Access::LOCAL_READ).unwrap();
        let stag = region.stag();
        let writable = RegionChange { access: Some(Access::REMOTE_WRITE), ..RegionChange::default() };
        assert!(region.change(writable).unwrap().is_none());
        assert_eq!(region.stag(), stag, "the peer's STag goes on");
        let write = |id, stag, offset| SendRequest::write_inline(id, &[9; 8], stag, offset).signalled();
        client.qp.send.post(&[write(1, stag, region.remote_offset())]).unwrap();
        client.expect(1);
        until(&[&client.context, &server.context], "the Write is there", || region.load_acquire_u8(7).unwrap() == 9);
        let memory = Some((vec![0; 32].into(), TaggedBase::Zero));
        let former = region.change(RegionChange { memory, ..RegionChange::default() }).unwrap().expect("the former");
        assert_eq!((&former.as_slice()[..8], region.len()), ([9; 8].as_slice(), 32));
        assert_ne!(region.stag(), stag);
        client.qp.send.post(&[write(2, region.stag(), 24)]).unwrap();
        client.expect(2);
        until(&[&client.context, &server.context], "the Write is there", || region.load_acquire_u8(31).unwrap() == 9);
        // The former STag is nobody's any more.
        client.qp.send.post(&[write(3, stag, 0)]).unwrap();
        assert!(
            client.qp.control.wait_disconnected(LONG).unwrap() && server.qp.control.wait_disconnected(LONG).unwrap()
        );
        assert_eq!(client.qp.control.disconnect_reason(), Some(DisconnectReason::PeerTerminated(INVALID_STAG)));
        assert_eq!(former.as_slice()[8..], [0; 56]);
    });
}

#[test]
fn a_region_that_cannot_change_is_as_it_was() {
    let (mut client, server) = connected(Mode::Inline);
    let mut region = client.pd.register(vec![3; 64], Access::LOCAL_WRITE).unwrap();
    let stag = region.stag();
    let foreign = RegionChange { domain: Some(&server.pd), ..RegionChange::default() };
    assert!(matches!(region.change(foreign).unwrap_err().error, Error::Argument { .. }));
    let mut window = client.pd.allocate_window().unwrap();
    let part = region.sge(..8).unwrap();
    client.speak_first(&server);
    client.qp.send.post(&[window.bind(1, &part, Access::REMOTE_WRITE).unwrap().signalled()]).unwrap();
    client.expect(1);
    let memory = Some((vec![4; 8].into(), TaggedBase::Zero));
    let refused = region.change(RegionChange { memory, ..RegionChange::default() }).unwrap_err();
    assert!(matches!(refused.error, Error::Change(ChangeError::Bound)), "{refused}");
    assert_eq!(refused.buffer.expect("the new memory").as_slice(), [4; 8]);
    assert_eq!((region.stag(), region.is_valid(), region.deregister()), (stag, true, vec![3; 64]));
}

/// The server's region of a file, and a Read of the client from it.
fn read_from_file(mode: Mode, truncated: bool) {
    const LENGTH: usize = 256 << 10;
    let (mut client, mut server) = connected(mode);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&pattern(3, LENGTH), 0).unwrap();
    let source = server.pd.register_file(&file, 0, LENGTH, Access::REMOTE_READ).unwrap();
    let sink = client.pd.register(vec![0; LENGTH], Access::LOCAL_WRITE).unwrap();
    let entry = [sink.sge(..).unwrap()];
    let remote = source.remote();
    let read = |id| SendRequest::read(id, &entry, remote.stag, remote.offset).signalled();
    client.qp.send.post(&[read(1)]).unwrap();
    client.expect(1);
    assert!(sink.to_vec(0, LENGTH).unwrap() == pattern(3, LENGTH));
    if !truncated {
        return;
    }
    file.set_len(LENGTH as u64 / 2).unwrap();
    sink.fill(0..LENGTH, 9).unwrap();
    client.qp.send.post(&[read(2)]).unwrap();
    let failed = client.complete();
    assert!(failed.id == 2 && !failed.status.is_success(), "{failed:?}");
    assert!(server.qp.control.wait_disconnected(LONG).unwrap());
    assert!(source.is_lost());
    // What arrived was in the file; in place of what was not, nothing did.
    let arrived = sink.to_vec(0, LENGTH).unwrap();
    let whole = arrived.iter().zip(pattern(3, LENGTH)).take_while(|(got, expected)| *got == expected).count();
    assert!(whole <= LENGTH / 2 && arrived[LENGTH / 2..].iter().all(|octet| *octet == 9), "{whole} octets");
    // The next one gets the file as it is now.
    drop(source);
    let source = server.pd.register_file(&file, 0, LENGTH / 2, Access::REMOTE_READ).unwrap();
    let mut octets = vec![0; LENGTH / 2];
    source.read(0, &mut octets).unwrap();
    assert!(octets == pattern(3, LENGTH)[..LENGTH / 2]);
}

#[test]
fn a_file_that_is_truncated_while_it_is_served_fails_the_reads_and_not_the_process() {
    uwarp::catch_truncated_files().unwrap();
    in_both_modes(|mode| {
        read_from_file(mode, false);
        read_from_file(mode, true);
    });
}

#[test]
fn a_truncated_file_is_not_sent() {
    uwarp::catch_truncated_files().unwrap();
    in_both_modes(|mode| {
        let (mut client, server) = connected(mode);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&pattern(5, 8192), 0).unwrap();
        let source = client.pd.register_file(&file, 0, 8192, Access::LOCAL_READ).unwrap();
        let target = server.pd.register(vec![9; 8192], Access::REMOTE_WRITE).unwrap();
        let [first, second] = [source.sge(..4096).unwrap(), source.sge(4096..).unwrap()].map(|entry| [entry]);
        let write = |id, entry, offset| {
            SendRequest::write(id, entry, target.stag(), target.remote_offset() + offset).signalled()
        };
        client.qp.send.post(&[write(1, &first, 0)]).unwrap();
        client.expect(1);
        file.set_len(0).unwrap();
        client.qp.send.post(&[write(2, &second, 4096)]).unwrap();
        let failed = client.complete();
        assert_eq!((failed.id, failed.status), (2, Status::LocalProtection));
        assert!(target.to_vec(4096, 4096).unwrap() == [9; 4096]);
        let mut octets = [0; 1];
        assert!(matches!(source.read(0, &mut octets), Err(Error::FileLost)));
    });
}
