use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::access::{DomainId, InvalidateError, Scope, StreamId};
use crate::options::TaggedBase;
use crate::registration::Registration;
use crate::turn::Turn;

const DOMAIN: DomainId = DomainId(3);
const US: Association = Association { domain: DOMAIN, stream: StreamId(5) };
const OTHER: Association = Association { domain: DOMAIN, stream: StreamId(6) };
const STRANGER: Association = Association { domain: DomainId(4), stream: StreamId(5) };
const WRITE: Access = Access::REMOTE_WRITE;

fn table() -> Arc<RegionTable> {
    RegionTable::new(16, 1 << 20, 1)
}

fn region(table: &Arc<RegionTable>, length: usize, access: Access) -> Registration {
    table
        .register((0..length).map(|at| at as u8).collect::<Vec<_>>(), access, Scope::Domain(DOMAIN), TaggedBase::Zero)
        .unwrap()
}

fn piece(region: &Registration, offset: u64, length: u64) -> BindPiece {
    BindPiece { stag: region.stag(), offset, length }
}

fn bound_to(region: &Registration) -> u32 {
    region.table().slot(region.stag()).unwrap().bound.load(SeqCst)
}

#[test]
fn a_window_reaches_its_pieces_and_nothing_else() {
    let table = table();
    let (first, second) = (region(&table, 100, Access::LOCAL_WRITE), region(&table, 50, Access::LOCAL_WRITE));
    let mut window = table.allocate_window(DOMAIN, 3).unwrap();
    let mut epoch = table.engine();
    let stag = window.next_stag();
    assert!(!window.is_valid());
    let turn = epoch.enter();
    // 10..20 of the first, nothing, 0..5 of the second, 90..100 of the first.
    let pieces = [piece(&first, 10, 10), piece(&second, 7, 0), piece(&second, 0, 5), piece(&first, 90, 10)];
    turn.bind(US, stag, 1000, WRITE | Access::REMOTE_READ, pieces.into_iter()).unwrap();
    assert!(window.is_valid());
    let expected: Vec<u8> = (10..20).chain(0..5).chain(90..100).collect();
    for from in 0..25 {
        for to in from..=25 {
            let mut out = vec![0; to - from];
            turn.gather(US, stag, 1000 + from as u64, &mut out, Access::REMOTE_READ).unwrap();
            assert_eq!(out, expected[from..to]);
            let register = turn.gather_crc(US, stag, 1000 + from as u64, &mut out, 7, Access::REMOTE_READ).unwrap();
            assert_eq!(register, crate::kernels::crc32c_update(7, &expected[from..to]));
        }
    }
    for (offset, length, error) in [
        (999, 1, AccessError::Bounds),
        (1000, 26, AccessError::Bounds),
        (1025, 1, AccessError::Bounds),
        (u64::MAX, 2, AccessError::Wrap),
    ] {
        assert_eq!(turn.check(US, stag, offset, length, WRITE), Err(error));
    }
    assert_eq!(turn.check(OTHER, stag, 1000, 1, WRITE), Err(AccessError::NotAssociated));
    assert!(turn.open(US, stag, WRITE).is_none(), "its octets lie in several places");
    assert_eq!(turn.check(US, stag, 1000, 1, Access::LOCAL_WRITE), Err(AccessError::Rights));
    turn.place(US, stag, 1008, &[200; 10], WRITE).unwrap();
    drop(turn);
    let mut octets = vec![0; 100];
    first.read(0, &mut octets).unwrap();
    let changed: Vec<usize> = (0..100).filter(|at| octets[*at] != *at as u8).collect();
    assert_eq!(changed, [18, 19, 90, 91, 92]);
    let mut octets = vec![0; 50];
    second.read(0, &mut octets).unwrap();
    assert_eq!(octets[..6], [200, 200, 200, 200, 200, 5]);
}

