//! Mappings of files that may become shorter.
//!
//! An access to a page behind the end of its file raises SIGBUS. A process that wants mapped files takes this signal
//! ([`catch_truncated_files`]). The handler looks for the address among the mappings that are registered. If it finds
//! one, it marks the mapping as lost and puts zeros in its place, so that the access ends. Whoever reads a mapping
//! looks at the mark behind the access, before anybody sees the octets. A mapping that is lost once stays lost. Other
//! addresses, and signals that were sent, are left to the handler that was there before.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Mappings of a process.
pub(crate) const MAPPINGS: usize = 1024;

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

/// Why a file was not mapped.
pub(crate) enum MappingError {
    /// The file is shorter.
    EndOfFile { end: u64, length: u64 },
    /// All of [`MAPPINGS`] are taken.
    Full,
    /// The system refused.
    System(io::Error),
}

impl From<io::Error> for MappingError {
    fn from(error: io::Error) -> MappingError {
        MappingError::System(error)
    }
}

/// Takes SIGBUS for this process, from now on: an access to a registered file that was truncated fails then, and does
/// not end the process. All other SIGBUS go to the handler that was there before. If another handler is installed
/// later, it has to pass on in the same way. May be called again.
///
/// # Errors
/// Those of sigaction(2).
pub fn catch_truncated_files() -> io::Result<()> {
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

/// Whether [`catch_truncated_files`] was called.
pub(crate) fn is_caught() -> bool {
    CAUGHT.load(Acquire)
}

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
    pub(crate) fn new(file: &impl AsFd, offset: u64, length: usize) -> Result<MappedFile, MappingError> {
        let page = page_size();
        let skipped = (offset % page as u64) as usize;
        let whole = rustix::fs::fstat(file).map_err(io::Error::from)?.st_size as u64;
        let end = offset.saturating_add(length as u64);
        if end > whole {
            return Err(MappingError::EndOfFile { end, length: whole });
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

fn take_place() -> Result<usize, MappingError> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.get_or_insert_with(|| (0..MAPPINGS).rev().collect()).pop().ok_or(MappingError::Full)
}

fn free_place(place: usize) {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.get_or_insert_default().push(place);
}
