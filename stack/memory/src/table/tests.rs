use std::collections::HashSet;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc::RecvTimeoutError;

use super::*;
use crate::access::{DomainId, Scope, StreamId};
use crate::buffer::RegionBuffer;
use crate::options::TaggedBase;
use crate::registration::Registration;

const DOMAIN: DomainId = DomainId(7);
const STREAM: StreamId = StreamId(9);
const US: Association = Association { domain: DOMAIN, stream: STREAM };
const LENGTH: usize = 100;
const LAST: u64 = u64::MAX;

fn association(domain: u32, stream: u32) -> Association {
    Association { domain: DomainId(domain), stream: StreamId(stream) }
}

fn one_region(access: Access, scope: Scope, base: TaggedBase) -> (Arc<RegionTable>, Registration) {
    let table = RegionTable::new(16, 1 << 20, 1);
    let registration = table.register(vec![0; LENGTH], access, scope, base).unwrap();
    (table, registration)
}

#[test]
fn an_entry_is_a_cache_line() {
    assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (64, 64));
}

#[test]
fn only_associated_streams_reach_a_region() {
    let domain = Scope::Domain(DOMAIN);
    let stream = Scope::Stream { domain: DOMAIN, stream: STREAM };
    for (scope, who, allowed) in [
        (domain, association(7, 9), true),
        (domain, association(7, 10), true),
        (domain, association(7, 0), true),
        (domain, association(8, 9), false),
        (domain, association(9, 7), false),
        (stream, association(7, 9), true),
        (stream, association(7, 10), false),
        (stream, association(7, 0), false),
        (stream, association(8, 9), false),
        (stream, association(9, 7), false),
    ] {
        let (table, region) = one_region(Access::ALL, scope, TaggedBase::Zero);
        let found = table.resolve(who, region.stag(), 0, 1, Access::REMOTE_READ).err();
        let expected = (!allowed).then_some(AccessError::NotAssociated);
        assert_eq!(found, expected, "{who:?} to {scope:?}");
    }
}

#[test]
fn every_combination_of_rights_and_needs() {
    for granted in 0..16 {
        let granted = Access::from_bits_truncate(granted);
        let (table, region) = one_region(granted, Scope::Domain(DOMAIN), TaggedBase::Zero);
        for need in 0..16 {
            let need = Access::from_bits_truncate(need);
            let allowed = need.bits() & !granted.bits() == 0;
            let found = table.resolve(US, region.stag(), 0, 1, need).err();
            assert_eq!(found, (!allowed).then_some(AccessError::Rights), "{need:?} of {granted:?}");
        }
    }
}

#[test]
fn bounds_and_wrap_of_a_region_from_zero() {
    let (table, region) = one_region(Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero);
    assert_eq!(region.base_offset(), 0);
    let end = LENGTH as u64;
    for (offset, length, expected) in [
        (0, 1, None),
        (0, LENGTH, None),
        (end - 1, 1, None),
        (1, LENGTH - 1, None),
        (0, LENGTH + 1, Some(AccessError::Bounds)),
        (1, LENGTH, Some(AccessError::Bounds)),
        (end, 1, Some(AccessError::Bounds)),
        (end - 1, 2, Some(AccessError::Bounds)),
        (0, usize::MAX, Some(AccessError::Bounds)),
        (1, usize::MAX, Some(AccessError::Bounds)),
        (2, usize::MAX, Some(AccessError::Wrap)),
        (LAST, 1, Some(AccessError::Bounds)),
        (LAST, 2, Some(AccessError::Wrap)),
        (LAST - 98, 100, Some(AccessError::Wrap)),
        (1 << 63, 1, Some(AccessError::Bounds)),
        // No octets: neither offset nor bounds count (RFC 5041 §5.2).
        (LAST, 0, None),
        (end + 1, 0, None),
    ] {
        let found = table.resolve(US, region.stag(), offset, length, Access::REMOTE_WRITE);
        assert_eq!(found.err(), expected, "{length} octets at {offset}");
        if length > 0
            && let Ok(address) = found
        {
            assert_eq!(address.as_ptr().cast_const(), region.address().wrapping_add(offset as usize));
        }
    }
}

