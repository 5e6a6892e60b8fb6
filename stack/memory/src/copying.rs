//! Octets of registered memory, copied elsewhere or read through a small buffer.

#[cfg(all(test, not(loom)))]
mod tests;

use std::ptr::NonNull;

use crate::kernels;
use crate::registration::{RangeError, Registration};
use crate::shared_bytes;

/// Octets that lie between two regions while they are copied: few, so that they stay in the nearest cache.
const PIECE: usize = 4096;
/// Octets of a chunk: as many as the widest kernels of a hash function take at once.
const CHUNK: usize = 16 << 10;

impl Registration {
    /// Copies octets to another region, or within this one, where the ranges may overlap. They are no snapshot if
    /// others write meanwhile.
    ///
    /// # Errors
    /// [`RangeError::Bounds`]: one of the ranges is not inside its region. Nothing was copied.
    pub fn copy_to(
        &self,
        offset: usize,
        length: usize,
        target: &Registration,
        target_offset: usize,
    ) -> Result<(), RangeError> {
        let from = self.locate(offset, length)?;
        let to = target.locate(target_offset, length)?;
        // An octet must be read before it is overwritten, so the order depends on where the target begins.
        let backward = (from.addr().get()..from.addr().get() + length).contains(&to.addr().get());
        let pieces = length.div_ceil(PIECE);
        for piece in 0..pieces {
            let at = PIECE * if backward { pieces - 1 - piece } else { piece };
            // SAFETY: `at` is below `length`, and both ranges are within their regions, which are borrowed.
            unsafe { copy_piece(from.add(at), to.add(at), (length - at).min(PIECE)) };
        }
        Ok(())
    }

    /// Calls `take` with copies of the range's octets, in order, in chunks of up to 16 KiB: to hash or to search them.
    /// A peer cannot change a chunk that `take` sees.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn read_chunks(&self, offset: usize, length: usize, mut take: impl FnMut(&[u8])) -> Result<(), RangeError> {
        let start = self.locate(offset, length)?;
        let mut room = [0; CHUNK];
        let mut at = 0;
        while at < length {
            let chunk = &mut room[..(length - at).min(CHUNK)];
            // SAFETY: `at` is below `length`, and the range is within the region, which is borrowed.
            unsafe { shared_bytes::load(start.add(at), chunk) };
            take(chunk);
            at += chunk.len();
        }
        Ok(())
    }

    /// The CRC32C (RFC 3385) of the range's octets. If others write meanwhile, each octet counts as the old or the new
    /// one.
    ///
    /// # Errors
    /// [`RangeError::Bounds`].
    pub fn crc32c(&self, offset: usize, length: usize) -> Result<u32, RangeError> {
        let start = self.locate(offset, length)?;
        let mut room = [0; PIECE];
        let (mut register, mut at) = (kernels::CRC32C_START, 0);
        while at < length {
            let piece = &mut room[..(length - at).min(PIECE)];
            // SAFETY: `at` is below `length`, and the range is within the region, which is borrowed.
            register = unsafe { shared_bytes::load_crc32c(start.add(at), piece, register) };
            at += piece.len();
        }
        Ok(!register)
    }
}

/// Copies up to [`PIECE`] octets. The ranges may overlap.
///
/// # Safety
/// `from` must be valid for reads of `length` octets, and `to` for writes.
unsafe fn copy_piece(from: NonNull<u8>, to: NonNull<u8>, length: usize) {
    let mut room = [0; PIECE];
    let octets = &mut room[..length];
    // SAFETY: the caller's promise.
    unsafe {
        shared_bytes::load(from, octets);
        shared_bytes::store(to, octets);
    }
}
