//! The writing side.

use crate::link::{Driver, PORT, Place};
use crate::secret::SecretFlag;
use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use uwarp::config::EngineMode;
use uwarp_app::output::{self, JsonFlag};
use uwarp_app::units::parse_duration;
use uwarp_app::{ConfineFlags, Confinement, NetworkFlags, Role, signals, usage};
use uwarp_log::record::MAX_PAYLOAD;
use uwarp_log::writer::{AppendError, Options};

/// Lines that are read ahead.
const AHEAD: usize = 1024;
/// How long the remaining copies may take at the end, once most copies are complete.
const SETTLE: Duration = Duration::from_secs(2);

/// How to append.
#[derive(Args, Clone, Debug)]
pub struct AppendOptions {
    /// When the log is full, drop the oldest segment (otherwise this is an error)
    #[arg(long)]
    pub overwrite: bool,
    /// Wake the targets' programs with each record, by Immediate Data
    #[arg(long)]
    pub notify: bool,
    /// How long most targets may be away
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    pub patience: Duration,
    /// Wait for all targets in the end, not for most of them only
    #[arg(long)]
    pub all: bool,
    /// What the targets have to know.
    #[command(flatten)]
    pub secret: SecretFlag,
    /// Whether this process keeps to the files that it needs.
    #[command(flatten)]
    pub confine: ConfineFlags,
}

/// The result of an append.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The log's number, in hexadecimal.
    pub log: String,
    /// This writer's epoch.
    pub epoch: u64,
    /// Records appended and acknowledged.
    pub records: u64,
    /// Number of the last acknowledged record.
    pub last: u64,
    /// Targets that have everything.
    pub live: usize,
    /// Seconds from the log's opening to the last acknowledgment.
    pub seconds: f64,
}

/// The named targets, or the one that the network flags lead to.
///
/// # Errors
/// The number of targets is neither one nor three, or a name is not a target.
pub fn places(network: &NetworkFlags, targets: &[String]) -> anyhow::Result<Vec<Place>> {
    if targets.is_empty() {
        return Ok(vec![Place::Address((network.default_address(Role::Server), PORT).into())]);
    }
    if targets.len() != 1 && targets.len() != 3 {
        return Err(usage(format!("a log has one target or three: {} were named", targets.len())));
    }
    targets.iter().map(|text| Place::parse(text, PORT)).collect()
}

