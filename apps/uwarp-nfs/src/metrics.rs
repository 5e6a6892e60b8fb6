//! What a server has done, in the text format that Prometheus reads.

use crate::directory::procedures::NAMES;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of a server, shared by its threads.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Calls of NFS that were carried out, by procedure.
    calls: [AtomicU64; NAMES.len()],
    /// Results other than NFS3_OK among them.
    errors: [AtomicU64; NAMES.len()],
    /// Microseconds that they took.
    micros: [AtomicU64; NAMES.len()],
    /// Octets read from files.
    pub read: AtomicU64,
    /// Octets written to files.
    pub written: AtomicU64,
    /// Calls that had come before and were not carried out again.
    pub duplicates: AtomicU64,
    /// Calls that were refused: credentials, programs, arguments.
    pub refused: AtomicU64,
    /// Connections over RDMA, since the start.
    pub rdma_clients: AtomicU64,
    /// Connections over TCP, since the start.
    pub tcp_clients: AtomicU64,
    /// Connections that `--allow` kept out.
    pub not_allowed: AtomicU64,
    /// Syncs that failed: data was lost, and the clients have been told to send it again.
    pub failed_syncs: AtomicU64,
    /// Times that the whole directory was looked through for the object of a handle.
    pub searches: AtomicU64,
}

impl Metrics {
    /// Adds one.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A call was carried out.
    pub(crate) fn called(&self, procedure: u32, ok: bool, took: Duration) {
        let Some(calls) = self.calls.get(procedure as usize) else { return };
        Self::count(calls);
        if !ok {
            Self::count(&self.errors[procedure as usize]);
        }
        self.micros[procedure as usize].fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// All of it as text. A procedure that was not called has no lines.
    pub fn text(&self) -> String {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut out = String::new();
        let mut family = |name: &str, help: &str, samples: &[(String, f64)]| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "# HELP uwarp_nfs_{name} {help}\n# TYPE uwarp_nfs_{name} counter");
            for (labels, value) in samples {
                let _ = writeln!(out, "uwarp_nfs_{name}{labels} {value}");
            }
        };
        let by_procedure = |counters: &[AtomicU64], scale: f64| -> Vec<(String, f64)> {
            let called = NAMES.iter().zip(counters).zip(&self.calls).filter(|(_, calls)| load(calls) > 0);
            called
                .map(|((name, counter), _)| (format!("{{procedure=\"{name}\"}}"), load(counter) as f64 * scale))
                .collect()
        };
        family("calls_total", "NFS calls carried out.", &by_procedure(&self.calls, 1.0));
        family("errors_total", "NFS calls whose result was not NFS3_OK.", &by_procedure(&self.errors, 1.0));
        family("seconds_total", "Time that calls took to carry out.", &by_procedure(&self.micros, 1e-6));
        for (name, help, counter) in [
            ("read_octets_total", "Octets read from files.", &self.read),
            ("written_octets_total", "Octets written to files.", &self.written),
            ("duplicates_total", "Calls that came again and were not carried out again.", &self.duplicates),
            ("refused_total", "Calls refused for credentials, program or arguments.", &self.refused),
            ("rdma_clients_total", "Connections over RDMA.", &self.rdma_clients),
            ("tcp_clients_total", "Connections over TCP.", &self.tcp_clients),
            ("not_allowed_total", "Connections from outside of the allowed subnets.", &self.not_allowed),
            ("failed_syncs_total", "Syncs that failed; clients were told to send data again.", &self.failed_syncs),
            ("searches_total", "Searches of the whole directory for the object of a handle.", &self.searches),
        ] {
            family(name, help, &[(String::new(), load(counter) as f64)]);
        }
        out
    }

    /// Writes the text to a file, which is whole at any time.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        std::fs::write(&new, self.text())?;
        std::fs::rename(&new, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_what_was_counted() {
        let metrics = Metrics::default();
        metrics.called(6, true, Duration::from_micros(1500));
        metrics.called(6, false, Duration::from_micros(500));
        metrics.called(99, true, Duration::ZERO);
        metrics.read.fetch_add(4096, Ordering::Relaxed);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics");
        metrics.write(&file).unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        for line in [
            "uwarp_nfs_calls_total{procedure=\"read\"} 2",
            "uwarp_nfs_errors_total{procedure=\"read\"} 1",
            "uwarp_nfs_seconds_total{procedure=\"read\"} 0.002",
            "uwarp_nfs_read_octets_total 4096",
            "uwarp_nfs_duplicates_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("lookup"));
    }
}
