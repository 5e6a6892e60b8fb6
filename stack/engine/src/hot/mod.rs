//! The usual message, from end to end: short ways around the general code.
//!
//! Each function here does for one predicted case what the rooms do for all of them, with the same frames, completions
//! and state as the result. It changes nothing before it knows that the case is its own; otherwise the general code
//! takes over.

pub(crate) mod receive;
mod segment;
pub(crate) mod transmit;
