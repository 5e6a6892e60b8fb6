//! Contexts and protection domains.

use crate::capabilities::Capabilities;
use crate::config::{Config, FaultOptions, InterfaceAddress};
use crate::error::Error;
use crate::runtime::core::Core;
use crate::runtime::driver::inline;
use crate::runtime::instruments;
use crate::runtime::launch;
use crate::runtime::lock::lock;
use crate::runtime::monitor::Monitor;
use crate::runtime::prepare::{self, Prepared};
use crate::stats::StatsSnapshot;
use crossbeam::channel::Receiver;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use uwarp_engine::command::{AsyncEvent, Command};
use uwarp_ring::Notifier;

/// What keeps a context open: the context, its domains, queues, queue pairs and listeners hold one together. When the
/// last of them is dropped, the context closes.
#[derive(Debug)]
pub(crate) struct Shared {
    core: Arc<Core>,
    pub(crate) events: Receiver<AsyncEvent>,
    pub(crate) event_notifier: Arc<Notifier>,
    monitor: OnceLock<Monitor>,
    /// Whether everything has been started. Locked while it is.
    is_started: Mutex<bool>,
}

impl Deref for Shared {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Shared {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Opens the device, starts the engines, and serves the monitor socket, unless that was done.
    pub(crate) fn start(&self) -> Result<(), Error> {
        let mut is_started = lock(&self.is_started);
        if *is_started {
            return self.check_open();
        }
        launch::start(&self.core)?;
        self.start_monitor()?;
        *is_started = true;
        Ok(())
    }

    fn start_monitor(&self) -> Result<(), Error> {
        let options = &self.config.monitor;
        if !options.enabled || self.monitor.get().is_some() {
            return Ok(());
        }
        match Monitor::start(&self.core) {
            Ok(monitor) => drop(self.monitor.set(monitor)),
            Err(error) if options.socket.is_none() => {
                // The default path is a convenience; a context works without it.
                tracing::warn!(%error, "no monitor socket, so uwarp-stat cannot look into this process");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Turns an inline context's engine if this is its thread.
    pub(crate) fn turn(&self) -> bool {
        self.is_inline() && inline::turn(self.id)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // First, so that nobody finds the socket of a context that is going.
        self.monitor.take();
        self.core.close();
    }
}

/// One address on one device, with its engines: everything else is made from it.
///
/// A clone is the same context. It closes when it and everything made from it is dropped, or by [`close`](Self::close):
/// then it waits, for at most the configuration's `linger`, until the peers have delivered what was sent.
///
/// An inline context belongs to the thread that opened it, which has to call [`poll`](Self::poll), poll a completion
/// queue, or be inside a blocking call, for anything to happen: no acknowledgment and no timer runs otherwise. Other
/// threads may post work and reap completions, but their blocking calls fail with [`Error::WrongThread`].
#[derive(Clone, Debug)]
pub struct Context {
    shared: Arc<Shared>,
}

impl Context {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Opens the configured device and starts the engines: [`prepare`](Self::prepare) and [`start`](Self::start).
    ///
    /// # Errors
    /// What the configuration, DPDK, or the system refuses, with the cure where one is known.
    pub fn open(config: Config) -> Result<Self, Error> {
        let context = Self::prepare(config)?;
        context.start()?;
        Ok(context)
    }

    /// Makes a context without its device: no DPDK, no thread, no socket. Protection domains, memory regions,
    /// completion queues and queue pairs can be made and receives posted. Whatever needs the network starts the context
    /// first: to listen, to connect, and [`start`](Self::start).
    ///
    /// An inline context belongs to the thread that opens it, so this opens it at once.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Argument`] for a configuration that cannot work.
    pub fn prepare(config: Config) -> Result<Self, Error> {
        let context = Self::from_prepared(prepare::prepare(config)?);
        if context.shared.is_inline() {
            context.start()?;
        }
        Ok(context)
    }

    /// Opens the device and starts the engines. Again: nothing.
    ///
    /// # Errors
    /// What DPDK, the device, or the system refuses. The context and its objects stay as they were, and it can be tried
    /// again; but a process has one attempt to start DPDK itself.
    pub fn start(&self) -> Result<(), Error> {
        self.shared.start()
    }

    /// Whether the engines run, or have run.
    pub fn is_started(&self) -> bool {
        self.shared.is_running()
    }

    /// Opens two contexts in this process that are joined back to back without a device: for tests and first steps.
    /// Their addresses must differ and be in one subnet.
    pub fn pair_in_process(a: Config, b: Config) -> Result<(Self, Self), Error> {
        let (a, b) = prepare::prepare_pair(a, b)?;
        let (a, b) = (Self::from_prepared(a), Self::from_prepared(b));
        a.start()?;
        b.start()?;
        Ok((a, b))
    }

    pub(crate) fn from_prepared(prepared: Prepared) -> Self {
        let Prepared { core, events, event_notifier } = prepared;
        let (monitor, is_started) = (OnceLock::new(), Mutex::new(false));
        Self { shared: Arc::new(Shared { core, events, event_notifier, monitor, is_started }) }
    }

    /// Turns an inline context's engine once and returns whether there was anything to do. Without effect on a threaded
    /// context, and in other threads than the one that opened the context.
    #[inline]
    pub fn poll(&self) -> bool {
        self.shared.turn()
    }

    /// Whether the calling thread is in the middle of turning an engine: it is a signal's handler that interrupted a
    /// poll or a post.
    #[doc(hidden)]
    pub fn is_turned_here(&self) -> bool {
        self.shared.engines.iter().any(|engine| engine.helm().is_held_here())
    }

    /// The configuration that the context was opened with: its limits, address and options.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The addresses that the context has now. Those of a switch that follows its host may change.
    pub fn addresses(&self) -> Vec<InterfaceAddress> {
        self.shared.addresses()
    }

    /// What connections of this context can be asked to do.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(&self.shared.config)
    }

    /// The context's first address with a port, for peers to connect to.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.shared.config.address.address, port))
    }

    /// The place on a switch that the context has joined, from 0. No other of its programs has it at the same time.
    /// `None` without a switch, and before the context is started.
    pub fn switch_place(&self) -> Option<u16> {
        self.shared.link().map(|link| link.place())
    }

    /// Whether the switch vouches that one of its programs has both TCP ports of an address. `None` without a switch,
    /// and if the address is not on it.
    pub fn have_one_owner(&self, address: IpAddr, ports: [u16; 2]) -> Option<bool> {
        self.shared.link()?.have_one_owner(address, ports)
    }

    /// Whether programs on the context's switch have an address: the context's own ones, and those of other network
    /// namespaces. False without a switch, and before the context is started.
    pub fn is_on_switch(&self, address: IpAddr) -> bool {
        self.shared.link().is_some_and(|link| link.is_on_switch(address))
    }

    /// Number of the context in this process, from 1.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// A snapshot of counters, connections, queue pairs, pools and tables.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.snapshot(true)
    }

