//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use uwarp_app::measure::{Amount, AmountFlags};
use uwarp_app::output::JsonFlag;
use uwarp_app::units::{name_of, parse_size};
use uwarp_app::{NetworkFlags, ServerFlag, usage};

/// Port that servers listen on unless told otherwise.
pub const PORT: u16 = 18_515;
/// Longest message in octets: what one work request can carry in 32 bits, rounded down to a size that fits into memory.
pub const SIZE_MAX: u64 = 1 << 30;
/// Most queue pairs.
pub const QPS_MAX: u32 = 16_384;
/// Deepest pipeline of a queue pair.
pub const DEPTH_MAX: u32 = 8192;

const EXAMPLES: &str = "\
Examples:
  Two processes of this machine over virtio-user and vhost:
    uwarp-perf pair write-latency

  The same without a stack, for what the device itself takes:
    uwarp-perf pair raw-latency --device memif

  Other tests, with JSON on standard output, and with every octet checked:
    uwarp-perf pair write-bandwidth --size 64K --qps 4 --json -
    uwarp-perf pair read-latency --device af_packet --verify --mtu 9000

  In two terminals (the socket joins them):
    uwarp-perf serve --device memif --socket /tmp/perf.sock
    uwarp-perf run send-bandwidth --device memif --socket /tmp/perf.sock

  On two hosts with NICs bound to vfio-pci:
    uwarp-perf serve --device pci:0000:03:00.0 --address 10.1.0.1/24
    uwarp-perf run write-latency --server 10.1.0.1 \\
        --device pci:0000:03:00.0 --address 10.1.0.2/24

Latencies of write, send, immediate, stream and raw tests are full round trips. Those of reads, atomics and commits \
are from the post to the completion. The raw tests move as many frames, of the same sizes, as an RDMA Write of --size \
octets needs, without a stack or a --server. Bandwidths and rates end when the other side has confirmed the last \
message. Warm-up is not counted.";

/// Measures latency, bandwidth and message rate of RDMA over DPDK devices, and of the devices alone.
#[derive(Parser, Debug)]
#[command(name = "uwarp-perf", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start both sides on this machine, run one test, and end them.
    Pair(PairArguments),
    /// Wait for clients and serve their tests (the client says which).
    Serve(ServeArguments),
    /// Run one test against a server.
    Run(RunArguments),
}

/// The tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// RDMA Write ping-pong: each side polls the last octet of its registered memory.
    WriteLatency,
    /// RDMA Read: from the post to the completion.
    ReadLatency,
    /// Send ping-pong.
    SendLatency,
    /// FetchAdd of RFC 7306 on eight octets: from the post to the completion. Each must find what the one before left.
    AtomicLatency,
    /// Ping-pong of Immediate Data (RFC 7306), eight octets that come with the completion.
    ImmediateLatency,
    /// RDMA Write and a Commit of the same octets in one request: from the post to the completion, when the server's
    /// store has them.
    CommitLatency,
    /// Connections that are made and closed, one after the other: from the SYN to full operation, and how many a
    /// second.
    ConnectRate,
    /// RDMA Writes, as many as fit.
    WriteBandwidth,
    /// RDMA Reads, as many as fit.
    ReadBandwidth,
    /// Sends, as many as fit.
    SendBandwidth,
    /// Small RDMA Writes, pipelined: messages per second.
    WriteRate,
    /// Ping-pong of bare frames over the same device.
    RawLatency,
    /// Bare frames over the same device, as many as fit.
    RawBandwidth,
    /// The same with what every octet costs any stack: the sender copies, with CRC32C and Internet checksum; the
    /// receiver verifies both and copies.
    NullBandwidth,
    /// Ping-pong over one plain TCP stream.
    StreamLatency,
    /// One plain TCP stream, as much as fits.
    StreamBandwidth,
}

impl Test {
    /// Whether the test runs without a stack.
    pub fn is_raw(self) -> bool {
        self.transport() == Transport::Raw
    }

    /// Whether the test runs over plain TCP.
    pub fn is_stream(self) -> bool {
        self.transport() == Transport::Tcp
    }

    /// What it runs over.
    pub fn transport(self) -> Transport {
        match self {
            Self::RawLatency | Self::RawBandwidth | Self::NullBandwidth => Transport::Raw,
            Self::StreamLatency | Self::StreamBandwidth => Transport::Tcp,
            _ => Transport::Rdma,
        }
    }

    /// Whether each message is timed.
    pub fn is_latency(self) -> bool {
        matches!(
            self,
            Self::WriteLatency
                | Self::ReadLatency
                | Self::SendLatency
                | Self::AtomicLatency
                | Self::ImmediateLatency
                | Self::CommitLatency
                | Self::ConnectRate
                | Self::RawLatency
                | Self::StreamLatency
        )
    }

    /// Size of a message if the command line names none.
    fn default_size(self) -> u64 {
        match self {
            Self::AtomicLatency | Self::ImmediateLatency => 8,
            _ if self.is_latency() || self == Self::WriteRate => 64,
            _ => 65_536,
        }
    }
}

/// What a server's tests run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// RDMA, for all tests but those of the others
    Rdma,
    /// Plain TCP streams
    Tcp,
    /// Bare frames: no stack, no address
    Raw,
}

/// What the client decides.
#[derive(Args, Clone, Debug)]
pub struct TestOptions {
    /// Octets of a message (64, 64K, 1M) [default: 8 for atomics and immediates, which have no other, 64 for other
    /// latencies and the rate, 64K for bandwidth]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,

    /// How much to measure.
    #[command(flatten)]
    pub amount: AmountFlags,

