//! Octets between files and registered memory, without a buffer in between: the kernel moves them.

#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use thiserror::Error;

use crate::registration::{RangeError, Registration};

/// Pieces of memory that one system call takes at most; further ones are left to the next call.
const PIECES: usize = 64;

/// Octets that did not get from a file to registered memory, or back.
#[derive(Debug, Error)]
#[error("{reason} ({done} octets were moved before)")]
pub struct FileError {
    /// Octets, from the first one on, that were moved before.
    pub done: usize,
    /// Why the next one was not.
    pub reason: FileErrorReason,
}

/// Why an octet was not moved between a file and registered memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileErrorReason {
    /// The range is not inside the region. Nothing was moved.
    #[error("octets {start}..{end} are outside of a memory region of {len} octets")]
    OutOfRegion {
        /// First octet of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The file ends before the range does: it is shorter than the caller believed, or was truncated meanwhile.
    #[error("the file ends before the range")]
    EndOfFile,
    /// The system refused: the disk is full (ENOSPC) or broken (EIO), or the file is not open for this.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A part of a registered region, which [`read_file`] and [`write_file`] move octets to and from.
#[derive(Clone, Copy, Debug)]
pub struct RegionPart<'a> {
    start: NonNull<u8>,
    length: usize,
    region: PhantomData<&'a Registration>,
}

impl RegionPart<'_> {
    /// Octets.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Registration {
    /// The `length` octets from `offset` on.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn part(&self, offset: usize, length: usize) -> Result<RegionPart<'_>, RangeError> {
        Ok(RegionPart { start: self.locate(offset, length)?, length, region: PhantomData })
    }
}

/// Fills the parts, one behind the other, with the octets of a file from `offset` on. Signals and short reads do not
/// end it. The file's position stays where it is.
///
/// Peers may access the parts meanwhile: what they write there mixes with what comes from the file.
///
/// # Errors
/// The file ends too early, or cannot be read there. The first `done` octets of the parts are filled, and octets behind
/// them may be, too.
pub fn read_file(file: &impl AsFd, offset: u64, parts: &[RegionPart<'_>]) -> Result<(), FileError> {
    let read = |file, pieces: &[libc::iovec], offset| {
        // SAFETY: the pieces are valid for writes as long as `parts` is: they lie within registrations, which are
        // borrowed. No reference to their octets exists, and the kernel writes them as a peer may.
        unsafe { libc::preadv(file, pieces.as_ptr(), pieces.len() as i32, offset) }
    };
    transfer(file.as_fd().as_raw_fd(), offset, parts, read, || FileErrorReason::EndOfFile)
}

/// Writes the octets of the parts, one behind the other, to a file from `offset` on. Signals and short writes do not
/// end it. The file's position stays where it is. A file that is open for appending (`O_APPEND`) gets the octets at its
/// end, as Linux has it.
///
/// Peers may write to the parts meanwhile: each octet in the file is an old or a new one.
///
/// # Errors
/// The file cannot be written there. The first `done` octets are in the file.
pub fn write_file(file: &impl AsFd, offset: u64, parts: &[RegionPart<'_>]) -> Result<(), FileError> {
    let write = |file, pieces: &[libc::iovec], offset| {
        // SAFETY: the pieces are valid for reads as long as `parts` is: they lie within registrations, which are
        // borrowed. The kernel reads them whatever a peer does meanwhile.
        unsafe { libc::pwritev(file, pieces.as_ptr(), pieces.len() as i32, offset) }
    };
    let none = || io::Error::from(io::ErrorKind::WriteZero).into();
    transfer(file.as_fd().as_raw_fd(), offset, parts, write, none)
}

/// Calls `call` until all octets have been moved. `none` is the reason if it moves none.
fn transfer(
    file: RawFd,
    offset: u64,
    mut parts: &[RegionPart<'_>],
    call: impl Fn(RawFd, &[libc::iovec], i64) -> isize,
    none: impl Fn() -> FileErrorReason,
) -> Result<(), FileError> {
    // Octets that were moved: of the first part, and of all.
    let (mut skipped, mut done) = (0, 0);
    loop {
        while let Some(first) = parts.first().filter(|first| first.length <= skipped) {
            skipped -= first.length;
            parts = &parts[1..];
        }
        if parts.is_empty() {
            return Ok(());
        }
        match call_once(file, offset, done, &pieces(parts, skipped), &call) {
            Ok(0) => return Err(FileError { done, reason: none() }),
            Ok(moved) => {
                done += moved;
                skipped += moved;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FileError { done, reason: error.into() }),
        }
    }
}

/// The first parts as the kernel takes them, without the octets of the first one that were moved.
fn pieces(parts: &[RegionPart<'_>], mut skipped: usize) -> ArrayVec<libc::iovec, PIECES> {
    let piece = |part: &RegionPart<'_>| {
        let skipped = std::mem::take(&mut skipped);
        let start = part.start.as_ptr().wrapping_add(skipped);
        libc::iovec { iov_base: start.cast(), iov_len: part.length - skipped }
    };
    parts.iter().take(PIECES).map(piece).collect()
}

/// Moves octets by one system call. Gives their number.
fn call_once(
    file: RawFd,
    offset: u64,
    done: usize,
    pieces: &[libc::iovec],
    call: &impl Fn(RawFd, &[libc::iovec], i64) -> isize,
) -> io::Result<usize> {
    let at = offset.checked_add(done as u64).and_then(|at| i64::try_from(at).ok());
    let Some(at) = at else { return Err(io::Error::from_raw_os_error(libc::EOVERFLOW)) };
    usize::try_from(call(file, pieces, at)).map_err(|_| io::Error::last_os_error())
}
