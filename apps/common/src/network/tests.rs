use super::*;
use clap::Parser;

#[derive(Parser)]
struct Tool {
    #[command(flatten)]
    network: NetworkFlags,
}

fn flags(arguments: &[&str]) -> NetworkFlags {
    Tool::parse_from(std::iter::once(&"tool").chain(arguments)).network
}

#[test]
fn the_two_sides_of_a_default_pair_fit() {
    let flags = flags(&[]);
    let server = flags.resolve(Role::Server, EngineMode::Inline).unwrap();
    let client = flags.resolve(Role::Client, EngineMode::Inline).unwrap();
    let (Some(DeviceConfig::Vhost { socket: vhost, .. }), Some(DeviceConfig::VirtioUser { socket: user, .. })) =
        (&server.device, &client.device)
    else {
        panic!("{:?} {:?}", server.device, client.device);
    };
    assert_eq!(vhost, user);
    assert_eq!(server.address.address, SERVER_ADDRESS);
    assert!(server.address.contains(client.address.address));
    assert_eq!(client.engine.mode, EngineMode::Inline);
}

#[test]
fn a_pair_over_ipv6_fits_and_keeps_other_addresses() {
    let flags = flags(&["--ipv6", "--another-address", "10.0.0.1/24", "--gateway", "fe80::1", "--vlan", "9"]);
    let server = flags.resolve(Role::Server, EngineMode::Inline).unwrap();
    let client = flags.resolve(Role::Client, EngineMode::Inline).unwrap();
    assert_eq!(server.address.address, SERVER_ADDRESS6);
    assert!(server.address.contains(client.address.address));
    assert_eq!(server.addresses().count(), 2);
    assert_eq!((server.gateway, server.gateway6), (None, Some("fe80::1".parse().unwrap())));
    assert_eq!(server.vlan.unwrap().number, 9);
}

