//! Creating, moving and removing names: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK (RFC 1813 §3.3.8
//! to §3.3.15).

use super::settings::Settings;
use super::{Outcome, Refusal, done, failed};
use crate::directory::Directory;
use crate::directory::attributes::{after, of_errno, wcc};
use crate::directory::caller::Caller;
use crate::directory::object::{Object, key_of};
use nfs3_types::nfs3::{self, CREATE3resok, LINK3resok, Nfs3Option, RENAME3resok, nfs_fh3, nfsstat3};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, Timespec};
use rustix::io::Errno;
use uwarp_app::lock;
use uwarp_rpcrdma::xdr::Reader;

/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// The remaining work for an object that has its name.
struct Made {
    settings: Settings,
    /// A new file, open for reading and writing, which its mode may not permit any more.
    file: Option<OwnedFd>,
    /// Repeating the call would succeed.
    repeats: bool,
}

impl From<Settings> for Made {
    fn from(settings: Settings) -> Self {
        Self { settings, file: None, repeats: false }
    }
}

impl Directory {
    /// Creates an object in a directory by `make`, which gives it its name, and answers as CREATE and similar
    /// procedures do.
    fn make(
        &self,
        caller: &Caller,
        reader: &mut Reader<'_>,
        make: impl FnOnce(&Self, &Object, &[u8], &mut Reader<'_>) -> Result<Made, Refusal>,
    ) -> Outcome {
        let (directory, _, name) = self.place(reader)?;
        self.writable()?;
        let _lock = self.lock(directory.key);
        let stat = directory.stat()?;
        let made = (|| {
            let name = own_name(name)?;
            self.prepare_sync(&directory)?;
            self.become_caller(caller)?;
            let made = make(self, &directory, name, reader)?;
            let repeats = made.repeats;
            self.finish(caller, &directory, name, made).map_err(|error| match error {
                // "Try again later" would promise that nothing was done.
                nfsstat3::NFS3ERR_JUKEBOX if !repeats => nfsstat3::NFS3ERR_IO.into(),
                error => Refusal::Error(error),
            })
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

    /// Sets the attributes of a new object, and syncs it and its name; returns its handle and attributes.
    fn finish(
        &self,
        caller: &Caller,
        directory: &Object,
        name: &[u8],
        made: Made,
    ) -> Result<(nfs_fh3, Result<Statx, Errno>), nfsstat3> {
        self.become_caller(caller)?;
        let (object, new) = self.step(directory, name).map_err(of_errno)?;
        if let Some(file) = made.file {
            object.keep_writer(file);
        }
        self.set(caller, &object, &new, &made.settings)?;
        // Owner and mode are set after it has its name, so the directory's sync does not include them. Other kinds have
        // no descriptor for syncing.
        if matches!(object.kind, FileType::RegularFile | FileType::Directory) {
            self.sync(&object, false)?;
        }
        self.sync(directory, false)?;
        Ok((self.handle(object.key), object.stat()))
    }

    pub(super) fn create(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
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
                Ok(file) => {
                    // The verifier is stored where the client will set times afterwards (RFC 1813 §3.3.8).
                    let times = verifier.map_or(settings.times, |(one, other)| mark(one, other));
                    let mode = settings.mode.filter(|_| verifier.is_none());
                    let settings = Settings { mode, times, size: settings.size.filter(|&size| size != 0), ..settings };
                    Ok(Made { settings, file: Some(file), repeats: how == UNCHECKED })
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
                            Ok(Made { repeats: true, ..Settings::NONE.into() })
                        }
                        None if is_file => {
                            let settings = Settings { size: settings.size, ..Settings::NONE };
                            Ok(Made { repeats: true, ..settings.into() })
                        }
                        None => Err(nfsstat3::NFS3ERR_EXIST.into()),
                    }
                }
                Err(error) => Err(error.into()),
            }
        })
    }

    pub(super) fn mkdir(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        self.make(caller, reader, |_, directory, name, reader| {
            let settings = Settings::parse(reader)?;
            rustix::fs::mkdirat(&directory.path, name, settings.new_mode(0o755))?;
            // mkdir leaves the bits beyond permissions to the system; keep those of the new directory.
            let mode = settings.mode.filter(|mode| mode & 0o7000 != 0);
            Ok(Settings { mode, size: None, ..settings }.into())
        })
    }

    pub(super) fn symlink(&self, caller: &Caller, reader: &mut Reader<'_>, target: &[u8]) -> Outcome {
        self.make(caller, reader, |_, directory, name, reader| {
            let settings = Settings::parse(reader)?;
            if target.len() > TARGET_MAX {
                return Err(nfsstat3::NFS3ERR_NAMETOOLONG.into());
            }
            rustix::fs::symlinkat(target, &directory.path, name)?;
            // A symbolic link has no permissions of its own.
            Ok(Settings { mode: None, size: None, ..settings }.into())
        })
    }

    pub(super) fn mknod(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
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
            Ok(Settings { size: None, ..settings }.into())
        })
    }

    pub(super) fn remove(&self, caller: &Caller, reader: &mut Reader<'_>, a_directory: bool) -> Outcome {
        let (directory, _, name) = self.place(reader)?;
        self.writable()?;
        let _lock = self.lock(directory.key);
        let stat = directory.stat()?;
        let removed = (|| {
            let name = own_name(name)?;
            self.prepare_sync(&directory)?;
            // Before any lookup: the thread may still act as the previous caller.
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

    /// An object has lost a name; one without any is forgotten. `was`: its attributes before that.
    fn left(&self, was: &Statx, directory: &Object, name: &[u8]) {
        let key = key_of(was);
        lock(&self.index).forget(key, directory.key, name);
        let open = lock(&self.open).get(key);
        let is_gone = match open {
            Some(object) => object.stat().is_ok_and(|stat| stat.stx_nlink == 0),
            // A directory has one name.
            None => was.stx_nlink <= 1 || FileType::from_raw_mode(was.stx_mode.into()) == FileType::Directory,
        };
        if is_gone {
            self.gone(key);
        }
    }

    pub(super) fn rename(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let (from, _, from_name) = self.place(reader)?;
        let (to, _, to_name) = self.place(reader)?;
        self.writable()?;
        let moving = self.moving()?;
        let _locks = self.lock_two(from.key, to.key);
        let (from_stat, to_stat) = (from.stat()?, to.stat()?);
        let renamed = (|| {
            let (from_name, to_name) = (own_name(from_name)?, own_name(to_name)?);
            self.prepare_sync(&to)?;
            self.prepare_sync(&from)?;
            self.become_caller(caller)?;
            let moved = key_of(&self.look(&from, from_name).map_err(of_errno)?);
            let replaced = match self.look(&to, to_name) {
                Ok(stat) => Some(stat),
                // The system would report a busy mount, and the client would be told to try again for ever.
                Err(Errno::XDEV) => return Err(of_errno(Errno::XDEV)),
                Err(_) => None,
            };
            rustix::fs::renameat(&from.path, from_name, &to.path, to_name).map_err(|error| match error {
                // The status for two directories that do not match (RFC 1813 §3.3.14).
                Errno::NOTEMPTY => nfsstat3::NFS3ERR_NOTEMPTY,
                Errno::XDEV => nfsstat3::NFS3ERR_XDEV,
                other => of_errno(other),
            })?;
            // Two names of one file stay both.
            if replaced.as_ref().map(key_of) != Some(moved) {
                if let Some(replaced) = &replaced {
                    self.left(replaced, &to, to_name);
                }
                lock(&self.index).forget(moved, from.key, from_name);
            }
            lock(&self.index).learn(moved, to.key, to_name);
            drop(moving);
            self.sync(&to, false)?;
            if from.key == to.key { Ok(()) } else { self.sync(&from, false) }
        })();
        let wccs = RENAME3resok { fromdir_wcc: wcc(&from_stat, from.stat()), todir_wcc: wcc(&to_stat, to.stat()) };
        Ok(match renamed {
            Ok(()) => done(&wccs),
            Err(error) => failed(error, &wccs),
        })
    }

    pub(super) fn link(&self, caller: &Caller, reader: &mut Reader<'_>) -> Outcome {
        let handle = reader.opaque(nfs3::NFS3_FHSIZE)?;
        let (directory, _, name) = self.place(reader)?;
        self.writable()?;
        let (object, _) = self.find(handle)?;
        let _lock = self.lock(directory.key);
        let stat = directory.stat()?;
        let linked = (|| {
            let name = own_name(name)?;
            self.prepare_sync(&directory)?;
            self.become_caller(caller)?;
            let linked = rustix::fs::linkat(CWD, object.link(), &directory.path, name, AtFlags::SYMLINK_FOLLOW);
            linked.map_err(|error| if error == Errno::XDEV { nfsstat3::NFS3ERR_XDEV } else { of_errno(error) })?;
            lock(&self.index).learn(object.key, directory.key, name);
            self.sync(&directory, false)
        })();
        let results = LINK3resok { file_attributes: after(object.stat()), linkdir_wcc: wcc(&stat, directory.stat()) };
        Ok(match linked {
            Ok(()) => done(&results),
            Err(error) => failed(error, &results),
        })
    }
}

/// A name that can be created or removed.
fn own_name(name: &[u8]) -> Result<&[u8], nfsstat3> {
    match name {
        b"" | b"." | b".." => Err(nfsstat3::NFS3ERR_INVAL),
        _ if name.contains(&b'/') || name.contains(&0) => Err(nfsstat3::NFS3ERR_INVAL),
        _ if name.len() > 255 => Err(nfsstat3::NFS3ERR_NAMETOOLONG),
        _ => Ok(name),
    }
}

/// The times that stand for the verifier of an exclusive CREATE: numbers of seconds that every file system can store.
fn mark(one: u32, other: u32) -> [Timespec; 2] {
    [one, other].map(|word| Timespec { tv_sec: i64::from(word & 0x7fff_ffff), tv_nsec: 0 })
}
