//! Octet formats of the stack: Ethernet, ARP, IPv4, IPv6, ICMP, ICMPv6 and TCP below; MPA, DDP and RDMAP above.
//!
//! No state, no input or output, no allocation. Every parser accepts any octets and answers with a
//! value or a [`WireError`]; none panics. The parse of the usual received packet (Ethernet, IPv4
//! without options, TCP with at most a timestamp option) and the emission of its headers are written
//! out here because they run once for every packet; what is rare uses `smoltcp::wire`.
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
pub mod frame;
pub mod icmp;
pub mod icmp6;
pub mod ipv4;
pub mod ipv6;
pub mod mpa;
mod octets;
pub mod rdmap;
pub mod session_control;
pub mod tcp;

pub use error::WireError;
