//! The exports of librdmacm, over those of libibverbs. Files use only those of the groups above theirs, or of their
//! own.

// Addresses, ports, and channels with events.
pub(crate) mod address;
pub(crate) mod channel;
mod lookup;
pub(crate) mod port;

// Identifiers.
mod ask;
mod endpoint;
mod get_event;
pub(crate) mod identifier;
mod resolve;
mod work_queues;

// Connections: outcomes, and the calls that begin and end them.
mod connect;
pub(crate) mod endings;
pub(crate) mod outcome;
