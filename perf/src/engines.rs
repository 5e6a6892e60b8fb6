//! What several engines share: the cache lines that more than one of them writes, and the instructions of an operation,
//! by the number of engines.
//!
//! One thread turns all engines under valgrind's lackey, which prints every access to memory. A store to a marker says
//! which engine turns next. So a line that two engines write shows on any machine, also on one with two processors.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use uwarp::config::EngineMode;
use uwarp::{
    AcceptOptions, Access, Completion, CompletionQueue, Config, ConnectOptions, Context, ListenOptions, MemoryRegion,
    PageAdvice, QueuePair, QueuePairOptions, RegionBuffer, SendRequest, measure,
};

/// The most engines of a context.
const MOST: usize = 64;
const PORT: u16 = 7471;
/// Longest wait for a connection.
const PATIENCE: Duration = Duration::from_secs(100);
/// Payload octets of a Write.
const SIZE: usize = 64;
/// Distance of what two queue pairs write, so that no cache line is the application's fault.
const STRIDE: usize = 256;
/// Octets of a cache line.
const LINE: u64 = 64;
/// How much time passes by the engines' clock from one turn of all to the next.
const STEP: Duration = Duration::from_micros(1);
/// Rounds before those that count.
const WARM: usize = 50;
/// Stack of the thread that turns the engines, and what lies above it: its thread-local variables.
const STACK: usize = 1 << 20;
const ABOVE_STACK: u64 = 64 << 10;

/// A line of its own for each marker.
#[repr(align(64))]
struct Marker(AtomicU64);

/// Stored to: the application goes on; the rounds that count begin; they are over; an engine turns, one for each.
static MARKERS: [Marker; FIRST_ENGINE + MOST] = [const { Marker(AtomicU64::new(0)) }; FIRST_ENGINE + MOST];
const APPLICATION: usize = 0;
const BEGIN: usize = 1;
const END: usize = 2;
const FIRST_ENGINE: usize = 3;

fn mark(which: usize) {
    MARKERS[which].0.store(1, Ordering::Relaxed);
}

/// What to count.
#[derive(Args)]
pub struct Options {
    /// Numbers of engines
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [1, 2, 4, 8, 16],
        value_parser = clap::value_parser!(u64).range(1..=MOST as u64)
    )]
    engines: Vec<u64>,
    /// Rounds that count, in each of which every engine has a Write and its completion
    #[arg(long, default_value_t = 64)]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What runs under valgrind.
#[derive(Args)]
pub struct Traced {
    engines: usize,
    rounds: usize,
}

/// Where things are in the process that runs under valgrind.
#[derive(Serialize, Deserialize)]
struct Layout {
    markers: u64,
    /// The thread's stack and its thread-local variables, which each engine has of its own otherwise.
    thread: Range<u64>,
}

/// One end.
struct Side {
    queue_pairs: Vec<QueuePair>,
    completions: CompletionQueue,
    memory: MemoryRegion,
    context: Context,
}

fn config(address: &str, engines: usize) -> anyhow::Result<Config> {
    let mut config = Config::without_device(address)?;
    config.engine.mode = EngineMode::Threaded;
    config.engine.poll_turns = Some(false);
    config.engine.count = engines;
    (config.buffers.receive, config.buffers.transmit) = (512, 512);
    config.monitor.enabled = false;
    Ok(config)
}

