//! The device that leads to other hosts.

use std::time::Duration;

use anyhow::Context as _;
use uwarp::config::{DeviceConfig, MacAddress};
use uwarp::switch::protocol::UplinkStatus;
use uwarp_dpdk::{Eal, Port, PortOptions, Queue};

use super::pump::View;

/// Buffers of either pool.
pub(super) const BUFFERS: u32 = 2048;
/// Descriptors of the receive ring.
const RECEIVE: u16 = 512;
/// Descriptors of the transmit ring.
const TRANSMIT: u16 = 512;
/// How long a device that connects waits for its other end.
const WAIT: Duration = Duration::from_secs(30);

/// Reads a device as the command line names it: its kind, and settings as in the `[device]` table of a configuration
/// file.
///
/// # Errors
/// What is wrong with it.
pub fn parse_device(text: &str) -> Result<DeviceConfig, String> {
    let (kind, settings) = text.split_once(',').unwrap_or((text, ""));
    let kind = kind.replace('_', "-");
    // The address of a PCI device may be followed by arguments of its driver, with commas.
    let settings: Vec<&str> = if kind == "pci" { vec![settings] } else { settings.split(',').collect() };
    let mut table = serde_json::Map::from_iter([("kind".to_owned(), kind.into())]);
    for setting in settings.into_iter().filter(|setting| !setting.is_empty()) {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("'{setting}' is not KEY=VALUE"))?;
        let plain = serde_json::from_str(value).ok().filter(|value: &serde_json::Value| !value.is_string());
        table.insert(key.to_owned(), plain.unwrap_or_else(|| value.into()));
    }
    match serde_json::from_value(table.into()).map_err(|error| error.to_string())? {
        DeviceConfig::Ring { .. } | DeviceConfig::Null { .. } | DeviceConfig::Pcap { .. } => {
            Err("a device of this kind leads to no other host".to_owned())
        }
        device => Ok(device),
    }
}

/// The open device.
#[derive(Debug)]
pub(super) struct Uplink {
    port: Port,
    is_up: bool,
}

impl Uplink {
    /// Opens the device. Gives its queue, and whether its link is up.
    pub(super) fn open(eal: &Eal, device: &DeviceConfig, mtu: u16) -> anyhow::Result<(Uplink, (Queue, bool))> {
        let options = PortOptions {
            mtu,
            rx_buffers: BUFFERS,
            tx_buffers: BUFFERS,
            rx_descriptors: RECEIVE,
            tx_descriptors: TRANSMIT,
            wait_for_peer: WAIT,
            ..PortOptions::default()
        };
        let mut device = device.clone();
        if let DeviceConfig::Vhost { tso, .. } = &mut device {
            // Frames longer than the MTU fit into nobody's buffers here.
            *tso = false;
        }
        let port = Port::open(eal, &device, &options).context("the uplink cannot be opened")?;
        let queue = port.take_queue(0).context("a new device has a queue")?;
        let is_up = port.link_up();
        Ok((Uplink { port, is_up }, (queue, is_up)))
    }

    /// The link's state, if it has changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<bool> {
        let is_up = self.port.link_up();
        (std::mem::replace(&mut self.is_up, is_up) != is_up).then_some(is_up)
    }

    /// What `uwarp-switch status` says about it.
    pub(super) fn status(&self, view: &View) -> UplinkStatus {
        UplinkStatus {
            device: self.port.info().device.clone(),
            mac: MacAddress(self.port.capabilities().mac),
            up: self.is_up,
            received: view.counters.received,
            received_octets: view.counters.received_octets,
            sent: view.counters.sent,
            answered: view.counters.answered,
            drops: view.drops(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_as_in_a_configuration_file() {
        let interface = |netns: Option<&str>, frame_count| DeviceConfig::AfPacket {
            interface: "eth0".into(),
            netns: netns.map(Into::into),
            frame_count,
        };
        assert_eq!(parse_device("af_packet,interface=eth0"), Ok(interface(None, None)));
        let text = "af-packet,interface=eth0,netns=blue,frame-count=256";
        assert_eq!(parse_device(text), Ok(interface(Some("blue"), Some(256))));
        let DeviceConfig::VirtioUser { server, .. } = parse_device("virtio-user,socket=/a/b,server=true").unwrap()
        else {
            panic!("another device")
        };
        assert!(server);
        let pci = DeviceConfig::Pci { address: "0000:01:00.0,a=1,b=2".into() };
        assert_eq!(parse_device("pci,address=0000:01:00.0,a=1,b=2"), Ok(pci));
    }

    #[test]
    fn a_wrong_device_is_an_error_that_names_the_mistake() {
        for (text, part) in [
            ("eth0", "unknown variant `eth0`"),
            ("af-packet", "missing field `interface`"),
            ("af-packet,eth0", "'eth0' is not KEY=VALUE"),
            ("af-packet,interface=eth0,mtu=9000", "unknown field `mtu`"),
            ("virtio-user,socket=/a,server=maybe", "expected a boolean"),
            ("null", "leads to no other host"),
            ("", "unknown variant"),
        ] {
            let error = parse_device(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