#[test]
fn flags_win_over_the_file() {
    let folder = std::env::temp_dir().join(format!("uwarp-app-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("server.toml");
    let written = flags(&["--device", "memif", "--mtu", "9000", "--address", "10.1.2.3/16"])
        .resolve(Role::Server, EngineMode::Inline)
        .unwrap();
    std::fs::write(&file, written.to_toml().unwrap()).unwrap();
    let path = file.to_str().unwrap();
    let same = flags(&["--config", path]).resolve(Role::Server, EngineMode::Threaded).unwrap();
    assert_eq!(same, written);
    let other = flags(&["--config", path, "--mtu", "1400", "--no-crc", "--loss", "1%"])
        .resolve(Role::Server, EngineMode::Threaded)
        .unwrap();
    assert_eq!(other.mtu, 1400);
    assert!(!other.mpa.crc);
    assert_eq!(other.address, written.address);
    assert_eq!(other.faults.unwrap().loss, 1.0);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The configuration from a file with this text and these flags.
fn with_file(text: &str, arguments: &[&str], role: Role, engine: EngineMode) -> anyhow::Result<uwarp::Config> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    let line = [&["--config", file.path().to_str().unwrap()], arguments].concat();
    flags(&line).resolve(role, engine)
}

const VHOST: &str = "address = \"10.1.2.3/16\"\n[device]\nkind = \"vhost\"\nsocket = \"/tmp/v\"\ntso = true\n";
const MEMIF: &str = "address = \"10.1.2.3/16\"\n[device]\nkind = \"memif\"\nrole = \"client\"\nsocket = \"/tmp/m\"\n\
                     ring-size = 512\n";
const TAP: &str = "address = \"10.1.2.3/16\"\n[device]\nkind = \"tap\"\nname = \"tap7\"\nmac = \"02:00:00:00:00:01\"\n";

#[test]
fn flags_change_the_device_of_the_file_and_not_its_kind() {
    let memif = |role, socket: &str, zero_copy| DeviceConfig::Memif {
        role,
        socket: socket.into(),
        zero_copy,
        ring_size: Some(512),
        buffer_size: None,
    };
    let vhost = |socket: &str| DeviceConfig::Vhost { socket: socket.into(), client: false, tso: true };
    let tap = |name: &str| DeviceConfig::Tap {
        name: name.to_owned(),
        mac: Some("02:00:00:00:00:01".to_owned()),
        netns: None,
    };
    for (text, arguments, role, expected) in [
        (VHOST, &["--socket", "/tmp/x"][..], Role::Client, vhost("/tmp/x")),
        (VHOST, &["--device", "virtio"], Role::Server, vhost("/tmp/v")),
        (
            VHOST,
            &["--device", "virtio", "--split"],
            Role::Client,
            DeviceConfig::VirtioUser {
                socket: "/tmp/v".into(),
                server: false,
                packed: false,
                queue_size: None,
                mac: None,
            },
        ),
        (MEMIF, &["--socket", "/tmp/x"], Role::Server, memif(MemifRole::Client, "/tmp/x", false)),
        (MEMIF, &["--zero-copy"], Role::Client, memif(MemifRole::Client, "/tmp/m", true)),
        (MEMIF, &["--device", "memif", "--zero-copy"], Role::Server, memif(MemifRole::Server, "/tmp/m", false)),
        (VHOST, &["--device", "virtio", "--exchange-ends"], Role::Client, vhost("/tmp/v")),
        (MEMIF, &["--device", "memif", "--exchange-ends"], Role::Server, memif(MemifRole::Client, "/tmp/m", false)),
        (
            TAP,
            &["--device", "memif", "--socket", "/tmp/x", "--exchange-ends"],
            Role::Server,
            DeviceConfig::Memif {
                role: MemifRole::Client,
                socket: "/tmp/x".into(),
                zero_copy: false,
                ring_size: None,
                buffer_size: None,
            },
        ),
        (TAP, &["--interface", "tap8"], Role::Client, tap("tap8")),
        (
            TAP,
            &["--device", "memif", "--socket", "/tmp/x"],
            Role::Client,
            DeviceConfig::Memif {
                role: MemifRole::Client,
                socket: "/tmp/x".into(),
                zero_copy: false,
                ring_size: None,
                buffer_size: None,
            },
        ),
    ] {
        let config = with_file(text, arguments, role, EngineMode::Inline).unwrap();
        assert_eq!(config.device, Some(expected), "{arguments:?}");
    }
}

#[test]
fn a_flag_that_the_device_of_the_file_has_no_use_for_is_an_error() {
    let ring = "address = \"10.1.2.3/16\"\n[device]\nkind = \"ring\"\nname = \"r\"\n";
    for (text, arguments) in [
        (VHOST, &["--interface", "tap8"][..]),
        (VHOST, &["--zero-copy"]),
        (MEMIF, &["--split"]),
        (TAP, &["--socket", "/tmp/x"]),
        (TAP, &["--exchange-ends"]),
        (VHOST, &["--exchange-ends"]),
        (ring, &["--socket", "/tmp/x"]),
    ] {
        let error = with_file(text, arguments, Role::Client, EngineMode::Inline).unwrap_err();
        assert!(error.is::<crate::Usage>(), "{arguments:?}: {error}");
        assert!(error.to_string().starts_with(arguments[0]), "{arguments:?}: {error}");
    }
}

#[test]
fn reports_name_the_device_that_is_used() {
    let ring = "address = \"10.1.2.3/16\"\n[device]\nkind = \"ring\"\nname = \"r\"\n";
    let pci = "address = \"10.1.2.3/16\"\n[device]\nkind = \"pci\"\naddress = \"0000:01:00.0\"\n";
    for (text, expected) in
        [(VHOST, "virtio"), (MEMIF, "memif"), (TAP, "tap"), (ring, "ring"), (pci, "pci:0000:01:00.0")]
    {
        let config = with_file(text, &[], Role::Client, EngineMode::Inline).unwrap();
        assert_eq!(device_name(config.device.as_ref()), expected);
    }
}

#[test]
fn a_file_that_does_not_say_who_turns_the_engine_leaves_it_to_the_tool() {
    for (text, expected) in [
        ("", EngineMode::Inline),
        ("[engine]\nidle = \"spin\"\n", EngineMode::Inline),
        ("[engine]\nmode = \"threaded\"\n", EngineMode::Threaded),
        // These do not apply to an inline engine.
        ("[engine]\ncount = 2\n", EngineMode::Threaded),
        ("[engine]\ncpus = [0]\n", EngineMode::Threaded),
    ] {
        let config = with_file(&format!("{MEMIF}{text}"), &[], Role::Client, EngineMode::Inline).unwrap();
        assert_eq!(config.engine.mode, expected, "{text}");
    }
    let text = format!("{MEMIF}[engine]\nmode = \"inline\"\n");
    let config = with_file(&text, &[], Role::Client, EngineMode::Threaded).unwrap();
    assert_eq!(config.engine.mode, EngineMode::Inline);
}

#[test]
fn on_a_switch_the_file_says_who_turns_the_engine_too() {
    for (text, expected) in [("", EngineMode::Inline), ("[engine]\nmode = \"threaded\"\n", EngineMode::Threaded)] {
        for arguments in [&["--device", "switch"][..], &[]] {
            let text = format!("switch = \"/a/switch\"\n{text}");
            let config = with_file(&text, arguments, Role::Client, EngineMode::Inline).unwrap();
            assert_eq!((config.engine.mode, config.device), (expected, None), "{text} {arguments:?}");
            assert_eq!(config.switch, Some("/a/switch".into()));
        }
    }
    let flags = flags(&["--device", "switch", "--socket", "/a/switch"]);
    assert_eq!(flags.resolve(Role::Client, EngineMode::Inline).unwrap().engine.mode, EngineMode::Inline);
}

#[test]
fn what_is_cut_on_purpose_may_be_in_the_file_and_its_direction_on_the_command_line() {
    let text = format!("{MEMIF}[faults]\nrecut = \"30%\"\n");
    for (arguments, expected) in [(&["--recut-received-only"][..], true), (&[], false)] {
        let config = with_file(&text, arguments, Role::Client, EngineMode::Inline).unwrap();
        let faults = config.faults.unwrap();
        assert_eq!((faults.recut, faults.recut_received_only), (30.0, expected));
    }
}

#[test]
fn mistakes_are_usage_errors_with_a_sentence() {
    for arguments in [
        &["--mtu", "100"][..],
        &["--device", "af_packet"],
        &["--device", "tap", "--socket", "/tmp/x"],
        &["--device", "memif", "--split"],
        &["--gateway", "192.168.0.1"],
        &["--gateway", "fd01::1", "--ipv6"],
        &["--vlan", "4095"],
        &["--ipv6", "--mtu", "1200"],
        &["--config", "/nonexistent.toml"],
    ] {
        let error = flags(arguments).resolve(Role::Client, EngineMode::Inline).unwrap_err();
        assert!(error.is::<crate::Usage>(), "{arguments:?}: {error}");
    }
}

#[test]
fn arguments_survive_a_round_trip() {
    let line = [
        "--device",
        "memif",
        "--mtu",
        "9000",
        "--no-crc",
        "--loss",
        "5",
        "--recut",
        "30",
        "--recut-received-only",
        "--neighbour",
        "10.0.0.2=02:00:00:00:00:01",
        "--neighbour",
        "fd00::2=02:00:00:00:00:01",
        "--ipv6",
        "--vlan",
        "7",
        "--gateway",
        "fe80::1",
        "--gateway",
        "10.0.0.254",
        "--another-address",
        "10.0.0.1/24",
    ];
    let again = flags(&line).to_arguments();
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    assert_eq!(format!("{:?}", flags(&again)), format!("{:?}", flags(&line)));
}

#[test]
fn cpus_are_those_of_the_engines_or_of_the_one_thread_that_turns_them() {
    let threaded = |line: &[&str]| flags(line).resolve(Role::Server, EngineMode::Threaded);
    assert_eq!(threaded(&["--cpus", "0"]).unwrap().engine.cpus, [0]);
    let error = threaded(&["--cpus", "0,1"]).unwrap_err();
    assert!(error.is::<crate::Usage>() && error.to_string().contains("names 2 CPUs for 1 engines"), "{error}");
    let inline = flags(&["--cpus", "0,1", "--engine", "inline"]);
    assert!(inline.resolve(Role::Server, EngineMode::Threaded).unwrap().engine.cpus.is_empty());
    let error = inline.pin().unwrap_err();
    assert!(error.is::<crate::Usage>() && error.to_string().contains("name one"), "{error}");
    let error = flags(&["--cpus", "100000"]).pin().unwrap_err();
    assert!(error.is::<crate::Usage>() && error.to_string().contains("100000"), "{error}");
    flags(&[]).pin().unwrap();
}
