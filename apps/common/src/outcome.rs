//! How a tool ends: exit status 0 when it did what it was asked, 2 when the command line or the configuration is wrong
//! (with one sentence that says what), 1 when something else failed.

use clap::Parser;
use clap::error::ErrorKind;
use std::process::{ExitCode, ExitStatus};

/// An error of the command line or the configuration: exit status 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A failure about which everything has been said already: the process ends with this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent(pub u8);

impl std::fmt::Display for Silent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a child ended with status {}", self.0)
    }
}

impl std::error::Error for Silent {}

/// Turns the end of a child, which has said itself what was wrong, into this process's end.
///
/// # Errors
/// [`Silent`] with the child's status, or the signal that ended it.
pub fn of_child(status: ExitStatus) -> anyhow::Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        // A status of 1 to 255: it comes from a process.
        Some(code) => Err(Silent(code as u8).into()),
        None => anyhow::bail!("a process of the pair was ended by a signal ({status})"),
    }
}

/// An error of the command line or the configuration, with its sentence.
pub fn usage(sentence: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(sentence.into()))
}

/// Parses the command line, runs the tool, and turns its result into an exit status; errors go to standard error as
/// `name: sentence`.
pub fn run<Arguments: Parser>(body: impl FnOnce(Arguments) -> anyhow::Result<()>) -> ExitCode {
    let name = Arguments::command().get_name().to_owned();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            eprintln!("{name}: {} (try '{name} --help')", sentence(&error));
            return ExitCode::from(2);
        }
        Err(help) => {
            // A reader that closes the pipe early (`| head`) has seen enough.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    start_logging();
    match body(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(&Silent(status)) = error.downcast_ref() {
                return ExitCode::from(status);
            }
            let status = if error.is::<Usage>() { 2 } else { 1 };
            eprintln!("{name}: {error:#}");
            ExitCode::from(status)
        }
    }
}

/// The first statement of clap's explanation, on one line: what is wrong, without the usage lines below it.
fn sentence(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "the command line says nothing to do".to_owned();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Log lines go to standard error; `UWARP_LOG=debug` (or a filter such as `uwarp_engine=trace`) asks for more than
/// warnings, and the comings and goings of an NFS server's clients.
fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("UWARP_LOG")
        // What DPDK says of failures is in the errors of the calls; the rest of what it calls errors, such as a peer that
        // leaves, is normal here.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,uwarp_nfs=info,dpdk=off"));
    // A second call in one process (tests) keeps the first subscriber.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
