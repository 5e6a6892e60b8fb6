//! Registrations as verbs have them: any tagged base, unchecked SGEs, changes in place.

mod common;

use common::*;
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
