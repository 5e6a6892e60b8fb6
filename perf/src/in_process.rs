//! Both ends in one thread, connected in memory: the cost of the stack itself, without a device or a second core.
//!
//! The times of such a run depend on the machine. Instruction counts with a stepped clock do not: `instructions` counts
//! those of the same work.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use uwarp::config::EngineMode;
use uwarp::{
    AcceptOptions, Access, Completion, CompletionQueue, Config, ConnectOptions, Context, Features, ListenOptions,
    Listener, MemoryRegion, PageAdvice, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveRequest, RegionBuffer,
    SendRequest,
};
use uwarp_app::units::{name_of, parse_count};

use crate::programs::InProcess;
use crate::rpc::Pair;

const PORT: u16 = 7471;
/// Longest wait for a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The operation that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// A Write, seen in memory, and one back: one operation is the round trip
    WritePingPong,
    /// The same, and the completion of the first Write reaped
    WriteCompletion,
    /// The same by a program of the verbs: `ibv_post_send` and `ibv_poll_cq`
    VerbsWrite,
    /// A Send and one back, completions reaped: one operation is the round trip
    SendPingPong,
    /// A Read, from post to completion
    Read,
    /// A FetchAdd, from post to completion; the size does not matter
    FetchAdd,
    /// Writes in bursts of 32, one completion per burst: one operation is one Write with its share of acknowledgments
    WriteStream,
    /// A turn of one connected engine that finds nothing to do
    IdleTurn,
    /// A frame from one client of a switch to another
    Forward,
    /// A null call over RPC-over-RDMA; the size does not matter
    RpcNull,
    /// A READ of NFS over RPC-over-RDMA, whose data arrives by RDMA Write unless it fits into the reply
    RpcRead,
}

/// What to do, and how often.
#[derive(Clone, Args)]
pub struct Options {
    /// What one operation is
    pub work: Work,
    /// Payload octets of a message
    #[arg(long, default_value_t = 64)]
    pub size: u32,
    /// Operations (10000, 10k, 2M)
    #[arg(long, default_value = "1M", value_parser = parse_count)]
    pub iterations: u64,
    /// Queue pairs, used in turn
    #[arg(long, default_value_t = 1)]
    pub qps: usize,
    /// MTU of the link
    #[arg(long, default_value_t = 1500)]
    pub mtu: u16,
    /// With write-ping-pong: a thread of their own turns both engines, and this thread only posts and looks at memory,
    /// as ib_write_lat does (wants two CPUs)
    #[arg(long)]
    pub engine_thread: bool,
    /// Let the engines' clock move by 100 ns a turn, whatever a turn takes: counts of instructions, which include
    /// timers, do not depend on the machine then
    #[arg(long)]
    pub stepped_clock: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How long a turn takes by a stepped clock.
const STEP: Duration = Duration::from_nanos(100);

/// Switched on at both ends; what is not atomic takes the same way without.
const ATOMICS: Features = Features { atomics: true, immediate: false, commit: false, infiniband: false };
/// Completions that a queue pair may have.
const COMPLETIONS: usize = 256;
/// Sends and receives that a queue pair has room for.
const DEPTH: (usize, usize) = (128, 16);
/// Writes of a burst.
const BURST: u64 = 32;

pub struct End {
    memory: MemoryRegion,
    completions: CompletionQueue,
    queue_pairs: Vec<QueuePair>,
    domain: ProtectionDomain,
    pub context: Context,
}

impl End {
    fn new(context: Context, options: &Options) -> anyhow::Result<Self> {
        let completions = context.create_completion_queue(options.qps * COMPLETIONS)?;
        let domain = context.allocate_domain();
        // Messages are sent from the first half and received in the second: a late message must not change the next
        // one.
        let len = 2 * options.size as usize;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = domain.register(RegionBuffer::zeroed(len, PageAdvice::Normal)?, rights)?;
        Ok(Self { memory, completions, queue_pairs: Vec::with_capacity(options.qps), domain, context })
    }

    /// One more queue pair, with rings for so many sends and receives.
    fn add_queue_pair(&mut self, (sends, receives): (usize, usize)) -> anyhow::Result<&mut QueuePair> {
        let options = QueuePairOptions::new(&self.completions).depth(sends, receives);
        self.queue_pairs.push(self.domain.create_queue_pair(&options)?);
        self.queue_pairs.last_mut().context("it was just added")
    }

    /// Never inlined: [`crate::instructions`] counts what happens inside of it by its name.
    #[inline(never)]
    fn post_one(&mut self, which: usize, request: SendRequest<'_>) -> anyhow::Result<()> {
        self.queue_pairs[which].send.post(&[request])?;
        Ok(())
    }

    /// Takes a completion that is there. Never inlined, as [`End::post_one`].
    #[inline(never)]
    fn reap_one(&mut self) -> anyhow::Result<Completion> {
        self.completions.poll_one().context("no completion")
    }

