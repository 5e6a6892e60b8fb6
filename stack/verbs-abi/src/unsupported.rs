//! Exports that have to exist and that iWARP, or this library, has nothing behind: programs are bound to all symbols at
//! once.

use crate::errno::{EOPNOTSUPP, minus_one, number, pointer};
use libc::{c_char, c_int, c_void};

/// Functions that return an error number.
macro_rules! numbers {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            number(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Functions that return -1 and errno.
macro_rules! minus_ones {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            minus_one(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Functions that return a pointer.
macro_rules! pointers {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            pointer(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Functions that do nothing.
macro_rules! nothings {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    )*};
}

// Multicast is not carried; ECE and device memory belong to hardware.
pointers! {
    ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_reg_dmabuf_mr
}
numbers! {
    ibv_attach_mcast ibv_detach_mcast ibv_query_ece ibv_set_ece
    ibv_resolve_eth_l2_from_gid
}
nothings! { ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd }
minus_ones! {
    rdma_join_multicast rdma_join_multicast_ex rdma_leave_multicast rdma_set_local_ece rdma_get_remote_ece
}

// Between the kernel's structures and those of the verbs: there is no kernel here.
nothings! {
    ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
}

// What answers the symbols that have no function of their own, as symbols/releases says. It is linked by that table.
numbers! { uwarp_unsupported_number }
minus_ones! { uwarp_unsupported_minus_one }
pointers! { uwarp_unsupported_pointer }
nothings! { uwarp_unsupported_nothing }

/// The directory of the kernel's files, which programs look for their device in.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of a directory, without its last line feed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: libc::size_t,
) -> c_int {
    minus_one(|| {
        if directory.is_null() || file.is_null() || out.is_null() || size == 0 {
            return Err(crate::errno::EINVAL);
        }
        // SAFETY: the caller's strings, and its buffer of `size` octets.
        unsafe {
            let text = |string| std::ffi::CStr::from_ptr(string).to_string_lossy().into_owned();
            let octets = std::fs::read(std::path::Path::new(&text(directory)).join(text(file)))?;
            let octets = octets.strip_suffix(b"\n").unwrap_or(&octets);
            let length = octets.len().min(size - 1);
            out.cast::<u8>().copy_from_nonoverlapping(octets.as_ptr(), length);
            out.add(length).write(0);
            Ok(length as c_int)
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_: *mut c_void, _: libc::size_t) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_: *mut c_void, _: libc::size_t) -> c_int {
    0
}
