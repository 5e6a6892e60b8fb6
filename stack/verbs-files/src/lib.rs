//! A library to preload, for programs that look for the device in `/sys` and `/dev` where no namespace can show it to
//! them. It stands in front of the functions of the C library that take a path and only read, and leads those paths
//! that are the device's into a folder, which `uwarp-run` has written. Everything else passes on unchanged.
//!
//! A program may call these functions before `main`, in a signal's handler, or from its own `malloc`. So nothing here
//! allocates, locks or panics.
//!
//! Unsafe code is allowed here because every argument is a pointer of C, and every call goes to a function that the
//! loader finds.
#![allow(unsafe_code)]
// The exports have their manual pages.
#![allow(clippy::missing_safety_doc)]

#[cfg(not(test))]
mod exports;
#[cfg(not(test))]
mod folder;
#[cfg(not(test))]
mod next;
mod place;
