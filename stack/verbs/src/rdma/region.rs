//! Memory regions.

use crate::error::Error;
use crate::rdma::domain::ProtectionDomain;
use crate::rdma::queue_pair::QueuePairControl;
use crate::rdma::remote::RemoteMemory;
use crate::runtime::context::Shared;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::thread::JoinHandle;
use uwarp_engine::work::Sge;
use uwarp_memory::{Access, CompareSwap, DomainId, RegionBuffer, Registration, Scope, Store, StreamId, TaggedBase};

/// Which queue pairs may use a region.
#[derive(Clone, Copy, Debug)]
pub enum RegionScope<'a> {
    /// All of the protection domain.
    Domain,
    /// One queue pair of the protection domain; such a region can be invalidated by that peer.
    QueuePair(&'a QueuePairControl),
}

/// How memory is registered.
#[derive(Clone, Copy, Debug)]
pub struct RegionOptions<'a> {
    /// What engines, and peers as far as it says so, may do with it.
    pub access: Access,
    /// Which queue pairs may use it.
    pub scope: RegionScope<'a>,
    /// The tagged offset of its first octet, by which SGEs and peers name it.
    pub base: TaggedBase,
}

impl<'a> RegionOptions<'a> {
    /// For all queue pairs of the domain; octets are named by their addresses.
    pub fn new(access: Access) -> Self {
        Self { access, scope: RegionScope::Domain, base: TaggedBase::Virtual }
    }

    /// Sets the scope.
    pub fn scope(mut self, scope: RegionScope<'a>) -> Self {
        self.scope = scope;
        self
    }

    /// Sets the tagged offset of the first octet.
    pub fn base(mut self, base: TaggedBase) -> Self {
        self.base = base;
        self
    }
}

/// What [`MemoryRegion::change`] changes. What is left out stays.
#[derive(Debug, Default)]
pub struct RegionChange<'a> {
    /// The rights.
    pub access: Option<Access>,
    /// The protection domain; all its queue pairs may use the region then.
    pub domain: Option<&'a ProtectionDomain>,
    /// The memory, and the tagged offset of its first octet.
    pub memory: Option<(RegionBuffer, TaggedBase)>,
}

/// A region that was not changed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unchanged {
    /// The memory that it should have got, as it was.
    pub buffer: Option<RegionBuffer>,
    /// The reason.
    pub error: Error,
}

/// Memory that was not registered, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unregistered {
    /// The memory, as it was.
    pub buffer: RegionBuffer,
    /// The reason.
    pub error: Error,
}

/// Memory that engines, and as far as its rights go peers, may read and write.
///
/// Peers can change it at any time, so it is reached by copies and by loads and stores of whole words; it is an
/// ordinary `[u8]` again after [`deregister`](Self::deregister). Dropping the region revokes the STag, waits until no
/// engine uses it, and frees the memory; of a durable region, it waits for the commits that are under way, too.
#[derive(Debug)]
pub struct MemoryRegion {
    registration: Registration,
    /// Of a durable region whose commits have a thread; ends when the registration is gone.
    _committer: Option<CommitterThread>,
}

/// The thread that carries out a region's commits.
#[derive(Debug)]
struct CommitterThread(Option<JoinHandle<()>>);

impl Drop for CommitterThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            if thread.thread().id() == std::thread::current().id() {
                // The store deregisters its own region; the thread ends when that is done.
                return;
            }
            // A store that panics has failed; commits that nobody answers run into their time limit.
            let _ = thread.join();
        }
    }
}

fn scope_of(shared: &Shared, domain: u32, scope: RegionScope<'_>) -> Result<Scope, Error> {
    Ok(match scope {
        RegionScope::Domain => Scope::Domain(DomainId(domain)),
        RegionScope::QueuePair(queue_pair) => {
            if queue_pair.shared().id != shared.id || queue_pair.domain() != domain {
                return Err(Error::argument(
                    "the queue pair",
                    "of another protection domain",
                    "register in the queue pair's own domain",
                ));
            }
            Scope::Stream { domain: DomainId(domain), stream: StreamId(queue_pair.stream()) }
        }
    })
}

