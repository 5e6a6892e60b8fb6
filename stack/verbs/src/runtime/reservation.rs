//! TCP ports that an application has without listening on them yet.

use crate::error::Error;
use crate::runtime::context::{Context, Shared};
use crate::runtime::switch::ReservedPort;
use crate::runtime::tcp_ports::HeldPort;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// A TCP port of a context that is kept for its holder: to listen on
/// ([`Context::listen_on`](crate::Context::listen_on)), or to connect from
/// ([`ConnectOptions::local_port`](crate::ConnectOptions#structfield.local_port)). Nobody else of the context can
/// listen on it at the same address, and no connection gets it by chance.
///
/// A clone is the same reservation. The port is free again when the last clone, and the listener made with it, is
/// dropped. On a switch, other programs can have it when its last connection has ended, too.
#[derive(Clone, Debug)]
pub struct PortReservation(Arc<Held>);

#[derive(Debug)]
struct Held {
    port: HeldPort,
    shared: Arc<Shared>,
    /// Has the switch show that the context listens, where the port is in its block.
    listening: OnceLock<ReservedPort>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.listening.take();
        self.shared.ports.release(&mut self.port);
    }
}

impl Context {
    /// Keeps a TCP port, or a free one of the context's choice, without listening on it yet. It needs no device.
    ///
    /// # Errors
    /// [`Error::PortTaken`] if the port has a listener or is reserved; [`Error::NoPort`] if none is free.
    pub fn reserve_port(&self, port: Option<u16>) -> Result<PortReservation, Error> {
        self.shared().check_open()?;
        PortReservation::new(self.shared(), None, port)
    }

    /// Keeps a TCP port at one own address: others may have it at other addresses. An unspecified address stands for
    /// all of its version of IP.
    ///
    /// # Errors
    /// Those of [`reserve_port`](Self::reserve_port).
    pub fn reserve_port_at(&self, address: IpAddr, port: Option<u16>) -> Result<PortReservation, Error> {
        self.shared().check_open()?;
        PortReservation::new(self.shared(), Some(address), port)
    }
}

impl PortReservation {
    /// Takes a port, or chooses a free one, at one address or at all.
    pub(crate) fn new(shared: &Arc<Shared>, address: Option<IpAddr>, wanted: Option<u16>) -> Result<Self, Error> {
        if wanted == Some(0) {
            return Err(Error::argument("the port", 0, "choose 1 to 65535, or none for a free one"));
        }
        if shared.config.switch.is_some() {
            // The switch shares the ports out, and is joined with the device.
            shared.start()?;
        }
        let port = shared.ports.hold(shared.link(), address, wanted)?;
        Ok(Self(Arc::new(Held { port, shared: Arc::clone(shared), listening: OnceLock::new() })))
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.port.port
    }

    pub(crate) fn is_of(&self, shared: &Shared) -> bool {
        self.0.shared.id == shared.id
    }

    /// The context is about to listen on it.
    pub(crate) fn listens(&self) -> Result<(), Error> {
        let Held { port: HeldPort { port, address, .. }, shared, listening } = &*self.0;
        if let Some(link) = shared.link().filter(|link| link.block().contains(port))
            && listening.get().is_none()
        {
            let address = address.filter(|address| !address.is_unspecified());
            let _ = listening.set(link.reserve(*port, address)?);
        }
        Ok(())
    }
}
