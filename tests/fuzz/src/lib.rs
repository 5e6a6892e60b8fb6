//! The code of the fuzz targets. It is a library so that `cargo test` can replay inputs without the fuzzer.
#![forbid(unsafe_code)]

mod cable;
mod frame;
mod markers;
mod memif_control;
mod mpa_startup;
mod nfs_call;
mod queue_pair;
mod rpc_header;
mod stream;
mod tcp;
mod verbs_calls;

pub use cable::cable;
pub use frame::frame;
pub use markers::markers;
pub use memif_control::memif_control;
pub use mpa_startup::mpa_startup;
pub use nfs_call::nfs_call;
pub use queue_pair::queue_pair;
pub use rpc_header::rpc_header;
pub use tcp::tcp;
pub use verbs_calls::verbs_calls;
