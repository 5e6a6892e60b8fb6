//! The packet scripts of the TCP crate, played against the kernel: its socket is the connection that they script.

pub mod edits;
#[path = "../../../../stack/tcp/tests/script/parse.rs"]
pub mod parse;
pub mod player;
pub mod tap;
