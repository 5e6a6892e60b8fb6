//! Queue pairs that programs move and connect themselves. Where the device is one of RoCE, the two that name each other
//! find each other here. Files use only those above theirs.

mod hello;
pub(crate) mod meeting;
mod modify;
mod not_ready;
