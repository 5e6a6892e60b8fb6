//! Programs that share the addresses of their host: a switch gives each a device and TCP ports.
//!
//! `uwarp-switch` is the switch. A context joins it when its configuration names the switch's socket
//! ([`Config::switch`](crate::Config#structfield.switch)), and leaves it when it closes.

mod environment;
mod host;
mod link;
pub mod protocol;

pub use host::host_addresses;
pub(crate) use link::{Addresses, Link, ReservedPort, Watcher, join, resolve};

use std::path::{Path, PathBuf};

/// Environment variable with the path of a switch's socket.
pub const SWITCH_VARIABLE: &str = "UWARP_SWITCH";
/// Environment variable with the path of a configuration file.
pub const CONFIG_VARIABLE: &str = "UWARP_CONFIG";

/// Where a switch of this user listens unless it is told otherwise: `uwarp/switch.sock` in the user's run-time
/// directory; for root without one, in `/run`; for others without one, in `~/.local/state`. `None` if there is no such
/// directory.
pub fn own_socket() -> Option<PathBuf> {
    let uid = rustix::process::getuid();
    let user = user_directory().or_else(|| uid.is_root().then(|| PathBuf::from("/run")));
    let home = || absolute("HOME").map(|home| home.join(".local/state"));
    Some(user.or_else(home)?.join("uwarp/switch.sock"))
}

/// The sockets at which a program looks for a switch, in this order: [`own_socket`], then the host's,
/// `/run/uwarp/switch.sock`.
pub fn default_sockets() -> Vec<PathBuf> {
    let mut sockets: Vec<PathBuf> = own_socket().into_iter().collect();
    let host = PathBuf::from("/run/uwarp/switch.sock");
    if !sockets.contains(&host) {
        sockets.push(host);
    }
    sockets
}

/// The first of the default sockets at which a switch listens. One with the addresses of another network namespace is
/// passed over with a warning if there is no address in this one: its clients would appear on a network that their
/// programs do not see.
pub fn find() -> Option<PathBuf> {
    default_sockets().into_iter().filter(|path| is_served(path)).find(|path| {
        let is_foreign = link::is_of_another_network(path);
        if is_foreign {
            let switch = path.display();
            tracing::warn!(%switch, "passes over a switch of another network namespace: {SWITCH_VARIABLE} may name it");
        }
        !is_foreign
    })
}

/// Whether a switch, or another program, listens at a socket.
pub fn is_served(path: &Path) -> bool {
    protocol::connect(path).is_ok()
}

fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn user_directory() -> Option<PathBuf> {
    let standard = PathBuf::from(format!("/run/user/{}", rustix::process::getuid().as_raw()));
    absolute("XDG_RUNTIME_DIR").or_else(|| standard.is_dir().then_some(standard))
}
