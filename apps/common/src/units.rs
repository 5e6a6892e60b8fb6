//! Sizes and times as people write them on a command line: `64`, `64K`, `1M`; `500ms`, `2s`.

use std::time::Duration;

/// Reads a number of octets: an integer with `K`, `M` or `G` (also `KiB`, `KB`: always powers of two).
///
/// # Errors
/// One sentence that says how to write it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(not_a_size(text)),
    };
    let number: u64 = number.parse().map_err(|_| not_a_size(text))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} exceeds 64 bits"))
}

fn not_a_size(text: &str) -> String {
    format!("'{text}' is not a size; write it like 64, 64K or 1M")
}

/// Reads a count, which may be written `10000`, `10k` or `2M` (thousands, millions).
///
/// # Errors
/// One sentence that says how to write it.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let wrong = || format!("'{text}' is not a count; write it like 100, 10k or 2M");
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Reads a time: a number with `ns`, `us`, `ms`, `s` or `min`; without a unit it counts seconds.
///
/// # Errors
/// One sentence that says how to write it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let wrong = || format!("'{text}' is not a time; write it like 500ms, 2s or 1min");
    let factor = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())
}

/// Reads a fraction of 0 to 1000 thousandths.
///
/// # Errors
/// One sentence that gives the range.
pub fn parse_permille(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1000.0).contains(&value) => Ok(value),
        _ => Err(format!("'{text}' is not a number of thousandths; write a number from 0 to 1000")),
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Formats a number of octets in the form that is read: `64`, `64K`, `1M`.
pub fn format_size(octets: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if octets >= 1 << shift && octets.is_multiple_of(1 << shift) {
            return format!("{}{unit}", octets >> shift);
        }
    }
    octets.to_string()
}

/// Formats nanoseconds with three digits and a suitable unit: `312 ns`, `4.21 µs`, `1.03 ms`.
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
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, octets) in [
            ("0", 0),
            ("64", 64),
            ("64K", 65_536),
            ("64k", 65_536),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("2 GiB", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(octets), "{text}");
        }
        for text in ["", "K", "-1", "1.5K", "64X", "99999999999G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(format_size(65_536), "64K");
        assert_eq!(format_size(1500), "1500");
        assert_eq!(parse_count("10k"), Ok(10_000));
    }

    #[test]
    fn times() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "s", "5 days", "-1s", "1..5s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(format_nanoseconds(312), "312 ns");
        assert_eq!(format_nanoseconds(4_214), "4.21 µs");
        assert_eq!(format_nanoseconds(42_140_000), "42.1 ms");
    }
}
