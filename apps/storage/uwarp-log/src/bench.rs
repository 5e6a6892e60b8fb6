//! The time of a durable append in several ways, beside a local write and sync: on an idle machine, and on one whose
//! other CPU polls, as the client does in the other measurements.

use crate::link::{FEATURES, PORT};
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uwarp::config::EngineMode;
use uwarp::{
    AcceptOptions, Access, Completion, CompletionOpcode, CompletionQueue, ConnectOptions, Context, FileStore,
    ListenOptions, MemoryRegion, PageAdvice, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest,
    RegionBuffer, RegionOptions, SendRequest, Status,
};
use uwarp_app::cacheline::{self, CacheLine};
use uwarp_app::channel::part;
use uwarp_app::measure::{Amount, Latency, Timed, round_trips};
use uwarp_app::output::{self, JsonFlag};
use uwarp_app::pair::{self, choose_cpus};
use uwarp_app::units::{format_nanoseconds, format_size, name_of, parse_count, parse_size};
use uwarp_app::{NetworkFlags, Role, signals, usage};

/// Appends that are captured to count their round trips.
const CAPTURED: u64 = 20;
/// Records of the store, which are written in turn.
const SLOTS: u64 = 256;
/// Octets of a request besides its data: the data's location and the record's slot.
const REQUEST: usize = 24;
/// A slot of no record: the server reports how often it was woken, and ends.
const END: u64 = u64::MAX;
/// How long one side may say nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// How records reach the other side's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// No network: a thread of this process writes and syncs
    Local,
    /// The same, while another thread keeps the client's CPU busy, as a client that polls does
    LocalPolled,
    /// A Send says where the record is; the server reads it by RDMA, syncs, and replies
    Pull,
    /// A Send brings the record; the server copies it, syncs, and replies
    Send,
    /// RDMA Write and Commit; the server's program sleeps
    Commit,
    /// The same, and the thread of the region's that syncs is kept on the server's CPU (of a file)
    CommitOnServerCpu,
    /// The same, and the server's engine syncs by itself instead of a thread of the region's (of a file)
    CommitInEngine,
}

impl Method {
    fn is_commit(self) -> bool {
        matches!(self, Method::Commit | Method::CommitOnServerCpu | Method::CommitInEngine)
    }

    /// Whether it differs from `Commit` only for files: the engine always writes memory back itself.
    fn is_of_files(self) -> bool {
        self.is_commit() && self != Method::Commit
    }
}

/// What keeps the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keeper {
    /// Persistent memory, emulated by ordinary memory: a sync writes cache lines back
    Memory,
    /// A file: a sync is fdatasync
    File,
}

/// What is measured.
#[derive(Args, Clone, Debug)]
pub struct BenchArguments {
    /// What keeps the records [default: memory, then file]
    #[arg(long, value_enum)]
    store: Option<Keeper>,
    /// How they get there [default: all, in turn]
    #[arg(long, value_enum)]
    method: Vec<Method>,
    /// Octets of a record
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4K")]
    size: u64,
    /// Records that are timed [default: 20k in memory, 1k in a file]
    #[arg(long, value_name = "NUMBER", value_parser = parse_count)]
    iterations: Option<u64>,
    /// Rounds: each method in turn, so often
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    rounds: u32,
    /// Where the file is [default: the temporary directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Let the server's own thread turn its engine, so nothing has to be woken (a server with other work would not do
    /// so)
    #[arg(long)]
    inline_server: bool,
    #[command(flatten)]
    json: JsonFlag,
}