    /// Injects faults into the frames that are sent from now on, or stops doing so.
    pub fn set_faults(&self, faults: Option<FaultOptions>) -> Result<(), Error> {
        instruments::set_faults(&self.shared, faults)?;
        if !self.is_started() {
            return Ok(());
        }
        // An engine reads its mailbox before it looks for work, once a turn: without its answer, what the caller posts
        // next might still leave in a turn that has not heard of the faults.
        self.shared.snapshot(true);
        Ok(())
    }

    /// Starts to write all frames to a capture file in the pcapng format, and the context, unless it runs. A frame is
    /// in the file after 100 ms at the latest; an inline context has to be polled for that.
    ///
    /// `%p` in the file's name is the number of the process. If another capture is written to `NAME.EXTENSION`, this
    /// one is `NAME-PID.EXTENSION`. Engines beyond the first write to the same name with `.1`, `.2`, ...
    pub fn start_capture(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.shared.check_here()?;
        self.shared.start()?;
        instruments::start_capture(&self.shared, path.as_ref())
    }

    /// Ends the capture and completes the file.
    pub fn stop_capture(&self) {
        for engine in &self.shared.engines {
            engine.command(Command::StopCapture);
        }
    }

    /// Path of the monitor socket, if there is one.
    pub fn monitor_socket(&self) -> Option<&Path> {
        self.shared.monitor.get().map(Monitor::path)
    }

    /// Closes the context now, whatever of its objects is still alive: waits up to `linger` until the peers have
    /// delivered everything and closed, then stops the engines and closes the device. Later calls fail with
    /// [`Error::ContextClosed`].
    pub fn close(self) -> Result<(), Error> {
        self.shared.check_here()?;
        // First, so that nobody finds the socket of a context that is going.
        if let Some(monitor) = self.shared.monitor.get() {
            monitor.stop();
        }
        self.shared.core.close();
        Ok(())
    }
}
