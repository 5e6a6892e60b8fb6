//! RDMA over TCP (iWARP) in user space, on DPDK devices.
//!
//! TODO
#![forbid(unsafe_code)]

mod clock;
mod completion;
pub mod config;
mod connection;
mod context;
mod core;
mod driver;
mod error;
mod events;
pub mod monitor;
mod numbers;
mod open;
mod queue_pair;
mod region;
mod request;
pub mod stats;

pub use completion::CompletionQueue;
pub use config::{Config, ConfigError, DeviceConfig, FaultOptions};
pub use connection::{
    AcceptOptions, ConnectOptions, ConnectRequest, Connecting, Established, ListenOptions,
    Listener, MAX_PRIVATE_DATA,
};
pub use context::{Context, ProtectionDomain};
pub use error::{ConnectError, Error, PostError, PostErrorReason};
pub use events::AsyncEvents;
pub use queue_pair::{MAX_SGE, QueuePair, QueuePairOptions, QueuePairState};
pub use region::{MemoryRegion, RegionScope};
pub use request::{ReceiveRequest, SendRequest};
pub use stats::{StatsSnapshot, TcpInfo};
pub use uwarp_dpdk::MemifRole;
pub use uwarp_engine::command::{AsyncEvent, DisconnectReason, TerminateCode};
pub use uwarp_engine::work::{
    Completion, CompletionFlags, CompletionOpcode, MAX_INLINE, Sge, Status,
};
pub use uwarp_memory::{Access, PageAdvice, RegionBuffer};

#[cfg(test)]
mod thread_rules {
    //! What may cross and be shared between threads is part of the interface.

    use super::*;

    fn crosses<T: Send>() {}
    fn is_shared<T: Sync>() {}

    #[test]
    fn objects_cross_threads_and_only_handles_are_shared() {
        crosses::<QueuePair>();
        crosses::<CompletionQueue>();
        crosses::<Listener>();
        crosses::<ConnectRequest>();
        crosses::<ProtectionDomain>();
        crosses::<AsyncEvents>();
        crosses::<Context>();
        is_shared::<Context>();
        is_shared::<AsyncEvents>();
        is_shared::<ProtectionDomain>();
        crosses::<MemoryRegion>();
        is_shared::<MemoryRegion>();
    }
}
