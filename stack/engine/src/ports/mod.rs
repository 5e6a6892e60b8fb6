//! The ports that an engine can run on.

pub mod cable;
mod capture;
pub mod decorated;
pub mod heap;
pub mod loopback;
pub mod middlebox;

pub use cable::{CablePort, SwitchedPort};
pub use decorated::Decorated;
pub use heap::{HeapBuffer, HeapPool};
pub use loopback::{LoopOptions, LoopPort};
