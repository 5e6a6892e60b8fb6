use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::*;
use crate::access::{DomainId, Scope, StreamId};
use crate::buffer::{PageAdvice, RegionBuffer};
use crate::kernels;
use crate::options::TaggedBase;
use crate::registration::Registration;

const WHO: Association = Association { domain: DomainId(1), stream: StreamId(1) };
const SCOPE: Scope = Scope::Domain(DomainId(1));
const WRITE: Access = Access::REMOTE_WRITE;

fn region(length: usize, access: Access) -> (Arc<RegionTable>, Registration) {
    let table = RegionTable::new(4, 1 << 30, 1);
    let buffer = RegionBuffer::zeroed(length, PageAdvice::Normal).unwrap();
    let region = table.register(buffer, access, SCOPE, TaggedBase::Virtual).unwrap();
    (table, region)
}

fn random_octets(length: usize, seed: u64) -> Vec<u8> {
    let mut octets = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

#[test]
fn what_is_placed_is_gathered() {
    const LONGEST: usize = 600;
    let (table, region) = region(LONGEST + 64, Access::ALL);
    let mut epoch = table.engine();
    let mut random = fastrand::Rng::with_seed(1);
    let octets = random_octets(LONGEST + 64, 2);
    for length in 0..=LONGEST {
        for _ in 0..4 {
            region.fill(0, region.len(), 0xee).unwrap();
            let offset = random.usize(..64);
            let tagged_offset = region.base_offset() + offset as u64;
            let payload = &octets[random.usize(..64)..][..length];
            let turn = epoch.enter();
            turn.place(WHO, region.stag(), tagged_offset, payload, WRITE).unwrap();

            let mut all = vec![0; region.len()];
            turn.gather(WHO, region.stag(), region.base_offset(), &mut all, Access::LOCAL_READ).unwrap();
            assert_eq!(&all[offset..offset + length], payload, "{length} octets at {offset}");
            all[offset..offset + length].fill(0xee);
            assert!(all.iter().all(|&octet| octet == 0xee), "{length} octets at {offset}: wrote outside");

            let mut out = vec![0; length];
            let need = Access::REMOTE_READ;
            let start = random.u32(..);
            let register = turn.gather_crc(WHO, region.stag(), tagged_offset, &mut out, start, need).unwrap();
            assert_eq!(out, payload);
            assert_eq!(register, kernels::crc32c_update(start, payload));
        }
    }
}

#[test]
fn refused_access_changes_nothing() {
    let (table, region) = region(64, Access::LOCAL_WRITE);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let (stag, base) = (region.stag(), region.base_offset());
    let payload = [1; 32];
    for (stag, offset, need, error) in [
        (stag ^ 1, base, Access::LOCAL_WRITE, AccessError::InvalidStag),
        (stag, base, Access::REMOTE_WRITE, AccessError::Rights),
        (stag, base + 33, Access::LOCAL_WRITE, AccessError::Bounds),
        (stag, u64::MAX - 30, Access::LOCAL_WRITE, AccessError::Wrap),
    ] {
        assert_eq!(turn.check(WHO, stag, offset, 32, need), Err(error));
        assert_eq!(turn.place(WHO, stag, offset, &payload, need), Err(error));
        let mut out = [7; 32];
        assert_eq!(turn.gather(WHO, stag, offset, &mut out, need), Err(error));
        assert_eq!(turn.gather_crc(WHO, stag, offset, &mut out, 0, need), Err(error));
        assert_eq!(out, [7; 32]);
    }
    // An accessor without rights is refused for that reason, also what all others may do.
    for (stag, need, error) in [
        (stag, Access::LOCAL_READ, AccessError::Rights),
        (stag, Access::LOCAL_WRITE, AccessError::Rights),
        (stag ^ 1, Access::LOCAL_WRITE, AccessError::InvalidStag),
    ] {
        assert_eq!(turn.check(Association::NOBODY, stag, base, 32, need), Err(error));
        assert_eq!(turn.place(Association::NOBODY, stag, base, &payload, need), Err(error));
        assert!(turn.open(Association::NOBODY, stag, need).is_none());
    }
    assert_eq!(turn.check(WHO, stag, base, u64::MAX, Access::LOCAL_WRITE), Err(AccessError::Wrap));
    assert_eq!(turn.check(WHO, stag, base, 1 << 40, Access::LOCAL_WRITE), Err(AccessError::Bounds));
    drop(turn);
    assert!(region.deregister().as_slice().iter().all(|&octet| octet == 0));
}

#[test]
fn invalidated_stag_stops_a_message_in_its_middle() {
    let (table, region) = region(64, Access::ALL);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let (stag, base) = (region.stag(), region.base_offset());
    turn.place(WHO, stag, base, &[1; 32], WRITE).unwrap();
    turn.invalidate(WHO, stag, false).unwrap();
    assert_eq!(turn.place(WHO, stag, base + 32, &[1; 32], WRITE), Err(AccessError::InvalidStag));
    drop(turn);
    assert!(!region.is_valid());
    let octets = region.deregister();
    assert_eq!((octets.as_slice()[31], octets.as_slice()[32]), (1, 0));
}

#[test]
fn an_open_region_takes_and_refuses_what_the_turn_does() {
    let (table, region) = region(64, Access::ALL);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let (stag, base) = (region.stag(), region.base_offset());
    let open = turn.open(WHO, stag, WRITE).expect("everything is allowed");
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..10_000 {
        let offset = match random.u8(..8) {
            0 => random.u64(..),
            1 => u64::MAX - random.u64(..70),
            _ => base.wrapping_add(random.u64(..90)).wrapping_sub(10),
        };
        let payload: Vec<u8> = random_octets(random.usize(1..70), offset).iter().map(|octet| octet | 1).collect();
        let allowed = turn.place(WHO, stag, offset, &payload, WRITE).is_ok();
        assert_eq!(open.place(offset, &payload), allowed, "{} octets at {offset}", payload.len());
        let mut out = vec![0; payload.len()];
        let register = open.gather_crc(offset, &mut out, 7);
        assert_eq!(register, allowed.then(|| kernels::crc32c_update(7, &payload)));
        assert_eq!(out == payload, allowed);
    }
}

#[test]
fn an_open_region_stops_a_message_in_its_middle_once_its_stag_is_invalidated() {
    let (table, region) = region(64, Access::ALL);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let (stag, base) = (region.stag(), region.base_offset());
    let open = turn.open(WHO, stag, WRITE).expect("everything is allowed");
    assert!(open.place(base, &[1; 32]));
    turn.invalidate(WHO, stag, false).unwrap();
    assert!(!open.place(base + 32, &[1; 32]));
    assert_eq!(open.gather_crc(base, &mut [0; 8], 0), None);
    drop(turn);
    let octets = region.deregister();
    assert_eq!((octets.as_slice()[31], octets.as_slice()[32]), (1, 0));
}

#[test]
fn only_an_associated_region_with_the_right_is_opened() {
    let (table, region) = region(64, Access::LOCAL_WRITE);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let stranger = Association { domain: DomainId(2), stream: StreamId(1) };
    assert!(turn.open(WHO, region.stag(), Access::LOCAL_WRITE).is_some());
    assert!(turn.open(WHO, region.stag(), WRITE).is_none());
    assert!(turn.open(WHO, region.stag() ^ 1, Access::LOCAL_WRITE).is_none());
    assert!(turn.open(stranger, region.stag(), Access::LOCAL_WRITE).is_none());
}

/// Who polls the last octet sees all of the message, at every length and wherever it ends in its word.
#[test]
fn last_octet_comes_last() {
    const MESSAGES: usize = 5_000;
    let (table, region) = region(512, Access::ALL);
    let taken = AtomicUsize::new(0);
    let at = |message: usize| (message % 61, message % 397 + 1, (message % 255) as u8 + 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut epoch = table.engine();
            for message in 0..MESSAGES {
                let (offset, length, value) = at(message);
                while taken.load(Acquire) < message {
                    std::thread::yield_now();
                }
                let tagged_offset = region.base_offset() + offset as u64;
                let payload = vec![value; length];
                epoch.enter().place(WHO, region.stag(), tagged_offset, &payload, WRITE).unwrap();
            }
        });
        for message in 0..MESSAGES {
            let (offset, length, value) = at(message);
            let mut looks = 0u32;
            while region.load_acquire_u8(offset + length - 1).unwrap() != value {
                looks += 1;
                if looks.is_multiple_of(1000) {
                    std::thread::yield_now();
                }
            }
            let mut octets = vec![0; length];
            region.read(offset, &mut octets).unwrap();
            assert!(octets.iter().all(|&octet| octet == value), "{length} octets at {offset}: {octets:?}");
            region.fill(0, region.len(), 0).unwrap();
            taken.store(message + 1, Release);
        }
    });
}

