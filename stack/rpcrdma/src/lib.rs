//! RPC-over-RDMA version 1 (RFC 8166): remote procedure calls (ONC RPC, RFC 5531) whose messages travel in RDMA Sends, and whose
//! large data items, the *chunks*, travel by RDMA Read and RDMA Write.
//!
//! - [`header`]: the transport header, and what to do with a wrong one.
//! - [`private_data`]: what the peers tell each other when they connect (RFC 8797).
//! - [`rpc`]: the headers of ONC RPC messages.
//! - [`xdr`]: the few XDR types that these are made of.
//! - [`binding`]: what a program says about its data items and replies; [`nfs3`] is that of NFS version 3.
//! - [`walk`]: finds the items in arguments and results, whole or reduced.
//! - [`plan`]: which chunks a call needs.
//! - [`credits`]: how many calls may be under way.
#![forbid(unsafe_code)]

pub mod binding;
pub mod credits;
pub mod header;
pub mod nfs3;
pub mod plan;
pub mod private_data;
pub mod rpc;
pub mod walk;
pub mod xdr;