    fn post_receive(&mut self, which: usize, size: u32) -> anyhow::Result<()> {
        let entry = self.memory.sge(size as usize..)?;
        self.queue_pairs[which].receive.post(&[ReceiveRequest::new(0, &[entry])])?;
        Ok(())
    }

    /// Reaps available completions; counts the wanted ones.
    fn reap(&mut self, out: &mut [Completion], is_wanted: impl Fn(&Completion) -> bool) -> anyhow::Result<usize> {
        let count = self.completions.poll(out);
        for completion in &out[..count] {
            ensure!(completion.status.is_success(), "work ended with {:?}", completion.status);
        }
        Ok(out[..count].iter().filter(|completion| is_wanted(completion)).count())
    }
}

fn config(address: &str, options: &Options) -> anyhow::Result<Config> {
    let mut config = Config::without_device(address)?;
    config.engine.mode = EngineMode::Inline;
    config.limits.queue_pairs = config.limits.queue_pairs.max(options.qps);
    config.limits.completion_depth = config.limits.completion_depth.max(options.qps * COMPLETIONS);
    config.mtu = options.mtu;
    Ok(config)
}

fn contexts(options: &Options) -> anyhow::Result<(Context, Context)> {
    Ok(Context::pair_in_process(config("10.0.0.1/16", options)?, config("10.0.0.2/16", options)?)?)
}

/// Two ends on this thread, without queue pairs, and the listener of the second one.
pub fn ends(options: &Options) -> anyhow::Result<(End, End, Listener)> {
    let (here, there) = contexts(options)?;
    let (here, there) = (End::new(here, options)?, End::new(there, options)?);
    let listener = there.context.listen(PORT, ListenOptions::default())?;
    Ok((here, there, listener))
}

/// Connects so many new queue pairs, with rings of these depths.
pub fn connect(
    (here, there, listener): (&mut End, &mut End, &mut Listener),
    count: usize,
    depth: (usize, usize),
) -> anyhow::Result<()> {
    let address = there.context.socket_address(PORT);
    for _ in 0..count {
        let (from, to) = (here.context.clone(), there.context.clone());
        let (first, second) = (here.add_queue_pair(depth)?, there.add_queue_pair(depth)?);
        let mut connecting =
            from.start_connect(&mut first.control, address, ConnectOptions::default().features(ATOMICS))?;
        let request = listener.next(PATIENCE)?.context("no connection request arrived")?;
        let mut accepting = request.start_accept(&mut second.control, AcceptOptions::default().features(ATOMICS))?;
        let (mut open, mut accepted) = (false, false);
        while !(open && accepted) {
            from.poll();
            to.poll();
            open = open || connecting.poll(&mut first.control)?.is_some();
            accepted = accepted || accepting.poll(&mut second.control)?.is_some();
        }
    }
    Ok(())
}

/// Two connected ends on this thread.
fn connected(options: &Options) -> anyhow::Result<(End, End)> {
    let (mut here, mut there, mut listener) = ends(options)?;
    connect((&mut here, &mut there, &mut listener), options.qps, DEPTH)?;
    Ok((here, there))
}

/// Two connected ends whose engines another thread turns, as long as this process lives: the one that opened them.
fn connected_elsewhere(options: &Options) -> anyhow::Result<(End, End)> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let options = options.clone();
    std::thread::spawn(move || match connected(&options) {
        Ok((here, there)) => {
            let contexts = [here.context.clone(), there.context.clone()];
            let _ = sender.send(Ok((here, there)));
            loop {
                contexts.iter().for_each(|context| _ = context.poll());
            }
        }
        Err(error) => {
            let _ = sender.send(Err(error));
        }
    });
    receiver.recv().context("the thread of the engines has ended")?
}

