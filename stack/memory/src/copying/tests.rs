use super::*;
use crate::access::{Access, DomainId, Scope};
use crate::options::TaggedBase;
use crate::table::RegionTable;

fn registered(octets: Vec<u8>) -> Registration {
    let scope = Scope::Domain(DomainId(1));
    RegionTable::new(4, 1 << 20, 1).register(octets, Access::ALL, scope, TaggedBase::Virtual).unwrap()
}

fn numbers(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * at % 251) as u8).collect()
}

#[test]
fn a_copy_is_what_a_slices_copy_would_be() {
    for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
        let (from, to) = (registered(numbers(20_000)), registered(vec![0; 20_000]));
        from.copy_to(7, length, &to, 9).unwrap();
        let octets = to.deregister().into_vec().unwrap();
        assert!(octets[9..9 + length] == numbers(20_000)[7..7 + length]);
        assert!(octets[..9].iter().chain(&octets[9 + length..]).all(|octet| *octet == 0));
    }
}

#[test]
fn ranges_of_one_region_may_overlap() {
    for (from, to) in [(100, 101), (101, 100), (100, 100 + PIECE), (100 + PIECE, 100), (100, 100), (0, 6000)] {
        let length = 3 * PIECE + 11;
        let region = registered(numbers(20_000));
        region.copy_to(from, length, &region, to).unwrap();
        let mut expected = numbers(20_000);
        expected.copy_within(from..from + length, to);
        assert!(region.deregister().as_slice() == expected, "from {from} to {to}");
    }
}

#[test]
fn chunks_are_the_range_and_a_checksum_is_that_of_a_slice() {
    let (content, region) = (numbers(3 * CHUNK), registered(numbers(3 * CHUNK)));
    for (offset, length) in [(0, 0), (5, 1), (0, CHUNK), (3, 2 * CHUNK + 7), (3 * CHUNK, 0)] {
        let mut seen = Vec::new();
        region.read_chunks(offset, length, |chunk| seen.extend_from_slice(chunk)).unwrap();
        assert!(seen == content[offset..offset + length]);
        assert_eq!(region.crc32c(offset, length), Ok(kernels::crc32c(&seen)));
    }
}

#[test]
fn ranges_outside_of_a_region_are_refused() {
    let (region, other) = (registered(vec![1; 10]), registered(vec![2; 5]));
    assert_eq!(region.copy_to(0, 6, &other, 0), Err(RangeError::Bounds));
    assert_eq!(region.copy_to(6, 5, &other, 0), Err(RangeError::Bounds));
    assert_eq!(region.copy_to(0, 2, &other, usize::MAX), Err(RangeError::Bounds));
    assert_eq!(region.read_chunks(6, 5, |_| panic!("nothing is read")), Err(RangeError::Bounds));
    assert_eq!(region.crc32c(11, 0), Err(RangeError::Bounds));
    assert_eq!(other.deregister().as_slice(), [2; 5]);
}