#[test]
fn each_bind_brings_a_new_key_and_needs_a_free_window() {
    let table = table();
    let region = region(&table, 64, Access::LOCAL_WRITE);
    let mut window = table.allocate_window(DOMAIN, 1).unwrap();
    let mut epoch = table.engine();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..100 {
        let stag = window.next_stag();
        assert!(seen.insert(stag));
        let turn = epoch.enter();
        turn.bind(US, stag, 0, WRITE, [piece(&region, 0, 64)].into_iter()).unwrap();
        let again = turn.bind(US, stag, 0, WRITE, [piece(&region, 0, 64)].into_iter());
        assert_eq!(again, Err(BindError::NotFree));
        assert_eq!(turn.place(US, stag, 0, &[1], WRITE), Ok(()));
        turn.invalidate(US, stag, true).unwrap();
        assert_eq!(turn.place(US, stag, 0, &[1], WRITE), Err(AccessError::InvalidStag));
        assert_eq!(turn.invalidate(US, stag, true), Err(InvalidateError::InvalidStag));
        assert_eq!(turn.bind(US, stag ^ 1, 0, WRITE, std::iter::empty()), Err(BindError::NotFree));
    }
    assert_eq!(bound_to(&region), 0);
    // A bind that was posted with an earlier STag comes too late.
    let early = window.next_stag();
    window.next_stag();
    assert_eq!(epoch.enter().bind(US, early, 0, WRITE, std::iter::empty()), Err(BindError::NotFree));
}

#[test]
fn what_cannot_be_bound_leaves_the_window_free() {
    let table = table();
    let (writable, readable) = (region(&table, 64, Access::LOCAL_WRITE), region(&table, 64, Access::REMOTE_WRITE));
    let mut window = table.allocate_window(DOMAIN, 2).unwrap();
    let mut other = table.allocate_window(DOMAIN, 1).unwrap();
    let mut epoch = table.engine();
    let (stag, other_stag) = (window.next_stag(), other.next_stag());
    let turn = epoch.enter();
    turn.bind(US, other_stag, 0, WRITE, [piece(&writable, 0, 64)].into_iter()).unwrap();
    let of_window = BindPiece { stag: other_stag, offset: 0, length: 1 };
    let unknown = BindPiece { stag: 0xdead_beef, offset: 0, length: 1 };
    let whole = piece(&writable, 0, 64);
    let attempts: [(Association, Access, u64, Vec<BindPiece>, BindError); 8] = [
        (STRANGER, WRITE, 0, vec![whole], BindError::NotAssociated),
        (US, WRITE, 0, vec![piece(&readable, 0, 1)], BindError::Piece(AccessError::Rights)),
        (US, Access::REMOTE_ATOMIC, 0, vec![piece(&readable, 0, 8)], BindError::Piece(AccessError::Rights)),
        (US, WRITE, 0, vec![whole, piece(&writable, 63, 2)], BindError::Piece(AccessError::Bounds)),
        (US, WRITE, 0, vec![whole, unknown], BindError::Piece(AccessError::InvalidStag)),
        (US, Access::REMOTE_READ, 0, vec![of_window], BindError::Piece(AccessError::Rights)),
        (US, WRITE, 0, vec![whole, whole, whole], BindError::TooManyPieces),
        (US, WRITE, u64::MAX - 62, vec![whole], BindError::Wrap),
    ];
    for (who, access, base, pieces, error) in attempts {
        let refused = turn.bind(who, stag, base, access, pieces.clone().into_iter());
        if pieces == [of_window] {
            assert!(matches!(refused, Err(BindError::Piece(_))), "{refused:?}");
        } else {
            assert_eq!(refused, Err(error));
        }
        assert_eq!(bound_to(&writable), 1, "{pieces:?}");
    }
    // Read access needs no right of the region's own.
    turn.bind(US, stag, 0, Access::REMOTE_READ, [piece(&readable, 0, 64)].into_iter()).unwrap();
    assert_eq!(turn.check(US, stag, 0, 64, WRITE), Err(AccessError::Rights));
    assert_eq!(turn.check(US, stag, 0, 64, Access::REMOTE_READ), Ok(()));
}

#[test]
fn a_region_with_windows_is_not_invalidated_by_a_peer() {
    let table = table();
    let region = region(&table, 64, Access::ALL);
    let mut windows: Vec<Window> = (0..2).map(|_| table.allocate_window(DOMAIN, 1).unwrap()).collect();
    let mut epoch = table.engine();
    let stags: Vec<u32> = windows.iter_mut().map(Window::next_stag).collect();
    let turn = epoch.enter();
    for stag in &stags {
        turn.bind(US, *stag, 0, WRITE, [piece(&region, 0, 64)].into_iter()).unwrap();
    }
    assert_eq!(turn.invalidate(US, region.stag(), false), Err(InvalidateError::Bound));
    turn.invalidate(US, stags[0], false).unwrap();
    assert_eq!(turn.invalidate(US, region.stag(), false), Err(InvalidateError::Bound));
    drop(turn);
    windows.pop();
    assert_eq!(bound_to(&region), 0);
    assert_eq!(epoch.enter().invalidate(US, region.stag(), false), Ok(()));
}

