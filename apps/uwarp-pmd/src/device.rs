//! A port as the command line names it, and the device that it becomes.

use crate::grammar::{nearest, quoted};
use anyhow::Context as _;
use serde::Deserialize as _;
use std::path::Path;
use std::time::Duration;
use uwarp::config::DeviceConfig;
use uwarp_app::usage;
use uwarp_dpdk::{CUT_ROOM, EalConfig, MemifRole, Offloads, PortOptions};

/// The kinds of device, with an example of each.
const KINDS: [(&str, &str); 9] = [
    ("memif", "memif,role=server,socket=/tmp/a.sock"),
    ("virtio-user", "virtio-user,socket=/tmp/a.sock"),
    ("vhost", "vhost,socket=/tmp/a.sock"),
    ("af-packet", "af-packet,interface=veth0"),
    ("tap", "tap,name=uwarp0"),
    ("pci", "pci:0000:01:00.0"),
    ("ring", "ring,name=a"),
    ("null", "null"),
    ("pcap", "pcap,receive=in.pcap,transmit=out.pcap"),
];

/// What the command line says of all ports.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// The largest IP packet.
    pub mtu: Option<u16>,
    /// Buffers of each pool.
    pub buffers: u32,
    /// How long a device that connects waits for its peer.
    pub wait: Option<Duration>,
    /// Memory from hugepages.
    pub hugepages: bool,
}

/// A port that can be opened, again and again.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device.
    pub device: DeviceConfig,
    /// How it is opened.
    pub options: PortOptions,
    /// The memory that a configuration file asks for, in MiB.
    memory: Option<u32>,
    /// Further arguments of EAL in that file.
    extra: Vec<String>,
    hugepages: bool,
}

impl Plan {
    /// The port that a text of the command line names: `KIND`, `KIND,NAME=VALUE,...`, `pci:ADDRESS`, or a
    /// configuration file that ends in `.toml`.
    ///
    /// # Errors
    /// The text is no port ([`uwarp_app::Usage`]).
    pub fn read(text: &str, common: &Common) -> anyhow::Result<Plan> {
        let offloads = Offloads { rx_checksum: false, tx_checksum: false, tso: false };
        let options = PortOptions {
            offloads,
            rx_buffers: common.buffers,
            tx_buffers: common.buffers,
            wait_for_peer: Duration::from_secs(30),
            ..PortOptions::default()
        };
        let mut plan = match text.ends_with(".toml") {
            true => of_file(Path::new(text), options)?,
            false => Plan { device: device(text)?, options, memory: None, extra: Vec::new(), hugepages: false },
        };
        plan.options.mtu = common.mtu.unwrap_or(plan.options.mtu);
        plan.options.wait_for_peer = common.wait.unwrap_or(plan.options.wait_for_peer);
        plan.hugepages |= common.hugepages;
        Ok(plan)
    }

    /// Whether opening it waits for a peer, which may be another port here.
    pub fn waits(&self) -> u8 {
        match self.device {
            DeviceConfig::Memif { role: MemifRole::Client, .. } => 1,
            DeviceConfig::VirtioUser { .. } => 2,
            _ => 0,
        }
    }

    /// MiB for its pools and rings.
    fn memory(&self) -> u32 {
        let room = match self.device {
            // It takes what the other end leaves to its device to cut.
            DeviceConfig::Vhost { tso: true, .. } => u32::from(CUT_ROOM),
            _ => u32::from(self.options.mtu) + 600,
        };
        let buffers = self.options.rx_buffers + self.options.tx_buffers;
        // A buffer has a header beside its storage, and pools are not packed without gaps.
        ((u64::from(buffers) * u64::from(room.max(2200) + 512) * 5 / 4) >> 20) as u32 + 8
    }
}

/// How DPDK is started for these ports.
pub fn eal(plans: &[Plan]) -> EalConfig {
    let addresses = plans.iter().filter_map(|plan| match &plan.device {
        DeviceConfig::Pci { address } => Some(address.clone()),
        _ => None,
    });
    let enough = 64 + plans.iter().map(Plan::memory).sum::<u32>();
    EalConfig {
        hugepages: plans.iter().any(|plan| plan.hugepages),
        memory_mib: plans.iter().filter_map(|plan| plan.memory).max().unwrap_or(0).max(enough),
        pci: addresses.collect(),
        extra: plans.iter().flat_map(|plan| plan.extra.clone()).collect(),
        ..EalConfig::default()
    }
}

/// The port of a configuration file.
fn of_file(file: &Path, options: PortOptions) -> anyhow::Result<Plan> {
    let config = uwarp::Config::from_toml_file(file).map_err(|error| usage(format!("{}: {error}", file.display())))?;
    let refused = |reason: &str| Err(usage(format!("{}: {reason}", file.display())));
    if config.faults.is_some() || config.pcap.is_some() {
        return refused("faults and pcap are for engines: leave them out, and use 'set fault' and 'capture start'");
    }
    let Some(device) = config.device else {
        return refused("it names no device, and a place in a switch carries an engine's frames only");
    };
    Ok(Plan {
        device,
        options: PortOptions {
            mtu: config.mtu,
            rx_descriptors: config.buffers.descriptors,
            tx_descriptors: config.buffers.descriptors,
            wait_for_peer: config.wait_for_peer,
            ..options
        },
        memory: config.eal.memory_mib,
        extra: config.eal.extra,
        hugepages: config.eal.hugepages,
    })
}

