//! A stock Linux client, in a guest whose kernel has siw, mounts `uwarp-nfs` over RDMA: a directory that it serves, or,
//! through the gateway, the kernel's own NFS server or another project's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp as _, NFSTcpListener};
use uwarp::{Config, DeviceConfig};
use uwarp_interop_tests::is_long;
use uwarp_interop_tests::siw::{self, Attachment, Guest, STACK};
use uwarp_interop_tests::tools::{Guarded, tool, wait_for};
use uwarp_interop_tests::witness::{count, count_calls, examine};
use uwarp_netns as netns;

/// Another project's server in user space, with many names. It ends with the process.
fn server() -> u16 {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut config = MemFsConfig::default();
            config.add_file("/hello", b"good morning\n".to_vec());
            for number in 0..500 {
                config.add_file(&format!("/file-{number:03}"), vec![b'x'; number]);
            }
            let listener = NFSTcpListener::bind("127.0.0.1:0", MemFs::new(config).unwrap()).await.unwrap();
            sender.send(listener.get_listen_port()).unwrap();
            listener.handle_forever().await.unwrap();
        });
    });
    receiver.recv().unwrap()
}

/// `uwarp-nfs` behind a vhost-user socket in this folder.
fn uwarp_nfs(folder: &Path, arguments: &[&str]) -> Guarded {
    let device = DeviceConfig::Vhost { socket: folder.join("vhost"), client: false, tso: false };
    let config = uwarp_middlebox::behind(Config::new(device, STACK).unwrap().without_monitor());
    std::fs::write(folder.join("uwarp.toml"), config.to_toml().unwrap()).unwrap();
    let mut command = Command::new(tool("uwarp-nfs"));
    command.arg("--config").arg(folder.join("uwarp.toml")).args(["--engine", "threaded"]);
    siw::spare(&mut command);
    let server = Guarded::start(command.args(arguments));
    wait_for(&folder.join("vhost"));
    server
}

fn gateway(folder: &Path, server: u16) -> Guarded {
    let (server, capture) = (format!("127.0.0.1:{server}"), folder.join("nfs.pcap"));
    uwarp_nfs(folder, &["--backend", &server, "--pcap", capture.to_str().unwrap()])
}

/// Serves the folder `served`. The guest's root is root there.
fn directory(folder: &Path, more: &[&str]) -> Guarded {
    let served = folder.join("served");
    let arguments = [&[served.to_str().unwrap(), "--no-root-squash"], more].concat();
    uwarp_nfs(folder, &arguments)
}

/// For a server that answers MOUNT on its NFS port: the gateway forwards that, too.
const MOUNT_ON_ONE_PORT: &str = "mkdir -p /mnt && \
    mount.nfs 10.77.0.1:/ /mnt -o vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=2049,nolock";

/// For the kernel's server, through the gateway; the client asks for the port of MOUNT.
const MOUNT_KERNEL: &str =
    "mkdir -p /mnt && mount.nfs 10.77.0.1:/export /mnt -o vers=3,proto=rdma,port=20049,mountaddr=127.0.0.1,nolock";

/// The command that people type: it asks for the ports by itself.
const MOUNT_DIRECTORY: &str = "mkdir -p /mnt && mount.nfs 10.77.0.1:/ /mnt -o vers=3,proto=rdma,port=20049,nolock";

/// For servers that are killed: a client that has sent everything and waits for a reply does not notice before it
/// retransmits the call, by default in a minute. Here it does so in ten seconds.
const IMPATIENT: &str = ",timeo=100";

