//! Sizes, times, shares, counts and choices as people write them on a command line. Configuration files use the same
//! grammar for sizes, times and shares.

use clap::ValueEnum;

pub use uwarp::config::units::{format_size, parse_duration, parse_percent, parse_size};

/// Reads a count, which may be written `10000`, `10k` or `2M` (thousands, millions).
///
/// # Errors
/// One sentence that says how to write it.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is not a count: write a whole number, or one of thousands or millions, such as 10k or 2M");
    let (number, factor) = match text.trim().split_at_checked(text.trim().len().saturating_sub(1)) {
        Some((number, "k" | "K")) => (number, 1_000),
        Some((number, "m" | "M")) => (number, 1_000_000),
        _ => (text.trim(), 1),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// The word on the command line for one of several choices.
pub fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Writes nanoseconds with three figures and the unit that suits: `312 ns`, `4.21 µs`, `1.03 ms`.
pub fn format_nanoseconds(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests;
