//! NFS attributes of an object, and the status for an error.

use nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfsstat3, nfstime3, post_op_attr, pre_op_attr, specdata3, wcc_attr, wcc_data,
};
use rustix::fs::{FileType, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

/// The birth time of an object, in nanoseconds; zero if the file system does not store it.
pub(super) fn born(stat: &Statx) -> u64 {
    if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
        let seconds = u64::try_from(stat.stx_btime.tv_sec).unwrap_or(0);
        seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_btime.tv_nsec))
    } else {
        0
    }
}

fn time(time: &StatxTimestamp) -> nfstime3 {
    // NFS cannot express times before 1970 and after 2106.
    let seconds = u32::try_from(time.tv_sec.max(0)).unwrap_or(u32::MAX);
    nfstime3 { seconds, nseconds: time.tv_nsec }
}

/// fattr3 (RFC 1813 §2.6).
pub(super) fn attributes(stat: &Statx) -> fattr3 {
    let type_ = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::Directory => ftype3::NF3DIR,
        FileType::Symlink => ftype3::NF3LNK,
        FileType::BlockDevice => ftype3::NF3BLK,
        FileType::CharacterDevice => ftype3::NF3CHR,
        FileType::Socket => ftype3::NF3SOCK,
        FileType::Fifo => ftype3::NF3FIFO,
        _ => ftype3::NF3REG,
    };
    fattr3 {
        type_,
        mode: u32::from(stat.stx_mode) & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        used: stat.stx_blocks * 512,
        rdev: specdata3 { specdata1: stat.stx_rdev_major, specdata2: stat.stx_rdev_minor },
        fsid: u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor),
        fileid: stat.stx_ino,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
    }
}

/// post_op_attr of an object that may have been removed.
pub(super) fn after(stat: Result<Statx, Errno>) -> post_op_attr {
    stat.map_or(Nfs3Option::None, |stat| Nfs3Option::Some(attributes(&stat)))
}

/// pre_op_attr.
pub(super) fn before(stat: &Statx) -> pre_op_attr {
    Nfs3Option::Some(wcc_attr { size: stat.stx_size, mtime: time(&stat.stx_mtime), ctime: time(&stat.stx_ctime) })
}

/// Attributes before and after a change.
pub(super) fn wcc(before_it: &Statx, after_it: Result<Statx, Errno>) -> wcc_data {
    wcc_data { before: before(before_it), after: after(after_it) }
}

/// Change time, for a guard (RFC 1813 §3.3.2).
pub(super) fn changed(stat: &Statx) -> nfstime3 {
    time(&stat.stx_ctime)
}

/// nfsstat3 (RFC 1813 §2.6) for a system call's error.
pub(super) fn of_errno(error: Errno) -> nfsstat3 {
    match error {
        Errno::PERM => nfsstat3::NFS3ERR_PERM,
        Errno::NOENT => nfsstat3::NFS3ERR_NOENT,
        Errno::NXIO => nfsstat3::NFS3ERR_NXIO,
        // A mount point, or a symbolic link in place of a directory: never followed.
        Errno::ACCESS | Errno::XDEV | Errno::LOOP | Errno::BADF => nfsstat3::NFS3ERR_ACCES,
        Errno::EXIST => nfsstat3::NFS3ERR_EXIST,
        Errno::NODEV => nfsstat3::NFS3ERR_NODEV,
        Errno::NOTDIR => nfsstat3::NFS3ERR_NOTDIR,
        Errno::ISDIR => nfsstat3::NFS3ERR_ISDIR,
        Errno::INVAL => nfsstat3::NFS3ERR_INVAL,
        Errno::FBIG | Errno::OVERFLOW => nfsstat3::NFS3ERR_FBIG,
        Errno::NOSPC => nfsstat3::NFS3ERR_NOSPC,
        Errno::ROFS => nfsstat3::NFS3ERR_ROFS,
        Errno::MLINK => nfsstat3::NFS3ERR_MLINK,
        Errno::NAMETOOLONG => nfsstat3::NFS3ERR_NAMETOOLONG,
        Errno::NOTEMPTY => nfsstat3::NFS3ERR_NOTEMPTY,
        Errno::DQUOT => nfsstat3::NFS3ERR_DQUOT,
        Errno::STALE => nfsstat3::NFS3ERR_STALE,
        Errno::OPNOTSUPP => nfsstat3::NFS3ERR_NOTSUPP,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::BUSY => nfsstat3::NFS3ERR_JUKEBOX,
        _ => nfsstat3::NFS3ERR_IO,
    }
}
