//! The files of the device, by which programs find it that do not ask the library for everything: `uwarp-run` shows
//! them in namespaces of the program's, or leads the program to them by a preloaded library.

use std::path::Path;
use std::time::{Duration, Instant};

use uwarp_verbs_tests::{ADDRESS, Ended, Host, INTERFACE, binaries};

/// What UCX asks of the character device.
const HAS_NODE: &str =
    "test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0";
const PORT: &str = "/sys/class/infiniband/uwarp0/ports/1";

fn uwarp_run(host: &Host, words: &[&str]) -> Ended {
    host.tool("uwarp-run", words)
}

/// What a shell's script prints behind `uwarp-run` with these options, and what `uwarp-run` says.
#[track_caller]
fn script(host: &Host, options: &[&str], script: &str) -> String {
    uwarp_run(host, &[options, &["sh", "-ec", script]].concat()).succeeded().to_owned()
}

/// What `ibv_devinfo -v` says, which asks the library, stands in the files. The rest of the folders is there as before.
#[track_caller]
fn sees_what_the_library_says(host: &Host) {
    let report = script(host, &["--roce"], "ibv_devinfo -v");
    let of_library = |key: &str| {
        let value = report.lines().find_map(|line| line.trim().strip_prefix(key));
        value.unwrap_or_else(|| panic!("no {key}: {report}")).trim().to_owned()
    };
    let file = |path: &str| script(host, &["--roce"], &format!("cat {path}")).trim().to_owned();
    assert_eq!(file("/sys/class/infiniband/uwarp0/node_guid"), of_library("node_guid:"));
    assert_eq!(file("/sys/class/infiniband/uwarp0/fw_ver"), of_library("fw_ver:"));
    assert_eq!(file("/sys/class/infiniband_verbs/uverbs0/ibdev"), "uwarp0");
    let lid = file(&format!("{PORT}/lid"));
    assert_eq!(lid.trim_start_matches("0x"), of_library("port_lid:"));
    assert!(file(&format!("{PORT}/state")).ends_with(" ACTIVE") && of_library("state:").starts_with("PORT_ACTIVE"));
    for (index, gid) in ["::ffff:10.9.0.1", "fd00:9::1"].iter().enumerate() {
        assert!(of_library(&format!("GID[  {index}]:")).starts_with(gid), "{report}");
        let octets: Vec<u8> = gid.parse::<std::net::Ipv6Addr>().expect("an address").octets().to_vec();
        let groups: Vec<String> = octets.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
        assert_eq!(file(&format!("{PORT}/gids/{index}")), groups.join(":"));
        assert_eq!(file(&format!("{PORT}/gid_attrs/types/{index}")), "RoCE v2");
        assert_eq!(file(&format!("{PORT}/gid_attrs/ndevs/{index}")), INTERFACE);
    }
    script(host, &["--roce"], HAS_NODE);
    // Nothing else is hidden.
    script(
        host,
        &["--roce"],
        &format!(
            "cat /sys/class/net/{INTERFACE}/mtu /dev/null && echo gone >/dev/null && test -e /dev/shm -a -e /dev/fd"
        ),
    );
    let same = |what: &str| assert_eq!(script(host, &["--roce"], what), script(host, &["--no-sysfs"], what), "{what}");
    same("id -ru; id -rg; pwd; umask; ls -d /sys/class/*/ /dev/* | grep -v infiniband");
}

#[test]
fn an_ordinary_user_sees_what_the_library_says() {
    let host = Host::of_ordinary_user("files-user");
    sees_what_the_library_says(&host);
}

#[test]
fn root_sees_what_the_library_says() {
    let host = Host::new("files-root");
    sees_what_the_library_says(&host);
    let said = script(&host, &["--roce", "-v"], "true");
    assert!(said.contains("in a mount namespace of the program's"), "{said}");
}

#[test]
fn files_are_shown_of_a_device_of_roce_unless_they_are_not_wanted() {
    let host = Host::of_ordinary_user("files-wanted");
    let is_there = "cat /sys/class/infiniband/uwarp0/node_type 2>/dev/null || echo none";
    for (options, expected) in [
        (&["--roce"][..], "1: CA\n"),
        (&["--roce", "--no-sysfs"], "none\n"),
        (&["--iwarp"], "none\n"),
        (&["--iwarp", "--sysfs"], "4: RNIC\n"),
    ] {
        assert_eq!(script(&host, options, is_there), expected, "{options:?}");
    }
    // They end with the program.
    assert!(!Path::new("/sys/class/infiniband/uwarp0").exists() && !Path::new("/dev/infiniband/uverbs0").exists());
}

