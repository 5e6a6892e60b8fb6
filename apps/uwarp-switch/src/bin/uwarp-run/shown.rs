//! The files by which programs find a device without asking the library: `/sys/class/infiniband`, and a character
//! device in `/dev/infiniband`.

mod files;
mod mounts;
mod namespace;
mod preloaded;
mod shared;

use anyhow::{anyhow, bail};
use std::path::{Path, PathBuf};
use uwarp::config::EngineMode;
use uwarp::{Config, Context};
use uwarp_verbs_device::{DEVICE_CLASS, Face, NODE, NODES, Shape};

use files::{has_node, is_shown};

pub(crate) use namespace::{MAKER, serve};
pub(crate) use preloaded::LIBRARY;

/// How a program gets to see the files.
#[derive(Debug)]
pub(crate) enum Way {
    /// It sees them already.
    Present,
    /// This process has a mount namespace of its own, with them.
    Mounts,
    /// The same, in a user namespace that allows it to an ordinary user.
    Namespaces,
    /// It has the namespaces of another program.
    Shared,
    /// A preloaded library has to lead it to a folder that has them.
    Preloaded {
        /// The folder.
        folder: PathBuf,
        /// Why there are no namespaces.
        refused: anyhow::Error,
    },
    /// Only the character device is there, which somebody has made before.
    NodeFound,
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
            Way::Preloaded { refused, .. } => {
                write!(formatter, "shows {folder} and {node} by a preloaded library, since there are no namespaces: ")?;
                write!(formatter, "{refused:#}")
            }
            Way::NodeFound => write!(formatter, "{node} is there, and no {folder}"),
        }
    }
}

/// Has the program that this process becomes see the device's files, for as long as it and its children run. They
/// describe this moment. `obstacle` is why the program cannot be given a preloaded library, if it cannot.
///
/// # Errors
/// It will not, with the reasons.
pub(crate) fn show(name: String, shape: Shape, config: Config, obstacle: Option<&str>) -> anyhow::Result<Way> {
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
    let written = match obstacle {
        None => preloaded::folder(&face),
        Some(obstacle) => Err(anyhow!("{obstacle}")),
    };
    match written {
        Ok(folder) => Ok(Way::Preloaded { folder, refused }),
        Err(_) if has_node(Path::new("/")) => Ok(Way::NodeFound),
        Err(error) => Err(error.context(format!("{refused:#}"))),
    }
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