/// Writes message `number` and waits until its last octets are visible at the other end. `finish` completes the
/// request.
fn write_and_wait(
    from: &mut End,
    to: &mut End,
    which: usize,
    number: u64,
    size: u32,
    finish: impl Fn(SendRequest<'_>) -> SendRequest<'_>,
) -> anyhow::Result<()> {
    let size = size as usize;
    from.memory.store_release_u64(size - 8, number)?;
    let entry = from.memory.sge(..size)?;
    let target = to.memory.remote_offset() + size as u64;
    from.post_one(which, finish(SendRequest::write(number, &[entry], to.memory.stag(), target)))?;
    from.context.poll();
    while to.memory.load_acquire_u64(2 * size - 8)? != number {
        to.context.poll();
    }
    Ok(())
}

/// Runs `options.work`; returns how long it took.
fn measure(options: &Options) -> anyhow::Result<Duration> {
    ensure!(
        options.size >= 8 && options.size.is_multiple_of(8),
        "--size must be a multiple of 8: a message ends with its number"
    );
    ensure!(options.qps >= 1, "--qps must be at least 1");
    ensure!(
        !options.engine_thread || options.work == Work::WritePingPong,
        "--engine-thread is for write-ping-pong: the other kinds of work turn the engines themselves"
    );
    ensure!(!options.stepped_clock || uwarp::measure::step_clock(STEP), "the clock is in use already");
    if options.work == Work::Forward {
        let started = Instant::now();
        ensure!(uwarp_switch::measure::forward(options.iterations, options.size).is_some(), "the switch loses frames");
        return Ok(started.elapsed());
    }
    if options.work == Work::VerbsWrite {
        let started = Instant::now();
        uwarp_verbs_abi::measure::write_and_poll(options.iterations, options.size)
            .map_err(anyhow::Error::from_boxed)?;
        return Ok(started.elapsed());
    }
    if matches!(options.work, Work::RpcNull | Work::RpcRead) {
        return measure_calls(options);
    }
    let (mut here, mut there) = if options.engine_thread { connected_elsewhere(options)? } else { connected(options)? };
    let mut out = [Completion::default(); 64];
    let size = options.size;
    let started = Instant::now();
    match options.work {
        Work::WritePingPong => {
            for number in 1..=options.iterations {
                let which = number as usize % options.qps;
                write_and_wait(&mut here, &mut there, which, number, size, |write| write)?;
                write_and_wait(&mut there, &mut here, which, number, size, |write| write)?;
            }
        }
        Work::WriteCompletion => {
            for number in 1..=options.iterations {
                let which = number as usize % options.qps;
                write_and_wait(&mut here, &mut there, which, number, size, |write| {
                    write.signalled().complete_on_ack()
                })?;
                write_and_wait(&mut there, &mut here, which, number, size, |write| write)?;
                let completion = here.reap_one()?;
                ensure!(completion.id == number && completion.status.is_success(), "work ended with {completion:?}");
            }
        }
        Work::SendPingPong => {
            for which in 0..options.qps {
                here.post_receive(which, size)?;
                there.post_receive(which, size)?;
            }
            for number in 1..=options.iterations {
                let which = number as usize % options.qps;
                for forth in [true, false] {
                    let (sender, receiver) = if forth { (&mut here, &mut there) } else { (&mut there, &mut here) };
                    let entry = sender.memory.sge(..size as usize)?;
                    sender.post_one(which, SendRequest::send(number, &[entry]))?;
                    sender.context.poll();
                    while receiver.reap(&mut out, |_| true)? == 0 {}
                    receiver.post_receive(which, size)?;
                }
            }
        }
        Work::Read => {
            let (stag, offset) = (there.memory.stag(), there.memory.remote_offset());
            for number in 1..=options.iterations {
                let which = number as usize % options.qps;
                let entry = here.memory.sge(..size as usize)?;
                here.post_one(which, SendRequest::read(number, &[entry], stag, offset).signalled())?;
                while here.reap(&mut out, |_| true)? == 0 {
                    there.context.poll();
                }
            }
        }
        Work::FetchAdd => {
            let (stag, offset) = (there.memory.stag(), there.memory.remote_offset());
            for number in 1..=options.iterations {
                let which = number as usize % options.qps;
                here.post_one(which, SendRequest::fetch_add(number, stag, offset, 1).signalled())?;
                while here.reap(&mut out, |_| true)? == 0 {
                    there.context.poll();
                }
            }
        }
        Work::WriteStream => {
            let (stag, offset) = (there.memory.stag(), there.memory.remote_offset());
            let mut number = 0;
            while number < options.iterations {
                let which = (number / BURST) as usize % options.qps;
                let entry = [here.memory.sge(..size as usize)?];
                for place in 0..BURST {
                    let write = SendRequest::write(number, &entry, stag, offset);
                    here.post_one(which, if place + 1 == BURST { write.signalled() } else { write })?;
                    number += 1;
                }
                while here.reap(&mut out, |_| true)? == 0 {
                    there.context.poll();
                }
                there.context.poll();
            }
        }
        Work::IdleTurn => {
            // What the start left behind is done first.
            while here.context.poll() || there.context.poll() {}
            for _ in 0..options.iterations {
                here.context.poll();
            }
        }
        Work::VerbsWrite | Work::RpcNull | Work::RpcRead | Work::Forward => {}
    }
    let took = started.elapsed();
    Ok(took)
}

fn measure_calls(options: &Options) -> anyhow::Result<Duration> {
    let (here, there) = contexts(options)?;
    let mut pair = Pair::connect(&here, &there, options.size)?;
    let started = Instant::now();
    for _ in 0..options.iterations {
        match options.work {
            Work::RpcRead => pair.read()?,
            _ => pair.null()?,
        }
    }
    Ok(started.elapsed())
}

/// Runs one kind of work and prints its time.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let took = measure(options)?;
    let each = took.as_nanos() as f64 / options.iterations as f64;
    if options.json {
        println!("{}", serde_json::to_string(&InProcess { ns_each: each })?);
        return Ok(());
    }
    println!(
        "{} of {} octets, {} queue pairs: {each:.0} ns each, {:.2} Gbit/s of payload one way, kernels {}",
        name_of(options.work),
        options.size,
        options.qps,
        f64::from(options.size) * 8.0 / each,
        uwarp_memory::kernels::selected()
    );
    Ok(())
}