/// Lines of a file or of standard input, read by a thread: the engines must turn while no line arrives.
fn lines(file: Option<&Path>) -> anyhow::Result<Receiver<std::io::Result<Vec<u8>>>> {
    let input: Box<dyn BufRead + Send> = match file {
        Some(path) => Box::new(BufReader::new(File::open(path).with_context(|| path.display().to_string())?)),
        None => Box::new(BufReader::new(std::io::stdin())),
    };
    let (sender, receiver) = sync_channel(AHEAD);
    std::thread::spawn(move || {
        for line in input.split(b'\n') {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Confines this process to the files that it needs. The configuration file is read again for each device that is
/// opened.
fn confine(
    network: &NetworkFlags,
    places: &[Place],
    options: &AppendOptions,
    file: Option<&Path>,
    json: &JsonFlag,
) -> anyhow::Result<()> {
    let mut confinement = Confinement::new(&network.resolve(Role::Client, EngineMode::Inline)?, &options.confine);
    for place in places {
        if let Place::Socket(path) = place {
            confinement = confinement.socket(path);
        }
    }
    for path in [file, network.config.as_deref()].into_iter().flatten() {
        confinement = confinement.reads(path);
    }
    if let Some(path) = json.file() {
        confinement = confinement.creates(path);
    }
    confinement.apply()?;
    Ok(())
}

/// Appends lines.
///
/// # Errors
/// Too few targets, a full log, another writer, or an error of the device.
pub fn run(
    network: &NetworkFlags,
    places: Vec<Place>,
    options: &AppendOptions,
    file: Option<&Path>,
    acknowledge: bool,
    json: &JsonFlag,
) -> anyhow::Result<()> {
    let secret = options.secret.read()?;
    confine(network, &places, options, file, json)?;
    signals::install()?;
    let input = lines(file)?;
    // Not 0, which stands for no log.
    let new_log = fastrand::u64(1..);
    let writing =
        Options { notify: options.notify, overwrite: options.overwrite, ..Options::new(places.len(), new_log) };
    let mut driver = Driver::new(network, places, writing, secret)?;
    let mut waiting: Option<Vec<u8>> = None;
    // Why no more lines are accepted. The records under way are completed first, so that the number of the last one is
    // right.
    let mut refused: Option<anyhow::Error> = None;
    let mut unacknowledged = VecDeque::new();
    let (mut records, mut ended) = (0u64, false);
    let (mut opened, mut progress, mut last) = (None, Instant::now(), Instant::now());
    let mut finished: Option<Instant> = None;
    loop {
        let busy = driver.turn()?;
        if let Some(over) = driver.writer.over() {
            bail!("{}", output::printable(&over.to_string()));
        }
        if driver.writer.is_open() && opened.is_none() {
            opened = Some(Instant::now());
        }
        // As many records as are accepted.
        while driver.writer.is_open() {
            let taken = records + unacknowledged.len() as u64;
            if waiting.is_none() && !ended && !signals::interrupted() {
                match input.try_recv() {
                    Ok(Ok(line)) => waiting = Some(line),
                    Ok(Err(error)) => {
                        let reason = format!("after {taken} records, the next line cannot be read");
                        (refused, ended) = (Some(anyhow::Error::new(error).context(reason)), true);
                    }
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => ended = true,
                }
            }
            let Some(line) = &waiting else { break };
            match driver.writer.append(line) {
                Ok(sequence) => unacknowledged.push_back(sequence),
                Err(AppendError::NotNow) => break,
                Err(AppendError::Over(over)) => bail!("{}", output::printable(&over.to_string())),
                Err(AppendError::TooLong) => {
                    let error = anyhow!("line {} is too long: a record has at most {MAX_PAYLOAD} octets", taken + 1);
                    (refused, waiting, ended) = (Some(error), None, true);
                    break;
                }
                Err(AppendError::Full) => {
                    let error = anyhow!(
                        "the log is full after {taken} of these records: append with --overwrite, or start a new log with larger files"
                    );
                    (refused, waiting, ended) = (Some(error), None, true);
                    break;
                }
            }
            waiting = None;
        }
        let acknowledged = driver.writer.acknowledged();
        while unacknowledged.front().is_some_and(|first| *first <= acknowledged) {
            if let Some(sequence) = unacknowledged.pop_front()
                && acknowledge
            {
                output::print_data(sequence.to_string().as_bytes())?;
            }
            records += 1;
            (progress, last) = (Instant::now(), Instant::now());
        }
        let idle = waiting.is_none() && unacknowledged.is_empty() && driver.writer.is_open();
        if idle {
            if let Some(error) = refused {
                return Err(error);
            }
            progress = Instant::now();
            driver.writer.flush();
            if (ended || signals::interrupted()) && driver.writer.is_flushed() {
                // Wait for records under way, if that does not take long.
                let since = *finished.get_or_insert_with(Instant::now);
                let limit = if options.all { options.patience } else { SETTLE };
                let whole = driver.writer.live() == driver.options().targets;
                if whole || since.elapsed() > limit {
                    if options.all && !whole {
                        bail!("after {limit:?}, not all targets have all records:{}", driver.complaints());
                    }
                    break;
                }
            }
        }
        if signals::interrupted() && !idle && opened.is_none() {
            bail!("interrupted");
        }
        if progress.elapsed() > options.patience {
            bail!(
                "{} of {} targets are needed, and did not answer for {:?}: start them, or name others.{}",
                driver.writer.quorum(),
                driver.options().targets,
                options.patience,
                driver.complaints()
            );
        }
        if !busy && (idle || !driver.writer.is_open()) {
            // Lines may arrive slowly: do not spend a whole core on waiting.
            std::thread::sleep(Duration::from_micros(200));
        } else if !busy {
            std::thread::yield_now();
        }
    }
    let outcome = Outcome {
        log: format!("{:016x}", driver.writer.log()),
        epoch: driver.writer.epoch(),
        records,
        last: driver.writer.acknowledged(),
        live: driver.writer.live(),
        seconds: opened.map_or(0.0, |opened| last.saturating_duration_since(opened).as_secs_f64()),
    };
    driver.close()?;
    if !json.takes_output() && !acknowledge {
        output::print(format!(
            "{} records in {:.2} s, up to number {}; {} targets have them all",
            outcome.records, outcome.seconds, outcome.last, outcome.live
        ));
    }
    json.write(&outcome)
}
