//! Debian's RDMA programs on uwarp's libibverbs and librdmacm, with the same programs on the Linux kernel's iWARP (siw,
//! in a guest) at the other end, in both roles.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use uwarp_interop_tests::link::Link;
use uwarp_interop_tests::siw::{self, GUEST, GUEST6, Guest};
use uwarp_netns as netns;
use uwarp_verbs_tests::libraries;

/// The longest wait for a program: under emulation, beside other tests, it is slow.
const LIMIT: Duration = Duration::from_secs(100);

/// What clients of rping, perftest and rstream say when they are refused, or reach nobody.
const REFUSED: [&str; 4] = [
    "RDMA_CM_EVENT_REJECTED",
    "RDMA_CM_EVENT_UNREACHABLE",
    "Unexpected CM event bl blka",
    "rconnect: Connection refused",
];

/// The address of programs on uwarp.
const OWN: &str = "10.77.0.1";

/// Whether rping in the guest has said nothing but that. When all is done, it closes its event channel. The thread that
/// waits there may find it closed, and end the process with an error before that ends without one.
const DONE: &str = "{ grep -q \"rdma_get_cm_event: Bad file descriptor\" /tmp/out && \
    ! grep -v -e \"rdma_get_cm_event: Bad file descriptor\" -e \"client DISCONNECT EVENT\" \
    -e \"server DISCONNECT EVENT\" -e \"wait for RDMA_READ_ADV state 10\" -e \"^$\" /tmp/out; }";

/// The guest's shell command that runs a program, and succeeds if that does or is [`DONE`].
fn in_guest(program: &str) -> String {
    format!("timeout {} {program} >/tmp/out 2>&1 || {DONE}; s=$?; cat /tmp/out; exit $s", LIMIT.as_secs())
}

/// The guest at the other end of a link. It boots when a program on uwarp has opened the device: qemu waits for that.
struct Bed<'a> {
    link: &'a Link,
    guest: Option<Guest>,
    /// Its kernel is that of Debian testing.
    is_current: bool,
}

/// A program on uwarp, with one of the link's configurations: `uwarp.toml`, or `uwarp6.toml` for IPv6.
fn program(link: &Link, configuration: &str, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("LD_LIBRARY_PATH", libraries()).env("LD_BIND_NOW", "1");
    command.env("UWARP_CONFIG", link.path(configuration)).env_remove("UWARP_SWITCH").stdin(Stdio::null());
    siw::spare(&mut command);
    command
}

impl<'a> Bed<'a> {
    fn new(link: &'a Link) -> Bed<'a> {
        Bed { link, guest: None, is_current: false }
    }

    fn program(&self, configuration: &str, words: &[&str]) -> Command {
        program(self.link, configuration, words)
    }

    /// A server on uwarp and its client in the guest, which names its address last; both have to succeed. If the client
    /// is refused, both start again: the server may be about to listen, and perftest's listens for its second
    /// connection only after the first.
    #[track_caller]
    fn serve(&mut self, configuration: &str, server: &[&str], client: &str, address: &str) {
        // From this address: until the guest has checked it for duplicates, it sends from its link-local one, and rping
        // waits in vain.
        let source = if address.contains(':') { format!("-I {GUEST6}") } else { String::new() };
        let ping = format!("until ping -c 1 -W 1 {source} {address}; do usleep 50000; done");
        let ping = format!("timeout {} sh -c '{ping}' >/dev/null 2>&1", LIMIT.as_secs());
        let client = in_guest(&format!("{client} {address}"));
        for attempt in 1..=5 {
            let mut server = self.program(configuration, server);
            let mut server = server.stdout(Stdio::null()).spawn().expect("the program is installed");
            let boot = || if self.is_current { self.link.current_guest() } else { self.link.guest() };
            let guest = self.guest.get_or_insert_with(boot);
            guest.run(&ping).success();
            let outcome = guest.run(&client);
            let is_refused = REFUSED.iter().any(|word| outcome.output.contains(word));
            let start = Instant::now();
            while outcome.status == 0
                && start.elapsed() < LIMIT
                && server.try_wait().expect("it is our child").is_none()
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = server.kill();
            let status = server.wait().expect("it is our child");
            if outcome.status != 0 && is_refused && attempt < 5 {
                eprintln!("{client} was refused, and is started again");
                continue;
            }
            assert!(outcome.status == 0 && status.success(), "the server: {status:?}; its client: {outcome:?}");
            return;
        }
    }

    /// A server in the guest and its client on uwarp. If the client is refused, or reaches nobody because the guest's
    /// device connects again with each program and needs its time, both start again.
    #[track_caller]
    fn connect(&mut self, configuration: &str, server: &str, client: &[&str]) {
        let mut client = self.program(configuration, &[&["timeout", "60"], client].concat());
        let guest = self.guest.as_mut().expect("a server on uwarp was first");
        let listens = "timeout 60 sh -c 'until rdma resource show cm_id | grep -q LISTEN; do usleep 50000; done'";
        for attempt in 1..=5 {
            let job = guest.start(&in_guest(server));
            guest.run(listens).success();
            let output = client.output().expect("the program is installed");
            let said =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                let _ = guest.run("killall rping ib_write_bw");
            }
            let outcome = guest.finish(job);
            if !output.status.success() && REFUSED.iter().any(|word| said.contains(word)) && attempt < 5 {
                eprintln!("{client:?} was refused, and is started again");
                continue;
            }
            assert!(output.status.success(), "{client:?}: {}: {said}; its server: {outcome:?}", output.status);
            outcome.success();
            return;
        }
    }
}

