//! The command line.

use crate::program::SIZE_MAX;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use uwarp_app::measure::{Amount, AmountFlags};
use uwarp_app::output::JsonFlag;
use uwarp_app::units::parse_size;
use uwarp_app::{NetworkFlags, ServerFlag, usage};
use uwarp_rpcrdma::requester;

/// Port that servers listen on unless told otherwise.
pub const PORT: u16 = 20_050;
/// Most calls under way.
pub const DEPTH_MAX: u32 = 256;

const EXAMPLES: &str = "\
Examples:
  A null call over RDMA, and the same over a TCP stream beside it:
    uwarp-rpc pair null

  Blobs from the server, by RDMA Write and over TCP:
    uwarp-rpc pair get --size 1M --depth 8

  Blobs to the server; long calls with long replies, checked:
    uwarp-rpc pair put --size 64K --transport rdma --device memif --json -
    uwarp-rpc pair echo --size 64K --verify

  In two terminals (the socket joins them):
    uwarp-rpc serve --socket /tmp/rpc.sock
    uwarp-rpc run get --size 1M --socket /tmp/rpc.sock

The procedures: null has neither arguments nor results. echo sends opaque data and gets it back, in the messages if it \
fits, and otherwise as a Long Call with a long reply. put and get move a blob as a DDP-eligible item, by RDMA Read and \
RDMA Write unless it fits into a message. CPU time is that of the whole process: an inline engine polls all the time, \
so there it is the duration of the test.";

/// Latency, bandwidth and CPU time of remote procedure calls over RDMA, beside the same over a TCP stream.
#[derive(Parser, Debug)]
#[command(name = "uwarp-rpc", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start both sides on this machine, over each transport in turn, and end them
    Pair(PairArguments),
    /// Serve the test program until interrupted
    Serve(ServeArguments),
    /// Call a server
    Run(RunArguments),
}

/// The tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Nothing there, nothing back
    Null,
    /// Opaque data there and back, not reduced
    Echo,
    /// A blob to the server
    Put,
    /// A blob from the server
    Get,
}

/// What carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// RPC-over-RDMA version 1
    Rdma,
    /// A plain TCP stream with record marking
    Tcp,
}

/// How a client registers the memory of its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Registration {
    /// Every buffer has an STag and rights of its own, which is no work for the engine
    #[default]
    Each,
    /// A work request ahead of the call joins its buffers under at most two STags, one to read and one to write, as the
    /// Linux kernel does. One reply then ends the responder's access to several buffers
    Together,
}

impl From<Registration> for requester::Registration {
    fn from(registration: Registration) -> Self {
        match registration {
            Registration::Each => Self::Each,
            Registration::Together => Self::Together,
        }
    }
}

/// What a client decides.
#[derive(Args, Clone, Debug)]
pub struct TestOptions {
    /// Octets of a blob or an echo, 0 to 64M [default: 64 for echo, 1M for put and get]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,

    /// How much to measure.
    #[command(flatten)]
    pub amount: AmountFlags,

    /// Calls under way at once
    #[arg(long, default_value_t = 1)]
    pub depth: u32,

    /// How the memory that a call lends to the server over RDMA is registered; over TCP it means nothing
    #[arg(long, value_enum, default_value_t = Registration::default())]
    pub registration: Registration,

    /// Check every octet, in a run of its own before the timed one
    #[arg(long)]
    pub verify: bool,

    /// Where the results go.
    #[command(flatten)]
    pub json: JsonFlag,
}

/// What both sides of RPC-over-RDMA decide.
#[derive(Args, Clone, Copy, Debug)]
pub struct RdmaOptions {
    /// Longest message of RPC-over-RDMA, 1K to 256K: the inline threshold of both directions
    #[arg(long, value_parser = parse_size, default_value = "4K")]
    pub inline: u64,

    /// Keep the replies from invalidating STags
    #[arg(long)]
    pub no_invalidation: bool,
}

impl RdmaOptions {
    /// The threshold.
    ///
    /// # Errors
    /// It is out of range.
    pub fn threshold(&self) -> anyhow::Result<u32> {
        if !(1 << 10..=256 << 10).contains(&self.inline) || !self.inline.is_multiple_of(1 << 10) {
            return Err(usage(format!("--inline is {}: choose whole KiB, 1K to 256K", self.inline)));
        }
        // At most 256 KiB.
        Ok(self.inline as u32)
    }
}