/// One side of a measurement.
#[derive(Args, Clone, Debug)]
pub struct SideArguments {
    #[arg(long, value_enum)]
    side: Role,
    #[arg(long, value_enum)]
    method: Method,
    #[arg(long, value_enum)]
    store: Keeper,
    #[arg(long)]
    size: u64,
    #[arg(long)]
    count: u64,
    #[arg(long)]
    directory: PathBuf,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// How records were sent.
    pub method: Method,
    /// The store.
    pub store: Keeper,
    /// The device, as named on the command line.
    pub device: String,
    /// Who turned the server's engine.
    pub server: String,
    /// Octets of a record.
    pub size: u64,
    /// Records that were timed.
    pub records: u64,
    /// From the start of an append to its end.
    pub latency_ns: Latency,
    /// Round trips per append, counted in a capture of 20 appends; none without a network.
    pub round_trips: Option<f64>,
    /// How often the server's program was woken per timed record; none without a network.
    pub wakes: Option<f64>,
    /// Cache-line round trips between the two CPUs.
    pub cacheline_ns: Option<CacheLine>,
}

/// Runs the benchmark.
///
/// # Errors
/// An invalid command line, or a side that failed (it has reported why).
pub fn run(network: &NetworkFlags, arguments: &BenchArguments) -> anyhow::Result<()> {
    if !(1..=65_536).contains(&arguments.size) {
        return Err(usage("records of the benchmark have 1 to 64K octets"));
    }
    crate::pair::check_network(network)?;
    let cpus = choose_cpus(&network.cpus)?;
    let folder = match &arguments.directory {
        Some(directory) => tempfile::Builder::new().prefix("uwarp-log-").tempdir_in(directory),
        None => tempfile::Builder::new().prefix("uwarp-log-").tempdir(),
    }
    .context("cannot make a directory for the file")?;
    let stores = arguments.store.map_or(vec![Keeper::Memory, Keeper::File], |store| vec![store]);
    // On a single CPU, a polling thread would block the one that writes.
    let is_alone = cpus[0] == cpus[1];
    let methods: Vec<Method> = match &arguments.method[..] {
        [] => Method::value_variants()
            .iter()
            .copied()
            .filter(|method| !(is_alone && *method == Method::LocalPolled))
            .collect(),
        methods => methods.to_vec(),
    };
    if is_alone && methods.contains(&Method::LocalPolled) {
        return Err(usage("local-polled needs two CPUs"));
    }
    if arguments.store == Some(Keeper::Memory) && arguments.method.iter().any(|method| method.is_of_files()) {
        return Err(usage("engines always write memory back themselves: choose commit, or --store file"));
    }
    let mut reports = Vec::new();
    for store in stores {
        for _ in 0..arguments.rounds {
            // For memory there is only one way.
            for method in methods.iter().copied().filter(|method| store == Keeper::File || !method.is_of_files()) {
                let (mut report, line) =
                    CacheLine::around(cpus, || measure(network, arguments, method, store, folder.path(), cpus))?;
                report.cacheline_ns = line;
                reports.push(report);
            }
        }
    }
    arguments.json.publish(table(&reports), &reports)
}

fn table(reports: &[Report]) -> String {
    let mut table = output::table([
        "store",
        "method",
        "server",
        "size",
        "records",
        "p50",
        "p99",
        "max",
        "round trips",
        "wakes",
        "cache line, ns",
    ]);
    for report in reports {
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
        table.add_row([
            name_of(report.store),
            name_of(report.method),
            report.server.clone(),
            format_size(report.size),
            report.records.to_string(),
            format_nanoseconds(report.latency_ns.p50),
            format_nanoseconds(report.latency_ns.p99),
            format_nanoseconds(report.latency_ns.max),
            number(report.round_trips),
            number(report.wakes),
            report.cacheline_ns.map_or_else(String::new, |line| line.to_string()),
        ]);
    }
    output::align_numbers(&mut table, 3);
    table.to_string()
}

