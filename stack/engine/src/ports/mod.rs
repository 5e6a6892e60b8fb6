//! The ports that an engine can run on.

pub mod decorated;
pub mod heap;
pub mod loopback;
pub mod sim;

pub use heap::{HeapBuffer, HeapPool};
pub use loopback::{LoopOptions, LoopPort};
