//! Memory windows, and regions that are registered by a work request.

use crate::error::Error;
use crate::rdma::domain::ProtectionDomain;
use crate::rdma::remote::RemoteMemory;
use crate::rdma::request::SendRequest;
use crate::runtime::context::Shared;
use std::sync::Arc;
use uwarp_engine::work::{MAX_SEND_ENTRIES, Sge};
use uwarp_memory::{Access, DomainId, Window};

/// Most pieces of a [`FastRegion`].
pub const MAX_PIECES: usize = MAX_SEND_ENTRIES - 1;

/// A memory window: rights of the peer to a part of a region, granted and revoked by work requests of a queue pair. It
/// is of type 2 in the verbs: the binding belongs to that queue pair, and the peer's Send with Invalidate may end it.
///
/// ```
/// # use uwarp::{Access, Config, Context};
/// # let (context, _peer) =
/// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
/// let domain = context.allocate_domain();
/// let region = domain.register(vec![0; 4096], Access::LOCAL_WRITE)?;
/// let mut window = domain.allocate_window()?;
/// let page = region.sge(1024..2048)?;
/// let request = window.bind(1, &page, Access::REMOTE_WRITE)?;
/// // After `queue_pair.send.post(&[request, ...])` the peer may be told `window.stag()` and `window.remote_offset()`.
/// # let _ = request;
/// # Ok::<(), uwarp::Error>(())
/// ```
///
/// Dropping it revokes the rights and waits until no engine uses them.
#[derive(Debug)]
pub struct MemoryWindow {
    window: Window,
    base: u64,
    length: u32,
    access: Access,
}

/// A region that work requests of a queue pair register and invalidate (fast registration): an STag of that queue pair,
/// with a new key each time, over consecutive pieces of regions. Both sides use it like a region, within its rights.
///
/// The pieces' regions must exist while it is in use: an access fails after one of them was deregistered. Dropping it
/// invalidates the STag and waits until no engine uses it.
#[derive(Debug)]
pub struct FastRegion {
    window: Window,
    base: u64,
    length: u32,
}

fn allocate(shared: &Arc<Shared>, domain: u32, pieces: usize) -> Result<Window, Error> {
    shared.check_open()?;
    Ok(shared.regions.allocate_window(DomainId(domain), pieces)?)
}

fn check_rights(access: Access) -> Result<(), Error> {
    if access == Access::LOCAL_READ || access.contains(Access::LOCAL_WRITE) {
        return Err(Error::argument(
            "the window's rights",
            format!("{access:?}"),
            "choose REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC, or several of them",
        ));
    }
    Ok(())
}

impl ProtectionDomain {
    /// A memory window, not bound to anything yet. It takes one of the context's regions
    /// ([`Limits::regions`](crate::config::Limits#structfield.regions)).
    pub fn allocate_window(&self) -> Result<MemoryWindow, Error> {
        MemoryWindow::allocate(self.shared(), self.number())
    }

    /// A region for registration by work requests, of at most `pieces` pieces (1 to [`MAX_PIECES`](crate::MAX_PIECES)).
    /// It takes one of the context's regions.
    pub fn allocate_fast_region(&self, pieces: usize) -> Result<FastRegion, Error> {
        FastRegion::allocate(self.shared(), self.number(), pieces)
    }

    /// A memory window whose STags' low eight bits its owner chooses ([`MemoryWindow::bind_as`]), as programs written
    /// for verbs do. STags of other windows are harder to guess.
    ///
    /// # Errors
    /// There are as many regions as the context allows.
    pub fn allocate_window_with_owner_keys(&self) -> Result<MemoryWindow, Error> {
        self.shared().check_open()?;
        let window = self.shared().regions.allocate_window_with_owner_keys(DomainId(self.number()), 1)?;
        Ok(MemoryWindow { window, base: 0, length: 0, access: Access::LOCAL_READ })
    }
}

impl MemoryWindow {
    pub(crate) fn allocate(shared: &Arc<Shared>, domain: u32) -> Result<Self, Error> {
        Ok(Self { window: allocate(shared, domain, 1)?, base: 0, length: 0, access: Access::LOCAL_READ })
    }

