use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::*;
use crate::access::{AccessError, Association, DomainId, StreamId};
use crate::file::{FileErrorReason, write_file};
use crate::kernels;
use crate::mapping::catch_truncated_files;
use crate::window::BindPiece;

const PEER: Association = Association { domain: DomainId(1), stream: StreamId(7) };
const SCOPE: Scope = Scope::Domain(PEER.domain);
const PAGE: usize = 4096;

fn numbers(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * at % 251) as u8).collect()
}

fn file_of(length: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&numbers(length), 0).unwrap();
    file
}

fn registered(table: &Arc<RegionTable>, file: &File, offset: u64, length: usize) -> MappedRegistration {
    catch_truncated_files().unwrap();
    table.register_file(file, offset, length, Access::REMOTE_READ, SCOPE, TaggedBase::Zero).unwrap()
}

#[test]
fn engines_and_the_owner_read_what_is_in_the_file() {
    let table = RegionTable::new(4, 1 << 20, 1);
    let file = file_of(5 * PAGE);
    // Neither the offset nor the length is a multiple of a page.
    let region = registered(&table, &file, PAGE as u64 + 7, 2 * PAGE + 1);
    let expected = &numbers(5 * PAGE)[PAGE + 7..3 * PAGE + 8];
    let mut engine = table.engine();
    let turn = engine.enter();
    let (stag, mut out) = (region.stag(), vec![0; 2 * PAGE + 1]);
    turn.gather(PEER, stag, 0, &mut out, Access::REMOTE_READ).unwrap();
    assert!(out == expected);
    let mut out = vec![0; PAGE];
    let crc = turn.gather_crc(PEER, stag, 9, &mut out, kernels::CRC32C_START, Access::LOCAL_READ).unwrap();
    assert!(out == expected[9..PAGE + 9] && !crc == kernels::crc32c(&out));
    turn.check(PEER, stag, 0, 2 * PAGE as u64 + 1, Access::REMOTE_READ).unwrap();
    assert!(turn.open(PEER, stag, Access::REMOTE_READ).is_none());
    let beyond = turn.gather(PEER, stag, 2 * PAGE as u64 + 1, &mut [0], Access::REMOTE_READ);
    assert_eq!(beyond, Err(AccessError::Bounds));
    assert_eq!(turn.place(PEER, stag, 0, b"x", Access::REMOTE_WRITE), Err(AccessError::Rights));
    assert_eq!(turn.place(PEER, stag, 0, b"x", Access::LOCAL_WRITE), Err(AccessError::Rights));
    drop(turn);
    let mut octets = [0; 3];
    region.read(PAGE, &mut octets).unwrap();
    assert_eq!(octets, expected[PAGE..PAGE + 3]);
    assert_eq!(region.read(2 * PAGE, &mut octets), Err(RangeError::Bounds.into()));
    // Others may write to the file.
    file.write_all_at(b"abc", 2 * PAGE as u64 + 7).unwrap();
    region.read(PAGE, &mut octets).unwrap();
    assert_eq!(&octets, b"abc");
    assert!(!region.is_lost() && region.is_valid() && !region.is_empty());
    drop(region);
    assert_eq!(table.registered_octets(), 0);
}

#[test]
fn a_truncated_file_fails_accesses_and_no_other_file() {
    let table = RegionTable::new(8, 1 << 20, 1);
    let files = [file_of(4 * PAGE), file_of(4 * PAGE)];
    let [region, other] = files.each_ref().map(|file| registered(&table, file, 0, 4 * PAGE));
    let mut window = table.allocate_window(PEER.domain, 2).unwrap();
    let bound = window.next_stag();
    let mut engine = table.engine();
    let turn = engine.enter();
    let pieces = [&other, &region].map(|region| BindPiece { stag: region.stag(), offset: 8, length: 3 * PAGE as u64 });
    turn.bind(PEER, bound, 0, Access::REMOTE_READ, pieces.into_iter()).unwrap();
    let mut out = vec![0; 6 * PAGE];
    turn.gather(PEER, bound, 0, &mut out, Access::REMOTE_READ).unwrap();
    assert!(out[..3 * PAGE] == numbers(4 * PAGE)[8..3 * PAGE + 8] && out[3 * PAGE..] == out[..3 * PAGE]);

    files[0].set_len(PAGE as u64).unwrap();
    // The first page is there, and nobody has missed the others yet.
    turn.gather(PEER, region.stag(), 0, &mut out[..PAGE], Access::REMOTE_READ).unwrap();
    assert!(!region.is_lost());
    let lost = turn.gather(PEER, region.stag(), 2 * PAGE as u64, &mut out[..100], Access::REMOTE_READ);
    assert_eq!(lost, Err(AccessError::InvalidStag));
    assert!(region.is_lost());
    // From then on, nothing of it can be read, by any way.
    let gathered = turn.gather(PEER, region.stag(), 0, &mut out[..1], Access::REMOTE_READ);
    assert_eq!(gathered, Err(AccessError::InvalidStag));
    assert_eq!(
        turn.gather_crc(PEER, region.stag(), 0, &mut out[..1], 0, Access::REMOTE_READ),
        Err(AccessError::InvalidStag)
    );
    let through_window = |from: u64, out: &mut [u8]| turn.gather(PEER, bound, from, out, Access::REMOTE_READ);
    assert_eq!(through_window(3 * PAGE as u64 - 1, &mut out[..2]), Err(AccessError::InvalidStag));
    assert_eq!(region.read(0, &mut [0]), Err(MappedReadError::Lost));
    // The other file is as it was.
    through_window(0, &mut out[..3 * PAGE]).unwrap();
    assert!(out[..3 * PAGE] == numbers(4 * PAGE)[8..3 * PAGE + 8] && !other.is_lost());
    drop(turn);
    // Long enough again, it can be registered again, perhaps in the same place.
    drop(region);
    files[0].write_all_at(&numbers(4 * PAGE), 0).unwrap();
    let again = registered(&table, &files[0], 0, 4 * PAGE);
    let mut octets = vec![0; 4 * PAGE];
    again.read(0, &mut octets).unwrap();
    assert!(octets == numbers(4 * PAGE));
}

