//! Contexts and protection domains.

use crate::capabilities::Capabilities;
use crate::completion::CompletionQueue;
use crate::config::{Config, FaultOptions};
use crate::connection::{self, ConnectOptions, Connecting, Established, ListenOptions, Listener};
use crate::core::{Core, lock};
use crate::driver;
use crate::durable::{self, MemoryRange, MemoryType};
use crate::error::Error;
use crate::events::AsyncEvents;
use crate::launch;
use crate::monitor::Monitor;
use crate::open::{self, Prepared};
use crate::queue_pair::{QueuePair, QueuePairControl, QueuePairOptions};
use crate::region::{self, MemoryRegion, RegionOptions, RegionScope, Unregistered};
use crate::reservation::PortReservation;
use crate::shared_receives::{SharedReceiveOptions, SharedReceiveQueue};
use crate::stats::StatsSnapshot;
use crate::window::{FastRegion, MemoryWindow};
use crossbeam::channel::Receiver;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock};
use uwarp_engine::command::{AsyncEvent, Command};
use uwarp_memory::{Access, RegionBuffer, Store};
use uwarp_ring::Notifier;

/// What keeps a context open: the context, its domains, queues, queue pairs and listeners hold one together. When the last of
/// them is dropped, the context closes.
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
        self.is_inline() && driver::turn_inline(self.id).unwrap_or(false)
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
/// then it waits, for at most the configuration's `linger`, until the peers have acknowledged what was sent.
///
/// An inline context belongs to the thread that opened it, which has to call [`poll`](Self::poll), poll a completion queue, or
/// be inside a blocking call, for anything to happen: no acknowledgment and no timer runs otherwise. Other threads may
/// post work and reap completions, but their blocking calls fail with [`Error::WrongThread`].
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

    /// Makes a context without its device: no DPDK, no thread, no socket. Protection domains, memory regions, completion
    /// queues and queue pairs can be made and receives posted. Whatever needs the network starts the context first: to listen,
    /// to connect, and [`start`](Self::start).
    ///
    /// An inline context belongs to the thread that opens it, so this opens it at once.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Argument`] for a configuration that cannot work.
    pub fn prepare(config: Config) -> Result<Self, Error> {
        let context = Self::from_prepared(open::prepare(config)?);
        if context.shared.is_inline() {
            context.start()?;
        }
        Ok(context)
    }

    /// Opens the device and starts the engines. Again: nothing.
    ///
    /// # Errors
    /// What DPDK, the device, or the system refuses. The context and its objects stay as they were, and it can be tried again;
    /// but a process has one attempt to start DPDK itself.
    pub fn start(&self) -> Result<(), Error> {
        self.shared.start()
    }

    /// Whether the engines run, or have run.
    pub fn is_started(&self) -> bool {
        self.shared.is_running()
    }

    /// Opens two contexts in this process that are joined back to back without a device: for tests and first steps. Their
    /// addresses must differ and be in one subnet.
    pub fn pair_in_process(a: Config, b: Config) -> Result<(Self, Self), Error> {
        let (a, b) = open::prepare_pair(a, b)?;
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

    /// The configuration that the context was opened with: its limits, address and options.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// What connections of this context can be asked to do.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(&self.shared.config)
    }

    /// The context's first address with a port, for peers to connect to.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.shared.config.address.address, port))
    }

    /// Number of the context in this process, from 1.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// A new protection domain: memory regions and queue pairs work together if they are in the same.
    pub fn allocate_domain(&self) -> ProtectionDomain {
        ProtectionDomain {
            number: self.shared.next_object(),
            queue_pairs: Arc::new(AtomicU32::new(0)),
            shared: Arc::clone(&self.shared),
        }
    }

    /// A new completion queue that holds at least `depth` completions of each engine.
    pub fn create_completion_queue(&self, depth: usize) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(&self.shared, depth)
    }

    /// Takes connection requests on a TCP port; with port 0 on a free one, which [`Listener::port`] tells.
    ///
    /// # Errors
    /// [`Error::PortTaken`] if the port has a listener or is reserved, [`Error::Argument`] for options out of bounds, and what
    /// [`start`](Self::start) fails with.
    pub fn listen(&self, port: u16, options: ListenOptions) -> Result<Listener, Error> {
        let reservation = PortReservation::new(&self.shared, (port != 0).then_some(port))?;
        Listener::create(&self.shared, reservation, &options)
    }

    /// Takes connection requests on a port that was reserved.
    ///
    /// # Errors
    /// Those of [`listen`](Self::listen).
    pub fn listen_on(&self, reservation: &PortReservation, options: ListenOptions) -> Result<Listener, Error> {
        if !reservation.is_of(&self.shared) {
            return Err(Error::argument("the reservation", "of another context", "reserve a port of this context"));
        }
        Listener::create(&self.shared, reservation.clone(), &options)
    }

    /// Keeps a TCP port, or a free one of the engine's choice, without listening on it yet. It needs no device.
    ///
    /// # Errors
    /// [`Error::PortTaken`] if the port has a listener or is reserved; [`Error::NoPort`] if none is free.
    pub fn reserve_port(&self, port: Option<u16>) -> Result<PortReservation, Error> {
        self.shared.check_open()?;
        PortReservation::new(&self.shared, port)
    }

    /// Connects an idle queue pair and waits until the stream is in full operation. Post receives before, since the peer may
    /// send at once.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason: rejected with private data, refused, timed out, and so on. The queue pair is
    /// idle again then.
    pub fn connect(
        &self,
        queue_pair: &mut QueuePairControl,
        peer: SocketAddr,
        options: ConnectOptions,
    ) -> Result<Established, Error> {
        self.shared.check_here()?;
        self.start_connect(queue_pair, peer, options)?.wait(queue_pair)
    }

    /// Begins to connect an idle queue pair, without waiting.
    pub fn start_connect(
        &self,
        queue_pair: &mut QueuePairControl,
        peer: SocketAddr,
        options: ConnectOptions,
    ) -> Result<Connecting, Error> {
        connection::start_connect(&self.shared, queue_pair, peer, options)
    }

    /// The context's asynchronous events. Several handles share them: each event is delivered once.
    pub fn events(&self) -> AsyncEvents {
        AsyncEvents::new(&self.shared)
    }

    /// A snapshot of counters, connections, queue pairs, pools and tables.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.snapshot(true)
    }

    /// Injects faults into the frames that are sent from now on, or stops doing so.
    pub fn set_faults(&self, faults: Option<FaultOptions>) -> Result<(), Error> {
        open::set_faults(&self.shared, faults)?;
        if !self.is_started() {
            return Ok(());
        }
        // An engine reads its mailbox before it looks for work, once a turn: without its answer, what the caller posts next
        // might still leave in a turn that has not heard of the faults.
        self.shared.snapshot(true);
        Ok(())
    }

    /// Starts to write all frames to a capture file, and the context, unless it runs. Engines beyond the first write to the same name with `.1`, `.2`, ...
    pub fn start_capture(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.shared.check_here()?;
        self.shared.start()?;
        open::start_capture(&self.shared, path.as_ref())
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

    /// Closes the context now, whatever of its objects is still alive: waits up to `linger` until the peers have acknowledged
    /// everything, then stops the engines and closes the device. Later calls fail with [`Error::ContextClosed`].
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

/// A protection domain: the memory that a group of queue pairs may use.
#[derive(Debug)]
pub struct ProtectionDomain {
    number: u32,
    /// How many queue pairs it has, which engines look at before a peer's Send may invalidate an STag of the domain.
    queue_pairs: Arc<AtomicU32>,
    shared: Arc<Shared>,
}

impl ProtectionDomain {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Its number in the context.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Registers memory for all queue pairs of this domain. A `Vec<u8>`, a boxed slice, or a [`RegionBuffer`] is given away
    /// until [`MemoryRegion::deregister`]. Remote peers address it by [`MemoryRegion::stag`] and
    /// [`MemoryRegion::remote_offset`].
    pub fn register(&self, buffer: impl Into<RegionBuffer>, access: Access) -> Result<MemoryRegion, Error> {
        self.register_scoped(buffer, access, RegionScope::Domain)
    }

    /// Registers memory as [`register`](Self::register), but for one queue pair if the scope says so.
    pub fn register_scoped(
        &self,
        buffer: impl Into<RegionBuffer>,
        access: Access,
        scope: RegionScope<'_>,
    ) -> Result<MemoryRegion, Error> {
        self.try_register(buffer, access, scope).map_err(|unregistered| unregistered.error)
    }

    /// Registers memory as [`register_scoped`](Self::register_scoped), and gives it back if that fails.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn try_register(
        &self,
        buffer: impl Into<RegionBuffer>,
        access: Access,
        scope: RegionScope<'_>,
    ) -> Result<MemoryRegion, Unregistered> {
        self.register_with(buffer, &RegionOptions::new(access).scope(scope))
    }

    /// Registers `len` octets of zeros.
    pub fn register_zeroed(&self, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let buffer = RegionBuffer::zeroed(len, uwarp_memory::PageAdvice::Normal)
            .map_err(Error::system("no memory for a region"))?;
        self.register(buffer, access)
    }

    /// Registers ranges, which lie behind each other in one region of the given type. A durable region begins with what its
    /// files hold.
    ///
    /// # Errors
    /// A file that cannot be read or made long enough, a durable region of something else than files, and what
    /// [`register`](Self::register) refuses.
    pub fn register_ranges(
        &self,
        ranges: &[MemoryRange<'_>],
        memory_type: MemoryType,
        access: Access,
        scope: RegionScope<'_>,
    ) -> Result<MemoryRegion, Error> {
        durable::register_ranges(&self.shared, self.number, ranges, memory_type, access, scope)
    }

    /// Registers memory whose commits go to a store of the application's own, in a thread of the region's; with
    /// `transparent` as [`MemoryType::CommitRequired`] has it. The memory should hold what the store does.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_in_store(
        &self,
        buffer: impl Into<RegionBuffer>,
        access: Access,
        scope: RegionScope<'_>,
        store: impl Store + 'static,
        transparent: bool,
    ) -> Result<MemoryRegion, Error> {
        let store = Box::new(store);
        region::register_durable(&self.shared, self.number, buffer.into(), access, scope, store, transparent)
    }

    /// Registers persistent memory: of a file in it ([`RegionBuffer::persistent`]), or such as keeps what is in the machine's
    /// memory by other means. A Commit writes the processor's caches back, in the engine's turn, and is answered at once; with
    /// `transparent` as [`MemoryType::CommitRequired`] has it.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_persistent(
        &self,
        buffer: RegionBuffer,
        access: Access,
        scope: RegionScope<'_>,
        transparent: bool,
    ) -> Result<MemoryRegion, Error> {
        region::register_persistent(&self.shared, self.number, buffer, access, scope, transparent)
    }

    /// A memory window, not bound to anything yet. It takes one of the context's regions
    /// ([`Limits::regions`](crate::config::Limits#structfield.regions)).
    pub fn allocate_window(&self) -> Result<MemoryWindow, Error> {
        MemoryWindow::allocate(&self.shared, self.number)
    }

    /// A region for registration by work requests, of at most `pieces` pieces (1 to [`MAX_PIECES`](crate::MAX_PIECES)). It takes
    /// one of the context's regions.
    pub fn allocate_fast_region(&self, pieces: usize) -> Result<FastRegion, Error> {
        FastRegion::allocate(&self.shared, self.number, pieces)
    }

    /// A new shared receive queue of this domain.
    pub fn create_shared_receive_queue(&self, options: SharedReceiveOptions) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::create(&self.shared, self.number, options)
    }

    /// A new queue pair of this domain.
    pub fn create_queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, Error> {
        QueuePair::create(&self.shared, self.number, &self.queue_pairs, options)
    }
}
