//! The folder that has the device's files, below their own paths.

use crate::next::{Outcome, error, set_error};
use crate::place::Place;
use libc::{PATH_MAX, c_char};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use uwarp_verbs_device::FILES_VARIABLE;

/// What stands for the character device. Programs look at the device, and never work with it.
pub(crate) const STAND_IN: &CStr = c"/dev/null";
const MOST: usize = PATH_MAX as usize;

/// The folder's path. It is copied once, when the library is loaded: a program may overwrite its environment.
struct Folder {
    octets: UnsafeCell<[u8; MOST]>,
    /// Zero until the path is there.
    length: AtomicUsize,
}

// SAFETY: `octets` is written before `length`, and not any more afterwards.
unsafe impl Sync for Folder {}

static FOLDER: Folder = Folder { octets: UnsafeCell::new([0; MOST]), length: AtomicUsize::new(0) };

/// Finds the folder in the environment. This is called once, before the program's `main`.
pub(crate) fn find() {
    const { assert!(FILES_VARIABLE.len() < 64) };
    let mut name = [0; 64];
    name[..FILES_VARIABLE.len()].copy_from_slice(FILES_VARIABLE.as_bytes());
    // SAFETY: a name that ends in a zero, and what getenv has found; nobody else writes the folder.
    unsafe {
        let value = libc::getenv(name.as_ptr().cast());
        if !value.is_null() {
            let value = CStr::from_ptr(value).to_bytes();
            if (1..MOST).contains(&value.len()) && value[0] == b'/' {
                (&mut *FOLDER.octets.get())[..value.len()].copy_from_slice(value);
                FOLDER.length.store(value.len(), Ordering::Release);
            }
        }
    }
}

/// The folder's path; empty if there is none.
pub(crate) fn folder() -> &'static [u8] {
    let length = FOLDER.length.load(Ordering::Acquire);
    // SAFETY: written before the length.
    unsafe { &(&*FOLDER.octets.get())[..length] }
}

/// The place that a path names, if there is a folder of files and it is one of theirs.
///
/// # Safety
/// The path is null, or ends in a zero.
pub(crate) unsafe fn place(path: *const c_char) -> Option<Place> {
    if path.is_null() || folder().is_empty() {
        return None;
    }
    // SAFETY: the caller's.
    Place::of(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Calls a function with the path that stands for this one, if it is the device's. What is not found there is looked
/// for where it is.
///
/// # Safety
/// The path is null, or ends in a zero.
pub(crate) unsafe fn look<O: Outcome>(path: *const c_char, reads: bool, call: impl Fn(*const c_char) -> O) -> O {
    // SAFETY: the caller's.
    let answer = unsafe {
        match place(path) {
            Some(Place::Node) => return call(STAND_IN.as_ptr()),
            Some(Place::Folder) if reads => below(CStr::from_ptr(path).to_bytes(), &call),
            _ => None,
        }
    };
    answer.unwrap_or_else(|| call(path))
}

/// What a function says of the folder's file of this path. `None` if there is no such file.
fn below<O: Outcome>(path: &[u8], call: impl Fn(*const c_char) -> O) -> Option<O> {
    let folder = folder();
    let mut octets = [0; MOST];
    let before = error();
    let whole = octets.get_mut(..folder.len() + path.len())?;
    whole[..folder.len()].copy_from_slice(folder);
    whole[folder.len()..].copy_from_slice(path);
    // It ends in a zero.
    octets.last().filter(|last| **last == 0)?;
    let answer = call(octets.as_ptr().cast());
    if answer.has_failed() && error() == libc::ENOENT {
        set_error(before);
        return None;
    }
    Some(answer)
}