/// The options with every default filled in, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Which test.
    pub test: Test,
    /// Octets of a blob or an echo.
    pub size: usize,
    /// How much to measure.
    pub amount: Amount,
    /// Calls under way.
    pub depth: u32,
    /// Whether a checked run comes first.
    pub verify: bool,
}

impl TestOptions {
    /// Fills in the defaults and checks the ranges.
    ///
    /// # Errors
    /// One sentence for the first option out of range.
    pub fn plan(&self, test: Test) -> anyhow::Result<Plan> {
        let size = match (test, self.size) {
            (Test::Null, None | Some(0)) => 0,
            (Test::Null, Some(size)) => {
                return Err(usage(format!("--size is {size}: a null call has no data, leave it out")));
            }
            (Test::Echo, size) => size.unwrap_or(64),
            (Test::Put | Test::Get, size) => size.unwrap_or(1 << 20),
        };
        if size > SIZE_MAX {
            return Err(usage(format!("--size is {size}: choose 0 octets to 64 MiB")));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Err(usage(format!("--depth is {}: choose 1 to {DEPTH_MAX}", self.depth)));
        }
        if test == Test::Echo && self.depth != 1 {
            return Err(usage("--depth does not apply to echo, which is long in both directions: choose put or get"));
        }
        // At most 64 MiB.
        Ok(Plan { test, size: size as usize, amount: self.amount.amount()?, depth: self.depth, verify: self.verify })
    }
}

/// `pair`.
#[derive(Args, Debug)]
pub struct PairArguments {
    /// The test
    pub test: Test,
    /// One transport only
    #[arg(long)]
    pub transport: Option<Transport>,
    /// What to run.
    #[command(flatten)]
    pub options: TestOptions,
    /// How.
    #[command(flatten)]
    pub rdma: RdmaOptions,
    /// Where to run it.
    #[command(flatten)]
    pub network: NetworkFlags,
}

/// `serve`.
#[derive(Args, Debug)]
pub struct ServeArguments {
    /// What carries the calls
    #[arg(long, value_enum, default_value_t = Transport::Rdma)]
    pub transport: Transport,
    /// How.
    #[command(flatten)]
    pub rdma: RdmaOptions,
    /// Where to serve.
    #[command(flatten)]
    pub network: NetworkFlags,
    /// End after the first client
    #[arg(long)]
    pub once: bool,
    /// Port to listen on
    #[arg(long, short, default_value_t = PORT)]
    pub port: u16,
}

/// `run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    /// The test
    pub test: Test,
    /// Whom to call.
    #[command(flatten)]
    pub server: ServerFlag,
    /// What carries the calls
    #[arg(long, value_enum, default_value_t = Transport::Rdma)]
    pub transport: Transport,
    /// What to run.
    #[command(flatten)]
    pub options: TestOptions,
    /// How.
    #[command(flatten)]
    pub rdma: RdmaOptions,
    /// Where to run it.
    #[command(flatten)]
    pub network: NetworkFlags,
    /// The server's port
    #[arg(long, short, default_value_t = PORT)]
    pub port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ranges_are_checked_with_one_sentence() {
        for (test, arguments) in [
            ("null", vec!["--size", "1"]),
            ("put", vec!["--size", "65M"]),
            ("put", vec!["--depth", "0"]),
            ("put", vec!["--depth", "257"]),
            ("echo", vec!["--depth", "2"]),
            ("get", vec!["--iterations", "0"]),
            ("get", vec!["--inline", "512"]),
            ("get", vec!["--inline", "5000"]),
        ] {
            let mut line = vec!["uwarp-rpc", "pair", test];
            line.extend(arguments);
            let Command::Pair(pair) = Cli::try_parse_from(&line).unwrap().command else {
                panic!("not a pair");
            };
            let error =
                pair.options.plan(pair.test).map(drop).and_then(|()| pair.rdma.threshold().map(drop)).unwrap_err();
            assert!(error.is::<uwarp_app::Usage>(), "{line:?}");
        }
    }
}
