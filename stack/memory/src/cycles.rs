//! The processor's cycle counter.

/// The time stamp counter, for clocks that are read once a turn: a few nanoseconds, where the system's clock takes
/// tens. Its rate, and whether it stands for time at all, is for the caller to find out. `None` on processors that have
/// none.
#[inline]
pub fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and Linux lets processes use it unless they forbid it to
        // themselves (PR_SET_TSC).
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}
