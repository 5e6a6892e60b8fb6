//! The files by which programs find a device without asking the library: `/sys/class/infiniband`, and a character
//! device in `/dev/infiniband`.

mod mounts;
mod namespace;

use anyhow::{Context as _, bail};
use rustix::fs::{CWD, FileType, Mode, RawMode, chmod, makedev, mknodat};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::Path;
use uwarp::config::EngineMode;
use uwarp::{Config, Context};
use uwarp_verbs_device::{Content, DEVICE_CLASS, Face, NAME, NODE, NODES, Shape, files};

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
    /// Only the character device is there, which somebody has made before.
    NodeFound,
    /// Only the character device is there, which was made now.
    NodeMade,
}

impl std::fmt::Display for Way {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (folder, node) = (format_args!("{DEVICE_CLASS}/{NAME}"), format_args!("{NODES}/{NODE}"));
        match self {
            Way::Present => write!(formatter, "{folder} and {node} are shown already"),
            Way::Mounts => write!(formatter, "shows {folder} and {node}, in a mount namespace of the program's"),
            Way::Namespaces => {
                write!(formatter, "shows {folder} and {node}, in a user and a mount namespace of the program's")
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
pub(crate) fn show(shape: Shape, config: Config) -> anyhow::Result<Way> {
    let face = face(shape, config)?;
    if is_shown(&face) {
        return Ok(Way::Present);
    }
    let refused = match mounts::enter() {
        Ok(()) => match mounts::show(&face) {
            Ok(()) => return Ok(Way::Mounts),
            Err(error) => error,
        },
        Err(_) => match namespace::enter(&face) {
            Ok(()) => return Ok(Way::Namespaces),
            Err(error) => error,
        },
    };
    node().with_context(|| format!("{refused:#}"))
}

/// What the library would answer a program.
fn face(shape: Shape, config: Config) -> anyhow::Result<Face> {
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
    Ok(Face { shape, first: first(&context), addresses, version: uwarp::VERSION.to_owned() })
}

/// Whether this process sees these files, because another `uwarp-run` has started it.
fn is_shown(face: &Face) -> bool {
    let is_same = |path: &Path, content: &Content| match content {
        Content::Text(text) => std::fs::read_to_string(path).is_ok_and(|found| found == *text),
        Content::Link(to) => std::fs::read_link(path).is_ok_and(|found| found == Path::new(to)),
        Content::Folder => path.is_dir(),
    };
    files(face).iter().all(|entry| is_same(&entry.path, &entry.content)) && has_node()
}

fn has_node() -> bool {
    let file = Path::new(NODES).join(NODE).metadata();
    file.is_ok_and(|file| file.file_type().is_char_device())
}

/// The character device alone, where this process may make one. It is that of `/dev/null`: programs look at it, and
/// open it never.
fn node() -> anyhow::Result<Way> {
    if has_node() {
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
