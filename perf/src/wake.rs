//! What it takes to wake an idle engine: a Read whose responder sleeps, beside the wake-up of a thread by an eventfd.
//!
//! A Read is answered by the responder's engine alone. The requester polls all the time, so that only one thread has to
//! wake, and only that one has lost its caches.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use rustix::event::EventfdFlags;
use uwarp::config::Idle;
use uwarp::{
    AcceptOptions, Access, CompletionQueue, Config, ConnectOptions, Context, DeviceConfig, ListenOptions, MemifRole,
    QueuePairOptions, SendRequest,
};
use uwarp_app::output;
use uwarp_app::units::{parse_count, parse_duration};

const PORT: u16 = 7471;
const PATIENCE: Duration = Duration::from_secs(20);

/// How the two ends are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// virtio-user, with vhost at the responder
    Virtio,
    /// memif, which announces nothing: the responder naps
    Memif,
}

/// What to measure, and how often.
#[derive(Args)]
pub struct Options {
    /// The device between the two ends, both in this process
    #[arg(long, value_enum, default_value = "virtio")]
    device: Device,
    /// Reads, and wake-ups beside them (1000, 10k)
    #[arg(long, default_value = "1k", value_parser = parse_count)]
    count: u64,
    /// Silence before each of them (50us, 10ms)
    #[arg(long, default_value = "10ms", value_parser = parse_duration)]
    idle: Duration,
}

fn device(options: &Options, socket: &Path, responder: bool) -> DeviceConfig {
    let socket = socket.to_owned();
    match (options.device, responder) {
        (Device::Virtio, true) => DeviceConfig::Vhost { socket, client: false, tso: false },
        (Device::Virtio, false) => {
            DeviceConfig::VirtioUser { socket, server: false, packed: false, queue_size: None, mac: None }
        }
        (Device::Memif, _) => DeviceConfig::Memif {
            role: if responder { MemifRole::Server } else { MemifRole::Client },
            socket,
            zero_copy: false,
            ring_size: None,
            buffer_size: None,
        },
    }
}

/// Measures, and prints the medians.
///
/// # Errors
/// A device or a connection fails.
pub fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.count > 0, "--count is 0: at least one Read is needed");
    let folder = tempfile::Builder::new().prefix("uw").tempdir().context("no temporary directory")?;
    let socket = folder.path().join("s");
    let responder = Config::new(device(options, &socket, true), "10.0.0.1/24")?.without_monitor().threaded(1);
    let mut requester = Config::new(device(options, &socket, false), "10.0.0.2/24")?.without_monitor().inline();
    requester.engine.idle = Idle::Spin;
    let responder = Context::open(responder)?;
    let requester = Context::open(requester)?;
    let mut listener = responder.listen(PORT, ListenOptions::default())?;

    let (tell, told) = mpsc::channel();
    let (done, until_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let responder = &responder;
        let serving = scope.spawn(move || -> anyhow::Result<()> {
            let domain = responder.allocate_domain();
            let completions = responder.create_completion_queue(16)?;
            let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
            let region = domain.register(vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_READ)?;
            let request = listener.next(PATIENCE)?.context("no connection came")?;
            request.accept(&mut queue_pair.control, AcceptOptions::default())?;
            tell.send((region.stag(), region.remote_offset()))?;
            // An error means that the other side is gone.
            let _ = until_done.recv();
            Ok(())
        });
        let measured = measure(options, &requester, &told);
        drop(done);
        let served = serving.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the responder panicked")));
        measured?;
        served
    })
}

fn measure(options: &Options, context: &Context, told: &mpsc::Receiver<(u32, u64)>) -> anyhow::Result<()> {
    let domain = context.allocate_domain();
    let mut completions = context.create_completion_queue(16)?;
    let mut queue_pair = domain.create_queue_pair(&QueuePairOptions::new(&completions))?;
    let region = domain.register(vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    context.connect(
        &mut queue_pair.control,
        ([10, 0, 0, 1], PORT).into(),
        ConnectOptions::default().timeout(PATIENCE),
    )?;
    let (stag, offset) = told.recv_timeout(PATIENCE).context("the responder has not accepted")?;
    let mut read = |completions: &mut CompletionQueue| -> anyhow::Result<Duration> {
        let sink = region.sge(..8)?;
        let start = Instant::now();
        queue_pair.send.post(&[SendRequest::read(1, &[sink], stag, offset).signalled()])?;
        loop {
            if let Some(completion) = completions.poll_one() {
                ensure!(completion.status.is_success(), "the Read ended with {:?}", completion.status);
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() < PATIENCE, "the Read does not end");
        }
    };
    let silence = |completions: &mut CompletionQueue| {
        let end = Instant::now() + options.idle;
        while Instant::now() < end {
            ensure!(completions.poll_one().is_none(), "a completion without a request");
        }
        Ok(())
    };
    let (mut asleep, mut awake, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let mut bell = Bell::new(scope)?;
        for _ in 0..options.count {
            silence(&mut completions)?;
            asleep.push(read(&mut completions)?);
            awake.push(read(&mut completions)?);
            silence(&mut completions)?;
            bare.push(bell.ring()?);
        }
        Ok(())
    })?;
    let [asleep, awake, bare] = [asleep, awake, bare].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    });
    let mut table = output::table(["median of", "µs"]);
    table.add_row([format!("a Read after {:?} of silence", options.idle), format!("{asleep:.1}")]);
    table.add_row(["the next Read".to_owned(), format!("{awake:.1}")]);
    table.add_row(["the wake-up of a thread".to_owned(), format!("{bare:.1}")]);
    table.add_row(["the first Read beyond both".to_owned(), format!("{:.1}", asleep - awake - bare)]);
    output::print(table);
    Ok(())
}

/// A thread that sleeps in a read of an eventfd, and tells when it woke.
struct Bell {
    event: Arc<OwnedFd>,
    woken: Option<mpsc::Receiver<Instant>>,
}

impl Bell {
    fn new<'scope>(scope: &'scope std::thread::Scope<'scope, '_>) -> anyhow::Result<Self> {
        let event = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let heard = Arc::clone(&event);
        let (tell, woken) = mpsc::channel();
        scope
            .spawn(move || while rustix::io::read(&heard, &mut [0; 8]).is_ok() && tell.send(Instant::now()).is_ok() {});
        Ok(Self { event, woken: Some(woken) })
    }

    fn fire(&self) -> rustix::io::Result<usize> {
        rustix::io::write(&self.event, &1u64.to_ne_bytes())
    }

    fn ring(&mut self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.fire()?;
        let woken = self.woken.as_ref().context("the bell is broken")?;
        let woken = woken.recv_timeout(PATIENCE).context("the thread does not wake")?;
        Ok(woken.saturating_duration_since(start))
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // With nobody left to tell, the thread ends when it wakes.
        self.woken = None;
        let _ = self.fire();
    }
}
