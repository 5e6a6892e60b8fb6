//! `libibverbs.so.1` and `librdmacm.so.1` over uwarp, for programs that know nothing of it.
//!
//! Each export translates: it looks at its pointers, calls the crate `uwarp`, and turns the result into what the manual
//! page promises. What a connection or a queue pair does is decided below, in `uwarp`. The library serves one device,
//! `uwarp0`, with one port. The device of DPDK is opened when the first address is bound or resolved; objects of the
//! verbs can be made before.
//!
//! Unsafe code is allowed here because every argument of every export is a pointer of C. Three rules keep it small: a
//! pointer to one of our own objects is used through `handle::Handle::get` alone; every export runs inside of one of
//! the functions of `errno`, which no panic leaves; and nothing else is decided between the two.
#![allow(unsafe_code)]
// The exports have their manual pages; what is special here is said at each.
#![allow(clippy::missing_safety_doc, missing_docs, clippy::not_unsafe_ptr_arg_deref)]

pub mod abi;
mod cm;
mod dispatch;
mod errno;
mod event_fd;
#[cfg_attr(not(any(test, feature = "misuse")), allow(dead_code))]
mod exports;
mod handle;
mod lifetime;
mod locks;
#[doc(hidden)]
pub mod measure;
#[cfg(any(test, feature = "misuse"))]
pub mod misuse;
mod polls;
mod process;
mod rc;
#[cfg(test)]
mod restarting;
mod rsocket;
#[cfg(test)]
mod sections;
#[cfg(target_arch = "x86_64")]
mod suspended;
/// The way of `suspended.rs` is one of x86-64's registers and stack. Elsewhere the call does not go on.
#[cfg(not(target_arch = "x86_64"))]
mod suspended {
    /// Nothing happens.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn finish() -> bool {
        false
    }
}
#[cfg(test)]
mod testing;
mod unsupported;
mod verbs;
