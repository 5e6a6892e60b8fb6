//! Counters of a server, in the text format of Prometheus.

use crate::directory::number::NAMES;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counters of a server, shared by its threads, or of a gateway.
#[derive(Debug, Default)]
pub struct Metrics {
    /// A gateway does not see the operations on files.
    of_gateway: bool,
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
    /// Repeated calls that were not executed again.
    pub duplicates: AtomicU64,
    /// Calls that were refused: credentials, ports, programs, arguments.
    pub refused: AtomicU64,
    /// Connections over RDMA, since the start.
    pub rdma_clients: AtomicU64,
    /// Connections over TCP, since the start.
    pub tcp_clients: AtomicU64,
    /// Connections that `--allow` refused.
    pub not_allowed: AtomicU64,
    /// Connections that were refused because there were too many, in total or from one address.
    pub turned_away: AtomicU64,
    /// Connections that were ended because they were idle.
    pub timed_out: AtomicU64,
    /// Syncs that failed: data was lost, and the clients have been told to send it again.
    pub failed_syncs: AtomicU64,
    /// Searches of the whole directory for the object of a handle.
    pub searches: AtomicU64,
}

impl Metrics {
    /// For a gateway: another server executes its calls, and their time lasts until its answer.
    pub fn of_gateway() -> Self {
        Self { of_gateway: true, ..Self::default() }
    }

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
            ("duplicates_total", "Calls that came again and were not carried out again.", &self.duplicates),
            ("refused_total", "Calls refused for credentials, port, program or arguments.", &self.refused),
            ("rdma_clients_total", "Connections over RDMA.", &self.rdma_clients),
            ("tcp_clients_total", "Connections over TCP.", &self.tcp_clients),
            ("not_allowed_total", "Connections from outside of the allowed subnets.", &self.not_allowed),
            ("turned_away_total", "Connections refused because there were too many.", &self.turned_away),
            ("timed_out_total", "Connections ended because they were idle.", &self.timed_out),
        ] {
            family(name, help, &[(String::new(), load(counter) as f64)]);
        }
        if self.of_gateway {
            return out;
        }
        for (name, help, counter) in [
            ("read_octets_total", "Octets read from files.", &self.read),
            ("written_octets_total", "Octets written to files.", &self.written),
            ("failed_syncs_total", "Syncs that failed; clients were told to send data again.", &self.failed_syncs),
            ("searches_total", "Searches of the whole directory for the object of a handle.", &self.searches),
        ] {
            family(name, help, &[(String::new(), load(counter) as f64)]);
        }
        out
    }

    /// Writes the text to a file, which is complete at any time.
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

/// The file of the metrics.
#[derive(Debug)]
pub struct Keeper {
    metrics: Arc<Metrics>,
    path: PathBuf,
    every: Duration,
    written: Instant,
    /// Whether the last write failed: that is logged once.
    fails: bool,
}

impl Keeper {
    /// Writes the file, and keeps it up to date.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(metrics: Arc<Metrics>, path: PathBuf, every: Duration) -> std::io::Result<Self> {
        metrics.write(&path)?;
        Ok(Self { metrics, path, every, written: Instant::now(), fails: false })
    }

    /// Writes the file if it is time, however busy the server is. A full disk does not affect the service.
    pub fn step(&mut self) {
        if self.written.elapsed() >= self.every {
            self.write();
        }
    }

    /// Writes the file now.
    pub fn write(&mut self) {
        self.written = Instant::now();
        let written = self.metrics.write(&self.path);
        if let Err(error) = &written
            && !self.fails
        {
            tracing::warn!("metrics cannot be written to {}: {error}", self.path.display());
        }
        self.fails = written.is_err();
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

    #[test]
    fn a_gateway_does_not_say_what_it_does_not_see() {
        let metrics = Metrics::of_gateway();
        metrics.called(6, true, Duration::ZERO);
        let text = metrics.text();
        assert!(text.contains("calls_total{procedure=\"read\"} 1") && text.contains("rdma_clients_total 0"), "{text}");
        assert!(!text.contains("octets") && !text.contains("sync") && !text.contains("searches"), "{text}");
    }

    #[test]
    fn a_file_that_cannot_be_written_now_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let (path, metrics) = (folder.path().join("below/metrics"), Arc::new(Metrics::default()));
        assert!(Keeper::new(Arc::clone(&metrics), path.clone(), Duration::ZERO).is_err(), "at the start it is told");
        std::fs::create_dir(folder.path().join("below")).unwrap();
        let mut keeper = Keeper::new(Arc::clone(&metrics), path.clone(), Duration::ZERO).unwrap();
        std::fs::remove_dir_all(folder.path().join("below")).unwrap();
        Metrics::count(&metrics.refused);
        keeper.step();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        keeper.step();
        assert!(std::fs::read_to_string(&path).unwrap().contains("refused_total 1"));
        // Not before it is time.
        keeper.every = Duration::from_secs(1000);
        std::fs::remove_file(&path).unwrap();
        keeper.step();
        assert!(!path.exists());
    }
}
