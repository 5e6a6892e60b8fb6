//! A client's device: the host end of a virtio pair.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Mode, OFlags};
use uwarp_dpdk::guard;
use uwarp_dpdk::{DeviceConfig, Eal, Offloads, Port, PortOptions, Queue};

/// Receive buffers of a client: a frame is in one only from its sender's ring to its receiver's.
pub(super) const BUFFERS: u32 = 512;
/// Transmit buffers: for what the switch answers itself.
pub(super) const ANSWERS: u32 = 64;

/// A device. Its socket has no name any more: who has the descriptor can connect, and nobody else.
#[derive(Debug)]
pub(super) struct Device {
    /// `None` while it is being dropped.
    port: Option<Port>,
    path: PathBuf,
    /// For the client, once.
    pub(super) socket: OwnedFd,
}

impl Device {
    /// Opens a device with a socket in the guarded `directory`, which only this user can enter.
    pub(super) fn open(eal: &Eal, directory: &Path, place: usize, mtu: u16) -> anyhow::Result<(Device, Queue)> {
        let path = directory.join(format!("{place}.sock"));
        let options = PortOptions {
            mtu,
            rx_buffers: BUFFERS,
            tx_buffers: ANSWERS,
            wait_for_peer: Duration::ZERO,
            offloads: Offloads::default(),
            ..PortOptions::default()
        };
        let device = DeviceConfig::Vhost { socket: path.clone(), client: false, tso: false };
        let port = Port::open(eal, &device, &options)?;
        let queue = port.take_queue(0).context("a new device has a queue")?;
        // The client may be another user.
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        let socket = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        fs::remove_file(&path)?;
        Ok((Device { port: Some(port), path, socket }, queue))
    }
}

impl Device {
    /// Whether its socket had this path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.path == path
    }

    /// Whether an address is in memory that the client shares.
    pub(super) fn maps(&self, address: usize) -> bool {
        self.port.as_ref().is_some_and(|port| port.peer_maps(address))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // DPDK reads messages of devices on one thread, and waits for the rest of each: closing would wait for it.
        guard::cut(&self.path);
        self.port.take();
    }
}
