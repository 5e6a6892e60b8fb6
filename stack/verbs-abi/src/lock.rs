//! The locks of what is posted to and polled.

/// A lock that is held for a few hundred nanoseconds, and by one thread nearly always. Unlike a [`Mutex`](std::sync::Mutex) it is
/// given back by a plain store, and polling takes and gives it back all the time. A thread that finds it taken yields the core
/// until it is free.
pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, spin::Yield>;

/// A lock in the hands of its holder.
pub(crate) type LockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T, spin::Yield>;
