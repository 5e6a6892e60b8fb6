use super::*;
use crate::access::{Access, AccessError, Association, DomainId, Scope, StreamId};
use crate::options::{RegisterError, TaggedBase};

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

fn read_by(association: Association, region: &Registration, stag: u32, offset: u64) -> Result<u8, AccessError> {
    let mut epoch = region.table().engine();
    let turn = epoch.enter();
    let mut out = [0];
    turn.gather(association, stag, offset, &mut out, Access::REMOTE_READ).map(|()| out[0])
}

#[test]
fn any_base_that_fits_below_two_to_the_64_will_do() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let domain = DomainId(1);
    let us = Association { domain, stream: StreamId(1) };
    let register = |base, length: usize| {
        table.register((1..=length as u8).collect::<Vec<_>>(), Access::REMOTE_READ, Scope::Domain(domain), base)
    };
    for base in [1, 0x7fff_0000_1234, u64::MAX - 3] {
        let region = register(TaggedBase::At(base), 4).unwrap();
        assert_eq!(region.base_offset(), base);
        assert_eq!(read_by(us, &region, region.stag(), base), Ok(1));
        assert_eq!(read_by(us, &region, region.stag(), base + 3), Ok(4));
        assert_eq!(read_by(us, &region, region.stag(), base - 1), Err(AccessError::Bounds));
        assert_eq!(read_by(us, &region, region.stag(), base.wrapping_add(4)), Err(AccessError::Bounds));
    }
    let refused = register(TaggedBase::At(u64::MAX - 2), 4).unwrap_err();
    assert_eq!(refused.error, RegisterError::Wrap { base: u64::MAX - 2, length: 4 });
    assert_eq!(refused.buffer.as_slice(), [1, 2, 3, 4]);
    assert!(register(TaggedBase::At(u64::MAX), 0).is_ok());
    assert_eq!((table.regions(), table.registered_octets()), (0, 0));
}

#[test]
fn a_registration_changes_in_place() {
    let table = RegionTable::new(4, 100, 1);
    let (one, two) = (DomainId(1), DomainId(2));
    let [us, them] = [one, two].map(|domain| Association { domain, stream: StreamId(1) });
    let mut region = table.register(vec![1; 40], Access::LOCAL_READ, Scope::Domain(one), TaggedBase::Zero).unwrap();
    let first = region.stag();
    assert_eq!(read_by(us, &region, first, 0), Err(AccessError::Rights));
    // Rights alone: the STag stays.
    let rights = |access| RegionChange { access: Some(access), ..RegionChange::default() };
    assert!(region.change(rights(Access::REMOTE_READ)).unwrap().is_none());
    assert_eq!((region.stag(), read_by(us, &region, first, 0)), (first, Ok(1)));
    assert!(region.change(rights(Access::REMOTE_WRITE)).unwrap().is_none());
    assert_eq!((region.stag(), read_by(us, &region, first, 0)), (first, Err(AccessError::Rights)));
    // The domain: another STag, and the former one is nobody's.
    let scope = Some(Scope::Domain(two));
    region.change(RegionChange { scope, access: Some(Access::REMOTE_READ), memory: None }).unwrap();
    let second = region.stag();
    assert_ne!(second, first);
    assert_eq!(read_by(us, &region, first, 0), Err(AccessError::InvalidStag));
    assert_eq!(read_by(us, &region, second, 0), Err(AccessError::NotAssociated));
    assert_eq!(read_by(them, &region, second, 39), Ok(1));
    // The memory: the former comes back, and the quota counts the new one.
    let memory = Some((vec![2; 60].into(), TaggedBase::At(1000)));
    let former = region.change(RegionChange { memory, ..RegionChange::default() }).unwrap().expect("the former memory");
    assert_eq!((former.as_slice(), table.registered_octets()), ([1; 40].as_slice(), 60));
    assert_eq!((region.base_offset(), region.len(), table.regions()), (1000, 60, 1));
    assert_eq!(read_by(them, &region, second, 0), Err(AccessError::InvalidStag));
    assert_eq!(read_by(them, &region, region.stag(), 1059), Ok(2));
    assert_eq!(read_by(them, &region, region.stag(), 1060), Err(AccessError::Bounds));
    // An STag that was invalidated is not valid again; the region has another.
    let third = region.stag();
    region.invalidate();
    region.change(rights(Access::REMOTE_READ)).unwrap();
    assert_ne!(region.stag(), third);
    assert_eq!(read_by(them, &region, third, 1000), Err(AccessError::InvalidStag));
    assert_eq!(read_by(them, &region, region.stag(), 1000), Ok(2));
    assert_eq!(region.deregister().as_slice(), [2; 60]);
    assert_eq!((table.regions(), table.registered_octets()), (0, 0));
}

#[test]
fn a_change_that_cannot_be_leaves_everything_as_it_was() {
    let table = RegionTable::new(4, 100, 1);
    let domain = DomainId(1);
    let us = Association { domain, stream: StreamId(1) };
    let access = Access::REMOTE_READ | Access::LOCAL_WRITE;
    let mut region = table.register(vec![1; 40], access, Scope::Domain(domain), TaggedBase::Zero).unwrap();
    let stag = region.stag();
    let memory =
        |length, base| RegionChange { memory: Some((vec![2; length].into(), base)), ..RegionChange::default() };
    let (change, error) = region.change(memory(101, TaggedBase::Zero)).unwrap_err();
    let quota = RegisterError::Quota { asked: 101, registered: 0, quota: 100 };
    assert_eq!((error, change.memory.map(|(buffer, _)| buffer.len())), (ChangeError::Register(quota), Some(101)));
    let (_, error) = region.change(memory(2, TaggedBase::At(u64::MAX))).unwrap_err();
    assert_eq!(error, ChangeError::Register(RegisterError::Wrap { base: u64::MAX, length: 2 }));
    // Windows would lead nowhere, or to other memory.
    let mut window = table.allocate_window(domain, 1).unwrap();
    {
        let mut epoch = table.engine();
        let piece = crate::BindPiece { stag, offset: 0, length: 8 };
        epoch.enter().bind(us, window.next_stag(), 0, Access::REMOTE_WRITE, [piece].into_iter()).unwrap();
    }
    assert_eq!(region.change(memory(8, TaggedBase::Zero)).unwrap_err().1, ChangeError::Bound);
    assert_eq!((region.stag(), region.len(), table.registered_octets()), (stag, 40, 40));
    assert_eq!(read_by(us, &region, stag, 39), Ok(1));
    drop(window);
    assert!(region.change(memory(8, TaggedBase::Zero)).is_ok());
    let buffer = vec![0; 8].into();
    let mut kept = table.register_persistent(buffer, access, Scope::Domain(domain), TaggedBase::Zero, false).unwrap();
    assert_eq!(kept.change(memory(8, TaggedBase::Zero)).unwrap_err().1, ChangeError::Durable);
}
