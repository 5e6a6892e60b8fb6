//! A target: lends its file's memory to the log's writer. It decides who that is, and otherwise sleeps.

use crate::file::{LogFile, walk_file};
use crate::follow::Printer;
use crate::newcomers::Newcomers;
use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use uwarp::config::EngineMode;
use uwarp::{Config, Context, ListenOptions, Listener, MemoryRegion, ProtectionDomain};
use uwarp_app::channel::{Channel, Event};
use uwarp_app::{Allow, ConfineFlags, Confinement, output, signals, units, usage};
use uwarp_log::auth::Secret;
use uwarp_log::layout::{Geometry, Identity, MIN_SLOTS};
use uwarp_log::message::{ToClient, ToTarget, Window};
use uwarp_log::target::{self, Verdict};

/// How long it may take to end a connection.
const END: Duration = Duration::from_secs(5);
/// How long printing the remaining records may take at the end.
const PRINT: Duration = Duration::from_secs(1);
/// How often signals are checked while nothing else happens.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// How a target works.
pub struct Service<'a> {
    /// The file.
    pub file: &'a Path,
    /// Octets of a new file, and of its segments.
    pub size: u64,
    /// See there.
    pub segment: u32,
    /// Print records as they come.
    pub follow: bool,
    /// Take commands from standard input.
    pub control: bool,
    /// Port to listen on.
    pub port: u16,
    /// Who may connect.
    pub allow: &'a Allow,
    /// What a writer has to know.
    pub secret: &'a Secret,
    /// How this process is confined to the files that it needs.
    pub confine: &'a ConfineFlags,
}

struct Target<'a> {
    service: &'a Service<'a>,
    log: LogFile,
    domain: ProtectionDomain,
    region: Option<MemoryRegion>,
    /// A writer knows the region. Until then it equals the file.
    lent: bool,
    /// Connections with proofs; the first is the writer's, if there is one.
    channels: Vec<Channel>,
    has_writer: bool,
    /// The most slots to keep, until a writer has done that. A writer that is lost forgets the request.
    wish: Option<u32>,
    printer: Printer,
    wakes: u64,
}

/// Serves until interrupted.
///
/// # Errors
/// The file or the device cannot be opened, or fail.
pub fn run(config: Config, service: &Service<'_>) -> anyhow::Result<()> {
    if config.engine.mode == EngineMode::Inline {
        return Err(usage("a target sleeps while its engine works: leave out --engine inline"));
    }
    let log = LogFile::open(service.file, service.size, service.segment)?;
    let (_, walk) = walk_file(&log.file, None, |_| Ok(()))?;
    if !walk.has_head {
        bail!(
            "{} has lost the record at its head, which was durable: use an empty file, and the other targets fill it",
            service.file.display()
        );
    }
    // The signal handler has a thread, and so does DPDK.
    Confinement::new(&config, service.confine).writes(service.file).apply()?;
    signals::install()?;
    let context = signals::at_once(|| Context::open(config))?;
    let mut listener = context.listen(service.port, ListenOptions::default())?;
    let domain = context.allocate_domain();
    let region = Some(log.register(&domain, service.follow)?);
    let printer = Printer::start(log.file.try_clone().context("the file cannot be opened twice")?);
    printer.say(format!(
        "serving on {}; {} holds records up to number {} (epoch {})",
        context.socket_address(service.port),
        service.file.display(),
        walk.tail.sequence,
        log.identity.epoch
    ));
    let mut target = Target {
        service,
        log,
        domain,
        region,
        lent: false,
        channels: Vec::new(),
        has_writer: false,
        wish: None,
        printer,
        wakes: 0,
    };
    let result = serve(&context, &mut listener, &mut target);
    target.channels.clear();
    target.printer.finish(PRINT);
    result
}

/// Processes what has arrived; returns whether anything has.
fn step(
    context: &Context,
    listener: &mut Listener,
    newcomers: &mut Newcomers<'_>,
    target: &mut Target<'_>,
) -> anyhow::Result<bool> {
    // One request at a time: waiting connections may deliver their proof before it takes their place.
    let request = listener.try_next()?;
    let mut busy = request.is_some();
    if let Some(request) = request {
        newcomers.request(context, &target.domain, request)?;
    }
    busy |= newcomers.turn(&mut target.channels)?;
    busy |= target.turn()?;
    Ok(busy)
}