/// An aligned value at the end of a message is never seen half-written.
#[test]
fn value_at_the_end_of_a_message_is_stored_in_one() {
    const MESSAGES: u64 = 30_000;
    let (table, region) = region(128, Access::ALL);
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut epoch = table.engine();
            for message in 1..=MESSAGES {
                let value = message.wrapping_mul(0x0101_0101_0101_0101) & 0xff | message << 32 | message << 8;
                let length = (message % 8) as usize * 12 + 8;
                let mut payload = vec![0; length];
                payload[length - 8..].copy_from_slice(&value.to_ne_bytes());
                let offset = region.base_offset() + (120 + 8 - length) as u64;
                epoch.enter().place(WHO, region.stag(), offset, &payload, WRITE).unwrap();
            }
            done.store(1, Release);
        });
        let mut former = 0;
        loop {
            let finished = done.load(Acquire) == 1;
            let value = region.load_acquire_u64(120).unwrap();
            assert_eq!(value >> 32, value >> 8 & 0xff_ffff, "{value:#x}");
            assert!(value >> 32 >= former);
            former = value >> 32;
            if finished {
                break;
            }
        }
        assert_eq!(former, MESSAGES);
    });
}

#[test]
fn a_kept_range_takes_in_what_follows_in_the_same_region() {
    let range = |region, offset, length| KeptRange { region: Identity::from_bits(region), offset, length };
    let mut kept = range(1, 100, 10);
    assert!(!kept.extend(&range(2, 110, 5)), "of another region");
    assert!(!kept.extend(&range(1, 111, 5)) && !kept.extend(&range(1, 109, 5)), "with a gap, or an overlap");
    assert_eq!(kept, range(1, 100, 10));
    assert!(kept.extend(&range(1, 110, 5)));
    assert_eq!(kept, range(1, 100, 15));
    assert!(kept.is_beside(&range(1, 0, 1)) && !kept.is_beside(&range(2, 0, 1)));
}

#[test]
fn atomics_of_a_turn_return_the_former_value() {
    let (table, region) = region(64, Access::ALL);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let (stag, word) = (region.stag(), region.base_offset() + 8);
    assert_eq!(turn.fetch_add(WHO, stag, word, 700, 0), Ok(0));
    assert_eq!(turn.fetch_add(WHO, stag, word, 3, 0), Ok(700));
    let swap = |compare| CompareSwap { compare, compare_mask: u64::MAX, swap: 9, swap_mask: u64::MAX };
    assert_eq!(turn.compare_swap(WHO, stag, word, &swap(1)), Ok(703));
    assert_eq!(turn.compare_swap(WHO, stag, word, &swap(703)), Ok(703));
    assert_eq!(turn.compare_swap(WHO, stag, word, &swap(9)), Ok(9));
}

#[test]
fn a_plain_region_has_nothing_to_keep() {
    let (table, region) = region(64, Access::ALL);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let state = table.slot(region.stag()).unwrap().state.load();
    let range = KeptRange { region: state.identity(), offset: 0, length: 8 };
    assert!(turn.keep(&range).is_none());
}
