use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::*;
use crate::access::{Access, DomainId, Scope};
use crate::options::TaggedBase;
use crate::table::RegionTable;

fn registered(octets: Vec<u8>) -> Registration {
    let scope = Scope::Domain(DomainId(1));
    RegionTable::new(4, 1 << 20, 1).register(octets, Access::ALL, scope, TaggedBase::Virtual).unwrap()
}

fn numbers(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn file_with(octets: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(octets, 0).unwrap();
    file
}

fn reason_of(error: &FileError) -> Option<Errno> {
    match &error.reason {
        FileErrorReason::System(error) => Errno::from_io_error(error),
        _ => None,
    }
}

#[test]
fn octets_go_from_a_file_to_memory_and_back() {
    let (content, region) = (numbers(10_000), registered(vec![0; 10_000]));
    let file = file_with(&content);
    read_file(&file, 0, &[region.part(0, 10_000).unwrap()]).unwrap();
    read_file(&file, 20_000, &[region.part(10_000, 0).unwrap()]).unwrap();
    read_file(&file, 20_000, &[]).unwrap();
    let copy = tempfile::tempfile().unwrap();
    write_file(&copy, 7, &[region.part(3, 9_000).unwrap()]).unwrap();
    let mut out = vec![0; 9_007];
    copy.read_exact_at(&mut out, 0).unwrap();
    assert_eq!(out[..7], [0; 7]);
    assert!(out[7..] == content[3..9_003]);
    assert!(region.deregister().as_slice() == content);
}

#[test]
fn parts_lie_behind_each_other_in_the_file_however_many_there_are() {
    let (content, regions) = (numbers(700), [registered(vec![0; 700]), registered(vec![0; 700])]);
    let file = file_with(&content);
    // More than one call takes, some empty, alternately from two regions, from the end to the beginning.
    let parts: Vec<_> = (0..200).map(|part| regions[part % 2].part(3 * (199 - part), part % 3).unwrap()).collect();
    let length: usize = parts.iter().map(RegionPart::len).sum();
    assert!(parts[0].is_empty() && length == 199);
    read_file(&file, 100, &parts).unwrap();
    let copy = tempfile::tempfile().unwrap();
    write_file(&copy, 0, &parts).unwrap();
    let mut out = vec![0; length];
    copy.read_exact_at(&mut out, 0).unwrap();
    assert!(out == content[100..100 + length]);
    let mut octets = [0; 2];
    regions[1].read(3 * 198, &mut octets[..1]).unwrap();
    assert_eq!(octets[0], content[100], "the second part has the first octet");
}

#[test]
fn a_range_outside_of_the_region_is_no_part() {
    let region = registered(vec![0; 10]);
    for (offset, length) in [(0, 11), (11, 0), (5, 6), (usize::MAX, 2)] {
        assert_eq!(region.part(offset, length).unwrap_err(), RangeError::Bounds);
    }
}

#[test]
fn the_end_of_the_file_is_an_error_that_says_how_far_it_came() {
    let region = registered(vec![9; 100]);
    let parts = [region.part(0, 30).unwrap(), region.part(50, 30).unwrap()];
    let file = file_with(&numbers(45));
    let error = read_file(&file, 5, &parts).unwrap_err();
    assert!(matches!(error, FileError { done: 40, reason: FileErrorReason::EndOfFile }), "{error}");
    assert_eq!(error.to_string(), "the file ends before the range (40 octets were moved before)");
    // Truncated meanwhile.
    read_file(&file, 0, &parts[..1]).unwrap();
    file.set_len(10).unwrap();
    let error = read_file(&file, 0, &parts[..1]).unwrap_err();
    assert!(matches!(error, FileError { done: 10, reason: FileErrorReason::EndOfFile }), "{error}");
    let octets = region.deregister().into_vec().unwrap();
    assert_eq!((&octets[50..60], &octets[60..]), (&numbers(45)[35..45], &[9; 40][..]));
}

#[test]
fn what_the_system_refuses_has_its_number() {
    let region = registered(vec![0; 100]);
    let part = [region.part(0, 100).unwrap()];
    let read_only = tempfile::NamedTempFile::new().unwrap().reopen().unwrap();
    let read_only = File::open(format!("/proc/self/fd/{}", read_only.as_raw_fd())).unwrap();
    let write_only = File::options().write(true).open("/dev/null").unwrap();
    let (pipe, _pipe) = rustix::pipe::pipe().unwrap();
    let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
    let full = File::options().write(true).open("/dev/full").unwrap();
    for (error, errno) in [
        (write_file(&read_only, 0, &part), Errno::BADF),
        (read_file(&write_only, 0, &part), Errno::BADF),
        (write_file(&full, 0, &part), Errno::NOSPC),
        (read_file(&open("/"), 0, &part), Errno::ISDIR),
        // Nothing is mapped there.
        (read_file(&open("/proc/self/mem"), 0, &part), Errno::IO),
        (read_file(&pipe, 0, &part), Errno::SPIPE),
        (read_file(&file_with(b""), u64::MAX, &part), Errno::OVERFLOW),
        (write_file(&file_with(b""), 1 << 63, &part), Errno::OVERFLOW),
    ] {
        let error = error.unwrap_err();
        assert_eq!((error.done, reason_of(&error)), (0, Some(errno)), "{error}");
    }
}

#[test]
fn a_file_that_cannot_grow_further_has_what_was_moved_before() {
    let file = File::from(rustix::fs::memfd_create("limited", MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(8192).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let region = registered(numbers(12_288));
    let error = write_file(&file, 0, &[region.part(0, 12_288).unwrap()]).unwrap_err();
    assert_eq!((error.done, reason_of(&error)), (8192, Some(Errno::PERM)), "{error}");
    let mut out = vec![0; 8192];
    file.read_exact_at(&mut out, 0).unwrap();
    assert!(out == numbers(8192));
}

#[test]
fn signals_and_short_calls_are_gone_on_from() {
    let region = registered(vec![0; 100]);
    let parts = [region.part(0, 10).unwrap(), region.part(20, 0).unwrap(), region.part(30, 40).unwrap()];
    let start = region.address().addr();
    let calls = RefCell::new(Vec::new());
    let call = |_: RawFd, pieces: &[libc::iovec], offset: i64| {
        let mut calls = calls.borrow_mut();
        let first = pieces[0];
        calls.push((offset, first.iov_base.addr() - start, first.iov_len, pieces.len()));
        match calls.len() {
            1 => 4,
            2 => {
                // SAFETY: a place of this thread.
                unsafe { *libc::__errno_location() = libc::EINTR };
                -1
            }
            3 => 6,
            _ => 20,
        }
    };
    transfer(0, 1000, &parts, call, || FileErrorReason::EndOfFile).unwrap();
    assert_eq!(
        *calls.borrow(),
        [(1000, 0, 10, 3), (1004, 4, 6, 3), (1004, 4, 6, 3), (1010, 30, 40, 1), (1030, 50, 20, 1)]
    );
    let error = transfer(0, 0, &parts, |_, _, _| 0, || io::Error::from(io::ErrorKind::WriteZero).into()).unwrap_err();
    assert_eq!((error.done, reason_of(&error)), (0, None));
}