fn measure(
    network: &NetworkFlags,
    arguments: &BenchArguments,
    method: Method,
    store: Keeper,
    folder: &Path,
    cpus: [usize; 2],
) -> anyhow::Result<Report> {
    let count = arguments.iterations.unwrap_or(if store == Keeper::Memory { 20_000 } else { 1000 }).max(1);
    if matches!(method, Method::Local | Method::LocalPolled) {
        return local(network, arguments.size, count, store, folder, method, cpus);
    }
    let command = |role: Role| -> anyhow::Result<Command> {
        let mut command = pair::side("bench-side", role, cpus, network)?;
        command.args(["--side", &name_of(role), "--method", &name_of(method), "--store", &name_of(store)]);
        command.args(["--size", &arguments.size.to_string(), "--count", &count.to_string()]);
        command.arg("--directory").arg(folder);
        command.arg("--socket").arg(folder.join("bench.sock"));
        Ok(command)
    };
    let mut server = command(Role::Server)?;
    server.args(["--engine", if arguments.inline_server { "inline" } else { "threaded" }]);
    let mut client = command(Role::Client)?;
    client.args(["--engine", "inline"]);
    let mut report: Report = pair::run(&mut server, &mut client, |_| Ok(()))?;
    report.server = if arguments.inline_server { "inline" } else { "threaded" }.to_owned();
    Ok(report)
}

/// Runs one side.
///
/// # Errors
/// Those of the device or the store.
pub fn side(network: &NetworkFlags, arguments: &SideArguments) -> anyhow::Result<()> {
    let mut config = network.resolve(arguments.side, EngineMode::Inline)?;
    match arguments.method {
        Method::CommitInEngine => config.commit.in_engine = true,
        Method::CommitOnServerCpu => config.commit.cpus.clone_from(&network.cpus),
        _ => {}
    }
    let context = Context::open(config)?;
    network.pin()?;
    match arguments.side {
        Role::Server => serve(&context, arguments)?,
        Role::Client => {
            let report =
                client(&context, arguments, &network.kind().to_string(), network.default_address(Role::Server))?;
            output::write_json(Path::new("-"), &report)?;
        }
    }
    context.close()?;
    Ok(())
}

/// The store of a side that syncs itself.
enum Store {
    Memory(MemoryRegion),
    File(MemoryRegion, File),
}

impl Store {
    fn new(domain: &ProtectionDomain, arguments: &SideArguments, access: Access) -> anyhow::Result<Store> {
        let length = (SLOTS * arguments.size) as usize;
        Ok(match arguments.store {
            Keeper::Memory => {
                let memory = RegionBuffer::zeroed(length, PageAdvice::Normal).context("no memory for the store")?;
                Store::Memory(domain.register(memory, RegionOptions::new(access).persistent())?)
            }
            Keeper::File => Store::File(
                domain.register(RegionBuffer::zeroed(length, PageAdvice::Normal)?, access)?,
                file(arguments.size, &arguments.directory)?,
            ),
        })
    }

    fn region(&self) -> &MemoryRegion {
        match self {
            Store::Memory(region) | Store::File(region, _) => region,
        }
    }

    /// Makes a record of the region durable.
    fn sync(&self, record: Range<usize>) -> anyhow::Result<()> {
        match self {
            Store::Memory(region) => region.write_back(record)?,
            Store::File(region, file) => {
                region.write_to(file, record.start as u64, record).context("the file cannot be written")?;
                file.sync_data().context("the file cannot be written")?;
            }
        }
        Ok(())
    }
}

/// A file with allocated blocks, so that a sync concerns only data.
fn file(size: u64, folder: &Path) -> anyhow::Result<File> {
    let file = tempfile::tempfile_in(folder).context("no file for the store")?;
    file.write_all_at(&vec![0; (SLOTS * size) as usize], 0)
        .and_then(|()| file.sync_all())
        .context("the file cannot be written")?;
    Ok(file)
}

/// A queue pair with its completions, and memory for messages in both directions.
struct End {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    /// Memory for outgoing, then for incoming messages.
    memory: MemoryRegion,
    size: usize,
    /// How often this thread slept because nothing was there.
    wakes: u64,
}

