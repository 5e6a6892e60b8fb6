//! The binding of NFS version 3 (RFC 1813; RFC 8267 §3): the data of READ and WRITE and the paths of READLINK and
//! SYMLINK are DDP-eligible.

use crate::binding::{Binding, Greatest};
use crate::walk::{Walk, WalkError};
use crate::xdr::Reader;
use std::ops::RangeInclusive;

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// TCP port of NFS over RDMA (RFC 8166 §5), directly over iWARP.
pub const PORT: u16 = 20_049;

const READLINK: u32 = 5;
const READ: u32 = 6;
const WRITE: u32 = 7;
const SYMLINK: u32 = 10;
/// Number of procedures (RFC 1813 §3).
const PROCEDURES: u32 = 22;

/// Octets of a file handle (RFC 1813 §2.4).
const HANDLE_MAX: usize = 64;
/// Octets of the longest file name: RFC 1813 sets no limit, file systems do.
const NAME_MAX: usize = 1024;
/// Octets of the longest path of a symbolic link: RFC 1813 sets no limit, POSIX systems do.
pub const PATH_MAX: u32 = 4096;

// Octets of results (RFC 1813 §2.5, §2.6, §3.3), each at its longest.
const STATUS: usize = 4;
const ATTRIBUTES: usize = 84;
const POST_OP_ATTRIBUTES: usize = 4 + ATTRIBUTES;
const HANDLE: usize = 4 + HANDLE_MAX;
const POST_OP_HANDLE: usize = 4 + HANDLE;
const WCC: usize = 4 + 24 + POST_OP_ATTRIBUTES;

/// The binding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nfs3;

fn post_op_attributes(walk: &mut Walk<'_>) -> Result<(), WalkError> {
    if walk.boolean()? { walk.skip(ATTRIBUTES) } else { Ok(()) }
}

/// sattr3 (RFC 1813 §2.6).
fn settable_attributes(walk: &mut Walk<'_>) -> Result<(), WalkError> {
    // Mode, owner, group, size.
    for octets in [4, 4, 4, 8] {
        if walk.boolean()? {
            walk.skip(octets)?;
        }
    }
    // Times of access and of modification: unchanged, the server's time, or the client's.
    for _ in 0..2 {
        match walk.u32()? {
            0 | 1 => {}
            2 => walk.skip(8)?,
            _ => return Err(WalkError::Garbage),
        }
    }
    Ok(())
}