#[test]
fn bounds_of_a_region_from_its_address() {
    let (table, region) = one_region(Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Virtual);
    let base = region.base_offset();
    assert_eq!(base, region.address().addr() as u64);
    let end = base + LENGTH as u64;
    for (offset, length, expected) in [
        (base, LENGTH, None),
        (end - 1, 1, None),
        (base - 1, 1, Some(AccessError::Bounds)),
        (base - 1, LENGTH, Some(AccessError::Bounds)),
        (0, 1, Some(AccessError::Bounds)),
        (end, 1, Some(AccessError::Bounds)),
        (base + 1, LENGTH, Some(AccessError::Bounds)),
        (LAST, 1, Some(AccessError::Bounds)),
        (LAST, 2, Some(AccessError::Wrap)),
    ] {
        let found = table.resolve(US, region.stag(), offset, length, Access::LOCAL_READ);
        assert_eq!(found.err(), expected, "{length} octets at base + {}", offset.wrapping_sub(base));
    }
}

#[test]
fn region_without_octets_has_no_octet() {
    let table = RegionTable::new(4, 100, 1);
    for base in [TaggedBase::Zero, TaggedBase::Virtual] {
        let region = table.register(Vec::new(), Access::ALL, Scope::Domain(DOMAIN), base).unwrap();
        let resolve = |length| table.resolve(US, region.stag(), region.base_offset(), length, Access::ALL);
        assert!(resolve(0).is_ok());
        assert_eq!(resolve(1), Err(AccessError::Bounds));
    }
}

#[test]
fn errors_come_in_their_order() {
    let scope = Scope::Stream { domain: DOMAIN, stream: STREAM };
    let (table, region) = one_region(Access::REMOTE_READ, scope, TaggedBase::Zero);
    let stag = region.stag();
    let ask = |who, stag, need, offset| table.resolve(who, stag, offset, 2, need).err();
    let other = association(7, 8);
    assert_eq!(ask(other, stag ^ 1, Access::REMOTE_WRITE, LAST), Some(AccessError::InvalidStag));
    assert_eq!(ask(other, stag, Access::REMOTE_WRITE, LAST), Some(AccessError::NotAssociated));
    assert_eq!(ask(US, stag, Access::REMOTE_WRITE, LAST), Some(AccessError::Rights));
    assert_eq!(ask(US, stag, Access::REMOTE_READ, LAST), Some(AccessError::Wrap));
    assert_eq!(ask(US, stag, Access::REMOTE_READ, 99), Some(AccessError::Bounds));
    assert_eq!(ask(US, stag, Access::REMOTE_READ, 98), None);
}

/// Of the 2^32 STags exactly those registered are valid; tried are all keys of some indexes and all indexes of some
/// keys.
#[test]
fn nothing_but_the_exact_stag_is_valid() {
    let (table, region) = one_region(Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero);
    let valid = |stag| table.resolve(US, stag, 0, 1, Access::LOCAL_READ) != Err(AccessError::InvalidStag);
    for bit in 0..32 {
        assert!(!valid(region.stag() ^ 1 << bit));
    }
    for stag in (0..=u32::MAX).step_by(65_537).chain([0, 1, u32::MAX]) {
        assert_eq!(valid(stag), stag == region.stag());
    }
    let stag = region.stag();
    drop(region);
    assert_eq!(table.resolve(US, stag, 0, 1, Access::LOCAL_READ), Err(AccessError::InvalidStag));
}

#[test]
fn an_empty_table_of_any_size_has_no_stags() {
    for slots in [0, 1, 2, 3, 1000] {
        let table = RegionTable::new(slots, 1 << 20, 1);
        assert_eq!(table.slots(), slots.max(1));
        for stag in [0, 1, 1 << 31, u32::MAX] {
            assert_eq!(table.resolve(US, stag, 0, 0, Access::LOCAL_READ), Err(AccessError::InvalidStag));
        }
        let register = || table.register(vec![0; 8], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero);
        let regions: Vec<_> = (0..table.slots()).map(|_| register().unwrap()).collect();
        let full = register().unwrap_err();
        assert_eq!(full.error, RegisterError::TableFull { slots: table.slots() });
        assert_eq!(full.buffer.len(), 8);
        assert_eq!(table.regions(), table.slots());
        drop(regions);
        assert_eq!((table.regions(), table.registered_octets()), (0, 0));
        register().unwrap();
    }
}

