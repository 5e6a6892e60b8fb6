//! Connects a guest of [`crate::siw`] to the stack: to one of the tools, or to a context of the test.

use std::path::PathBuf;
use std::process::Command;

use uwarp::{Config, DeviceConfig};
use uwarp_netns::{self as netns, End, Queues};

use crate::siw::{self, Attachment, GUEST, Guest, STACK, STACK6};
use crate::tools::{Guarded, tool};

/// The connection of a guest, with a configuration for the tools behind it.
pub struct Link {
    folder: tempfile::TempDir,
    kind: Kind,
}

/// How.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A vhost-user socket.
    Vhost {
        /// The stack's device cuts the guest's segments.
        offloads: bool,
    },
    /// Two taps on a bridge: `stack0` and `guest0`.
    Tap,
}

impl Link {
    /// A vhost-user socket, with or without segmentation offload in the stack's device.
    pub fn vhost(offloads: bool) -> Self {
        Self::new(Kind::Vhost { offloads })
    }

    /// In this process's network namespace, which must belong to the test.
    ///
    /// # Panics
    /// The kernel cannot create the interfaces.
    pub fn tap() -> Self {
        netns::taps([(End::silent("stack0"), Queues::Several), (End::silent("guest0"), Queues::One)])
            .expect("taps, and a kernel with bridges (CONFIG_BRIDGE)");
        Self::new(Kind::Tap)
    }

    fn new(kind: Kind) -> Self {
        let link = Self { folder: tempfile::tempdir().expect("a folder"), kind };
        let device = match kind {
            Kind::Vhost { offloads } => {
                format!("kind = \"vhost\"\nsocket = {:?}\ntso = {offloads}\n", link.path("vhost"))
            }
            Kind::Tap => "kind = \"tap\"\nname = \"stack0\"\n".to_owned(),
        };
        for (name, address) in [("uwarp.toml", STACK), ("uwarp6.toml", STACK6)] {
            let text = format!("address = {address:?}\n[device]\n{device}[monitor]\nenabled = false\n");
            std::fs::write(link.path(name), text).expect("a file");
        }
        link
    }

    /// How the two are joined.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// A file of the test's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Of a context at this end.
    pub fn configuration(&self) -> Config {
        let device = match self.kind {
            Kind::Vhost { offloads } => {
                DeviceConfig::Vhost { socket: self.path("vhost"), client: false, tso: offloads }
            }
            Kind::Tap => DeviceConfig::Tap { name: "stack0".into(), mac: None, netns: None },
        };
        let config = Config::new(device, STACK).expect("a good address").without_monitor();
        siw::spared(uwarp_middlebox::behind(config))
    }

    /// Boots the guest at the other end.
    pub fn guest(&self) -> Guest {
        match self.kind {
            Kind::Vhost { offloads } => Guest::boot(Attachment::Vhost(&self.path("vhost")), offloads),
            Kind::Tap => Guest::boot(Attachment::Tap("guest0"), true),
        }
    }

    /// Boots the guest at the other end with the kernel of Debian testing. The link is a vhost-user socket.
    pub fn current_guest(&self) -> Guest {
        Guest::boot_current(Attachment::Vhost(&self.path("vhost")))
    }

    /// `uwarp-ping` at this end.
    pub fn ping(&self, arguments: &[&str]) -> Command {
        self.ping_as("uwarp.toml", arguments)
    }

    /// The same with one of the configurations: `uwarp.toml`, or `uwarp6.toml` for IPv6.
    pub fn ping_as(&self, configuration: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(tool("uwarp-ping"));
        command.arg("--config").arg(self.path(configuration)).args(["--engine", "inline"]).args(arguments);
        siw::spare(&mut command);
        command
    }

    /// Starts a server of it.
    pub fn server(&self, arguments: &[&str]) -> Guarded {
        Guarded::start(&mut self.ping(&[&["serve"], arguments].concat()))
    }

    /// A client of it.
    pub fn client(&self, arguments: &[&str]) -> Command {
        self.ping(&[&["run", "--server", GUEST], arguments].concat())
    }
}
