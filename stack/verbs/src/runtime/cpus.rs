//! Which CPUs engines and the threads of durable regions run on.
//!
//! A thread inherits the CPUs of the one that starts it. A polling application is pinned, often beside its engine, and
//! a committer that inherited that would always share a CPU with a poller. So committers avoid the engines' CPUs, since
//! they take time from engines there, if enough other CPUs are left. If not, the kernel chooses. The configuration
//! overrides both.

use crate::config::Config;
use crate::error::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the kernel lists the CPUs that are in use.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Checks that the machine has these CPUs. The caller's own affinity says nothing about other threads: an application
/// that is pinned may have its engines elsewhere.
///
/// # Errors
/// [`Error::Argument`] with the first that it does not have.
pub(crate) fn check(what: &'static str, cpus: &[usize]) -> Result<(), Error> {
    let online = std::fs::read_to_string(ONLINE).unwrap_or_default();
    match cpus.iter().find(|&&cpu| cpu >= CpuSet::MAX_CPU || !is_listed(online.trim(), cpu)) {
        Some(cpu) => Err(Error::argument(what, cpu, format!("choose of the CPUs that are online: {}", online.trim()))),
        None => Ok(()),
    }
}

/// Whether a list such as `0-3,8` has a number. An empty one has all.
fn is_listed(list: &str, number: usize) -> bool {
    list.is_empty()
        || list.split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&number))
        })
}

/// Moves the calling thread to a CPU.
///
/// # Errors
/// [`Error::Argument`] if the system does not allow it.
pub(crate) fn pin(what: &'static str, cpu: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| {
        let expected = format!("the system does not let this process use it ({error}): see its cgroup's cpuset.cpus");
        Error::argument(what, cpu, expected)
    })
}

/// The CPUs of committers.
#[derive(Clone, Debug)]
pub(crate) struct CommitCpus(Vec<usize>);

impl CommitCpus {
    /// The configured CPUs, or those chosen from what the calling thread may use.
    ///
    /// # Errors
    /// Those of [`check`].
    pub(crate) fn of(config: &Config) -> Result<Self, Error> {
        check("commit.cpus", &config.commit.cpus)?;
        let usable: Vec<usize> = match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
            Err(error) => {
                tracing::debug!(%error, "the CPUs of this thread are not known");
                config.commit.cpus.clone()
            }
        };
        Ok(Self(choose(&usable, &config.engine.cpus, &config.commit.cpus)))
    }

    /// Moves the calling thread to these CPUs.
    pub(crate) fn apply(&self) {
        if self.0.is_empty() {
            return;
        }
        let mut set = CpuSet::new();
        for &cpu in &self.0 {
            set.set(cpu);
        }
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(%error, cpus = ?self.0, "the thread of a durable region stays on the CPUs of its maker");
        }
    }
}

/// The configured CPUs, else the usable ones that no engine polls. A single one might be polled by another process,
/// such as the peer on the same machine; then the kernel chooses among all, by their load.
fn choose(usable: &[usize], engines: &[usize], asked: &[usize]) -> Vec<usize> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let others: Vec<usize> = usable.iter().copied().filter(|cpu| !engines.contains(cpu)).collect();
    if others.len() >= 2 { others } else { usable.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committers_keep_away_from_engines_where_there_is_room() {
        for (usable, engines, asked, chosen) in [
            (&[0, 1, 2, 3][..], &[1][..], &[][..], &[0, 2, 3][..]),
            (&[0, 1, 2, 3], &[0, 1, 2], &[], &[0, 1, 2, 3]),
            (&[0, 1], &[0], &[], &[0, 1]),
            (&[0, 1], &[], &[], &[0, 1]),
            (&[5], &[5], &[], &[5]),
            (&[0, 1, 2, 3], &[1], &[1, 2], &[1, 2]),
        ] {
            assert_eq!(choose(usable, engines, asked), chosen, "{usable:?} {engines:?} {asked:?}");
        }
    }

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        for (list, there, not_there) in
            [("0", &[0][..], &[1][..]), ("0-3,8", &[0, 3, 8], &[4, 7, 9]), ("", &[0, 7], &[])]
        {
            assert!(there.iter().all(|&cpu| is_listed(list, cpu)), "{list}");
            assert!(!not_there.iter().any(|&cpu| is_listed(list, cpu)), "{list}");
        }
    }

    #[test]
    fn cpus_that_are_not_there_are_refused() {
        let mut config = Config::without_device("10.0.0.1/24").unwrap();
        config.commit.cpus = vec![CpuSet::MAX_CPU];
        let error = CommitCpus::of(&config).unwrap_err();
        assert!(matches!(error, Error::Argument { what: "commit.cpus", .. }), "{error}");
    }
}
