//! TCP ports that an application has without listening on them yet.

use crate::error::Error;
use crate::runtime::context::{Context, Shared};
use crate::runtime::switch::ReservedPort;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// Ports that are chosen from when nobody asks for one: the dynamic ports of RFC 6335 §6.
const CHOSEN: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// A TCP port of a context that is kept for its holder: to listen on
/// ([`Context::listen_on`](crate::Context::listen_on)), or to connect from
/// ([`ConnectOptions::local_port`](crate::ConnectOptions#structfield.local_port)). Nobody else of the context can
/// listen on it, and no connection gets it by chance.
///
/// A clone is the same reservation. The port is free again when the last clone, and the listener made with it, is
/// dropped. On a switch, other programs can have it when its last connection has ended, too.
#[derive(Clone, Debug)]
pub struct PortReservation(Arc<Held>);

#[derive(Debug)]
struct Held {
    port: u16,
    shared: Arc<Shared>,
    /// The switch's word for it, where one shares the ports out.
    in_switch: Option<ReservedPort>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The switch first: whoever gets the port next asks it.
        self.in_switch.take();
        self.shared.ports.release(self.port);
    }
}

impl Context {
    /// Keeps a TCP port, or a free one of the engine's choice, without listening on it yet. It needs no device.
    ///
    /// # Errors
    /// [`Error::PortTaken`] if the port has a listener or is reserved; [`Error::NoPort`] if none is free.
    pub fn reserve_port(&self, port: Option<u16>) -> Result<PortReservation, Error> {
        self.shared().check_open()?;
        PortReservation::new(self.shared(), port)
    }
}

impl PortReservation {
    /// Takes a port, or chooses a free one.
    pub(crate) fn new(shared: &Arc<Shared>, wanted: Option<u16>) -> Result<Self, Error> {
        if shared.config.switch.is_some() {
            // The switch shares the ports out, and is joined with the device.
            shared.start()?;
        }
        let held = |port, in_switch| Held { port, shared: Arc::clone(shared), in_switch };
        let held = match wanted {
            Some(0) => return Err(Error::argument("the port", 0, "choose 1 to 65535, or none for a free one")),
            Some(port) if shared.ports.reserve(port) => {
                // Made first, so that a refusal of the switch frees the port.
                let mut held = held(port, None);
                held.in_switch = shared.reserve(port)?;
                held
            }
            Some(port) => return Err(Error::PortTaken(port)),
            None => {
                if let Some(reserved) = shared.reserve(0)? {
                    let port = reserved.port();
                    shared.ports.reserve(port);
                    return Ok(Self(Arc::new(held(port, Some(reserved)))));
                }
                let count = CHOSEN.len() as u64;
                let start = std::hash::RandomState::new().build_hasher().finish() % count;
                let mut candidates = (0..count).map(|step| CHOSEN.start() + ((start + step) % count) as u16);
                let limit = CHOSEN.len();
                let port = candidates.find(|port| shared.ports.reserve(*port));
                held(port.ok_or(Error::NoPort { limit })?, None)
            }
        };
        Ok(Self(Arc::new(held)))
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    pub(crate) fn is_of(&self, shared: &Shared) -> bool {
        self.0.shared.id == shared.id
    }
}