/// Where the server has its files.
enum Served<'a> {
    /// In a folder of this machine.
    Here(&'a Path),
    /// In a folder of the guest.
    InGuest(&'a str),
}

impl Served<'_> {
    /// The hash of the server's copy of a file, in the format of `sha256sum`.
    fn hash(&self, guest: &mut Guest, name: &str) -> String {
        match self {
            Self::Here(folder) => {
                use sha2::Digest as _;
                let digest = sha2::Sha256::digest(std::fs::read(folder.join(name)).unwrap());
                digest.iter().map(|octet| format!("{octet:02x}")).collect()
            }
            Self::InGuest(folder) => hash_in_guest(guest, &format!("{folder}/{name}")),
        }
    }

    /// The files below a folder, with their only line; a folder without files has an empty one.
    fn tree(&self, guest: &mut Guest, name: &str) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        match self {
            Self::Here(served) => {
                for folder in std::fs::read_dir(served.join(name)).unwrap() {
                    let folder = folder.unwrap();
                    let name = folder.file_name().into_string().unwrap();
                    let mut files = std::fs::read_dir(folder.path()).unwrap().peekable();
                    if files.peek().is_none() {
                        tree.insert(name.clone(), String::new());
                    }
                    for file in files {
                        let file = file.unwrap();
                        let line = std::fs::read_to_string(file.path()).unwrap();
                        let path = format!("{name}/{}", file.file_name().into_string().unwrap());
                        tree.insert(path, line.trim_end().to_owned());
                    }
                }
            }
            Self::InGuest(served) => {
                let command = "for entry in *; do test -n \"$(ls $entry)\" || echo $entry:; done; \
                    find . -type f -empty | sed 's,^./,,; s,$,:,'; grep -r . . | sed s,^./,,";
                let lines = guest.run(&format!("cd {served}/{name} && {command}")).success();
                for line in lines.lines() {
                    let (path, line) = line.split_once(':').unwrap();
                    tree.insert(path.to_owned(), line.to_owned());
                }
            }
        }
        tree
    }
}

fn hash_in_guest(guest: &mut Guest, file: &str) -> String {
    let line = guest.run(&format!("sha256sum <{file}")).success();
    line.split_whitespace().next().expect("a hash").to_owned()
}

/// Uses the mount as a disk. `mount` mounts it on /mnt, where it is at the start but not at the end.
fn use_as_a_disk(guest: &mut Guest, mount: &str, served: &Served<'_>) {
    let mounted = guest.run("grep /mnt /proc/mounts").success();
    assert!(mounted.contains("proto=rdma") && mounted.contains("vers=3"), "{mounted}");
    assert_eq!(guest.run("ls /mnt/many | sort -u | wc -l").success().trim(), "10000");
    let again = format!("umount /mnt && {mount}");
    // Many sizes: the server's copy, and what a client without a cache reads back.
    for size in [1, 4096, 100_001, 4 << 20] {
        guest.run(&format!("head -c {size} /dev/urandom >/tmp/file && cp /tmp/file /mnt/copy")).success();
        assert_eq!(hash_in_guest(guest, "/tmp/file"), served.hash(guest, "copy"), "{size}");
        guest.run(&again).success();
        guest.run("cmp /tmp/file /mnt/copy && rm /mnt/copy && ! test -e /mnt/copy").success();
    }
    for command in [
        // Names.
        "cd /mnt && mkdir a && echo one >a/one && mv a/one two && test ! -e a/one && ln two a/three && rm two && \
            test \"$(cat a/three)\" = one && ! rmdir a 2>/dev/null && mv a b && rm b/three && rmdir b",
        "cd /mnt && ln -s many/name-00007 link && test \"$(readlink link)\" = many/name-00007 && test -f link && rm link",
        // A file in use that has lost its name.
        "cd /mnt && exec 3<>open && echo first >&3 && rm open && ! test -e open && echo second >&3 && exec 3>&-",
        // Sizes, times and permissions.
        "cd /mnt && head -c 10000 /tmp/file >file && truncate -s 5000 file && test $(stat -c %s file) = 5000 && \
            truncate -s 9000 file && tail -c 4000 file | cmp -n 4000 - /dev/zero",
        "cd /mnt && touch -d '2001-02-03 04:05:06' file && test $(stat -c %y file | cut -c 1-19 | tr -d ' ') = 2001-02-0304:05:06",
        "cd /mnt && chown 1000:1000 file && chmod 600 file && test $(stat -c %u:%g:%a file) = 1000:1000:600",
        "(echo root:x:0:0::/:/bin/sh; echo one:x:1000:1000::/:/bin/sh; echo two:x:1001:1001::/:/bin/sh) >/etc/passwd && cd /mnt && \
            su one -c 'cat file' >/dev/null && ! su two -c 'cat file' 2>/dev/null && ! su two -c 'rm -f file' 2>/dev/null && \
            ! su one -c 'touch new' 2>/dev/null && chmod 777 . && su two -c 'touch new' && test $(stat -c %u new) = 1001",
        // Concurrent writers, in one file and in many.
        "head -c 4194304 /dev/urandom >/tmp/file; for part in 3 1 0 2; do \
            dd if=/tmp/file of=/mnt/shared bs=65536 seek=$((16 * part)) skip=$((16 * part)) count=16 conv=notrunc 2>/dev/null & \
            cp /tmp/file /mnt/own-$part & done; wait; \
            for file in shared own-0 own-1 own-2 own-3; do cmp /tmp/file /mnt/$file || exit 1; done",
    ] {
        let outcome = guest.run(command);
        assert_eq!(outcome.status, 0, "{command}: {}", outcome.output);
    }
    // git writes to read-only files, moves and links them, and verifies their contents.
    guest
        .run(
            "mkdir /tmp/origin && cd /tmp/origin && git init -q . && git config user.name somebody && \
            git config user.email somebody@example && for commit in 1 2 3; do for file in $(seq 40); do \
            mkdir -p folder-$((file % 7)) && seq $commit $((file * 50)) >folder-$((file % 7))/file-$file || exit 1; done; \
            ln -sfn folder-$commit link && git add -A && git commit -q -m $commit || exit 1; done",
        )
        .success();
    guest.run("git clone -q --no-local /tmp/origin /mnt/clone").success();
    let check = "cd /mnt/clone && git fsck --full --strict 2>&1 && test -z \"$(git status --porcelain)\" && \
        test $(git log --oneline | wc -l) = 3 && test \"$(readlink link)\" = folder-3 && \
        (cd /tmp/origin && find folder-* -type f) | while read -r file; do cmp /tmp/origin/$file $file || exit 1; done";
    guest.run(check).success();
    guest.run(&again).success();
    guest.run(check).success();
    guest
        .run(
            "cd /mnt/clone && echo more >>folder-1/file-1 && git -c user.name=a -c user.email=b@c commit -q -a -m more && \
            git gc -q && git fsck --full --strict",
        )
        .success();
    guest.run("umount /mnt").success();
}

