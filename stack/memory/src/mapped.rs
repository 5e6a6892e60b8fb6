//! Mapped files as regions for reading. A file that becomes shorter meanwhile fails the accesses, not the process.
//!
//! An access to a page behind the end of its file raises SIGBUS. A process that wants mapped files takes this signal
//! ([`catch_truncation`]). The handler looks for the address among the mappings that are registered. If it finds one, it
//! marks the mapping as lost and puts zeros in its place, so that the access ends. Whoever reads a mapping looks at the
//! mark behind the access, before anybody sees the octets. A mapping that is lost once stays lost. Other addresses, and
//! signals that were sent, are left to the handler that was there before.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use thiserror::Error;

use crate::access::{Access, Scope};
use crate::options::{RegisterError, TaggedBase};
use crate::registration::{RangeError, Registration};
use crate::table::RegionTable;
use crate::{RegionBuffer, shared_bytes};

/// Mappings of a process.
const MAPPINGS: usize = 1024;

static TABLE: [Mapping; MAPPINGS] = [const { Mapping::new() }; MAPPINGS];
/// The mappings that are free, from the process's start on. `None` until the first one is taken.
static FREE: Mutex<Option<Vec<usize>>> = Mutex::new(None);
/// Mappings that were lost since the process's start.
static LOST: AtomicUsize = AtomicUsize::new(0);
/// What SIGBUS did before.
static BEFORE: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// A range of addresses, for the handler.
struct Mapping {
    start: AtomicUsize,
    /// 0 if the place is free.
    end: AtomicUsize,
    is_lost: AtomicBool,
}

impl Mapping {
    const fn new() -> Mapping {
        Mapping { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_lost: AtomicBool::new(false) }
    }

    /// Its addresses, if `address` is among them.
    fn around(&self, address: usize) -> Option<(usize, usize)> {
        let (start, end) = (self.start.load(Acquire), self.end.load(Acquire));
        // A place that gets other addresses meanwhile has no end between the two, or another start.
        let is_one = self.start.load(Acquire) == start;
        (is_one && (start..end).contains(&address)).then_some((start, end))
    }
}

/// Why a file was not registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The process does not take SIGBUS.
    #[error("files are registered only after catch_truncation, since a truncated file would end the process")]
    NotCaught,
    /// The rights include more than reading.
    #[error("a file is registered for reading only, and not with the rights {0:?}")]
    Access(Access),
    /// The file is shorter.
    #[error("the file has {length} octets, and not {end}")]
    EndOfFile {
        /// The end of the range.
        end: u64,
        /// The file's length.
        length: u64,
    },
    /// Too many files.
    #[error("{MAPPINGS} files are registered: deregister some")]
    Full,
    /// The region could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Octets of a file could not be read: it was truncated while it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MappedReadError {
    /// It goes beyond the end of the region.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The file was truncated, or its disk failed.
    #[error("the file was truncated or became unreadable while it was registered: register it again")]
    Lost,
}

/// Takes SIGBUS for this process, from now on: an access to a registered file that was truncated fails then, and does
/// not end the process. All other SIGBUS go to the handler that was there before. If another handler is installed
/// later, it has to pass on in the same way. May be called again.
///
/// # Errors
/// Those of sigaction(2).
pub fn catch_truncation() -> io::Result<()> {
    let before = BEFORE.get_or_init(|| {
        let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a place for the answer; nothing is changed.
        match unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } {
            // SAFETY: the call has filled it.
            0 => Ok(unsafe { before.assume_init() }),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    });
    before.as_ref().map_err(|errno| io::Error::from_raw_os_error(*errno))?;
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED.get_or_init(install).map_err(io::Error::from_raw_os_error)
}

fn install() -> Result<(), i32> {
    // SAFETY: all zeros are an action: no flags, and an empty mask.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
    action.sa_sigaction = handler as *const () as usize;
    // On the alternate stack, as Rust's own handler, which finds out whether a stack has overflowed.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler makes no call that is not allowed in one.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => {
            CAUGHT.store(true, Release);
            Ok(())
        }
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Whether the handler is installed.
static CAUGHT: AtomicBool = AtomicBool::new(false);

/// The handler. It allocates nothing, takes no lock, and leaves errno alone.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system gives a valid one.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_ours = code == libc::BUS_ADRERR && lose(address);
    if !is_ours {
        pass_on(signal, info, context, code);
    }
}

