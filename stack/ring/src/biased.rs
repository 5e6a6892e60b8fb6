//! A lock that costs the thread which uses it all the time no atomic operation.

#[cfg(all(test, not(loom)))]
mod tests;
mod thread;

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, UnsafeCell, fence};
use thread::{Patience, Token, current_thread, give_way};

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
///
/// # Sections
/// A thread can keep the lock beyond a guard's life, by [`BiasedGuard::into_section`], until
/// [`end_section`](Self::end_section). Others wait so long. The thread itself takes and gives the lock within its
/// section as if it was free, so that it never waits for itself. The section of a thread that has ended is over: who
/// waits for it finds that out.
pub struct BiasedLock<T> {
    /// The thread that may take the lock by plain stores; 0: none.
    favourite: AtomicUsize,
    /// A favourite is inside. Only one thread ever writes this: see [`Streak::thread`].
    inside: AtomicBool,
    mutex: Mutex<Streak>,
    /// The [`Token`] of the thread that has a section open; 0: none.
    section: AtomicU64,
    /// Within its section, that thread has a guard that came neither by the mutex nor by being the favourite.
    is_reentered: AtomicBool,
    /// The thread that has the lock by the mutex; 0: none.
    holder: AtomicUsize,
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
    hold: Hold,
    /// It ends on the thread on which it began, as a mutex's guard does.
    _thread: PhantomData<*const ()>,
}

/// How a guard came to the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Favourite,
    /// [`BiasedLock::streak`] is there.
    Mutex,
    /// Within the thread's own section.
    Section,
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

impl<T> BiasedLock<T> {
    /// A free lock without a favourite.
    pub fn new(value: T) -> BiasedLock<T> {
        let streak = Streak { thread: 0, is_settled: false, length: 0, wanted: LEAST_STREAK };
        BiasedLock {
            favourite: AtomicUsize::new(0),
            inside: AtomicBool::new(false),
            mutex: Mutex::new(streak),
            section: AtomicU64::new(0),
            is_reentered: AtomicBool::new(false),
            holder: AtomicUsize::new(0),
            streak: UnsafeCell::new(MaybeUninit::uninit()),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock, and waits for it if need be. A panic of another holder does not matter.
    ///
    /// # Panics
    /// If the calling thread has a guard already, and is the favourite, or got that guard in its section and not as the
    /// favourite. Any other thread in that case waits for ever.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        match self.enter() {
            Entered::Inside => self.favourites(),
            Entered::Already => taken_twice(),
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
        self.annotate_acquired();
        streak.length = 0;
        self.dismiss(&mut streak);
        self.wait_until_free();
        self.annotate_acquired();
        self.by_mutex(streak)
    }

    /// Does something with the value if the calling thread has a section open.
    ///
    /// # Safety
    /// `body` does not take this lock.
    #[inline]
    pub unsafe fn in_section<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.section.load(Relaxed) != Token::own().get() {
            return None;
        }
        // SAFETY: nobody else comes in as long as the section is open. This thread has no guard: it would borrow the
        // lock, and `body`, which is all that runs meanwhile, takes none.
        Some(self.value.with_mut(|value| body(unsafe { &mut *value })))
    }