/// Copies a large file in both directions. It takes long under emulation.
fn copy_a_large_file(guest: &mut Guest, mount: &str) {
    let size = if is_long() { 64 << 20 } else { 16 << 20 };
    guest.run(&format!("head -c {size} /dev/urandom >/tmp/file && cp /tmp/file /mnt/large")).success();
    guest.run(&format!("umount /mnt && {mount}")).success();
    guest.run("cmp /tmp/file /mnt/large && umount /mnt").success();
}

/// Creates, moves, links and removes in /mnt/names-N, round after round, until /tmp/enough exists. Then it prints the
/// number of rounds, and which steps of them failed: those of [`Names::steps`]. After a round N without failures, there
/// is a folder b-N with a file of two names and the content N, if N is even, and nothing else.
const NAMES: &str = "mkdir /mnt/names-N && cd /mnt/names-N || exit 1; round=0; odd=; \
    try() { step=$((step + 1)); \"$@\" || odd=\"$odd $round $step\"; }; make() { echo $round >a-$round/file; }; \
    until test -e /tmp/enough; do round=$((round + 1)); step=0; echo $round >/tmp/round-N; \
    try mkdir a-$round; try make; try mv a-$round/file a-$round/one; try ln a-$round/one a-$round/two; try mv a-$round b-$round; \
    test $((round % 2)) = 0 || { try rm b-$round/one; try rm b-$round/two; try rmdir b-$round; }; \
    done 2>/tmp/errors-N; echo $round $odd";

/// What a round of names leaves behind: its folder, which may be a-N or b-N, with the lines of its files; `None`
/// without a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names(Option<(char, BTreeMap<String, String>)>);

/// A step of a round: false if it is not possible.
type Step = fn(&mut Names, &str) -> bool;

