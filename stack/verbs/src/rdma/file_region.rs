//! Parts of files as regions for reading.

use crate::error::Error;
use crate::rdma::domain::ProtectionDomain;
use crate::rdma::region::{RegionOptions, part_of};
use crate::rdma::remote::RemoteMemory;
use std::ops::RangeBounds;
use std::os::fd::AsFd;
use uwarp_engine::work::Sge;
use uwarp_memory::{MappedReadError, MappedRegistration};

/// Takes SIGBUS for this process, which [`ProtectionDomain::register_file`] needs: an access to a registered file that
/// was truncated fails then, and does not end the process. All other SIGBUS go to the handler that was there before; a
/// handler that is installed later has to pass on in the same way. May be called again.
///
/// # Errors
/// The system refuses.
pub fn catch_truncated_files() -> Result<(), Error> {
    uwarp_memory::catch_truncated_files().map_err(Error::system("SIGBUS cannot be caught"))
}

/// A part of a file that peers may read, without a copy of it in this process: engines read the system's cache of the
/// file. Made by [`ProtectionDomain::register_file`]. Dropping it revokes the STag and unmaps the file.
///
/// Others may change the file meanwhile: each octet that is read is an old or a new one. If it is truncated, or its
/// disk fails, a Read, Send or Write that needs octets that are gone fails, and so does each one after it. Nobody gets
/// zeros in place of the octets. The process continues.
#[derive(Debug)]
pub struct FileRegion {
    registration: MappedRegistration,
}

impl ProtectionDomain {
    /// Registers `length` octets of a file from `offset` on, for reading. The rights are
    /// [`LOCAL_READ`](crate::Access::LOCAL_READ), or [`REMOTE_READ`](crate::Access::REMOTE_READ) for peers. The process
    /// must have called [`catch_truncated_files`].
    ///
    /// A page that the system does not hold in its cache is read from the disk while the engine waits, as is every
    /// other connection of that engine. [`MemoryRegion::read_from`](crate::MemoryRegion::read_from) lets the calling
    /// thread wait instead.
    ///
    /// ```
    /// # use uwarp::{Access, Config, Context};
    /// # let (context, _peer) =
    /// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
    /// # let domain = context.allocate_domain();
    /// # let mut file = tempfile::tempfile()?;
    /// # std::io::Write::write_all(&mut file, b"a page of the archive")?;
    /// uwarp::catch_truncated_files()?;
    /// let region = domain.register_file(&file, 2, 4, Access::REMOTE_READ)?;
    /// let for_the_peer = region.remote().to_octets();
    /// # let mut octets = [0; 4];
    /// # region.read(0, &mut octets)?;
    /// # assert_eq!(&octets, b"page");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Map`]: the process does not catch SIGBUS, the file is shorter or cannot be mapped, there are other
    /// rights than those two, or a limit is reached. The scope is of another domain, or the options name a store.
    pub fn register_file<'a>(
        &self,
        file: &impl AsFd,
        offset: u64,
        length: usize,
        options: impl Into<RegionOptions<'a>>,
    ) -> Result<FileRegion, Error> {
        let shared = self.shared();
        shared.check_open()?;
        let (access, scope, base) = self.plain(options.into())?;
        let registration = shared.regions.register_file(file, offset, length, access, scope, base)?;
        Ok(FileRegion { registration })
    }
}

impl FileRegion {
    /// The STag that names the region, here in SGEs and at the peer as its `remote_stag`.
    pub fn stag(&self) -> u32 {
        self.registration.stag()
    }

    /// What a peer needs to read the region, if it may.
    pub fn remote(&self) -> RemoteMemory {
        let (stag, offset) = (self.stag(), self.registration.base_offset());
        RemoteMemory { stag, offset, length: self.len() as u64, access: self.registration.access() }
    }

    /// Length in octets.
    pub fn len(&self) -> usize {
        self.registration.len()
    }

    /// Whether it has no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An SGE for a part of the region, or for all of it, to send or write it.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] if the range is not inside, or is longer than 2^32 - 1 octets.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, Error> {
        part_of(self.stag(), self.registration.base_offset(), self.len(), range)
    }

    /// Copies from the region, beginning at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`]; or [`Error::FileLost`], and the contents of `out` mean nothing.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.registration.read(offset, out).map_err(|error| match error {
            MappedReadError::Lost => Error::FileLost,
            MappedReadError::Range(_) => {
                Error::OutOfRegion { start: offset, end: offset.saturating_add(out.len()), len: self.len() }
            }
        })
    }

    /// Whether an access has found that the file was truncated or cannot be read. The region is of no use then:
    /// register the file again.
    pub fn is_lost(&self) -> bool {
        self.registration.is_lost()
    }

    /// Whether the STag can still be used: not invalidated by the peer.
    pub fn is_valid(&self) -> bool {
        self.registration.is_valid()
    }
}
