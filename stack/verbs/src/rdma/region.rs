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
use uwarp_memory::{
    Access, Committer, CompareSwap, DomainId, RegionBuffer, Registration, Scope, Store, StreamId, TaggedBase,
};

/// Which queue pairs may use a region.
#[derive(Clone, Copy, Debug)]
pub enum RegionScope<'a> {
    /// All of the protection domain.
    Domain,
    /// One queue pair of the protection domain; such a region can be invalidated by that peer.
    QueuePair(&'a QueuePairControl),
}

/// How memory is registered. Everything but the rights has a default.
pub struct RegionOptions<'a> {
    access: Access,
    scope: RegionScope<'a>,
    base: TaggedBase,
    durability: Durability,
    transparent: bool,
}

/// The kind of a region's memory, which decides what a Commit means (draft-talpey-rdma-commit §3.1.1). Peers cannot see
/// it.
enum Durability {
    Plain,
    Persistent,
    CommitRequired(Box<dyn Store>),
}

impl<'a> RegionOptions<'a> {
    /// What engines, and peers as far as it says so, may do with the memory. All queue pairs of the domain may use it,
    /// its octets are named by their addresses, and a Commit succeeds and promises nothing.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            scope: RegionScope::Domain,
            base: TaggedBase::Virtual,
            durability: Durability::Plain,
            transparent: false,
        }
    }

    /// Sets which queue pairs may use it.
    pub fn scope(mut self, scope: RegionScope<'a>) -> Self {
        self.scope = scope;
        self
    }

    /// Sets the tagged offset of its first octet, by which SGEs and peers name it.
    pub fn base(mut self, base: TaggedBase) -> Self {
        self.base = base;
        self
    }

    /// Says that the memory is persistent: of a file in such memory ([`RegionBuffer::persistent`]), or kept by other
    /// means. A Commit writes the processor's caches back, in the engine's turn, and is answered at once.
    pub fn persistent(mut self) -> Self {
        self.durability = Durability::Persistent;
        self
    }

    /// Puts a store behind the memory, which should hold what the store does: ranges of files
    /// ([`FileStore`](crate::FileStore)), or one of the application's own. A Commit is answered after the octets are
    /// written there and synced, by a thread of the region.
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        self.durability = Durability::CommitRequired(Box::new(store));
        self
    }

    /// For persistent memory, and memory with a store: whether a peer's Send or Immediate Data is delivered only when
    /// everything that this peer has written to the region before is durable. If that fails, the receive completes with
    /// [`Status::CommitFailed`](crate::Status::CommitFailed), although the message has arrived. Later requests of the
    /// peer (Reads, atomics, Commits) are answered after the message.
    pub fn transparent(mut self, transparent: bool) -> Self {
        self.transparent = transparent;
        self
    }
}

