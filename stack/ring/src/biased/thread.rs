//! What tells threads apart, and whether one has ended.

use std::num::NonZeroU64;
use std::time::Duration;

/// A number that identifies a living thread: never 0.
#[cfg(not(any(loom, miri)))]
#[inline(always)]
pub(super) fn current_thread() -> usize {
    let thread: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word behind fs is its own address; the x86-64 ABI of thread-local storage has it so.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(pure, readonly, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the register has the address of the thread's own storage; the ABI has it so.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(pure, nomem, nostack, preserves_flags));
    }
    thread
}

/// The same for interpreters.
#[cfg(all(miri, not(loom)))]
pub(super) fn current_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// The same for loom, whose threads share one thread of the system.
#[cfg(loom)]
pub(super) fn current_thread() -> usize {
    loom::thread_local!(static MARK: Box<u8> = Box::new(0));
    MARK.with(|mark| std::ptr::from_ref(&**mark).addr())
}

/// What no other thread of this process has or ever gets, unlike [`current_thread`]: how many threads had one before,
/// and below that the thread's number in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(NonZeroU64);

#[cfg(not(loom))]
thread_local!(static TOKEN: std::cell::Cell<Option<Token>> = const { std::cell::Cell::new(None) });

impl Token {
    /// That of the calling thread.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn own() -> Token {
        TOKEN.get().unwrap_or_else(Token::make)
    }

    #[cfg(not(loom))]
    #[cold]
    fn make() -> Token {
        use std::sync::atomic::{AtomicU32, Ordering};
        static BEFORE: AtomicU32 = AtomicU32::new(0);
        let before = u64::from(BEFORE.fetch_add(1, Ordering::Relaxed));
        #[cfg(not(miri))]
        let number = rustix::thread::gettid().as_raw_nonzero().unsigned_abs();
        #[cfg(miri)]
        let number = std::num::NonZeroU32::MIN;
        let token = Token(NonZeroU64::from(number) | before << 32);
        TOKEN.set(Some(token));
        token
    }

    #[cfg(loom)]
    pub(super) fn own() -> Token {
        Token(NonZeroU64::MIN | (current_thread() as u64) << 1)
    }

    #[inline]
    pub(super) fn get(self) -> u64 {
        self.0.get()
    }
}

/// Lets other threads run.
pub(super) fn give_way() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// How long somebody waits for a section to end.
#[derive(Default)]
pub(super) struct Patience {
    rounds: u32,
}

/// Rounds in which the waiting thread yields its core. It sleeps in those that follow.
const YIELDS: u32 = 256;
/// How long it sleeps in one.
const SLEEP: Duration = Duration::from_micros(50);
/// How often it looks whether the section's thread has ended, in rounds.
const LOOKS: u32 = 256;

impl Patience {
    /// Waits a little for the thread with this token. Whether it has ended.
    pub(super) fn wait_for(&mut self, token: u64) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds < YIELDS || cfg!(loom) {
            give_way();
            return false;
        }
        std::thread::sleep(SLEEP);
        self.rounds.is_multiple_of(LOOKS) && has_ended(token)
    }
}

/// Whether the thread with this token has ended. It may seem to live on if another process has got its number.
#[cfg(not(any(loom, miri)))]
fn has_ended(token: u64) -> bool {
    let number = rustix::thread::Pid::from_raw(token as u32 as i32);
    rustix::thread::sched_getaffinity(number).is_err_and(|error| error == rustix::io::Errno::SRCH)
}

/// Interpreters and loom have no such numbers.
#[cfg(any(loom, miri))]
fn has_ended(_: u64) -> bool {
    false
}
