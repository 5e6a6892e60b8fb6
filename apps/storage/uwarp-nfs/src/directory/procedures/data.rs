//! READ, WRITE and COMMIT (RFC 1813 §3.3.6, §3.3.7, §3.3.21).

use super::{Outcome, Refusal, TRANSFER_MAX, done, failed};
use crate::directory::attributes::{after, before, of_errno, wcc};
use crate::directory::caller::Caller;
use crate::directory::listing::pack_into;
use crate::directory::object::Object;
use crate::directory::{Directory, may};
use nfs3_types::nfs3::{self, COMMIT3resok, WRITE3resok, nfsstat3, stable_how, wcc_data, writeverf3};
use rustix::fs::{Access, AtFlags, CWD, FileType, Statx};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::{Reader, put_u32};

impl Directory {
    pub(super) fn read(&self, caller: &Caller, reader: &mut Reader<'_>, mut room: Vec<u8>) -> Outcome {
        let (object, stat) = self.handle_of(reader)?;
        let (offset, count) = (reader.u64()?, reader.u32()?);
        let count = count.min(TRANSFER_MAX) as usize;
        let got = (|| {
            is_file(&object)?;
            let file = object.reader().map_err(of_errno)?;
            self.become_caller(caller)?;
            // Callers who may execute a program but not read it: their machine has to read it for them.
            may(&object, &stat, Access::READ_OK).or_else(|error| {
                let link = object.link();
                rustix::fs::accessat(CWD, link, Access::EXEC_OK, AtFlags::EACCESS).map_err(|_| error)
            })?;
            room.resize(count, 0);
            let mut got = 0;
            // Beyond the system's largest offset there is nothing.
            while got < count && i64::try_from(offset.saturating_add(count as u64)).is_ok() {
                match rustix::io::pread(file, &mut room[got..], offset + got as u64).map_err(of_errno)? {
                    0 => break,
                    more => got += more,
                }
            }
            room.truncate(got);
            Ok(got)
        })();
        let now = object.stat();
        let size = now.as_ref().map_or(0, |stat| stat.stx_size);
        let file_attributes = after(now);
        match got {
            Ok(got) => {
                let mut out = Vec::new();
                put_u32(&mut out, nfsstat3::NFS3_OK as u32);
                pack_into(&mut out, &file_attributes);
                put_u32(&mut out, got as u32);
                put_u32(&mut out, u32::from(offset.saturating_add(got as u64) >= size));
                put_u32(&mut out, got as u32);
                self.metrics.read.fetch_add(got as u64, Ordering::Relaxed);
                Ok(vec![Part::Octets(out), Part::Item(room)])
            }
            Err(error) => Ok(failed(error, &file_attributes)),
        }
    }

    pub(super) fn write(&self, caller: &Caller, reader: &mut Reader<'_>, data: &[u8]) -> Outcome {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        let (offset, count) = (reader.u64()?, reader.u32()?);
        let stable = match reader.u32()? {
            0 => stable_how::UNSTABLE,
            1 => stable_how::DATA_SYNC,
            2 => stable_how::FILE_SYNC,
            _ => return Err(Refusal::Garbage),
        };
        self.writable()?;
        let (object, _) = self.find(handle)?;
        // Data written now is covered by this verifier and no later one.
        let verf = writeverf3(self.verifier());
        let (stat, written, file_wcc) = {
            let _lock = self.lock(object.key);
            let stat = object.stat()?;
            let written = self.put(caller, &object, &stat, offset, count, data);
            (stat, written, wcc(&stat, object.stat()))
        };
        let written = written.and_then(|written| {
            match stable {
                stable_how::UNSTABLE => {}
                _ => self.sync(&object, stable == stable_how::DATA_SYNC)?,
            }
            Ok(written)
        });
        Ok(match written {
            Ok(count) => done(&WRITE3resok { file_wcc, count, committed: stable, verf }),
            Err(error) => failed(error, &wcc(&stat, object.stat())),
        })
    }

    /// Writes as the caller; returns how much was written, which is less than all if the disk is full.
    fn put(
        &self,
        caller: &Caller,
        object: &Object,
        stat: &Statx,
        offset: u64,
        count: u32,
        data: &[u8],
    ) -> Result<u32, nfsstat3> {
        is_file(object)?;
        let data = data.get(..count as usize).ok_or(nfsstat3::NFS3ERR_INVAL)?;
        if offset.checked_add(u64::from(count)).is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(nfsstat3::NFS3ERR_FBIG);
        }
        let file = object.writer().map_err(of_errno)?;
        self.become_caller(caller)?;
        may(object, stat, Access::WRITE_OK)?;
        object.is_unsynced.store(true, Ordering::Relaxed);
        let mut written = 0;
        while written < data.len() {
            match rustix::io::pwrite(file, &data[written..], offset + written as u64) {
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(error) if written == 0 => return Err(of_errno(error)),
                Err(_) => break,
            }
        }
        self.metrics.written.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written as u32)
    }

    pub(super) fn commit(&self, reader: &mut Reader<'_>) -> Outcome {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        reader.u64()?;
        reader.u32()?;
        let (object, stat) = self.find(handle)?;
        let synced = is_file(&object).and_then(|()| self.sync(&object, false));
        // The verifier after the sync: if another sync has failed, earlier writes do not match it any more.
        let verf = writeverf3(self.verifier());
        let file_wcc = wcc_data { before: before(&stat), after: after(object.stat()) };
        Ok(match synced {
            Ok(()) => done(&COMMIT3resok { file_wcc, verf }),
            Err(error) => failed(error, &file_wcc),
        })
    }
}

fn is_file(object: &Object) -> Result<(), nfsstat3> {
    match object.kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(nfsstat3::NFS3ERR_ISDIR),
        _ => Err(nfsstat3::NFS3ERR_INVAL),
    }
}
