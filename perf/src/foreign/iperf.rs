//! `iperf3` of Debian's package, over the loopback interface.

use std::time::Duration;

use anyhow::Context as _;

use super::{End, Place, Ready};

/// The program.
pub const PROGRAM: &str = "iperf3";
/// Its package.
pub const PACKAGE: &str = "iperf3";
/// Where its server listens.
const PORT: u16 = 5201;
/// Its shortest run.
const SHORTEST: Duration = Duration::from_secs(1);

/// The payload in Gbit/s of messages of `size` octets.
///
/// # Errors
/// The program fails, or prints something unknown.
pub fn bandwidth(place: &Place<'_>, size: u64, duration: Duration) -> anyhow::Result<f64> {
    let (size, seconds) = (size.to_string(), duration.max(SHORTEST).as_secs().to_string());
    let server = End::new(&[PROGRAM, "-s", "-1"]);
    let client = End::new(&[PROGRAM, "-c", "127.0.0.1", "-l", &size, "-t", &seconds, "-J"]);
    let printed = place.pair_at_home(&server, &client, Ready::Port(PORT))?;
    parse(&printed).with_context(|| format!("iperf3 printed no result: {}", printed.trim()))
}

fn parse(printed: &str) -> Option<f64> {
    let report: serde_json::Value = serde_json::from_str(printed).ok()?;
    report.pointer("/end/sum_received/bits_per_second")?.as_f64().map(|rate| rate / 1e9)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_bandwidth_is_what_the_server_received() {
        let printed = r#"{"end":{"sum_sent":{"bits_per_second":3e10},"sum_received":{"bits_per_second":2.5e10}}}"#;
        assert_eq!(parse(printed), Some(25.0));
        assert_eq!(parse(r#"{"error":"unable to connect to server"}"#), None);
    }
}
