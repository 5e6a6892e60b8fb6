//! The functions that take a path.

use crate::folder::{self, folder, look, place};
use crate::next::{Next, Outcome as _, missing};
use crate::place::{NODE_PATH, Place};
use libc::{FILE, c_char, c_int, c_uint, c_void, mode_t, size_t, ssize_t};
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr::null_mut;

/// Exports functions: the arguments before the path in brackets, those behind it, and behind a semicolon a variable
/// one. The last word is what leads the path elsewhere.
macro_rules! exports {
    ($($name:ident($([$($first:ident: $first_type:ty),+])? path $(, $rest:ident: $rest_type:ty)*
        $(; $dots:tt $more:ident: $more_type:ty)?) -> $out:ty = $lead:ident($how:expr);)*) => {
        #[allow(non_upper_case_globals, reason = "they have the names of C")]
        mod all {
            use super::Next;
            $(pub(super) static $name: Next = Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// What the loader calls before the program's `main`.
        extern "C" fn load() {
            folder::find();
            $(all::$name.address();)*
        }

        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($($first: $first_type,)+)? path: *const c_char $(, $rest: $rest_type)*
            $(, $more: $more_type)?) -> $out {
            type Behind = unsafe extern "C" fn($($($first_type,)+)? *const c_char $(, $rest_type)* $(, $dots)?) -> $out;
            // SAFETY: the function of that name has that type, and the arguments are the caller's.
            unsafe {
                let Some(behind) = transmute::<*mut c_void, Option<Behind>>(all::$name.address()) else {
                    return missing();
                };
                $lead(path, $how, |path| behind($($($first,)+)? path $(, $rest)* $(, $more)?))
            }
        })*
    };
}

// Pointers that only pass through have no type here.
exports! {
    stat(path, to: *mut c_void) -> c_int = look(true);
    stat64(path, to: *mut c_void) -> c_int = look(true);
    lstat(path, to: *mut c_void) -> c_int = look(true);
    lstat64(path, to: *mut c_void) -> c_int = look(true);
    fstatat([at: c_int] path, to: *mut c_void, flags: c_int) -> c_int = look(true);
    fstatat64([at: c_int] path, to: *mut c_void, flags: c_int) -> c_int = look(true);
    statx([at: c_int] path, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int = look(true);
    __xstat([version: c_int] path, to: *mut c_void) -> c_int = look(true);
    __xstat64([version: c_int] path, to: *mut c_void) -> c_int = look(true);
    __lxstat([version: c_int] path, to: *mut c_void) -> c_int = look(true);
    __lxstat64([version: c_int] path, to: *mut c_void) -> c_int = look(true);
    __fxstatat([version: c_int, at: c_int] path, to: *mut c_void, flags: c_int) -> c_int = look(true);
    __fxstatat64([version: c_int, at: c_int] path, to: *mut c_void, flags: c_int) -> c_int = look(true);
    access(path, mode: c_int) -> c_int = look(true);
    eaccess(path, mode: c_int) -> c_int = look(true);
    euidaccess(path, mode: c_int) -> c_int = look(true);
    faccessat([at: c_int] path, mode: c_int, flags: c_int) -> c_int = look(true);
    open(path, flags: c_int; ...mode: mode_t) -> c_int = look(only_reads(flags));
    open64(path, flags: c_int; ...mode: mode_t) -> c_int = look(only_reads(flags));
    openat([at: c_int] path, flags: c_int; ...mode: mode_t) -> c_int = look(only_reads(flags));
    openat64([at: c_int] path, flags: c_int; ...mode: mode_t) -> c_int = look(only_reads(flags));
    __open_2(path, flags: c_int) -> c_int = look(only_reads(flags));
    __open64_2(path, flags: c_int) -> c_int = look(only_reads(flags));
    __openat_2([at: c_int] path, flags: c_int) -> c_int = look(only_reads(flags));
    __openat64_2([at: c_int] path, flags: c_int) -> c_int = look(only_reads(flags));
    fopen(path, mode: *const c_char) -> *mut FILE = look(stream_only_reads(mode));
    fopen64(path, mode: *const c_char) -> *mut FILE = look(stream_only_reads(mode));
    opendir(path) -> *mut c_void = look(true);
    scandir(path, to: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = look(true);
    scandir64(path, to: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = look(true);
    readlink(path, to: *mut c_char, length: size_t) -> ssize_t = look(true);
    readlinkat([at: c_int] path, to: *mut c_char, length: size_t) -> ssize_t = look(true);
    __readlink_chk(path, to: *mut c_char, length: size_t, room: size_t) -> ssize_t = look(true);
    __readlinkat_chk([at: c_int] path, to: *mut c_char, length: size_t, room: size_t) -> ssize_t = look(true);
    getxattr(path, name: *const c_char, to: *mut c_void, length: size_t) -> ssize_t = look(true);
    lgetxattr(path, name: *const c_char, to: *mut c_void, length: size_t) -> ssize_t = look(true);
    listxattr(path, to: *mut c_char, length: size_t) -> ssize_t = look(true);
    llistxattr(path, to: *mut c_char, length: size_t) -> ssize_t = look(true);
    realpath(path, to: *mut c_char) -> *mut c_char = resolve(to);
    __realpath_chk(path, to: *mut c_char, room: size_t) -> *mut c_char = resolve(to);
    canonicalize_file_name(path) -> *mut c_char = resolve(null_mut());
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Whether a file that is opened so is only read.
fn only_reads(flags: c_int) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_CREAT | libc::O_TRUNC) == 0
}

/// The same of a stream's mode.
///
/// # Safety
/// It ends in a zero.
unsafe fn stream_only_reads(mode: *const c_char) -> bool {
    // SAFETY: the caller's.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    mode.first() == Some(&b'r') && !mode.contains(&b'+')
}

/// Gives a path without links and `..`, as if the device's files were where the program looks for them. The answer is
/// in `to`, or allocated.
///
/// # Safety
/// The path is null, or ends in a zero; `to` is null, or has room for every path.
unsafe fn resolve(path: *const c_char, to: *mut c_char, call: impl Fn(*const c_char) -> *mut c_char) -> *mut c_char {
    // SAFETY: the caller's.
    unsafe {
        match place(path) {
            Some(Place::Node) => node(to),
            Some(Place::Folder) => {
                let found = look(path, true, call);
                if !found.has_failed() {
                    leave(found);
                }
                found
            }
            None => call(path),
        }
    }
}

/// Takes the folder off the beginning of a path.
///
/// # Safety
/// The path ends in a zero.
unsafe fn leave(path: *mut c_char) {
    // SAFETY: the caller's; the path becomes shorter, and the zero comes along.
    unsafe {
        if let Some(rest) = CStr::from_ptr(path).to_bytes_with_nul().strip_prefix(folder()) {
            std::ptr::copy(rest.as_ptr().cast(), path, rest.len());
        }
    }
}

/// The character device's path, in `to` or allocated.
///
/// # Safety
/// `to` is null, or has room for every path.
unsafe fn node(to: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's.
    unsafe {
        if to.is_null() {
            return libc::strdup(NODE_PATH.as_ptr());
        }
        std::ptr::copy_nonoverlapping(NODE_PATH.as_ptr(), to, NODE_PATH.count_bytes() + 1);
    }
    to
}
