//! A stock Linux client, in a guest whose kernel has siw, mounts `uwarp-nfs` over RDMA: a directory that it serves, or, as a
//! gateway, an NFS server of another project.

use std::path::Path;
use std::process::Command;

use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::nfs3_types::nfs3::{
    createverf3, fattr3, filename3, nfspath3, nfsstat3, sattr3, set_size3, stable_how,
};
use nfs3_server::tcp::{NFSTcp as _, NFSTcpListener};
use nfs3_server::vfs::{FileHandleU64, NfsFileSystem, NfsReadFileSystem, ReadDirPlusIterator};
use uwarp::{Config, DeviceConfig};
use uwarp_interop_tests::siw::{Attachment, Guest, STACK};
use uwarp_interop_tests::tools::{Guarded, tool, wait_for};
use uwarp_interop_tests::witness::{count, count_calls, examine};

/// The library's files in memory, with holes: it answers a WRITE behind the end of a file with NFS3ERR_INVAL, but a client's WRITEs
/// come in any order (RFC 1813 §3.3.7), and in another one than before when they are sent again.
struct WithHoles(MemFs);

impl NfsReadFileSystem for WithHoles {
    type Handle = FileHandleU64;

    fn root_dir(&self) -> FileHandleU64 {
        self.0.root_dir()
    }

    async fn lookup(&self, directory: &FileHandleU64, name: &filename3<'_>) -> Result<FileHandleU64, nfsstat3> {
        self.0.lookup(directory, name).await
    }

    async fn getattr(&self, file: &FileHandleU64) -> Result<fattr3, nfsstat3> {
        self.0.getattr(file).await
    }

    async fn read(&self, file: &FileHandleU64, offset: u64, count: u32) -> Result<(Vec<u8>, bool), nfsstat3> {
        self.0.read(file, offset, count).await
    }

    async fn readdirplus(
        &self,
        directory: &FileHandleU64,
        cookie: u64,
    ) -> Result<impl ReadDirPlusIterator<FileHandleU64>, nfsstat3> {
        self.0.readdirplus(directory, cookie).await
    }

    async fn readlink(&self, link: &FileHandleU64) -> Result<nfspath3<'_>, nfsstat3> {
        self.0.readlink(link).await
    }
}

impl NfsFileSystem for WithHoles {
    async fn setattr(&self, file: &FileHandleU64, attributes: sattr3) -> Result<fattr3, nfsstat3> {
        self.0.setattr(file, attributes).await
    }

    async fn write(
        &self,
        file: &FileHandleU64,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Result<(fattr3, stable_how), nfsstat3> {
        // The server has one thread, and nothing here waits: no other call comes in between.
        if self.0.getattr(file).await?.size < offset {
            self.0.setattr(file, sattr3 { size: set_size3::Some(offset), ..sattr3::default() }).await?;
        }
        self.0.write(file, offset, data, stable).await
    }

    async fn create(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
        attributes: sattr3,
    ) -> Result<(FileHandleU64, fattr3), nfsstat3> {
        self.0.create(directory, name, attributes).await
    }

    async fn create_exclusive(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
        verifier: createverf3,
    ) -> Result<FileHandleU64, nfsstat3> {
        self.0.create_exclusive(directory, name, verifier).await
    }

    async fn mkdir(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
    ) -> Result<(FileHandleU64, fattr3), nfsstat3> {
        self.0.mkdir(directory, name).await
    }

    async fn remove(&self, directory: &FileHandleU64, name: &filename3<'_>) -> Result<(), nfsstat3> {
        self.0.remove(directory, name).await
    }

    async fn rename<'a>(
        &self,
        from: &FileHandleU64,
        from_name: &filename3<'a>,
        to: &FileHandleU64,
        to_name: &filename3<'a>,
    ) -> Result<(), nfsstat3> {
        self.0.rename(from, from_name, to, to_name).await
    }

    async fn symlink<'a>(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'a>,
        target: &nfspath3<'a>,
        attributes: &sattr3,
    ) -> Result<(FileHandleU64, fattr3), nfsstat3> {
        self.0.symlink(directory, name, target, attributes).await
    }

    async fn commit(&self, file: &FileHandleU64, offset: u64, count: u32) -> Result<(), nfsstat3> {
        self.0.commit(file, offset, count).await
    }
}

