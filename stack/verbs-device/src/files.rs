//! The device as the files of `/sys/class`, in the kernel's formats (`drivers/infiniband/core/sysfs.c`).

use crate::{
    LANES, NODE, PART, PARTITION_KEY, PHYSICAL_STATE, PORT_CAPABILITIES, PORT_STATE, REVISION, SPEED, Shape, VENDOR,
    gids, guid,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// The folder of devices.
pub const DEVICE_CLASS: &str = "/sys/class/infiniband";
/// The folder of the character devices.
pub const NODES: &str = "/dev/infiniband";
/// The folder of what is known of these.
pub const NODE_CLASS: &str = "/sys/class/infiniband_verbs";

/// What there is to show, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Face {
    /// The device's name.
    pub name: String,
    /// The device's shape.
    pub shape: Shape,
    /// The address of which the device's number is made.
    pub first: IpAddr,
    /// The own addresses, each with the kernel's interface that has it, if one has.
    pub addresses: Vec<(IpAddr, Option<String>)>,
    /// The version of the software.
    pub version: String,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is, from the root.
    pub path: PathBuf,
    /// What it is.
    pub content: Content,
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file with this text.
    Text(String),
    /// A symbolic link.
    Link(String),
    /// An empty folder.
    Folder,
}

/// The device's files.
///
/// The folder `gid_attrs` is there only if each GID belongs to an interface: programs that find the type of a GID there
/// look for its interface, too, and a GID without one is out of reach to UCX.
pub fn files(face: &Face) -> Vec<Entry> {
    let mut files = Files { entries: Vec::new() };
    files.of_device(face);
    files.of_port(face);
    files.of_node(face);
    files.entries
}

struct Files {
    entries: Vec<Entry>,
}

impl Files {
    fn put(&mut self, path: impl Into<PathBuf>, content: Content) {
        self.entries.push(Entry { path: path.into(), content });
    }

    /// A file with a line.
    fn line(&mut self, path: String, line: impl std::fmt::Display) {
        self.put(path, Content::Text(format!("{line}\n")));
    }

    fn of_device(&mut self, face: &Face) {
        let folder = format!("{DEVICE_CLASS}/{}", face.name);
        let number = grouped(&guid(face.first).to_be_bytes());
        let kind = match face.shape {
            Shape::Roce => "CA",
            Shape::Iwarp => "RNIC",
        };
        self.line(format!("{folder}/node_type"), format_args!("{}: {kind}", face.shape.node_type()));
        for name in ["node_guid", "sys_image_guid"] {
            self.line(format!("{folder}/{name}"), &number);
        }
        self.line(format!("{folder}/node_desc"), &face.name);
        self.line(format!("{folder}/fw_ver"), &face.version);
        self.line(format!("{folder}/hw_rev"), format_args!("{REVISION:x}"));
        for name in ["hca_type", "board_id"] {
            self.line(format!("{folder}/{name}"), "uwarp");
        }
        // Where the kernel has a link to the folder of a card.
        self.line(format!("{folder}/device/vendor"), format_args!("{VENDOR:#06x}"));
        self.line(format!("{folder}/device/device"), format_args!("{PART:#06x}"));
        self.line(format!("{folder}/device/numa_node"), -1);
        let mut interfaces: Vec<&String> = face.addresses.iter().filter_map(|(_, name)| name.as_ref()).collect();
        interfaces.sort();
        interfaces.dedup();
        for interface in interfaces {
            self.put(format!("{folder}/device/net/{interface}"), Content::Folder);
        }
    }

    fn of_port(&mut self, face: &Face) {
        let folder = format!("{DEVICE_CLASS}/{}/ports/1", face.name);
        self.line(format!("{folder}/state"), format_args!("{PORT_STATE}: ACTIVE"));
        self.line(format!("{folder}/phys_state"), format_args!("{PHYSICAL_STATE}: LinkUp"));
        self.line(format!("{folder}/link_layer"), "Ethernet");
        self.line(format!("{folder}/lid"), format_args!("{:#x}", face.shape.lid()));
        self.line(format!("{folder}/lid_mask_count"), 0);
        self.line(format!("{folder}/sm_lid"), "0x0");
        self.line(format!("{folder}/sm_sl"), 0);
        self.line(format!("{folder}/cap_mask"), format_args!("{PORT_CAPABILITIES:#010x}"));
        self.line(format!("{folder}/rate"), rate());
        self.line(format!("{folder}/pkeys/0"), format_args!("{PARTITION_KEY:#06x}"));
        let addresses = face.addresses.iter().map(|(address, _)| *address).collect();
        let gids: Vec<_> = gids(face.shape, face.first, addresses).collect();
        let interface = |own: Option<IpAddr>| {
            let (_, name) = face.addresses.iter().find(|(address, _)| Some(*address) == own)?;
            name.clone()
        };
        let interfaces: Option<Vec<String>> = gids.iter().map(|(_, own)| interface(*own)).collect();
        for (index, (octets, _)) in gids.iter().enumerate() {
            self.line(format!("{folder}/gids/{index}"), grouped(octets));
        }
        for (index, name) in interfaces.into_iter().flatten().enumerate() {
            self.line(format!("{folder}/gid_attrs/types/{index}"), "RoCE v2");
            self.line(format!("{folder}/gid_attrs/ndevs/{index}"), name);
        }
    }

