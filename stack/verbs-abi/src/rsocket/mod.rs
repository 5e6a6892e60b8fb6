//! rsockets: the calls of sockets over RDMA, as in rsocket(7) of rdma-core. Streams only.
//!
//! Each side has a ring in registered memory, and the peer writes data into it by RDMA Write. A Send behind each Write
//! carries a message of four octets that says what was written. What is read is given to the peer again half a ring at
//! a time, by a Write into a list that it has for that, and a message. This is how rdma-core's rsockets do it over
//! iWARP, whose Writes carry no immediate data.
//!
//! An rsocket's number is a real descriptor, see [`descriptor`]. Files use only those of the groups above theirs, or of
//! their own.

// What is on the wire, and the bookkeeping.
mod incoming;
mod maps;
mod outgoing;
mod protocol;
mod settings;

// Waking and showing.
mod descriptor;
mod signal;

// A connection, and an rsocket, which may have one.
mod socket;
mod stream;

// The calls.
mod connect;
mod direct;
mod names;
mod options;
mod poll;
mod transfer;

pub(crate) use connect::{carry, lose_device};