    /// Messages under way at once in each queue pair [default: 1 for latency and streams, 64 for bandwidth, 256
    /// for write-rate]
    #[arg(long)]
    pub depth: Option<u32>,

    /// Queue pairs; a latency test uses them in turn
    #[arg(long, default_value_t = 1)]
    pub qps: u32,

    /// Commit memory that is not durable, to measure the protocol alone (default: a file in the server's TMPDIR)
    #[arg(long)]
    pub plain: bool,

    /// Check every octet of a seeded pattern, in a run of its own before the timed one
    #[arg(long)]
    pub verify: bool,

    /// Length of the frames of a raw test, instead of what a message of --size needs
    #[arg(long, value_parser = parse_size)]
    pub frame: Option<u64>,

    /// Where the result goes.
    #[command(flatten)]
    pub json: JsonFlag,
}

/// The options with every default filled in, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Which test.
    pub test: Test,
    /// Octets of a message.
    pub size: u64,
    /// How much to measure.
    pub amount: Amount,
    /// Messages under way in each queue pair.
    pub depth: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Whether to commit memory that is not durable.
    pub plain: bool,
    /// Whether a checked run comes first.
    pub verify: bool,
    /// Length of a raw frame, if not the one that the size requires.
    pub frame: Option<u64>,
}

impl TestOptions {
    /// Fills in the defaults and checks the ranges.
    ///
    /// # Errors
    /// One sentence for the first option out of range.
    pub fn plan(&self, test: Test) -> anyhow::Result<Plan> {
        let size = self.size.unwrap_or(test.default_size());
        if !(1..=SIZE_MAX).contains(&size) {
            return Err(usage(format!("--size is {size}: choose 1 octet to 1 GiB")));
        }
        if matches!(test, Test::AtomicLatency | Test::ImmediateLatency) && size != 8 {
            return Err(usage(format!("--size is {size}: {} always has 8 octets, leave it out", name_of(test))));
        }
        if self.plain && test != Test::CommitLatency {
            return Err(usage("--plain applies to commit-latency only: leave it out"));
        }
        if test == Test::ConnectRate && self.qps != 1 {
            return Err(usage(
                "--qps does not apply to connect-rate, which makes one connection at a time: leave it out",
            ));
        }
        let depth = self.depth.unwrap_or(match test {
            _ if test.is_latency() || test.is_stream() => 1,
            Test::WriteRate => 256,
            _ => 64,
        });
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(usage(format!("--depth is {depth}: choose 1 to {DEPTH_MAX}")));
        }
        if test.is_latency() && depth != 1 {
            return Err(usage(
                "--depth does not apply to a latency test, which has one message under way: choose a bandwidth test",
            ));
        }
        if test.is_stream() && depth != 1 {
            return Err(usage(
                "--depth does not apply to a stream test, which has no messages under way: leave it out",
            ));
        }
        if !(1..=QPS_MAX).contains(&self.qps) {
            return Err(usage(format!("--qps is {}: choose 1 to {QPS_MAX}", self.qps)));
        }
        if (test.is_raw() || test.is_stream()) && self.qps != 1 {
            return Err(usage("--qps does not apply to a raw or stream test, which has no queue pairs: leave it out"));
        }
        match self.frame {
            Some(_) if !test.is_raw() => {
                return Err(usage("--frame applies to raw tests only: leave it out"));
            }
            Some(frame) if !(60..=9014).contains(&frame) => {
                return Err(usage(format!("--frame is {frame}: choose 60 to 9014 octets")));
            }
            _ => {}
        }
        Ok(Plan {
            test,
            size,
            amount: self.amount.amount()?,
            depth,
            qps: self.qps,
            plain: self.plain,
            verify: self.verify,
            frame: self.frame,
        })
    }
}

/// `pair`.
#[derive(Args, Debug)]
pub struct PairArguments {
    /// The test
    pub test: Test,
    /// What to run.
    #[command(flatten)]
    pub options: TestOptions,
    /// Where to run it.
    #[command(flatten)]
    pub network: NetworkFlags,
}

/// `serve`.
#[derive(Args, Debug)]
pub struct ServeArguments {
    /// Where to serve.
    #[command(flatten)]
    pub network: NetworkFlags,
    /// What the tests run over
    #[arg(long, value_enum, default_value_t = Transport::Rdma)]
    pub transport: Transport,
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
    /// The other side, which a raw test finds by itself.
    #[command(flatten)]
    pub server: ServerFlag,
    /// What to run.
    #[command(flatten)]
    pub options: TestOptions,
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
            ("write-latency", vec!["--size", "0"]),
            ("write-latency", vec!["--depth", "2"]),
            ("atomic-latency", vec!["--size", "16"]),
            ("immediate-latency", vec!["--size", "16"]),
            ("write-latency", vec!["--plain"]),
            ("connect-rate", vec!["--qps", "2"]),
            ("write-bandwidth", vec!["--qps", "0"]),
            ("write-bandwidth", vec!["--iterations", "0"]),
            ("write-bandwidth", vec!["--frame", "100"]),
            ("raw-latency", vec!["--frame", "20"]),
            ("raw-bandwidth", vec!["--qps", "2"]),
            ("stream-bandwidth", vec!["--qps", "2"]),
            ("stream-bandwidth", vec!["--depth", "2"]),
        ] {
            let mut line = vec!["uwarp-perf", "pair", test];
            line.extend(arguments);
            let Command::Pair(pair) = Cli::try_parse_from(&line).unwrap().command else {
                panic!("not a pair");
            };
            let error = pair.options.plan(pair.test).unwrap_err();
            assert!(error.is::<uwarp_app::Usage>(), "{line:?}");
        }
    }
}
