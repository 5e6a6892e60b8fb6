use super::*;

const BASE: &str = r#"
address = "10.0.0.1/24"
[device]
kind = "memif"
role = "server"
socket = "/tmp/x.sock"
"#;

fn sentence(text: &str) -> String {
    let error = Config::from_toml_str(text).unwrap_err().to_string();
    assert!(!error.contains('\n'), "more than a sentence: {error}");
    assert!(!error.is_empty());
    error
}

/// The base with a line in front of the `[device]` table.
fn with_field(line: &str) -> String {
    BASE.replacen("[device]", &format!("{line}\n[device]"), 1)
}

/// The base with another table behind.
fn with_table(table: &str) -> String {
    format!("{BASE}\n{table}\n")
}

#[test]
fn a_short_file_gets_defaults() {
    let config = Config::from_toml_str(BASE).unwrap();
    assert_eq!(config.address.to_string(), "10.0.0.1/24");
    assert_eq!(config.mtu, 1500);
    assert_eq!(config.engine.mode, EngineMode::Threaded);
    assert_eq!(config.engine.count, 1);
    assert!(config.mpa.crc);
    assert!(config.tcp.keep_alive.enabled);
    assert!(config.tcp.user_timeout.is_some());
    assert_eq!(config.linger, Duration::from_secs(5));
    assert!(config.device.is_some());
    assert!(!config.eal.hugepages);
}

#[test]
fn what_is_written_is_read_back() {
    let mut config = Config::from_toml_str(BASE)
        .unwrap()
        .mtu(9000)
        .threaded(2)
        .cpus([0, 1])
        .crc(false)
        .pcap("/tmp/x.pcap")
        .faults(FaultOptions { loss: 5.0, seed: 7, ..FaultOptions::default() })
        .gateway(Ipv4Addr::new(10, 0, 0, 254))
        .neighbour(Ipv4Addr::new(10, 0, 0, 2), [2, 0, 0, 0, 0, 2]);
    config.tcp.user_timeout = None;
    let text = config.to_toml().unwrap();
    assert_eq!(Config::from_toml_str(&text).unwrap(), config, "{text}");
}

#[test]
fn a_switch_takes_the_place_of_device_and_address() {
    let config = Config::from_toml_str("switch = \"/run/s\"\nlinger = \"1s\"").unwrap();
    let expected = Config { linger: Duration::from_secs(1), ..Config::on_switch("/run/s") };
    assert_eq!(config, expected);
    let text = config.to_toml().unwrap();
    assert_eq!(Config::from_toml_str(&text).unwrap(), config, "{text}");
}

#[test]
fn setters_undo_what_would_contradict_them() {
    let config = Config::from_toml_str(BASE).unwrap().threaded(2).cpus([0, 1]).inline();
    assert_eq!(config.engine.count, 1);
    config.validate().unwrap();
}

