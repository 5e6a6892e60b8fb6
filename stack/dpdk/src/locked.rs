//! Why there may be no memory: a process that locks all that it maps, by mlockall(2), has a limit for it.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// The limit and the cure, if the limit of locked memory keeps this process from mapping more. The kernel then refuses
/// mappings with EAGAIN, or drivers find no memory and say nothing.
pub(crate) fn explanation() -> Option<String> {
    let limit = getrlimit(Resource::Memlock).current?;
    // More than the limit, which the kernel looks at only if all memory is locked.
    let length = usize::try_from(limit).ok()?.checked_add(1 << 12)?;
    // SAFETY: new memory, which nobody uses, and which is taken away again.
    let is_limited = unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        match mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), flags) {
            Ok(mapped) => {
                let _ = munmap(mapped, length);
                false
            }
            Err(error) => error == rustix::io::Errno::AGAIN,
        }
    };
    is_limited.then(|| {
        format!(
            "this process locks its memory (mlockall), of which it may lock {} KiB: raise that limit (ulimit -l, LimitMEMLOCK=, docker run --ulimit memlock=-1), or lock no future mappings (MCL_FUTURE)",
            limit >> 10
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process of the test below.
    const ROLE: &str = "UWARP_LOCKED_ROLE";

    #[test]
    fn a_process_that_locks_all_its_memory_is_told_its_limit() {
        if std::env::var_os(ROLE).is_none() {
            assert_eq!(explanation(), None);
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["locked::tests::a_process_that_locks_all_its_memory_is_told_its_limit", "--exact"])
                .env(ROLE, "locks")
                .status();
            assert!(status.unwrap().success());
            return;
        }
        // No more than what the test was given: only root may raise that.
        let given = rustix::process::getrlimit(rustix::process::Resource::Memlock).maximum.unwrap_or(u64::MAX);
        let most = given.min(64 << 20);
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a structure on the stack, and numbers. Root has no such limit; without root the second call fails.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
            libc::setuid(65_534);
            assert_eq!(libc::mlockall(libc::MCL_FUTURE), 0);
        }
        let text = explanation().expect("a limit");
        assert!(text.contains(&format!("{} KiB", most >> 10)), "{text}");
    }
}
