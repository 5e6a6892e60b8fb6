//! NFS version 3 over RDMA: a server of a directory, and a gateway in front of a server that speaks TCP.
//!
//! A client's calls come by RPC-over-RDMA, with their data in chunks. The server carries them out in a directory of this machine.
//! The gateway hands them to a server as records on a TCP stream, whole, and its replies the other way: there everything of the RPC
//! stays as it is, XIDs, credentials of any flavor, verifiers.
//!
//! - [`server`]: connections over RDMA and TCP; [`service`] carries their calls out, each once ([`duplicates`]).
//! - [`directory`]: NFS on a directory. [`programs`]: MOUNT and the port mapper.
//! - [`gateways`], [`gateway`], [`backend`], [`relay`]: the gateway.
//! - [`clients`]: which clients are served. [`records`], [`stream`]: RPC over TCP. [`metrics`]: what was done.
#![forbid(unsafe_code)]

pub mod backend;
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
