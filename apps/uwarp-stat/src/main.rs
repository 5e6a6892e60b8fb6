//! Shows the state of a running process that uses uwarp: its device, engines, connections and queue pairs.
#![forbid(unsafe_code)]

mod rates;
mod show;

use anyhow::Context as _;
use clap::Parser;
use rates::Rates;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use uwarp::StatsSnapshot;
use uwarp::monitor;
use uwarp_app::units::parse_duration;
use uwarp_app::{output, signals, usage};

const EXAMPLES: &str = "\
Examples:
  uwarp-stat                 lists the processes that can be looked into
  uwarp-stat 4711            live, once a second, until Ctrl-C
  uwarp-stat 4711 --once     one look (the default if not on a terminal)

  One line of JSON each time, for scripts and plots:
    uwarp-stat /run/user/1000/uwarp/4711.sock --json --interval 100ms

Rates and shares are those since the last look, or since the context was opened. An inline engine answers only while \
its application polls it; until then it is shown as silent.";

/// Shows what goes on inside a running uwarp process: port, engines, connections, queue pairs.
#[derive(Parser)]
#[command(name = "uwarp-stat", version, after_help = EXAMPLES, max_term_width = 110)]
struct Arguments {
    /// Process id, or path of a monitor socket; left out, the processes are listed
    #[arg(value_name = "PID|SOCKET")]
    target: Option<String>,
    /// One line of JSON for each look
    #[arg(long)]
    json: bool,
    /// Look once
    #[arg(long)]
    once: bool,
    /// Time between two looks
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Show at most so many connections and queue pairs
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    rows: usize,
}

fn main() -> ExitCode {
    uwarp_app::run::<Arguments>(|arguments| {
        signals::install()?;
        if arguments.interval < Duration::from_millis(10) {
            return Err(usage("--interval is below 10ms: choose a longer one"));
        }
        let Some(target) = &arguments.target else {
            return list(arguments.json);
        };
        let sockets = sockets(target)?;
        watch(&arguments, &sockets)
    })
}

/// The sockets that a target names.
fn sockets(target: &str) -> anyhow::Result<Vec<PathBuf>> {
    let Ok(pid) = target.parse::<u32>() else {
        let path = PathBuf::from(target);
        if !path.exists() {
            return Err(usage(format!(
                "'{target}' is neither a process id nor the path of a monitor socket: run uwarp-stat without arguments for a list"
            )));
        }
        return Ok(vec![path]);
    };
    let found = monitor::sockets(pid);
    if found.is_empty() {
        anyhow::bail!(
            "process {pid} has no monitor socket in {}: it is not a uwarp process of this user, or its configuration has monitor.enabled = false",
            monitor::runtime_directory().display()
        );
    }
    Ok(found)
}

fn look(socket: &Path) -> anyhow::Result<StatsSnapshot> {
    monitor::query(socket).with_context(|| format!("{} does not answer", socket.display()))
}

/// Lists the processes that can be shown.
fn list(json: bool) -> anyhow::Result<()> {
    let found: Vec<(PathBuf, StatsSnapshot)> =
        monitor::all_sockets().into_iter().filter_map(|socket| Some((socket.clone(), look(&socket).ok()?))).collect();
    if json {
        for (_, snapshot) in &found {
            output::print(serde_json::to_string(snapshot)?);
        }
        return Ok(());
    }
    if found.is_empty() {
        output::print("no uwarp process of this user is running");
        return Ok(());
    }
    let mut table = output::table(["pid", "address", "device", "mode", "queue pairs", "socket"]);
    for (socket, snapshot) in &found {
        table.add_row([
            snapshot.pid.to_string(),
            snapshot.address.clone(),
            device(snapshot).to_owned(),
            snapshot.mode.clone(),
            snapshot.objects.queue_pairs.to_string(),
            socket.display().to_string(),
        ]);
    }
    output::print(table);
    Ok(())
}

/// The word for a context's device.
fn device(snapshot: &StatsSnapshot) -> &str {
    match (&snapshot.port, &snapshot.switch) {
        (Some(port), _) => &port.driver,
        (None, Some(_)) => "switch",
        (None, None) => "none",
    }
}

fn watch(arguments: &Arguments, sockets: &[PathBuf]) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal();
    // Without a terminal, a table goes to a file or a pager: show one.
    let once = arguments.once || (!terminal && !arguments.json);
    let mut before: Vec<Option<StatsSnapshot>> = vec![None; sockets.len()];
    let mut looked = false;
    loop {
        let start = Instant::now();
        let mut text = String::new();
        for (socket, before) in sockets.iter().zip(&mut before) {
            let now = match look(socket) {
                Ok(snapshot) => snapshot,
                // A process that ends while it is watched is not a failure.
                Err(_) if looked => return Ok(()),
                Err(error) => return Err(error),
            };
            if arguments.json {
                text += &serde_json::to_string(&now)?;
                text.push('\n');
            } else {
                let rates = Rates::between(before.as_ref(), &now);
                text += &show::snapshot(&now, &rates, arguments.rows);
            }
            *before = Some(now);
        }
        looked = true;
        let mut out = std::io::stdout().lock();
        if terminal && !once && !arguments.json {
            // Move to the top left corner and erase everything below.
            let _ = write!(out, "\x1b[H\x1b[J");
        }
        if write!(out, "{text}").and_then(|()| out.flush()).is_err() {
            // Nobody reads any more.
            return Ok(());
        }
        drop(out);
        if once {
            return Ok(());
        }
        while start.elapsed() < arguments.interval {
            if signals::interrupted() {
                return Ok(());
            }
            std::thread::sleep(
                (arguments.interval - start.elapsed().min(arguments.interval)).min(Duration::from_millis(50)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_on_a_switch_has_the_switch_as_its_device() {
        let on_switch = StatsSnapshot { switch: Some(PathBuf::from("/run/switch.sock")), ..StatsSnapshot::default() };
        assert_eq!(device(&on_switch), "switch");
        assert_eq!(device(&StatsSnapshot::default()), "none");
    }
}
