//! Times and sizes as people write them in a configuration file: `"500us"`, `"2s"`, `"64KiB"`.

use std::time::Duration;

/// Serde helper for a [`Duration`] written as a number with its unit.
pub mod duration {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the time with the largest unit that loses nothing.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*value))
    }

    /// Reads a number followed by `ns`, `us`, `ms`, `s`, or `min`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map_err(D::Error::custom)
    }
}

/// Serde helper for an optional [`Duration`]; `"off"` is none.
pub mod optional_duration {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the time, or `off`.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_str(&format_duration(*value)),
            None => serializer.serialize_str("off"),
        }
    }

    /// Reads a time, or `off`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(None);
        }
        parse_duration(&text).map(Some).map_err(D::Error::custom)
    }
}

/// Serde helper for a number of octets: a plain integer, or a string with `KiB`, `MiB` or `GiB`.
pub mod octets {
    use super::parse_octets;
    use serde::{Deserializer, Serializer, de};
    use std::fmt;

    /// Writes the plain number.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*value)
    }

    struct Octets;

    impl de::Visitor<'_> for Octets {
        type Value = u64;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a number of octets such as 65536 or \"64KiB\"")
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::custom("a number of octets cannot be negative"))
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
            parse_octets(value).map_err(E::custom)
        }
    }

    /// Reads an integer or a string with a binary unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(Octets)
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Reads a time such as `500us`; the error is a sentence.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain = || format!("{text:?} is not a time: write a number with ns, us, ms, s or min, such as \"10ms\"");
    let (number, unit) = split_unit(text);
    let number: f64 = number.parse().map_err(|_| explain())?;
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 6e10,
        _ => return Err(explain()),
    };
    let total = number * nanoseconds;
    // 2^63 ns are 292 years; anything above is a slip of the pen.
    if !total.is_finite() || total > i64::MAX as f64 {
        return Err(explain());
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

/// Reads a number of octets such as `64KiB`; the error is a sentence.
pub fn parse_octets(text: &str) -> Result<u64, String> {
    let explain = || format!("{text:?} is not a number of octets: write an integer, with KiB, MiB or GiB if you like");
    let (number, unit) = split_unit(text);
    let number: u64 = number.parse().map_err(|_| explain())?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(explain()),
    };
    number.checked_mul(1 << shift).ok_or_else(explain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, nanoseconds) in [
            ("0s", 0),
            ("7ns", 7),
            ("1.5us", 1_500),
            ("10ms", 10_000_000),
            ("2 s", 2_000_000_000),
            ("1min", 60_000_000_000),
        ] {
            let value = parse_duration(text).unwrap();
            assert_eq!(value, Duration::from_nanos(nanoseconds), "{text}");
            assert_eq!(parse_duration(&format_duration(value)).unwrap(), value);
        }
        for text in ["", "5", "s", "5 days", "-1s", "1e400s", "99999999999999999999s"] {
            assert!(parse_duration(text).unwrap_err().contains("is not a time"), "{text}");
        }
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_octets("17").unwrap(), 17);
        assert_eq!(parse_octets("64KiB").unwrap(), 65_536);
        assert_eq!(parse_octets("2 GiB").unwrap(), 2 << 30);
        for text in ["", "KiB", "1.5KiB", "5 KB", "99999999999999GiB"] {
            assert!(parse_octets(text).is_err(), "{text}");
        }
    }
}
