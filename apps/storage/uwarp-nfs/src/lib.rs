//! NFS version 3 over RDMA: a server of a directory, and a gateway in front of a server that speaks TCP.
//!
//! A client's calls arrive by RPC-over-RDMA, with their data in chunks. The server executes them on a local directory.
//! The gateway passes them to a server as records on a TCP stream, and passes back its replies. It leaves the RPC layer
//! unchanged: XIDs, credentials of any flavor, verifiers.
//!
//! - [`server`]: connections over RDMA and TCP; [`service`] executes each [`call`] from them once ([`duplicates`]).
//! - [`directory`]: NFS on a directory. [`programs`]: MOUNT and the port mapper.
//! - [`gateways`], [`gateway`], [`backend`], [`relay`]: the gateway.
//! - [`clients`]: which clients are served. [`records`], [`stream`]: RPC over TCP. [`metrics`]: counters.
#![forbid(unsafe_code)]

pub mod backend;
pub mod call;
pub mod clients;
mod connecting;
mod descriptors;
pub mod directory;
pub mod duplicates;
pub mod gateway;
pub mod gateways;
pub mod metrics;
pub mod programs;
pub mod records;
pub mod relay;
pub mod server;
pub mod service;
pub mod stream;
