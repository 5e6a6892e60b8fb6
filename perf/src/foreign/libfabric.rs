//! `fi_pingpong` of libfabric-bin.

use std::time::Duration;

use anyhow::Context as _;

use super::{End, Place, Ready, iterations};
use crate::kernel::SERVER_ADDRESS;

/// The program.
pub const PROGRAM: &str = "fi_pingpong";
/// Its package.
pub const PACKAGE: &str = "libfabric-bin";
/// Where its server waits for the client before the test.
const PORT: u16 = 47_592;

/// How much longer a run takes than those of other programs. The mean includes the connection's set-up, which takes
/// some 50 ms: libfabric looks for its events every 10 ms.
const LONGER: u32 = 5;

/// Mean round trip in nanoseconds over a provider. `adapt` adds what an end needs: 0 is the server.
///
/// # Errors
/// The program fails, or prints something unknown.
pub fn round_trip(
    place: &Place<'_>,
    provider: &str,
    size: u64,
    duration: Duration,
    adapt: impl Fn(End, usize) -> End,
) -> anyhow::Result<f64> {
    // Connections where the provider itself has them, else datagrams that arrive.
    let kind = if provider.contains("ofi_rxm") { "rdm" } else { "msg" };
    let nanoseconds = if provider.contains("verbs") { 4_000 } else { 10_000 };
    let count = iterations(duration * LONGER, nanoseconds + size / 2);
    let (size, count) = (size.to_string(), count.to_string());
    let server = [PROGRAM, "-p", provider, "-e", kind, "-S", &size, "-I", &count];
    let client = [&server[..], &[SERVER_ADDRESS]].concat();
    let printed = place.pair(&adapt(End::new(&server), 0), &adapt(End::new(&client), 1), Ready::Port(PORT))?;
    parse(&printed).with_context(|| format!("fi_pingpong printed no result for {provider}: {}", printed.trim()))
}

/// The mean round trip in nanoseconds: `usec/xfer` is half of one.
fn parse(printed: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("bytes"));
    let column = lines.next()?.split_whitespace().position(|name| name == "usec/xfer")?;
    let fields: Vec<&str> = lines.next()?.split_whitespace().collect();
    // A '=' says that the peer acknowledged as many as were sent.
    fields.get(2)?.strip_prefix('=')?;
    Some(fields.get(column)?.parse::<f64>().ok()? * 2e3)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_round_trip_is_twice_what_a_transfer_takes() {
        assert_eq!(parse(include_str!("../../tests/data/fi_pingpong.txt")), Some(105_080.0));
    }

    #[test]
    fn without_all_acknowledgments_there_is_no_result() {
        let printed = include_str!("../../tests/data/fi_pingpong.txt").replace("=10k", "9k");
        assert_eq!(parse(&printed), None);
        assert_eq!(parse("fi_getinfo: -61 (No data available)"), None);
    }
}