fn every_program(bed: &mut Bed<'_>) {
    for size in ["64", "65535"] {
        let server = ["rping", "-s", "-V", "-C", "30", "-S", size];
        bed.serve("uwarp.toml", &server, &format!("rping -c -V -C 30 -S {size} -a"), OWN);
        let client = ["rping", "-c", "-a", GUEST, "-V", "-C", "30", "-S", size];
        bed.connect("uwarp.toml", &format!("rping -s -V -C 30 -S {size}"), &client);
    }
    let perftest = ["ib_write_bw", "-R", "-z", "-F", "-n", "200"];
    bed.serve("uwarp.toml", &perftest, &perftest.join(" "), OWN);
    bed.connect("uwarp.toml", &perftest.join(" "), &[&perftest[..], &[GUEST]].concat());
}

/// Runs a test again, in a new guest, if the guest's kernel has stopped at a `BUG()` of its iw_cm: that expects no end
/// of a connection in some states, and siw reports one there now and then.
fn despite_iw_cm(test: impl Fn()) {
    const FAULT: &str = "kernel BUG at drivers/infiniband/core/iwcm.c";
    for attempt in 1..=3 {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&test)) else { return };
        if attempt == 3 || !panic.downcast_ref::<String>().is_some_and(|said| said.contains(FAULT)) {
            resume_unwind(panic);
        }
        uwarp_notes::retried("the guest's kernel stopped at a BUG() of its iw_cm");
    }
}

#[test]
fn rping_and_ib_write_bw_on_uwarp_and_on_siw_understand_each_other() {
    every_program(&mut Bed::new(&Link::vhost(false)));
}

#[test]
fn rping_and_ib_write_bw_on_uwarp_and_on_siw_understand_each_other_over_tap() {
    netns::test_inside("rping_and_ib_write_bw_on_uwarp_and_on_siw_understand_each_other_over_tap", || {
        every_program(&mut Bed::new(&Link::tap()));
    });
}

#[test]
fn rping_on_uwarp_and_on_siw_understand_each_other_over_ipv6() {
    let link = Link::vhost(false);
    let mut bed = Bed::new(&link);
    let server = ["rping", "-s", "-a", "fd77::1", "-V", "-C", "30"];
    bed.serve("uwarp6.toml", &server, "rping -c -V -C 30 -a", "fd77::1");
    let client = ["rping", "-c", "-a", GUEST6, "-V", "-C", "30"];
    bed.connect("uwarp6.toml", &format!("rping -s -a {GUEST6} -V -C 30"), &client);
}

#[test]
fn rping_and_perftest_on_uwarp_and_on_a_current_siw_understand_each_other() {
    let link = Link::vhost(false);
    let mut bed = Bed { link: &link, guest: None, is_current: true };
    every_program(&mut bed);
    // Its client sends as soon as it is connected.
    let perftest = ["ib_send_lat", "-R", "-z", "-F", "-n", "200"];
    bed.serve("uwarp.toml", &perftest, &perftest.join(" "), OWN);
    bed.connect("uwarp.toml", &perftest.join(" "), &[&perftest[..], &[GUEST]].concat());
}

#[test]
fn rstream_on_uwarp_and_on_siw_understand_each_other() {
    let link = Link::vhost(false);
    let mut bed = Bed::new(&link);
    // Octet by octet, in blocking and in polled calls.
    for options in [
        ["-T", "v", "-T", "b", "-S", "65537", "-C", "20", "-I", "5"],
        ["-T", "v", "-T", "n", "-S", "11", "-C", "2000", "-I", "2"],
    ] {
        let words = [&["rstream"], &options[..]].concat();
        bed.serve("uwarp.toml", &words, &format!("{} -s", words.join(" ")), OWN);
        bed.connect("uwarp.toml", &words.join(" "), &[&words[..], &["-s", GUEST]].concat());
    }
}

