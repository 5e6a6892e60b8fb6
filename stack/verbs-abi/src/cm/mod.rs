//! The exports of librdmacm.

mod address;
mod channel;
mod connect;
mod dispatch;
mod endpoint;
mod identifier;
mod lookup;
mod port;
mod work_queues;
