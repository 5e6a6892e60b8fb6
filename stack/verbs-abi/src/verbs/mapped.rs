//! Whether memory that is to be registered is there and has the rights that are asked for, as a driver finds when it
//! pins the pages. The kernel's table of mappings says so; the memory itself stays as it is.

use crate::errno::Errno;
use rustix::io::Errno as Os;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Take};
use std::os::fd::AsRawFd;

/// The table of this process. Without /proc, or a free descriptor, all memory is taken for usable.
const TABLE: &str = "/proc/self/maps";

/// A kernel without a question for one mapping (before Linux 6.11) prints all of them, about 80 octets each. What lies
/// behind this many octets is taken for usable: a program with very many mappings would wait long for each region.
const MOST_TEXT: u64 = 256 << 10;

/// A mapping of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    end: u64,
    readable: bool,
    writable: bool,
    /// It may be longer than its file.
    is_of_file: bool,
}

/// What the table says about an address.
type Answer = Result<Mapping, Unmapped>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmapped {
    Hole,
    /// It is not known.
    Unknown,
}

/// Checks that every octet is mapped and may be read, or written if the region `is_written`.
///
/// # Errors
/// EFAULT.
pub(crate) fn check(address: usize, length: usize, is_written: bool) -> Result<(), Errno> {
    let Ok(table) = File::open(TABLE) else { return Ok(()) };
    let (start, end) = (address as u64, address as u64 + length as u64);
    match ask(&table, start) {
        Err(Os::NOTTY) => {
            let mut text = BufReader::new(table.take(MOST_TEXT));
            is_usable(start, end, is_written, |at| find(&mut text, at))
        }
        _ => is_usable(start, end, is_written, |at| {
            ask(&table, at).map_err(|error| if error == Os::NOENT { Unmapped::Hole } else { Unmapped::Unknown })
        }),
    }
}

fn is_usable(start: u64, end: u64, is_written: bool, mut mapping: impl FnMut(u64) -> Answer) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let found = match mapping(at) {
            Ok(found) => found,
            Err(Unmapped::Hole) => return Err(EFAULT),
            Err(Unmapped::Unknown) => return Ok(()),
        };
        let is_right = if is_written { found.writable } else { found.readable };
        let last = found.end.min(end) - 1;
        if !is_right || found.is_of_file && is_beyond_file(last) {
            return Err(EFAULT);
        }
        at = found.end;
    }
    Ok(())
}

const EFAULT: Errno = Errno(libc::EFAULT);

