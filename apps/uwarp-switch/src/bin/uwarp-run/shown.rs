//! The files by which programs find a device without asking the library: `/sys/class/infiniband`, and a character
//! device in `/dev/infiniband`.

mod files;
mod mounts;
mod namespace;
mod shared;

use anyhow::{Context as _, bail};
use rustix::fs::{CWD, FileType, Mode, RawMode, chmod, makedev, mknodat};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use uwarp::config::EngineMode;
use uwarp::{Config, Context};
use uwarp_verbs_device::{DEVICE_CLASS, Face, NODE, NODES, Shape};

use files::{has_node, is_shown};

pub(crate) use namespace::{MAKER, serve};

/// How a program gets to see the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It sees them already.
    Present,
    /// This process has a mount namespace of its own, with them.
    Mounts,
    /// The same, in a user namespace that allows it to an ordinary user.
    Namespaces,
    /// It has the namespaces of another program.
    Shared,
    /// Only the character device is there, which somebody has made before.
    NodeFound,
    /// Only the character device is there, which was made now.
    NodeMade,
}

impl std::fmt::Display for Way {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (folder, node) = (DEVICE_CLASS, format_args!("{NODES}/{NODE}"));
        match self {
            Way::Present => write!(formatter, "{folder} and {node} are shown already"),
            Way::Mounts => write!(formatter, "shows {folder} and {node}, in a mount namespace of the program's"),
            Way::Namespaces => {
                write!(formatter, "shows {folder} and {node}, in a user and a mount namespace of the program's")
            }
            Way::Shared => {
                write!(formatter, "shows {folder} and {node}, in the namespaces of another program of the user's")
            }
            Way::NodeFound => write!(formatter, "{node} is there, and no {folder}"),
            Way::NodeMade => write!(formatter, "has made {node}, which stays, and shows no {folder}"),
        }
    }
}

/// Has the program that this process becomes see the device's files, for as long as it and its children run. They
/// describe this moment.
///
/// # Errors
/// It will not, with the reasons.
pub(crate) fn show(name: String, shape: Shape, config: Config) -> anyhow::Result<Way> {
    let folder = config.switch.as_ref().and_then(|socket| socket.parent()).map(Path::to_owned);
    let face = face(name, shape, config)?;
    if is_shown(&face, Path::new("/")) {
        return Ok(Way::Present);
    }
    let refused = match mounts::enter() {
        Ok(()) => match mounts::show(&face) {
            Ok(()) => return Ok(Way::Mounts),
            Err(error) => error,
        },
        Err(_) => match share_or_make(&face, folder.as_deref()) {
            Ok(way) => return Ok(way),
            Err(error) => error,
        },
    };
    node().with_context(|| format!("{refused:#}"))
}

/// The way of an ordinary user. One program at a time takes it, as far as they share a switch, whose folder is locked.
fn share_or_make(face: &Face, folder: Option<&Path>) -> anyhow::Result<Way> {
    let _one = shared::lock(folder);
    if shared::join(face)? {
        return Ok(Way::Shared);
    }
    namespace::enter(face).map(|()| Way::Namespaces)
}

/// What the library would answer a program.
fn face(name: String, shape: Shape, config: Config) -> anyhow::Result<Face> {
    if config.engine.mode != EngineMode::Threaded {
        // A context of that kind opens its device at once.
        bail!("the configuration's engine.mode is not \"threaded\"");
    }
    let first = |context: &Context| context.config().address.address;
    let context = Context::prepare(config)?;
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let interface = |address| {
        let found = interfaces.iter().find(|interface| interface.ip() == address)?;
        Some(found.name.clone())
    };
    let addresses = context.addresses().into_iter().map(|own| (own.address, interface(own.address))).collect();
    Ok(Face { name, shape, first: first(&context), addresses, version: uwarp::VERSION.to_owned() })
}

/// The character device alone, where this process may make one. It is that of `/dev/null`: programs look at it, and
/// open it never.
fn node() -> anyhow::Result<Way> {
    if has_node(Path::new("/")) {
        return Ok(Way::NodeFound);
    }
    const READ_AND_WRITE: RawMode = 0o666;
    let path = Path::new(NODES).join(NODE);
    let is_new = DirBuilder::new().mode(0o755).create(NODES).is_ok();
    let made = mknodat(CWD, &path, FileType::CharacterDevice, Mode::from(READ_AND_WRITE), makedev(1, 3));
    // Whatever this process's mask takes away.
    let made = made.and_then(|()| chmod(&path, Mode::from(READ_AND_WRITE)));
    if made.is_err() && is_new {
        let _ = std::fs::remove_dir(NODES);
    }
    made.map(|()| Way::NodeMade).with_context(|| format!("{} cannot be made either", path.display()))
}