#[test]
fn quota_counts_octets() {
    let table = RegionTable::new(8, 1000, 1);
    let register = |length| table.register(vec![0; length], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero);
    let first = register(600).unwrap();
    let refused = register(401).unwrap_err();
    assert_eq!(refused.error, RegisterError::Quota { asked: 401, registered: 600, quota: 1000 });
    assert_eq!(refused.buffer.len(), 401);
    let second = register(400).unwrap();
    assert_eq!(table.registered_octets(), 1000);
    register(0).unwrap();
    drop(first);
    assert_eq!(table.registered_octets(), 400);
    assert_eq!(second.deregister().len(), 400);
    assert_eq!((table.registered_octets(), table.quota()), (0, 1000));
}

/// Ten thousand STags of one table, as a peer would see them (RFC 5040 §8.1.1).
#[test]
fn stags_are_unpredictable() {
    const COUNT: usize = 10_000;
    let table = RegionTable::new(4096, 1 << 30, 0x0123_4567_89ab_cdef_0011_2233_4455_6677);
    let mut held = Vec::new();
    let mut stags = Vec::new();
    for _ in 0..COUNT {
        let region = table.register(vec![0; 1], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero).unwrap();
        stags.push(region.stag());
        held.push(region);
        if held.len() > 100 {
            held.remove(0);
        }
    }
    // No value comes again and again: of 10^4 random ones of 32 bits some 0.01 pairs are equal.
    let distinct: HashSet<_> = stags.iter().collect();
    assert!(distinct.len() > COUNT - 3);
    // Nor does any step from one to the next, nor any step of steps: no counter, no linear rule.
    let steps: Vec<u32> = stags.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.iter().collect::<HashSet<_>>().len() > COUNT - 100);
    let steps_of_steps: HashSet<_> = steps.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps_of_steps.len() > COUNT - 100);
    // Each bit is set in half of them, and changes from one to the next in half of the cases (six deviations).
    for bit in 0..32 {
        let set = stags.iter().filter(|stag| *stag >> bit & 1 == 1).count();
        let changed = stags.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
        for count in [set, changed] {
            assert!((COUNT / 2 - 300..COUNT / 2 + 300).contains(&count), "bit {bit}: {count}");
        }
    }
    // They are spread over the whole range: each of 64 parts has its share.
    let mut parts = [0; 64];
    for stag in &stags {
        parts[(stag >> 26) as usize] += 1;
    }
    assert!(parts.iter().all(|&count| (80..240).contains(&count)), "{parts:?}");
}

#[test]
fn seed_decides_the_stags() {
    let stags = |seed| {
        let table = RegionTable::new(64, 1 << 20, seed);
        let register = || table.register(vec![0; 1], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero).unwrap();
        (0..64).map(|_| register().stag()).collect::<Vec<_>>()
    };
    assert_eq!(stags(1), stags(1));
    assert_ne!(stags(1), stags(2));
    assert_ne!(stags(1), stags(1 << 64));
}

#[test]
fn slot_used_again_has_another_stag() {
    let table = RegionTable::new(1, 1 << 20, 1);
    let mut former = HashSet::new();
    for _ in 0..100 {
        let region = table.register(vec![0; 1], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero).unwrap();
        assert_ne!(region.stag(), 0);
        former.insert(region.stag());
        let valid = former.iter().filter(|stag| table.find(**stag).is_some()).count();
        assert_eq!(valid, 1);
    }
    assert!(former.len() > 98);
}

#[test]
fn who_may_invalidate_what() {
    use InvalidateError::{InvalidStag, NotAssociated, Shared};
    let domain = Scope::Domain(DOMAIN);
    let stream = Scope::Stream { domain: DOMAIN, stream: STREAM };
    for (scope, who, domain_is_shared, expected) in [
        (stream, association(7, 9), false, Ok(())),
        (stream, association(7, 9), true, Ok(())),
        (stream, association(7, 8), true, Err(NotAssociated)),
        (stream, association(8, 9), false, Err(NotAssociated)),
        (domain, association(7, 9), false, Ok(())),
        (domain, association(7, 9), true, Err(Shared)),
        (domain, association(8, 9), true, Err(NotAssociated)),
    ] {
        let (table, region) = one_region(Access::ALL, scope, TaggedBase::Zero);
        let stag = region.stag();
        assert_eq!(table.invalidate(who, stag ^ 1, domain_is_shared), Err(InvalidStag));
        assert_eq!(table.invalidate(who, stag, domain_is_shared), expected, "{scope:?} by {who:?}");
        assert_eq!(region.is_valid(), expected.is_err());
        if expected.is_ok() {
            assert_eq!(table.resolve(US, stag, 0, 1, Access::LOCAL_READ), Err(AccessError::InvalidStag));
            assert_eq!(table.invalidate(who, stag, domain_is_shared), Err(InvalidStag));
        }
        // The slot is the owner's until the registration goes.
        assert_eq!(table.regions(), 1);
        drop(region);
        assert_eq!(table.regions(), 0);
    }
}

