//! The element of work queues: one cache line.

/// Sixty-four octets, aligned to a cache line. The two sides of the ring define the meaning of the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Slot(pub [u64; 8]);

impl Slot {
    /// A slot of zeros.
    pub const ZERO: Slot = Slot([0; 8]);
}

const _: () = assert!(size_of::<Slot>() == 64 && align_of::<Slot>() == 64);
