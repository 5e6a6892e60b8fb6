//! The primitives of synchronisation of what loom models: the table, windows and epochs. From the standard library or
//! from loom.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
};
