//! A replicated durable log over RDMA Commit: one writer, and one or three targets that lend it memory in which
//! committed data is durable.
//!
//! The writer does all the work. It writes each record into the targets' regions and has it committed
//! (draft-talpey-rdma-commit), both in one request. A record is *acknowledged* when most targets have answered: no
//! application of a target has to wake up for that. This library has no I/O, so the same code runs over devices, over
//! simulated networks, and in models:
//!
//! - [`record`]: records, each of which names the one before it.
//! - [`layout`]: the layout of a target's file and region.
//! - [`auth`]: how the two sides prove to each other that they know the log's secret.
//! - [`message`]: the other messages between the two sides.
//! - [`writer`]: quorums, recovery, returning targets, targets that want their memory back.
//! - [`target`]: who may write, and what a file contains.
//!
//! # Guarantee
//! Every later writer finds an acknowledged record, as long as most targets keep what they had committed, and until the
//! record is dropped to make room. The word `head` of a region never names a record that its store does not have.
//!
//! # How it works
//! 1. A writer asks at least most targets for admission, with an *epoch* above all that they have seen. A target stores
//!    that epoch in its file, ends the connection of the previous writer, and registers the region anew. The STag that
//!    the previous writer knows is then invalid on every connection, so it cannot add anything. What it had committed
//!    is in the file.
//! 2. The writer reads their heads, looks for valid records behind them, and takes the longest log of the latest epoch.
//!    What was acknowledged is on most targets, and so on one of these; the one with the latest epoch has all of it.
//! 3. Data in memory may not be in the store yet: the previous writer may have died between Write and Commit. So the
//!    end of the chosen log is committed once more in place.
//! 4. The other targets get the missing part from there, by RDMA Read and by Write with Commit. A mark of the new epoch
//!    is appended; when it is acknowledged, the log is open. From then on records of former writers behind the end are
//!    invalid, since the epoch never decreases from record to record.
//! 5. The head is written only when the record that it names is committed: Commit, Write of 8 octets, Commit.
#![forbid(unsafe_code)]

pub mod auth;
pub mod layout;
pub mod message;
pub mod record;
pub mod target;
pub mod writer;