    /// As [`in_section`](Self::in_section), and ends the section behind it, also if `body` panics.
    ///
    /// # Safety
    /// `body` does not take this lock.
    #[inline]
    pub unsafe fn close_section<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _end = SectionEnd(self);
        // SAFETY: as the caller promises.
        unsafe { self.in_section(body) }
    }

    /// Ends the calling thread's section. Without one it does nothing.
    #[inline]
    pub fn end_section(&self) {
        if self.section.load(Relaxed) == Token::own().get() {
            self.annotate_releasing();
            self.section.store(0, Release);
        }
    }

    /// Whether the calling thread holds the lock, for a signal's handler.
    pub fn is_held_here(&self) -> bool {
        let me = current_thread();
        self.holder.load(Relaxed) == me || self.favourite.load(Relaxed) == me && self.inside.load(Relaxed)
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
        if self.is_in_own_section() {
            return self.reenter_soon();
        }
        let mut streak = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.annotate_acquired();
        self.dismiss(&mut streak);
        self.wait_until_free();
        self.annotate_acquired();
        self.count(streak)
    }

    #[cold]
    #[inline(never)]
    fn try_lock_by_mutex(&self) -> Option<BiasedGuard<'_, T>> {
        if self.is_in_own_section() {
            return self.reenter();
        }
        let mut streak = match self.mutex.try_lock() {
            Ok(streak) => streak,
            Err(TryLockError::Poisoned(streak)) => streak.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.annotate_acquired();
        self.dismiss(&mut streak);
        // In this order, as in `wait_until_free`.
        let is_taken = self.inside.load(Acquire) || self.section.load(Acquire) != 0;
        if is_taken {
            return None;
        }
        self.annotate_acquired();
        Some(self.count(streak))
    }

    fn is_in_own_section(&self) -> bool {
        self.section.load(Relaxed) == Token::own().get()
    }

    /// The guard of a thread that has a section open, if it has no other one. Nor has it one if a former favourite is
    /// about to notice that it is one, in `enter`.
    fn reenter(&self) -> Option<BiasedGuard<'_, T>> {
        if self.inside.load(Relaxed) || self.is_reentered.load(Relaxed) {
            return None;
        }
        self.is_reentered.store(true, Relaxed);
        Some(BiasedGuard { lock: self, hold: Hold::Section, _thread: PhantomData })
    }

    fn reenter_soon(&self) -> BiasedGuard<'_, T> {
        loop {
            if let Some(guard) = self.reenter() {
                return guard;
            }
            if self.is_reentered.load(Relaxed) {
                taken_twice();
            }
            give_way();
        }
    }

    /// Waits until neither the former favourite nor a section is inside. The caller has the mutex, so nobody else
    /// comes.
    fn wait_until_free(&self) {
        let mut patience = Patience::default();
        loop {
            // In this order: the favourite opens its section before it leaves.
            if self.inside.load(Acquire) {
                give_way();
                continue;
            }
            let section = self.section.load(Acquire);
            if section == 0 {
                return;
            }
            if patience.wait_for(section) {
                // Its thread has ended: nobody is left who ends it, or is inside.
                self.is_reentered.store(false, Relaxed);
                return self.section.store(0, Relaxed);
            }
        }
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
        self.annotate_releasing();
        drop(streak);
        self.favourites()
    }

    /// The guard of the favourite, which is inside.
    #[inline(always)]
    fn favourites(&self) -> BiasedGuard<'_, T> {
        self.annotate_acquired();
        BiasedGuard { lock: self, hold: Hold::Favourite, _thread: PhantomData }
    }

    /// The guard of whoever holds the mutex.
    fn by_mutex<'a>(&'a self, streak: MutexGuard<'a, Streak>) -> BiasedGuard<'a, T> {
        self.holder.store(current_thread(), Relaxed);
        // SAFETY: only who holds the mutex uses the cell. The mutex's guard stays within its life: it leaves the cell
        // when the guard that is returned ends, which borrows the lock as long. If that one is forgotten, it stays
        // there for ever, and so does the mutex locked: nobody reads it.
        self.streak.with_mut(|cell| unsafe {
            (*cell).write(std::mem::transmute::<MutexGuard<'a, Streak>, MutexGuard<'static, Streak>>(streak))
        });
        BiasedGuard { lock: self, hold: Hold::Mutex, _thread: PhantomData }
    }
}

/// ThreadSanitizer knows neither membarrier(2) nor what the standard library's mutex does: it is told
/// (tests/sanitizers).
impl<T> BiasedLock<T> {
    /// After whatever may have made this thread the holder, or shown it what the holder did.
    #[inline(always)]
    fn annotate_acquired(&self) {
        #[cfg(feature = "thread-sanitizer")]
        // SAFETY: an address alone.
        unsafe {
            __tsan_acquire((&raw const *self).cast_mut().cast());
        }
    }

    #[inline(always)]
    fn annotate_releasing(&self) {
        #[cfg(feature = "thread-sanitizer")]
        // SAFETY: an address alone.
        unsafe {
            __tsan_release((&raw const *self).cast_mut().cast());
        }
    }
}

#[cfg(feature = "thread-sanitizer")]
unsafe extern "C" {
    fn __tsan_acquire(address: *mut std::ffi::c_void);
    fn __tsan_release(address: *mut std::ffi::c_void);
}

/// Ends the thread's section when it is dropped.
struct SectionEnd<'a, T>(&'a BiasedLock<T>);

impl<T> Drop for SectionEnd<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.end_section();
    }
}

#[cold]
fn taken_twice() -> ! {
    panic!("a thread takes a lock that it holds");
}

enum Entered {
    Inside,
    /// The calling thread is inside already.
    Already,
    NotFavourite,
}

impl<T> BiasedGuard<'_, T> {
    /// Opens a section: the calling thread keeps the lock until it ends the section or itself. In a section it goes on
    /// with that.
    #[inline]
    pub fn into_section(self) {
        // Before the guard ends: see `wait_until_free`.
        self.lock.section.store(Token::own().get(), Relaxed);
    }
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
        self.lock.annotate_releasing();
        match self.hold {
            Hold::Favourite => self.lock.inside.store(false, Release),
            Hold::Mutex => {
                self.lock.holder.store(0, Relaxed);
                // SAFETY: this guard came by the mutex, whose guard lies there since. It is taken out once: guards end
                // once.
                drop(self.lock.streak.with_mut(|cell| unsafe { (*cell).assume_init_read() }));
            }
            Hold::Section => self.lock.is_reentered.store(false, Relaxed),
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
        formatter.debug_struct("BiasedGuard").field("hold", &self.hold).finish_non_exhaustive()
    }
}
