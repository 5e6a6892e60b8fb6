use std::io;

use super::*;
use crate::access::{AccessError, Association, DomainId, Scope, StreamId};
use crate::durable::Store;
use crate::options::TaggedBase;
use crate::table::RegionTable;
use crate::window::BindPiece;

const PEER: Association = Association { domain: DomainId(1), stream: StreamId(7) };
const SCOPE: Scope = Scope::Domain(PEER.domain);

fn registered(table: &std::sync::Arc<RegionTable>, access: Access) -> Registration {
    table.register(vec![0; 100], access, SCOPE, TaggedBase::Zero).unwrap()
}

#[test]
fn a_lease_keeps_others_away_and_its_end_lets_them_come_back() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let mut engine = table.engine();
    let mut region = registered(&table, Access::ALL);
    let stag = region.stag();
    {
        let mut lease = region.lend().unwrap();
        lease[..3].copy_from_slice(b"abc");
        let turn = engine.enter();
        assert_eq!(turn.place(PEER, stag, 0, b"x", Access::REMOTE_WRITE), Err(AccessError::InvalidStag));
        assert_eq!(turn.gather(PEER, stag, 0, &mut [0], Access::LOCAL_READ), Err(AccessError::InvalidStag));
        assert!(turn.open(PEER, stag, Access::LOCAL_READ).is_none());
        assert_eq!(&lease[..4], b"abc\0");
    }
    assert!(region.is_valid());
    let turn = engine.enter();
    turn.place(PEER, stag, 1, b"x", Access::REMOTE_WRITE).unwrap();
    drop(turn);
    assert_eq!(region.lend().unwrap()[..4], *b"axc\0");
    assert_eq!(region.deregister().as_slice()[..4], *b"axc\0");
}

#[test]
fn what_was_opened_or_bound_before_finds_the_lease() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let (mut engine, mut region) = (table.engine(), registered(&table, Access::LOCAL_WRITE));
    let mut window = table.allocate_window(PEER.domain, 1).unwrap();
    let stag = window.next_stag();
    let piece = BindPiece { stag: region.stag(), offset: 10, length: 20 };
    let turn = engine.enter();
    turn.bind(PEER, stag, 0, Access::REMOTE_WRITE, [piece].into_iter()).unwrap();
    let open = turn.open(PEER, region.stag(), Access::LOCAL_WRITE).unwrap();
    let lease = region.lend().unwrap();
    assert!(!open.place(0, b"x"));
    assert_eq!(turn.place(PEER, stag, 0, b"x", Access::REMOTE_WRITE), Err(AccessError::InvalidStag));
    assert_eq!(lease[..], [0; 100]);
    drop(lease);
    assert!(open.place(0, b"x"));
    turn.place(PEER, stag, 0, b"y", Access::REMOTE_WRITE).unwrap();
    drop(turn);
    let lease = region.lend().unwrap();
    assert_eq!((lease[0], lease[10]), (b'x', b'y'));
}

#[test]
fn an_invalid_stag_stays_so() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let mut region = registered(&table, Access::ALL);
    region.invalidate();
    region.lend().unwrap()[0] = 1;
    assert!(!region.is_valid());
    let mut region = registered(&table, Access::ALL);
    std::mem::forget(region.lend().unwrap());
    assert!(!region.is_valid());
}

#[test]
fn a_lease_waits_for_turns_under_way() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let (mut engine, mut region) = (table.engine(), registered(&table, Access::ALL));
    let stag = region.stag();
    let (begun, lent) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let turn = engine.enter();
            let open = turn.open(PEER, stag, Access::REMOTE_WRITE).unwrap();
            begun.wait();
            // Until the STag is revoked, which the lease does before it waits.
            while open.place(0, b"x") {
                std::thread::yield_now();
            }
            assert!(!lent.load(std::sync::atomic::Ordering::SeqCst));
            drop(turn);
        });
        begun.wait();
        let lease = region.lend().unwrap();
        lent.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(matches!(lease[0], 0 | b'x'));
    });
}

#[test]
fn a_region_that_nobody_else_writes_is_a_slice() {
    let table = RegionTable::new(8, 1 << 20, 1);
    for access in [Access::LOCAL_READ, Access::REMOTE_READ] {
        let (mut engine, mut region) = (table.engine(), registered(&table, access));
        region.write(1, b"ab").unwrap();
        let stag = region.stag();
        let slice = region.as_slice().unwrap();
        let mut out = [0; 4];
        engine.enter().gather(PEER, stag, 0, &mut out, access).unwrap();
        assert_eq!((&slice[..4], &out), (&b"\0ab\0"[..], b"\0ab\0"));
    }
    for access in [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::ALL] {
        let error = registered(&table, access).as_slice().unwrap_err();
        assert_eq!(error, LendError::Writable { access });
    }
}

struct Nowhere;

impl Store for Nowhere {
    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_durable_region_is_not_lent() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let made =
        table.register_durable(vec![0; 100], Access::ALL, SCOPE, TaggedBase::Zero, Box::new(Nowhere), false).unwrap();
    let (mut region, _committer) = made;
    assert_eq!(region.lend().unwrap_err(), LendError::Durable);
    assert!(region.is_valid());
}
