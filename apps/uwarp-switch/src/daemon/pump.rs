//! The thread that moves frames and owns the tables.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use arrayvec::ArrayVec;
use crossbeam::channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_dpdk::{Eal, Queue};
use uwarp_engine::ports::CablePort;
use uwarp_port_dpdk::DpdkPort;
use uwarp_ring::Notifier;

use super::port::{SwitchPort, Uplink};
use crate::core::{ClientId, Counters, DropReason, ForeignAddress, NetworkId, PLACES, ReserveError, Switch};
use crate::forward::Forwarder;

/// How long the pump looks for frames without a pause after the last one.
const SPIN: Duration = Duration::from_micros(100);
/// The longest pause beside a device that does not announce its frames.
const NAP: Duration = Duration::from_millis(1);
/// The longest pause of all: a safety net.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// Descriptors of all devices, two each, and that of the commands.
const DESCRIPTORS: usize = 2 * PLACES + 1;

/// What the pump is asked to do between two turns.
enum Command {
    Attach { client: ClientId, network: NetworkId, mac: [u8; 6], port: Box<CablePort>, reply: Sender<Option<Entry>> },
    Detach { client: ClientId, reply: Sender<()> },
    Reserve { client: ClientId, port: u16, address: Option<IpAddr>, reply: Sender<Result<(), ReserveError>> },
    Release { client: ClientId, port: u16, address: Option<IpAddr>, reply: Sender<()> },
    Deliver { client: ClientId, reply: Sender<()> },
    Addresses { network: NetworkId, addresses: Vec<IpAddr>, reply: Sender<Result<(), ForeignAddress>> },
    Link { is_up: bool, reply: Sender<()> },
    View { client: ClientId, reply: Sender<View> },
}

/// What a new client gets.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its ports.
    pub(super) block: RangeInclusive<u16>,
    /// Its number in the published table.
    pub(super) number: u16,
}

/// A client, or the uplink, as the tables have it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) counters: Counters,
    pub(super) listening: Vec<u16>,
}

impl View {
    /// What was dropped, by reason.
    pub(super) fn drops(&self) -> BTreeMap<String, u64> {
        let drops = DropReason::ALL.into_iter().map(|reason| (reason.name().to_owned(), self.counters.dropped(reason)));
        drops.filter(|(_, count)| *count > 0).collect()
    }
}

/// The pump, seen from the control thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Pump {
    /// `None` while it is being dropped.
    commands: Option<Sender<Command>>,
    /// Wakes the thread for a command.
    wake: Arc<Notifier>,
    thread: Option<JoinHandle<()>>,
    /// Pairs of clients that want a cable.
    wanting: Receiver<(ClientId, ClientId)>,
    /// Fired for each of them.
    wants: Arc<Notifier>,
}

