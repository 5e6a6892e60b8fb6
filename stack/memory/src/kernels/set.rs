//! What a set of kernels consists of.

/// A set of variants. Lengths may be 0; the ranges do not overlap.
pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    /// Register, octets, length; gives the register.
    pub(crate) crc32c: unsafe fn(u32, *const u8, usize) -> u32,
    /// Whether `crc32c_sum` takes one pass.
    pub(crate) one_pass: bool,
    /// Register, octets, length; gives the register and the partial sum, see [`checksum_sum`](super::checksum_sum).
    pub(crate) crc32c_sum: unsafe fn(u32, *const u8, usize) -> (u32, u32),
    /// Target, source, length. The target may be read and written by others at the same time.
    pub(crate) copy_in: unsafe fn(*mut u8, *const u8, usize),
    /// Target, source, length. The source may be written by others at the same time.
    pub(crate) copy_out: unsafe fn(*mut u8, *const u8, usize),
    /// Register, target, source, length; as `copy_out`. The CRC is that of the target.
    pub(crate) copy_out_crc32c: unsafe fn(u32, *mut u8, *const u8, usize) -> u32,
    /// Octets, length; gives a partial sum, see [`checksum_sum`](super::checksum_sum).
    pub(crate) sum: unsafe fn(*const u8, usize) -> u32,
}
