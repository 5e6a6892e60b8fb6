use super::*;

#[test]
fn vector_comes_back_as_it_was() {
    let mut vector = Vec::with_capacity(100);
    vector.extend_from_slice(b"octets");
    let (pointer, capacity) = (vector.as_ptr(), vector.capacity());
    let mut buffer = RegionBuffer::from(vector);
    assert_eq!((buffer.len(), buffer.is_empty()), (6, false));
    buffer.as_mut_slice()[0] = b'O';
    assert_eq!(buffer.as_slice(), b"Octets");
    let vector = buffer.into_vec().unwrap();
    assert_eq!((vector.as_ptr(), vector.capacity()), (pointer, capacity));
    assert_eq!(vector, b"Octets");
}

#[test]
fn boxed_octets_are_a_vector() {
    let buffer = RegionBuffer::from(vec![1, 2, 3].into_boxed_slice());
    assert_eq!(buffer.into_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn mapping_is_zero_and_page_aligned() {
    for advice in [PageAdvice::Normal, PageAdvice::Huge] {
        for length in [0, 1, 4096, 5000, 3 << 20] {
            let mut buffer = RegionBuffer::zeroed(length, advice).unwrap();
            assert_eq!(buffer.len(), length);
            assert!(buffer.as_slice().iter().all(|&octet| octet == 0));
            if length > 0 {
                assert!(buffer.start().addr().get().is_multiple_of(4096));
                buffer.as_mut_slice()[length - 1] = 1;
                assert_eq!(buffer.into_vec().unwrap_err().as_slice()[length - 1], 1);
            }
        }
    }
}

#[test]
fn mapping_beyond_the_address_space_is_an_error() {
    RegionBuffer::zeroed(isize::MAX as usize, PageAdvice::Normal).unwrap_err();
}

#[test]
fn raw_memory_stays_with_its_owner() {
    let mut owner = vec![5u8; 32];
    let start = NonNull::new(owner.as_mut_ptr()).unwrap();
    // SAFETY: the vector is not touched until the buffer is dropped.
    let mut buffer = unsafe { RegionBuffer::raw(start, 32) };
    buffer.as_mut_slice()[31] = 6;
    let buffer = buffer.into_vec().unwrap_err();
    assert_eq!(buffer.as_slice()[30..], [5, 6]);
    drop(buffer);
    assert_eq!(owner[30..], [5, 6]);
}