pub(crate) fn register_durable(
    shared: &Arc<Shared>,
    domain: u32,
    buffer: RegionBuffer,
    access: Access,
    scope: RegionScope<'_>,
    store: Box<dyn Store>,
    transparent: bool,
) -> Result<MemoryRegion, Error> {
    shared.check_open()?;
    let scope = scope_of(shared, domain, scope)?;
    let (registration, committer) = shared
        .regions
        .register_durable(buffer, access, scope, TaggedBase::Virtual, store, transparent)
        .map_err(|unregistered| unregistered.error)?;
    let Some(cpus) = shared.commit_cpus.clone() else {
        return match registration.commit_in_engines(committer) {
            Ok(()) => Ok(MemoryRegion { registration, _committer: None }),
            Err(_) => unreachable!("it is durable, and this is its committer"),
        };
    };
    let body = move || {
        cpus.apply();
        committer.run();
    };
    let builder = std::thread::Builder::new().name("uwarp-commit".to_owned());
    let thread = uwarp_dpdk::with_signals_blocked(|| builder.spawn(body))
        .map_err(Error::system("the thread of a durable region cannot be started"))?;
    Ok(MemoryRegion { registration, _committer: Some(CommitterThread(Some(thread))) })
}

pub(crate) fn register_persistent(
    shared: &Arc<Shared>,
    domain: u32,
    buffer: RegionBuffer,
    access: Access,
    scope: RegionScope<'_>,
    transparent: bool,
) -> Result<MemoryRegion, Error> {
    shared.check_open()?;
    let scope = scope_of(shared, domain, scope)?;
    let registration = shared
        .regions
        .register_persistent(buffer, access, scope, TaggedBase::Virtual, transparent)
        .map_err(|unregistered| unregistered.error)?;
    Ok(MemoryRegion { registration, _committer: None })
}

pub(crate) fn register(
    shared: &Arc<Shared>,
    domain: u32,
    buffer: RegionBuffer,
    options: &RegionOptions<'_>,
) -> Result<MemoryRegion, Unregistered> {
    let scope = match shared.check_open().and_then(|()| scope_of(shared, domain, options.scope)) {
        Ok(scope) => scope,
        Err(error) => return Err(Unregistered { buffer, error }),
    };
    match shared.regions.register(buffer, options.access, scope, options.base) {
        Ok(registration) => Ok(MemoryRegion { registration, _committer: None }),
        Err(unregistered) => Err(Unregistered { buffer: unregistered.buffer, error: unregistered.error.into() }),
    }
}

impl ProtectionDomain {
    /// Registers memory for all queue pairs of this domain. A `Vec<u8>`, a boxed slice, or a [`RegionBuffer`] is given
    /// away until [`MemoryRegion::deregister`]. Remote peers address it by [`MemoryRegion::stag`] and
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

    /// Registers memory whose commits go to a store of the application's own, in a thread of the region's; with
    /// `transparent` as [`MemoryType::CommitRequired`](crate::MemoryType::CommitRequired) has it. The memory should
    /// hold what the store does.
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
        register_durable(self.shared(), self.number(), buffer.into(), access, scope, store, transparent)
    }

    /// Registers persistent memory: of a file in it ([`RegionBuffer::persistent`]), or such as keeps what is in the
    /// machine's memory by other means. A Commit writes the processor's caches back, in the engine's turn, and is
    /// answered at once; with `transparent` as [`MemoryType::CommitRequired`](crate::MemoryType::CommitRequired) has
    /// it.
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
        register_persistent(self.shared(), self.number(), buffer, access, scope, transparent)
    }

    /// Registers memory as the options say, and gives it back if that fails. Memory that stays with its owner is
    /// registered through [`RegionBuffer::raw`].
    ///
    /// # Errors
    /// A limit is reached, the scope is of another domain, or the tagged offsets would go beyond 2^64.
    pub fn register_with(
        &self,
        buffer: impl Into<RegionBuffer>,
        options: &RegionOptions<'_>,
    ) -> Result<MemoryRegion, Unregistered> {
        register(self.shared(), self.number(), buffer.into(), options)
    }
}

