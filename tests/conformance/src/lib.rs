//! The conformance matrix: what the documents require, row by row, and which tests show it.
//!
//! The rows are data (`tests/data/conformance/rows.tsv`). `matrix.toml` beside them has, for each row, the tests that
//! show it, an argument why no test is needed, or the part of the documents that is not built. Any other row is open.
//! [`Matrix::report`] says which rows hold after a run of the tests: a row is shown only if each of its tests ran and
//! passed.

#![forbid(unsafe_code)]

pub mod mutations;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// How binding a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// MUST, SHALL, REQUIRED, or MUST NOT.
    Must,
    /// SHOULD, RECOMMENDED, or SHOULD NOT.
    Should,
    /// MAY, OPTIONAL.
    May,
    /// Text without a keyword that must nevertheless be met.
    Declared,
}

impl Level {
    /// The highest level of a cell such as `S/M` or `MN`.
    ///
    /// # Errors
    /// The part that is not a level.
    pub fn parse(cell: &str) -> Result<Level, String> {
        cell.split('/')
            .map(|part| match part.trim() {
                "M" | "MN" => Ok(Level::Must),
                "S" | "SN" => Ok(Level::Should),
                "O" => Ok(Level::May),
                "d" => Ok(Level::Declared),
                other => Err(format!("{other:?} is no level")),
            })
            .collect::<Result<Vec<_>, _>>()
            .map(|levels| levels.into_iter().min().unwrap_or(Level::Declared))
    }
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub id: String,
    /// The document that it is from.
    pub document: String,
    /// The document's section.
    pub section: String,
    /// How binding it is.
    pub level: Level,
    /// Who has to meet it.
    pub side: String,
    /// The requirement, in our own words.
    pub text: String,
}

/// The rows, with the tests or the argument for each.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    /// In the order of the file.
    pub rows: Vec<Row>,
    /// Tests by row: `package[::binary] path`.
    pub shown: BTreeMap<String, Vec<String>>,
    /// Arguments by row.
    pub argued: BTreeMap<String, String>,
    /// The part that is not built, by row.
    pub not_built: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Known {
    shown: BTreeMap<String, Vec<String>>,
    argued: BTreeMap<String, String>,
    not_built: BTreeMap<String, String>,
}

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Matrix {
    /// Reads both files of a folder.
    ///
    /// # Errors
    /// The first fault, in one sentence: unreadable, a duplicate number, a row in two parts, an unknown row.
    pub fn read(folder: &Path) -> Result<Matrix, String> {
        let text = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let known: Known = toml::from_str(&text("matrix.toml")?).map_err(|error| format!("matrix.toml: {error}"))?;
        let mut rows = Vec::new();
        let mut numbers = BTreeSet::new();
        for line in text("rows.tsv")?.lines().filter(|line| !line.starts_with('#')) {
            let cells: Vec<&str> = line.split('\t').collect();
            let [id, document, section, level, side, words] = cells[..] else {
                return Err(format!("rows.tsv: {line:?} has not six cells"));
            };
            if !numbers.insert(id.to_owned()) {
                return Err(format!("rows.tsv: {id} is there twice"));
            }
            rows.push(Row {
                id: id.to_owned(),
                document: document.to_owned(),
                section: section.to_owned(),
                level: Level::parse(level).map_err(|error| format!("rows.tsv: {id}: {error}"))?,
                side: side.to_owned(),
                text: words.to_owned(),
            });
        }
        let mut placed = BTreeSet::new();
        for id in known.shown.keys().chain(known.argued.keys()).chain(known.not_built.keys()) {
            if !numbers.contains(id) {
                return Err(format!("matrix.toml: there is no row {id}"));
            }
            if !placed.insert(id) {
                return Err(format!("matrix.toml: {id} is in two parts"));
            }
        }
        if let Some((id, _)) = known.shown.iter().find(|(_, tests)| tests.is_empty()) {
            return Err(format!("matrix.toml: no test shows {id}"));
        }
        Ok(Matrix { rows, shown: known.shown, argued: known.argued, not_built: known.not_built })
    }

    /// Every test that some row names, once.
    pub fn tests(&self) -> BTreeSet<&str> {
        self.shown.values().flatten().map(String::as_str).collect()
    }

    /// What holds after a run in which these tests passed.
    pub fn report(&self, passed: &BTreeSet<String>) -> Report {
        let mut report = Report { rows: self.rows.len(), ..Report::default() };
        for row in &self.rows {
            if self.not_built.contains_key(&row.id) {
                report.not_built += 1;
            } else if let Some(reason) = self.argued.get(&row.id) {
                report.argued += 1;
                if row.level == Level::Must {
                    report.argued_musts.push(format!("{}: {reason}", row.id));
                }
            } else if let Some(tests) = self.shown.get(&row.id) {
                let missing: Vec<&str> =
                    tests.iter().filter(|test| !passed.contains(*test)).map(String::as_str).collect();
                if missing.is_empty() {
                    report.shown += 1;
                } else {
                    report.failed.push(format!("{}: did not run or did not pass: {}", row.id, missing.join(", ")));
                }
            } else {
                report.open.push(format!("{} ({}, {:?}): {}", row.id, row.document, row.level, row.text));
            }
        }
        report
    }
}

/// The rows that hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows in all.
    pub rows: usize,
    /// Rows whose tests all passed.
    pub shown: usize,
    /// Rows that are argued.
    pub argued: usize,
    /// Rows of something that is not built.
    pub not_built: usize,
    /// Rows of level MUST among the argued ones, with the argument.
    pub argued_musts: Vec<String>,
    /// Rows that name a test that did not run or did not pass.
    pub failed: Vec<String>,
    /// Rows that nothing is known of.
    pub open: Vec<String>,
}

impl Report {
    /// Whether every row of what is built is shown or argued.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.open.is_empty()
    }

    /// The report as text; its last line is the summary.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (title, lines) in [
            ("open: no test and no argument", &self.open),
            ("not shown: a test is missing or failed", &self.failed),
            ("argued although the document says MUST", &self.argued_musts),
        ] {
            if !lines.is_empty() {
                let _ = writeln!(text, "{title}");
                for line in lines {
                    let _ = writeln!(text, "  {line}");
                }
                text.push('\n');
            }
        }
        let open = self.open.len() + self.failed.len();
        let Report { rows, shown, argued, not_built, .. } = self;
        let _ = writeln!(text, "{rows} rows: {shown} shown, {argued} argued, {not_built} not built, {open} open");
        text
    }
}

/// The tests that passed, from the output of `cargo nextest run --status-level pass --color never`, one per line: `PASS
/// [   0.016s] (1/10) package::binary path`.
pub fn passed_tests(output: &str) -> BTreeSet<String> {
    output
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.trim_start().strip_prefix("PASS [")?.split_once(']')?;
            let rest = rest.trim_start();
            let name = match rest.strip_prefix('(') {
                Some(counted) => counted.split_once(')')?.1,
                None => rest,
            };
            Some(name.trim().to_owned())
        })
        .collect()
}

/// A filter for `cargo nextest run -E` that runs exactly these tests.
///
/// # Errors
/// A name that is not `package[::binary] path`.
pub fn filter<'a>(tests: impl IntoIterator<Item = &'a str>) -> Result<String, String> {
    let parts: Vec<String> = tests
        .into_iter()
        .map(|test| {
            let (binary, path) = test.split_once(' ').ok_or_else(|| format!("{test:?} is no name of a test"))?;
            Ok(format!("(binary_id(={binary}) & test(={path}))"))
        })
        .collect::<Result<_, String>>()?;
    Ok(parts.join(" | "))
}