/// A server with many names. It ends with the process.
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
            let listener = NFSTcpListener::bind("127.0.0.1:0", WithHoles(MemFs::new(config).unwrap())).await.unwrap();
            sender.send(listener.get_listen_port()).unwrap();
            listener.handle_forever().await.unwrap();
        });
    });
    receiver.recv().unwrap()
}

/// `uwarp-nfs` behind a vhost-user socket in this folder.
fn uwarp_nfs(folder: &Path, arguments: &[&str]) -> Guarded {
    let device = DeviceConfig::Vhost { socket: folder.join("vhost"), client: false, tso: false };
    let config = Config::new(device, STACK).unwrap().without_monitor();
    std::fs::write(folder.join("uwarp.toml"), config.to_toml().unwrap()).unwrap();
    let mut command = Command::new(tool("uwarp-nfs"));
    command.arg("--config").arg(folder.join("uwarp.toml")).args(["--engine", "threaded"]);
    let server = Guarded::start(command.args(arguments));
    wait_for(&folder.join("vhost"));
    server
}

fn gateway(folder: &Path, server: u16) -> Guarded {
    let (server, capture) = (format!("127.0.0.1:{server}"), folder.join("nfs.pcap"));
    uwarp_nfs(folder, &["--backend", &server, "--pcap", capture.to_str().unwrap()])
}

/// Of the folder `served`. The guest's root is root there.
fn directory(folder: &Path, more: &[&str]) -> Guarded {
    let served = folder.join("served");
    let arguments = [&[served.to_str().unwrap(), "--no-root-squash"], more].concat();
    uwarp_nfs(folder, &arguments)
}

const MOUNT: &str = "mkdir -p /mnt && mount -i -t nfs -o vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=2049,nolock,\
    addr=10.77.0.1,mountaddr=10.77.0.1 10.77.0.1:/ /mnt";

/// The command that people type: it asks for the ports by itself.
const MOUNT_DIRECTORY: &str = "mkdir -p /mnt && mount.nfs 10.77.0.1:/ /mnt -o vers=3,proto=rdma,port=20049,nolock";

/// For servers that are killed: a client that has sent all that it had to, and waits for a reply, learns nothing of it before it
/// sends the call again, in a minute. Here it does so in ten seconds.
const IMPATIENT: &str = ",timeo=100";

/// Whether there is time for what takes long under emulation.
fn long() -> bool {
    std::env::var_os("UWARP_LONG").is_some_and(|value| value != "0")
}

/// As `sha256sum` prints it.
fn hash(file: &Path) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(std::fs::read(file).unwrap());
    digest.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[test]