#[test]
fn what_its_only_stream_has_invalidated_comes_back_at_once_and_its_slot_later() {
    let stream = Scope::Stream { domain: DOMAIN, stream: STREAM };
    for slots in [1, 16] {
        let table = RegionTable::new(slots, 1 << 20, 1);
        let region = table.register(vec![7; LENGTH], Access::ALL, stream, TaggedBase::Zero).unwrap();
        let mut epoch = table.engine();
        let turn = epoch.enter();
        turn.invalidate(US, region.stag(), false).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let table = &table;
            let owner = scope.spawn(move || {
                sender.send(region.deregister().into_vec().unwrap()).unwrap();
                // With one slot only, this has to wait for the turn.
                let stag = table.register(vec![8; LENGTH], Access::ALL, stream, TaggedBase::Zero).unwrap().stag();
                sender.send(Vec::new()).unwrap();
                stag
            });
            // The turn is under way.
            let memory = receiver.recv_timeout(std::time::Duration::from_secs(30));
            if slots == 1 {
                let early = receiver.recv_timeout(std::time::Duration::from_millis(50));
                assert_eq!(early, Err(RecvTimeoutError::Timeout), "the slot was used again during the turn");
            }
            drop(turn);
            assert_eq!(memory.unwrap(), [7; LENGTH]);
            assert!(owner.join().unwrap() > 0);
        });
        assert_eq!((table.regions(), table.registered_octets()), (0, 0));
    }
}

/// Whoever registers while another waits for slots to become free waits too, instead of finding none.
#[test]
fn slots_that_become_free_are_everybodys() {
    const SLOTS: u32 = 4;
    let stream = Scope::Stream { domain: DOMAIN, stream: STREAM };
    let table = RegionTable::new(SLOTS, 100, 1);
    let mut epoch = table.engine();
    let turn = epoch.enter();
    for _ in 0..SLOTS {
        let region = table.register(vec![7; 10], Access::ALL, stream, TaggedBase::Zero).unwrap();
        turn.invalidate(US, region.stag(), false).unwrap();
        drop(region);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..SLOTS {
            let (table, sender) = (&table, sender.clone());
            scope.spawn(move || {
                sender.send(table.register(vec![8; 30], Access::ALL, stream, TaggedBase::Zero)).unwrap();
            });
        }
        assert!(
            receiver.recv_timeout(std::time::Duration::from_millis(50)).is_err(),
            "a slot was used during the turn"
        );
        drop(turn);
        let registered: Vec<_> = receiver.iter().take(SLOTS as usize).collect();
        // There are slots for all, and octets for three.
        assert_eq!(registered.iter().filter(|region| region.is_ok()).count(), 3, "{registered:?}");
        assert_eq!((table.regions(), table.registered_octets()), (3, 90));
    });
}

#[test]
fn slots_of_invalidated_regions_are_used_again() {
    let stream = Scope::Stream { domain: DOMAIN, stream: STREAM };
    let table = RegionTable::new(256, 1 << 20, 1);
    let mut epoch = table.engine();
    for _ in 0..10 * RETIRED {
        let region = table.register(vec![7; LENGTH], Access::ALL, stream, TaggedBase::Zero).unwrap();
        epoch.enter().invalidate(US, region.stag(), false).unwrap();
        drop(region);
        assert_eq!((table.regions(), table.registered_octets()), (0, 0));
        let allocator = table.allocator();
        assert!(allocator.retired.len() < RETIRED);
        assert_eq!(allocator.free.len() + allocator.retired.len(), 256);
    }
}