#[test]
fn each_mistake_gives_one_sentence_that_names_it() {
    for (text, expected) in [
        (String::new(), "missing field `address`"),
        ("switch = \"/run/s\"\nmtu = 1400".to_owned(), "mtu is the switch's to give"),
        (format!("switch = \"/run/s\"\n{BASE}"), "device is the switch's to give"),
        (
            "switch = \"/run/s\"\n[engine]\ncount = 2".to_owned(),
            "engine.count is 2: a switch gives each client one queue",
        ),
        ("address = \"10.0.0.1/24\"\n".to_owned(), "there is no [device] table"),
        (with_field("speed = 3"), "unknown field `speed`"),
        (with_field("mtu = 9001"), "mtu is 9001: choose 576 to 9000"),
        (with_field("mtu = 100"), "mtu is 100"),
        (with_field("linger = \"soon\""), "is not a time"),
        (with_field("linger = 5"), "'5' is not a time"),
        (with_field("linger = \"11min\""), "linger is longer"),
        (with_field("gateway = \"10.0.1.1\""), "gateway 10.0.1.1 is outside of the subnet 10.0.0.1/24"),
        (with_field("gateway = \"10.0.0.1\""), "own address"),
        (BASE.replace("10.0.0.1/24", "10.0.0.1"), "with its prefix"),
        (BASE.replace("10.0.0.1/24", "10.0.0.1/33"), "1 to 32 bits"),
        (BASE.replace("10.0.0.1/24", "224.0.0.1/24"), "unicast"),
        (BASE.replace("memif", "infiniband"), "infiniband"),
        (with_table("[engine]\ncount = 0"), "engine.count is 0"),
        (with_table("[engine]\nmode = \"inline\"\ncount = 2"), "an inline context has one engine"),
        (with_table("[engine]\nmode = \"inline\"\ncpus = [1]"), "pin that thread instead"),
        (with_table("[engine]\ncount = 2\ncpus = [1]"), "names 1 CPUs for 2 engines"),
        (with_table("[engine]\nmode = \"fast\""), "fast"),
        (with_table("[engine]\nnap = \"1s\""), "engine.nap"),
        (with_table("[tcp]\nreceive-window = 10"), "receive-window"),
        (with_table("[tcp]\nreceive-window = \"64 kilo\""), "is not a size"),
        (with_table("[tcp]\nrto-min = \"2s\""), "not in order"),
        (with_table("[tcp]\ndelayed-ack = \"1s\""), "delayed-ack"),
        (with_table("[tcp]\nrto-initial = \"61s\""), "at most 60 s"),
        (with_table("[tcp]\nuser-timeout = \"1us\""), "tcp.user-timeout"),
        (with_table("[tcp.keep-alive]\nprobes = 0"), "keep-alive"),
        (with_table("[mpa]\nstartup-timeout = \"0s\""), "startup"),
        (with_table("[mpa]\nnudge-after = \"11s\""), "nudge-after is longer than 10 s"),
        (with_table("[mpa]\nfirst-fpdu-delay = \"10s\""), "first-fpdu-delay is 10s"),
        (with_table("[limits]\nreceive-wait = \"61s\""), "receive-wait is 61s"),
        (with_table("[limits]\nqueue-pairs = 0"), "limits.queue-pairs is 0: choose 1 to"),
        (with_table("[buffers]\nreceive = 1"), "buffers.receive is 1"),
        (with_table("[buffers]\ndescriptors = 1"), "buffers.descriptors"),
        (with_table("[faults]\nloss = 101"), "'101' is not a share"),
        (with_table("[vlan]\nnumber = 0"), "vlan.number is 0"),
        (with_table("[vlan]\nnumber = 4095"), "vlan.number is 4095"),
        (with_table("[vlan]\nnumber = 5\npriority = 8"), "vlan.priority is 8"),
        (with_table("[vlan]\nnumber = 5\npriority = 9"), "vlan.priority is 9"),
        (
            with_table("[[neighbours]]\naddress = \"10.0.1.2\"\nmac = \"02:00:00:00:00:02\""),
            "neighbour 10.0.1.2 is outside",
        ),
        (
            with_table("[[neighbours]]\naddress = \"10.0.0.2\"\nmac = \"01:00:00:00:00:02\""),
            "not the address of one station",
        ),
        (with_table("[[neighbours]]\naddress = \"10.0.0.2\"\nmac = \"2:0\""), "is not an Ethernet address"),
        (
            with_table("[[neighbours]]\naddress = \"10.0.0.2\"\nmac = \"02:00:00:00:00:+1\""),
            "is not an Ethernet address",
        ),
    ] {
        let error = sentence(&text);
        assert!(error.contains(expected), "for\n{text}\nexpected {expected:?} in {error:?}");
    }
}

#[test]
fn a_mistake_names_its_line() {
    assert!(sentence(&with_field("speed = 3")).starts_with("line 3: "));
}

#[test]
fn a_file_that_is_absent_is_named() {
    let error = Config::from_toml_file("/nonexistent/uwarp.toml").unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/uwarp.toml: "));
}
