//! The exports of libibverbs.

pub(crate) mod channel;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod domain;
pub(crate) mod events;
pub(crate) mod names;
pub(crate) mod post;
pub(crate) mod queue_pair;
pub(crate) mod region;
pub(crate) mod shared_receives;
pub(crate) mod window;
pub(crate) mod work_builder;
