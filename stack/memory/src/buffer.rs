//! The memory behind a region.

#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::mapping::MappedFile;

/// A hint about a mapping's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageAdvice {
    /// Pages of the usual size.
    #[default]
    Normal,
    /// Transparent hugepages, if the system has them.
    Huge,
}

/// A buffer that can be registered. It owns its memory. While it is not registered, it is an ordinary `[u8]`.
pub struct RegionBuffer {
    /// First octet; dangling if there are none.
    start: NonNull<u8>,
    length: usize,
    owner: Owner,
}

enum Owner {
    /// A vector's capacity; its pointer and length are those of the buffer.
    Vector { capacity: usize },
    /// Kept to be dropped.
    Mapping { _mapping: MmapMut },
    /// Memory that someone else frees.
    Raw,
    /// A mapping of persistent memory.
    Persistent,
    /// A file's pages, which others may change: they do not leave this crate.
    File { _file: Box<MappedFile> },
    /// Another buffer's memory, which a committer reads too. It leaves this crate only through
    /// [`RegionBuffer::unshared`].
    Shared { buffer: Arc<RegionBuffer> },
}

// SAFETY: the buffer is the only way to its memory (of `raw`, its caller promised so), which is plain octets.
unsafe impl Send for RegionBuffer {}
// SAFETY: a shared reference only allows reading by `as_slice`, and nobody else writes meanwhile.
unsafe impl Sync for RegionBuffer {}

