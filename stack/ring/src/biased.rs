//! A lock that costs the thread which uses it all the time no atomic operation.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, UnsafeCell, fence};

/// A lock for something that any thread may use, and that one thread uses nearly always.
///
/// A thread that takes the lock many times in a row becomes its favourite, and from then on takes and gives it by plain
/// stores. The first other thread that wants the lock ends that: it waits until the favourite is out, and the lock is a
/// [`Mutex`] again, until the same thread has taken it twice as often in a row.
///
/// The favourite stores that it is inside and then loads whether it is still the favourite. The other thread stores
/// that it is not and then loads whether it is inside. Both need a full barrier between the two; membarrier(2) lets the
/// other thread execute both, so that the favourite has one for the compiler only. Without that system call there are
/// no favourites.
///
/// What this saves is more than the instructions. An atomic read-modify-write waits until all earlier stores have left
/// the core, and a store to a ring that another core polls takes as long as a cache line takes to come from there.
pub struct BiasedLock<T> {
    /// The thread that may take the lock by plain stores; 0: none.
    favourite: AtomicUsize,
    /// A favourite is inside. Only one thread ever writes this: see [`Streak::thread`].
    inside: AtomicBool,
    mutex: Mutex<Streak>,
    /// That of the mutex, while a [`BiasedGuard`] that came by it lives. It is here so that a guard fits into two
    /// registers: one in memory, written in parts and read as a whole, would stall the favourite.
    streak: UnsafeCell<MaybeUninit<MutexGuard<'static, Streak>>>,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has the value, so it has to be one that may change threads. The mutex's guard never
// does: who holds the mutex puts it here and takes it out again, and a lock that moves is not borrowed by any guard.
unsafe impl<T: Send> Send for BiasedLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

// A panic leaves the value as it was at that moment: as with a mutex whose poison is ignored, its users see to that.
impl<T> std::panic::UnwindSafe for BiasedLock<T> {}
impl<T> std::panic::RefUnwindSafe for BiasedLock<T> {}

/// Who took the mutex last, and how often.
#[derive(Debug)]
struct Streak {
    /// The thread that took it last, until there is a favourite. From then on that thread: a lock has no second one, so
    /// that nobody else ever writes [`BiasedLock::inside`].
    thread: usize,
    is_settled: bool,
    /// How often that thread took the mutex in a row.
    length: u32,
    /// How often it has to.
    wanted: u32,
}

/// How often a thread has to take the lock in a row to become its favourite.
const LEAST_STREAK: u32 = if cfg!(loom) { 1 } else { 64 };
/// The same for one that was interrupted often.
const LONGEST_STREAK: u32 = 1 << 16;

/// What is locked, in the hands of one thread.
pub struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// Not in the hands of the favourite: [`BiasedLock::streak`] is there.
    by_mutex: bool,
    /// It ends on the thread on which it began, as a mutex's guard does.
    _thread: PhantomData<*const ()>,
}

/// A number that identifies a living thread: never 0.
#[cfg(not(any(loom, miri)))]
#[inline(always)]
fn current_thread() -> usize {
    let thread: usize;
    // SAFETY: the first word behind fs is its own address; the x86-64 ABI of thread-local storage has it so.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
    }
    thread
}

/// The same for interpreters.
#[cfg(all(miri, not(loom)))]
fn current_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// The same for loom, whose threads share one thread of the system.
#[cfg(loom)]
fn current_thread() -> usize {
    loom::thread_local!(static MARK: Box<u8> = Box::new(0));
    MARK.with(|mark| std::ptr::from_ref(&**mark).addr())
}

/// The favourite's barrier, which the other thread executes for it.
#[inline(always)]
fn light_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(SeqCst);
    // A barrier executed from outside cannot be modelled.
    #[cfg(loom)]
    fence(SeqCst);
}

