//! The packet scripts of the TCP crate, played against the kernel, whose socket is the connection under test.

pub mod edits;
#[path = "../../../../stack/tcp/tests/script/parse.rs"]
pub mod parse;
pub mod player;
pub mod tap;