    fn of_node(&mut self, face: &Face) {
        let folder = format!("{NODE_CLASS}/{NODE}");
        self.line(format!("{NODE_CLASS}/abi_version"), 6);
        self.line(format!("{folder}/abi_version"), 1);
        self.line(format!("{folder}/ibdev"), &face.name);
        self.put(format!("{folder}/device"), Content::Link(format!("../../infiniband/{}/device", face.name)));
    }
}

/// Octets in hexadecimal, in groups of two.
fn grouped(octets: &[u8]) -> String {
    let groups: Vec<String> =
        octets.chunks(2).map(|two| two.iter().map(|octet| format!("{octet:02x}")).collect()).collect();
    groups.join(":")
}

/// The rate of all lanes in Gbit/s, and how the kernel names it.
fn rate() -> String {
    let (each, name) = match SPEED {
        8 => (10, "FDR10"),
        16 => (14, "FDR"),
        64 => (50, "HDR"),
        _ => (25, "EDR"),
    };
    format!("{} Gb/sec ({LANES}X {name})", each * u32::from(LANES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DEFAULT_NAME;

    fn face(shape: Shape, interface: Option<&str>) -> Face {
        let addresses = ["10.9.0.1", "fd00::1"].map(|address| (address.parse().unwrap(), interface.map(str::to_owned)));
        Face {
            name: DEFAULT_NAME.to_owned(),
            shape,
            first: addresses[0].0,
            addresses: addresses.to_vec(),
            version: "1.2".into(),
        }
    }

    fn text(entries: &[Entry], path: &str) -> Option<String> {
        let path = PathBuf::from("/sys/class").join(path);
        let entry = entries.iter().find(|entry| entry.path == path)?;
        match &entry.content {
            Content::Text(text) => Some(text.clone()),
            Content::Link(to) => Some(to.clone()),
            Content::Folder => Some(String::new()),
        }
    }

    #[test]
    fn files_have_the_kernels_formats() {
        let entries = files(&face(Shape::Roce, Some("eth0")));
        let port = "infiniband/uwarp0/ports/1";
        for (path, expected) in [
            ("infiniband/uwarp0/node_type", "1: CA\n"),
            ("infiniband/uwarp0/node_guid", "0275:7dff:fe09:0001\n"),
            ("infiniband/uwarp0/device/net/eth0", ""),
            (&format!("{port}/state"), "4: ACTIVE\n"),
            (&format!("{port}/rate"), "25 Gb/sec (1X EDR)\n"),
            (&format!("{port}/lid"), "0x1\n"),
            (&format!("{port}/cap_mask"), "0x00010000\n"),
            (&format!("{port}/pkeys/0"), "0xffff\n"),
            (&format!("{port}/gids/0"), "0000:0000:0000:0000:0000:ffff:0a09:0001\n"),
            (&format!("{port}/gids/1"), "fd00:0000:0000:0000:0000:0000:0000:0001\n"),
            (&format!("{port}/gid_attrs/types/1"), "RoCE v2\n"),
            (&format!("{port}/gid_attrs/ndevs/1"), "eth0\n"),
            ("infiniband_verbs/uverbs0/ibdev", "uwarp0\n"),
        ] {
            assert_eq!(text(&entries, path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn attributes_of_gids_are_there_for_all_of_them_or_for_none() {
        let count = |face: &Face| {
            let entries = files(face);
            let of = |part: &str| entries.iter().filter(|entry| entry.path.to_str().unwrap().contains(part)).count();
            (of("/gids/"), of("/gid_attrs/"))
        };
        let mut half = face(Shape::Roce, Some("eth0"));
        half.addresses[1].1 = None;
        assert_eq!(count(&face(Shape::Roce, Some("eth0"))), (2, 4));
        assert_eq!(count(&half), (2, 0));
        // Its first GID is no address.
        assert_eq!(count(&face(Shape::Iwarp, Some("eth0"))), (3, 0));
    }

    #[test]
    fn a_device_of_another_name_has_its_folder_and_names_that_file_a_folder() {
        let face = Face { name: "rxe_1-a".to_owned(), ..face(Shape::Roce, Some("eth0")) };
        let entries = files(&face);
        assert!(entries.iter().all(|entry| !entry.path.to_string_lossy().contains(DEFAULT_NAME)));
        assert_eq!(text(&entries, "infiniband_verbs/uverbs0/ibdev").as_deref(), Some("rxe_1-a\n"));
        assert!(text(&entries, "infiniband/rxe_1-a/ports/1/lid").is_some());
        let long = "x".repeat(64);
        for name in ["", "a/b", "..", "a b", "\u{e4}", &long] {
            assert_eq!(crate::checked_name(name), None, "{name}");
        }
    }
}
