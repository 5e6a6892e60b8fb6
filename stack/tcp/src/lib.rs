//! One TCP connection as a value (RFC 9293).
//!
//! A [`Connection`] has no socket, clock, device or buffer. The owner passes in the headers of received segments, the
//! time, and the lengths of the *records* to send. It gets back what to do with each payload, what to transmit, and
//! when to call again. [`BufferToken`]s name the owner's buffers; their values mean nothing here.
//!
//! A record is a part of the sent stream that should travel as one segment (for iWARP, one FPDU). TCP sends a record as
//! one segment whenever the peer permits, but it can send, acknowledge and retransmit any part of one.
//!
//! What an owner does in a turn:
//!
//! 1. [`Connection::on_segment`] for each received segment, then [`Connection::take_in_order`] and
//!    [`Connection::drain_discarded`] until they are empty;
//! 2. [`Connection::on_deadline`] when [`Connection::deadline`] has passed;
//! 3. [`Connection::push`] while [`Connection::send_space`] is not zero;
//! 4. [`Connection::poll_transmit`] until it is empty, once at the end of the batch, so that a batch costs at most
//!    one pure acknowledgment;
//! 5. [`Connection::pop_acknowledged`] to free what the peer has.
//!
//! Where to look: `input` (arriving segments, RFC 9293 §3.10.7), `acknowledge` (what an acknowledgment does), `output`
//! (what to send next), `timers`, `queue` (records and the scoreboard), `recovery` (RACK-TLP, RFC 8985; proportional
//! rate reduction, RFC 6937), `congestion` (RFC 5681, 9438, 8257), `ecn` (RFC 3168), `rtt` (RFC 6298), `receive` and
//! `reassembly` (window, SACK, RFC 2018 and 2883), `state` (the state diagram as a table), `cookies` (answers to a SYN
//! that keep no state, RFC 4987), `time_wait` (a connection in TIME-WAIT in some tens of octets), `urgent` (the urgent
//! pointer, RFC 9293 §3.8.5 and RFC 6093: urgent data stays in the stream).
#![forbid(unsafe_code)]

mod acceptance;
mod acknowledge;
mod config;
mod congestion;
mod connection;
mod cookies;
mod deadlines;
mod ecn;
mod event;
mod info;
mod input;
mod instant;
mod isn;
mod output;
mod position;
mod queue;
mod reassembly;
mod receive;
mod recovery;
mod reset;
mod rtt;
mod send;
mod short_queue;
mod siphash;
mod state;
mod time_wait;
mod timers;
mod timestamps;
mod urgent;

pub use config::{Config, Congestion, Ecn, KeepAlive};
pub use connection::Connection;
pub use cookies::SynCookies;
pub use event::{BufferToken, DropReason, Events, HeldPayload, Payload, Received, Slice, Transmit, UsualSegment};
pub use info::{Counters, Info, Traffic};
pub use instant::Instant;
pub use isn::IsnGenerator;
pub use reset::{Arrival, arrival_in_listen, reset_for};
pub use state::{CloseReason, State, StateEvent, TRANSITIONS};
pub use time_wait::{Answer, TimeWait};
