//! Durable regions: memory that peers write, and the files that store what they commit.

use crate::error::Error;
use crate::rdma::domain::ProtectionDomain;
use crate::rdma::region::{self, MemoryRegion, RegionOptions, RegionScope};
use crate::runtime::context::Shared;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use uwarp_memory::{Access, PageAdvice, RegionBuffer, Store};

/// The kind of a region's memory, which decides what a Commit means (draft-talpey-rdma-commit §3.1.1). Peers cannot see
/// it. The third kind, persistent memory, has its own call
/// ([`ProtectionDomain::register_persistent`](crate::ProtectionDomain::register_persistent)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryType {
    /// Ordinary memory. A Commit succeeds and promises nothing.
    Plain,
    /// Ordinary memory with files behind it: a Commit is answered after the octets are written there and synced, by a
    /// thread of the region.
    CommitRequired {
        /// In addition, a peer's Send or Immediate Data is delivered only when everything that this peer has written to
        /// the region before is durable. If that fails, the receive completes with
        /// [`Status::CommitFailed`](crate::Status::CommitFailed), although the message has arrived. Later requests of
        /// the peer (Reads, atomics, Commits) are answered after the message.
        transparent: bool,
    },
}

/// One of the ranges that make up a region.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MemoryRange<'a> {
    /// Zeros, this many octets.
    Zeroed(usize),
    /// A copy of these octets.
    Octets(&'a [u8]),
    /// Octets of a file, which must be open for reading and, for commits, writing. It is extended if it ends before the
    /// range does. A durable region reopens it through `/proc`, so that no other sync consumes the errors that its
    /// commits must report. So the process needs permission to open the file again, whoever opened it first.
    File {
        /// The file.
        file: &'a File,
        /// Offset of the range in the file.
        offset: u64,
        /// Length of the range in octets.
        length: usize,
    },
}

impl MemoryRange<'_> {
    fn len(&self) -> usize {
        match self {
            MemoryRange::Zeroed(length) | MemoryRange::File { length, .. } => *length,
            MemoryRange::Octets(octets) => octets.len(),
        }
    }
}

