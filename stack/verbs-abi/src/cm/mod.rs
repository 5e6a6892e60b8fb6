//! The exports of librdmacm.

mod address;
mod channel;
mod connect;
mod dispatch;
mod endpoint;
mod identifier;
mod lookup;
pub(crate) mod port;
mod work_queues;
