//! Writing caches back to persistent memory.

use std::ptr::NonNull;

/// Whether there is a way for this kind of processor.
pub(crate) const IS_KNOWN: bool = cfg!(target_arch = "x86_64");

/// Writes back the cache lines of `length` octets and waits for that, by the processor's best instruction.
///
/// # Safety
/// `start` must be valid for reads of as many octets.
pub(crate) unsafe fn write_back(start: NonNull<u8>, length: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as this function; the processor has the instruction.
    unsafe {
        x86::write_back(x86::best(), start, length);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, length);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence, _mm_sfence};
    use std::ptr::NonNull;
    use std::sync::OnceLock;

    /// Octets of a cache line.
    const LINE: usize = 64;

    /// How a cache line is written back.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Way {
        /// CLWB: the line may stay in the cache.
        Clwb,
        /// CLFLUSHOPT: it is dropped, and the next access fetches it again; several lines go at once.
        ClflushOpt,
        /// CLFLUSH, which every x86-64 has: one line after the other.
        Clflush,
    }

    /// The ways that this processor has, best first.
    pub(super) fn available() -> impl Iterator<Item = Way> {
        let features = raw_cpuid::CpuId::new().get_extended_feature_info();
        let has = move |way: &Way| match way {
            Way::Clwb => features.as_ref().is_some_and(|features| features.has_clwb()),
            Way::ClflushOpt => features.as_ref().is_some_and(|features| features.has_clflushopt()),
            Way::Clflush => true,
        };
        [Way::Clwb, Way::ClflushOpt, Way::Clflush].into_iter().filter(move |way| has(way))
    }

    pub(super) fn best() -> Way {
        static BEST: OnceLock<Way> = OnceLock::new();
        *BEST.get_or_init(|| available().next().unwrap_or(Way::Clflush))
    }

    /// Writes back in one of the ways.
    ///
    /// # Safety
    /// `start` must be valid for reads of `length` octets, and the processor must have the way.
    pub(super) unsafe fn write_back(way: Way, start: NonNull<u8>, length: usize) {
        if length == 0 {
            // The line at `start` need not be mapped.
            return;
        }
        let end = start.as_ptr().wrapping_add(length);
        let mut line = start.as_ptr().wrapping_sub(start.as_ptr().addr() % LINE);
        // Stores before this, streaming ones too, are in a cache or the memory when their line's turn comes.
        // SAFETY: an instruction that SSE2 brings, which every x86-64 has.
        unsafe { _mm_mfence() };
        while line < end {
            // SAFETY: the line holds an octet of what the caller vouches for, and so is mapped; nothing of it is
            // changed, and the compiler takes it for an access to any memory, so that no store moves across.
            unsafe {
                match way {
                    Way::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Way::ClflushOpt => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Way::Clflush => _mm_clflush(line),
                }
            }
            line = line.wrapping_add(LINE);
        }
        // The first two are ordered by SFENCE.
        // SAFETY: as above.
        unsafe {
            if way == Way::Clflush {
                _mm_mfence();
            } else {
                _mm_sfence();
            }
        }
    }
}

#[cfg(all(test, not(loom), target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_writing_back_leaves_memory_as_it_is() {
        let ways: Vec<_> = x86::available().collect();
        assert_eq!(ways.last(), Some(&x86::Way::Clflush));
        assert_eq!(x86::best(), ways[0]);
        let mut octets: Vec<u8> = (0..1000u32).map(|at| (at * 7) as u8).collect();
        let before = octets.clone();
        for way in ways {
            // SAFETY: no octets.
            unsafe { x86::write_back(way, NonNull::dangling(), 0) };
            for (from, length) in [(0, 0), (0, 1), (63, 2), (64, 64), (1, 999), (999, 1)] {
                let start = NonNull::from(&mut octets[from..from + length]).cast();
                // SAFETY: inside the vector, and the processor has the way.
                unsafe { x86::write_back(way, start, length) };
                assert!(octets == before, "{way:?}");
            }
        }
    }
}
