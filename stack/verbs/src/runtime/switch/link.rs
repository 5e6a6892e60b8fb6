//! A context's connection to its switch.

use super::host::host_addresses;
use super::protocol::{self, Answer, Guest, Located, Namespace, Offer, Refusal, Request, VERSION, Welcome};
use crate::config::{Config, InterfaceAddress, MacAddress, Neighbour};
use crate::error::Error;
use crate::runtime::lock::lock;
use crossbeam::channel::{Sender, bounded, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown, sockopt};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uwarp_engine::ReservedPorts;
use uwarp_engine::ports::SwitchedPort;
use uwarp_engine::ports::cable::{CableNews, SwitchedOptions};
use uwarp_ring::Notifier;
use uwarp_ring::cable::{Owner, Owners, Plug, Side};

/// How long the switch may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What it says when the switch closes the connection without a word.
const CLOSED_AT_ONCE: &str =
    "it has closed the connection: it is being stopped, or this user is none that it serves (--allow-uid)";

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const LOST: u8 = 2;

/// The connection. The context's place in the switch is free again when it ends.
#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    socket: OwnedFd,
    /// Held while a request waits for its answer. Ports that are reserved for connections only: their holders are gone.
    asking: Mutex<Vec<(u16, Option<IpAddr>)>>,
    /// The context's ports, with the number of connections of each.
    ports: Arc<ReservedPorts>,
    /// Wakes the thread that gives ports back, and has the engines know of changes.
    unused: Arc<Notifier>,
    state: AtomicU8,
    welcome: Welcome,
    /// The owner of each port.
    owners: Owners,
    /// The addresses of now.
    addresses: Mutex<Addresses>,
    /// Other addresses that the switch announces, until the engines have been told.
    new_addresses: Mutex<Option<Addresses>>,
    /// What the engine's port has to know.
    news: Sender<CableNews>,
    /// Wakes the engine for it.
    told: Arc<Notifier>,
}

/// The addresses on the switch.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// The context's own.
    pub(crate) own: Vec<InterfaceAddress>,
    /// The number of its network.
    network: u8,
    /// All of them.
    located: Vec<Located>,
}

impl Addresses {
    /// Those of other networks.
    pub(crate) fn others(&self) -> Vec<IpAddr> {
        let others = self.located.iter().filter(|located| located.network != self.network);
        others.map(|located| located.address).collect()
    }

    /// All, as the port takes them.
    fn for_port(&self) -> Vec<(IpAddr, u8)> {
        self.located.iter().map(|located| (located.address, located.network)).collect()
    }

    fn network_of(&self, address: IpAddr) -> Option<u8> {
        self.located.iter().find(|located| located.address == address).map(|located| located.network)
    }
}

/// What the switch says without being asked.
enum News {
    Changed(Offer, Vec<Located>),
    Plugged { peer: u16, plug: Option<Plug> },
    Unplugged { peer: u16 },
}

/// A message of the switch.
enum Said {
    News(News),
    Answer(Answer, Vec<OwnedFd>),
}

impl Said {
    fn of((answer, descriptors): (Answer, Vec<OwnedFd>)) -> Said {
        match answer {
            Answer::Changed { offer, located } => Said::News(News::Changed(offer, located)),
            Answer::Plugged { peer, first } => {
                let side = if first { Side::First } else { Side::Second };
                let plug = descriptors.try_into().ok().map(|descriptors| Plug::from_parts(side, descriptors));
                Said::News(News::Plugged { peer, plug })
            }
            Answer::Unplugged { peer } => Said::News(News::Unplugged { peer }),
            _ => Said::Answer(answer, descriptors),
        }
    }
}

fn failed(path: &Path, reason: impl ToString) -> Error {
    Error::Switch { socket: path.to_owned(), reason: reason.to_string() }
}