fn a_linux_client_uses_a_directory_as_it_would_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir_all(served.join("many")).unwrap();
    for number in 0..10_000 {
        std::fs::write(served.join(format!("many/name-{number:05}")), "").unwrap();
    }
    let capture = folder.path().join("nfs.pcap");
    let server = directory(folder.path(), &["--pcap", capture.to_str().unwrap()]);
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    guest.run(MOUNT_DIRECTORY).success();
    let mounted = guest.run("grep /mnt /proc/mounts").success();
    assert!(mounted.contains("proto=rdma") && mounted.contains("vers=3"), "{mounted}");
    assert_eq!(guest.run("ls /mnt/many | sort -u | wc -l").success().trim(), "10000");
    // Of many sizes: what lies on the disk, and what comes back to a client that remembers nothing.
    for size in [1, 4096, 100_001, 4 << 20] {
        let command =
            format!("head -c {size} /dev/urandom >/tmp/file && cp /tmp/file /mnt/copy && sha256sum </tmp/file");
        let sum = guest.run(&command).success();
        assert_eq!(sum.split_whitespace().next(), Some(&*hash(&served.join("copy"))), "{size}");
        guest.run(&format!("umount /mnt && {MOUNT_DIRECTORY}")).success();
        guest.run("cmp /tmp/file /mnt/copy && rm /mnt/copy && ! test -e /mnt/copy").success();
    }
    for command in [
        // Names.
        "cd /mnt && mkdir a && echo one >a/one && mv a/one two && test ! -e a/one && ln two a/three && rm two && \
            test \"$(cat a/three)\" = one && ! rmdir a 2>/dev/null && mv a b && rm b/three && rmdir b",
        "cd /mnt && ln -s many/name-00007 link && test \"$(readlink link)\" = many/name-00007 && test -f link && rm link",
        // A file that is in use has no name any more.
        "cd /mnt && exec 3<>open && echo first >&3 && rm open && ! test -e open && echo second >&3 && exec 3>&-",
        // Sizes, times and permissions.
        "cd /mnt && head -c 10000 /tmp/file >file && truncate -s 5000 file && test $(stat -c %s file) = 5000 && \
            truncate -s 9000 file && tail -c 4000 file | cmp -n 4000 - /dev/zero",
        "cd /mnt && touch -d '2001-02-03 04:05:06' file && test $(stat -c %y file | cut -c 1-19 | tr -d ' ') = 2001-02-0304:05:06",
        "cd /mnt && chown 1000:1000 file && chmod 600 file && test $(stat -c %u:%g:%a file) = 1000:1000:600",
        "(echo root:x:0:0::/:/bin/sh; echo one:x:1000:1000::/:/bin/sh; echo two:x:1001:1001::/:/bin/sh) >/etc/passwd && cd /mnt && \
            su one -c 'cat file' >/dev/null && ! su two -c 'cat file' 2>/dev/null && ! su two -c 'rm -f file' 2>/dev/null && \
            ! su one -c 'touch new' 2>/dev/null && chmod 777 . && su two -c 'touch new' && test $(stat -c %u new) = 1001",
        // Writers beside each other, in one file and in many.
        "head -c 4194304 /dev/urandom >/tmp/file; for part in 3 1 0 2; do \
            dd if=/tmp/file of=/mnt/shared bs=65536 seek=$((16 * part)) skip=$((16 * part)) count=16 conv=notrunc 2>/dev/null & \
            cp /tmp/file /mnt/own-$part & done; wait; \
            for file in shared own-0 own-1 own-2 own-3; do cmp /tmp/file /mnt/$file || exit 1; done",
    ] {
        guest.run(command).success();
    }
    // git writes files that it may not write, moves and links them, and knows what has to be in them.
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
    guest.run(&format!("umount /mnt && {MOUNT_DIRECTORY}")).success();
    guest.run(check).success();
    guest
        .run(
            "cd /mnt/clone && echo more >>folder-1/file-1 && git -c user.name=a -c user.email=b@c commit -q -a -m more && \
            git gc -q && git fsck --full --strict",
        )
        .success();
    guest.run("umount /mnt").success();
    drop(guest);
    server.end();
    let testimony = examine(&capture);
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(count_calls(&capture, "rpcordma.errcode"), 0);
    assert!(count_calls(&capture, "nfs.procedure_v3 == 6 && rpcordma.writes_count == 1") > 10, "READs into chunks");
    assert!(count_calls(&capture, "rpcordma.reads_count == 1") > 10, "WRITEs out of chunks");
    assert!(count_calls(&capture, "portmap") > 0 && count_calls(&capture, "mount") > 0, "asked over TCP");
}