/// Whether an access to an octet of a file's mapping would be SIGBUS. The kernel looks for its page, as for a program
/// that reads there; a kernel that does not know the question (before Linux 5.14) leaves it open.
fn is_beyond_file(octet: u64) -> bool {
    let page = page_size();
    let start = octet as usize & !(page - 1);
    // SAFETY: the advice reads at most, and the program's own memory; it reports instead of faulting.
    let done = unsafe { libc::madvise(std::ptr::without_provenance_mut(start), page, libc::MADV_POPULATE_READ) };
    done == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

fn page_size() -> usize {
    // SAFETY: a call about a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
/// PROCMAP_QUERY.
const QUERY: libc::Ioctl = libc::_IOWR::<Query>(b'f' as u32, 17);

/// The mapping that has an address. NOENT if there is none; NOTTY if the kernel does not answer such questions.
fn ask(table: &File, address: u64) -> Result<Mapping, Os> {
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the structure has the size that it says, and names no other memory.
    if unsafe { libc::ioctl(table.as_raw_fd(), QUERY, &raw mut query) } == -1 {
        return Err(Os::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Os::INVAL));
    }
    Ok(Mapping {
        end: query.end,
        readable: query.rights & READABLE != 0,
        writable: query.rights & WRITABLE != 0,
        is_of_file: query.inode != 0,
    })
}

/// The same from the table's text, for addresses in ascending order.
fn find(text: &mut BufReader<Take<File>>, address: u64) -> Answer {
    let mut line = String::new();
    loop {
        line.clear();
        match text.read_line(&mut line) {
            // The end of the table, and not of what is read of it.
            Ok(0) if text.get_ref().limit() > 0 => return Err(Unmapped::Hole),
            Ok(0) | Err(_) => return Err(Unmapped::Unknown),
            Ok(_) => {}
        }
        let (start, mapping) = parse(&line).ok_or(Unmapped::Unknown)?;
        if address < start {
            return Err(Unmapped::Hole);
        }
        if address < mapping.end {
            return Ok(mapping);
        }
    }
}

/// A line `START-END RIGHTS OFFSET DEVICE INODE PATH`.
fn parse(line: &str) -> Option<(u64, Mapping)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let inode = words.nth(2)?;
    let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).ok());
    let (readable, writable) = (rights.starts_with('r'), rights.get(1..2)? == "w");
    Some((start?, Mapping { end: end?, readable, writable, is_of_file: inode != "0" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
    use std::os::fd::AsFd;
    use std::ptr::null_mut;

    const LENGTH: usize = 1 << 20;

    fn anonymous(rights: ProtFlags) -> usize {
        // SAFETY: new memory.
        unsafe { mmap_anonymous(null_mut(), LENGTH, rights, MapFlags::PRIVATE) }.unwrap().addr()
    }

    /// By the table's text, as older kernels have it.
    fn by_text(address: usize, length: usize, is_written: bool) -> Result<(), Errno> {
        let mut text = BufReader::new(File::open(TABLE).unwrap().take(MOST_TEXT));
        let (start, end) = (address as u64, (address + length) as u64);
        is_usable(start, end, is_written, |at| find(&mut text, at))
    }

    #[track_caller]
    fn both(address: usize, length: usize, is_written: bool, expected: Result<(), Errno>) {
        assert_eq!(check(address, length, is_written), expected, "by a question");
        assert_eq!(by_text(address, length, is_written), expected, "by the text");
    }

    #[test]
    fn memory_is_usable_if_it_is_mapped_with_the_rights_that_are_asked_for() {
        let all = anonymous(ProtFlags::READ | ProtFlags::WRITE);
        both(all, LENGTH, true, Ok(()));
        both(all + 5, 1, false, Ok(()));
        let read_only = anonymous(ProtFlags::READ);
        both(read_only, LENGTH, false, Ok(()));
        both(read_only, LENGTH, true, Err(EFAULT));
        both(anonymous(ProtFlags::empty()), LENGTH, false, Err(EFAULT));
        both(!0xfff, 1, false, Err(EFAULT));
        // One page of many.
        let page = page_size();
        let within = std::ptr::with_exposed_provenance_mut(all + LENGTH / 2);
        // SAFETY: the test's own memory.
        unsafe { mprotect(within, page, MprotectFlags::empty()) }.unwrap();
        both(all, LENGTH, true, Err(EFAULT));
        both(all, LENGTH / 2, true, Ok(()));
        // SAFETY: as above. No other test maps memory there meanwhile: each test has a process of its own.
        unsafe { munmap(within, page) }.unwrap();
        both(all, LENGTH, false, Err(EFAULT));
    }

    #[test]
    fn a_mapping_is_usable_up_to_the_end_of_its_file() {
        let file = memfd_create("mapped", MemfdFlags::CLOEXEC).unwrap();
        let page = page_size();
        ftruncate(&file, page as u64 + 1).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory.
        let start = unsafe { mmap(null_mut(), LENGTH, rights, MapFlags::SHARED, file.as_fd(), 0) }.unwrap().addr();
        both(start, 2 * page, true, Ok(()));
        both(start, 2 * page + 1, true, Err(EFAULT));
        both(start + LENGTH - 1, 1, false, Err(EFAULT));
    }

    #[test]
    fn a_line_of_the_table_is_read() {
        let line = "7f00a000-7f00b000 r--s 00001000 fe:01 1234     /a file (deleted)\n";
        let mapping = Mapping { end: 0x7f00_b000, readable: true, writable: false, is_of_file: true };
        assert_eq!(parse(line), Some((0x7f00_a000, mapping)));
        let line = "1000-2000 -wxp 00000000 00:00 0 \n";
        let mapping = Mapping { end: 0x2000, readable: false, writable: true, is_of_file: false };
        assert_eq!(parse(line), Some((0x1000, mapping)));
        assert_eq!(parse("nonsense\n"), None);
    }
}
