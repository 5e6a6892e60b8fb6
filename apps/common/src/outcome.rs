//! How a tool ends: exit status 0 on success, 2 if the command line or the configuration is invalid (with one sentence
//! that says what), 1 if something else failed.

use crate::documents;
use crate::output::{complain, printable_lines};
use clap::Parser;
use clap::builder::Resettable;
use clap::error::ErrorKind;
use std::io::IsTerminal as _;
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

/// A failure that has already been reported: the process ends with this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent(pub u8);

impl std::fmt::Display for Silent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a child ended with status {}", self.0)
    }
}

impl std::error::Error for Silent {}

/// Turns the end of a child, which has reported its own error, into this process's end.
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

/// An error of the command line or the configuration, with its message.
pub fn usage(sentence: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(sentence.into()))
}

/// Parses the command line, runs the tool, and turns its result into an exit status; errors go to standard error as
/// `name: sentence`.
pub fn run<Arguments: Parser>(body: impl FnOnce(Arguments) -> anyhow::Result<()>) -> ExitCode {
    let command = Arguments::command().version(uwarp::VERSION);
    let name = command.get_name().to_owned();
    if let Err(error) = crate::side::end_with_pair() {
        complain(format_args!("{name}: cannot ask for this process to end with its pair: {error}"));
        return ExitCode::FAILURE;
    }
    if let Some(share) = documents::wanted() {
        return match documents::write(&command, &share) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(format_args!("{name}: its documents cannot be written to {}: {error}", share.display()));
                ExitCode::FAILURE
            }
        };
    }
    let matches = without_empty_variables(command).try_get_matches();
    let arguments = match matches.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            complain(format_args!("{name}: {} (try '{name} --help')", sentence(&error)));
            return ExitCode::from(2);
        }
        Err(help) => {
            // A reader that closes the pipe early (`| head`) needs no more.
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
            let status = if is_of_the_user(&error) { 2 } else { 1 };
            // It may quote a peer, or a file's name.
            complain(format_args!("{name}: {}", printable_lines(&format!("{error:#}"))));
            ExitCode::from(status)
        }
    }
}

/// An empty variable of the environment is as none.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let has_empty = |arg: &clap::Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    command
        .mut_args(|arg| if has_empty(&arg) { arg.env(Resettable::Reset) } else { arg })
        .mut_subcommands(without_empty_variables)
}

/// Whether the user's input is invalid, including errors that only the stack or a device's driver could find.
fn is_of_the_user(error: &anyhow::Error) -> bool {
    let of_the_device = |error: &uwarp_dpdk::Error| {
        matches!(error, uwarp_dpdk::Error::Configuration(_) | uwarp_dpdk::Error::Unsupported { .. })
    };
    error.is::<Usage>()
        || error.downcast_ref().is_some_and(of_the_device)
        || error.downcast_ref().is_some_and(|error| match error {
            uwarp::Error::Config(_) | uwarp::Error::Argument { .. } => true,
            uwarp::Error::Device(error) => of_the_device(error),
            _ => false,
        })
}