impl Names {
    /// The steps of [`NAMES`] in a round.
    fn steps(round: u32) -> Vec<Step> {
        let make: Step =
            |names, line| names.folder('a').map(|files| files.insert("file".into(), line.into())).is_some();
        let steps: [Step; 5] = [
            |names, _| names.0.is_none() && names.0.replace(('a', BTreeMap::new())).is_none(),
            make,
            |names, _| {
                let Some(files) = names.folder('a') else { return false };
                let line = files.remove("file");
                line.is_some_and(|line| files.insert("one".into(), line).is_none())
            },
            |names, _| {
                let Some(files) = names.folder('a') else { return false };
                let line = files.get("one").filter(|_| !files.contains_key("two")).cloned();
                line.is_some_and(|line| files.insert("two".into(), line).is_none())
            },
            |names, _| match names.0.as_mut() {
                Some((name @ 'a', _)) => {
                    *name = 'b';
                    true
                }
                _ => false,
            },
        ];
        let ends: [Step; 3] = [
            |names, _| names.folder('b').is_some_and(|files| files.remove("one").is_some()),
            |names, _| names.folder('b').is_some_and(|files| files.remove("two").is_some()),
            |names, _| names.folder('b').is_some_and(|files| files.is_empty()) && names.0.take().is_some(),
        ];
        if round.is_multiple_of(2) { steps.to_vec() } else { [&steps[..], &ends].concat() }
    }

    fn folder(&mut self, name: char) -> Option<&mut BTreeMap<String, String>> {
        self.0.as_mut().filter(|(folder, _)| *folder == name).map(|(_, files)| files)
    }

    /// The possible results of a round in which these steps failed (counted from 1): each of those may have been
    /// executed or not, and the others were. A file that could not be written may exist without its line.
    fn possible(round: u32, failed: &BTreeSet<u32>) -> Vec<Self> {
        let line = round.to_string();
        let mut possible = vec![Self::default()];
        for (number, step) in (1..).zip(Self::steps(round)) {
            let lines = if number == 2 && failed.contains(&number) { &[&line[..], ""][..] } else { &[&line[..]] };
            let mut next = Vec::new();
            for names in possible {
                for line in lines {
                    let mut after = names.clone();
                    if step(&mut after, line) {
                        next.push(after);
                    }
                }
                if failed.contains(&number) {
                    next.push(names);
                }
            }
            possible = next;
        }
        possible
    }

    /// The results of a round in the output of [`Served::tree`].
    fn found(round: u32, tree: &BTreeMap<String, String>) -> Vec<Self> {
        let mut found: BTreeMap<char, BTreeMap<String, String>> = BTreeMap::new();
        for (path, line) in tree {
            let (folder, file) = path.split_once('/').unwrap_or((path, ""));
            let (name, number) = folder.split_once('-').unwrap();
            if number.parse() == Ok(round) {
                let files = found.entry(name.parse().unwrap()).or_default();
                if !file.is_empty() {
                    files.insert(file.to_owned(), line.clone());
                }
            }
        }
        found.into_iter().map(|folder| Self(Some(folder))).collect()
    }
}

#[test]
fn what_a_round_of_names_may_leave_is_known() {
    let tree = |paths: &[(&str, &str)]| -> BTreeMap<_, _> {
        paths.iter().map(|(path, line)| ((*path).to_owned(), (*line).to_owned())).collect()
    };
    let fits = |round, failed: &[u32], paths: &[(&str, &str)]| {
        let mut found = Names::found(round, &tree(paths));
        assert!(found.len() < 2);
        let found = found.pop().unwrap_or_default();
        Names::possible(round, &failed.iter().copied().collect()).contains(&found)
    };
    let whole = [("b-4/one", "4"), ("b-4/two", "4"), ("b-5", ""), ("b-6/one", "6")];
    // All succeeded: nothing else will do.
    assert!(fits(4, &[], &whole) && fits(7, &[], &whole));
    assert!(!fits(5, &[], &whole) && !fits(6, &[], &whole) && !fits(8, &[], &whole));
    // A step that was executed without its answer arriving has its effect, whatever its caller was told.
    for failed in 1..=5 {
        assert!(fits(4, &[failed], &whole), "{failed}");
    }
    // So has an acknowledged step: the folder, the line, either name.
    for failed in [&[3][..], &[4], &[3, 4], &[5]] {
        for lost in [&[][..], &[("b-4", "")], &[("b-4/one", ""), ("b-4/two", "")], &[("b-4/two", "4")]] {
            assert!(!fits(4, failed, lost), "{failed:?} {lost:?}");
        }
    }
    // The effect of a failed step may be missing, except where later steps show it.
    assert!(fits(4, &[4], &[("b-4/one", "4")]) && fits(4, &[5], &[("a-4/one", "4"), ("a-4/two", "4")]));
    assert!(fits(4, &[2], &[("b-4/one", ""), ("b-4/two", "")]) && !fits(4, &[2], &[("b-4", "")]));
    assert!(fits(5, &[8], &whole) && !fits(5, &[7], &whole) && fits(5, &[7, 8], &[("b-5/two", "5")]));
    assert!(!fits(5, &[1], &whole));
}

