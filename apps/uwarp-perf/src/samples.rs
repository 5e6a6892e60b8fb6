//! Samples of a timed run: stored in a list while the clock runs, and moved to a histogram while it does not.

use hdrhistogram::Histogram;
use uwarp_app::pair::Latency;

/// Samples per update of the histogram: few enough to stay in the first-level cache.
const CHUNK: usize = 2048;

/// Collects round trips in nanoseconds.
pub struct Samples {
    chunk: Vec<u64>,
    histogram: Histogram<u64>,
}

impl Samples {
    /// An empty collection.
    ///
    /// # Errors
    /// The histogram refuses its bounds (it does not).
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            chunk: Vec::with_capacity(CHUNK),
            // Three digits from 1 ns to a minute; longer ones count as a minute.
            histogram: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
        })
    }

    /// Adds one sample; true if the list is full and [`flush`](Self::flush) is due, outside the timed part.
    #[inline]
    #[must_use]
    pub fn push(&mut self, nanoseconds: u64) -> bool {
        self.chunk.push(nanoseconds);
        self.chunk.len() == CHUNK
    }

    /// Moves the list into the histogram.
    pub fn flush(&mut self) {
        for &sample in &self.chunk {
            self.histogram.saturating_record(sample);
        }
        self.chunk.clear();
    }

    /// Number of samples in the histogram.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// The percentiles.
    pub fn latency(&mut self) -> Latency {
        self.flush();
        Latency::of(&self.histogram)
    }
}
