//! Durable regions: memory that peers write, and the files that store what they commit.

use crate::error::Error;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use uwarp_memory::{PageAdvice, RegionBuffer, Store};

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

/// Ranges of files, one behind the other, as the store of a durable region
/// ([`RegionOptions::store`](crate::RegionOptions::store)).
///
/// ```
/// # use uwarp::{Access, Config, Context, FileStore, RegionOptions};
/// # let (context, _peer) =
/// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
/// # let domain = context.allocate_domain();
/// # let file = tempfile::tempfile()?;
/// let mut store = FileStore::default();
/// store.add(&file, 0, 4096)?;
/// let region = domain.register(store.load()?, RegionOptions::new(Access::REMOTE_WRITE).store(store))?;
/// # assert!(region.is_durable());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct FileStore {
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

impl FileStore {
    /// Adds `length` octets of a file, from `offset` on, behind the ranges that are there. The file must be open for
    /// reading and, for Commits, writing. It is extended if it ends before the range does.
    ///
    /// The store reopens the file through `/proc`, so that no other sync consumes the errors that Commits must report.
    /// So the process needs permission to open the file again, whoever opened it first.
    ///
    /// # Errors
    /// The file cannot be opened again or made long enough.
    pub fn add(&mut self, file: &File, offset: u64, length: u64) -> Result<(), Error> {
        let start = self.pieces.last().map_or(0, |last| last.start + last.length);
        let end = offset.checked_add(length).filter(|_| start.checked_add(length).is_some()).ok_or_else(|| {
            Error::argument(
                "a range of a file",
                format!("{length} octets at {offset}"),
                "choose one that a file can have",
            )
        })?;
        let locked = file.try_clone().map_err(Error::system("a file of a durable region cannot be kept open"))?;
        let file =
            open_anew(file).map_err(Error::system("a file of a durable region cannot be opened anew by /proc"))?;
        let metadata = file.metadata().map_err(Error::system("a file of a durable region cannot be looked at"))?;
        if metadata.len() < end {
            file.set_len(end).map_err(Error::system("a file of a durable region cannot be made long enough"))?;
        }
        self.pieces.push(Piece { file, _locked: locked, start, offset, length, dirty: false });
        Ok(())
    }

    /// What the files hold, as the memory of the region.
    ///
    /// # Errors
    /// A file cannot be read, or there is no memory for the ranges.
    pub fn load(&self) -> Result<RegionBuffer, Error> {
        let length = self.pieces.last().map_or(0, |last| last.start + last.length);
        let mut buffer = RegionBuffer::zeroed(length as usize, PageAdvice::Normal)
            .map_err(Error::system("no memory for a region"))?;
        let mut rest = buffer.as_mut_slice();
        for piece in &self.pieces {
            let (part, behind) = rest.split_at_mut(piece.length as usize);
            fill(part, &piece.file, piece.offset).map_err(Error::system("a range of a file cannot be read"))?;
            rest = behind;
        }
        Ok(buffer)
    }
}

impl Store for FileStore {
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
        let mut files = FileStore::default();
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
        let [mut one, mut other] = [FileStore::default(), FileStore::default()];
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
        let mut files = FileStore::default();
        files.add(&File::open(&path).unwrap(), 0, 4).unwrap();
        assert!(files.write(0, b"x").is_err());
    }
}