impl End {
    fn new(context: &Context, domain: &ProtectionDomain, size: usize) -> anyhow::Result<End> {
        let completions = context.create_completion_queue(64)?;
        let queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions).depth(16, 16))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = domain.register(RegionBuffer::zeroed(2 * size, PageAdvice::Normal)?, access)?;
        let mut end = End { queue_pair, completions, memory, size, wakes: 0 };
        end.receive()?;
        Ok(end)
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let place = self.memory.sge(self.size..)?;
        self.queue_pair.receive.post(&[ReceiveRequest::new(0, &[place])])?;
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Completion> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.completions.poll_one() {
                if completion.status != Status::Success {
                    bail!("a request failed: {:?}", completion.status);
                }
                return Ok(completion);
            }
            if self.completions.wait(Duration::from_secs(1))? {
                self.wakes += 1;
            } else if start.elapsed() > PATIENCE || signals::interrupted() {
                bail!("the other side sent nothing in time");
            }
        }
    }

    fn send(&mut self, length: usize) -> anyhow::Result<()> {
        let source = [self.memory.sge(..length)?];
        self.queue_pair.send.post(&[SendRequest::send(1, &source)])?;
        Ok(())
    }
}

fn serve(context: &Context, arguments: &SideArguments) -> anyhow::Result<()> {
    let size = arguments.size as usize;
    let domain = context.allocate_domain();
    let mut listener = context.listen(PORT, ListenOptions::default())?;
    let mut end = End::new(context, &domain, size + REQUEST)?;
    // Written by the client, or by this side.
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (store, target) = match (arguments.method, arguments.store) {
        (method, Keeper::File) if method.is_commit() => {
            let file = file(arguments.size, &arguments.directory)?;
            let mut store = FileStore::default();
            store.add(&file, 0, SLOTS * arguments.size)?;
            (None, Some(domain.register(store.load()?, RegionOptions::new(access).store(store))?))
        }
        _ => (Some(Store::new(&domain, arguments, access)?), None),
    };
    let request = listener.next(PATIENCE)?.context("no client connected in time")?;
    let region = target.as_ref().or(store.as_ref().map(Store::region)).context("there is a region")?;
    let mut place = region.stag().to_be_bytes().to_vec();
    place.extend(region.remote_offset().to_be_bytes());
    request.accept(&mut end.queue_pair.control, AcceptOptions::default().private_data(place).features(FEATURES))?;
    let mut head = [0; REQUEST];
    loop {
        let received = end.next()?;
        if received.opcode != CompletionOpcode::Receive {
            continue;
        }
        end.memory.read(size + REQUEST, &mut head)?;
        let double = |at: usize| head[at..].first_chunk().map_or(0, |part| u64::from_be_bytes(*part));
        let (stag, source, slot) = (double(0), double(8), double(16));
        if slot == END {
            // This message has woken the thread, too.
            end.memory.write(0, &end.wakes.saturating_sub(1).to_be_bytes())?;
            end.send(8)?;
            part(context, &mut end.queue_pair)?;
            return Ok(());
        }
        let Some(store) = &store else { bail!("this server expects only the final request") };
        let offset = (slot % SLOTS) as usize * size;
        if arguments.method == Method::Pull {
            let sink = [store.region().sge(offset..offset + size)?];
            let read = SendRequest::read(2, &sink, stag as u32, source).signalled();
            end.queue_pair.send.post(&[read])?;
            while end.next()?.opcode != CompletionOpcode::Read {}
        } else {
            end.memory.copy_to(size + 2 * REQUEST..2 * (size + REQUEST), store.region(), offset)?;
        }
        end.receive()?;
        store.sync(offset..offset + size)?;
        end.memory.write(0, &slot.to_be_bytes())?;
        end.send(8)?;
    }
}