#[test]
fn a_region_that_goes_takes_access_through_windows_along() {
    let table = table();
    let mut epoch = table.engine();
    let mut window = table.allocate_window(DOMAIN, 2).unwrap();
    // Slots are used again and again; a window never reaches the region that came later.
    for round in 0..50 {
        let (stays, goes) = (region(&table, 64, Access::LOCAL_WRITE), region(&table, 64, Access::LOCAL_WRITE));
        let stag = window.next_stag();
        let turn = epoch.enter();
        turn.bind(US, stag, 0, WRITE, [piece(&stays, 0, 64), piece(&goes, 0, 64)].into_iter()).unwrap();
        drop(turn);
        assert_eq!(goes.deregister().len(), 64);
        let later: Vec<Registration> = (0..12).map(|_| region(&table, 64, Access::LOCAL_WRITE)).collect();
        let turn = epoch.enter();
        assert_eq!(turn.place(US, stag, 0, &[9; 64], WRITE), Ok(()));
        assert_eq!(turn.place(US, stag, 63, &[8; 2], WRITE), Err(AccessError::InvalidStag), "round {round}");
        assert_eq!(turn.place(US, stag, 64, &[8; 64], WRITE), Err(AccessError::InvalidStag));
        turn.invalidate(US, stag, false).unwrap();
        drop(turn);
        let mut octets = [0; 64];
        stays.read(0, &mut octets).unwrap();
        assert_eq!(octets, [9; 64], "an access that is refused stores nothing");
        for region in &later {
            region.read(0, &mut octets).unwrap();
            assert!(octets.iter().enumerate().all(|(at, octet)| *octet == at as u8));
            assert_eq!(bound_to(region), 0);
        }
        assert_eq!(bound_to(&stays), 0);
    }
}

#[test]
fn windows_come_and_go_while_an_engine_writes_through_them() {
    let table = table();
    let region = region(&table, 64, Access::LOCAL_WRITE);
    let (stags, posted) = std::sync::mpsc::channel::<u32>();
    let engine_table = Arc::clone(&table);
    let source = piece(&region, 0, 64);
    let engine = std::thread::spawn(move || {
        let mut epoch = engine_table.engine();
        let (mut bound, mut late) = (0, 0);
        while let Ok(stag) = posted.recv() {
            let turn = epoch.enter();
            match turn.bind(US, stag, 0, WRITE, [source].into_iter()) {
                Ok(()) => {
                    bound += 1;
                    // Until the owner takes it back.
                    let _ = turn.place(US, stag, 0, &[bound as u8; 64], WRITE);
                }
                Err(error) => {
                    assert_eq!(error, BindError::NotFree);
                    late += 1;
                }
            }
        }
        bound + late
    });
    for round in 0..2_000 {
        let mut window = table.allocate_window(DOMAIN, 1).unwrap();
        stags.send(window.next_stag()).unwrap();
        if round % 2 == 0 {
            std::thread::yield_now();
        }
    }
    drop(stags);
    assert_eq!(engine.join().unwrap(), 2_000);
    assert_eq!(bound_to(&region), 0, "every bind was forgotten");
    assert_eq!(table.regions(), 1);
}

/// A bind checks its pieces, so this can only be a fault of this crate: it stays within the region all the same.
#[test]
fn a_piece_beyond_its_region_is_out_of_bounds() {
    let table = table();
    let region = region(&table, 64, Access::LOCAL_WRITE);
    let mut window = table.allocate_window(DOMAIN, 1).unwrap();
    let mut epoch = table.engine();
    let stag = window.next_stag();
    let turn = epoch.enter();
    turn.bind(US, stag, 0, WRITE, [piece(&region, 32, 16)].into_iter()).unwrap();
    for (distance, expected) in [
        (48, Ok(())),
        (49, Err(AccessError::Bounds)),
        (65, Err(AccessError::Bounds)),
        (1 << 40, Err(AccessError::Bounds)),
    ] {
        window.pieces[0].distance.store(distance, SeqCst);
        assert_eq!(turn.place(US, stag, 0, &[1; 16], WRITE), expected, "{distance}");
    }
}