fn connect(path: &Path) -> Result<OwnedFd, Error> {
    let socket = protocol::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            failed(path, "nobody listens there: start uwarp-switch, or the program with uwarp-run")
        }
        io::ErrorKind::PermissionDenied => {
            failed(path, "this user may not connect: the switch has to be started with --allow-uid")
        }
        _ => failed(path, error),
    })?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))
        .and_then(|()| sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(ANSWER_TIMEOUT)))
        .map_err(|error| failed(path, error))?;
    Ok(socket)
}

/// Asks, and waits for the answer. `note` is called with what comes in between.
fn ask(
    path: &Path,
    socket: &OwnedFd,
    request: &Request,
    mut note: impl FnMut(News),
) -> Result<(Answer, Vec<OwnedFd>), Error> {
    let answer = protocol::send(socket, request, &[]).and_then(|()| {
        loop {
            match protocol::receive(socket)?.map(Said::of) {
                Some(Said::News(news)) => note(news),
                Some(Said::Answer(answer, descriptors)) => return Ok(Some((answer, descriptors))),
                None => return Ok(None),
            }
        }
    });
    match answer {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(failed(path, CLOSED_AT_ONCE)),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Err(failed(path, CLOSED_AT_ONCE))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(failed(path, format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(failed(path, format!("its answer is not understood: {error}. {}", versions())))
        }
        Err(error) => Err(failed(path, error)),
    }
}

fn versions() -> String {
    format!("This program speaks version {VERSION}, and the switch another one: use those of one installation")
}

fn unexpected(path: &Path, answer: Answer) -> Error {
    match answer {
        Answer::Refused { reason, .. } => failed(path, reason),
        _ => failed(path, format!("an answer that does not fit. {}", versions())),
    }
}

/// What a switch offers to this thread: its own addresses, or to a guest the guest's.
fn offer(path: &Path, socket: &OwnedFd) -> Result<(Offer, Option<Guest>), Error> {
    let mut offer = match ask(path, socket, &Request::Offer { version: VERSION }, |_| ())? {
        (Answer::Offer(offer), _) => offer,
        (other, _) => return Err(unexpected(path, other)),
    };
    let guest = foreigner(&offer).map(|namespace| Guest { namespace, addresses: host_addresses().unwrap_or_default() });
    let guest = guest.filter(|guest| !guest.addresses.is_empty());
    if let Some(guest) = &guest {
        offer.addresses.clone_from(&guest.addresses);
    }
    Ok((offer, guest))
}

/// This thread's network namespace, if the addresses of a switch are those of another one. Others that were chosen for
/// it are anybody's.
fn foreigner(offer: &Offer) -> Option<Namespace> {
    Namespace::own().filter(|own| offer.namespace.is_some_and(|theirs| theirs != *own))
}

/// Whether a program of this thread's network namespace would appear on a network that it does not see: the switch is
/// another namespace's, and there is no address to bring along. A switch that does not say is asked when the program
/// joins it.
pub(super) fn is_of_another_network(path: &Path) -> bool {
    let offer = connect(path).and_then(|socket| offer(path, &socket));
    offer.is_ok_and(|(offer, guest)| guest.is_none() && foreigner(&offer).is_some())
}

/// Fills in what all clients of the context's network have in common: the addresses and the MTU.
///
/// # Errors
/// [`Error::Switch`] if there is no switch.
pub(crate) fn resolve(mut config: Config) -> Result<Config, Error> {
    let Some(path) = config.switch.clone() else { return Ok(config) };
    let (offer, guest) = offer(&path, &connect(&path)?)?;
    apply(&mut config, &path, &offer)?;
    if guest.is_none() && foreigner(&offer).is_some() {
        tracing::warn!(switch = %path.display(), address = %config.address, "the switch is another network namespace's");
    }
    Ok(config)
}

fn apply(config: &mut Config, path: &Path, offer: &Offer) -> Result<(), Error> {
    let Some((first, more)) = offer.addresses.split_first() else { return Err(failed(path, "it has no address")) };
    config.address = *first;
    config.more_addresses = more.to_vec();
    config.mtu = offer.mtu;
    (config.gateway, config.gateway6) = (offer.gateway, offer.gateway6);
    // The addresses are the host's, and the switch's clients have them together.
    config.duplicate_address_detection = 0;
    Ok(())
}

/// Joins the configured switch, and gives the port that leads to it; `None` if none is configured.
///
/// # Errors
/// [`Error::Switch`] if there is no switch, it refuses, or it has another MTU than [`resolve`] found.
pub(crate) fn join(
    config: &mut Config,
    ports: &Arc<ReservedPorts>,
) -> Result<Option<(Arc<Link>, SwitchedPort)>, Error> {
    let Some(path) = config.switch.clone() else { return Ok(None) };
    let socket = connect(&path)?;
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let (_, guest) = offer(&path, &socket)?;
    let join = Request::Join { version: VERSION, program: program.unwrap_or_default(), guest };
    let (welcome, descriptors) = match ask(&path, &socket, &join, |_| ())? {
        (Answer::Welcome(welcome), descriptors) => (welcome, descriptors),
        (other, _) => return Err(unexpected(&path, other)),
    };
    let Ok([memory, rings, hears, owners]) = <[OwnedFd; 4]>::try_from(descriptors) else {
        return Err(failed(&path, "its descriptors did not arrive: this process may have no more (ulimit -n)"));
    };
    let mtu = config.mtu;
    apply(config, &path, &welcome.offer)?;
    if mtu != config.mtu {
        return Err(failed(&path, "its MTU has changed since this context was made: make a new one"));
    }
    tracing::info!(switch = %path.display(), place = welcome.place, address = %config.address, "has joined a switch");
    let addresses =
        Addresses { own: welcome.offer.addresses.clone(), network: welcome.network, located: welcome.located.clone() };
    // Nobody is asked for these.
    let on_switch = addresses.located.iter().map(|located| located.address);
    config.neighbours = on_switch.map(|address| Neighbour { address, mac: welcome.switch_mac }).collect();
    let notifier = || Notifier::new().map(Arc::new).map_err(Error::system("no event file descriptor for the switch"));
    let (unused, told) = (notifier()?, notifier()?);
    let (news, heard) = unbounded();
    let unmapped = Error::system("the memory of the switch cannot be used");
    let port = Plug::from_parts(Side::Second, [memory, rings, hears]).connect().and_then(|switch| {
        SwitchedPort::new(SwitchedOptions {
            switch,
            owners: Owners::map(&owners)?,
            number: welcome.number,
            network: welcome.network,
            mac: welcome.mac.0,
            switch_mac: welcome.switch_mac.0,
            addresses: addresses.for_port(),
            mtu: config.mtu,
            receive_buffers: config.buffers.receive as usize,
            transmit_buffers: config.buffers.transmit as usize,
            news: heard,
            told: Arc::clone(&told),
        })
    });
    let port = port.map_err(unmapped)?;
    let owners = Owners::map(&owners).map_err(Error::system("the memory of the switch cannot be used"))?;
    ports.notify_unused(Arc::clone(&unused));
    let (asking, state, ports) = (Mutex::default(), AtomicU8::new(OPEN), Arc::clone(ports));
    let (addresses, new_addresses) = (Mutex::new(addresses), Mutex::new(None));
    let link =
        Link { path, socket, asking, ports, unused, state, welcome, owners, addresses, new_addresses, news, told };
    Ok(Some((Arc::new(link), port)))
}

impl Link {
    /// The ports that are the context's own.
    pub(crate) fn block(&self) -> RangeInclusive<u16> {
        self.welcome.ports.0..=self.welcome.ports.1
    }

    /// The number of the context's place, from 0.
    pub(crate) fn place(&self) -> u16 {
        self.welcome.place
    }

    /// Whether one client, and no other, has both ports of an address; `None` if it is not on the switch.
    pub(crate) fn have_one_owner(&self, address: IpAddr, ports: [u16; 2]) -> Option<bool> {
        let network = lock(&self.addresses).network_of(address)?;
        let [one, other] = ports.map(|port| self.owners.get(network, port));
        Some(matches!(one, Owner::One(_)) && one == other)
    }

    /// The end of the switch, if that was it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.state.load(Ordering::Acquire) {
            LOST => Err(failed(&self.path, self.cause())),
            _ => Ok(()),
        }
    }

    /// Asks, and waits for the answer. A switch that does not answer in time is lost: its answer would be taken for
    /// that of the next request.
    fn ask(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let answer = ask(&self.path, &self.socket, request, |news| self.note(news));
        if answer.is_err() {
            let _ = shutdown(self.socket.as_fd(), Shutdown::Both);
        }
        answer
    }

    /// Passes on what the switch has said without being asked.
    fn note(&self, news: News) {
        match news {
            News::Changed(offer, located) if !offer.addresses.is_empty() => {
                let addresses = Addresses { own: offer.addresses, network: self.welcome.network, located };
                self.tell(CableNews::Addresses(addresses.for_port()));
                *lock(&self.new_addresses) = Some(addresses);
                self.unused.fire();
            }
            News::Changed(..) => {}
            News::Plugged { peer, plug } => match plug.map(Plug::connect) {
                Some(Ok(end)) => self.tell(CableNews::Plugged { peer, end }),
                // The other client does not send by a cable to which nobody attends.
                Some(Err(error)) => tracing::warn!(%error, "a cable to another program cannot be used"),
                None => tracing::warn!("a cable to another program has not arrived: raise ulimit -n"),
            },
            News::Unplugged { peer } => self.tell(CableNews::Unplugged { peer }),
        }
    }

    /// Has the engine's port know.
    fn tell(&self, news: CableNews) {
        if self.news.send(news).is_ok() {
            self.told.fire();
        }
    }

    /// Takes what the switch has said without being asked. False at the end of the connection.
    fn take_news(&self) -> bool {
        let _nobody_waits = lock(&self.asking);
        loop {
            let mut wanted = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut wanted, Some(&Timespec::default())) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => continue,
            }
            match protocol::receive(&self.socket).map(|said| said.map(Said::of)) {
                Ok(Some(Said::News(news))) => self.note(news),
                Ok(Some(Said::Answer(..))) => tracing::warn!(switch = %self.path.display(), "an answer to no question"),
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// The addresses of now.
    pub(crate) fn addresses(&self) -> Addresses {
        lock(&self.addresses).clone()
    }

    /// Whether programs on the switch have an address.
    pub(crate) fn is_on_switch(&self, address: IpAddr) -> bool {
        lock(&self.addresses).network_of(address).is_some()
    }

    fn cause(&self) -> &'static str {
        "the switch has ended: start it again and open a new context"
    }

    /// Reserves a TCP port at one address or at all.
    ///
    /// # Errors
    /// [`Error::PortTaken`], [`Error::PortLimit`], or [`Error::Switch`] with another reason.
    pub(crate) fn reserve(self: &Arc<Self>, port: u16, address: Option<IpAddr>) -> Result<ReservedPort, Error> {
        let mut unheld = lock(&self.asking);
        self.check()?;
        let reserved = || ReservedPort { port, address, link: Arc::clone(self) };
        if let Some(index) = unheld.iter().position(|unheld| *unheld == (port, address)) {
            unheld.swap_remove(index);
            return Ok(reserved());
        }
        match self.ask(&Request::Reserve { port, address })? {
            (Answer::Reserved, _) => Ok(reserved()),
            (Answer::Refused { refusal: Refusal::PortTaken, .. }, _) => Err(Error::PortTaken(port)),
            (Answer::Refused { refusal: Refusal::PortLimit, reason }, _) => {
                Err(Error::PortLimit { socket: self.path.clone(), reason })
            }
            (other, _) => Err(unexpected(&self.path, other)),
        }
    }

    /// Gives ports back when their last connections have ended, and calls `changed` with new addresses. Returns when
    /// the connection to the switch is over.
    fn serve_until_end(&self, changed: impl Fn(&Addresses, MacAddress)) {
        loop {
            self.release_unused();
            let new_addresses = lock(&self.new_addresses).take();
            if let Some(addresses) = new_addresses {
                // In this order: who sees an address here may connect to it.
                changed(&addresses, self.welcome.switch_mac);
                *lock(&self.addresses) = addresses;
            }
            let mut wanted = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&*self.unused, PollFlags::IN)];
            if poll(&mut wanted, None).is_err() {
                continue;
            }
            let said = wanted[0].revents();
            self.unused.drain();
            if said.intersects(PollFlags::HUP | PollFlags::ERR) || !said.is_empty() && !self.take_news() {
                return;
            }
        }
    }

    /// Gives back the ports without holders that have no connections any more.
    fn release_unused(&self) {
        let mut unheld = lock(&self.asking);
        if unheld.is_empty() {
            return;
        }
        // Before looking, so that a connection which ends meanwhile fires.
        self.unused.arm();
        unheld.retain(|(port, address)| {
            let is_used = self.ports.has_connections(*port);
            if !is_used {
                self.release(*port, *address);
            }
            is_used
        });
        if unheld.is_empty() {
            self.unused.disarm();
        }
    }

    /// Gives a port back; the caller has locked `asking`.
    fn release(&self, port: u16, address: Option<IpAddr>) {
        if self.state.load(Ordering::Acquire) == OPEN {
            let _ = self.ask(&Request::Release { port, address });
        }
    }

    /// Returns when the switch has delivered what the context has sent by it; at once if there is no
    /// switch any more.
    pub(crate) fn deliver(&self) {
        let _one_at_a_time = lock(&self.asking);
        if self.state.load(Ordering::Acquire) == OPEN {
            let _ = self.ask(&Request::Deliver);
        }
    }

    /// Leaves the switch.
    pub(crate) fn close(&self) {
        let _ = self.state.compare_exchange(OPEN, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        // Descriptors of a forked child keep the connection otherwise.
        let _ = shutdown(self.socket.as_fd(), Shutdown::Both);
    }
}