impl MemoryRegion {
    /// The STag that names the region, here in SGEs and at the peer as its `remote_stag`.
    pub fn stag(&self) -> u32 {
        self.registration.stag()
    }

    /// The tagged offset of the first octet, which the peer needs as its `remote_offset`.
    pub fn remote_offset(&self) -> u64 {
        self.registration.base_offset()
    }

    /// What a peer needs to use the region, as far as it may.
    pub fn remote(&self) -> RemoteMemory {
        let (stag, offset, length) = (self.stag(), self.remote_offset(), self.len() as u64);
        RemoteMemory { stag, offset, length, access: self.registration.access() }
    }

    /// Length in octets.
    pub fn len(&self) -> usize {
        self.registration.len()
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An SGE for a part of the region, or for all of it: `region.sge(..)`, `region.sge(64..128)`.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] if the range is not inside, or is longer than 2^32 - 1 octets.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        let length = end.checked_sub(start).and_then(|length| u32::try_from(length).ok());
        match length {
            Some(length) if end <= self.len() => {
                Ok(Sge { stag: self.stag(), length, offset: self.remote_offset().wrapping_add(start as u64) })
            }
            _ => Err(Error::OutOfRegion { start, end, len: self.len() }),
        }
    }

    /// Changes the registration in place: rights, protection domain, memory, or several of them. Waits until no engine
    /// uses the region as it was, and gives the former memory if it was to be another.
    ///
    /// With other memory, or another domain, the region gets a new [`stag`](Self::stag), so that nothing that was sent
    /// for the former one reaches it; with other rights only, the STag stays. One that was invalidated is new and valid
    /// afterwards. What peers and posted work do with the region meanwhile fails.
    ///
    /// # Errors
    /// Windows are bound to the region, it is durable or persistent, a limit would be exceeded, or the domain is
    /// another context's. The region is as it was.
    pub fn change(&mut self, change: RegionChange<'_>) -> Result<Option<RegionBuffer>, Unchanged> {
        let RegionChange { access, domain, memory } = change;
        if domain.is_some_and(|domain| !Arc::ptr_eq(&domain.shared().regions, self.registration.table())) {
            let error = Error::argument("the protection domain", "of another context", "use one of the same context");
            return Err(Unchanged { buffer: memory.map(|(buffer, _)| buffer), error });
        }
        let scope = domain.map(|domain| Scope::Domain(DomainId(domain.number())));
        self.registration.change(uwarp_memory::RegionChange { access, scope, memory }).map_err(|(change, error)| {
            Unchanged { buffer: change.memory.map(|(buffer, _)| buffer), error: error.into() }
        })
    }

    /// Copies from the region, beginning at `offset`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let length = out.len();
        self.registration.read(offset, out).map_err(|_| self.outside(offset, length))
    }

    /// Copies a part of the region into a new vector.
    pub fn to_vec(&self, offset: usize, length: usize) -> Result<Vec<u8>, Error> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            return Err(self.outside(offset, length));
        }
        let mut out = vec![0; length];
        self.read(offset, &mut out)?;
        Ok(out)
    }

    /// Copies into the region, beginning at `offset`.
    pub fn write(&self, offset: usize, octets: &[u8]) -> Result<(), Error> {
        self.registration.write(offset, octets).map_err(|_| self.outside(offset, octets.len()))
    }

    /// Writes the processor's caches of a part of the region back, and waits until that is done: in persistent memory
    /// ([`register_persistent`](crate::ProtectionDomain::register_persistent)), this makes stores of this side durable,
    /// as a Commit does a peer's.
    pub fn write_back(&self, range: std::ops::Range<usize>) -> Result<(), Error> {
        let length = range.end.saturating_sub(range.start);
        self.registration.write_back(range.start, length).map_err(|_| self.outside(range.start, length))
    }

    /// Sets a part of the region to one value.
    pub fn fill(&self, range: std::ops::Range<usize>, value: u8) -> Result<(), Error> {
        let length = range.end.saturating_sub(range.start);
        self.registration.fill(range.start, length, value).map_err(|_| self.outside(range.start, length))
    }

    /// Loads an octet with acquire ordering: what a peer's Write placed before it is visible afterwards. The last
    /// octets of a Write are placed last.
    #[inline]
    pub fn load_acquire_u8(&self, offset: usize) -> Result<u8, Error> {
        self.registration.load_acquire_u8(offset).map_err(|_| self.outside(offset, 1))
    }

    /// Whether a peer's Commit makes the region durable.
    pub fn is_durable(&self) -> bool {
        self.registration.is_durable()
    }

    /// Whether the STag can still be used: not invalidated by the peer.
    pub fn is_valid(&self) -> bool {
        self.registration.is_valid()
    }

    /// Loads an aligned word in the machine's octet order, with acquire ordering.
    #[inline]
    pub fn load_acquire_u32(&self, offset: usize) -> Result<u32, Error> {
        self.registration.load_acquire_u32(offset).map_err(|_| self.outside(offset, 4))
    }

    /// Loads an aligned double word in the machine's octet order, with acquire ordering.
    #[inline]
    pub fn load_acquire_u64(&self, offset: usize) -> Result<u64, Error> {
        self.registration.load_acquire_u64(offset).map_err(|_| self.outside(offset, 8))
    }

    /// Stores an octet with release ordering: a peer's Read that sees it sees what was written before.
    #[inline]
    pub fn store_release_u8(&self, offset: usize, value: u8) -> Result<(), Error> {
        self.registration.store_release_u8(offset, value).map_err(|_| self.outside(offset, 1))
    }

    /// Stores an aligned word in the machine's octet order, with release ordering.
    #[inline]
    pub fn store_release_u32(&self, offset: usize, value: u32) -> Result<(), Error> {
        self.registration.store_release_u32(offset, value).map_err(|_| self.outside(offset, 4))
    }

    /// Stores an aligned double word in the machine's octet order, with release ordering.
    #[inline]
    pub fn store_release_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.registration.store_release_u64(offset, value).map_err(|_| self.outside(offset, 8))
    }

    /// Adds to an aligned double word in the machine's octet order, and gives the former value: one step also for
    /// peers' atomic operations on it.
    #[inline]
    pub fn fetch_add_u64(&self, offset: usize, data: u64) -> Result<u64, Error> {
        self.registration.fetch_add_u64(offset, data).map_err(|_| self.outside(offset, 8))
    }

    /// Compares and swaps an aligned double word in the machine's octet order, and gives the former value: one step
    /// also for peers' atomic operations on it.
    #[inline]
    pub fn compare_swap_u64(&self, offset: usize, operands: &CompareSwap) -> Result<u64, Error> {
        self.registration.compare_swap_u64(offset, operands).map_err(|_| self.outside(offset, 8))
    }

    /// Revokes the STag, waits until no engine uses the memory any more, and gives it back as an ordinary vector
    /// (copied if it was not registered as one).
    pub fn deregister(self) -> Vec<u8> {
        self.registration.deregister().into_vec().unwrap_or_else(|buffer| buffer.as_slice().to_vec())
    }

    /// As [`deregister`](Self::deregister), but gives back the buffer that was registered.
    pub fn deregister_buffer(self) -> RegionBuffer {
        self.registration.deregister()
    }

    #[cold]
    fn outside(&self, offset: usize, length: usize) -> Error {
        Error::OutOfRegion { start: offset, end: offset.saturating_add(length), len: self.len() }
    }
}