#[test]
fn a_hard_mount_outlives_a_directory_server_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    std::fs::create_dir(&served).unwrap();
    let first = directory(folder.path(), &[]);
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    guest.run(&format!("{MOUNT_DIRECTORY}{IMPATIENT}")).success();
    guest.run("mkdir -p /mnt/one/two && head -c 6000000 /dev/urandom >/tmp/file").success();
    let write = guest.start("for number in 1 2 3 4 5 6 7 8; do cp /tmp/file /mnt/one/two/copy-$number || exit 1; done");
    guest.run("until test -s /mnt/one/two/copy-2; do sleep 0.1; done").success();
    drop(first);
    std::fs::remove_file(folder.path().join("vhost")).ok();
    // It knows nothing of the handles that the client has, and finds what they are of.
    let second = directory(folder.path(), &[]);
    guest.finish(write).success();
    let sum = guest.run("sha256sum </tmp/file").success();
    for number in 1..=8 {
        let copy = served.join(format!("one/two/copy-{number}"));
        assert_eq!(sum.split_whitespace().next(), Some(&*hash(&copy)), "{number}");
    }
    // And a large one, there and back.
    let size = if long() { 64 << 20 } else { 16 << 20 };
    guest.run(&format!("rm /mnt/one/two/copy-* && head -c {size} /dev/urandom >/tmp/file")).success();
    guest.run("cp /tmp/file /mnt/large").success();
    guest.run(&format!("umount /mnt && {MOUNT_DIRECTORY}")).success();
    guest.run("cmp /tmp/file /mnt/large && umount /mnt").success();
    drop(guest);
    second.end();
}

#[test]
fn a_linux_client_mounts_reads_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), server());
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    guest.run(MOUNT).success();
    let mounted = guest.run("grep /mnt /proc/mounts").success();
    assert!(mounted.contains("proto=rdma") && mounted.contains("vers=3"), "{mounted}");
    assert_eq!(guest.run("cat /mnt/hello").success(), "good morning\n");
    assert_eq!(guest.run("ls /mnt | grep -c '^file-'").success().trim(), "500");
    // Files of many sizes go there and come back from the server, not from the client's memory.
    for size in [1, 4096, 100_001, 1 << 20, if long() { 64 << 20 } else { 8 << 20 }] {
        guest
            .run(&format!(
                "head -c {size} /dev/urandom >/tmp/file && cp /tmp/file /mnt/copy && md5sum </tmp/file >/tmp/sum"
            ))
            .success();
        guest.run("umount /mnt").success();
        guest.run(MOUNT).success();
        guest.run("md5sum </mnt/copy | cmp - /tmp/sum").success();
        guest.run("rm /mnt/copy && ! test -e /mnt/copy").success();
    }
    guest
        .run("mv /mnt/file-007 /mnt/other && test $(wc -c </mnt/other) = 7 && mkdir /mnt/folder && rmdir /mnt/folder")
        .success();
    guest.run("umount /mnt").success();
    drop(guest);
    gateway.end();
    let capture = folder.path().join("nfs.pcap");
    let testimony = examine(&capture);
    assert_eq!(testimony.complaints, [""; 0]);
    assert_eq!(count_calls(&capture, "rpcordma.errcode"), 0);
    assert!(
        count_calls(&capture, "nfs.procedure_v3 == 6 && rpcordma.writes_count == 1") > 10,
        "READs into Write chunks"
    );
    assert!(count_calls(&capture, "rpcordma.reads_count == 1") > 10, "WRITEs out of Read chunks");
    assert!(count(&capture, "iwarp_rdma.opcode == 4") > 10, "replies that invalidate");
}

#[test]
fn a_hard_mount_outlives_a_gateway_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let server = server();
    let first = gateway(folder.path(), server);
    let mut guest = Guest::boot(Attachment::Vhost(&folder.path().join("vhost")), false);
    guest.run(&MOUNT.replace(" 10.77.0.1:/ /mnt", &format!("{IMPATIENT} 10.77.0.1:/ /mnt"))).success();
    guest.run("head -c 6000000 /dev/urandom >/tmp/file && md5sum </tmp/file >/tmp/sum").success();
    let write = guest.start("for number in 1 2 3 4 5 6 7 8; do cp /tmp/file /mnt/copy-$number || exit 1; done");
    // As soon as something of the second file is there, which the server is asked for.
    guest.run("until test -s /mnt/copy-2; do sleep 0.1; done").success();
    // Dropping it kills it.
    drop(first);
    std::fs::remove_file(folder.path().join("vhost")).ok();
    let second = gateway(folder.path(), server);
    guest.finish(write).success();
    guest.run("umount /mnt").success();
    guest.run(MOUNT).success();
    for number in 1..=8 {
        guest.run(&format!("md5sum </mnt/copy-{number} | cmp - /tmp/sum")).success();
    }
    guest.run("umount /mnt").success();
    drop(guest);
    second.end();
}
