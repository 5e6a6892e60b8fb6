//! The procedures of NFS version 3 (RFC 1813 §3.3) on a directory.

use super::attributes::{after, attributes, before, changed, of_errno, wcc};
use super::caller::Caller;
use super::listing::{Question, pack_into};
use super::{Directory, Object, become_server, key_of, locked, may};
use nfs3_types::nfs3::{
    self, ACCESS3resok, COMMIT3resok, CREATE3resok, FSINFO3resok, FSSTAT3resok, LINK3resok, LOOKUP3resok, Nfs3Option,
    PATHCONF3resok, RENAME3resok, SETATTR3resok, WRITE3resok, nfsstat3, nfstime3, post_op_attr, stable_how, wcc_data,
    writeverf3,
};
use nfs3_types::xdr_codec::Pack;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Statx, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::{Reader, XdrError, put_u32};

/// Numbers of the procedures.
pub mod number {
    #![allow(missing_docs)]
    pub const NULL: u32 = 0;
    pub const GETATTR: u32 = 1;
    pub const SETATTR: u32 = 2;
    pub const LOOKUP: u32 = 3;
    pub const ACCESS: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const READ: u32 = 6;
    pub const WRITE: u32 = 7;
    pub const CREATE: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const SYMLINK: u32 = 10;
    pub const MKNOD: u32 = 11;
    pub const REMOVE: u32 = 12;
    pub const RMDIR: u32 = 13;
    pub const RENAME: u32 = 14;
    pub const LINK: u32 = 15;
    pub const READDIR: u32 = 16;
    pub const READDIRPLUS: u32 = 17;
    pub const FSSTAT: u32 = 18;
    pub const FSINFO: u32 = 19;
    pub const PATHCONF: u32 = 20;
    pub const COMMIT: u32 = 21;
}

/// Names of the procedures, by number.
pub const NAMES: [&str; 22] = [
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

/// Most octets of a READ or a WRITE.
pub const TRANSFER_MAX: u32 = 1 << 20;
/// Octets of a directory that clients best ask for at once.
const LISTING: u32 = 64 << 10;
/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// Whether a procedure changes something and must not be carried out twice for one call: its reply is remembered.
pub fn changes(procedure: u32) -> bool {
    matches!(procedure, number::SETATTR | number::WRITE..=number::LINK)
}

/// Why a procedure has no results of the usual kind.
enum Refusal {
    /// The arguments cannot be read.
    Garbage,
    /// An error of NFS.
    Error(nfsstat3),
}

impl From<XdrError> for Refusal {
    fn from(_: XdrError) -> Self {
        Self::Garbage
    }
}

impl From<nfsstat3> for Refusal {
    fn from(error: nfsstat3) -> Self {
        Self::Error(error)
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Error(of_errno(error))
    }
}

type Outcome = Result<Vec<Part>, Refusal>;

/// sattr3 (RFC 1813 §2.6).
#[derive(Clone, Copy, Debug)]
struct Settings {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    times: [Timespec; 2],
}

const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };

impl Settings {
    const NONE: Self = Self { mode: None, uid: None, gid: None, size: None, times: [OMIT; 2] };

    fn parse(reader: &mut Reader<'_>) -> Result<Self, XdrError> {
        let mut word = || -> Result<Option<u32>, XdrError> { reader.boolean()?.then(|| reader.u32()).transpose() };
        let (mode, uid, gid) = (word()?, word()?, word()?);
        let size = reader.boolean()?.then(|| reader.u64()).transpose()?;
        let mut times = [OMIT; 2];
        for time in &mut times {
            *time = match reader.u32()? {
                0 => OMIT,
                1 => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                2 => Timespec { tv_sec: reader.u32()?.into(), tv_nsec: reader.u32()?.into() },
                _ => return Err(XdrError),
            };
        }
        Ok(Self { mode, uid, gid, size, times })
    }

    /// Permissions of a new object.
    fn new_mode(&self, default: u32) -> Mode {
        Mode::from_raw_mode(self.mode.unwrap_or(default) & 0o7777)
    }
}