/// Writers of names beside each other.
const NAME_WRITERS: usize = 2;

/// Kills the server, whose socket is in `work`; returns another one, started by `start`.
fn kill(first: Guarded, work: &Path, start: impl FnOnce() -> Guarded) -> Guarded {
    // Dropping it kills it.
    drop(first);
    std::fs::remove_file(work.join("vhost")).ok();
    start()
}

/// Writes eight files into a folder of /mnt, with many operations on names beside that, and loses the server or the
/// connection to it meanwhile. Each writer of names may have `failures` rounds in which a step failed.
fn outlive<T>(guest: &mut Guest, served: &Served<'_>, failures: usize, lose: impl FnOnce(&mut Guest) -> T) -> T {
    let folder = "one/two";
    guest.run(&format!("mkdir -p /mnt/{folder} && head -c 6000000 /dev/urandom >/tmp/file")).success();
    let command = format!("for number in 1 2 3 4 5 6 7 8; do cp /tmp/file /mnt/{folder}/copy-$number || exit 1; done");
    let write = guest.start(&command);
    let names: Vec<_> = (0..NAME_WRITERS).map(|number| guest.start(&NAMES.replace('N', &number.to_string()))).collect();
    // As soon as part of the second file, according to the server, and of the names is there.
    let seen = (0..NAME_WRITERS).map(|number| format!("test $(cat /tmp/round-{number} || echo 0) -gt 2"));
    let seen = seen.fold(format!("test -s /mnt/{folder}/copy-2"), |all, one| format!("{all} && {one}"));
    guest.run(&format!("until {seen}; do sleep 0.1; done 2>/dev/null")).success();
    let second = lose(guest);
    let rounds = guest.run("cat /tmp/round-*").success();
    let before: Vec<u32> = rounds.split_whitespace().map(|round| round.parse().unwrap()).collect();
    guest.finish(write).success();
    // Operations on names continue after the loss, however long the files took.
    for (number, before) in before.iter().enumerate() {
        guest.run(&format!("until test $(cat /tmp/round-{number}) -gt {}; do sleep 0.1; done", before + 1)).success();
    }
    guest.run("touch /tmp/enough").success();
    let hash = hash_in_guest(guest, "/tmp/file");
    for number in 1..=8 {
        assert_eq!(hash, served.hash(guest, &format!("{folder}/copy-{number}")), "{number}");
    }
    for ((number, job), before) in names.into_iter().enumerate().zip(before) {
        let record = guest.finish(job).success();
        let mut record = record.split_whitespace().map(|word| word.parse::<u32>().unwrap());
        let rounds = record.next().unwrap();
        let mut odd: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        while let (Some(round), Some(step)) = (record.next(), record.next()) {
            odd.entry(round).or_default().insert(step);
        }
        assert!(rounds > before + 1, "{rounds} rounds, {before} of them before the server was there again");
        // A call that was executed but not answered when the server died is executed again and fails: at most one per
        // writer, which may make later steps of the round fail. All steps recorded as successful have their effect
        // nevertheless.
        let errors = guest.run(&format!("cat /tmp/errors-{number}")).output;
        assert!(odd.len() <= failures, "steps of rounds {odd:?} of {rounds}: {errors}");
        let tree = served.tree(guest, &format!("names-{number}"));
        for round in 1..=rounds {
            let mut found = Names::found(round, &tree);
            assert!(found.len() < 2, "{round}: {found:?}, steps of rounds {odd:?} did not succeed: {errors}");
            let (found, none) = (found.pop().unwrap_or_default(), BTreeSet::new());
            let possible = Names::possible(round, odd.get(&round).unwrap_or(&none));
            assert!(possible.contains(&found), "{round}: {found:?}, steps of rounds {odd:?} did not succeed: {errors}");
        }
        let last = |path: &String| path.split(['-', '/']).nth(1).unwrap().parse::<u32>().unwrap();
        assert!(tree.keys().map(last).max().unwrap_or(0) <= rounds, "{tree:?}");
        println!("{rounds} rounds of names, {before} before the server was there again, odd: {odd:?}");
    }
    guest.run(&format!("rm -r /mnt/{folder}/copy-* /mnt/names-*")).success();
    second
}

