//! The control thread: serves the socket, and makes the cables of clients.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use uwarp::config::InterfaceAddress;
use uwarp::config::MacAddress;
use uwarp::switch::protocol::{
    Answer, ClientStatus, Guest, LONGEST, Located, Namespace, Offer, Received, Refusal, Request, Status, VERSION,
    Welcome, receive_request, send,
};
use uwarp_app::{signals, usage};
use uwarp_dpdk::socket::SharedSocket;
use uwarp_engine::ports::CablePort;
use uwarp_ring::cable::{Cable, OwnerTable, Side};

use super::Options;
use super::addresses::HostAddresses;
use super::eal;
use super::guests::{Admission, Guests, Objection};
use super::listener::Listener;
use super::pump::{Entry, Pump};
use super::shares::{self, Users};
use super::uplink::Uplink;
use crate::core::{ClientId, MAX_ADDRESSES, MAX_CLIENTS, MAX_NETWORKS, MAX_RESERVED, NetworkId, ReserveError, Switch};

/// How often the control thread looks for a signal.
const TICK: Duration = Duration::from_millis(250);
/// How long a connection may be without a place.
const STRANGER: Duration = Duration::from_secs(10);
/// Most connections without a place. Beyond, the user with most of them loses one.
const STRANGERS: usize = 64;
/// Time between log lines about users who are not allowed: they could fill the log.
const COMPLAINT: Duration = Duration::from_secs(10);
/// Most cables between two clients each, of a mebibyte at most.
const MAX_CABLES: usize = 2048;
/// The longest name of a program that is kept.
const NAME: usize = 64;

/// Most clients in a message about the switch's status: their ports, six octets each, and the rest of it.
const STATUS_CLIENTS: usize = LONGEST / (MAX_RESERVED * 6 + (4 << 10));

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: u32,
    /// 0 where this process cannot see it, in another container.
    pid: u32,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    socket: SharedSocket,
    peer: Peer,
    /// Its process, where it can be seen: a child that has inherited the socket must not keep the place.
    process: Option<OwnedFd>,
    since: Instant,
    client: Option<Client>,
}

/// A place.
#[derive(Debug)]
struct Client {
    id: ClientId,
    network: NetworkId,
    program: String,
    ports: (u16, u16),
    /// Its number in the table of ports.
    number: u16,
    /// The numbers of the clients to which it has a cable, by place.
    cables: BTreeMap<ClientId, u16>,
}

/// What there is to do.
struct Ready {
    may_accept: bool,
    /// The host's addresses may have changed.
    addresses: bool,
    /// Connections that have something to say or are over.
    connections: Vec<usize>,
}

/// The daemon's state.
struct Control {
    options: Options,
    users: Users,
    /// `None` if the addresses were given.
    host: Option<HostAddresses>,
    guests: Guests,
    /// What programs of the switch's own network get.
    offer: Offer,
    mac: [u8; 6],
    /// Which client owns which port, for clients to read.
    owners: OwnedFd,
    pump: Pump,
    uplink: Option<Uplink>,
    listener: Listener,
    connections: Vec<Connection>,
    /// There was no descriptor for a connection: none is accepted before.
    full_until: Option<Instant>,
    complained: Option<Instant>,
}

