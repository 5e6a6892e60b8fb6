//! The frozen table: bounds, and which attacks stay within them.

use std::collections::BTreeMap;
use std::fmt;

use super::Measured;

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Names of the concurrent attacks.
    pub attacks: Vec<String>,
    /// Whether all bounds must be kept; if not, at least one must be exceeded.
    pub closed: bool,
    /// Where it comes from.
    pub origin: String,
}

/// The table.
#[derive(Debug, Default)]
pub struct Table {
    /// Bounds by name.
    pub bounds: BTreeMap<String, f64>,
    /// Rows in their order.
    pub rows: Vec<Row>,
}

impl Row {
    /// Its name.
    pub fn name(&self) -> String {
        self.attacks.join("+")
    }
}

impl Table {
    /// Parses the table.
    ///
    /// # Errors
    /// The faulty line.
    pub fn parse(text: &str) -> Result<Table, String> {
        let mut table = Table::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                ["bound", name, value] => {
                    let value = value.parse().map_err(|error| format!("line {}: {error}", number + 1))?;
                    table.bounds.insert(name.to_owned(), value);
                }
                [state @ ("closed" | "open"), name, origin] => table.rows.push(Row {
                    attacks: name.split('+').map(str::to_owned).collect(),
                    closed: state == "closed",
                    origin: origin.to_owned(),
                }),
                _ => return Err(format!("line {}: {line}", number + 1)),
            }
        }
        Ok(table)
    }

    /// A bound.
    ///
    /// # Panics
    /// The table does not have it.
    pub fn bound(&self, name: &str) -> f64 {
        *self.bounds.get(name).unwrap_or_else(|| panic!("the table has no bound '{name}'"))
    }
}

/// A row's figures beside the bounds.
#[derive(Debug)]
pub struct Judgement {
    /// The lower of both directions' throughput, as a fraction of the fair share.
    pub share: f64,
    /// 99th percentile of the round-trip times, as a multiple of that without attack.
    pub p99: f64,
    /// How long a newcomer took to connect, in milliseconds.
    pub opening: f64,
    /// The cost of an attacker's octet, by kind of work with a bound.
    pub work: Vec<(String, f64)>,
    /// The bounds that are missed, in words.
    pub missed: Vec<String>,
}

/// Compares a measurement with the bounds.
pub fn judge(table: &Table, alone: &Measured, measured: &Measured) -> Judgement {
    let fair = 1.0 / f64::from(1 + measured.greedy);
    let part = |now: u64, before: u64| now as f64 / (before as f64 * fair);
    let share = part(measured.bystander.written, alone.bystander.written)
        .min(part(measured.bystander.read, alone.bystander.read));
    let p99 = match measured.bystander.p99 {
        u64::MAX => f64::INFINITY,
        p99 => p99 as f64 / alone.bystander.p99 as f64,
    };
    let opening = measured.opening.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3);
    let mut judgement = Judgement { share, p99, opening, work: excess(table, alone, measured), missed: Vec::new() };
    let missed = &mut judgement.missed;
    if share < table.bound("share") {
        missed.push(format!("the bystander has {share:.2} of its fair share"));
    }
    if p99 > table.bound("p99") {
        missed.push(format!("the bystander's p99 is {p99:.1} times that alone"));
    }
    if opening > table.bound("opening") {
        missed.push(format!("a newcomer connects in {opening:.0} ms"));
    }
    for (name, value) in &judgement.work {
        if *value > table.bound(name) {
            missed.push(format!("{name}: {value:.3}"));
        }
    }
    if measured.committed_afterwards as f64 > table.bound("committed-afterwards") {
        missed.push(format!("commits wrote {} octets for attackers who were gone", measured.committed_afterwards));
    }
    missed.extend(measured.broken.iter().map(|text| format!("the bystander: {text}")));
    missed.extend(measured.missing.iter().map(|text| format!("not back: {text}")));
    missed.extend(measured.judged.iter().cloned());
    judgement
}

/// Work per attacker octet, less the cost of the row's honest frames.
fn excess(table: &Table, alone: &Measured, measured: &Measured) -> Vec<(String, f64)> {
    if measured.attacker_octets == 0 {
        return Vec::new();
    }
    let value =
        |of: &Measured, name: &str| of.work.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, value)| *value);
    let honest_frames = value(measured, "frames-received") - value(measured, "attacker-frames");
    measured
        .work
        .iter()
        .filter(|(name, _)| table.bounds.contains_key(*name))
        .map(|(name, count)| {
            let each = value(alone, name) / value(alone, "frames-received").max(1.0);
            let excess = (count - each * honest_frames.max(0.0)).max(0.0);
            ((*name).to_owned(), excess / measured.attacker_octets as f64)
        })
        .collect()
}

impl fmt::Display for Judgement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:>5.2} {:>6.2} {:>7.2}", self.share, self.p99, self.opening)?;
        for (_, value) in &self.work {
            write!(formatter, " {value:>9.3}")?;
        }
        Ok(())
    }
}