impl Binding for Nfs3 {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        3..=3
    }

    fn arguments(&self, _version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError> {
        match procedure {
            WRITE => {
                walk.opaque(HANDLE_MAX)?;
                // Offset, count, stability.
                walk.skip(16)?;
                walk.eligible_opaque(u32::MAX)?;
            }
            SYMLINK => {
                walk.opaque(HANDLE_MAX)?;
                walk.opaque(NAME_MAX)?;
                settable_attributes(walk)?;
                walk.eligible_opaque(PATH_MAX)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn results(&self, _version: u32, procedure: u32, walk: &mut Walk<'_>) -> Result<(), WalkError> {
        if !matches!(procedure, READ | READLINK) || walk.u32()? != 0 {
            return Ok(());
        }
        post_op_attributes(walk)?;
        if procedure == READ {
            // Count and end of file.
            walk.skip(8)?;
            walk.eligible_opaque(u32::MAX)?;
        } else {
            walk.eligible_opaque(PATH_MAX)?;
        }
        Ok(())
    }

    fn greatest(&self, _version: u32, procedure: u32, arguments: &[u8]) -> Option<Greatest> {
        let mut reader = Reader::new(arguments);
        Some(match procedure {
            0 => Greatest::of(0),
            1 => Greatest::of(STATUS + ATTRIBUTES),
            2 | 12 | 13 => Greatest::of(STATUS + WCC),
            3 => Greatest::of(STATUS + HANDLE + 2 * POST_OP_ATTRIBUTES),
            4 => Greatest::of(STATUS + POST_OP_ATTRIBUTES + 4),
            READLINK => Greatest::with_item(STATUS + POST_OP_ATTRIBUTES + 4, PATH_MAX),
            READ => {
                reader.opaque(HANDLE_MAX).ok()?;
                reader.u64().ok()?;
                Greatest::with_item(STATUS + POST_OP_ATTRIBUTES + 12, reader.u32().ok()?)
            }
            WRITE => Greatest::of(STATUS + WCC + 16),
            8..=11 => Greatest::of(STATUS + POST_OP_HANDLE + POST_OP_ATTRIBUTES + WCC),
            14 => Greatest::of(STATUS + 2 * WCC),
            15 => Greatest::of(STATUS + POST_OP_ATTRIBUTES + WCC),
            16 | 17 => {
                reader.opaque(HANDLE_MAX).ok()?;
                // Cookie and its verifier; READDIRPLUS also counts the octets of names.
                reader.take(if procedure == 16 { 16 } else { 20 }).ok()?;
                let count = reader.u32().ok()? as usize;
                // The count covers the whole result; an error has attributes.
                Greatest::of(STATUS + count.max(POST_OP_ATTRIBUTES))
            }
            18 => Greatest::of(STATUS + POST_OP_ATTRIBUTES + 52),
            19 => Greatest::of(STATUS + POST_OP_ATTRIBUTES + 48),
            20 => Greatest::of(STATUS + POST_OP_ATTRIBUTES + 24),
            21 => Greatest::of(STATUS + WCC + 8),
            PROCEDURES.. => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::Removed;
    use crate::xdr::{put_opaque, put_u32, put_u64};

    fn write(data: &[u8]) -> (Vec<u8>, usize) {
        let mut out = Vec::new();
        put_opaque(&mut out, &[9; 20]);
        put_u64(&mut out, 1 << 33);
        put_u32(&mut out, data.len() as u32);
        put_u32(&mut out, 2);
        let at = out.len() + 4;
        put_opaque(&mut out, data);
        (out, at)
    }

    fn items(procedure: u32, octets: &[u8], results: bool) -> Result<Vec<(usize, u32)>, WalkError> {
        let mut walk = Walk::new(octets, 100, Removed::Nothing);
        if results {
            Nfs3.results(3, procedure, &mut walk)?
        } else {
            Nfs3.arguments(3, procedure, &mut walk)?
        };
        Ok(walk.finish()?.into_iter().map(|item| (item.at, item.length)).collect())
    }

    #[test]
    fn the_data_of_a_write_and_the_path_of_a_symlink_are_eligible() {
        let (octets, at) = write(b"hello");
        assert_eq!(items(WRITE, &octets, false), Ok(vec![(at, 5)]));
        for cut in 0..octets.len() {
            assert_eq!(items(WRITE, &octets[..cut], false), Err(WalkError::Garbage));
        }
        let mut symlink = Vec::new();
        put_opaque(&mut symlink, &[9; 64]);
        put_opaque(&mut symlink, b"name");
        // Mode and size are set, access time to the client's.
        for word in [1, 0o777, 0, 0, 1, 0, 5, 2, 11, 12, 0] {
            put_u32(&mut symlink, word);
        }
        let at = symlink.len() + 4;
        put_opaque(&mut symlink, b"../there");
        assert_eq!(items(SYMLINK, &symlink, false), Ok(vec![(at, 8)]));
        assert_eq!(items(8, &symlink, false), Ok(vec![]), "nothing in a CREATE");
    }

    #[test]
    fn the_data_of_a_read_and_the_path_of_a_readlink_are_eligible_if_they_succeeded() {
        for (procedure, words) in [(READ, 2), (READLINK, 0)] {
            for attributes in [false, true] {
                let mut out = Vec::new();
                put_u32(&mut out, 0);
                put_u32(&mut out, u32::from(attributes));
                out.extend(vec![3; if attributes { ATTRIBUTES } else { 0 } + 4 * words]);
                let at = out.len() + 4;
                put_opaque(&mut out, b"seven77");
                assert_eq!(items(procedure, &out, true), Ok(vec![(at, 7)]));
                out[3] = 2;
                assert_eq!(items(procedure, &out, true), Ok(vec![]), "an error has no data");
            }
        }
    }

    #[test]
    fn every_procedure_has_a_greatest_reply() {
        let mut read = Vec::new();
        put_opaque(&mut read, &[1; 32]);
        put_u64(&mut read, 0);
        put_u32(&mut read, 1 << 20);
        for _ in 0..3 {
            put_u32(&mut read, 7);
        }
        for procedure in 0..PROCEDURES {
            let greatest = Nfs3.greatest(3, procedure, &read).unwrap();
            assert_eq!(greatest.items.len(), usize::from(matches!(procedure, READ | READLINK)), "{procedure}");
            assert!(greatest.rest.is_multiple_of(4) || matches!(procedure, 16 | 17));
        }
        assert_eq!(Nfs3.greatest(3, READ, &read).unwrap().items, [1 << 20]);
        assert_eq!(Nfs3.greatest(3, READ, &read[..20]), None);
        assert_eq!(Nfs3.greatest(3, PROCEDURES, &read), None);
    }

    /// Octets of the largest result of each procedure, computed from the types of RFC 1813 §2.6 and §3.3.
    #[test]
    fn the_greatest_results_are_those_of_the_document() {
        let greatest = |procedure| Nfs3.greatest(3, procedure, &[]).unwrap().whole();
        let expected = [
            (0, 0),
            (1, 88),
            (2, 120),
            (3, 248),
            (4, 96),
            (WRITE, 136),
            (8, 280),
            (11, 280),
            (12, 120),
            (14, 236),
            (15, 208),
            (18, 144),
            (19, 140),
            (20, 116),
            (21, 128),
        ];
        for (procedure, octets) in expected {
            assert_eq!(greatest(procedure), octets, "procedure {procedure}");
        }
    }
}
