//! The messages of client and server: each is one Send, as JSON. They never carry file contents, which move by RDMA
//! Write (put) and RDMA Read (get) through a window of slots in the server's memory.

use serde::{Deserialize, Serialize};

/// Port that servers listen on unless told otherwise.
pub const PORT: u16 = 7175;
/// Private data of a connection request: the name and version of this protocol.
pub const GREETING: &[u8] = b"uwarp-copy/4";
/// Longest message.
pub const MESSAGE_MAX: usize = 8192;
/// Longest name of a file, in octets; it leaves room for escapes within [`MESSAGE_MAX`].
pub const NAME_MAX: usize = 1024;
/// Slots of a window: one being filled, some under way, one being emptied.
pub const SLOTS: u32 = 16;
/// Octets of a slot. It stays in a core's cache while it is read, hashed and copied. An inline engine turns between
/// two.
pub const SLOT_SIZE: u32 = 128 << 10;

/// Where the server's window is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The slots.
    pub slots: Vec<SlotAddress>,
    /// Octets of a slot.
    pub slot_size: u32,
}

/// Where a slot of the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotAddress {
    /// STag.
    pub stag: u32,
    /// Tagged offset of the first octet.
    pub offset: u64,
}

/// From the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Here comes a file.
    Put {
        /// Name in the served directory.
        name: String,
        /// Octets.
        size: u64,
    },
    /// The next part of the file is in a slot (the RDMA Write before this Send placed it there).
    Written {
        /// Slot.
        slot: u32,
        /// Octets.
        length: u32,
    },
    /// That was all of it.
    PutEnd {
        /// BLAKE3 of the content, in hexadecimal.
        hash: String,
    },
    /// The client cannot continue the file that it is putting.
    PutAbort,
    /// Send me a file.
    Get {
        /// Name in the served directory.
        name: String,
    },
    /// A slot has been read and may be filled again.
    Read {
        /// Slot.
        slot: u32,
    },
}

/// From the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The file can come, through this window.
    PutReady {
        /// The window.
        window: Window,
    },
    /// A slot has been emptied and may be written again.
    Taken {
        /// Slot.
        slot: u32,
    },
    /// The file is there, whole and under its name.
    Stored {
        /// CPU time of the server's process since the request, in nanoseconds; other clients' work counts too.
        cpu_ns: u64,
    },
    /// The file will come, through this window.
    GetReady {
        /// The window.
        window: Window,
        /// Octets of the file.
        size: u64,
    },
    /// The next part of the file can be read from a slot.
    Part {
        /// Slot.
        slot: u32,
        /// Octets.
        length: u32,
    },
    /// That was all of it.
    GetEnd {
        /// BLAKE3 of the content, in hexadecimal.
        hash: String,
    },
    /// The request has failed; the connection continues.
    Failed {
        /// One sentence.
        reason: String,
    },
}
