//! The result of a test, as JSON and as a table.

use crate::cli::Test;
use serde::{Deserialize, Serialize};
use uwarp_app::cacheline::CacheLine;
use uwarp_app::measure::{Latency, Timed, gbit_per_s};
use uwarp_app::output::{self, JsonFlag};
use uwarp_app::units::{format_nanoseconds, format_size, name_of};

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the test.
    pub test: Test,
    /// The device, as for `--device`, or the `kind` of the configuration file.
    pub device: String,
    /// Octets of a message.
    pub size: u64,
    /// Largest IP packet.
    pub mtu: u16,
    /// Whether FPDUs carry a CRC; none in raw tests.
    pub crc: Option<bool>,
    /// Inline or threaded; none in raw tests.
    pub engine: Option<String>,
    /// Queue pairs.
    pub qps: u32,
    /// Messages under way in each.
    pub depth: u32,
    /// Messages that were timed.
    pub iterations: u64,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// Messages of which every octet was checked, mostly in a separate run; for connect-rate, connections.
    pub verified: u64,
    /// Latency tests: percentiles.
    pub latency_ns: Option<Latency>,
    /// Bandwidth tests: octets of messages in both directions counted once, 10^9 bit/s.
    pub gbit_per_s: Option<f64>,
    /// Bandwidth tests: 10^6 messages per second.
    pub mops: Option<f64>,
    /// Raw bandwidth: 10^6 frames per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mframes: Option<f64>,
    /// Connections made and closed per second, one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_per_s: Option<f64>,
    /// Raw tests: frames per message, and octets of the longest, Ethernet header included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<(u32, u32)>,
    /// Shares of this side's frames that took the engine's short ways, 0 to 1: received, and sent without pure
    /// acknowledgments. Of the first engine; from the start of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_share: Option<(f64, f64)>,
    /// Cache-line round trips between the two CPUs, in `pair`.
    pub cacheline_ns: Option<CacheLine>,
}

impl Report {
    /// The report of a run in which nothing has been timed yet: one queue pair with one message under way, without
    /// engine and CRC.
    #[must_use]
    pub fn untimed(test: Test, device: &str, size: u64, mtu: u16) -> Self {
        Self {
            test,
            device: device.to_owned(),
            size,
            mtu,
            crc: None,
            engine: None,
            qps: 1,
            depth: 1,
            iterations: 0,
            seconds: 0.0,
            verified: 0,
            latency_ns: None,
            gbit_per_s: None,
            mops: None,
            mframes: None,
            connections_per_s: None,
            frames: None,
            hot_share: None,
            cacheline_ns: None,
        }
    }

    /// The times of a latency test.
    pub fn set_times(&mut self, Timed { latency, count, seconds }: Timed) {
        self.latency_ns = Some(latency);
        self.iterations = count;
        self.seconds = seconds;
    }

    /// The rates of a bandwidth test.
    pub fn set_rates(&mut self) {
        if self.seconds > 0.0 {
            let messages = self.iterations as f64;
            self.gbit_per_s = Some(gbit_per_s(messages * self.size as f64, self.seconds));
            self.mops = Some(messages / self.seconds / 1e6);
        }
    }

    /// Writes JSON if requested, and a table unless the JSON goes to standard output.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(&self, json: &JsonFlag) -> anyhow::Result<()> {
        json.publish(self.table(), self)
    }

    fn table(&self) -> String {
        let mut head = vec!["test", "device", "size", "mtu"];
        let mut row = vec![name_of(self.test), self.device.clone(), format_size(self.size), self.mtu.to_string()];
        if let Some(crc) = self.crc {
            head.push("crc");
            row.push(if crc { "on" } else { "off" }.to_owned());
        }
        let mut add = |name, value: String| {
            head.push(name);
            row.push(value);
        };
        if self.qps > 1 {
            add("qps", self.qps.to_string());
        }
        if self.depth > 1 {
            add("depth", self.depth.to_string());
        }
        if let Some((frames, octets)) = self.frames {
            add("frames", format!("{frames} × {octets}"));
        }
        add("messages", self.iterations.to_string());
        if let Some(latency) = &self.latency_ns {
            for (name, value) in [
                ("min", latency.min),
                ("p50", latency.p50),
                ("p99", latency.p99),
                ("p99.9", latency.p99_9),
                ("max", latency.max),
            ] {
                add(name, format_nanoseconds(value));
            }
        }
        if let Some(rate) = self.gbit_per_s {
            add("Gbit/s", format!("{rate:.2}"));
        }
        if let Some(rate) = self.mops {
            add("M messages/s", format!("{rate:.3}"));
        }
        if let Some(rate) = self.mframes {
            add("M frames/s", format!("{rate:.2}"));
        }
        if let Some(rate) = self.connections_per_s {
            add("connections/s", format!("{rate:.0}"));
        }
        if let Some((received, sent)) = self.hot_share {
            add("hot in, out", format!("{:.1}, {:.1} %", 100.0 * received, 100.0 * sent));
        }
        if self.verified > 0 {
            add("verified", self.verified.to_string());
        }
        if let Some(line) = &self.cacheline_ns {
            add("cache line, ns", line.to_string());
        }
        let mut table = output::table(head);
        table.add_row(row);
        output::align_numbers(&mut table, 2);
        table.to_string()
    }
}