/// The name of the target's disk.
const TARGET: &str = "iqn.2026-01.example:disk";

/// Debian's tgtd on uwarp, with one disk over iSER, which is the file `disk` of the link's folder.
struct Target<'a> {
    link: &'a Link,
    daemon: Child,
}

impl<'a> Target<'a> {
    fn start(link: &'a Link) -> Target<'a> {
        let mut daemon = program(link, "uwarp.toml", &["tgtd", "-f", "--control-port", "7"]);
        daemon.arg("--iscsi").arg(format!("portal={OWN}:3260")).env("TGT_IPC_SOCKET", link.path("tgt"));
        let log = File::create(link.path("tgtd")).expect("the folder is ours");
        let daemon =
            daemon.stdout(log.try_clone().expect("a descriptor")).stderr(log).spawn().expect("tgt is installed");
        let target = Target { link, daemon };
        let start = Instant::now();
        while !target.admin(&["--op", "show", "--mode", "sys"]).status.success() {
            assert!(start.elapsed() < LIMIT, "tgtd does not answer: {}", target.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        let disk = link.path("disk");
        let file = File::options().create(true).append(true).open(&disk).expect("the folder is ours");
        file.set_len(64 << 20).expect("the file is ours");
        for words in [
            &["new", "--mode", "target", "--targetname", TARGET][..],
            &["new", "--mode", "logicalunit", "--lun", "1", "--backing-store", disk.to_str().expect("a path")],
            &["bind", "--mode", "target", "--initiator-address", "ALL"],
            &["bind", "--mode", "target", "--initiator-name", "iqn.2026-01.example:guest"],
        ] {
            let output = target.admin(&[&["--lld", "iser", "--tid", "1", "--op"], words].concat());
            assert!(output.status.success(), "{words:?}: {output:?}: {}", target.said());
        }
        target
    }

    fn admin(&self, words: &[&str]) -> Output {
        let mut command = Command::new("tgtadm");
        command.args(["--control-port", "7"]).args(words).env("TGT_IPC_SOCKET", self.link.path("tgt"));
        command.output().expect("tgt is installed")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.link.path("tgtd")).unwrap_or_default()
    }

    /// When something was written to its disk last.
    fn written(&self) -> SystemTime {
        let disk = std::fs::metadata(self.link.path("disk")).expect("the disk is there");
        disk.modified().expect("Linux knows the time")
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn a_killed_target_comes_back(link: &Link) {
    let target = Target::start(link);
    let mut guest = link.guest();
    guest.run(&format!("timeout 60 sh -c 'until ping -c 1 -W 1 {OWN}; do usleep 50000; done'")).success();
    let output = guest.run(&format!("timeout 100 iscsi-login {OWN}:3260 {TARGET}")).success();
    let disk = format!("/dev/{}", output.lines().last().expect("its name"));
    guest.run(&format!("mkfs.ext4 -q {disk} && mkdir /mnt && mount -t ext4 {disk} /mnt")).success();
    guest.run("head -c 12000000 /dev/urandom >/tmp/file && cp /tmp/file /mnt/before && sync").success();

    // Killed while it has the first octets of what is written.
    let before = target.written();
    let writing = guest.start("cp /tmp/file /mnt/amid && sync");
    let start = Instant::now();
    while target.written() == before {
        assert!(start.elapsed() < LIMIT, "nothing is written: {}", target.said());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(target);
    let target = Target::start(link);
    // The kernel logs in again and repeats what was not answered.
    guest.finish(writing).success();

    guest.run("umount /mnt").success();
    guest.run(&format!("e2fsck -fn {disk}")).success();
    let sums = format!(
        "echo 3 >/proc/sys/vm/drop_caches && mount -t ext4 -o ro {disk} /mnt && sha256sum /tmp/file /mnt/before /mnt/amid"
    );
    let sums = guest.run(&sums).success();
    let sums: Vec<&str> = sums.lines().collect();
    let digest = |line: &&str| line.split_whitespace().next().map(str::to_owned);
    assert_eq!(sums.len(), 3, "{sums:?}");
    assert!(sums.iter().all(|line| digest(line) == digest(&sums[0])), "{sums:?}");
    guest.run(&format!("umount /mnt && timeout 60 iscsiadm -m node -T {TARGET} --logout")).success();
    drop(target);
}

#[test]
fn a_file_system_of_the_kernels_iser_initiator_outlives_a_killed_tgtd_on_uwarp() {
    despite_iw_cm(|| a_killed_target_comes_back(&Link::vhost(false)));
}
