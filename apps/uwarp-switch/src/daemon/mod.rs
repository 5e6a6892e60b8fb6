//! The daemon: cables, the control socket, and who may connect.
//!
//! Two threads: the *pump* moves frames and owns the tables ([`crate::forward`]); the control thread serves the socket,
//! and makes the cables.

mod addresses;
mod control;
mod eal;
mod guests;
mod listener;
mod port;
mod pump;
mod shares;
mod uplink;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use uwarp::config::{DeviceConfig, InterfaceAddress};

pub use control::serve;
pub use guests::Claim;
pub use uplink::parse_device;

/// How a switch is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// The addresses that its clients share; none: the host's, whatever they are at the time.
    pub addresses: Vec<InterfaceAddress>,
    /// The device that leads to other hosts. With it, addresses have to be given.
    pub uplink: Option<DeviceConfig>,
    /// Routers for hosts outside of all subnets, at most one of each version of IP.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet.
    pub mtu: u16,
    /// Users that may connect, beside root and the daemon's own.
    pub allowed: Vec<u32>,
    /// Which of these may bring which addresses from other network namespaces; none: all that nobody has.
    pub claims: Vec<Claim>,
    /// Mode of the socket; none: 600, or 666 if further users are allowed.
    pub mode: Option<u32>,
    /// End after so long without a client.
    pub exit_when_unused: Option<Duration>,
}