impl Side {
    fn new(context: Context, engines: usize) -> anyhow::Result<Side> {
        let completions = context.create_completion_queue(256)?;
        let domain = context.allocate_domain();
        let buffer = RegionBuffer::zeroed(engines * STRIDE, PageAdvice::Normal)?;
        let memory = domain.register(buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let options = QueuePairOptions::new(&completions);
        let queue_pairs = (0..engines).map(|_| domain.create_queue_pair(&options)).collect::<Result<_, _>>()?;
        Ok(Side { queue_pairs, completions, memory, context })
    }
}

/// Connects a queue pair of each engine with one of the same engine on the other side. Another thread turns them.
fn connected(here: Context, there: Context, engines: usize) -> anyhow::Result<(Side, Side)> {
    let (mut here, mut there) = (Side::new(here, engines)?, Side::new(there, engines)?);
    let mut listener = there.context.listen(PORT, ListenOptions::default())?;
    let address = there.context.socket_address(PORT);
    for (from, to) in here.queue_pairs.iter_mut().zip(&mut there.queue_pairs) {
        let mut connecting = here.context.start_connect(&mut from.control, address, ConnectOptions::default())?;
        let request = listener.next(PATIENCE)?.context("no connection request arrived")?;
        let mut accepting = request.start_accept(&mut to.control, AcceptOptions::default())?;
        let (mut open, mut accepted) = (false, false);
        while !(open && accepted) {
            open = open || connecting.poll(&mut from.control)?.is_some();
            accepted = accepted || accepting.poll(&mut to.control)?.is_some();
            std::thread::yield_now();
        }
    }
    Ok((here, there))
}

/// Posts a Write of each queue pair to the other side.
fn post_all(from: &mut Side, to: &Side) -> anyhow::Result<()> {
    for (which, queue_pair) in from.queue_pairs.iter_mut().enumerate() {
        let at = which * STRIDE;
        let (entries, target) = ([from.memory.sge(at..at + SIZE)?], to.memory.remote_offset() + at as u64);
        let write = SendRequest::write(which as u64, &entries, to.memory.stag(), target);
        queue_pair.send.post(&[write.signalled()])?;
    }
    Ok(())
}

/// Reaps what has completed.
fn reap(side: &mut Side) -> anyhow::Result<usize> {
    let mut out = [Completion::default(); MOST];
    let count = side.completions.poll(&mut out);
    ensure!(out[..count].iter().all(|completion| completion.status.is_success()), "a Write has failed");
    Ok(count)
}

/// A Write by each engine and one back, and the completions.
fn run_round(here: &mut Side, there: &mut Side, engines: usize) -> anyhow::Result<()> {
    post_all(here, there)?;
    post_all(there, here)?;
    let mut completed = 0;
    while completed < engines {
        measure::turn_each(|seat| mark(FIRST_ENGINE + seat % engines));
        mark(APPLICATION);
        completed += reap(here)?;
        reap(there)?;
    }
    Ok(())
}

/// The process that valgrind traces. It ends without closing its contexts.
pub fn run_traced(options: &Traced) -> anyhow::Result<()> {
    let Traced { engines, rounds } = *options;
    let body = move || -> anyhow::Result<()> {
        let top = std::ptr::from_ref(&engines).addr() as u64;
        let markers = std::ptr::from_ref(&MARKERS).addr() as u64;
        let layout = Layout { markers, thread: top.saturating_sub(STACK as u64)..top + ABOVE_STACK };
        println!("{}", serde_json::to_string(&layout)?);
        std::io::stdout().flush()?;
        ensure!(measure::step_clock(STEP), "the clock is in use already");
        measure::seat_engines_here();
        let (here, there) = Context::pair_in_process(config("10.0.0.1/16", engines)?, config("10.0.0.2/16", engines)?)?;
        let setup = std::thread::spawn(move || connected(here, there, engines));
        while !setup.is_finished() {
            measure::turn_each(|_| ());
            // Each turn is traced.
            std::thread::sleep(Duration::from_millis(1));
        }
        let Ok(sides) = setup.join() else { bail!("the set-up panicked") };
        let (mut here, mut there) = sides?;
        for round in 0..WARM + rounds {
            if round == WARM {
                mark(BEGIN);
            }
            run_round(&mut here, &mut there, engines)?;
        }
        mark(END);
        std::process::exit(0);
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(body)?;
    thread.join().map_err(|_| anyhow::anyhow!("the run panicked"))?
}

/// What several engines have in common in the rounds that counted.
#[derive(Debug, Serialize, Deserialize)]
struct Counts {
    /// Instructions of both engines for each Write.
    instructions: f64,
    /// Cache lines that engines of two pairs wrote.
    shared_lines: usize,
    /// The addresses of the first of these, each with the instructions that wrote it first, for whoever looks for them.
    shared: Vec<Shared>,
}

/// A line that two engines wrote.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Shared {
    line: String,
    /// By engine: the address of the first instruction that wrote it.
    writers: BTreeMap<usize, String>,
}

/// Follows a trace.
struct Tracer {
    layout: Layout,
    counts: bool,
    is_over: bool,
    /// Whose turn it is.
    engine: Option<usize>,
    instruction: u64,
    instructions: u64,
    /// By line and engine, the first instruction that wrote it.
    writers: BTreeMap<(u64, usize), u64>,
}

impl Tracer {
    fn new(layout: Layout) -> Tracer {
        let (counts, is_over, engine) = (false, false, None);
        Tracer { layout, counts, is_over, engine, instruction: 0, instructions: 0, writers: BTreeMap::new() }
    }

    fn follow(&mut self, line: &str) {
        let Some((kind, access)) = line.split_at_checked(3) else { return };
        let Some((address, size)) = access.split_once(',') else { return };
        let Ok(address) = u64::from_str_radix(address, 16) else { return };
        match kind {
            "I  " => {
                self.instruction = address;
                self.instructions += u64::from(self.counts && self.engine.is_some());
            }
            " S " | " M " => self.write(address, size.trim_end().parse().unwrap_or(1)),
            _ => {}
        }
    }

    fn write(&mut self, address: u64, size: u64) {
        let markers = self.layout.markers..self.layout.markers + size_of_val(&MARKERS) as u64;
        if markers.contains(&address) {
            match ((address - markers.start) / LINE) as usize {
                BEGIN => self.counts = true,
                END => (self.counts, self.is_over) = (false, true),
                which => self.engine = which.checked_sub(FIRST_ENGINE),
            }
            return;
        }
        let Some(engine) = self.engine.filter(|_| self.counts && !self.layout.thread.contains(&address)) else {
            return;
        };
        for line in address / LINE..=(address + size - 1) / LINE {
            self.writers.entry((line, engine)).or_insert(self.instruction);
        }
    }

