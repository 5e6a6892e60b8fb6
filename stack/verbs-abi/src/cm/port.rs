//! TCP ports that identifiers are bound to, each at its address or at all of its version of IP.

use crate::errno::Errno;
use std::net::IpAddr;
use uwarp::{Context, EventChannel, ListenOptions, Listener, PortReservation};

/// A port that an identifier is bound to.
pub(crate) struct Binding {
    reservation: PortReservation,
    /// Where it listens; none: at every address that nobody else of the process listens at.
    address: Option<IpAddr>,
    listener: Option<Listener>,
}

/// Binds a port, or a free one, to an own address or to all of a version of IP. All of IPv6 are those of IPv4 too, as
/// for sockets, unless it is to have the addresses of its own version only, or another identifier has these.
pub(crate) fn bind(context: &Context, wanted: Option<u16>, ip: IpAddr, one_version: bool) -> Result<Binding, Errno> {
    let reservation = context.reserve_port_at(ip, wanted)?;
    let is_both = ip.is_ipv6() && ip.is_unspecified() && !one_version;
    Ok(Binding { reservation, address: (!is_both).then_some(ip), listener: None })
}

impl Binding {
    pub(crate) fn number(&self) -> u16 {
        self.reservation.port()
    }

    /// Listens for the identifier with this key.
    pub(crate) fn listen(
        &mut self,
        context: &Context,
        events: &EventChannel,
        backlog: usize,
        key: u64,
    ) -> Result<(), Errno> {
        let options = ListenOptions { backlog, address: self.address };
        let mut listener = context.listen_on(&self.reservation, options)?;
        listener.attach(events, key);
        self.listener = Some(listener);
        Ok(())
    }
}