#[test]
fn a_program_that_runs_another_uwarp_run_has_its_files() {
    let host = Host::of_ordinary_user("files-nested");
    let run = binaries().join("uwarp-run");
    let run = run.to_str().expect("a path");
    let again = |inner: &[&str], script: &str| {
        uwarp_run(&host, &[&["--roce", run, "-v"], inner, &["sh", "-ec", script]].concat()).succeeded().to_owned()
    };
    let said = again(&["--roce"], HAS_NODE);
    assert!(said.contains("are shown already"), "{said}");
    // One of another shape has others, however deep it is.
    let said = again(&["--iwarp", "--sysfs"], "cat /sys/class/infiniband/uwarp0/node_type");
    assert!(said.contains("4: RNIC") && said.contains("in a user and a mount namespace"), "{said}");
    let deep = format!("{run} --roce {run} --iwarp --sysfs {run} -v --roce sh -ec '{HAS_NODE}; cat {PORT}/gids/0'");
    let said = script(&host, &["--iwarp", "--sysfs"], &deep);
    assert!(said.contains("0000:0000:0000:0000:0000:ffff:0a09:0001") && said.contains("in a user and"), "{said}");
}

/// In namespaces of their own, the kernel would refuse them each other's memory.
#[test]
fn programs_of_a_user_that_run_at_once_share_their_namespaces() {
    let host = Host::of_ordinary_user("files-shared");
    let run = binaries().join("uwarp-run");
    let run = run.to_str().expect("a path");
    // Each command of a host has mounts of its own, so one starts all of them.
    let wait = "echo $0 $(readlink /proc/self/ns/user); until test -e end; do sleep 0.05; done";
    let all =
        format!("for shape in roce roce roce iwarp; do {run} --$shape --sysfs sh -ec '{wait}' $shape & done; wait");
    let running = host.start(&["sh", "-ec", &all]);
    let began = Instant::now();
    while running.printed().lines().count() < 4 {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", running.printed());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(host.directory().join("end"), "").expect("the directory is ours");
    let ended = running.wait();
    let places = |shape: &str| {
        let lines = ended.output.lines().filter_map(|line| line.strip_prefix(shape));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (roce, iwarp) = (places("roce "), places("iwarp "));
    assert!(roce.len() == 3 && roce.iter().all(|place| *place == roce[0]), "{}", ended.output);
    assert!(iwarp.len() == 1 && iwarp[0] != roce[0], "it sees other files: {}", ended.output);
}

/// A program's words behind those that refuse it namespaces, as a container of Docker's does (`c/refuse.c`).
#[track_caller]
fn refused(host: &Host, options: &[&str], words: &[&str]) -> String {
    let (refuse, run) = (host.compile("refuse"), binaries().join("uwarp-run"));
    let front = [&refuse, run.to_str().expect("a path"), "--roce"];
    host.run(&[&front[..], options, words].concat()).succeeded().to_owned()
}

#[test]
fn where_namespaces_are_refused_a_preloaded_library_shows_the_files() {
    let host = Host::of_ordinary_user("files-refused");
    let said = refused(&host, &["-v"], &["sh", "-ec", &format!("{HAS_NODE}; cat {PORT}/state {PORT}/gids/1")]);
    let (way, files) = said.split_once('\n').expect("lines");
    assert!(way.contains("by a preloaded library, since there are no namespaces") && way.contains("not permitted"));
    assert_eq!(files, "4: ACTIVE\nfd00:0009:0000:0000:0000:0000:0000:0001\n");
    assert_eq!(refused(&host, &[], &["sh", "-ec", "ls -d /sys/class/infiniband/*"]), "/sys/class/infiniband/uwarp0\n");
    // The files that programs see are those of the moment, and programs that see the same share them.
    let folders = || {
        let entries = std::fs::read_dir(host.directory().join(".local/state/uwarp")).expect("uwarp-run has made it");
        entries.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir())).count()
    };
    assert_eq!(folders(), 1);
    assert!(refused(&host, &["--device-name", "rxe_1"], &["ls", "/sys/class/infiniband"]).contains("rxe_1"));
    assert_eq!(folders(), 2);
    // One inside of another one finds them there.
    let run = binaries().join("uwarp-run");
    let said = refused(&host, &[], &[run.to_str().expect("a path"), "--roce", "-v", "sh", "-ec", HAS_NODE]);
    assert!(said.contains("are shown already"), "{said}");
    for options in [&["--no-sysfs"][..], &["--iwarp"]] {
        let words = [options, &["sh", "-c", "ls -d /sys/class/infiniband /dev/infiniband 2>&1; env"]].concat();
        let said = host.run(&[&[host.compile("refuse").as_str(), run.to_str().expect("a path")], &words[..]].concat());
        let said = said.succeeded();
        assert!(!said.contains("uwarp_files") && said.contains("'/dev/infiniband': No such file"), "{said}");
    }
}

