//! RDMA: memory, queue pairs, completion queues, and connections.

pub(crate) mod completion;
pub(crate) mod connection;
pub(crate) mod conversion;
pub(crate) mod domain;
pub(crate) mod durable;
pub(crate) mod event_channel;
pub(crate) mod file_region;
pub(crate) mod listener;
pub(crate) mod peer_to_peer;
pub(crate) mod queue_pair;
pub(crate) mod region;
pub(crate) mod remote;
pub(crate) mod request;
pub(crate) mod shared_receives;
pub(crate) mod storage;
pub(crate) mod window;
