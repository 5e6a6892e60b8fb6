//! Tables, JSON and progress bars.

use anyhow::Context as _;
use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An empty table in the common style, with its header.
pub fn table<T: Into<comfy_table::Cell>>(header: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_BORDERS_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.into_iter().map(Into::into).collect::<Vec<_>>());
    table
}

/// Right-aligns the columns of a table from this one on.
pub fn align_numbers(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Writes text to standard output, if anybody reads it: for what is only told. See [`print_data`].
pub fn print(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes octets and a newline to standard output: for what a program is asked for. A pipe that its reader has closed
/// is no error.
///
/// # Errors
/// The octets cannot be written.
pub fn print_data(octets: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(octets).and_then(|()| out.write_all(b"\n")) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output cannot be written")
        }
        _ => Ok(()),
    }
}

/// Writes text to standard error, if anybody reads it. `eprintln` would end the program if nobody does.
pub fn complain(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A peer's text made safe to print: control characters, which a terminal would obey, are escaped.
pub fn printable(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for character in words.chars() {
        if character.is_control() {
            out.extend(character.escape_debug());
        } else {
            out.push(character);
        }
    }
    out
}

/// The same of several lines.
pub fn printable_lines(words: &str) -> String {
    words.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Writes a value as indented JSON to a file, or to standard output if the path is `-`.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("the result cannot be written as JSON")?;
    if path == Path::new("-") {
        return print_data(text.as_bytes());
    }
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Where the results of a tool go, beside what it prints.
#[derive(Args, Clone, Debug, Default)]
pub struct JsonFlag {
    /// Write the results as JSON to this file (- for standard output, which gets nothing else then)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl JsonFlag {
    /// Whether standard output is for the JSON alone.
    pub fn takes_output(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// The file that will be written.
    pub fn file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|_| !self.takes_output())
    }

    /// Writes the results, if the flag is given.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, results: &impl Serialize) -> anyhow::Result<()> {
        self.json.as_deref().map_or(Ok(()), |path| write_json(path, results))
    }

    /// Prints the text, unless standard output is for the JSON alone, and writes the results, if the flag is given.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(&self, text: impl std::fmt::Display, results: &impl Serialize) -> anyhow::Result<()> {
        if !self.takes_output() {
            print(text);
        }
        self.write(results)
    }
}

/// A progress bar on standard error. It appears only on a terminal, and only when the work takes longer than a second.
pub struct Progress {
    total: u64,
    template: &'static str,
    label: String,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar for work that is counted in octets.
    pub fn octets(label: impl Into<String>, total: u64) -> Self {
        Self::new(label, total, "{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}")
    }

    /// A bar for work that is counted in parts of any kind.
    pub fn parts(label: impl Into<String>, total: u64) -> Self {
        Self::new(label, total, "{msg} {wide_bar} {percent:>3}% {eta}")
    }

    fn new(label: impl Into<String>, total: u64, template: &'static str) -> Self {
        Self { total, template, label: label.into(), started: Instant::now(), bar: None }
    }

    /// Moves the bar. Cheap enough to call every few thousand operations, but not for each.
    pub fn set(&mut self, done: u64) {
        if self.bar.is_none() && self.started.elapsed() > Duration::from_secs(1) {
            // The draw target hides itself if standard error is not a terminal.
            let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template(self.template) {
                bar.set_style(style);
            }
            bar.set_message(self.label.clone());
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done.min(self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