/// Checks the capture of a server that was used as a disk.
fn have_dissected(capture: &Path) {
    let Some(testimony) = examine(capture) else { return };
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(count_calls(capture, "rpcordma.errcode"), 0);
    assert!(count_calls(capture, "nfs.procedure_v3 == 6 && rpcordma.writes_count == 1") > 10, "READs into chunks");
    assert!(count_calls(capture, "rpcordma.reads_count == 1") > 10, "WRITEs out of chunks");
    assert!(count(capture, "iwarp_rdma.opcode == 4") > 10, "replies that invalidate");
}

/// Runs a test where port 2049 is free.
fn in_a_namespace(name: &str, test: impl FnOnce()) {
    netns::test_inside(name, || {
        netns::ip(["link", "set", "lo", "up"]).unwrap();
        test();
    });
}

#[test]
fn a_linux_client_uses_a_directory_as_it_would_a_disk() {
    a_client_uses_a_directory(|attachment| Guest::boot(attachment, false));
}

#[test]
fn a_current_linux_client_uses_a_directory_as_it_would_a_disk() {
    a_client_uses_a_directory(Guest::boot_current);
}

fn a_client_uses_a_directory(boot: impl FnOnce(Attachment<'_>) -> Guest) {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir_all(served.join("many")).unwrap();
    for number in 0..10_000 {
        std::fs::write(served.join(format!("many/name-{number:05}")), "").unwrap();
    }
    let capture = folder.path().join("nfs.pcap");
    let server = directory(folder.path(), &["--pcap", capture.to_str().unwrap()]);
    let mut guest = boot(Attachment::Vhost(&folder.path().join("vhost")));
    guest.run(MOUNT_DIRECTORY).success();
    use_as_a_disk(&mut guest, MOUNT_DIRECTORY, &Served::Here(&served));
    drop(guest);
    server.end();
    have_dissected(&capture);
    assert!(count_calls(&capture, "portmap") > 0 && count_calls(&capture, "mount") > 0, "asked over TCP");
}

#[test]
fn a_linux_client_uses_the_kernels_server_behind_a_gateway_as_it_would_a_disk() {
    in_a_namespace("a_linux_client_uses_the_kernels_server_behind_a_gateway_as_it_would_a_disk", || {
        let folder = tempfile::tempdir().unwrap();
        let gateway = gateway(folder.path(), 2049);
        let mut guest = Guest::boot_with_nfs_server(Attachment::Vhost(&folder.path().join("vhost")));
        guest.run("mkdir /export/many && cd /export/many && seq -w 0 9999 | sed s/^/name-0/ | xargs touch").success();
        // Over TCP it forwards calls unchanged.
        guest
            .run(&format!("{} && ls /mnt && umount /mnt", MOUNT_KERNEL.replace("rdma,port=20049", "tcp,port=2049")))
            .success();
        guest.run(MOUNT_KERNEL).success();
        use_as_a_disk(&mut guest, MOUNT_KERNEL, &Served::InGuest("/export"));
        drop(guest);
        gateway.end();
        have_dissected(&folder.path().join("nfs.pcap"));
    });
}

#[test]
fn a_hard_mount_outlives_a_directory_server_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir(&served).unwrap();
    let first = directory(folder.path(), &[]);
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    let mount = format!("{MOUNT_DIRECTORY}{IMPATIENT}");
    guest.run(&mount).success();
    // The second server knows none of the client's handles, and finds their objects.
    let second = outlive(&mut guest, &Served::Here(&served), 1, |_| {
        kill(first, folder.path(), || directory(folder.path(), &[]))
    });
    copy_a_large_file(&mut guest, &mount);
    drop(guest);
    second.end();
}

