//! NFS over RDMA in front of an NFS server that speaks TCP.
//!
//! A client's calls come by RPC-over-RDMA, with their data in chunks; they go to the server as records on a TCP stream, whole, and
//! its replies the other way. Everything of the RPC stays as it is: XIDs, credentials of any flavor, verifiers.
#![forbid(unsafe_code)]

pub mod backend;
pub mod gateway;
pub mod relay;