#[test]
fn a_window_shows_its_stag_and_its_size() {
    let table = table();
    let mut window = table.allocate_window(DOMAIN, 3).unwrap();
    let stag = window.next_stag();
    assert_eq!(window.most_pieces(), 3);
    assert_eq!(format!("{window:?}"), format!("Window {{ stag: {stag:#010x}, most_pieces: 3, .. }}"));
}

#[test]
fn a_window_takes_the_slot_of_a_region_and_leaves_it_again() {
    let table = RegionTable::new(2, 1 << 20, 1);
    let memory = region(&table, 64, Access::LOCAL_WRITE);
    let mut epoch = table.engine();
    for round in 0..20 {
        drop(region(&table, 64, Access::ALL));
        let mut window = table.allocate_window(DOMAIN, 1).unwrap();
        let stag = window.next_stag();
        let turn = epoch.enter();
        turn.bind(US, stag, 0, WRITE, [piece(&memory, 0, 64)].into_iter()).unwrap();
        assert_eq!(turn.place(US, stag, 0, &[round], WRITE), Ok(()), "round {round}");
    }
}

#[test]
fn a_window_may_end_with_the_last_tagged_offset() {
    let table = table();
    let region = region(&table, 64, Access::LOCAL_WRITE);
    let mut window = table.allocate_window(DOMAIN, 1).unwrap();
    let mut epoch = table.engine();
    let stag = window.next_stag();
    let turn = epoch.enter();
    let bind = |base| turn.bind(US, stag, base, WRITE, [piece(&region, 0, 64)].into_iter());
    assert_eq!(bind(u64::MAX - 62), Err(BindError::Wrap));
    assert_eq!(bind(u64::MAX - 63), Ok(()));
    assert_eq!(turn.place(US, stag, u64::MAX - 63, &[1; 64], WRITE), Ok(()));
}

#[test]
fn an_owner_chooses_the_low_bits_of_his_windows_stags() {
    let table = table();
    let region = region(&table, 100, Access::LOCAL_WRITE);
    let mut window = table.allocate_window_with_owner_keys(DOMAIN, 1).unwrap();
    let mut epoch = table.engine();
    let bind = |turn: &Turn<'_>, stag, at| turn.bind(US, stag, 0, WRITE, [piece(&region, at, 8)].into_iter());
    let base = window.stag() & !0xff;
    let turn = epoch.enter();
    // Chosen together, before any is carried out: each is good in its turn.
    let stags = [0x41, 0x42, 0x41].map(|key| base | key);
    for stag in stags {
        assert_eq!(window.choose_stag(stag), Ok(()));
        assert_eq!(window.stag(), stag);
    }
    for (at, stag) in stags.into_iter().enumerate() {
        bind(&turn, stag, at as u64 * 8).unwrap();
        assert_eq!(window.is_valid(), stag == base | 0x41);
        assert_eq!(bind(&turn, base | 0x43, 0), Err(BindError::NotFree), "bound already");
        turn.place(US, stag, 0, &[stag as u8; 8], WRITE).unwrap();
        assert_eq!(turn.place(US, stag ^ 1, 0, b"x", WRITE), Err(AccessError::InvalidStag));
        turn.invalidate(US, stag, false).unwrap();
    }
    drop(turn);
    let mut there = [0; 24];
    region.read(0, &mut there).unwrap();
    assert_eq!((there[0], there[8], there[16]), (0x41, 0x42, 0x41));
    // The other bits are the table's, for the owner and for the engine.
    let before = window.stag();
    for foreign in [base ^ 0x100, base ^ 0x8000_0000 | 0x41, 0] {
        assert_eq!(window.choose_stag(foreign), Err(ForeignStag), "{foreign:#x}");
        assert_eq!(bind(&epoch.enter(), foreign, 0), Err(BindError::NotFree), "{foreign:#x}");
    }
    assert_eq!(window.stag(), before);
    // In turn, around the end.
    window.choose_stag(base | 0xff).unwrap();
    let next = window.next_stag();
    assert_eq!((next & !0xff, next & 0xff), (base, u32::from(base == 0)));
    let mut ours = table.allocate_window(DOMAIN, 1).unwrap();
    let stag = ours.next_stag();
    assert_eq!(ours.choose_stag(stag ^ 1), Err(ForeignStag), "its keys are the table's");
    assert_eq!(bind(&epoch.enter(), stag ^ 1, 0), Err(BindError::NotFree));
}