    /// The request that binds the window to `part` of a region of the same domain, with remote rights only. It contains
    /// a new STag: post it before you make a later request of this window. The part keeps its tagged offsets. If the
    /// window lets the peer write, its region needs `LOCAL_WRITE`, but no remote right of its own.
    ///
    /// A bound window must be invalidated first ([`SendRequest::local_invalidate`], or by the peer). A failed bind
    /// completes with [`Status::LocalProtection`](crate::Status::LocalProtection), which ends the connection.
    ///
    /// # Errors
    /// No right, or `LOCAL_WRITE`, which a window cannot grant.
    pub fn bind<'a>(&mut self, id: u64, part: &'a Sge, access: Access) -> Result<SendRequest<'a>, Error> {
        check_rights(access)?;
        self.window.next_stag();
        Ok(self.bind_to(id, part, part.offset, access))
    }

    /// As [`bind`](Self::bind), with an STag of the owner's choice, as verbs have it: its low eight bits are free, and
    /// the others are those of [`stag`](Self::stag). The window must come from
    /// [`allocate_window_with_owner_keys`](ProtectionDomain::allocate_window_with_owner_keys). The part's first octet
    /// gets the tagged offset `base`: its own in the region, 0, or another.
    ///
    /// Several binds of one window, with invalidations between them, may be posted together. An STag that is used again
    /// is valid again for whoever has it from before.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind), and an STag that the owner cannot choose. The window's STag is as it was.
    pub fn bind_as<'a>(
        &mut self,
        id: u64,
        stag: u32,
        part: &'a Sge,
        base: u64,
        access: Access,
    ) -> Result<SendRequest<'a>, Error> {
        check_rights(access)?;
        self.window.choose_stag(stag).map_err(|refused| {
            Error::argument(
                "the window's STag",
                format!("{stag:#010x}"),
                format!("{refused}; it was {:#010x}", self.stag()),
            )
        })?;
        Ok(self.bind_to(id, part, base, access))
    }

    fn bind_to<'a>(&mut self, id: u64, part: &'a Sge, base: u64, access: Access) -> SendRequest<'a> {
        (self.base, self.length, self.access) = (base, part.length, access);
        SendRequest::bind(id, self.window.stag(), base, std::slice::from_ref(part), access)
    }

    /// What a peer needs to use what the latest bind gave it.
    pub fn remote(&self) -> RemoteMemory {
        let (offset, length) = (self.base, u64::from(self.length));
        RemoteMemory { stag: self.stag(), offset, length, access: self.access }
    }

    /// The STag of the latest [`bind`](Self::bind).
    pub fn stag(&self) -> u32 {
        self.window.stag()
    }

    /// The tagged offset of the first octet.
    pub fn remote_offset(&self) -> u64 {
        self.base
    }

    /// Octets of the latest bind.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the latest bind has no octets.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the latest bind was executed and not invalidated.
    pub fn is_valid(&self) -> bool {
        self.window.is_valid()
    }
}

impl FastRegion {
    pub(crate) fn allocate(shared: &Arc<Shared>, domain: u32, pieces: usize) -> Result<Self, Error> {
        if !(1..=MAX_PIECES).contains(&pieces) {
            return Err(Error::argument("the pieces of a region", pieces, format!("choose 1 to {MAX_PIECES}")));
        }
        Ok(Self { window: allocate(shared, domain, pieces)?, base: 0, length: 0 })
    }

    /// The request that registers `pieces`, as consecutive octets from tagged offset `base` on, with the rights
    /// `access`. It contains a new STag: post it before you make a later request of this region. The STag is valid for
    /// work posted behind it, and for the peer, until it is invalidated ([`SendRequest::local_invalidate`], or by the
    /// peer), which must precede the next registration. A failed registration completes with
    /// [`Status::LocalProtection`](crate::Status::LocalProtection), which ends the connection.
    ///
    /// # Errors
    /// More pieces than allocated, or more than 2^32 - 1 octets.
    pub fn register<'a>(
        &mut self,
        id: u64,
        pieces: &'a [Sge],
        base: u64,
        access: Access,
    ) -> Result<SendRequest<'a>, Error> {
        let most = self.window.most_pieces();
        if pieces.len() > most {
            return Err(Error::argument("the pieces of a region", pieces.len(), format!("allocated for {most}")));
        }
        let length = pieces.iter().try_fold(0u32, |sum, piece| sum.checked_add(piece.length)).ok_or_else(|| {
            Error::argument(
                "the octets of a region",
                "2^32 or more",
                "register less at once, or a region without a request",
            )
        })?;
        (self.base, self.length) = (base, length);
        Ok(SendRequest::bind(id, self.window.next_stag(), base, pieces, access))
    }

    /// The STag of the latest [`register`](Self::register).
    pub fn stag(&self) -> u32 {
        self.window.stag()
    }

    /// The tagged offset of the first octet.
    pub fn remote_offset(&self) -> u64 {
        self.base
    }

    /// Octets of the latest registration.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the latest registration has no octets.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// An SGE for `length` octets from `from` on, for work posted behind the registration.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`].
    pub fn sge(&self, from: u32, length: u32) -> Result<Sge, Error> {
        match from.checked_add(length) {
            Some(end) if end <= self.length => {
                Ok(Sge { stag: self.stag(), length, offset: self.base.wrapping_add(u64::from(from)) })
            }
            _ => Err(Error::OutOfRegion {
                start: from as usize,
                end: from as usize + length as usize,
                len: self.length as usize,
            }),
        }
    }

    /// Whether the latest registration was executed and not invalidated.
    pub fn is_valid(&self) -> bool {
        self.window.is_valid()
    }
}
