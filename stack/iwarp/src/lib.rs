//! One iWARP stream as a value: MPA start-up and framing (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040) and the
//! state of the queue pair on top of it.
//!
//! Nothing here owns a buffer, reads a clock, touches registered memory or knows TCP. Octets come in as slices in
//! stream order; their meaning is returned as values that borrow from those slices:
//!
//! * [`startup`]: the Initiator and the Responder of the MPA Request/Reply exchange;
//! * [`framing`]: finding FPDUs in contiguous octets, and the layout of the FPDU that a sender puts around a segment;
//! * [`stream`]: the state of one stream in full operation. [`receive`] is its inbound half
//!   ([`stream::Stream::inspect`]); [`transmit`] cuts outbound messages into segments;
//! * [`fault`]: every protocol fault with its Terminate for the peer and its status for the local consumer;
//!   [`terminate`] builds and reads Terminate messages;
//! * [`opcode`]: one row per RDMAP opcode; [`qp`]: the states of a queue pair and their transitions.
#![forbid(unsafe_code)]

pub mod fault;
pub mod framing;
pub mod opcode;
pub mod qp;
pub mod receive;
pub mod startup;
pub mod stream;
pub mod terminate;
pub mod transmit;
#[cfg(test)]
mod vectors;

pub use fault::Fault;
pub use receive::Delivery;
pub use stream::Stream;
pub use transmit::{Cut, LONGEST_HEADER, Message, Segment, SendKind};