/// Runs the switch until it is interrupted, or has been unused for long enough. Calls `ready` when clients can connect.
///
/// # Errors
/// What is wrong with the options, or fails.
pub fn serve(options: Options, ready: impl FnOnce(&Offer)) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let host = if options.addresses.is_empty() { Some(HostAddresses::follow()?) } else { None };
    let addresses = host.as_ref().map_or_else(|| options.addresses.clone(), |host| host.taken.clone());
    let mode = options.mode.unwrap_or(if options.allowed.is_empty() { 0o600 } else { 0o666 });
    let listener = Listener::bind(&options.socket, mode)?;
    let mac = own_mac();
    let mut switch = Switch::new(mac, options.mtu, &plain(&addresses))
        .map_err(|error| usage(format!("{} cannot be an address of clients, or is one too many", error.0)))?;
    let table = OwnerTable::new().context("no memory to share the table of ports in")?;
    let owners = table.as_fd().try_clone_to_owned()?;
    switch.publish(table);
    let (uplink, queue) = match &options.uplink {
        Some(device) => {
            let eal = eal::start(options.mtu, device)?;
            let (uplink, (queue, is_up)) = Uplink::open(&eal, device, options.mtu)?;
            (Some(uplink), Some((eal, queue, is_up)))
        }
        None => (None, None),
    };
    let pump = Pump::start(switch, queue)?;
    let gateway = options.gateways.iter().find_map(|gateway| match gateway {
        IpAddr::V4(gateway) => Some(*gateway),
        IpAddr::V6(_) => None,
    });
    let gateway6 = options.gateways.iter().find_map(|gateway| match gateway {
        IpAddr::V6(gateway) => Some(*gateway),
        IpAddr::V4(_) => None,
    });
    // Addresses that were chosen may be anybody's.
    let namespace = host.as_ref().and_then(|_| Namespace::own());
    let offer = Offer { addresses, mtu: options.mtu, gateway, gateway6, namespace };
    let users = Users::new(rustix::process::geteuid().as_raw(), &options.allowed);
    let guests = Guests::new(options.claims.clone());
    let mut control = Control {
        options,
        users,
        host,
        guests,
        offer,
        mac,
        owners,
        pump,
        uplink,
        listener,
        connections: Vec::new(),
        full_until: None,
        complained: None,
    };
    ready(&control.offer);
    control.run()
}

fn plain(addresses: &[InterfaceAddress]) -> Vec<IpAddr> {
    addresses.iter().map(|own| own.address).collect()
}

/// Clients have some descriptors each here.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// A locally administered address, different on each run.
fn own_mac() -> [u8; 6] {
    let id = std::process::id().to_be_bytes();
    [0x02, 0x55, id[1], id[2], id[3], 0]
}

/// That of a client of this switch.
fn client_mac(mut own: [u8; 6], client: ClientId) -> [u8; 6] {
    own[1] += 1;
    own[5] = client.place() as u8;
    own
}

impl Control {
    fn run(&mut self) -> anyhow::Result<()> {
        let mut unused_since = Instant::now();
        while !signals::interrupted() {
            let Ready { may_accept, addresses, connections } = self.wait()?;
            // From behind, so that the numbers of those in front stay right.
            for index in connections.into_iter().rev() {
                if !self.serve(index)? {
                    let connection = self.connections.remove(index);
                    self.part(connection)?;
                }
            }
            if may_accept {
                self.accept()?;
            }
            if addresses {
                self.follow_addresses()?;
            }
            self.expire();
            while let Some((from, to)) = self.pump.take_wanting() {
                self.join_with_cable(from, to);
            }
            self.look_at_uplink()?;
            if self.connections.iter().any(|connection| connection.client.is_some()) {
                unused_since = Instant::now();
            }
            if self.options.exit_when_unused.is_some_and(|limit| unused_since.elapsed() >= limit) {
                break;
            }
        }
        Ok(())
    }

