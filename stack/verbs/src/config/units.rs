//! The one grammar of sizes, times and shares, for command lines and configuration files: `64K`, `64KiB`; `500us`,
//! `2s`; `0.5%`.

use std::time::Duration;

/// Reads a number of octets: a whole number, alone or with `K`, `M` or `G` (also `KiB`, `MiB`, `GiB`), which are powers
/// of 1024.
///
/// # Errors
/// One sentence that says what is accepted.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let explain = || {
        format!(
            "'{text}' is not a size: write a whole number of octets, or one with K, M or G (also KiB, MiB, GiB), such as 64K"
        )
    };
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(explain()),
    };
    let number: u64 = number.parse().map_err(|_| explain())?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large: a size has at most 64 bits"))
}

/// Writes a number of octets with the largest unit that loses nothing: `64K`, `1M`, `1500`.
pub fn format_size(octets: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if octets >= 1 << shift && octets.is_multiple_of(1 << shift) {
            return format!("{}{unit}", octets >> shift);
        }
    }
    octets.to_string()
}

/// Reads a time: a number with `ns`, `us`, `ms`, `s` or `min`. Only `0` needs no unit.
///
/// # Errors
/// One sentence that says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain = || format!("'{text}' is not a time: write a number with ns, us, ms, s or min, such as 10ms");
    let (number, unit) = split_unit(text);
    let number: f64 = number.parse().map_err(|_| explain())?;
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 6e10,
        "" if number == 0.0 => 0.0,
        _ => return Err(explain()),
    };
    let total = number * nanoseconds;
    // 2^63 ns are 292 years; anything above is a slip of the pen.
    if !total.is_finite() || total > i64::MAX as f64 {
        return Err(format!("'{text}' is too long: a time has at most 292 years"));
    }
    Ok(Duration::from_nanos(total.round() as u64))
}

/// Writes a time with the largest unit that loses nothing.
pub fn format_duration(value: Duration) -> String {
    let nanoseconds = value.as_nanos();
    for (unit, factor) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if nanoseconds.is_multiple_of(factor) {
            return format!("{}{unit}", nanoseconds / factor);
        }
    }
    format!("{nanoseconds}ns")
}

/// Reads a share of 0 to 100 per cent; the sign may be left out.
///
/// # Errors
/// One sentence that says what is accepted.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim();
    let number = number.strip_suffix('%').unwrap_or(number).trim_end();
    match number.parse() {
        Ok(share) if (0.0..=100.0).contains(&share) => Ok(share),
        _ => Err(format!("'{text}' is not a share: write 0 to 100 per cent, such as 0.5%")),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Serde helper for a [`Duration`].
pub(super) mod duration {
    use super::{Duration, TextOrNumber, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*value))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse_duration(&TextOrNumber::deserialize(deserializer)?.0).map_err(D::Error::custom)
    }
}

/// Serde helper for an optional [`Duration`]; `"off"` is none.
pub(super) mod optional_duration {
    use super::{Duration, TextOrNumber, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_str(&format_duration(*value)),
            None => serializer.serialize_str("off"),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = TextOrNumber::deserialize(deserializer)?.0;
        if text == "off" {
            return Ok(None);
        }
        parse_duration(&text).map(Some).map_err(D::Error::custom)
    }
}

/// Serde helper for a [`Duration`] that may be left out.
pub(super) mod given_duration {
    use super::Duration;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::duration::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::duration::deserialize(deserializer).map(Some)
    }
}

/// Serde helper for a number of octets.
pub(super) mod size {
    use super::{TextOrNumber, parse_size};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        parse_size(&TextOrNumber::deserialize(deserializer)?.0).map_err(D::Error::custom)
    }
}

/// Serde helper for a share in per cent.
pub(super) mod percent {
    use super::{TextOrNumber, parse_percent};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(*value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        parse_percent(&TextOrNumber::deserialize(deserializer)?.0).map_err(D::Error::custom)
    }
}

/// A value with its unit, or a number without quotes, which is read as if it had them.
struct TextOrNumber(String);

impl<'de> serde::Deserialize<'de> for TextOrNumber {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = TextOrNumber;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a number, or a string with its unit")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber(value.to_string()))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber(value.to_string()))
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber(value.to_string()))
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber(value.to_owned()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
