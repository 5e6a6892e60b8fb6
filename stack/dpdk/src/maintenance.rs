//! Maintenance of open ports, on the thread that started EAL: connecting ends reconnect.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use crate::gate::{self, BurstFlag};
use crate::lock::lock;
use crate::port::description::link;

/// How often ports are looked after while the link of one is down.
const PERIOD: Duration = Duration::from_millis(20);
/// How often they are looked after otherwise. The gate tells of changes at once; this is for a driver that changes its
/// link without an event.
const IDLE_PERIOD: Duration = Duration::from_secs(1);
/// The first and the longest pause between two attempts to connect. A handshake on a busy machine must fit.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

static PORTS: Mutex<Vec<Arc<Reconnector>>> = Mutex::new(Vec::new());

/// Makes a device anew.
pub(crate) trait Replug: std::fmt::Debug + Send + Sync {
    /// Closes the device with the port number `old` and creates it again. Returns the new port's number; `None` while
    /// there is no peer.
    fn replug(&self, old: Option<u16>) -> Option<u16>;
}

/// How a device reconnects.
#[derive(Debug)]
pub(crate) enum Cure {
    /// By a stop and a start (memif client).
    Restart,
    /// By being made anew (virtio-user that connects).
    Replug(Box<dyn Replug>),
}

/// Reconnects a connecting port.
#[derive(Debug)]
pub(crate) struct Reconnector {
    cure: Cure,
    flags: Vec<Arc<BurstFlag>>,
    /// DPDK's number of the port now.
    port: AtomicU16,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    closed: bool,
    /// There is a device at the moment.
    plugged: bool,
    next_attempt: Instant,
    pause: Duration,
}

/// What one look at a port came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// The link is up, or the port is closed.
    Up,
    /// It is down, and the next attempt is not due.
    Early,
    /// There was an attempt to connect.
    Tried,
}

impl Reconnector {
    /// Maintains a port that was just started.
    pub(crate) fn start(port: u16, cure: Cure, flags: Vec<Arc<BurstFlag>>) -> Arc<Reconnector> {
        let next_attempt = Instant::now() + FIRST_PAUSE;
        let state = State { closed: false, plugged: true, next_attempt, pause: FIRST_PAUSE };
        let reconnector = Arc::new(Reconnector { cure, flags, port: AtomicU16::new(port), state: Mutex::new(state) });
        lock(&PORTS).push(Arc::clone(&reconnector));
        gate::request_maintenance();
        reconnector
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// When this returns, the port is no longer touched. Returns its number, if there is a device.
    pub(crate) fn close(&self) -> Option<u16> {
        let plugged = {
            let mut state = self.lock();
            state.closed = true;
            state.plugged
        };
        lock(&PORTS).retain(|port| !std::ptr::eq(Arc::as_ptr(port), self));
        plugged.then(|| self.port.load(Ordering::Relaxed))
    }

    /// Whether the port's number may change.
    pub(crate) fn moves(&self) -> bool {
        matches!(self.cure, Cure::Replug(_))
    }

    /// Queries the port, if there is a device and it is not being reconnected.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(u16) -> T) -> Option<T> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        state.plugged.then(|| question(self.port.load(Ordering::Relaxed)))
    }

    /// Reconnects if the link is down and the next attempt is due. Returns whether the link was up.
    pub(crate) fn maintain(&self) -> bool {
        let visit = self.visit();
        if visit == Visit::Tried {
            // Only now can the port be queried.
            for flag in &self.flags {
                flag.alarm().ring();
            }
        }
        visit == Visit::Up
    }

    fn visit(&self) -> Visit {
        let mut state = self.lock();
        if state.closed {
            return Visit::Up;
        }
        let now = Instant::now();
        let port = self.port.load(Ordering::Relaxed);
        if state.plugged && link(port).up {
            state.pause = FIRST_PAUSE;
            state.next_attempt = now + state.pause;
            return Visit::Up;
        }
        if now < state.next_attempt {
            return Visit::Early;
        }
        let connected = match &self.cure {
            Cure::Restart => gate::exclusive(|| {
                // The interrupt thread may have completed the handshake while we waited for the gate.
                if link(port).up {
                    return true;
                }
                self.set_stopped(true);
                // SAFETY: the port is open (`closed` is under the lock held here), no burst is inside it, and the
                // interrupt thread does not run its handlers meanwhile.
                let started = unsafe {
                    sys::rte_eth_dev_stop(port);
                    sys::rte_eth_dev_start(port) == 0
                };
                self.set_stopped(!started);
                started
            }),
            Cure::Replug(recipe) => {
                // From here on no burst is inside the device, and none enters.
                gate::exclusive(|| self.set_stopped(true));
                let new = recipe.replug(state.plugged.then_some(port));
                state.plugged = new.is_some();
                if let Some(new) = new {
                    self.port.store(new, Ordering::Relaxed);
                    gate::exclusive(|| {
                        for flag in &self.flags {
                            flag.set_port(new);
                            flag.alarm().find(new);
                        }
                        self.set_stopped(false);
                    });
                }
                new.is_some()
            }
        };
        tracing::debug!(port, connected, "a connecting port tried to reconnect");
        state.pause = (state.pause * 2).min(LONGEST_PAUSE);
        state.next_attempt = Instant::now() + state.pause;
        Visit::Tried
    }

    fn set_stopped(&self, stopped: bool) {
        for flag in &self.flags {
            flag.set_stopped(stopped);
        }
    }
}

/// Never returns; the thread ends with the process.
pub(crate) fn run() -> ! {
    loop {
        let ports = lock(&PORTS).clone();
        // Each of them, whatever the others' state.
        let are_up = ports.iter().filter(|port| port.maintain()).count() == ports.len();
        match (ports.is_empty(), are_up) {
            (true, _) => gate::await_maintenance_request(Duration::MAX),
            (false, true) => gate::await_maintenance_request(IDLE_PERIOD),
            (false, false) => std::thread::sleep(PERIOD),
        }
    }
}
