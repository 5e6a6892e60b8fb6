//! How long a copy took, and what it cost.

use serde::{Deserialize, Serialize};
use std::time::Instant;
use uwarp_app::measure::gbit_per_s;
use uwarp_app::{cpu_time, output};

/// A file that was copied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// Its name at the server.
    pub name: String,
    /// Its length.
    pub octets: u64,
    /// From the request to the reply that it is whole, hashed, and under its name.
    pub seconds: f64,
    /// CPU time of the client's process meanwhile, in seconds.
    pub client_cpu: f64,
    /// CPU time of the server's process meanwhile, if the server stored the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server_cpu: Option<f64>,
}

impl Copied {
    /// The rate of the content.
    pub fn gbit_per_s(&self) -> f64 {
        gbit_per_s(self.octets as f64, self.seconds)
    }

    /// CPU time of both processes, as far as it is known.
    fn cpu(&self) -> f64 {
        self.client_cpu + self.server_cpu.unwrap_or(0.0)
    }
}

/// Measures time and CPU time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    start: Instant,
    cpu_ns: u64,
}

impl Meter {
    /// Starts.
    pub fn start() -> Self {
        Self { start: Instant::now(), cpu_ns: cpu_time() }
    }

    /// CPU time of this process since the start, in nanoseconds.
    pub fn cpu_ns(&self) -> u64 {
        cpu_time() - self.cpu_ns
    }

    /// A file that was copied between the start and now.
    pub fn copied(&self, name: &str, octets: u64, server_ns: Option<u64>) -> Copied {
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        Copied {
            name: name.to_owned(),
            octets,
            seconds: self.start.elapsed().as_secs_f64(),
            client_cpu: seconds(self.cpu_ns()),
            server_cpu: server_ns.map(seconds),
        }
    }
}

/// The copies that went one way.
#[derive(Debug, Serialize)]
pub struct Way {
    /// Which way.
    pub name: String,
    /// The copies, one each round.
    pub copies: Vec<Copied>,
}

impl Way {
    /// The copy of median length in time.
    fn median(&self) -> Option<&Copied> {
        let mut copies: Vec<&Copied> = self.copies.iter().collect();
        copies.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        copies.get(copies.len() / 2).copied()
    }
}

/// The median of each way, with its rate beside that of the last one.
pub fn table(ways: &[Way]) -> String {
    let mut table = output::table(["copy", "size, MiB", "seconds", "Gbit/s", "CPU, s", "ratio"]);
    let last = ways.last().and_then(Way::median).map(Copied::gbit_per_s);
    for way in ways {
        let Some(median) = way.median() else { continue };
        table.add_row([
            way.name.clone(),
            format!("{:.0}", median.octets as f64 / f64::from(1 << 20)),
            format!("{:.3}", median.seconds),
            format!("{:.2}", median.gbit_per_s()),
            format!("{:.2}", median.cpu()),
            last.map_or_else(String::new, |last| format!("{:.2}", median.gbit_per_s() / last)),
        ]);
    }
    output::align_numbers(&mut table, 1);
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_reported_by_its_median_beside_the_last_one() {
        let copied = |seconds| Copied {
            name: "file".to_owned(),
            octets: 1 << 30,
            seconds,
            client_cpu: 0.5,
            server_cpu: Some(0.75),
        };
        let way = |name: &str, seconds: [f64; 3]| Way { name: name.to_owned(), copies: seconds.map(copied).to_vec() };
        let text = table(&[way("one", [9.0, 1.0, 2.0]), way("other", [4.0, 4.0, 0.1])]);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_whitespace().filter(|word| *word != "│").skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("one"), ["1024", "2.000", "4.29", "1.25", "2.00"]);
        assert_eq!(row("other"), ["1024", "4.000", "2.15", "1.25", "1.00"]);
    }
}
