//! What storage needs of a region: files, copies and hashes without a buffer in between.

use crate::error::Error;
use crate::rdma::region::MemoryRegion;
use std::ops::RangeBounds;
use std::os::fd::AsFd;
use uwarp_memory::{FileError, FileErrorReason, Lease, RegionPart, read_file, write_file};

impl MemoryRegion {
    /// A part of the region, or all of it, for [`read_file`] and [`write_file`], which take several at once.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`].
    pub fn part(&self, range: impl RangeBounds<usize>) -> Result<RegionPart<'_>, Error> {
        let (start, end) = self.bounds(range);
        let length = end.checked_sub(start);
        let part = length.and_then(|length| self.registration.part(start, length).ok());
        part.ok_or(Error::OutOfRegion { start, end, len: self.len() })
    }

    /// Fills a part of the region with a file's octets from `offset` on: the kernel puts them into the region. Signals
    /// and short reads do not end it. The file's position stays where it is.
    ///
    /// Peers with a right to the part may access it meanwhile.
    ///
    /// ```
    /// # use uwarp::{Access, Config, Context, FileErrorReason};
    /// # let (context, _peer) =
    /// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
    /// # let domain = context.allocate_domain();
    /// # let mut file = tempfile::tempfile()?;
    /// # std::io::Write::write_all(&mut file, b"a page of the archive")?;
    /// let mut region = domain.register(vec![0; 64], Access::REMOTE_READ)?;
    /// region.read_from(&file, 2, 0..4)?;
    /// assert_eq!(region.as_slice()?[..4], *b"page");
    /// let error = region.read_from(&file, 10, ..).unwrap_err();
    /// assert!(matches!(error.reason, FileErrorReason::EndOfFile));
    /// assert_eq!(error.done, 11);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The range is not inside the region, the file ends before it is full, or the file cannot be read.
    /// [`FileError::done`] octets are in place then.
    pub fn read_from(&self, file: &impl AsFd, offset: u64, range: impl RangeBounds<usize>) -> Result<(), FileError> {
        read_file(file, offset, &[self.file_part(range)?])
    }

    /// Writes a part of the region to a file from `offset` on: the kernel takes the octets from the region. Signals and
    /// short writes do not end it. The file's position stays where it is. A file that is open for appending
    /// (`O_APPEND`) gets the octets at its end, as Linux has it.
    ///
    /// If peers may write to the part meanwhile, each octet in the file is an old or a new one.
    ///
    /// ```
    /// # use uwarp::{Access, Config, Context};
    /// # let (context, _peer) =
    /// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
    /// # let domain = context.allocate_domain();
    /// # let file = tempfile::NamedTempFile::new()?;
    /// let region = domain.register(b"what a peer wrote".to_vec(), Access::REMOTE_WRITE)?;
    /// region.write_to(&file, 0, 7..)?;
    /// assert_eq!(std::fs::read(&file)?, b"peer wrote");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The range is not inside the region, or the file cannot be written: the disk is full, for instance.
    /// [`FileError::done`] octets are in the file then.
    pub fn write_to(&self, file: &impl AsFd, offset: u64, range: impl RangeBounds<usize>) -> Result<(), FileError> {
        write_file(file, offset, &[self.file_part(range)?])
    }

    fn file_part(&self, range: impl RangeBounds<usize>) -> Result<RegionPart<'_>, FileError> {
        let (start, end) = self.bounds(range);
        let outside = || FileError { done: 0, reason: FileErrorReason::OutOfRegion { start, end, len: self.len() } };
        let length = end.checked_sub(start).ok_or_else(outside)?;
        self.registration.part(start, length).map_err(|_| outside())
    }

    /// Copies a part of the region to another region, or within this one, where the ranges may overlap. If others write
    /// to it meanwhile, each octet of the copy is an old or a new one.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`]: nothing was copied.
    pub fn copy_to(&self, range: impl RangeBounds<usize>, target: &Self, offset: usize) -> Result<(), Error> {
        let (start, length) = self.inside(range)?;
        self.registration
            .copy_to(start, length, &target.registration, offset)
            .map_err(|_| target.outside(offset, length))
    }

    /// Calls `take` with copies of a part's octets, in order, in chunks of up to 16 KiB: to hash or to search them. A
    /// peer cannot change a chunk that `take` sees. [`lend`](Self::lend) and [`as_slice`](Self::as_slice) need no copy.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`].
    pub fn read_chunks(&self, range: impl RangeBounds<usize>, take: impl FnMut(&[u8])) -> Result<(), Error> {
        let (start, length) = self.inside(range)?;
        self.registration.read_chunks(start, length, take).map_err(|_| self.outside(start, length))
    }

    /// The CRC32C (RFC 3385) of a part's octets. If others write to it meanwhile, each octet counts as the old or the
    /// new one.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`].
    pub fn crc32c(&self, range: impl RangeBounds<usize>) -> Result<u32, Error> {
        let (start, length) = self.inside(range)?;
        self.registration.crc32c(start, length).map_err(|_| self.outside(start, length))
    }

    /// The region's octets, if its rights let nobody but its owner write to them: none but `LOCAL_READ` and
    /// `REMOTE_READ`. It costs nothing, and engines and peers go on reading.
    ///
    /// # Errors
    /// [`Error::Lend`]: the region has another right.
    pub fn as_slice(&mut self) -> Result<&[u8], Error> {
        Ok(self.registration.as_slice()?)
    }

    /// Lends the memory to the calling thread as a `&mut [u8]`. The STag is invalid until the [`Lease`] is dropped, and
    /// valid again then. The call waits until no engine uses the memory any more, which takes about a microsecond.
    ///
    /// What a peer or posted work does with the region meanwhile fails, and ends the connection. So lend it when all
    /// work that uses it has completed, and while the peer leaves it alone by your protocol. Memory that is lent part
    /// by part is registered as several regions.
    ///
    /// ```
    /// # use uwarp::{Access, Config, Context};
    /// # let (context, _peer) =
    /// #     Context::pair_in_process(Config::without_device("10.0.0.1/24")?, Config::without_device("10.0.0.2/24")?)?;
    /// # let domain = context.allocate_domain();
    /// let mut slot = domain.register(b"what a peer wrote".to_vec(), Access::REMOTE_WRITE)?;
    /// let mut lease = slot.lend()?;
    /// lease.make_ascii_uppercase();
    /// assert_eq!(lease[7..11], *b"PEER");
    /// drop(lease);
    /// assert!(slot.is_valid());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Lend`]: the region has a store, which reads the memory at any time.
    pub fn lend(&mut self) -> Result<Lease<'_>, Error> {
        Ok(self.registration.lend()?)
    }

    fn inside(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize), Error> {
        let (start, end) = self.bounds(range);
        match end.checked_sub(start) {
            Some(length) if end <= self.len() => Ok((start, length)),
            _ => Err(Error::OutOfRegion { start, end, len: self.len() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Config, Context};

    fn context() -> (Context, Context) {
        let config = |address| Config::without_device(address).unwrap();
        Context::pair_in_process(config("10.0.0.1/24"), config("10.0.0.2/24")).unwrap()
    }

    #[test]
    fn a_range_is_checked_before_anything_happens() {
        let (context, _peer) = context();
        let domain = context.allocate_domain();
        let region = domain.register(vec![1; 100], Access::ALL).unwrap();
        let small = domain.register(vec![2; 10], Access::ALL).unwrap();
        let file = tempfile::tempfile().unwrap();
        #[allow(clippy::reversed_empty_ranges)]
        for range in [90..101, 101..101, 50..40, 0..usize::MAX] {
            let is_outside = |error: Error| matches!(error, Error::OutOfRegion { len: 100, .. });
            let is_refused = |error: FileError| {
                matches!(error, FileError { done: 0, reason: FileErrorReason::OutOfRegion { len: 100, .. } })
            };
            assert!(is_outside(region.part(range.clone()).unwrap_err()));
            assert!(is_outside(region.copy_to(range.clone(), &small, 0).unwrap_err()));
            assert!(is_outside(region.read_chunks(range.clone(), |_| ()).unwrap_err()));
            assert!(is_outside(region.crc32c(range.clone()).unwrap_err()));
            assert!(is_refused(region.read_from(&file, 0, range.clone()).unwrap_err()));
            assert!(is_refused(region.write_to(&file, 0, range).unwrap_err()));
        }
        let error = region.copy_to(0..6, &small, 5).unwrap_err();
        assert!(matches!(error, Error::OutOfRegion { start: 5, end: 11, len: 10 }), "{error}");
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(small.deregister(), [2; 10]);
    }

    #[test]
    fn several_parts_of_several_regions_are_one_range_of_a_file() {
        let (context, _peer) = context();
        let domain = context.allocate_domain();
        let [header, body] = [b"header".to_vec(), b"the body".to_vec()]
            .map(|octets| domain.register(octets, Access::LOCAL_WRITE).unwrap());
        let file = tempfile::NamedTempFile::new().unwrap();
        write_file(&file, 2, &[header.part(..).unwrap(), body.part(4..).unwrap()]).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"\0\0headerbody");
        read_file(file.as_file(), 2, &[body.part(4..).unwrap(), header.part(..2).unwrap()]).unwrap();
        assert_eq!((header.deregister(), body.deregister()), (b"erader".to_vec(), b"the head".to_vec()));
    }

    #[test]
    fn errors_keep_the_number_of_the_system() {
        let (context, _peer) = context();
        let region = context.allocate_domain().register(vec![0; 4096], Access::LOCAL_WRITE).unwrap();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let error = Error::from(region.write_to(&full, 0, ..).unwrap_err());
        assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error());
        assert_eq!(error.to_string(), "No space left on device (os error 28) (0 octets were moved before)");
    }
}