/// The first statement of clap's explanation, on one line: what is wrong, without the usage lines.
fn sentence(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no subcommand is given".to_owned();
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

/// Logs to standard error. By default it logs warnings, and the clients of an NFS server as they come and go;
/// `UWARP_LOG=debug` (or a filter such as `uwarp_engine=trace`) logs more. Colours are used on a terminal only, and not
/// if `NO_COLOR` is set.
fn start_logging() {
    let wanted = std::env::var("UWARP_LOG").ok().filter(|wanted| !wanted.is_empty());
    let filter = wanted
        .and_then(|wanted| tracing_subscriber::EnvFilter::try_new(wanted).ok())
        // The errors of calls quote DPDK's failures. Its other errors, such as a peer that leaves, are normal here.
        .unwrap_or_else(|| tracing_subscriber::EnvFilter::new("warn,uwarp_nfs=info,dpdk=off"));
    // A second call in one process (tests) keeps the first subscriber.
    let has_colors =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(has_colors)
        // What cannot be written is lost. It would be said by eprintln, which panics for the same reason.
        .log_internal_errors(false);
    let _ = subscriber.try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;
    use clap::{CommandFactory as _, FromArgMatches as _};
    use uwarp::Config;
    use uwarp::config::DeviceConfig;
    use uwarp_dpdk::MemifRole;

    /// Runs in a process of its own, whose standard error is a pipe.
    #[test]
    fn what_is_logged_elsewhere_than_on_a_terminal_has_no_colours() {
        const CHILD: &str = "UWARP_LOGS_IN_THIS_TEST";
        if std::env::var_os(CHILD).is_some() {
            start_logging();
            tracing::warn!("a line");
            return;
        }
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "outcome::tests::what_is_logged_elsewhere_than_on_a_terminal_has_no_colours",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .env_remove("NO_COLOR")
            .env_remove("UWARP_LOG")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(" WARN uwarp_app::outcome::tests: a line"), "{said}");
        assert!(!said.contains('\x1b'), "{said}");
    }

    /// Runs in a process of its own, with these variables.
    #[test]
    fn an_empty_variable_is_as_none() {
        #[derive(Parser)]
        struct Arguments {
            #[arg(long, env = "UWARP_NUMBER_IN_THIS_TEST", default_value = "7", global = true)]
            number: u32,
            #[command(subcommand)]
            command: Option<Subcommands>,
        }
        #[derive(clap::Subcommand)]
        enum Subcommands {
            Run {
                #[arg(long, env = "UWARP_SHARE_IN_THIS_TEST")]
                share: Option<u8>,
            },
        }
        const CHILD: &str = "UWARP_PARSES_IN_THIS_TEST";
        if std::env::var_os(CHILD).is_some() {
            let parse = |words: &[&str]| {
                let words = [&["name"], words].concat();
                let matches = without_empty_variables(Arguments::command()).try_get_matches_from(words).unwrap();
                Arguments::from_arg_matches(&matches).unwrap()
            };
            assert_eq!(parse(&[]).number, 7);
            let arguments = parse(&["run"]);
            assert!(matches!(arguments.command, Some(Subcommands::Run { share: None })) && arguments.number == 7);
            start_logging();
            tracing::warn!("a line");
            return;
        }
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "outcome::tests::an_empty_variable_is_as_none", "--nocapture"])
            .envs(["UWARP_NUMBER_IN_THIS_TEST", "UWARP_SHARE_IN_THIS_TEST", "UWARP_LOG"].map(|name| (name, "")))
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("a line"), "{said}");
    }

    /// Runs in a process of its own, whose standard error is a pipe without a reader.
    #[test]
    fn what_cannot_be_logged_ends_nothing() {
        const CHILD: &str = "UWARP_LOGS_IN_VAIN_IN_THIS_TEST";
        if std::env::var_os(CHILD).is_some() {
            start_logging();
            tracing::warn!("a line");
            return;
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "outcome::tests::what_cannot_be_logged_ends_nothing", "--nocapture"])
            .env(CHILD, "1")
            .env_remove("UWARP_LOG")
            .stderr(writer)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn mistakes_that_the_stack_or_the_device_finds_are_the_users() {
        let memif = |ring_size| DeviceConfig::Memif {
            role: MemifRole::Server,
            socket: "/nonexistent/s".into(),
            zero_copy: false,
            ring_size: Some(ring_size),
            buffer_size: None,
        };
        let tap = |name: &str| DeviceConfig::Tap { name: name.to_owned(), mac: None, netns: None };
        let config = |device| Config::new(device, "10.0.0.1/24").unwrap().without_monitor();
        let mut absent = config(DeviceConfig::VirtioUser {
            socket: std::env::temp_dir().join(format!("uwarp-absent-{}", std::process::id())),
            server: false,
            packed: true,
            queue_size: None,
            mac: None,
        });
        absent.wait_for_peer = std::time::Duration::ZERO;
        let alone = || Config::without_device("10.0.0.1/24").unwrap().without_monitor();
        for (config, of_the_user) in [
            (config(memif(1000)), true),
            (config(tap("uwarp0")).mtu(9000), true),
            (config(tap("a-name-that-is-too-long")), true),
            (alone().cpus([100_000]), true),
            (alone().mtu(70), true),
            // The request is valid; the peer is absent.
            (absent, false),
        ] {
            let result = uwarp::Context::open(config.clone()).map(|_| ()).context("cannot begin");
            let error = result.unwrap_err();
            assert_eq!(is_of_the_user(&error), of_the_user, "{config:?}: {error:#}");
        }
        assert!(is_of_the_user(&usage("no").context("there")));
        assert!(!is_of_the_user(&anyhow::anyhow!("it broke")));
    }
}