fn serve(context: &Context, listener: &mut Listener, target: &mut Target<'_>) -> anyhow::Result<()> {
    let mut newcomers = Newcomers::new(target.service.secret, target.service.allow);
    let mut input = target.service.control.then(std::io::stdin);
    let mut line = Vec::new();
    while !signals::interrupted() {
        if step(context, listener, &mut newcomers, target)? {
            continue;
        }
        listener.arm();
        newcomers.arm();
        target.channels.iter_mut().for_each(Channel::arm);
        if step(context, listener, &mut newcomers, target)? {
            continue;
        }
        let mut waited: Vec<PollFd<'_>> = vec![PollFd::new(&*listener, PollFlags::IN)];
        let descriptors = newcomers.descriptors().chain(target.channels.iter().map(AsFd::as_fd));
        waited.extend(descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)));
        if let Some(input) = &input {
            waited.push(PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN));
        }
        match poll(&mut waited, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting failed"),
        }
        let asked = input.is_some() && waited.last().is_some_and(|last| !last.revents().is_empty());
        target.wakes += u64::from(waited[1..].iter().any(|one| !one.revents().is_empty()) && !asked);
        if asked && let Some(open) = &input {
            // Not through a buffer, which could hold lines that polling does not see.
            let mut octets = [0; 256];
            match rustix::io::read(open, &mut octets) {
                Ok(count @ 1..) => line.extend_from_slice(&octets[..count]),
                _ => input = None,
            }
            while let Some(end) = line.iter().position(|octet| *octet == b'\n') {
                let command: Vec<u8> = line.drain(..=end).collect();
                target.command(String::from_utf8_lossy(&command).trim_end())?;
            }
        }
    }
    Ok(())
}

