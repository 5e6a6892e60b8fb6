//! The types of `infiniband/verbs.h` and `rdma/rdma_cma.h`, as rdma-core 65 has them. Each release adds to them and
//! moves nothing: `layout` says which fields lie where in which release.
//!
//! Names are the headers'. Those with `__bindgen` are of what has no name there: bindgen has made them once.

#![allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(dead_code, clippy::pub_underscore_fields, clippy::unreadable_literal)]

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t, timespec};
pub use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// A function that this library does not have: headers look whether it is there, and none calls it.
pub type Unset = Option<unsafe extern "C" fn()>;

/// Makes structures of C whose fields have no default: integers, pointers, and functions that may be missing.
macro_rules! zeroes {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, pointers, optional functions, and unions of them, for which zeroes are valid.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

// One module in several files: structures name each other in circles.
include!("abi/numbers.rs");
include!("abi/attributes.rs");
include!("abi/work.rs");
include!("abi/objects.rs");
include!("abi/cm.rs");

#[cfg(test)]
mod layout;
