//! Programs of Debian's packages, none of which knows uwarp.

use std::process::Command;

use uwarp_verbs_tests::{ADDRESS, ADDRESS6, Host, libraries};

#[test]
fn ibv_devices_and_ibv_devinfo_see_one_active_iwarp_device() {
    let host = Host::new("devinfo");
    assert!(host.run(&["ibv_devices"]).succeeded().contains("uwarp0"));
    let information = host.run(&["ibv_devinfo", "-v"]);
    for line in ["transport:\t\t\tiWARP (1)", "state:\t\t\tPORT_ACTIVE (4)", "link_layer:\t\tEthernet"] {
        assert!(information.succeeded().contains(line), "{line}\n{}", information.output);
    }
}

#[test]
fn without_a_network_there_is_no_device_and_one_line_says_what_to_start() {
    let nowhere = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("ibv_devices");
    command
        .env("LD_LIBRARY_PATH", libraries())
        .env_remove("UWARP_CONFIG")
        .env("UWARP_SWITCH", nowhere.path().join("none"));
    let output = command.output().expect("ibv_devices is installed");
    assert!(output.status.success());
    assert!(!String::from_utf8_lossy(&output.stdout).contains("uwarp0"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("uwarp: no device: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn rping_of_an_ordinary_user_verifies_its_data() {
    let closed = uwarp_notes::is_closed_to_others(&libraries().join("libibverbs.so.1"), "rping of an ordinary user");
    let host = if closed { Host::new("rping") } else { Host::of_ordinary_user("rping") };
    let (server, client) =
        host.pair(&["rping", "-s", "-v", "-C", "3"], &["rping", "-c", "-a", "127.0.0.1", "-v", "-C", "3"]);
    assert!(server.contains("server ping data: rdma-ping-2") && client.contains("ping data: rdma-ping-2"));
    host.pair(
        &["rping", "-s", "-V", "-C", "200", "-S", "9000"],
        &["rping", "-c", "-a", ADDRESS, "-V", "-C", "200", "-S", "9000"],
    );
    host.pair(&["rping", "-s", "-a", ADDRESS6, "-V", "-C", "20"], &["rping", "-c", "-a", ADDRESS6, "-V", "-C", "20"]);
}

#[test]
fn ucmatose_rdma_client_and_cmtime_connect() {
    let host = Host::new("cm");
    host.pair(&["ucmatose", "-c", "8"], &["ucmatose", "-s", ADDRESS, "-c", "8"]);
    host.pair(&["rdma_server", "-p", "7474"], &["rdma_client", "-s", ADDRESS, "-p", "7474"]);
    // Its server runs until it is ended.
    let _server = host.serve(&["cmtime", "-b", ADDRESS, "-c", "50"]);
    let client = host.run(&["cmtime", "-s", ADDRESS, "-c", "50"]);
    // That of rdma-core 56 makes and moves its queue pairs itself. In the end it asks for connections without any,
    // which iWARP does not have, whatever the device.
    if client.output.contains("test - no QPs") {
        let is_connected = client.output.contains("qp_conn                50");
        assert!(is_connected && client.output.contains("rdma_connect: Invalid argument"), "{}", client.output);
    } else {
        client.succeeded();
    }
}

#[test]
fn perftest_without_rdma_cm_fails_and_does_not_hang() {
    let host = Host::new("without-cm");
    let server = host.start(&["ib_write_bw", "-n", "100"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let client = host.run(&["ib_write_bw", "-n", "100", ADDRESS]);
    assert!(!client.status.success(), "{}", client.output);
    assert!(!server.wait().status.success());
}

#[test]
fn a_killed_program_leaves_its_peer_and_its_port_free() {
    let host = Host::new("killed");
    let server = host.serve(&["rping", "-s", "-C", "100000000"]);
    let mut client = host.start(&["rping", "-c", "-a", ADDRESS, "-C", "100000000"]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    client.kill();
    // A reset reaches the server, which ends.
    let _ = server.wait();
    host.pair(&["rping", "-s", "-C", "2"], &["rping", "-c", "-a", ADDRESS, "-C", "2"]);
}
