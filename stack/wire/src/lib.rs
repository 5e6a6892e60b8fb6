//! Octet formats of the stack: Ethernet, ARP, IPv4, IPv6, ICMP, ICMPv6 and TCP below; MPA, DDP and RDMAP above;
//! datagrams of RoCE v2.
//!
//! No state, no I/O, no allocation. Every parser accepts any octets, returns a value or a [`WireError`], and never
//! panics. Parsing the usual received packet (Ethernet, IPv4 without options, TCP with at most a timestamp option) and
//! emitting its headers are written by hand because they run once per packet; rare formats use `smoltcp::wire`.
//!
//! Offsets and lengths are in octets. Integers are big-endian on the wire with one exception, the
//! CRC field of an FPDU (see [`mpa`]).
#![forbid(unsafe_code)]

pub mod address;
pub mod arp;
pub mod checksum;
pub mod ddp;
mod error;
pub mod ethernet;
pub mod fixed;
pub mod frame;
pub mod icmp;
pub mod icmp6;
pub mod ipv4;
pub mod ipv6;
pub mod mpa;
mod octets;
pub mod rdmap;
pub mod roce;
pub mod tcp;

pub use error::WireError;