/// The device of a text. Its fields are those of a configuration file.
fn device(text: &str) -> anyhow::Result<DeviceConfig> {
    if let Some(address) = text.strip_prefix("pci:") {
        return Ok(DeviceConfig::Pci { address: address.to_owned() });
    }
    let mut parts = text.split(',');
    let kind = parts.next().unwrap_or_default().replace('_', "-");
    let Some((_, example)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        return Err(usage(no_such_kind(&kind)));
    };
    let mut fields = toml::Table::new();
    fields.insert("kind".to_owned(), kind.clone().into());
    for part in parts {
        let Some((name, value)) = part.split_once('=') else {
            return Err(usage(format!("'{part}' of the port {text} is not NAME=VALUE: write it like {example}")));
        };
        fields.insert(name.replace('_', "-"), value.into());
    }
    of_fields(&fields).with_context(|| format!("the port {text}, which is written like {example}"))
}

/// The device of these fields, all of which are text so far.
fn of_fields(fields: &toml::Table) -> anyhow::Result<DeviceConfig> {
    // A name may look like a number.
    let first = DeviceConfig::deserialize(typed(fields, true));
    let device = first.or_else(|error| DeviceConfig::deserialize(typed(fields, false)).map_err(|_| error));
    device.map_err(|error| usage(error.message().trim().replace('\n', " ")))
}

/// Fields with the types that their values look like; numbers only if wanted.
fn typed(fields: &toml::Table, numbers: bool) -> toml::Table {
    let value = |value: &toml::Value| {
        let text = value.as_str().unwrap_or_default();
        let number = text.parse::<i64>().ok().filter(|_| numbers).map(toml::Value::from);
        text.parse::<bool>().map(toml::Value::from).ok().or(number).unwrap_or_else(|| value.clone())
    };
    fields.iter().map(|(name, text)| (name.clone(), value(text))).collect()
}

fn no_such_kind(kind: &str) -> String {
    let names = KINDS.map(|(name, _)| name);
    let all = names.join(", ");
    let reason = match kind {
        "virtio" => "choose the end: virtio-user or vhost".to_owned(),
        "switch" => "a place in a switch carries an engine's frames only".to_owned(),
        _ => match nearest(kind, &names) {
            Some(near) => format!("did you mean '{near}'? There is {all}"),
            None => format!("choose {all}, or a file that ends in .toml"),
        },
    };
    format!("{} is no kind of port: {reason}", quoted(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: Common = Common { mtu: None, buffers: 1024, wait: None, hugepages: false };

    #[test]
    fn every_kind_has_an_example_that_is_one() {
        for (kind, example) in KINDS {
            let plan = Plan::read(example, &COMMON).unwrap_or_else(|error| panic!("{example}: {error:#}"));
            let written = toml::Table::try_from(&plan.device).unwrap();
            assert_eq!(written["kind"].as_str(), Some(kind), "{example}");
        }
    }

    #[test]
    fn values_have_the_types_of_their_fields() {
        let read = |text: &str| Plan::read(text, &COMMON).unwrap().device;
        assert_eq!(read("null,frame_size=64"), DeviceConfig::Null { frame_size: Some(64) });
        assert_eq!(read("ring,name=7,loopback=true"), DeviceConfig::Ring { name: "7".to_owned(), loopback: true });
        let pci = DeviceConfig::Pci { address: "0000:01:00.0,a=1".to_owned() };
        assert_eq!(read("pci:0000:01:00.0,a=1"), pci);
    }

    #[test]
    fn a_text_that_is_no_port_is_explained() {
        for (text, expected) in [
            ("mem", "did you mean 'memif'"),
            ("carrier", "choose memif"),
            ("virtio", "virtio-user or vhost"),
            ("switch", "an engine's frames"),
            ("memif,role", "is not NAME=VALUE"),
            ("memif,role=server", "socket"),
            ("memif,role=server,sokket=/tmp/a", "sokket"),
            ("null,frame-size=many", "frame"),
            ("/nonexistent/port.toml", "/nonexistent/port.toml"),
        ] {
            let error = Plan::read(text, &COMMON).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{text}: {error:#}");
            assert!(error.is::<uwarp_app::Usage>() || error.downcast_ref::<uwarp_app::Usage>().is_some(), "{text}");
        }
    }

    #[test]
    fn memory_is_enough_for_all_ports() {
        let plans = ["null", "null"].map(|text| Plan::read(text, &COMMON).unwrap());
        let one = eal(&plans[..1]).memory_mib;
        assert!(eal(&plans).memory_mib > one && one > 64);
    }
}
