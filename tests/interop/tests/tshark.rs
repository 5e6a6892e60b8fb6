//! What the tools put on the wire, as tshark reads it: every CRC good, nothing malformed, no expert error.

use std::process::Command;

use uwarp_interop_tests::tools::{Guarded, run, tool, wait_for};
use uwarp_interop_tests::witness::{count, count_with, examine};

const WRITE: usize = 0;
const READ_REQUEST: usize = 1;
const READ_RESPONSE: usize = 2;
const SEND: usize = 3;

#[test]
fn tshark_finds_nothing_wrong_with_a_ping() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, capture) = (folder.path().join("socket"), folder.path().join("ping.pcap"));
    let ping = || {
        let mut command = Command::new(tool("uwarp-ping"));
        command.arg("--socket").arg(&socket).args(["-C", "10"]);
        command
    };
    let server = Guarded::start(ping().arg("-s"));
    wait_for(&socket);
    // 4096 octets take three segments each way.
    run(ping().args(["-c", "-a", "10.77.0.1", "-S", "4096", "-V", "--pcap"]).arg(&capture));
    server.finish();
    let testimony = examine(&capture);
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(testimony.opcodes[SEND], 40, "four Sends a round");
    assert_eq!(testimony.opcodes[READ_REQUEST], 10, "one Read a round");
    assert_eq!((testimony.opcodes[READ_RESPONSE], testimony.opcodes[WRITE]), (30, 30), "three segments each");
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
}

#[test]
fn tshark_finds_nothing_wrong_with_a_ping_over_ipv6_in_a_vlan() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, capture) = (folder.path().join("socket"), folder.path().join("ping.pcap"));
    let ping = || {
        let mut command = Command::new(tool("uwarp-ping"));
        // Not the usual device, which is given unfinished checksums: here they are written whole.
        command.args(["--device", "memif"]).arg("--socket").arg(&socket).args(["-C", "10", "--ipv6", "--vlan", "7"]);
        command
    };
    let server = Guarded::start(ping().arg("-s"));
    wait_for(&socket);
    run(ping().args(["-c", "-S", "4096", "-V", "--pcap"]).arg(&capture));
    server.finish();
    let testimony = examine(&capture);
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(testimony.opcodes[SEND], 40, "four Sends a round");
    assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    // Every frame has the tag; every checksum of TCP and ICMPv6 is right; and neighbours found each other.
    let all = count(&capture, "frame");
    assert!(all > 100, "{all} frames");
    assert_eq!(count(&capture, "vlan.id == 7 && ipv6"), all);
    let checked = ["-o", "tcp.check_checksum:TRUE"];
    assert_eq!(count_with(&capture, &checked, "tcp.checksum.status == Good"), count(&capture, "tcp"));
    assert_eq!(count(&capture, "icmpv6.checksum.status == Good"), count(&capture, "icmpv6"));
    assert!(count(&capture, "icmpv6.type == 135") > 0 && count(&capture, "icmpv6.type == 136") > 0);
}

#[test]
fn tshark_finds_nothing_wrong_with_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, served) = (folder.path().join("socket"), folder.path().join("served"));
    let captures = [folder.path().join("put.pcap"), folder.path().join("get.pcap")];
    let (original, back) = (folder.path().join("file"), folder.path().join("back"));
    std::fs::create_dir(&served).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let octets: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(300_001).collect();
    std::fs::write(&original, &octets).unwrap();

    let copy = || {
        let mut command = Command::new(tool("uwarp-copy"));
        command.arg("--socket").arg(&socket);
        command
    };
    let _server = Guarded::start(copy().arg("serve").arg(&served));
    wait_for(&socket);
    run(copy().arg("--pcap").arg(&captures[0]).arg("put").arg(&original));
    run(copy().arg("--pcap").arg(&captures[1]).args(["get", "file", "--output"]).arg(&back));
    assert_eq!(std::fs::read(served.join("file")).unwrap(), octets);
    assert_eq!(std::fs::read(&back).unwrap(), octets);
    for capture in &captures {
        let testimony = examine(capture);
        assert_eq!(testimony.complaints, [""; 0], "{}", capture.display());
        let data = testimony.opcodes[WRITE] + testimony.opcodes[READ_RESPONSE];
        assert!(data > 200, "{testimony:?}: 300,001 octets take more than 200 segments");
        assert_eq!(testimony.good_crcs, testimony.opcodes.iter().sum::<usize>(), "every FPDU has a CRC");
    }
}
