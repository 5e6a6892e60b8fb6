//! The ports that an engine can run on.

pub mod decorated;
pub mod heap;
pub mod loopback;
pub mod middlebox;
mod offload;
pub mod sim;

pub use decorated::Decorated;
pub use heap::{HeapBuffer, HeapPool};
pub use loopback::{LoopOptions, LoopPort};
