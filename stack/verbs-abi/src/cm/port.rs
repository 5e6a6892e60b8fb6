//! TCP ports that identifiers are bound to.
//!
//! Two identifiers may share one, as sockets do: one for each version of IP, both bound to all addresses. An engine has
//! one listener for a port, so requests are told apart here.

use crate::errno::Errno;
use crate::locks::{Lock, Locked, Rank};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use uwarp::{Context, EventChannel, ListenOptions, Listener, PortReservation};

/// A port that the process has.
struct Port {
    reservation: PortReservation,
    /// The address that its identifier is bound to, if not all.
    address: Option<IpAddr>,
    /// By which requests name it.
    key: u64,
    users: Lock<Users>,
}

/// The identifiers of a port: that of IPv4 and that of IPv6.
#[derive(Default)]
struct Users {
    is_bound: [bool; 2],
    /// The keys of those that listen.
    listening: [Option<u64>; 2],
    listener: Option<Listener>,
}

/// A port that an identifier is bound to.
pub(crate) struct Binding {
    port: Arc<Port>,
    family: usize,
}

/// The ports that the process has.
static PORTS: Lock<Vec<Weak<Port>>> = Lock::new(Rank::Ports, Vec::new());

fn ports() -> Locked<'static, Vec<Weak<Port>>> {
    PORTS.lock()
}

fn family_of(ip: IpAddr) -> usize {
    usize::from(ip.is_ipv6())
}

impl Port {
    fn users(&self) -> Locked<'_, Users> {
        self.users.lock()
    }
}

/// A key by which events of uwarp name a port or an identifier; nothing else has had it.
pub(crate) fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Binds a port, or a free one, to an own address or to all.
pub(crate) fn bind(context: &Context, wanted: Option<u16>, ip: IpAddr) -> Result<Binding, Errno> {
    let family = family_of(ip);
    let address = (!ip.is_unspecified()).then_some(ip);
    let mut ports = ports();
    ports.retain(|port| port.strong_count() > 0);
    let known = ports.iter().filter_map(Weak::upgrade).find(|port| wanted == Some(port.reservation.port()));
    if let Some(port) = known
        && port.address.is_none()
        && address.is_none()
        && !std::mem::replace(&mut port.users().is_bound[family], true)
    {
        return Ok(Binding { port, family });
    }
    let reservation = context.reserve_port(wanted)?;
    let mut users = Users::default();
    users.is_bound[family] = true;
    let port = Arc::new(Port { reservation, address, key: next_key(), users: Lock::new(Rank::Port, users) });
    ports.push(Arc::downgrade(&port));
    Ok(Binding { port, family })
}

/// The identifier that takes a request which came to the port with this key.
pub(crate) fn listening(key: u64, peer: IpAddr) -> Option<u64> {
    let port = ports().iter().filter_map(Weak::upgrade).find(|port| port.key == key)?;
    let users = port.users();
    let family = family_of(peer);
    // One alone takes what comes.
    users.listening[family].or(users.listening[1 - family])
}

impl Binding {
    pub(crate) fn number(&self) -> u16 {
        self.port.reservation.port()
    }

    /// Listens for the identifier with this key.
    pub(crate) fn listen(
        &self,
        context: &Context,
        events: &EventChannel,
        backlog: usize,
        key: u64,
    ) -> Result<(), Errno> {
        let mut users = self.port.users();
        if users.listener.is_none() {
            let options = ListenOptions { backlog, address: self.port.address };
            let mut listener = context.listen_on(&self.port.reservation, options)?;
            listener.attach(events, self.port.key);
            users.listener = Some(listener);
        }
        users.listening[self.family] = Some(key);
        Ok(())
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let mut users = self.port.users();
        users.is_bound[self.family] = false;
        users.listening[self.family] = None;
    }
}
