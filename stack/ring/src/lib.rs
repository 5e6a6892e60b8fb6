//! Rings, doorbells and notifications between application threads and engines.
//!
//! - [`ring`]: a single-producer single-consumer ring of plain values, used for send and receive queues and completion
//!   lanes. The consumer may look at any element, and releases elements separately from reading them, because the
//!   elements of a send queue stay in the ring until their work completes.
//! - [`byte_ring`]: a single-producer single-consumer ring of octets, read and written in runs; one per direction of a
//!   plain stream.
//! - [`Doorbells`]: a bitmap by which any thread tells one engine which queues have new elements.
//! - [`Notifier`]: an eventfd that is written only if a thread has armed it, so that polling costs no system call.
//! - [`BiasedLock`]: a lock that costs the thread which uses it nearly always no atomic operation.
//! - [`Helm`]: which thread turns an engine, by such a lock; only the engine's own thread ever waits for it.
//! - [`Claims`]: a table of which engine has what, such as a flow.
//! - [`Shares`]: the accounts of a queue that has several users.
//! - [`cable`]: frames between two processes in memory that both have mapped, and the table of who owns which port.
//!
//! Nothing else here takes a lock, and nothing allocates after construction. The ends of a ring are `Send` but not
//! `Sync`: by type, one thread at a time owns each of them.
//!
//! Loom models check the memory orderings: `RUSTFLAGS="--cfg loom" cargo test -p uwarp-ring --release`.

// Two threads access the elements through shared cells; the cursors decide which thread may. Two processes access a
// cable's memory through atomics and copies.
#![allow(unsafe_code)]

mod biased;
mod bytes;
#[cfg(not(loom))]
pub mod cable;
mod claims;
mod doorbell;
mod helm;
mod notifier;
mod shares;
mod slot;
mod spsc;
mod sync;

#[cfg(test)]
mod models;

pub use biased::{BiasedGuard, BiasedLock};
pub use bytes::{ByteConsumer, ByteProducer, byte_ring};
pub use claims::{Claim, Claims};
pub use doorbell::Doorbells;
pub use helm::{Held, Helm};
pub use notifier::{Bell, Notifier};
pub use shares::Shares;
pub use slot::Slot;
pub use spsc::{Consumer, Gauge, Producer, Reservation, ring};