fn client(
    context: &Context,
    arguments: &SideArguments,
    device: &str,
    server: std::net::IpAddr,
) -> anyhow::Result<Report> {
    let size = arguments.size as usize;
    let domain = context.allocate_domain();
    let options = ConnectOptions::default().features(FEATURES);
    let (mut end, established) = uwarp_app::channel::connect(
        context,
        (server, PORT).into(),
        &options,
        PATIENCE,
        || End::new(context, &domain, size + REQUEST),
        |end| &mut end.queue_pair,
    )?;
    let (stag, offset) =
        established.private_data.split_at_checked(4).context("the server sent no location of its memory")?;
    let stag = stag.first_chunk().map_or(0, |part| u32::from_be_bytes(*part));
    let offset = offset.first_chunk().map_or(0, |part| u64::from_be_bytes(*part));
    let record: Vec<u8> = (0..size).map(|at| at as u8).collect();
    end.memory.write(REQUEST, &record)?;
    let mut appended = 0_u64;
    let mut append = |end: &mut End, number: u64| -> anyhow::Result<()> {
        appended += 1;
        // Each record is another.
        let slot = number % SLOTS;
        end.memory.write(REQUEST, &number.to_be_bytes()[..size.min(8)])?;
        if arguments.method.is_commit() {
            let source = [end.memory.sge(REQUEST..REQUEST + size)?];
            let write = SendRequest::write(3, &source, stag, offset + slot * size as u64);
            end.queue_pair.send.post(&[write.with_commit().signalled()])?;
            return end.next().map(|_| ());
        }
        request(end, size, slot)?;
        end.send(if arguments.method == Method::Pull { REQUEST } else { REQUEST + size })?;
        while end.next()?.opcode != CompletionOpcode::Receive {}
        end.receive()
    };
    let timed = round_trips(&name_of(arguments.method), Amount::Iterations(arguments.count), |number| {
        append(&mut end, number).map(|()| true)
    })?;
    let path = arguments.directory.join("bench.pcap");
    context.start_capture(&path)?;
    context.poll();
    for number in 0..CAPTURED {
        append(&mut end, number)?;
    }
    context.stop_capture();
    context.poll();
    request(&end, size, END)?;
    end.send(REQUEST)?;
    while end.next()?.opcode != CompletionOpcode::Receive {}
    let mut wakes = [0; 8];
    end.memory.read(size + REQUEST, &mut wakes)?;
    part(context, &mut end.queue_pair)?;
    Ok(Report {
        method: arguments.method,
        store: arguments.store,
        device: device.to_owned(),
        server: String::new(),
        size: arguments.size,
        records: timed.count,
        latency_ns: timed.latency,
        round_trips: Some(turns_of_data(&path, context.socket_address(0).ip())? as f64 / CAPTURED as f64),
        wakes: Some(u64::from_be_bytes(wakes) as f64 / appended as f64),
        cacheline_ns: None,
    })
}

/// The request at the start of what is sent.
fn request(end: &End, size: usize, slot: u64) -> anyhow::Result<()> {
    let source = end.memory.remote_offset() + REQUEST as u64;
    let words = [u64::from(end.memory.stag()), source, slot];
    // The receive area is behind it, so the record stays in place.
    debug_assert!(end.size >= size + REQUEST);
    Ok(end.memory.write(0, &words.map(u64::to_be_bytes).concat())?)
}

/// How often the direction of data turned to the client, in a capture.
fn turns_of_data(path: &Path, own: std::net::IpAddr) -> anyhow::Result<u64> {
    let file = File::open(path).context("the capture cannot be opened")?;
    let mut reader = pcap_file::pcapng::PcapNgReader::new(file).context("the capture cannot be read")?;
    let (mut trips, mut away) = (0, false);
    // The end of the data sent in each direction: a retransmission is not a turn.
    let mut ends: [Option<u32>; 2] = [None; 2];
    while let Some(block) = reader.next_block() {
        let Some(packet) = block.context("the capture cannot be read")?.into_enhanced_packet() else { continue };
        let Some((from, sequence, payload)) = data(&packet.data) else { continue };
        let leaves = from == own;
        // Segment lengths are far below the range of u32.
        let last = sequence.wrapping_add(payload as u32);
        let known = &mut ends[usize::from(leaves)];
        // Serial numbers (RFC 9293 §3.4): ahead if the distance is less than half of the range.
        let is_new = known.is_none_or(|known| (1..1 << 31).contains(&last.wrapping_sub(known)));
        if payload == 0 || !is_new {
            continue;
        }
        *known = Some(last);
        trips += u64::from(away && !leaves);
        away = leaves;
    }
    Ok(trips)
}

