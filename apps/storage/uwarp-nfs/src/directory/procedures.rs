//! The procedures of NFS version 3 (RFC 1813 §3.3) on a directory. Those that read are here; `settings`, `data` and
//! `names` change it.

mod data;
mod names;
mod settings;

use super::attributes::{after, attributes, of_errno};
use super::caller::Caller;
use super::listing::{Question, pack_into};
use super::object::Object;
use super::{Directory, become_server, number};
use nfs3_types::nfs3::{
    self, ACCESS3resok, FSINFO3resok, FSSTAT3resok, LOOKUP3resok, Nfs3Option, PATHCONF3resok, nfsstat3, nfstime3,
    post_op_attr,
};
use nfs3_types::xdr_codec::Pack;
use rustix::fs::{Access, AtFlags, CWD, FileType, Statx};
use rustix::io::Errno;
use std::sync::Arc;
use uwarp_rpcrdma::responder::Answer;
use uwarp_rpcrdma::rpc::Status;
use uwarp_rpcrdma::walk::Part;
use uwarp_rpcrdma::xdr::{Reader, XdrError, put_u32};

/// Most octets of a READ or a WRITE.
pub const TRANSFER_MAX: u32 = 1 << 20;
/// Octets of a directory that clients should request at once.
const LISTING: u32 = 64 << 10;

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

/// The result of a success, without data that is a part of its own.
fn done<T: Pack>(results: &T) -> Vec<Part> {
    let mut out = Vec::with_capacity(4 + results.packed_size());
    put_u32(&mut out, nfsstat3::NFS3_OK as u32);
    pack_into(&mut out, results);
    vec![Part::Octets(out)]
}

/// An error, with the results that follow it.
fn failed<T: Pack>(error: nfsstat3, rest: &T) -> Vec<Part> {
    let mut out = Vec::new();
    put_u32(&mut out, error as u32);
    pack_into(&mut out, rest);
    vec![Part::Octets(out)]
}

impl Directory {
    /// Executes a call. `arguments` are as the binding of NFS splits them: the data of WRITE and the path of SYMLINK
    /// are parts of their own. `room` is memory for the data of a READ.
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
            // All other errors of a call precede absent attributes.
            Err(Refusal::Error(error)) => Answer::success(vec![Part::Octets(bare(procedure, error))]),
        }
    }

    fn handle_of(&self, reader: &mut Reader<'_>) -> Result<(Arc<Object>, Statx), Refusal> {
        Ok(self.find(reader.opaque(nfs3::NFS3_FHSIZE)?)?)
    }

    /// A directory, and a name for an object in it.
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
            // ext4's limit; no call returns a file system's limit.
            linkmax: 65_000,
            name_max: u32::try_from(is.f_namemax).unwrap_or(255),
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }))
    }
}

/// An error followed by absent attributes.
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

/// Makes this thread act as the server again. After a call it keeps the last caller's rights, since the next call is
/// usually from the same caller.
pub fn rest() {
    become_server();
}