/// A thread that waits for the end of a switch. Without a link to watch it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    link: Sender<Arc<Link>>,
}

impl Watcher {
    /// Starts the thread, which calls `changed` with new addresses and the switch's MAC address, and `lost` if the
    /// switch ends before the context closes.
    pub(crate) fn start(
        changed: impl Fn(&Addresses, MacAddress) + Send + 'static,
        lost: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Watcher, Error> {
        let (sender, receiver) = bounded::<Arc<Link>>(1);
        let body = move || {
            let Ok(link) = receiver.recv() else { return };
            link.serve_until_end(changed);
            if link.state.compare_exchange(OPEN, LOST, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                let cause = format!("{}: {}", link.path.display(), link.cause());
                tracing::error!(cause, "the context has lost its network");
                lost(&cause);
            }
        };
        let builder = std::thread::Builder::new().name("uwarp-switch".to_owned());
        let thread = uwarp_dpdk::with_signals_blocked(|| builder.spawn(body));
        thread.map_err(Error::system("no thread to watch the switch with"))?;
        Ok(Watcher { link: sender })
    }

    /// Watches from now on.
    pub(crate) fn watch(self, link: Arc<Link>) {
        let _ = self.link.send(link);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// A TCP port that is this context's until it is dropped and the last connection of the port has ended: the switch
/// drops what comes from a port that is not the sender's.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    port: u16,
    address: Option<IpAddr>,
    link: Arc<Link>,
}

impl ReservedPort {
    /// The address at which the context has it, if not at all.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl Drop for ReservedPort {
    fn drop(&mut self) {
        let link = &self.link;
        let mut unheld = lock(&link.asking);
        if link.ports.has_connections(self.port) {
            unheld.push((self.port, self.address));
            link.unused.fire();
        } else {
            link.release(self.port, self.address);
        }
    }
}