/// Source, sequence number and octets of payload of a frame, if it is TCP.
fn data(frame: &[u8]) -> Option<(std::net::IpAddr, u32, usize)> {
    let (packet, kind) = (frame.get(14..)?, frame.get(12..14)?);
    let (source, segment): (std::net::IpAddr, &[u8]) = match kind {
        [0x08, 0x00] if packet.get(9) == Some(&6) => {
            let length = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
            let header = usize::from(packet[0] & 15) * 4;
            (<[u8; 4]>::try_from(packet.get(12..16)?).ok()?.into(), packet.get(header..length)?)
        }
        [0x86, 0xdd] if packet.get(6) == Some(&6) => {
            let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
            (<[u8; 16]>::try_from(packet.get(8..24)?).ok()?.into(), packet.get(40..40 + length)?)
        }
        _ => return None,
    };
    let header = usize::from(*segment.get(12)? >> 4) * 4;
    let sequence = u32::from_be_bytes(*segment.get(4..)?.first_chunk()?);
    Some((source, sequence, segment.len().checked_sub(header)?))
}

/// Keeps `cpu` busy until `over`, by reading a word of memory, as an idle engine does.
fn poll_until(over: &AtomicBool, cpu: usize) -> anyhow::Result<()> {
    pin(cpu)?;
    while !over.load(Ordering::Relaxed) {}
    Ok(())
}

fn pin(cpu: usize) -> anyhow::Result<()> {
    if cacheline::pin(cpu) { Ok(()) } else { Err(usage(format!("this process may not run on CPU {cpu}"))) }
}

/// Writes and syncs in this process, on the first CPU, where the server syncs: devices interrupt one CPU, and from the
/// others a sync takes longer.
fn local(
    network: &NetworkFlags,
    size: u64,
    count: u64,
    store: Keeper,
    folder: &Path,
    method: Method,
    [cpu, other]: [usize; 2],
) -> anyhow::Result<Report> {
    let over = AtomicBool::new(false);
    let timed = std::thread::scope(|scope| -> anyhow::Result<Timed> {
        let poller = (method == Method::LocalPolled).then(|| scope.spawn(|| poll_until(&over, other)));
        let thread = scope.spawn(|| -> anyhow::Result<Timed> {
            pin(cpu)?;
            // No engine ever runs in these contexts: they provide memory that can be written back.
            let config =
                |address: &str| uwarp::Config::without_device(address).map(|config| config.inline().without_monitor());
            let (context, _other) = Context::pair_in_process(config("10.0.0.1/24")?, config("10.0.0.2/24")?)?;
            let domain = context.allocate_domain();
            let region = match store {
                Keeper::Memory => {
                    let buffer =
                        RegionBuffer::zeroed((SLOTS * size) as usize, PageAdvice::Normal).context("no memory")?;
                    Some(domain.register(buffer, RegionOptions::new(Access::LOCAL_WRITE).persistent())?)
                }
                Keeper::File => None,
            };
            let file = file(size, folder)?;
            let mut record: Vec<u8> = (0..size).map(|at| at as u8).collect();
            round_trips(&name_of(method), Amount::Iterations(count), |number| {
                let words = number.to_be_bytes();
                let part = record.len().min(8);
                record[..part].copy_from_slice(&words[..part]);
                let offset = number % SLOTS * size;
                match &region {
                    Some(region) => {
                        region.write(offset as usize, &record)?;
                        region.write_back(offset as usize..(offset + size) as usize)?;
                    }
                    None => {
                        file.write_all_at(&record, offset)
                            .and_then(|()| file.sync_data())
                            .context("the file cannot be written")?;
                    }
                }
                Ok(true)
            })
        });
        let result = thread.join();
        over.store(true, Ordering::Relaxed);
        if let Some(poller) = poller {
            poller.join().map_err(|_| anyhow::anyhow!("the thread that polls failed"))??;
        }
        result.map_err(|_| anyhow::anyhow!("the thread that writes failed"))?
    })?;
    Ok(Report {
        method,
        store,
        device: network.kind().to_string(),
        server: String::new(),
        size,
        records: timed.count,
        latency_ns: timed.latency,
        round_trips: None,
        wakes: None,
        cacheline_ns: None,
    })
}