impl RegionBuffer {
    /// `length` octets of zeros in an anonymous, page-aligned mapping. Pages are allocated when they are touched.
    ///
    /// # Errors
    /// The error of mmap(2): too little memory or address space.
    pub fn zeroed(length: usize, advice: PageAdvice) -> io::Result<RegionBuffer> {
        if length == 0 {
            return Ok(RegionBuffer::from(Vec::new()));
        }
        let mut mapping = MmapMut::map_anon(length)?;
        if advice == PageAdvice::Huge {
            // A kernel without transparent hugepages returns an error, and pages are small.
            let _ = mapping.advise(memmap2::Advice::HugePage);
        }
        Ok(RegionBuffer {
            start: NonNull::new(mapping.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            length,
            owner: Owner::Mapping { _mapping: mapping },
        })
    }

    /// Memory that the caller keeps and frees: shared memory, a device's, a foreign allocator's, that of a program in
    /// another language.
    ///
    /// # Safety
    /// Until the buffer is dropped, inside or outside of a registration:
    ///
    /// - `start` must be valid for reads of `length` initialised octets, from any thread: mapped, and not freed.
    /// - It must be valid for writes, too, if anybody writes: a registration with one of the rights `LOCAL_WRITE`,
    ///   `REMOTE_WRITE` and `REMOTE_ATOMIC`, or the owner by the methods of the buffer or of its registration. So
    ///   memory that cannot be written may be registered for reading.
    /// - No reference to the octets may be used. Whoever else accesses them does so in ways that tolerate changes by
    ///   others at any moment, as C programs do that share memory with a device.
    /// - While a slice of [`as_slice`](Self::as_slice) or [`as_mut_slice`](Self::as_mut_slice) is used, nobody else
    ///   writes, and while one of the latter is, nobody else reads. The same holds for slices of
    ///   [`Registration::as_slice`](crate::Registration::as_slice) and of a [`Lease`](crate::Lease).
    pub unsafe fn raw(start: NonNull<u8>, length: usize) -> RegionBuffer {
        RegionBuffer { start, length, owner: Owner::Raw }
    }

    /// `length` octets of a file in persistent memory, from `offset` (a multiple of the page size) on. The mapping is
    /// such that writing back a cache line makes it durable, with the metadata to find it again (MAP_SYNC). The file
    /// must be long enough.
    ///
    /// # Safety
    /// Nobody may make the file shorter as long as the buffer is there, and what others change in it they have to
    /// change in ways that tolerate a peer's accesses, and not while a slice of the buffer is used, as with
    /// [`raw`](Self::raw).
    ///
    /// # Errors
    /// What mmap(2) says; the file's system does not offer this (on Linux: it is not mounted with DAX); no octets.
    pub unsafe fn persistent(file: &impl AsFd, offset: u64, length: usize) -> io::Result<RegionBuffer> {
        if !crate::persist::IS_KNOWN {
            return Err(rustix::io::Errno::OPNOTSUPP.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where, so that nothing is mapped over.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED_VALIDATE | MapFlags::SYNC, file, offset)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(RegionBuffer { start, length, owner: Owner::Persistent })
    }

    /// Pages of a file, for a registration that gives no slice of them.
    pub(crate) fn mapped(file: MappedFile) -> RegionBuffer {
        RegionBuffer { start: file.start(), length: file.len(), owner: Owner::File { _file: Box::new(file) } }
    }

    /// The same memory again, for a registration.
    pub(crate) fn shared(buffer: Arc<RegionBuffer>) -> RegionBuffer {
        RegionBuffer { start: buffer.start, length: buffer.length, owner: Owner::Shared { buffer } }
    }

    /// The buffer that was shared, or a copy while it still is.
    pub(crate) fn unshared(mut self) -> RegionBuffer {
        match std::mem::replace(&mut self.owner, Owner::Raw) {
            Owner::Shared { buffer } => Arc::try_unwrap(buffer).unwrap_or_else(|buffer| {
                let mut copy = vec![0; buffer.length];
                // SAFETY: the buffer's own memory, which nobody writes any more: it is out of the table.
                unsafe { crate::shared_bytes::load(buffer.start, &mut copy) };
                copy.into()
            }),
            owner => {
                self.owner = owner;
                self
            }
        }
    }

    /// Length in octets.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first octet.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The octets.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` and `length` describe initialised memory. Nobody writes to it meanwhile: inside a
        // registration no reference to the buffer is given out; outside only the buffer has the way to it, or else the
        // caller of `raw` or `persistent` has promised so.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The octets, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// The vector that the buffer was made from.
    ///
    /// # Errors
    /// Returns the buffer if it was not made from a vector; `as_slice().to_vec()` copies it.
    pub fn into_vec(self) -> Result<Vec<u8>, RegionBuffer> {
        let Owner::Vector { capacity } = self.owner else {
            return Err(self);
        };
        let buffer = ManuallyDrop::new(self);
        // SAFETY: pointer, length and capacity are those that `From<Vec<u8>>` took apart; the buffer is not dropped.
        Ok(unsafe { Vec::from_raw_parts(buffer.start.as_ptr(), buffer.length, capacity) })
    }
}

impl From<Vec<u8>> for RegionBuffer {
    fn from(vector: Vec<u8>) -> RegionBuffer {
        let mut vector = ManuallyDrop::new(vector);
        RegionBuffer {
            // The vector's pointer is never null.
            start: NonNull::new(vector.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            length: vector.len(),
            owner: Owner::Vector { capacity: vector.capacity() },
        }
    }
}

impl From<Box<[u8]>> for RegionBuffer {
    fn from(octets: Box<[u8]>) -> RegionBuffer {
        RegionBuffer::from(octets.into_vec())
    }
}

impl Drop for RegionBuffer {
    fn drop(&mut self) {
        if let Owner::Vector { capacity } = self.owner {
            // SAFETY: as in `into_vec`, which forgets the buffer, so that this happens once.
            drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.length, capacity) });
        }
        if let Owner::Persistent = self.owner {
            // SAFETY: the mapping that `persistent` made, and nobody reaches it any more. Failing leaves it mapped.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

impl fmt::Debug for RegionBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Vector { .. } => "vector",
            Owner::Mapping { .. } => "mapping",
            Owner::Raw => "raw",
            Owner::Persistent => "persistent",
            Owner::File { .. } => "file",
            Owner::Shared { .. } => "shared",
        };
        formatter
            .debug_struct("RegionBuffer")
            .field("length", &self.length)
            .field("owner", &owner)
            .finish_non_exhaustive()
    }
}
