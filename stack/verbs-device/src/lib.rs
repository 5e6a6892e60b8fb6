//! What the device of the verbs looks like. The library answers its callers from here, and `uwarp-run` writes the same
//! into the files that a kernel would show in `/sys/class`.
#![forbid(unsafe_code)]

mod files;

pub use files::{Content, DEVICE_CLASS, Entry, Face, NODE_CLASS, NODES, files};

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The device's name, unless the environment has another one.
pub const DEFAULT_NAME: &str = "uwarp0";
/// Environment variable with the device's name: see [`checked_name`].
pub const NAME_VARIABLE: &str = "UWARP_DEVICE_NAME";
/// The name of its character device in `/dev/infiniband`, as the kernel numbers them. UCX asks for the file.
pub const NODE: &str = "uverbs0";
/// Environment variable with a folder that has the device's files, each below its own path: the preloaded library of
/// `uwarp-run` reads it.
pub const FILES_VARIABLE: &str = "UWARP_DEVICE_FILES";
/// Environment variable that names a [`Shape`].
pub const SHAPE_VARIABLE: &str = "UWARP_DEVICE";
/// The vendor: not one that programs know, and not zero.
pub const VENDOR: u32 = 0x75_77_61;
/// The vendor's number of the part.
pub const PART: u32 = 1;
/// The hardware's revision.
pub const REVISION: u32 = 1;
/// `IBV_PORT_ACTIVE`.
pub const PORT_STATE: u32 = 4;
/// LinkUp.
pub const PHYSICAL_STATE: u8 = 5;
/// Lanes of the link. The verbs want numbers, and software has none.
pub const LANES: u8 = 1;
/// The verbs' code of 25 Gbit/s for each lane.
pub const SPEED: u8 = 32;
/// The port's `IBV_PORT_CM_SUP`.
pub const PORT_CAPABILITIES: u32 = 1 << 16;
/// The partition key that everybody has, and the only one.
pub const PARTITION_KEY: u16 = 0xffff;

/// What the device looks like. The wire is iWARP's in either shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Shape {
    /// An RNIC, whose connections rdma_cm makes.
    #[default]
    Iwarp,
    /// A channel adapter of RoCE v2, whose queue pairs programs connect themselves, too.
    Roce,
}

impl Shape {
    /// The shape of this name, if there is one.
    pub fn named(name: &str) -> Option<Shape> {
        match name {
            "iwarp" => Some(Shape::Iwarp),
            "roce" => Some(Shape::Roce),
            _ => None,
        }
    }

    /// The verbs' number of the kind of node: `IBV_NODE_CA` or `IBV_NODE_RNIC`.
    pub fn node_type(self) -> i32 {
        match self {
            Shape::Roce => 1,
            Shape::Iwarp => 4,
        }
    }

    /// The port's number in a subnet of InfiniBand. Programs that use no GIDs name this host by it.
    pub fn lid(self) -> u16 {
        match self {
            Shape::Roce => 1,
            Shape::Iwarp => 0,
        }
    }
}

/// A name as a device may have it: 1 to 63 letters, digits, `-` and `_`, which also names a file.
pub fn checked_name(name: &str) -> Option<&str> {
    let is_usual = |octet: u8| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_');
    ((1..64).contains(&name.len()) && name.bytes().all(is_usual)).then_some(name)
}

/// The device's number in the form of an EUI-64, made from its first address: the hardware address is not known before
/// the device is open.
pub fn guid(address: IpAddr) -> u64 {
    let low = match address {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(address) => (u128::from(address) as u32).into(),
    };
    // Locally administered; "uw" in the middle.
    (0x0275_77ff_fe00_0000 | (low & 0xff_ffff)) ^ (low >> 24 << 40)
}

/// Addresses in the order of their GIDs: those of IPv4 first.
pub fn in_order(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

/// The port's GIDs, with the address that each is of. Those of the own addresses are how programs find the device that
/// has an address. In front of them, where the device is one of iWARP, are the octets of the hardware's address, as
/// other such devices have them; here of [`guid`], which `first` makes.
pub fn gids(shape: Shape, first: IpAddr, addresses: Vec<IpAddr>) -> impl Iterator<Item = ([u8; 16], Option<IpAddr>)> {
    let mut number = [0; 16];
    number[..8].copy_from_slice(&guid(first).to_be_bytes());
    let hardware = (shape == Shape::Iwarp).then_some((number, None));
    let own = in_order(addresses).into_iter().map(|own| (gid_of(own), Some(own)));
    hardware.into_iter().chain(own)
}

/// The GID of an address.
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
