//! Every file in `config/` is read, and is what its name says.

use std::path::PathBuf;
use uwarp::{Config, DeviceConfig};

fn config_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

#[test]
fn every_example_is_read() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(config_directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let config = Config::from_toml_file(&path).unwrap_or_else(|error| panic!("{error}"));
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let expected = match config.device.as_ref().unwrap() {
            DeviceConfig::Memif { .. } => "memif",
            DeviceConfig::VirtioUser { .. } => "virtio-user",
            DeviceConfig::Vhost { .. } => "vhost",
            DeviceConfig::Tap { .. } => "tap",
            DeviceConfig::AfPacket { .. } => "af-packet",
            DeviceConfig::Pci { .. } => "nic",
            other => panic!("{name}: no example is expected for {other:?}"),
        };
        assert!(name.starts_with(expected), "{name} configures {expected}");
        seen.push(name);
    }
    seen.sort();
    assert_eq!(seen, ["af-packet", "memif-client", "memif-server", "nic", "tap", "vhost", "virtio-user"]);
}

#[test]
fn commented_defaults_are_the_defaults() {
    let path = config_directory().join("memif-server.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let plain = Config::from_toml_str(&text).unwrap();
    // A comment that is a setting: `# name = value`.
    let mut uncommented: String = text
        .lines()
        .map(|line| {
            let setting = line.strip_prefix("# ").filter(|rest| {
                rest.split_once(" = ").is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
            });
            setting.unwrap_or(line).to_owned() + "\n"
        })
        .collect();
    uncommented = uncommented.replace("ring-size = 1024\n", "").replace("pcap = \"/tmp/uwarp-server.pcapng\"\n", "");
    assert_eq!(Config::from_toml_str(&uncommented).unwrap(), plain);
}