/// The result of a success, less data that stands alone.
fn done<T: Pack>(results: &T) -> Vec<Part> {
    let mut out = Vec::with_capacity(4 + results.packed_size());
    put_u32(&mut out, nfsstat3::NFS3_OK as u32);
    pack_into(&mut out, results);
    vec![Part::Octets(out)]
}

/// An error with what belongs behind it.
fn failed<T: Pack>(error: nfsstat3, rest: &T) -> Vec<Part> {
    let mut out = Vec::new();
    put_u32(&mut out, error as u32);
    pack_into(&mut out, rest);
    vec![Part::Octets(out)]
}

/// A name that something may be made or removed under.
fn own_name(name: &[u8]) -> Result<&[u8], nfsstat3> {
    match name {
        b"" | b"." | b".." => Err(nfsstat3::NFS3ERR_INVAL),
        _ if name.contains(&b'/') || name.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        _ if name.len() > 255 => Err(nfsstat3::NFS3ERR_NAMETOOLONG),
        _ => Ok(name),
    }
}

impl Directory {
    /// Carries a call out. `arguments` are as the binding of NFS takes them apart: the data of WRITE and the path of SYMLINK stand
    /// alone. `room` is memory for the data of a READ.
    pub fn call(&self, caller: &Caller, procedure: u32, arguments: &[Part], room: Vec<u8>) -> Answer {
        let head = match arguments.first() {
            Some(Part::Octets(octets)) => &octets[..],
            _ => &[],
        };
        let item = arguments.iter().find_map(|part| match part {
            Part::Item(octets) => Some(&octets[..]),
            Part::Octets(_) => None,
        });
        let mut reader = Reader::new(head);
        let outcome = match (procedure, item) {
            (number::NULL, _) => return Answer::success(Vec::new()),
            (number::GETATTR, _) => self.getattr(&mut reader),
            (number::SETATTR, _) => self.setattr(caller, &mut reader),
            (number::LOOKUP, _) => self.lookup(caller, &mut reader),
            (number::ACCESS, _) => self.access(caller, &mut reader),
            (number::READLINK, _) => self.readlink(&mut reader),
            (number::READ, _) => self.read(caller, &mut reader, room),
            (number::WRITE, Some(data)) => self.write(caller, &mut reader, data),
            (number::CREATE, _) => self.create(caller, &mut reader),
            (number::MKDIR, _) => self.mkdir(caller, &mut reader),
            (number::SYMLINK, Some(target)) => self.symlink(caller, &mut reader, target),
            (number::MKNOD, _) => self.mknod(caller, &mut reader),
            (number::REMOVE, _) => self.remove(caller, &mut reader, false),
            (number::RMDIR, _) => self.remove(caller, &mut reader, true),
            (number::RENAME, _) => self.rename(caller, &mut reader),
            (number::LINK, _) => self.link(caller, &mut reader),
            (number::READDIR, _) => self.readdir(caller, &mut reader, false),
            (number::READDIRPLUS, _) => self.readdir(caller, &mut reader, true),
            (number::FSSTAT, _) => self.fsstat(&mut reader),
            (number::FSINFO, _) => self.fsinfo(&mut reader),
            (number::PATHCONF, _) => self.pathconf(&mut reader),
            (number::COMMIT, _) => self.commit(&mut reader),
            (number::WRITE | number::SYMLINK, None) => Err(Refusal::Garbage),
            _ => return Answer::failure(Status::ProcedureUnavailable),
        };
        match outcome {
            Ok(results) => Answer::success(results),
            Err(Refusal::Garbage) => Answer::failure(Status::GarbageArguments),
            // All other errors of a call stand before absent attributes.
            Err(Refusal::Error(error)) => Answer::success(vec![Part::Octets(bare(procedure, error))]),
        }
    }

    fn handle_of(&self, reader: &mut Reader<'_>) -> Result<(Arc<Object>, Statx), Refusal> {
        Ok(self.find(reader.opaque(nfs3::NFS3_FHSIZE)?)?)
    }