/// A barrier on every core that runs this process.
#[cold]
fn heavy_fence() {
    fence(SeqCst);
    #[cfg(not(loom))]
    if rustix::thread::membarrier(rustix::thread::MembarrierCommand::PrivateExpedited).is_err() {
        // It worked when there was no favourite yet, so a system call filter was installed since. A store stays in its
        // core for nanoseconds; no bound is documented, and this one is generous.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Whether [`heavy_fence`] can do what it has to.
fn may_favour() -> bool {
    #[cfg(not(loom))]
    {
        use rustix::thread::{MembarrierCommand, membarrier};
        static REGISTERED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }
    #[cfg(loom)]
    true
}

fn give_way() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

impl<T> BiasedLock<T> {
    /// A free lock without a favourite.
    pub fn new(value: T) -> BiasedLock<T> {
        let streak = Streak { thread: 0, is_settled: false, length: 0, wanted: LEAST_STREAK };
        BiasedLock {
            favourite: AtomicUsize::new(0),
            inside: AtomicBool::new(false),
            mutex: Mutex::new(streak),
            streak: UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, and waits for it if need be. A panic of another holder does not matter.
    ///
    /// # Panics
    /// If the calling thread is the favourite and holds the lock already. Any other thread in that case waits for ever.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        match self.enter() {
            Entered::Inside => self.favourites(),
            Entered::Already => panic!("a thread takes a lock that it holds"),
            Entered::NotFavourite => self.lock_by_mutex(),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        match self.enter() {
            Entered::Inside => Some(self.favourites()),
            Entered::Already => None,
            Entered::NotFavourite => self.try_lock_by_mutex(),
        }
    }

    /// Takes the lock if the calling thread is its favourite, and does not hold it already.
    #[inline]
    pub fn lock_as_favourite(&self) -> Option<BiasedGuard<'_, T>> {
        match self.enter() {
            Entered::Inside => Some(self.favourites()),
            Entered::Already | Entered::NotFavourite => None,
        }
    }

    /// Takes the lock, and waits for it if need be, for a thread that is not to become the favourite.
    pub fn lock_as_guest(&self) -> BiasedGuard<'_, T> {
        let mut streak = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        streak.length = 0;
        self.dismiss(&mut streak);
        while self.inside.load(Acquire) {
            give_way();
        }
        self.by_mutex(streak)
    }

    /// Takes the lock by plain stores, if the calling thread may.
    #[inline(always)]
    fn enter(&self) -> Entered {
        let me = current_thread();
        if self.favourite.load(Relaxed) != me {
            return Entered::NotFavourite;
        }
        if self.inside.load(Relaxed) {
            return Entered::Already;
        }
        self.inside.store(true, Relaxed);
        light_fence();
        if self.favourite.load(Relaxed) == me {
            return Entered::Inside;
        }
        self.inside.store(false, Release);
        Entered::NotFavourite
    }

    #[cold]
    #[inline(never)]
    fn lock_by_mutex(&self) -> BiasedGuard<'_, T> {
        let mut streak = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.dismiss(&mut streak);
        while self.inside.load(Acquire) {
            give_way();
        }
        self.count(streak)
    }

    #[cold]
    #[inline(never)]
    fn try_lock_by_mutex(&self) -> Option<BiasedGuard<'_, T>> {
        let mut streak = match self.mutex.try_lock() {
            Ok(streak) => streak,
            Err(TryLockError::Poisoned(streak)) => streak.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.dismiss(&mut streak);
        if self.inside.load(Acquire) { None } else { Some(self.count(streak)) }
    }

    /// Makes the favourite, which is another thread, come by the mutex. It may still be inside afterwards.
    fn dismiss(&self, streak: &mut Streak) {
        if self.favourite.load(Relaxed) != 0 {
            self.favourite.store(0, Relaxed);
            heavy_fence();
            streak.wanted = (streak.wanted * 2).min(LONGEST_STREAK);
        }
    }

    /// Counts the calling thread's taking of the mutex, and makes it the favourite if it has taken it often enough.
    fn count<'a>(&'a self, mut streak: MutexGuard<'a, Streak>) -> BiasedGuard<'a, T> {
        let me = current_thread();
        if streak.thread == me {
            streak.length += 1;
        } else {
            streak.length = 0;
            if !streak.is_settled {
                streak.thread = me;
            }
        }
        if streak.length < streak.wanted || !may_favour() {
            return self.by_mutex(streak);
        }
        (streak.length, streak.is_settled) = (0, true);
        // Before the mutex is free: whoever takes it next sees that somebody is inside.
        self.inside.store(true, Relaxed);
        self.favourite.store(me, Relaxed);
        drop(streak);
        self.favourites()
    }

    /// The guard of the favourite, which is inside.
    #[inline(always)]
    fn favourites(&self) -> BiasedGuard<'_, T> {
        BiasedGuard { lock: self, by_mutex: false, _thread: PhantomData }
    }

    /// The guard of whoever holds the mutex.
    fn by_mutex<'a>(&'a self, streak: MutexGuard<'a, Streak>) -> BiasedGuard<'a, T> {
        // SAFETY: only who holds the mutex uses the cell. The mutex's guard stays within its life: it leaves the cell
        // when the guard that is returned ends, which borrows the lock as long. If that one is forgotten, it stays
        // there for ever, and so does the mutex locked: nobody reads it.
        self.streak.with_mut(|cell| unsafe {
            (*cell).write(std::mem::transmute::<MutexGuard<'a, Streak>, MutexGuard<'static, Streak>>(streak))
        });
        BiasedGuard { lock: self, by_mutex: true, _thread: PhantomData }
    }
}

enum Entered {
    Inside,
    /// The calling thread is inside already.
    Already,
    NotFavourite,
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard's holder is alone.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's holder is alone.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.by_mutex {
            // SAFETY: this guard came by the mutex, whose guard lies there since. It is taken out once: guards end
            // once.
            drop(self.lock.streak.with_mut(|cell| unsafe { (*cell).assume_init_read() }));
        } else {
            self.lock.inside.store(false, Release);
        }
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let favourite = self.favourite.load(Relaxed);
        formatter.debug_struct("BiasedLock").field("favourite", &favourite).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BiasedGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BiasedGuard").field("by_favourite", &!self.by_mutex).finish_non_exhaustive()
    }
}