#[test]
fn a_system_call_finds_the_truncation_too() {
    let table = RegionTable::new(8, 1 << 20, 1);
    let file = file_of(4 * PAGE);
    let region = registered(&table, &file, 0, 4 * PAGE);
    file.set_len(PAGE as u64).unwrap();
    let error = write_file(&tempfile::tempfile().unwrap(), 0, &[region.0.part(0, 4 * PAGE).unwrap()]).unwrap_err();
    assert_eq!(error.done, PAGE);
    assert!(matches!(&error.reason, FileErrorReason::System(error) if error.raw_os_error() == Some(libc::EFAULT)));
}

#[test]
fn what_is_no_part_of_a_file_to_read_is_refused() {
    catch_truncated_files().unwrap();
    catch_truncated_files().unwrap();
    let table = RegionTable::new(4, 5 * PAGE as u64, 1);
    let file = file_of(4 * PAGE);
    let register = |file: &File, offset, length, access| {
        table.register_file(file, offset, length, access, SCOPE, TaggedBase::Zero).map(drop)
    };
    for (offset, length) in [(0, 4 * PAGE + 1), (4 * PAGE as u64, 1), (u64::MAX, 1)] {
        let error = register(&file, offset, length, Access::REMOTE_READ).unwrap_err();
        assert!(matches!(error, MapError::EndOfFile { length: 0x4000, .. }), "{error}");
    }
    for access in [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::ALL] {
        let error = register(&file, 0, PAGE, access).unwrap_err();
        assert!(matches!(error, MapError::Access(refused) if refused == access), "{error}");
    }
    let write_only = File::options().write(true).open("/dev/null").unwrap();
    assert!(matches!(register(&write_only, 0, 0, Access::LOCAL_READ), Err(MapError::System(_))));
    let big = file_of(6 * PAGE);
    let error = register(&big, 0, 6 * PAGE, Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, MapError::Register(RegisterError::Quota { .. })), "{error}");
    register(&file, 4 * PAGE as u64, 0, Access::LOCAL_READ).unwrap();
    assert_eq!(table.registered_octets(), 0);
}

/// Runs this test again in a process of its own, where `body` is carried out instead. Whether that ended well.
fn ends_well(name: &str, body: impl FnOnce()) -> bool {
    const APART: &str = "UWARP_MEMORY_TEST_APART";
    if std::env::var_os(APART).is_some() {
        body();
        std::process::exit(0);
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let name = format!("mapped::tests::{name}");
    again.args([&name, "--exact", "--nocapture"]).env(APART, "1").output().unwrap().status.success()
}

/// Reads the second page of a file that has one only.
fn fault() {
    let file = file_of(1);
    // SAFETY: the system chooses where.
    let start = unsafe { mmap(std::ptr::null_mut(), 2 * PAGE, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    // SAFETY: it is mapped; what happens there is the point.
    let octet = unsafe { start.cast::<u8>().add(PAGE).read_volatile() };
    println!("{octet}");
}

#[test]
fn without_the_handler_files_are_refused() {
    let ended_well = ends_well("without_the_handler_files_are_refused", || {
        let table = RegionTable::new(4, 1 << 20, 1);
        let result = table.register_file(&file_of(1), 0, 1, Access::LOCAL_READ, SCOPE, TaggedBase::Zero);
        assert!(matches!(result, Err(MapError::NotCaught)));
    });
    assert!(ended_well);
}

#[test]
fn faults_elsewhere_end_the_process_as_before() {
    let ended_well = ends_well("faults_elsewhere_end_the_process_as_before", || {
        let table = RegionTable::new(4, 1 << 20, 1);
        let _region = registered(&table, &file_of(PAGE), 0, PAGE);
        fault();
    });
    assert!(!ended_well);
}

#[test]
fn a_signal_that_was_sent_ends_the_process_as_before() {
    let ended_well = ends_well("a_signal_that_was_sent_ends_the_process_as_before", || {
        catch_truncated_files().unwrap();
        // Rust's own handler takes the first one for a fault that comes again.
        for _ in 0..2 {
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGBUS) };
        }
    });
    assert!(!ended_well);
}

/// Installs a handler, and then faults elsewhere. The handler is to end the process.
fn fault_with(handler: usize, flags: i32) {
    // SAFETY: all zeros are an action, and the handler is one for these flags.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
    catch_truncated_files().unwrap();
    fault();
    std::process::exit(4);
}

#[test]
fn a_handler_with_information_that_was_there_gets_all_others() {
    extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system gives a valid one.
        let code = unsafe { (*info).si_code };
        std::process::exit(if code == libc::BUS_ADRERR { 0 } else { 3 });
    }
    let body = || fault_with(handler as *const () as usize, libc::SA_SIGINFO);
    assert!(ends_well("a_handler_with_information_that_was_there_gets_all_others", body));
}

#[test]
fn a_plain_handler_that_was_there_gets_all_others() {
    extern "C" fn handler(signal: i32) {
        std::process::exit(if signal == libc::SIGBUS { 0 } else { 3 });
    }
    let body = || fault_with(handler as *const () as usize, 0);
    assert!(ends_well("a_plain_handler_that_was_there_gets_all_others", body));
}
