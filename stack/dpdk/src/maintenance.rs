//! What ports need while they are open, done by the thread that started EAL.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use crate::gate::{self, BurstFlag};
use crate::log;

/// How often ports are looked after.
const PERIOD: Duration = Duration::from_millis(20);
/// The pause between two attempts to connect, at first and at most. A handshake on a busy machine has to fit.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

static PORTS: Mutex<Vec<Arc<Reconnector>>> = Mutex::new(Vec::new());
static ADDED: Condvar = Condvar::new();

/// Makes a memif client connect again by stopping and starting its port.
#[derive(Debug)]
pub(crate) struct Reconnector {
    port: u16,
    flags: Vec<Arc<BurstFlag>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    closed: bool,
    next_attempt: Instant,
    pause: Duration,
}

impl Reconnector {
    /// Looks after a port that was just started.
    pub(crate) fn start(port: u16, flags: Vec<Arc<BurstFlag>>) -> Arc<Reconnector> {
        let state = State { closed: false, next_attempt: Instant::now() + FIRST_PAUSE, pause: FIRST_PAUSE };
        let reconnector = Arc::new(Reconnector { port, flags, state: Mutex::new(state) });
        PORTS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&reconnector));
        ADDED.notify_one();
        reconnector
    }

    /// The port is not touched any more when this returns.
    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        PORTS.lock().unwrap_or_else(PoisonError::into_inner).retain(|port| !std::ptr::eq(Arc::as_ptr(port), self));
    }

    /// Connects again if the link is down and the time for it has come.
    pub(crate) fn maintain(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return;
        }
        let now = Instant::now();
        if crate::port::link(self.port).up {
            state.pause = FIRST_PAUSE;
            state.next_attempt = now + state.pause;
            return;
        }
        if now < state.next_attempt {
            return;
        }
        let started = gate::exclusive(|| {
            for flag in &self.flags {
                flag.set_stopped(true);
            }
            // SAFETY: the port is open (`closed` is under the lock held here), no burst is inside it, and the interrupt
            // thread does not run its handlers meanwhile.
            let started = log::quietly(|| unsafe {
                sys::rte_eth_dev_stop(self.port);
                sys::rte_eth_dev_start(self.port) == 0
            });
            if started {
                for flag in &self.flags {
                    flag.set_stopped(false);
                }
            }
            started
        });
        tracing::debug!(port = self.port, started, "memif client connects again");
        state.pause = (state.pause * 2).min(LONGEST_PAUSE);
        state.next_attempt = Instant::now() + state.pause;
    }
}

/// Never returns; the thread ends with the process.
pub(crate) fn run() -> ! {
    loop {
        let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        while ports.is_empty() {
            ports = ADDED.wait(ports).unwrap_or_else(PoisonError::into_inner);
        }
        let now = ports.clone();
        drop(ports);
        for port in now {
            port.maintain();
        }
        std::thread::sleep(PERIOD);
    }
}
