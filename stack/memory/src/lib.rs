//! Registered memory: regions and their STags, the checks before every access, and the kernels that move octets.
//!
//! A [`RegionTable`] belongs to a context. Applications [`register`](RegionTable::register) buffers and get a
//! [`Registration`]. Each engine has an [`EngineEpoch`], enters it once a turn, and places and gathers through the
//! [`Turn`]. Deregistering revokes the STag and waits until every engine has left a turn in which it may have seen the
//! STag valid. From then on nothing writes to the buffer.
//!
//! Peers may change registered memory at any time, so no reference to it exists meanwhile. The application reads and
//! writes it through the registration, which copies or has the kernel move octets to and from files. It has a slice
//! after deregistration, for the time of a [`Lease`], or if nobody else may write. Engines copy here by raw pointers,
//! in the [`kernels`].
//!
//! The protocol between turns and revocations has a loom model: `RUSTFLAGS="--cfg loom" cargo test -p uwarp-memory
//! --release`.

// Registered memory is shared with peers, which know nothing of borrows. It is accessed by raw pointers, and only here.
// The kernels are processor intrinsics.
#![allow(unsafe_code)]

mod access;
mod atomics;
mod buffer;
mod copying;
mod cycles;
mod durable;
mod epoch;
mod file;
pub mod kernels;
mod key;
mod lease;
mod mapped;
mod mapping;
mod options;
mod persist;
mod registration;
mod shared_bytes;
mod slot;
mod sync;
mod table;
mod turn;
mod window;

pub use access::{Access, AccessError, Association, BindError, DomainId, InvalidateError, Scope, StreamId};
pub use atomics::{AtomicError, CompareSwap, add_fields};
pub use buffer::{PageAdvice, RegionBuffer};
pub use cycles::cycles;
pub use durable::{CommitMailbox, CommitReply, CommitStatus, CommitStream, Committer, Durable, EngineCommitter, Store};
pub use epoch::GracePeriod;
pub use file::{FileError, FileErrorReason, RegionPart, read_file, write_file};
pub use lease::{Lease, LendError};
pub use mapped::{MapError, MappedReadError, MappedRegistration};
pub use mapping::catch_truncated_files;
pub use options::{ChangeError, RegionChange, RegisterError, TaggedBase, Unregistered};
pub use registration::{RangeError, Registration};
pub use table::RegionTable;
pub use turn::{CommitTarget, EngineEpoch, KeptRange, OpenRegion, PersistentRange, Turn};
pub use window::{BindPiece, ForeignStag, Window};
