//! The exports of librdmacm.

mod address;
mod channel;
mod connect;
mod dispatch;
mod endings;
mod endpoint;
mod identifier;
mod lookup;
mod port;
mod work_queues;