impl From<Access> for RegionOptions<'_> {
    fn from(access: Access) -> Self {
        Self::new(access)
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
/// Peers can change it at any time, so it is reached by copies, by files ([`read_from`](Self::read_from)), and by loads
/// and stores of whole words. It is an ordinary `[u8]` while it is lent ([`lend`](Self::lend)), and again after
/// [`deregister`](Self::deregister). Dropping the region revokes the STag, waits until no
/// engine uses it, and frees the memory; of a durable region, it waits for the commits that are under way, too.
#[derive(Debug)]
pub struct MemoryRegion {
    pub(super) registration: Registration,
    /// Of a durable region whose commits have a thread; ends when the registration is gone.
    _committer: Option<CommitterThread>,
}

impl From<uwarp_memory::Unregistered> for Unregistered {
    fn from(uwarp_memory::Unregistered { buffer, error }: uwarp_memory::Unregistered) -> Self {
        Self { buffer, error: error.into() }
    }
}

impl From<Unregistered> for Error {
    fn from(unregistered: Unregistered) -> Self {
        unregistered.error
    }
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

/// The thread of a durable region; without CPUs for such threads, the engines do its work.
fn start_committer(
    shared: &Shared,
    registration: &Registration,
    committer: Committer,
) -> Result<Option<CommitterThread>, Error> {
    let Some(cpus) = shared.commit_cpus.clone() else {
        return match registration.commit_in_engines(committer) {
            Ok(()) => Ok(None),
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
    Ok(Some(CommitterThread(Some(thread))))
}

impl ProtectionDomain {
    /// Registers memory, and gives it back if that fails. A `Vec<u8>`, a boxed slice, or a [`RegionBuffer`] is given
    /// away until [`MemoryRegion::deregister`]; memory that stays with its owner is registered through
    /// [`RegionBuffer::raw`]. The options may be the rights alone. Remote peers address the region by
    /// [`MemoryRegion::stag`] and [`MemoryRegion::remote_offset`].
    ///
    /// # Errors
    /// A limit is reached, the scope is of another domain, the tagged offsets would go beyond 2^64, or the thread of a
    /// durable region cannot be started.
    pub fn register<'a>(
        &self,
        buffer: impl Into<RegionBuffer>,
        options: impl Into<RegionOptions<'a>>,
    ) -> Result<MemoryRegion, Unregistered> {
        self.register_buffer(buffer.into(), options.into())
    }

    fn register_buffer(&self, buffer: RegionBuffer, options: RegionOptions<'_>) -> Result<MemoryRegion, Unregistered> {
        let shared = self.shared();
        let scope = match shared.check_open().and_then(|()| self.scope_of(options.scope)) {
            Ok(scope) => scope,
            Err(error) => return Err(Unregistered { buffer, error }),
        };
        let RegionOptions { access, base, transparent, .. } = options;
        let (registration, committer) = match options.durability {
            Durability::Plain => (shared.regions.register(buffer, access, scope, base)?, None),
            Durability::Persistent => {
                (shared.regions.register_persistent(buffer, access, scope, base, transparent)?, None)
            }
            Durability::CommitRequired(store) => {
                let (registration, committer) =
                    shared.regions.register_durable(buffer, access, scope, base, store, transparent)?;
                (registration, Some(committer))
            }
        };
        match committer.map_or(Ok(None), |committer| start_committer(shared, &registration, committer)) {
            Ok(committer) => Ok(MemoryRegion { registration, _committer: committer }),
            Err(error) => Err(Unregistered { buffer: registration.deregister(), error }),
        }
    }

    /// The rights, the scope and the base of a region without a store.
    pub(super) fn plain(&self, options: RegionOptions<'_>) -> Result<(Access, Scope, TaggedBase), Error> {
        if options.transparent || !matches!(options.durability, Durability::Plain) {
            let advice = "commits need a region of memory: read the file into one";
            return Err(Error::argument("a file's region", "durable", advice));
        }
        Ok((options.access, self.scope_of(options.scope)?, options.base))
    }

    fn scope_of(&self, scope: RegionScope<'_>) -> Result<Scope, Error> {
        let domain = DomainId(self.number());
        Ok(match scope {
            RegionScope::Domain => Scope::Domain(domain),
            RegionScope::QueuePair(queue_pair) => {
                if queue_pair.shared().id != self.shared().id || queue_pair.domain() != self.number() {
                    return Err(Error::argument(
                        "the queue pair",
                        "of another protection domain",
                        "register in the queue pair's own domain",
                    ));
                }
                Scope::Stream { domain, stream: StreamId(queue_pair.stream()) }
            }
        })
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
        part_of(self.stag(), self.remote_offset(), self.len(), range)
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
    /// ([`RegionOptions::persistent`]), this makes stores of this side durable,
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

    /// The first octet of a range, and its end, which may lie outside of the region.
    pub(super) fn bounds(&self, range: impl RangeBounds<usize>) -> (usize, usize) {
        bounds_within(self.len(), range)
    }

    #[cold]
    pub(super) fn outside(&self, offset: usize, length: usize) -> Error {
        Error::OutOfRegion { start: offset, end: offset.saturating_add(length), len: self.len() }
    }
}

/// The first octet of a range, and its end, which may lie outside of the `length` octets that there are.
fn bounds_within(length: usize, range: impl RangeBounds<usize>) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    (start, end)
}

/// An SGE for a part of a region of `len` octets.
pub(super) fn part_of(stag: u32, base: u64, len: usize, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
    let (start, end) = bounds_within(len, range);
    let length = end.checked_sub(start).and_then(|length| u32::try_from(length).ok());
    match length {
        Some(length) if end <= len => Ok(Sge { stag, length, offset: base.wrapping_add(start as u64) }),
        _ => Err(Error::OutOfRegion { start, end, len }),
    }
}
