//! READDIR and READDIRPLUS (RFC 1813 §3.3.16, §3.3.17).
//!
//! A cookie is the file system's own position behind an entry. It stays valid while names are added and removed, and
//! across restarts, so the cookie verifier is always zero.

use super::Directory;
use super::attributes::{after, attributes, of_errno};
use super::object::{Object, key_of};
use nfs3_types::nfs3::{Nfs3Option, nfsstat3, post_op_attr};
use nfs3_types::xdr_codec::Pack;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use std::sync::Arc;
use uwarp_app::lock;
use uwarp_rpcrdma::xdr::{put_opaque, put_u32, put_u64};

/// Octets of names that are read from the file system at once.
const ROOM: usize = 32 << 10;
/// Octets behind the entries: the end of the list, and whether it is the end of the directory.
const END: usize = 4 + 4;
/// The status, which is not counted.
const STATUS: usize = 4;
/// Most octets of a listing, whatever the client has room for.
const LISTING_MAX: usize = 1 << 20;

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) cookie: u64,
    /// Octets of the whole result.
    pub(super) most: u32,
    /// READDIRPLUS: octets of names and cookies alone.
    pub(super) plus: Option<u32>,
}

/// A directory's descriptor with its own position, as the thread's current user.
fn open(directory: &Object) -> Result<OwnedFd, Errno> {
    if directory.kind != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Not by a name within itself, for which the user would need the right to search it.
    rustix::fs::open(directory.link(), how, Mode::empty())
}

/// All names of a directory.
pub(super) fn names(directory: &Object) -> Result<Vec<Vec<u8>>, Errno> {
    let opened = open(directory)?;
    let mut room = Vec::with_capacity(ROOM);
    let mut entries = RawDir::new(opened, room.spare_capacity_mut());
    let mut out = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            out.push(name.to_vec());
        }
    }
    Ok(out)
}

impl Directory {
    /// Part of a listing, preceded by the directory's attributes: the result of READDIR or READDIRPLUS. The thread must
    /// act as the caller.
    pub(super) fn list(&self, directory: &Arc<Object>, question: Question) -> Result<Vec<u8>, nfsstat3> {
        let opened = open(directory).map_err(of_errno)?;
        // The right to read it covers its entries and their positions; using the names below needs the right to search
        // it.
        if question.cookie != 0 {
            rustix::fs::seek(&opened, SeekFrom::Start(question.cookie)).map_err(|_| nfsstat3::NFS3ERR_BAD_COOKIE)?;
        }
        let mut out = Vec::new();
        put_u32(&mut out, nfsstat3::NFS3_OK as u32);
        pack_into(&mut out, &after(directory.stat()));
        put_u64(&mut out, 0);
        let (begin, most) = (out.len(), (question.most as usize).min(LISTING_MAX));
        let limit = (STATUS + most).checked_sub(END).ok_or(nfsstat3::NFS3ERR_TOOSMALL)?;
        let (mut room, mut names, mut ended) = (Vec::with_capacity(ROOM), 0, true);
        let mut entries = RawDir::new(&opened, room.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(of_errno)?;
            let (name, from) = (entry.file_name().to_bytes(), out.len());
            put_u32(&mut out, 1);
            // Reveal nothing above the root.
            let above = name == b".." && directory.key == self.root.key;
            put_u64(&mut out, if above { self.root.key.inode } else { entry.ino() });
            put_opaque(&mut out, name);
            put_u64(&mut out, entry.next_entry_cookie());
            names += out.len() - from;
            if question.plus.is_some() {
                self.describe(directory, name, &mut out);
            }
            let too_long = out.len() > limit || question.plus.is_some_and(|most| names > most as usize && from > begin);
            if too_long {
                out.truncate(from);
                ended = false;
                break;
            }
        }
        if out.len() == begin && !ended {
            return Err(nfsstat3::NFS3ERR_TOOSMALL);
        }
        put_u32(&mut out, 0);
        put_u32(&mut out, u32::from(ended));
        Ok(out)
    }

    /// Attributes and handle of an entry; absent if the caller may not look it up, or if it belongs to another file
    /// system.
    fn describe(&self, directory: &Arc<Object>, name: &[u8], out: &mut Vec<u8>) {
        let looked = match name {
            b"." => directory.stat(),
            b".." => Err(Errno::ACCESS),
            _ => self.look(directory, name),
        };
        let Ok(stat) = looked else {
            put_u32(out, 0);
            put_u32(out, 0);
            return;
        };
        let key = key_of(&stat);
        if name != b"." {
            lock(&self.index).learn(key, directory.key, name);
        }
        pack_into::<post_op_attr>(out, &Nfs3Option::Some(attributes(&stat)));
        pack_into(out, &Nfs3Option::Some(self.handle(key)));
    }
}

/// Packs a value of NFS's types.
pub(super) fn pack_into<T: Pack>(out: &mut Vec<u8>, value: &T) {
    out.reserve(value.packed_size());
    // System calls return nothing that is too long for XDR.
    value.pack(out).expect("memory takes what is packed");
}
