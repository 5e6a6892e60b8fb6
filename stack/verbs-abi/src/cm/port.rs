//! TCP ports of identifiers and of connections.
//!
//! A connection keeps the port that it was accepted on when its listener goes, or the switch would drop its frames. Programs
//! bind the same port again meanwhile, as sockets allow: perftest listens anew for each of its connections.

use crate::errno::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use uwarp::{Context, PortReservation};

/// A port that the process has.
#[derive(Debug)]
pub(crate) struct Port {
    reservation: PortReservation,
    /// An identifier is bound to it; connections alone do not count.
    is_bound: AtomicBool,
}

/// A port that an identifier is bound to.
#[derive(Debug)]
pub(crate) struct Binding(Arc<Port>);

/// The ports that the process has.
static PORTS: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());

/// Binds a port, or a free one.
pub(crate) fn bind(context: &Context, wanted: Option<u16>) -> Result<Binding, Errno> {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    ports.retain(|port| port.strong_count() > 0);
    let known = ports.iter().filter_map(Weak::upgrade).find(|port| wanted == Some(port.reservation.port()));
    if let Some(port) = known {
        return if port.is_bound.swap(true, Ordering::AcqRel) {
            Err(Errno(libc::EADDRINUSE))
        } else {
            Ok(Binding(port))
        };
    }
    let port = Arc::new(Port { reservation: context.reserve_port(wanted)?, is_bound: AtomicBool::new(true) });
    ports.push(Arc::downgrade(&port));
    Ok(Binding(port))
}

impl Binding {
    pub(crate) fn number(&self) -> u16 {
        self.0.reservation.port()
    }

    pub(crate) fn reservation(&self) -> &PortReservation {
        &self.0.reservation
    }

    /// The port for a connection, which keeps it.
    pub(crate) fn port(&self) -> Arc<Port> {
        Arc::clone(&self.0)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.0.is_bound.store(false, Ordering::Release);
    }
}