    /// Waits for something to do.
    fn wait(&mut self) -> anyhow::Result<Ready> {
        let tick = Timespec::try_from(TICK).context("a quarter of a second")?;
        self.full_until = self.full_until.filter(|until| *until > Instant::now());
        let wants_clients = if self.full_until.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut wanted =
            vec![PollFd::new(&self.listener, wants_clients), PollFd::new(self.pump.wants(), PollFlags::IN)];
        let mut indexes = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            wanted.push(PollFd::new(&connection.socket, PollFlags::IN));
            wanted.extend(connection.process.iter().map(|process| PollFd::new(process, PollFlags::IN)));
            indexes.resize(wanted.len() - 2, index);
        }
        let changes = self.host.as_ref().and_then(HostAddresses::changes);
        wanted.extend(changes.map(|changes| PollFd::from_borrowed_fd(changes, PollFlags::IN)));
        match poll(&mut wanted, Some(&tick)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for clients"),
        }
        let is_ready = |wanted: &PollFd<'_>| !wanted.revents().is_empty();
        let (listener, others) = (is_ready(&wanted[0]), &wanted[2..]);
        let addresses = others[indexes.len()..].iter().any(is_ready);
        let ready = others.iter().zip(indexes).filter(|(wanted, _)| is_ready(wanted));
        let mut connections: Vec<usize> = ready.map(|(_, index)| index).collect();
        connections.dedup();
        Ok(Ready { may_accept: listener && self.full_until.is_none(), addresses, connections })
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => SharedSocket::from(socket),
            // Whoever came is gone, or comes again.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(()),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                tracing::warn!(%error, "a client could not be accepted");
                self.full_until = Some(Instant::now() + TICK);
                return Ok(());
            }
            Err(error) => return Err(error).context("cannot accept clients"),
        };
        // Not rustix, whose type has no process number 0, which a client in another container has.
        let credentials = getsockopt(&socket, PeerCredentials).context("who has connected is not known")?;
        let peer = Peer { uid: credentials.uid(), pid: u32::try_from(credentials.pid()).unwrap_or(0) };
        if !self.users.may_connect(peer.uid) {
            if self.complained.is_none_or(|last| last.elapsed() > COMPLAINT) {
                tracing::warn!(peer.uid, peer.pid, "a user who is not allowed wants to connect (--allow-uid)");
                self.complained = Some(Instant::now());
            }
            return Ok(());
        }
        let process = Pid::from_raw(peer.pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.connections.push(Connection { socket, peer, process, since: Instant::now(), client: None });
        Ok(())
    }

    /// Ends connections that take no place for too long, or are too many.
    fn expire(&mut self) {
        self.connections.retain(|connection| connection.client.is_some() || connection.since.elapsed() <= STRANGER);
        loop {
            let strangers = self.connections.iter().enumerate().filter(|(_, connection)| connection.client.is_none());
            let (indexes, uids): (Vec<_>, Vec<_>) =
                strangers.map(|(index, connection)| (index, connection.peer.uid)).unzip();
            if uids.len() <= STRANGERS {
                return;
            }
            let Some(first) = shares::oldest_of_most(&uids) else { return };
            self.connections.remove(indexes[first]);
        }
    }

    /// Has the tables and the clients know the host's addresses.
    fn follow_addresses(&mut self) -> anyhow::Result<()> {
        let Some(host) = &mut self.host else { return Ok(()) };
        match host.have_changed() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                tracing::warn!("{error:#}");
                return Ok(());
            }
        }
        let mut addresses = host.taken.clone();
        // Programs of another namespace use these.
        let guests = &self.guests;
        addresses
            .retain(|own| !guests.iter().any(|guest| guest.addresses.iter().any(|its| its.address == own.address)));
        if addresses.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.pump.set_addresses(NetworkId::OWN, plain(&addresses))? {
            tracing::warn!(address = %error.0, "cannot be an address of clients: the former ones stay");
            return Ok(());
        }
        let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        tracing::info!(addresses = names.join(", "), "the host's addresses have changed");
        self.offer.addresses = addresses;
        self.tell_addresses();
        Ok(())
    }

    /// Has all clients know the addresses.
    fn tell_addresses(&self) {
        let located = self.located();
        for connection in &self.connections {
            let Some(client) = &connection.client else { continue };
            let news = Answer::Changed { offer: self.offer_to(client.network), located: located.clone() };
            // One that has not read so many earlier ones learns it by the next.
            let _ = send(&connection.socket, &news, &[]);
        }
    }

    /// What the clients of a network get.
    fn offer_to(&self, network: NetworkId) -> Offer {
        match self.guests.get(network) {
            Some(guest) => {
                let (addresses, namespace) = (guest.addresses.clone(), Some(guest.namespace));
                Offer { addresses, namespace, ..self.offer.clone() }
            }
            None => self.offer.clone(),
        }
    }

    /// All addresses, each with its network.
    fn located(&self) -> Vec<Located> {
        let own = self.offer.addresses.iter().map(|own| (own, NetworkId::OWN));
        let guests = self.guests.iter().flat_map(|guest| guest.addresses.iter().map(|own| (own, guest.id)));
        own.chain(guests).map(|(own, network)| Located { address: own.address, network: network.number() }).collect()
    }

    /// Gives two clients a cable of their own. Without one, their frames go by the switch.
    fn join_with_cable(&mut self, from: ClientId, to: ClientId) {
        let of = |id| {
            let is_its = |connection: &Connection| connection.client.as_ref().is_some_and(|client| client.id == id);
            self.connections.iter().position(is_its)
        };
        let (Some(first), Some(second)) = (of(from), of(to)) else { return };
        if self.clients().map(|(_, client)| client.cables.len()).sum::<usize>() >= 2 * MAX_CABLES {
            return tracing::info!(from = from.place(), to = to.place(), "there are too many cables for one more");
        }
        let plugs = match Cable::pair(&self.listener.bells()) {
            Ok((near, far)) => [(first, second, near), (second, first, far)],
            Err(error) => return tracing::warn!(%error, "two clients get no cable"),
        };
        for (index, peer, plug) in plugs {
            let peer = self.connections[peer].client.as_ref().map(|client| (client.id, client.number));
            let connection = &mut self.connections[index];
            let (Some((id, number)), Some(client)) = (peer, &mut connection.client) else { return };
            let (side, descriptors) = plug.into_parts();
            let news = Answer::Plugged { peer: number, first: side == Side::First };
            // A client that does not read gets none. The other one does not send by it then: nobody attends to it.
            if send(&connection.socket, &news, &descriptors.each_ref().map(AsFd::as_fd)).is_err() {
                return;
            }
            client.cables.insert(id, number);
        }
    }

    /// Has the tables know when the uplink's link goes up or down.
    fn look_at_uplink(&mut self) -> anyhow::Result<()> {
        if let Some(is_up) = self.uplink.as_mut().and_then(Uplink::take_change) {
            tracing::info!(is_up, "the link of the uplink has changed");
            self.pump.set_uplink(is_up)?;
        }
        Ok(())
    }

    /// A connection is over.
    fn part(&mut self, connection: Connection) -> anyhow::Result<()> {
        if let Some(client) = connection.client {
            self.pump.detach(client.id)?;
            let news = Answer::Unplugged { peer: client.number };
            for other in &mut self.connections {
                let cable = other.client.as_mut().and_then(|other| other.cables.remove(&client.id));
                if cable.is_some() {
                    // One that has not read so many earlier ones keeps a cable that nobody uses.
                    let _ = send(&other.socket, &news, &[]);
                }
            }
            tracing::info!(place = client.id.place(), client.program, "a client has left");
        }
        Ok(())
    }

    /// Answers one request. False: the connection is over.
    fn serve(&mut self, index: usize) -> anyhow::Result<bool> {
        let connection = &self.connections[index];
        if let Some(process) = &connection.process
            && is_readable(process.as_fd())
        {
            return Ok(false);
        }
        let request = match receive_request(&connection.socket) {
            Ok(Received::Request(request)) => request,
            Ok(Received::OtherVersion(version)) => {
                let reason = format!(
                    "the switch speaks version {VERSION}, and the program {version}: use those of one installation"
                );
                return Ok(self.say(index, &refused(Refusal::Protocol, reason), &[]));
            }
            Ok(Received::Descriptors) => {
                self.say(index, &refused(Refusal::Protocol, "the switch takes no descriptors".to_owned()), &[]);
                return Ok(false);
            }
            Ok(Received::End) => return Ok(false),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let reason = format!("the request is not understood: {error} (the switch speaks version {VERSION})");
                return Ok(self.say(index, &refused(Refusal::Protocol, reason), &[]));
            }
            Err(_) => return Ok(false),
        };
        let answer = match request {
            Request::Offer { .. } => Answer::Offer(self.offer.clone()),
            Request::Join { program, guest, .. } => return self.join(index, program, guest),
            Request::Reserve { port, address } => self.reserve(index, port, address)?,
            Request::Deliver => {
                if let Some(client) = &self.connections[index].client {
                    self.pump.deliver(client.id)?;
                }
                Answer::Delivered
            }
            Request::Release { port, address } => {
                if let Some(client) = &self.connections[index].client {
                    self.pump.release(client.id, port, address)?;
                }
                Answer::Released
            }
            Request::Status { from, .. } => Answer::Status(self.status(from)?),
        };
        Ok(self.say(index, &answer, &[]))
    }

    /// Sends an answer. False: the client does not read, or is gone.
    fn say(&self, index: usize, answer: &Answer, descriptors: &[BorrowedFd<'_>]) -> bool {
        send(&self.connections[index].socket, answer, descriptors).is_ok()
    }

    /// The network of a client that wants to join, with the addresses that it brings.
    fn admit(&mut self, peer: Peer, guest: Option<Guest>) -> anyhow::Result<Result<NetworkId, String>> {
        let Some(guest) = guest.filter(|guest| {
            !guest.addresses.is_empty() && self.offer.namespace.is_some_and(|own| own != guest.namespace)
        }) else {
            return Ok(Ok(NetworkId::OWN));
        };
        let uid = Some(peer.uid).filter(|uid| !self.users.is_master(*uid));
        let is_inhabited = |network| self.clients().any(|(_, client)| client.network == network);
        let admission = match self.guests.admit(uid, &guest, &self.offer.addresses, is_inhabited) {
            Ok(admission) => admission,
            Err(objection) => return Ok(Err(self.explain(objection))),
        };
        let (id, namespace) = (admission.id, guest.namespace);
        for ended in &admission.ended {
            // There is nothing to object to in no address.
            let _ = self.pump.set_addresses(*ended, Vec::new())?;
        }
        if let Some(addresses) = &admission.addresses
            && let Err(error) = self.pump.set_addresses(id, plain(addresses))?
        {
            self.guests.settle(namespace, Admission { addresses: None, ..admission });
            return Ok(Err(format!("{} cannot be an address of clients, or is one too many", error.0)));
        }
        let is_news = admission.addresses.is_some() || !admission.ended.is_empty();
        self.guests.settle(namespace, admission);
        if is_news {
            self.tell_addresses();
        }
        Ok(Ok(id))
    }

    /// Why a guest may not come in, and what helps.
    fn explain(&self, objection: Objection) -> String {
        match objection {
            Objection::Forbidden(address) => {
                format!("this user may not bring the address {address}: start the switch with --allow-address")
            }
            Objection::Own(address) => {
                format!("the switch's own network namespace has the address {address}: give this one another")
            }
            Objection::Held(address, network) => {
                let holder = self.clients().find(|(_, client)| client.network == network);
                let holder = holder.map_or_else(String::new, |(peer, client)| {
                    let program = uwarp_app::output::printable(&client.program);
                    format!(" of {program} (process {}, user {})", peer.pid, peer.uid)
                });
                format!("another network namespace, that{holder}, has the address {address}: give this one another")
            }
            Objection::TooMany => {
                format!("there can be {MAX_ADDRESSES} addresses in {MAX_NETWORKS} network namespaces, and no more")
            }
        }
    }

    /// All clients, and who they are.
    fn clients(&self) -> impl Iterator<Item = (Peer, &Client)> {
        self.connections.iter().filter_map(|connection| Some((connection.peer, connection.client.as_ref()?)))
    }

    fn join(&mut self, index: usize, mut program: String, guest: Option<Guest>) -> anyhow::Result<bool> {
        if self.connections[index].client.is_some() {
            let answer = refused(Refusal::Protocol, "this connection has a place".to_owned());
            return Ok(self.say(index, &answer, &[]));
        }
        let uid = self.connections[index].peer.uid;
        let own = self.connections.iter().filter(|other| other.client.is_some() && other.peer.uid == uid).count();
        if own >= self.users.share(uid) && own < MAX_CLIENTS {
            let reason = format!("user {uid} has {own} clients here, and may have no more: end one");
            return Ok(self.say(index, &refused(Refusal::Full, reason), &[]));
        }
        let is_taken =
            |id: &ClientId| self.connections.iter().flat_map(|other| &other.client).any(|client| client.id == *id);
        let Some(id) = ClientId::all().find(|id| !is_taken(id)) else {
            let reason =
                format!("it has {MAX_CLIENTS} clients, and can have no more: end one, or start another switch");
            return Ok(self.say(index, &refused(Refusal::Full, reason), &[]));
        };
        let made = Cable::pair(&self.listener.bells()).and_then(|(near, far)| Ok((near.connect()?, far)));
        let (end, plug) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::error!(%error, "a client gets no cable");
                let reason = format!("the switch cannot make a cable for another client: {error}");
                return Ok(self.say(index, &refused(Refusal::Failed, reason), &[]));
            }
        };
        let network = match self.admit(self.connections[index].peer, guest)? {
            Ok(network) => network,
            Err(reason) => return Ok(self.say(index, &refused(Refusal::Address, reason), &[])),
        };
        let mac = client_mac(self.mac, id);
        let Entry { block, number } =
            self.pump.attach(id, network, mac, CablePort::new(end, self.mac, self.offer.mtu))?;
        let ports = block.into_inner();
        let mut end = program.len().min(NAME);
        while !program.is_char_boundary(end) {
            end -= 1;
        }
        program.truncate(end);
        tracing::info!(place = id.place(), program, "a client has joined");
        let welcome = Answer::Welcome(Welcome {
            offer: self.offer_to(network),
            network: network.number(),
            located: self.located(),
            place: id.place() as u16,
            number,
            mac: MacAddress(mac),
            switch_mac: MacAddress(self.mac),
            ports,
        });
        let (_, [memory, rings, hears]) = plug.into_parts();
        let descriptors = [&memory, &rings, &hears, &self.owners].map(AsFd::as_fd);
        let is_heard = self.say(index, &welcome, &descriptors);
        self.connections[index].client = Some(Client { id, network, program, ports, number, cables: BTreeMap::new() });
        Ok(is_heard)
    }

    fn reserve(&self, index: usize, port: u16, address: Option<IpAddr>) -> anyhow::Result<Answer> {
        let Some(client) = &self.connections[index].client else {
            return Ok(refused(Refusal::Protocol, "only a client that has joined may have a port".to_owned()));
        };
        if let Some(address) = address
            && !self.offer_to(client.network).addresses.iter().any(|own| own.address == address)
        {
            return Ok(refused(Refusal::Protocol, format!("{address} is none of the client's addresses")));
        }
        Ok(match self.pump.reserve(client.id, port, address)? {
            Ok(()) => Answer::Reserved,
            Err(ReserveError::Taken) => refused(Refusal::PortTaken, format!("port {port} is taken")),
            Err(ReserveError::Limit) => {
                refused(Refusal::PortLimit, format!("a client may reserve {MAX_RESERVED} ports, and not more"))
            }
            Err(ReserveError::Kept) => {
                refused(Refusal::PortLimit, format!("port {port} is kept for clients to come: choose one below 24576"))
            }
        })
    }

    /// The first clients from a place on.
    fn status(&self, from: u16) -> anyhow::Result<Status> {
        let mut wanted: Vec<_> = self.clients().filter(|(_, client)| client.id.place() >= usize::from(from)).collect();
        wanted.sort_by_key(|(_, client)| client.id);
        let next = wanted.get(STATUS_CLIENTS).map(|(_, client)| client.id.place() as u16);
        let mut clients = Vec::new();
        for (peer, client) in wanted.into_iter().take(STATUS_CLIENTS) {
            let view = self.pump.view(client.id)?;
            clients.push(ClientStatus {
                place: client.id.place() as u16,
                pid: peer.pid,
                uid: peer.uid,
                program: client.program.clone(),
                addresses: self.guests.get(client.network).map(|guest| plain(&guest.addresses)).unwrap_or_default(),
                ports: client.ports,
                drops: view.drops(),
                listening: view.listening,
                received: view.counters.received,
                received_octets: view.counters.received_octets,
                sent: view.counters.sent,
                answered: view.counters.answered,
            });
        }
        let uplink = match &self.uplink {
            Some(uplink) => Some(uplink.status(&self.pump.view(ClientId::UPLINK)?)),
            None => None,
        };
        let (pid, offer) = (std::process::id(), self.offer.clone());
        Ok(Status { pid, offer, most_clients: MAX_CLIENTS, clients, next, uplink })
    }
}

fn refused(refusal: Refusal, reason: String) -> Answer {
    Answer::Refused { refusal, reason }
}

/// Whether a descriptor has something to be read now.
fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut wanted = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut wanted, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}