impl Target<'_> {
    /// Processes what has arrived; returns whether anything has.
    fn turn(&mut self) -> anyhow::Result<bool> {
        let mut busy = false;
        let mut number = 0;
        while number < self.channels.len() {
            let connections = self.channels.len();
            let event = match self.channels[number].poll() {
                Ok(None) => {
                    number += 1;
                    continue;
                }
                Ok(Some(event)) => event,
                Err(error) => {
                    output::complain(format_args!("uwarp-log: a connection is closed: {error:#}"));
                    Event::Closed
                }
            };
            busy = true;
            match event {
                Event::Message(octets) => match serde_json::from_slice(&octets) {
                    Ok(message) => self.hear(&mut number, &message)?,
                    Err(_) => self.end(number)?,
                },
                Event::Immediate(sequence @ 1..) if self.has_writer && number == 0 => {
                    if self.service.follow {
                        self.printer.hear(self.log.identity.epoch, sequence);
                    }
                }
                // Not a record's number, or from a peer that does not write records.
                Event::Immediate(_) | Event::Done(_) => {}
                Event::Closed => {
                    self.channels.remove(number);
                    self.has_writer &= number != 0;
                }
            }
            // One event per connection: one that always has another must not delay the others.
            number += usize::from(self.channels.len() == connections);
        }
        Ok(busy)
    }

    /// Invalidates the region for whoever knows it, and creates another from the file.
    fn register_anew(&mut self) -> anyhow::Result<()> {
        if self.lent {
            self.region = None;
            self.region = Some(self.log.register(&self.domain, self.service.follow)?);
            self.lent = false;
        }
        Ok(())
    }

    fn window(&self) -> Window {
        self.region.as_ref().map_or(Window { stag: 0, offset: 0 }, |region| Window {
            stag: region.stag(),
            offset: region.remote_offset(),
        })
    }

    /// Answers a message of connection `number`, which may have another number afterwards.
    fn hear(&mut self, number: &mut usize, message: &ToTarget) -> anyhow::Result<()> {
        let answer = match message {
            ToTarget::Hello { renew } => {
                if *renew && !self.has_writer {
                    // Commits failed: the file counts, and whether it can be synced now.
                    self.register_anew()?;
                }
                let Identity { log, epoch, geometry, .. } = self.log.identity;
                ToClient::Welcome { log, epoch, geometry }
            }
            ToTarget::Claim { epoch, .. } => match target::judge(&self.log.identity, message) {
                Verdict::Refuse(reason) => ToClient::Refused { reason, epoch: self.log.identity.epoch },
                Verdict::Admit(identity) => {
                    if !self.has_writer || *number != 0 {
                        if self.has_writer {
                            self.end(0)?;
                            *number -= 1;
                        }
                        // Nothing of a former writer is placed after this, whatever connections it has. A writer that
                        // claims again on its connection keeps its STag, with which it may have work under way.
                        self.register_anew()?;
                    }
                    self.lent = true;
                    self.log.keep(identity)?;
                    self.channels.swap(0, *number);
                    *number = 0;
                    self.has_writer = true;
                    let claimed =
                        ToClient::Claimed { epoch: *epoch, geometry: identity.geometry, window: self.window() };
                    self.tell(0, &claimed)?;
                    let Some(slots) = self.wish else { return Ok(()) };
                    ToClient::Shrink { slots }
                }
            },
            ToTarget::Joined { .. } | ToTarget::Shrunk { .. } if !self.has_writer || *number != 0 => {
                return self.end(*number);
            }
            ToTarget::Joined { log, replicas } => {
                return self.log.keep(Identity { log: *log, replicas: *replicas, ..self.log.identity });
            }
            ToTarget::Shrunk { slots } => {
                let geometry = Geometry { slots: *slots, ..self.log.identity.geometry };
                if *slots > self.log.identity.geometry.slots || geometry.check().is_err() {
                    return self.end(*number);
                }
                self.wish = None;
                // Everything that counts is committed, and so in the file.
                self.region = None;
                self.log.keep(Identity { geometry, ..self.log.identity })?;
                self.log.file.set_len(geometry.file()).context("the file cannot be made shorter")?;
                self.region = Some(self.log.register(&self.domain, self.service.follow)?);
                self.printer.say(format!("gave memory back: {} octets are left", geometry.file()));
                ToClient::Region { geometry, window: self.window() }
            }
        };
        self.tell(*number, &answer)
    }

    fn tell(&mut self, number: usize, message: &ToClient) -> anyhow::Result<()> {
        let octets = serde_json::to_vec(message).context("a message cannot be written as JSON")?;
        // Do not wait for a peer that accepts no answers: others may want to claim. An ended connection is noticed when
        // its events are processed.
        let _ = self.channels[number].send_within(&octets, Duration::ZERO);
        Ok(())
    }

    /// Ends a connection, so that nothing of it is placed any more.
    fn end(&mut self, number: usize) -> anyhow::Result<()> {
        let mut channel = self.channels.remove(number);
        self.has_writer &= number != 0;
        channel.queue_pair().control.abort();
        if !channel.queue_pair().control.wait_disconnected(END)? {
            bail!("a connection does not end within {END:?}");
        }
        Ok(())
    }

    /// A line of standard input.
    fn command(&mut self, line: &str) -> anyhow::Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["shrink", size] => match units::parse_size(size) {
                Ok(size) => {
                    let Geometry { segment, slots, .. } = self.log.identity.geometry;
                    let wanted = Geometry::new(size, segment).map_or(MIN_SLOTS, |geometry| geometry.slots).min(slots);
                    self.wish = Some(wanted);
                    if self.has_writer {
                        self.tell(0, &ToClient::Shrink { slots: wanted })?;
                    } else {
                        output::complain(format_args!(
                            "uwarp-log: nobody writes: the next writer is asked, which has to move what lies there"
                        ));
                    }
                }
                Err(error) => output::complain(format_args!("uwarp-log: {error}")),
            },
            ["status"] => {
                let Identity { geometry, epoch, .. } = self.log.identity;
                self.printer.say(format!(
                    "epoch {epoch}, {} octets, woken {} times by connections, {}",
                    geometry.file(),
                    self.wakes,
                    if self.has_writer { "a writer is here" } else { "no writer" }
                ));
            }
            _ => output::complain(format_args!(
                "uwarp-log: '{line}' is no command: there are 'shrink SIZE' and 'status'"
            )),
        }
        Ok(())
    }
}