#[test]
fn registering_and_deregistering_from_many_threads() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 3_000;
    let table = RegionTable::new(64, 64 * 64, 1);
    let mut epoch = table.engine();
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..ROUNDS {
                    let value = (thread * ROUNDS + round) as u8;
                    let scope = Scope::Stream { domain: DOMAIN, stream: StreamId(thread as u32) };
                    let region = table.register(vec![value; 64], Access::ALL, scope, TaggedBase::Zero).unwrap();
                    held.push((value, region));
                    if held.len() == 16 {
                        for (value, region) in held.drain(..) {
                            assert!(region.is_valid());
                            assert_eq!(region.deregister().into_vec().unwrap(), vec![value; 64]);
                        }
                    }
                }
                done.fetch_add(1, Release);
            });
        }
        // Meanwhile an engine looks up what may or may not be there.
        let mut random = fastrand::Rng::with_seed(1);
        while done.load(Acquire) < THREADS {
            let turn = epoch.enter();
            for _ in 0..64 {
                let who = association(7, random.u32(..4));
                let _ = turn.gather(who, random.u32(..), 0, &mut [0; 64], Access::LOCAL_READ);
            }
        }
    });
    assert_eq!((table.regions(), table.registered_octets()), (0, 0));
}

/// What is left in a slot: its generation and the STag, which the next region there must not get.
#[test]
fn a_slot_keeps_no_flag_of_a_region_that_is_gone() {
    struct Nowhere;
    impl crate::durable::Store for Nowhere {
        fn write(&mut self, _: u64, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }
        fn sync(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let table = RegionTable::new(16, 1 << 20, 1);
    let (access, scope, base) = (Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero);
    let plain = table.register(vec![0; LENGTH], access, scope, base).unwrap();
    let (durable, _committer) =
        table.register_durable(vec![0; LENGTH], access, scope, base, Box::new(Nowhere), true).unwrap();
    let buffer = RegionBuffer::zeroed(LENGTH, crate::PageAdvice::Normal).unwrap();
    let persistent = table.register_persistent(buffer, access, scope, base, true).unwrap();
    for (region, kind) in [
        (plain, Flags::NONE),
        (durable, Flags::DURABLE | Flags::TRANSPARENT),
        (persistent, Flags::PERSISTENT | Flags::TRANSPARENT),
    ] {
        let stag = region.stag();
        let flags = Flags::VALID | Flags::WINDOW | Flags::BINDING | Flags::KEPT | Flags::TRANSPARENT;
        let state = || table.slot(stag).unwrap().state.load();
        assert_eq!((state().stag(), state().of(flags)), (stag, Flags::VALID | kind));
        drop(region);
        assert_eq!((state().stag(), state().of(flags)), (stag, Flags::NONE));
    }
    assert_eq!(table.transparent.load(Relaxed), 0);
}

#[test]
fn each_occupant_of_a_slot_has_a_generation_of_its_own() {
    let table = RegionTable::new(1, 1 << 20, 1);
    let generation = || table.entries[0].state.load().generation();
    for occupants in (0..10).step_by(2) {
        let window = table.allocate_window(DOMAIN, 1).unwrap();
        assert_eq!(generation(), occupants);
        drop(window);
        let region = table.register(vec![0; LENGTH], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero).unwrap();
        assert_eq!(generation(), occupants + 1);
        drop(region);
    }
}

/// An STag may come again, and what was opened before must not take it for its own then.
#[test]
fn a_changed_region_has_a_generation_of_its_own() {
    let table = RegionTable::new(1, 1 << 20, 1);
    let mut region = table.register(vec![0; LENGTH], Access::ALL, Scope::Domain(DOMAIN), TaggedBase::Zero).unwrap();
    let mut epoch = table.engine();
    let turn = epoch.enter();
    let open = turn.open(US, region.stag(), Access::REMOTE_WRITE).unwrap();
    let before = table.entries[0].state.load();
    let memory = Some((vec![1; LENGTH].into(), TaggedBase::Zero));
    assert!(region.change(RegionChange { memory, ..RegionChange::default() }).is_ok());
    let after = table.entries[0].state.load();
    assert_eq!(after.generation(), before.generation() + 1);
    // The key of before, as it may be drawn again.
    table.entries[0].state.publish(after.with_stag(before.stag()));
    assert!(!open.place(0, &[2; 8]));
}

/// Who is given one window's STags learns nothing about those of another, nor of the table's.
#[test]
fn a_window_draws_its_keys_with_a_seed_of_128_bits() {
    let table = RegionTable::new(1, 1 << 20, 42);
    let mut keys = KeyStream::new(42);
    // The slot, and the STag that the slot keeps until the first bind.
    keys.below(1);
    keys.next();
    let seed = u128::from(keys.next()) << 64 | u128::from(keys.next());
    let expected = KeyStream::new(seed).next() as u32 & ((1 << table.key_bits) - 1);
    assert_eq!(table.allocate_window(DOMAIN, 1).unwrap().next_stag(), expected);
}
