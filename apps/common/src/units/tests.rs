//! The same strings on a command line and in a configuration file.

use super::*;
use crate::NetworkFlags;
use clap::Parser;
use std::time::Duration;
use uwarp::Config;

/// A command line with an option of each kind.
#[derive(Parser)]
struct Line {
    #[arg(long, value_parser = parse_size, allow_hyphen_values = true)]
    size: Option<u64>,
    #[command(flatten)]
    network: NetworkFlags,
}

fn line(flag: &str, value: &str) -> Result<Line, String> {
    Line::try_parse_from(["tool", &format!("{flag}={value}")]).map_err(|error| error.to_string())
}

/// A configuration file with one more setting; `value` is as it stands there.
fn file(table: &str, name: &str, value: &str) -> Result<Config, String> {
    let text = format!("address = \"10.0.0.1/24\"\n[{table}]\n{name} = {value}\n");
    toml::from_str(&text).map_err(|error| error.to_string())
}

/// Reads a string both ways, and in a file also without quotes if it is a number: all have to agree.
fn both<Value: PartialEq + std::fmt::Debug + Copy>(
    text: &str,
    on_line: impl Fn(&str) -> Result<Value, String>,
    in_file: impl Fn(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    let given = on_line(text);
    let quoted = in_file(&format!("\"{text}\""));
    match (&given, &quoted) {
        (Ok(one), Ok(other)) => assert_eq!(one, other, "{text}"),
        (Err(one), Err(other)) => {
            let sentence =
                |error: &str| error[error.find(" is ").expect("a sentence")..].lines().next().map(str::to_owned);
            assert_eq!(sentence(one), sentence(other), "{text}");
            assert!(one.contains(&format!("'{text}'")) && other.contains(&format!("'{text}'")), "{one}\n{other}");
        }
        _ => panic!("'{text}' is {given:?} on a command line and {quoted:?} in a file"),
    }
    if text.parse::<f64>().is_ok() && !text.is_empty() {
        assert_eq!(in_file(text).ok(), given.clone().ok(), "{text} without quotes");
    }
    given
}

#[test]
fn sizes_mean_the_same_on_a_command_line_and_in_a_file() {
    for (text, expected) in [
        ("0", Some(0)),
        ("64", Some(64)),
        ("64B", Some(64)),
        ("64K", Some(65_536)),
        ("64k", Some(65_536)),
        ("64KiB", Some(65_536)),
        ("64 KiB", Some(65_536)),
        ("1M", Some(1 << 20)),
        ("1MiB", Some(1 << 20)),
        ("2G", Some(2 << 30)),
        ("2 GiB", Some(2 << 30)),
        ("", None),
        ("K", None),
        ("-1", None),
        ("1.5K", None),
        // Of a thousand or of 1024? Nobody has to guess.
        ("64KB", None),
        ("64X", None),
        ("64 kilo", None),
        ("10ms", None),
        ("99999999999G", None),
    ] {
        let read = both(
            text,
            |text| line("--size", text).map(|line| line.size.expect("it was given")),
            |value| file("tcp", "receive-window", value).map(|config| config.tcp.receive_window),
        );
        assert_eq!(read.ok(), expected, "{text}");
    }
}

#[test]
fn times_mean_the_same_on_a_command_line_and_in_a_file() {
    for (text, nanoseconds) in [
        ("0", Some(0)),
        ("0s", Some(0)),
        ("7ns", Some(7)),
        ("1.5us", Some(1_500)),
        ("1.5µs", Some(1_500)),
        ("10ms", Some(10_000_000)),
        ("2s", Some(2_000_000_000)),
        ("2 s", Some(2_000_000_000)),
        ("1min", Some(60_000_000_000)),
        ("", None),
        ("5", None),
        ("s", None),
        ("1m", None),
        ("5 days", None),
        ("-1s", None),
        ("1..5s", None),
        ("64K", None),
        ("99999999999999999999s", None),
    ] {
        let read = both(
            text,
            |text| line("--wait", text).map(|line| line.network.wait.expect("it was given")),
            |value| file("tcp", "time-wait", value).map(|config| config.tcp.time_wait),
        );
        assert_eq!(read.ok(), nanoseconds.map(Duration::from_nanos), "{text}");
    }
}

#[test]
fn shares_mean_the_same_on_a_command_line_and_in_a_file() {
    for (text, expected) in [
        ("0", Some(0.0)),
        ("0.5", Some(0.5)),
        ("0.5%", Some(0.5)),
        ("1 %", Some(1.0)),
        ("100%", Some(100.0)),
        ("", None),
        ("%", None),
        ("-1", None),
        ("100.5", None),
        ("half", None),
        ("NaN", None),
    ] {
        let read = both(
            text,
            |text| line("--loss", text).map(|line| line.network.loss.expect("it was given")),
            |value| file("faults", "loss", value).map(|config| config.faults.expect("there are some").loss),
        );
        assert_eq!(read.ok(), expected, "{text}");
    }
}

#[test]
fn what_is_written_is_read_as_the_same() {
    for octets in [0, 1, 1500, 65_536, 3 << 20, 5 << 30, (5 << 30) + 1] {
        assert_eq!(parse_size(&format_size(octets)), Ok(octets));
    }
    for nanoseconds in [0, 7, 1_500, 10_000_000, 60_000_000_000] {
        let time = Duration::from_nanos(nanoseconds);
        assert_eq!(parse_duration(&uwarp::config::units::format_duration(time)), Ok(time));
    }
}

#[test]
fn counts_have_thousands_and_millions() {
    assert_eq!(parse_count("100"), Ok(100));
    assert_eq!(parse_count("10k"), Ok(10_000));
    assert_eq!(parse_count("2M"), Ok(2_000_000));
    for text in ["", "k", "-1", "1.5k", "10Ki", "10 G"] {
        assert!(parse_count(text).unwrap_err().contains("is not a count"), "{text}");
    }
}

#[test]
fn nanoseconds_are_written_with_the_unit_that_suits() {
    assert_eq!(format_nanoseconds(312), "312 ns");
    assert_eq!(format_nanoseconds(4_214), "4.21 µs");
    assert_eq!(format_nanoseconds(42_140_000), "42.1 ms");
}
