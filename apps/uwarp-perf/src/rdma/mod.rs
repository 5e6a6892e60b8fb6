//! The RDMA tests. The client connects a control connection and the data queue pairs, requests a test, and measures;
//! the server follows its instructions.

mod bandwidth;
mod client;
mod latency;
mod layout;
mod server;
mod session;
mod wire;

pub use client::run as client;
pub use server::run as server;