    /// A directory, and a name for something in it.
    fn place<'a>(&self, reader: &mut Reader<'a>) -> Result<(Arc<Object>, Statx, &'a [u8]), Refusal> {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        let name = reader.opaque(usize::MAX)?;
        let (directory, stat) = self.find(handle)?;
        if directory.kind != FileType::Directory {
            return Err(nfsstat3::NFS3ERR_NOTDIR.into());
        }
        Ok((directory, stat, name))
    }

    fn writable(&self) -> Result<(), nfsstat3> {
        if self.options.read_only { Err(nfsstat3::NFS3ERR_ROFS) } else { Ok(()) }
    }

    fn getattr(&self, reader: &mut Reader<'_>) -> Outcome {
        let (_, stat) = self.handle_of(reader)?;
        Ok(done(&attributes(&stat)))
    }

    fn setattr(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
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
        let set = self.set(caller, &object, &stat, &settings).and_then(|()| match object.kind {
            FileType::RegularFile | FileType::Directory => self.sync(&object, false),
            // Others have no descriptor to sync by; their attributes go with the file system's next transaction.
            _ => Ok(()),
        });
        Ok(match set {
            Ok(()) => done(&SETATTR3resok { obj_wcc: wcc_now() }),
            Err(error) => failed(error, &wcc_now()),
        })
    }

    /// Sets attributes as the caller.
    fn set(&self, caller: &Caller, object: &Object, stat: &Statx, settings: &Settings) -> Result<(), nfsstat3> {
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
            may(object, stat, caller, Access::WRITE_OK)?;
            rustix::fs::ftruncate(writer, size).map_err(of_errno)?;
        }
        self.become_caller(caller)?;
        if settings.uid.is_some() || settings.gid.is_some() {
            // The last number would mean "as it is" to the system.
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
        if settings.times.iter().any(|time| time.tv_nsec != UTIME_OMIT) {
            let times = Timestamps { last_access: settings.times[0], last_modification: settings.times[1] };
            rustix::fs::utimensat(CWD, object.link(), &times, AtFlags::empty()).map_err(of_errno)?;
        }
        Ok(())
    }

    fn lookup(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let (directory, _, name) = self.place(reader)?;
        let found = match name {
            b"." => directory.stat().map(|stat| (Arc::clone(&directory), stat)).map_err(of_errno),
            b".." => {
                self.parent(&directory).and_then(|parent| parent.stat().map(|stat| (parent, stat)).map_err(of_errno))
            }
            _ if name.contains(&b'/') || name.is_empty() => Err(nfsstat3::NFS3ERR_ACCES),
            _ => self.become_caller(caller).and_then(|()| self.step(&directory, name).map_err(of_errno)),
        };
        let dir_attributes = after(directory.stat());
        Ok(match found {
            Ok((object, stat)) => done(&LOOKUP3resok {
                object: self.handle(object.key),
                obj_attributes: Nfs3Option::Some(attributes(&stat)),
                dir_attributes,
            }),
            Err(error) => failed(error, &dir_attributes),
        })
    }

    fn access(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let (object, stat) = self.handle_of(reader)?;
        let asked = reader.u32()?;
        self.become_caller(caller)?;
        let link = object.link();
        let allowed = |access| rustix::fs::accessat(CWD, &link, access, AtFlags::EACCESS).is_ok();
        let is_directory = object.kind == FileType::Directory;
        let mut granted = 0;
        for (bits, access) in [
            (nfs3::ACCESS3_READ, Access::READ_OK),
            (if is_directory { nfs3::ACCESS3_LOOKUP } else { nfs3::ACCESS3_EXECUTE }, Access::EXEC_OK),
            (nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND, Access::WRITE_OK),
            (if is_directory { nfs3::ACCESS3_DELETE } else { 0 }, Access::WRITE_OK),
        ] {
            let changes = access == Access::WRITE_OK;
            if asked & bits != 0 && !(changes && self.options.read_only) && allowed(access) {
                granted |= asked & bits;
            }
        }
        Ok(done(&ACCESS3resok { obj_attributes: Nfs3Option::Some(attributes(&stat)), access: granted }))
    }

    fn readlink(&self, reader: &mut Reader<'_>) -> Outcome {
        let (object, stat) = self.handle_of(reader)?;
        let symlink_attributes: post_op_attr = Nfs3Option::Some(attributes(&stat));
        if object.kind != FileType::Symlink {
            return Ok(failed(nfsstat3::NFS3ERR_INVAL, &symlink_attributes));
        }
        match rustix::fs::readlinkat(&object.path, "", Vec::new()) {
            Ok(target) => {
                let target = target.into_bytes();
                let mut out = Vec::new();
                put_u32(&mut out, nfsstat3::NFS3_OK as u32);
                pack_into(&mut out, &symlink_attributes);
                // A path is shorter than PATH_MAX.
                put_u32(&mut out, target.len() as u32);
                Ok(vec![Part::Octets(out), Part::Item(target)])
            }
            Err(error) => Ok(failed(of_errno(error), &symlink_attributes)),
        }
    }

    fn read(&self, caller: &Caller, reader: &mut Reader<'_>, mut room: Vec<u8>) -> Outcome {
        let (object, stat) = self.handle_of(reader)?;
        let (offset, count) = (reader.u64()?, reader.u32()?);
        let count = count.min(TRANSFER_MAX) as usize;
        let got = (|| {
            is_file(&object)?;
            let file = object.reader().map_err(of_errno)?;
            self.become_caller(caller)?;
            // A program may be run by those who may not read it, and their machine reads it.
            may(&object, &stat, caller, Access::READ_OK).or_else(|error| {
                let link = object.link();
                rustix::fs::accessat(CWD, link, Access::EXEC_OK, AtFlags::EACCESS).map_err(|_| error)
            })?;
            room.resize(count, 0);
            let mut got = 0;
            // Beyond what the system can count there is nothing.
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

    fn write(&self, caller: &Caller, reader: &mut Reader<'_>, data: &[u8]) -> Outcome {
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
        // What is written now is covered by this word and no later one.
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

    /// Writes as the caller; how much was written, which is less than all when the disk is full.
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
        may(object, stat, caller, Access::WRITE_OK)?;
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

    fn commit(&self, reader: &mut Reader<'_>) -> Outcome {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        reader.u64()?;
        reader.u32()?;
        let (object, stat) = self.find(handle)?;
        let synced = is_file(&object).and_then(|()| self.sync(&object, false));
        // The word of afterwards: where another sync has met an error, what was written before does not fit it any more.
        let verf = writeverf3(self.verifier());
        let file_wcc = wcc_data { before: before(&stat), after: after(object.stat()) };
        Ok(match synced {
            Ok(()) => done(&COMMIT3resok { file_wcc, verf }),
            Err(error) => failed(error, &file_wcc),
        })
    }

    /// Makes something new in a directory by `make`, which gives it its name, and answers as CREATE and its like do.
    fn make(
        &self,
        caller: &Caller,
        reader: &mut Reader<'_>,
        make: impl FnOnce(&Self, &Object, &[u8], &mut Reader<'_>) -> Result<Settings, Refusal>,
    ) -> Outcome {
        let (directory, _, name) = self.place(reader)?;
        self.writable()?;
        let _lock = self.lock(directory.key);
        let stat = directory.stat()?;
        let made = (|| {
            let name = own_name(name)?;
            self.become_caller(caller)?;
            let settings = make(self, &directory, name, reader)?;
            self.become_caller(caller)?;
            let (object, _) = self.step(&directory, name)?;
            let new = object.stat()?;
            self.set(caller, &object, &new, &settings)?;
            // Owner and mode are set after it has its name, which the directory's sync does not bring along. Others have no
            // descriptor to sync by.
            if matches!(object.kind, FileType::RegularFile | FileType::Directory) {
                match self.sync(&object, false) {
                    // Made so that its owner cannot read it, and this process is the owner: it is there all the same.
                    Err(nfsstat3::NFS3ERR_ACCES) => {}
                    synced => synced?,
                }
            }
            self.sync(&directory, false)?;
            Ok((self.handle(object.key), object.stat()))
        })();
        let dir_wcc = wcc(&stat, directory.stat());
        match made {
            Ok((handle, stat)) => {
                Ok(done(&CREATE3resok { obj: Nfs3Option::Some(handle), obj_attributes: after(stat), dir_wcc }))
            }
            Err(Refusal::Error(error)) => Ok(failed(error, &dir_wcc)),
            Err(Refusal::Garbage) => Err(Refusal::Garbage),
        }
    }

    fn create(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        const UNCHECKED: u32 = 0;
        const GUARDED: u32 = 1;
        const EXCLUSIVE: u32 = 2;
        self.make(caller, reader, |this, directory, name, reader| {
            let how = reader.u32()?;
            let (settings, verifier) = match how {
                UNCHECKED | GUARDED => (Settings::parse(reader)?, None),
                EXCLUSIVE => (Settings::NONE, Some((reader.u32()?, reader.u32()?))),
                _ => return Err(Refusal::Garbage),
            };
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
            let mode = if verifier.is_some() { Mode::RUSR | Mode::WUSR } else { settings.new_mode(0o644) };
            match rustix::fs::openat(&directory.path, name, flags, mode) {
                Ok(_) => {
                    // The verifier is kept where the client will write times afterwards (RFC 1813 §3.3.8).
                    let times = verifier.map_or(settings.times, |(one, other)| mark(one, other));
                    let mode = settings.mode.filter(|_| verifier.is_none());
                    Ok(Settings { mode, times, size: settings.size.filter(|&size| size != 0), ..settings })
                }
                Err(Errno::EXIST) if how != GUARDED => {
                    let stat = this.look(directory, name)?;
                    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
                    match verifier {
                        Some((one, other)) => {
                            let [accessed, modified] = mark(one, other).map(|time| time.tv_sec);
                            let same = stat.stx_atime.tv_sec == accessed && stat.stx_mtime.tv_sec == modified;
                            if !(is_file && same && stat.stx_size == 0) {
                                return Err(nfsstat3::NFS3ERR_EXIST.into());
                            }
                            Ok(Settings::NONE)
                        }
                        None if is_file => Ok(Settings { size: settings.size, ..Settings::NONE }),
                        None => Err(nfsstat3::NFS3ERR_EXIST.into()),
                    }
                }
                Err(error) => Err(error.into()),
            }
        })
    }

    fn mkdir(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        self.make(caller, reader, |_, directory, name, reader| {
            let settings = Settings::parse(reader)?;
            rustix::fs::mkdirat(&directory.path, name, settings.new_mode(0o755))?;
            // The bits beyond permissions, that mkdir leaves to the system, are the directory's as it was made.
            let mode = settings.mode.filter(|mode| mode & 0o7000 != 0);
            Ok(Settings { mode, size: None, ..settings })
        })
    }

    fn symlink(&self, caller: &Caller, reader: &mut Reader<'_>, target: &[u8]) -> Outcome {
        self.make(caller, reader, |_, directory, name, reader| {
            let settings = Settings::parse(reader)?;
            if target.len() > TARGET_MAX {
                return Err(nfsstat3::NFS3ERR_NAMETOOLONG.into());
            }
            rustix::fs::symlinkat(target, &directory.path, name)?;
            // A symbolic link has no permissions of its own.
            Ok(Settings { mode: None, size: None, ..settings })
        })
    }

    fn mknod(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        self.make(caller, reader, |_, directory, name, reader| {
            let kind = match reader.u32()? {
                3 => FileType::BlockDevice,
                4 => FileType::CharacterDevice,
                6 => FileType::Socket,
                7 => FileType::Fifo,
                _ => return Err(nfsstat3::NFS3ERR_BADTYPE.into()),
            };
            let settings = Settings::parse(reader)?;
            let device = match kind {
                FileType::BlockDevice | FileType::CharacterDevice => rustix::fs::makedev(reader.u32()?, reader.u32()?),
                _ => 0,
            };
            rustix::fs::mknodat(&directory.path, name, kind, settings.new_mode(0o644), device)?;
            Ok(Settings { size: None, ..settings })
        })
    }

    fn remove(&self, caller: &Caller, reader: &mut Reader<'_>, a_directory: bool) -> Outcome {
        let (directory, _, name) = self.place(reader)?;
        self.writable()?;
        let _lock = self.lock(directory.key);
        let stat = directory.stat()?;
        let removed = (|| {
            let name = own_name(name)?;
            // Before anything is looked at: the thread may still be the caller before.
            self.become_caller(caller)?;
            let gone = self.look(&directory, name).map_err(of_errno)?;
            let flags = if a_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            rustix::fs::unlinkat(&directory.path, name, flags).map_err(of_errno)?;
            self.left(&gone, &directory, name);
            self.sync(&directory, false)
        })();
        let dir_wcc = wcc(&stat, directory.stat());
        Ok(match removed {
            Ok(()) => done(&dir_wcc),
            Err(error) => failed(error, &dir_wcc),
        })
    }

    /// An object has lost a name; one without any is let go. `was`: its attributes before that.
    fn left(&self, was: &Statx, directory: &Object, name: &[u8]) {
        let key = key_of(was);
        locked(&self.index).forget(key, directory.key, name);
        let open = locked(&self.open).get(key);
        let is_gone = match open {
            Some(object) => object.stat().is_ok_and(|stat| stat.stx_nlink == 0),
            // A directory has one name.
            None => was.stx_nlink <= 1 || FileType::from_raw_mode(was.stx_mode.into()) == FileType::Directory,
        };
        if is_gone {
            self.gone(key);
        }
    }

    fn rename(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let (from, _, from_name) = self.place(reader)?;
        let (to, _, to_name) = self.place(reader)?;
        self.writable()?;
        let _tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        let _locks = self.lock_two(from.key, to.key);
        let (from_stat, to_stat) = (from.stat()?, to.stat()?);
        let renamed = (|| {
            let (from_name, to_name) = (own_name(from_name)?, own_name(to_name)?);
            self.become_caller(caller)?;
            let moved = key_of(&self.look(&from, from_name).map_err(of_errno)?);
            let replaced = self.look(&to, to_name).ok();
            rustix::fs::renameat(&from.path, from_name, &to.path, to_name).map_err(|error| match error {
                // The word for two directories that do not fit (RFC 1813 §3.3.14).
                Errno::NOTEMPTY => nfsstat3::NFS3ERR_NOTEMPTY,
                Errno::XDEV => nfsstat3::NFS3ERR_XDEV,
                other => of_errno(other),
            })?;
            // Two names of one file stay both.
            if replaced.as_ref().map(key_of) != Some(moved) {
                if let Some(replaced) = &replaced {
                    self.left(replaced, &to, to_name);
                }
                locked(&self.index).forget(moved, from.key, from_name);
            }
            locked(&self.index).learn(moved, to.key, to_name);
            self.sync(&to, false)?;
            if from.key == to.key { Ok(()) } else { self.sync(&from, false) }
        })();
        let wccs = RENAME3resok { fromdir_wcc: wcc(&from_stat, from.stat()), todir_wcc: wcc(&to_stat, to.stat()) };
        Ok(match renamed {
            Ok(()) => done(&wccs),
            Err(error) => failed(error, &wccs),
        })
    }

    fn link(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        let (directory, _, name) = self.place(reader)?;
        self.writable()?;
        let (object, _) = self.find(handle)?;
        let _lock = self.lock(directory.key);
        let stat = directory.stat()?;
        let linked = (|| {
            let name = own_name(name)?;
            self.become_caller(caller)?;
            let linked = rustix::fs::linkat(CWD, object.link(), &directory.path, name, AtFlags::SYMLINK_FOLLOW);
            linked.map_err(|error| if error == Errno::XDEV { nfsstat3::NFS3ERR_XDEV } else { of_errno(error) })?;
            locked(&self.index).learn(object.key, directory.key, name);
            self.sync(&directory, false)
        })();
        let results = LINK3resok { file_attributes: after(object.stat()), linkdir_wcc: wcc(&stat, directory.stat()) };
        Ok(match linked {
            Ok(()) => done(&results),
            Err(error) => failed(error, &results),
        })
    }

    fn readdir(&self, caller: &Caller, reader: &mut Reader<'_>, plus: bool) -> Outcome {
        let (directory, stat) = self.handle_of(reader)?;
        let cookie = reader.u64()?;
        // The verifier, which says nothing here.
        reader.u64()?;
        let names = plus.then(|| reader.u32()).transpose()?;
        let question = Question { cookie, most: reader.u32()?, plus: names };
        self.become_caller(caller)?;
        match self.list(&directory, question) {
            Ok(results) => Ok(vec![Part::Octets(results)]),
            Err(error) => Ok(failed::<post_op_attr>(error, &Nfs3Option::Some(attributes(&stat)))),
        }
    }

    fn fsstat(&self, reader: &mut Reader<'_>) -> Outcome {
        let (object, stat) = self.handle_of(reader)?;
        let is = rustix::fs::fstatvfs(&object.path)?;
        Ok(done(&FSSTAT3resok {
            obj_attributes: Nfs3Option::Some(attributes(&stat)),
            tbytes: is.f_blocks.saturating_mul(is.f_frsize),
            fbytes: is.f_bfree.saturating_mul(is.f_frsize),
            abytes: is.f_bavail.saturating_mul(is.f_frsize),
            tfiles: is.f_files,
            ffiles: is.f_ffree,
            afiles: is.f_favail,
            invarsec: 0,
        }))
    }

    fn fsinfo(&self, reader: &mut Reader<'_>) -> Outcome {
        let (_, stat) = self.handle_of(reader)?;
        Ok(done(&FSINFO3resok {
            obj_attributes: Nfs3Option::Some(attributes(&stat)),
            rtmax: TRANSFER_MAX,
            rtpref: TRANSFER_MAX,
            rtmult: 4096,
            wtmax: TRANSFER_MAX,
            wtpref: TRANSFER_MAX,
            wtmult: 4096,
            dtpref: LISTING,
            maxfilesize: i64::MAX as u64,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: nfs3::FSF3_LINK | nfs3::FSF3_SYMLINK | nfs3::FSF3_HOMOGENEOUS | nfs3::FSF3_CANSETTIME,
        }))
    }

    fn pathconf(&self, reader: &mut Reader<'_>) -> Outcome {
        let (object, stat) = self.handle_of(reader)?;
        let is = rustix::fs::fstatvfs(&object.path)?;
        Ok(done(&PATHCONF3resok {
            obj_attributes: Nfs3Option::Some(attributes(&stat)),
            // What ext4 allows; file systems have no call that says it.
            linkmax: 65_000,
            name_max: u32::try_from(is.f_namemax).unwrap_or(255),
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }))
    }
}

/// The times that stand for a verifier of an exclusive CREATE: numbers of seconds that every file system can hold.
fn mark(one: u32, other: u32) -> [Timespec; 2] {
    [one, other].map(|word| Timespec { tv_sec: i64::from(word & 0x7fff_ffff), tv_nsec: 0 })
}

fn is_file(object: &Object) -> Result<(), nfsstat3> {
    match object.kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(nfsstat3::NFS3ERR_ISDIR),
        _ => Err(nfsstat3::NFS3ERR_INVAL),
    }
}

/// An error in front of attributes that are all absent.
fn bare(procedure: u32, error: nfsstat3) -> Vec<u8> {
    let words = match procedure {
        number::GETATTR => 0,
        number::SETATTR | number::WRITE | number::CREATE..=number::RMDIR | number::COMMIT => 2,
        number::RENAME => 4,
        number::LINK => 3,
        _ => 1,
    };
    let mut out = (error as u32).to_be_bytes().to_vec();
    out.resize(4 + 4 * words, 0);
    out
}

/// Makes this thread the server again: after calls it goes on with the last caller's rights, since the next call is mostly theirs.
pub fn rest() {
    become_server();
}