#[test]
fn a_preloaded_library_shows_the_same_to_every_function_that_takes_a_path() {
    let host = Host::of_ordinary_user("files-functions");
    let program = host.compile("files");
    refused(&host, &[], &[&program, "shown"]);
    refused(&host, &[], &[&program, "others"]);
    // Namespaces show the same.
    uwarp_run(&host, &["--roce", &program, "shown"]).succeeded();
    uwarp_run(&host, &["--roce", &program, "others"]).succeeded();
}

#[test]
fn stock_programs_find_the_device_where_namespaces_are_refused() {
    let host = Host::of_ordinary_user("files-refused-stock");
    let said = refused(&host, &[], &["ibstat"]);
    for part in ["CA 'uwarp0'", "State: Active", "Link layer: Ethernet"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(refused(&host, &[], &["ibv_devinfo", "-v"]).contains("PORT_ACTIVE"));
    let said = refused(&host, &[], &["ucx_info", "-d"]);
    assert!(said.contains("Transport: rc_verbs") && said.contains("Device: uwarp0:1"), "{said}");
    assert!(!refused(&host, &["--no-sysfs"], &["ucx_info", "-d"]).contains("uwarp0:1"), "UCX finds it without files");
}

/// The loader takes spaces for the ends of names.
#[test]
fn where_nothing_can_be_preloaded_either_the_program_runs_and_the_reason_is_said() {
    let host = Host::of_ordinary_user("files-nothing");
    let libraries = host.directory().join("with space");
    std::os::unix::fs::symlink(uwarp_verbs_tests::libraries(), &libraries).expect("the directory is ours");
    let options = ["--library-dir", libraries.to_str().expect("a path")];
    let said = refused(&host, &options, &["echo", "it runs"]);
    assert!(said.ends_with("it runs\n") && said.lines().count() == 2, "{said}");
    for part in ["/dev/infiniband/uverbs0", "no user namespace", "with a space", "--device /dev/null:", "--no-sysfs"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn stock_programs_find_the_device_by_its_files() {
    let host = Host::of_ordinary_user("files-stock");
    let said = uwarp_run(&host, &["--roce", "ibstat"]);
    let said = said.succeeded();
    for part in ["CA 'uwarp0'", "State: Active", "Physical state: LinkUp", "Link layer: Ethernet", "Rate: 25"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // By another name, which the library and the files have.
    let named = |program| uwarp_run(&host, &["--roce", "--device-name", "rxe-7", program]);
    assert!(named("ibstat").succeeded().contains("CA 'rxe-7'"));
    assert!(named("ibv_devices").succeeded().contains("rxe-7 "));
    let refused = uwarp_run(&host, &["--device-name", "a/b", "true"]);
    assert!(!refused.status.success() && refused.output.contains("letters, digits"), "{}", refused.output);
    let said = uwarp_run(&host, &["--roce", "ucx_info", "-d"]);
    let said = said.succeeded();
    assert!(said.contains("Transport: rc_verbs") && said.contains("Device: uwarp0:1"), "{said}");
    let without = uwarp_run(&host, &["--roce", "--no-sysfs", "ucx_info", "-d"]);
    assert!(!without.succeeded().contains("uwarp0:1"), "UCX finds it without files");
}

#[test]
fn ucx_sends_tagged_messages_and_puts_by_the_device_alone() {
    const PORT: u16 = 13_337;
    let host = Host::of_ordinary_user("files-ucx");
    let variables = [("UCX_TLS", "rc_verbs,ud_verbs"), ("UCX_NET_DEVICES", "uwarp0:1")];
    let run = binaries().join("uwarp-run");
    let words = [run.to_str().expect("a path"), "--roce", "ucx_perftest"];
    for test in ["tag_lat", "tag_bw", "ucp_put_bw", "ucp_get"] {
        let server = host.start_with(&variables, &words);
        let server = Host::wait_until(server, &words, |server| Host::listens_on_kernels(server, PORT));
        let client = [&words[..], &[ADDRESS, "-t", test, "-n", "500", "-w", "10", "-s", "9000"]].concat();
        let client = host.start_with(&variables, &client).wait();
        assert!(client.succeeded().contains("Final:"), "{test}: {}\n{}", client.output, server.printed());
        server.wait().succeeded();
    }
}