/// Marks the mapping that contains an address as lost, and puts zeros in its place. False if there is none.
fn lose(address: usize) -> bool {
    let found = TABLE.iter().find_map(|mapping| Some((mapping, mapping.around(address)?)));
    let Some((mapping, (start, end))) = found else { return false };
    // Before the zeros: whoever reads them finds the mark.
    mapping.is_lost.store(true, SeqCst);
    LOST.fetch_add(1, SeqCst);
    let place = std::ptr::without_provenance_mut(start);
    // SAFETY: the range is a registered mapping, which stays while somebody accesses it, and somebody did so. The zeros
    // may be read as the file's octets could. The call is rustix's own system call, which touches no errno.
    unsafe { mmap_anonymous(place, end - start, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
}

/// Does what would have been done without this handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    let Some(Ok(before)) = BEFORE.get() else { return };
    let was_sent = code <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros are the default action. Both calls are allowed in a handler.
            unsafe {
                let default = std::mem::zeroed::<libc::sigaction>();
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                if was_sent {
                    // It arrives when this handler is left. A fault comes again by itself.
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: by its flags the handler is such a function.
            unsafe {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: by its flags the handler is such a function.
            unsafe {
                let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Whether the octets that were just read from `address` on are the file's. Call it behind the access and before
/// anybody sees them.
pub(crate) fn is_whole(address: usize) -> bool {
    // The octets before the marks.
    fence(SeqCst);
    if LOST.load(Relaxed) == 0 {
        return true;
    }
    let found = TABLE.iter().find(|mapping| mapping.around(address).is_some());
    found.is_some_and(|mapping| !mapping.is_lost.load(SeqCst))
}

/// Pages of a file in this process, and their place in the table. Dropping it unmaps them.
pub(crate) struct MappedFile {
    place: usize,
    start: NonNull<u8>,
    /// Octets that are mapped, in whole pages from `start` on.
    mapped: usize,
    /// Where the range begins, behind `start`.
    skipped: usize,
    length: usize,
}

// SAFETY: the mapping belongs to the process, and nobody writes to it.
unsafe impl Send for MappedFile {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    fn new(file: &impl AsFd, offset: u64, length: usize) -> Result<MappedFile, MapError> {
        let page = page_size();
        let skipped = (offset % page as u64) as usize;
        let whole = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size as u64;
        let end = offset.saturating_add(length as u64);
        if end > whole {
            return Err(MapError::EndOfFile { end, length: whole });
        }
        // Of no octets, there is one page that nobody reads.
        let mapped = (skipped + length).max(1).next_multiple_of(page);
        let place = take_place()?;
        // SAFETY: the system chooses where, so that nothing is mapped over.
        let start = unsafe {
            let null = std::ptr::null_mut();
            mmap(null, mapped, ProtFlags::READ, MapFlags::SHARED, file, offset - skipped as u64)
        };
        let start = match start.map(|start| NonNull::new(start.cast::<u8>())) {
            Ok(Some(start)) => start,
            refused => {
                free_place(place);
                return Err(refused.err().map_or(io::ErrorKind::Other.into(), io::Error::from).into());
            }
        };
        let mapping = &TABLE[place];
        mapping.is_lost.store(false, Release);
        mapping.start.store(start.addr().get(), Release);
        mapping.end.store(start.addr().get() + mapped, Release);
        Ok(MappedFile { place, start, mapped, skipped, length })
    }

    /// The first octet of the range.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: less than a page, of which the mapping has one at least.
        unsafe { self.start.add(self.skipped) }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        TABLE[self.place].end.store(0, Release);
        // SAFETY: the mapping that `new` made, and nobody reaches it any more. Failing leaves it mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        free_place(self.place);
    }
}

fn page_size() -> usize {
    // SAFETY: it asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn take_place() -> Result<usize, MapError> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.get_or_insert_with(|| (0..MAPPINGS).rev().collect()).pop().ok_or(MapError::Full)
}

fn free_place(place: usize) {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.get_or_insert_default().push(place);
}

impl RegionTable {
    /// Registers `length` octets of a file from `offset` on for reading, without a copy: engines read the system's cache
    /// of the file. The rights are `LOCAL_READ` and `REMOTE_READ` at most.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn register_file(
        self: &Arc<Self>,
        file: &impl AsFd,
        offset: u64,
        length: usize,
        access: Access,
        scope: Scope,
        base: TaggedBase,
    ) -> Result<MappedRegistration, MapError> {
        if !CAUGHT.load(Acquire) {
            return Err(MapError::NotCaught);
        }
        if !Access::REMOTE_READ.contains(access) {
            return Err(MapError::Access(access));
        }
        let buffer = RegionBuffer::mapped(MappedFile::new(file, offset, length)?);
        Ok(MappedRegistration(self.register_mapped(buffer, access, scope, base)?))
    }
}

/// A part of a file that is registered for reading. Dropping it deregisters it.
///
/// Others may change the file meanwhile, as a peer may change a region: each octet that is read is an old or a new one.
/// If the file is truncated, or its disk fails, every access that needs the pages fails, and every one after that.
pub struct MappedRegistration(Registration);

impl MappedRegistration {
    /// The STag.
    pub fn stag(&self) -> u32 {
        self.0.stag()
    }

    /// The tagged offset of the first octet.
    pub fn base_offset(&self) -> u64 {
        self.0.base_offset()
    }

    /// The rights.
    pub fn access(&self) -> Access {
        self.0.access()
    }

    /// Octets in the region.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the region has no octets.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the STag is valid: no peer has invalidated it.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// Whether an access has found the file truncated or unreadable: no octets can be read any more.
    pub fn is_lost(&self) -> bool {
        !is_whole(self.0.address().addr())
    }

    /// Copies octets out, as many as `out` holds.
    ///
    /// # Errors
    /// The range is not inside the region, or the file was truncated. The contents of `out` mean nothing then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), MappedReadError> {
        let source = self.0.locate(offset, out.len())?;
        // SAFETY: within the region, which is there as long as `self`.
        unsafe { shared_bytes::load(source, out) };
        if self.is_lost() { Err(MappedReadError::Lost) } else { Ok(()) }
    }
}

impl fmt::Debug for MappedRegistration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
