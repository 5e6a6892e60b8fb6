//! A replicated durable log over RDMA Commit: one writer, and one or three targets that lend it memory which keeps what is
//! committed.
//!
//! The writer does all the work. It writes each record into the targets' regions and has it committed
//! (draft-talpey-rdma-commit), both in one request, and a record is *acknowledged* when most targets have answered: no
//! application of a target has to wake up for that. What is in this library has no I/O, so that the same code runs over
//! devices, over simulated networks, and over nothing:
//!
//! - [`record`]: records, each of which names the one before it.
//! - [`layout`]: where everything lies in a target's file and region.
//! - [`auth`]: how the two sides prove to each other that they know the log's secret.
//! - [`message`]: what the two sides say to each other besides.
//! - [`writer`]: quorums, recovery, targets that were away, targets that want their memory back.
//! - [`target`]: who may write, and what a file holds.
//!
//! # What is promised
//! A record that was acknowledged is found by every later writer, as long as most targets keep what they had committed, and
//! until it is dropped to make room. The word `head` of a region never names a record that its store does not have.
//!
//! # How
//! 1. A writer asks most targets at least to be let in, with an *epoch* above all that they have seen. A target keeps that
//!    promise in its file, ends the connection of the writer before, and registers the region anew, so that the STag which
//!    that one knows is invalid on every connection: it cannot add anything any more. What it had committed is in the file.
//! 2. It reads their heads, looks for valid records behind them, and takes the longest log of the latest epoch. What was
//!    acknowledged is on most targets, and so on one of these; with the latest epoch it is the one that has it all.
//! 3. Memory is not yet store: the writer that died may have written what it did not commit. So the chosen log's end is
//!    committed once more where it lies.
//! 4. The others get what they lack from there, by RDMA Read and by Write with Commit. A mark of the new epoch is appended; when
//!    it is acknowledged, the log is open. From then on records of former writers behind the end are not valid any more,
//!    since an epoch never goes down from record to record.
//! 5. The head is written only when the record that it names is committed: Commit, Write of 8 octets, Commit.
#![forbid(unsafe_code)]

pub mod auth;
pub mod layout;
pub mod message;
pub mod record;
pub mod target;
pub mod writer;
