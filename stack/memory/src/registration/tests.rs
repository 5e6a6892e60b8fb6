use super::*;
use crate::access::{Access, Association, DomainId, Scope, StreamId};
use crate::table::TaggedBase;

const SCOPE: Scope = Scope::Domain(DomainId(1));

fn registered(octets: Vec<u8>) -> Registration {
    RegionTable::new(4, 1 << 20, 1).register(octets, Access::ALL, SCOPE, TaggedBase::Virtual).unwrap()
}

#[test]
fn owner_reads_and_writes_within_bounds() {
    let region = registered(vec![0; 10]);
    assert_eq!((region.len(), region.is_empty()), (10, false));
    region.write(2, b"abc").unwrap();
    region.fill(8, 2, b'z').unwrap();
    let mut out = [0; 10];
    region.read(0, &mut out).unwrap();
    assert_eq!(&out, b"\0\0abc\0\0\0zz");
    region.read(10, &mut []).unwrap();
    region.write(10, &[]).unwrap();
    for (offset, length) in [(0, 11), (10, 1), (11, 0), (usize::MAX, 1), (usize::MAX, 0), (1, 10)] {
        assert_eq!(region.read(offset, &mut vec![0; length]), Err(RangeError::Bounds));
        assert_eq!(region.write(offset, &vec![0; length]), Err(RangeError::Bounds));
        assert_eq!(region.fill(offset, length, 1), Err(RangeError::Bounds));
        assert_eq!(region.write_back(offset, length), Err(RangeError::Bounds));
    }
    assert_eq!(region.deregister().into_vec().unwrap(), b"\0\0abc\0\0\0zz");
}

#[test]
fn fill_of_every_length() {
    for length in [0, 1, 255, 256, 257, 1000, 3000] {
        let region = registered(vec![1; 3002]);
        region.fill(1, length, 7).unwrap();
        let octets = region.deregister().into_vec().unwrap();
        assert!(octets.iter().enumerate().all(|(at, &octet)| octet == if (1..=length).contains(&at) { 7 } else { 1 }));
    }
}

#[test]
fn atomic_accesses_want_alignment_and_bounds() {
    let buffer = RegionBuffer::zeroed(20, crate::PageAdvice::Normal).unwrap();
    let region = RegionTable::new(4, 100, 1).register(buffer, Access::ALL, SCOPE, TaggedBase::Zero).unwrap();
    region.store_release_u64(8, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(region.load_acquire_u64(8), Ok(0x0102_0304_0506_0708));
    let mut octets = [0; 8];
    region.read(8, &mut octets).unwrap();
    assert_eq!(u64::from_ne_bytes(octets), 0x0102_0304_0506_0708);
    region.store_release_u32(16, 5).unwrap();
    region.store_release_u16(18, 6).unwrap();
    region.store_release_u8(19, 7).unwrap();
    assert_eq!(region.load_acquire_u8(19), Ok(7));
    assert_eq!(region.load_acquire_u64(4), Err(RangeError::Misaligned));
    assert_eq!(region.load_acquire_u64(16), Err(RangeError::Bounds));
    assert_eq!(region.load_acquire_u32(18), Err(RangeError::Bounds));
    assert_eq!(region.load_acquire_u32(2), Err(RangeError::Misaligned));
    assert_eq!(region.load_acquire_u16(19), Err(RangeError::Bounds));
    assert_eq!(region.store_release_u16(1, 1), Err(RangeError::Misaligned));
    assert_eq!(region.load_acquire_u8(20), Err(RangeError::Bounds));
    assert_eq!(region.store_release_u8(usize::MAX, 1), Err(RangeError::Bounds));

    assert_eq!(region.fetch_add_u64(8, 1), Ok(0x0102_0304_0506_0708));
    let swap = |compare| CompareSwap { compare, compare_mask: u64::MAX, swap: 9, swap_mask: u64::MAX };
    assert_eq!(region.compare_swap_u64(8, &swap(0)), Ok(0x0102_0304_0506_0709));
    assert_eq!(region.compare_swap_u64(8, &swap(0x0102_0304_0506_0709)), Ok(0x0102_0304_0506_0709));
    assert_eq!(region.load_acquire_u64(8), Ok(9));
    assert_eq!(region.fetch_add_u64(4, 1), Err(RangeError::Misaligned));
    assert_eq!(region.compare_swap_u64(16, &swap(0)), Err(RangeError::Bounds));
}

#[test]
fn invalidated_region_is_still_the_owners() {
    let region = registered(vec![3; 4]);
    let table = region.table().clone();
    assert!(region.is_valid());
    region.invalidate();
    region.invalidate();
    assert!(!region.is_valid());
    let who = Association { domain: DomainId(1), stream: StreamId(1) };
    let mut epoch = table.engine();
    let offset = region.base_offset();
    assert!(epoch.enter().check(who, region.stag(), offset, 1, Access::LOCAL_READ).is_err());
    region.write(0, &[4]).unwrap();
    assert_eq!(table.regions(), 1);
    assert_eq!(region.deregister().into_vec().unwrap(), [4, 3, 3, 3]);
    assert_eq!(table.regions(), 0);
}

#[test]
fn dropping_deregisters() {
    let region = registered(vec![0; 8]);
    let table = region.table().clone();
    assert_eq!(table.regions(), 1);
    drop(region);
    assert_eq!((table.regions(), table.registered_octets()), (0, 0));
}

#[test]
fn registrations_are_shared_between_threads() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Registration>();
    is_send_and_sync::<RegionTable>();
    is_send_and_sync::<RegionBuffer>();
}
