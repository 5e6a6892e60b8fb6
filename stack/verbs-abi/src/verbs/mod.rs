//! The exports of libibverbs. Files use only those of the groups above theirs, or of their own.

// The device, and those who have it open.
pub(crate) mod attributes;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod events;
mod interface;
pub(crate) mod names;

// Peers by their addresses.
pub(crate) mod address_handle;
pub(crate) mod peer;

// Memory and completions.
pub(crate) mod channel;
pub(crate) mod completion;
pub(crate) mod domain;
pub(crate) mod mapped;
pub(crate) mod region;

// Work, and the objects that take it.
pub(crate) mod builder;
pub(crate) mod datagrams;
pub(crate) mod link;
pub(crate) mod pair;
mod send_queue;
pub(crate) mod shared_receives;
pub(crate) mod window;
pub(crate) mod work;

// What a program does with all of these.
pub(crate) mod get_events;
pub(crate) mod open;
pub(crate) mod post;
pub(crate) mod queue_pair;
pub(crate) mod work_builder;