impl Pump {
    /// Starts it, with DPDK and the queue of an uplink if there is one, and whether its link is up.
    pub(super) fn start(switch: Switch, uplink: Option<(Eal, Queue, bool)>) -> anyhow::Result<Pump> {
        let (commands, inbox) = unbounded();
        let (sender, wanting) = unbounded();
        let (started, outcome) = bounded(1);
        let wake = Arc::new(Notifier::new().context("no event file descriptor for the pump")?);
        let woken = Arc::clone(&wake);
        let wants = Arc::new(Notifier::new().context("no event file descriptor for the pump")?);
        let pairs = Pairs { sender, wants: Arc::clone(&wants) };
        let body = move || {
            // Buffers come from a cache of this thread's own, and naps must not be stretched by the timer's slack.
            let registration = uplink.as_ref().map(|(eal, ..)| eal.register_thread()).transpose();
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            let registration = match registration {
                Ok(registration) => registration,
                Err(error) => return drop(started.send(Err(error))),
            };
            let _ = started.send(Ok(()));
            run(Forwarder::new(switch), uplink, &inbox, &woken, &pairs);
            drop(registration);
        };
        let thread = std::thread::Builder::new().name("uwarp-pump".to_owned()).spawn(body)?;
        outcome.recv().context("the pump's thread ended at once")??;
        Ok(Pump { commands: Some(commands), wake, thread: Some(thread), wanting, wants })
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> anyhow::Result<T> {
        let (reply, answer) = bounded(1);
        let sent = self.commands.as_ref().map(|commands| commands.send(command(reply)));
        self.wake.fire_if_armed();
        sent.and_then(Result::ok).and_then(|()| answer.recv().ok()).ok_or_else(|| anyhow!("the pump has ended"))
    }

    /// Connects a new client of a network.
    pub(super) fn attach(
        &self,
        client: ClientId,
        network: NetworkId,
        mac: [u8; 6],
        port: CablePort,
    ) -> anyhow::Result<Entry> {
        let entry = self.ask(|reply| Command::Attach { client, network, mac, port: Box::new(port), reply })?;
        entry.context("the place is taken")
    }

    /// Readable while there may be pairs to take.
    pub(super) fn wants(&self) -> &Notifier {
        &self.wants
    }

    /// A pair of clients that wants a cable.
    pub(super) fn take_wanting(&self) -> Option<(ClientId, ClientId)> {
        self.wants.drain();
        self.wanting.try_recv().ok()
    }

    /// Frees all that a client holds. Its port is not used any more.
    pub(super) fn detach(&self, client: ClientId) -> anyhow::Result<()> {
        self.ask(|reply| Command::Detach { client, reply })
    }

    /// Reserves a port at one address or at all.
    pub(super) fn reserve(
        &self,
        client: ClientId,
        port: u16,
        address: Option<IpAddr>,
    ) -> anyhow::Result<Result<(), ReserveError>> {
        self.ask(|reply| Command::Reserve { client, port, address, reply })
    }

    /// Delivers what waits from a client.
    pub(super) fn deliver(&self, client: ClientId) -> anyhow::Result<()> {
        self.ask(|reply| Command::Deliver { client, reply })
    }

    /// Gives a port back.
    pub(super) fn release(&self, client: ClientId, port: u16, address: Option<IpAddr>) -> anyhow::Result<()> {
        self.ask(|reply| Command::Release { client, port, address, reply })
    }

    /// Replaces the addresses of a network.
    pub(super) fn set_addresses(
        &self,
        network: NetworkId,
        addresses: Vec<IpAddr>,
    ) -> anyhow::Result<Result<(), ForeignAddress>> {
        self.ask(|reply| Command::Addresses { network, addresses, reply })
    }

    /// The uplink's link has gone up or down.
    pub(super) fn set_uplink(&self, is_up: bool) -> anyhow::Result<()> {
        self.ask(|reply| Command::Link { is_up, reply })
    }

    /// A client's ports and counters, or the uplink's.
    pub(super) fn view(&self, client: ClientId) -> anyhow::Result<View> {
        self.ask(|reply| Command::View { client, reply })
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.commands.take();
        self.wake.fire();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How the control thread learns of pairs that want a cable.
struct Pairs {
    sender: Sender<(ClientId, ClientId)>,
    wants: Arc<Notifier>,
}

impl Pairs {
    #[cold]
    fn tell(&self, pair: (ClientId, ClientId)) {
        if self.sender.send(pair).is_ok() {
            self.wants.fire();
        }
    }
}

fn run(
    mut forwarder: Forwarder<SwitchPort>,
    uplink: Option<(Eal, Queue, bool)>,
    inbox: &Receiver<Command>,
    wake: &Notifier,
    pairs: &Pairs,
) {
    // The uplink has to answer also without clients.
    let mut users = usize::from(uplink.is_some());
    if let Some((_, queue, is_up)) = uplink {
        forwarder.attach_uplink(SwitchPort::Uplink(Box::new(Uplink::new(DpdkPort::new(queue)))), is_up);
    }
    let mut idle_since = None;
    loop {
        let command = if users == 0 {
            inbox.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            if forwarder.turn() > 0 {
                idle_since = None;
                while let Some(pair) = forwarder.switch_mut().take_wanting() {
                    pairs.tell(pair);
                }
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
                // Clients on the same processor get on.
                std::thread::yield_now();
            } else if !sleep(&mut forwarder, inbox, wake) {
                idle_since = None;
            }
            inbox.try_recv()
        };
        match command {
            Ok(command) => users = carry_out(&mut forwarder, command, users),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

/// Sleeps until a client has sent something, or a command has come. False if there was something to do already.
fn sleep(forwarder: &mut Forwarder<SwitchPort>, inbox: &Receiver<Command>, wake: &Notifier) -> bool {
    // First the announcements, then one more look: whatever comes is seen now, or ends the sleep.
    wake.arm();
    let announced = forwarder.enable_wakeups();
    let idle = forwarder.turn() == 0 && inbox.is_empty();
    if idle {
        let mut wanted = ArrayVec::<PollFd<'_>, DESCRIPTORS>::new();
        wanted.push(PollFd::new(wake, PollFlags::IN));
        for descriptor in forwarder.wakeup_descriptors() {
            let _ = wanted.try_push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        }
        let limit = Timespec::try_from(if announced { LONGEST_SLEEP } else { NAP }).ok();
        // An interruption counts as the end of the time.
        let _ = poll(&mut wanted, limit.as_ref());
        // A packet socket reports once that its interface went down, until it is asked, and would end every sleep.
        for failed in wanted.iter().filter(|wanted| wanted.revents().contains(PollFlags::ERR)) {
            let _ = rustix::net::sockopt::socket_error(failed);
        }
    }
    forwarder.disable_wakeups();
    wake.disarm();
    wake.drain();
    idle
}

fn carry_out(forwarder: &mut Forwarder<SwitchPort>, command: Command, users: usize) -> usize {
    match command {
        Command::Attach { client, network, mac, port, reply } => {
            let block = forwarder.switch_mut().enter(client, network, mac);
            let entry = block.zip(forwarder.switch().networks().number(client));
            let is_in = entry.is_some();
            if is_in {
                forwarder.attach(client, SwitchPort::Client(*port));
            }
            let _ = reply.send(entry.map(|(block, number)| Entry { block, number }));
            return users + usize::from(is_in);
        }
        Command::Detach { client, reply } => {
            let was_in = forwarder.detach(client).is_some();
            let _ = reply.send(());
            return users - usize::from(was_in);
        }
        Command::Reserve { client, port, address, reply } => {
            let _ = reply.send(forwarder.switch_mut().reserve(client, port, address));
        }
        Command::Deliver { client, reply } => {
            forwarder.deliver(client);
            let _ = reply.send(());
        }
        Command::Release { client, port, address, reply } => {
            forwarder.release(client, port, address);
            let _ = reply.send(());
        }
        Command::Addresses { network, addresses, reply } => {
            let _ = reply.send(forwarder.switch_mut().set_addresses(network, &addresses));
        }
        Command::Link { is_up, reply } => {
            forwarder.set_uplink(is_up);
            let _ = reply.send(());
        }
        Command::View { client, reply } => {
            let switch = forwarder.switch();
            let listening = switch.networks().reserved(client);
            let _ = reply.send(View { counters: *switch.counters(client), listening });
        }
    }
    users
}