impl ProtectionDomain {
    /// Registers ranges, which lie behind each other in one region of the given type. A durable region begins with what
    /// its files hold.
    ///
    /// # Errors
    /// A file that cannot be read or made long enough, a durable region of something else than files, and what
    /// [`register`](Self::register) refuses.
    pub fn register_ranges(
        &self,
        ranges: &[MemoryRange<'_>],
        memory_type: MemoryType,
        access: Access,
        scope: RegionScope<'_>,
    ) -> Result<MemoryRegion, Error> {
        register_ranges(self.shared(), self.number(), ranges, memory_type, access, scope)
    }
}

/// Registers ranges as one region, in their order.
pub(crate) fn register_ranges(
    shared: &Arc<Shared>,
    domain: u32,
    ranges: &[MemoryRange<'_>],
    memory_type: MemoryType,
    access: Access,
    scope: RegionScope<'_>,
) -> Result<MemoryRegion, Error> {
    let length = ranges.iter().try_fold(0usize, |sum, range| sum.checked_add(range.len()));
    let length = length.ok_or_else(|| Error::argument("the ranges", "more than the address space", "register less"))?;
    let mut buffer =
        RegionBuffer::zeroed(length, PageAdvice::Normal).map_err(Error::system("no memory for a region"))?;
    let mut files = Files::default();
    let mut rest = buffer.as_mut_slice();
    for range in ranges {
        let (part, behind) = rest.split_at_mut(range.len());
        rest = behind;
        match *range {
            MemoryRange::File { file, offset, .. } => {
                fill(part, file, offset).map_err(Error::system("a range of a file cannot be read"))?;
                if memory_type != MemoryType::Plain {
                    files.add(file, offset, part.len() as u64)?;
                }
            }
            _ if memory_type != MemoryType::Plain => {
                return Err(Error::argument(
                    "a range of a durable region",
                    "not a file's",
                    "choose MemoryRange::File, or MemoryType::Plain",
                ));
            }
            MemoryRange::Octets(octets) => part.copy_from_slice(octets),
            MemoryRange::Zeroed(_) => {}
        }
    }
    match memory_type {
        MemoryType::Plain => {
            region::register(shared, domain, buffer, &RegionOptions::new(access).scope(scope)).map_err(|it| it.error)
        }
        MemoryType::CommitRequired { transparent } => {
            region::register_durable(shared, domain, buffer, access, scope, Box::new(files), transparent)
        }
    }
}

/// Reads a part of a region from a file. Beyond the file's end the part stays zero; writing it extends the file.
fn fill(part: &mut [u8], file: &File, offset: u64) -> io::Result<()> {
    let mut at = 0;
    while at < part.len() {
        match file.read_at(&mut part[at..], offset + at as u64) {
            Ok(0) => break,
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reopens a file with the same access. Linux reports a failed write-back once for each open file (`errseq_t`). With a
/// duplicate, the first sync would get the error, even the application's own, and the next Commit would succeed.
fn open_anew(file: &File) -> io::Result<File> {
    let mode = rustix::fs::fcntl_getfl(file)? & OFlags::ACCMODE;
    File::options()
        .read(mode != OFlags::WRONLY)
        .write(mode != OFlags::RDONLY)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The files behind a region.
#[derive(Debug, Default)]
struct Files {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    file: File,
    /// The application's own open file: its lock (`flock`) is held as long as commits may change the file.
    _locked: File,
    /// Its start in the region and in the file, and its length.
    start: u64,
    offset: u64,
    length: u64,
    /// Written since the last sync.
    dirty: bool,
}

impl Files {
    fn add(&mut self, file: &File, offset: u64, length: u64) -> Result<(), Error> {
        let locked = file.try_clone().map_err(Error::system("a file of a durable region cannot be kept open"))?;
        let file =
            open_anew(file).map_err(Error::system("a file of a durable region cannot be opened anew by /proc"))?;
        let end = offset.checked_add(length).ok_or_else(|| {
            Error::argument(
                "a range of a file",
                format!("{length} octets at {offset}"),
                "choose one that a file can have",
            )
        })?;
        let metadata = file.metadata().map_err(Error::system("a file of a durable region cannot be looked at"))?;
        if metadata.len() < end {
            file.set_len(end).map_err(Error::system("a file of a durable region cannot be made long enough"))?;
        }
        let start = self.pieces.last().map_or(0, |last| last.start + last.length);
        self.pieces.push(Piece { file, _locked: locked, start, offset, length, dirty: false });
        Ok(())
    }
}

impl Store for Files {
    fn write(&mut self, offset: u64, octets: &[u8]) -> io::Result<()> {
        let end = offset + octets.len() as u64;
        for piece in &mut self.pieces {
            let (from, to) = (offset.max(piece.start), end.min(piece.start + piece.length));
            if from < to {
                piece.dirty = true;
                let part = &octets[(from - offset) as usize..(to - offset) as usize];
                piece.file.write_all_at(part, piece.offset + (from - piece.start))?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        // If a file backs several ranges, the second sync finds nothing left to do, and gets the same errors.
        for piece in self.pieces.iter_mut().filter(|piece| piece.dirty) {
            piece.file.sync_data()?;
            piece.dirty = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_files_lie_behind_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str, octets: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, octets).unwrap();
            (File::options().read(true).write(true).open(&path).unwrap(), path)
        };
        let (first, first_path) = open("first", b"0123456789");
        let (second, second_path) = open("second", b"abc");
        let mut files = Files::default();
        files.add(&first, 2, 3).unwrap();
        files.add(&second, 1, 6).unwrap();
        files.add(&first, 8, 2).unwrap();
        assert_eq!(std::fs::read(&second_path).unwrap(), b"abc\0\0\0\0");
        files.write(1, b"ABCDEFGHI").unwrap();
        files.sync().unwrap();
        assert_eq!(std::fs::read(&first_path).unwrap(), b"012AB567I9");
        assert_eq!(std::fs::read(&second_path).unwrap(), b"aCDEFGH");
        assert!(files.pieces.iter().all(|piece| !piece.dirty));
        let mut part = [9; 8];
        part[7] = 7;
        fill(&mut part[..7], &first, 6).unwrap();
        assert_eq!(&part, b"67I9\x09\x09\x09\x07");
    }

    #[test]
    fn a_region_and_what_the_application_does_with_its_file_are_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let [mut one, mut other] = [Files::default(), Files::default()];
        one.add(&file, 2, 3).unwrap();
        other.add(&file, 6, 2).unwrap();
        // Flags of an open file apply to all its duplicates, and a write-back error is reported once to all of them. If
        // a file is open for appending, Linux writes at its end whatever the offset.
        for open in [&file, &one.pieces[0].file] {
            rustix::fs::fcntl_setfl(open, OFlags::APPEND).unwrap();
        }
        other.write(0, b"ab").unwrap();
        other.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"012345ab89");
        rustix::fs::fcntl_setfl(&one.pieces[0].file, OFlags::empty()).unwrap();
        drop((file, other));
        std::fs::remove_file(&path).unwrap();
        one.write(0, b"c").unwrap();
        one.sync().unwrap();
        let mut octets = [0; 3];
        one.pieces[0].file.read_exact_at(&mut octets, 2).unwrap();
        assert_eq!(&octets, b"c34");
    }

    #[test]
    fn a_file_that_cannot_be_written_fails_the_commit_and_not_the_region() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"0123").unwrap();
        let mut files = Files::default();
        files.add(&File::open(&path).unwrap(), 0, 4).unwrap();
        assert!(files.write(0, b"x").is_err());
    }
}
