//! sattr3, and SETATTR (RFC 1813 §2.6, §3.3.2).

use super::{Outcome, done, failed};
use crate::directory::attributes::{changed, of_errno, wcc};
use crate::directory::caller::Caller;
use crate::directory::object::Object;
use crate::directory::{Directory, may};
use nfs3_types::nfs3::{self, SETATTR3resok, nfsstat3, nfstime3};
use rustix::fs::{Access, AtFlags, CWD, FileType, Gid, Mode, Statx, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use uwarp_rpcrdma::xdr::{Reader, XdrError};

/// sattr3 (RFC 1813 §2.6).
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) times: [Timespec; 2],
}

/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;
const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };

impl Settings {
    pub(super) const NONE: Self = Self { mode: None, uid: None, gid: None, size: None, times: [OMIT; 2] };

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        let mut word = || -> Result<Option<u32>, XdrError> { reader.boolean()?.then(|| reader.u32()).transpose() };
        let (mode, uid, gid) = (word()?, word()?, word()?);
        let size = reader.boolean()?.then(|| reader.u64()).transpose()?;
        let mut times = [OMIT; 2];
        for time in &mut times {
            *time = match reader.u32()? {
                0 => OMIT,
                1 => NOW,
                // The system refuses an invalid number of nanoseconds, but its special values for "now" and "leave
                // unchanged" must not get through.
                2 => Timespec { tv_sec: reader.u32()?.into(), tv_nsec: reader.u32()?.min(SECOND).into() },
                _ => return Err(XdrError),
            };
        }
        Ok(Self { mode, uid, gid, size, times })
    }

    /// Permissions of a new object.
    pub(super) fn new_mode(&self, default: u32) -> Mode {
        Mode::from_raw_mode(self.mode.unwrap_or(default) & 0o7777)
    }
}

impl Directory {
    pub(super) fn setattr(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        let settings = Settings::parse(reader)?;
        let guard = reader.boolean()?.then(|| Ok::<_, XdrError>((reader.u32()?, reader.u32()?))).transpose()?;
        self.writable()?;
        let (object, _) = self.find(handle)?;
        let _lock = self.lock(object.key);
        let stat = object.stat()?;
        let wcc_now = || wcc(&stat, object.stat());
        let now = changed(&stat);
        if guard.is_some_and(|(seconds, nseconds)| nfstime3 { seconds, nseconds } != now) {
            return Ok(failed(nfsstat3::NFS3ERR_NOT_SYNC, &wcc_now()));
        }
        // Its new mode may not permit this process to open it.
        let set = self.prepare_sync(&object).and_then(|()| self.set(caller, &object, &stat, &settings));
        let set = set.and_then(|()| match object.kind {
            FileType::RegularFile | FileType::Directory => self.sync(&object, false),
            // Other kinds have no descriptor for syncing; their attributes are part of the file system's next
            // transaction.
            _ => Ok(()),
        });
        Ok(match set {
            Ok(()) => done(&SETATTR3resok { obj_wcc: wcc_now() }),
            Err(error) => failed(error, &wcc_now()),
        })
    }

    /// Sets attributes as the caller.
    pub(super) fn set(
        &self,
        caller: &Caller,
        object: &Object,
        stat: &Statx,
        settings: &Settings,
    ) -> Result<(), nfsstat3> {
        if let Some(size) = settings.size {
            match object.kind {
                FileType::RegularFile => {}
                FileType::Directory => return Err(nfsstat3::NFS3ERR_ISDIR),
                _ => return Err(nfsstat3::NFS3ERR_INVAL),
            }
            if i64::try_from(size).is_err() {
                return Err(nfsstat3::NFS3ERR_FBIG);
            }
            let writer = object.writer().map_err(of_errno)?;
            self.become_caller(caller)?;
            may(object, stat, Access::WRITE_OK)?;
            rustix::fs::ftruncate(writer, size).map_err(of_errno)?;
        }
        self.become_caller(caller)?;
        if settings.uid.is_some() || settings.gid.is_some() {
            // The last number would mean "leave unchanged" to the system.
            if settings.uid == Some(u32::MAX) || settings.gid == Some(u32::MAX) {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            let (uid, gid) = (settings.uid.map(Uid::from_raw), settings.gid.map(Gid::from_raw));
            rustix::fs::chownat(&object.path, "", uid, gid, AtFlags::EMPTY_PATH).map_err(of_errno)?;
        }
        if let Some(mode) = settings.mode {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            rustix::fs::chmodat(CWD, object.link(), mode, AtFlags::empty()).map_err(of_errno)?;
        }
        let [access, modification] = settings.times;
        let are = |wanted: &[_]| settings.times.iter().all(|time| wanted.contains(&time.tv_nsec));
        if are(&[UTIME_OMIT]) {
            return Ok(());
        }
        let set = |last_access, last_modification| {
            let times = Timestamps { last_access, last_modification };
            rustix::fs::utimensat(CWD, object.link(), &times, AtFlags::empty())
        };
        match set(access, modification) {
            // Whoever may write may set the server's time, as those do who truncate a file. The system lets others than
            // the owner do that for both times only.
            Err(Errno::PERM) if are(&[UTIME_OMIT, UTIME_NOW]) => set(NOW, NOW),
            set => set,
        }
        .map_err(of_errno)
    }
}