    fn counts(&self, engines: usize, rounds: usize) -> Counts {
        let mut lines: BTreeMap<u64, BTreeMap<usize, String>> = BTreeMap::new();
        for ((line, engine), instruction) in &self.writers {
            lines.entry(*line).or_default().insert(*engine, format!("{instruction:#x}"));
        }
        lines.retain(|_, writers| writers.len() > 1);
        let shared = lines
            .iter()
            .take(16)
            .map(|(line, writers)| Shared { line: format!("{:#x}", line * LINE), writers: writers.clone() });
        Counts {
            instructions: self.instructions as f64 / (2 * engines * rounds) as f64,
            shared_lines: lines.len(),
            shared: shared.collect(),
        }
    }
}

/// Traces a run with so many engines.
fn trace(engines: usize, rounds: usize) -> anyhow::Result<Counts> {
    let mut valgrind = Command::new("valgrind")
        // Each thread's memory is its own, however many there are.
        .env("GLIBC_TUNABLES", format!("glibc.malloc.arena_max={}", 4 * MOST))
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(std::env::current_exe()?)
        .args(["engines-traced", &engines.to_string(), &rounds.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run valgrind: apt-get install valgrind")?;
    let (Some(said), Some(traced)) = (valgrind.stdout.take(), valgrind.stderr.take()) else { bail!("no pipes") };
    let (sender, layout) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(said).read_line(&mut line);
        let _ = sender.send(line);
    });
    let (mut tracer, mut text, mut rest) = (None, String::new(), String::new());
    let mut traced = BufReader::with_capacity(1 << 20, traced);
    while traced.read_line(&mut text)? > 0 {
        if tracer.is_none()
            && let Ok(line) = layout.try_recv()
        {
            tracer = Some(Tracer::new(serde_json::from_str(&line).context("the traced process said something else")?));
        }
        if let Some(tracer) = &mut tracer {
            tracer.follow(&text);
        }
        if !text.starts_with([' ', 'I']) {
            rest.push_str(&text);
        }
        text.clear();
    }
    let status = valgrind.wait()?;
    let tracer = tracer.filter(|tracer| tracer.is_over && status.success());
    Ok(tracer.with_context(|| format!("the traced process has failed: {rest}"))?.counts(engines, rounds))
}

/// Counts and prints.
pub fn count(options: &Options) -> anyhow::Result<()> {
    let mut all = BTreeMap::new();
    for engines in &options.engines {
        all.insert(*engines, trace(*engines as usize, options.rounds)?);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let mut table = Table::new();
    let header = ["engines on each side", "instructions of both for a Write", "cache lines that two engines write"];
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header);
    for (engines, counts) in &all {
        table.add_row([engines.to_string(), format!("{:.0}", counts.instructions), counts.shared_lines.to_string()]);
    }
    for column in 0..3 {
        table.column_mut(column).context("the header has it")?.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    for (engines, shared) in all.iter().flat_map(|(engines, counts)| counts.shared.iter().map(move |s| (engines, s))) {
        println!("with {engines} engines: the line at {} is written by {:?}", shared.line, shared.writers);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_two_engines_write_is_found_and_the_threads_own_are_not() {
        let mut tracer = Tracer::new(Layout { markers: 0x1000, thread: 0x8000..0x9000 });
        let marker = |which: usize| format!(" S {:x},8", 0x1000 + which * 64);
        let lines = [
            " S 4000,8".to_owned(),
            marker(BEGIN),
            marker(FIRST_ENGINE),
            "I  77,3".to_owned(),
            " S 4000,8".to_owned(),
            " S 403c,8".to_owned(),
            " S 8000,8".to_owned(),
            " L 5000,8".to_owned(),
            marker(FIRST_ENGINE + 1),
            "I  78,3".to_owned(),
            "I  79,3".to_owned(),
            " M 4048,4".to_owned(),
            " S 8000,8".to_owned(),
            " S 5000,8".to_owned(),
            marker(APPLICATION),
            "I  80,3".to_owned(),
            " S 5000,8".to_owned(),
            marker(END),
            marker(FIRST_ENGINE),
            " S 5000,8".to_owned(),
        ];
        lines.iter().for_each(|line| tracer.follow(line));
        let counts = tracer.counts(2, 1);
        assert_eq!((counts.instructions, counts.shared_lines), (0.75, 1));
        assert_eq!(counts.shared[0].line, "0x4040");
        assert_eq!(counts.shared[0].writers, BTreeMap::from([(0, "0x77".to_owned()), (1, "0x79".to_owned())]));
    }
}