/// The server continues, so it recognises repeated calls, and no step of the writers fails.
#[test]
fn a_hard_mount_whose_connections_are_lost_has_each_call_carried_out_once() {
    const LOSSES_MAX: u32 = 100;
    let folder = tempfile::tempdir().unwrap();
    let (served, metrics) = (folder.path().join("served"), folder.path().join("metrics"));
    std::fs::create_dir(&served).unwrap();
    let server = directory(folder.path(), &["--metrics", metrics.to_str().unwrap()]);
    let counter = |name: &str| -> u64 {
        let text = std::fs::read_to_string(&metrics).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("uwarp_nfs_{name} ")));
        line.unwrap().parse().unwrap()
    };
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    guest.run(&format!("{MOUNT_DIRECTORY}{IMPATIENT}")).success();
    outlive(&mut guest, &Served::Here(&served), 0, |guest| {
        let mut losses = 0;
        while counter("duplicates_total") == 0 {
            losses += 1;
            assert!(losses <= LOSSES_MAX, "no call came again: {} connections", counter("rdma_clients_total"));
            // siw ends its connections when the network device goes down. The counters are written every five seconds.
            guest.run("ip link set eth0 down && sleep 1 && ip link set eth0 up && sleep 6").success();
        }
        println!("{losses} losses, {} duplicates", counter("duplicates_total"));
    });
    guest.run("umount /mnt").success();
    drop(guest);
    server.end();
    assert!(counter("rdma_clients_total") > 1 && counter("duplicates_total") > 0);
}

#[test]
fn a_hard_mount_outlives_a_gateway_that_is_killed() {
    in_a_namespace("a_hard_mount_outlives_a_gateway_that_is_killed", || {
        let folder = tempfile::tempdir().unwrap();
        let first = gateway(folder.path(), 2049);
        let mut guest = Guest::boot_with_nfs_server(Attachment::Vhost(&folder.path().join("vhost")));
        let mount = format!("{MOUNT_KERNEL}{IMPATIENT}");
        guest.run(&mount).success();
        let second = outlive(&mut guest, &Served::InGuest("/export"), 1, |_| {
            kill(first, folder.path(), || gateway(folder.path(), 2049))
        });
        copy_a_large_file(&mut guest, &mount);
        drop(guest);
        second.end();
    });
}

#[test]
fn a_hard_mount_outlives_the_server_behind_a_gateway() {
    in_a_namespace("a_hard_mount_outlives_the_server_behind_a_gateway", || {
        let folder = tempfile::tempdir().unwrap();
        let gateway = gateway(folder.path(), 2049);
        let mut guest = Guest::boot_with_nfs_server(Attachment::Vhost(&folder.path().join("vhost")));
        let mount = format!("{MOUNT_KERNEL}{IMPATIENT}");
        guest.run(&mount).success();
        outlive(&mut guest, &Served::InGuest("/export"), 1, |guest| {
            // All its threads and connections end. It keeps unsynced data only because this system continues to run.
            guest.run("rpc.nfsd 0 && sleep 2 && rpc.nfsd --no-udp --no-nfs-version 4 8").success();
        });
        copy_a_large_file(&mut guest, &mount);
        drop(guest);
        gateway.end();
    });
}

#[test]
fn a_linux_client_mounts_a_server_that_has_all_on_one_port() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), server());
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    guest.run(MOUNT_ON_ONE_PORT).success();
    assert_eq!(guest.run("cat /mnt/hello").success(), "good morning\n");
    assert_eq!(guest.run("ls /mnt | grep -c '^file-'").success().trim(), "500");
    guest.run("cp /mnt/hello /mnt/new && cmp /mnt/hello /mnt/new && umount /mnt").success();
    drop(guest);
    gateway.end();
}
