//! A stock Linux client, in a guest whose kernel has siw, mounts `uwarp-nfs` over RDMA; behind it is an NFS server of another
//! project.

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

fn gateway(folder: &Path, server: u16) -> Guarded {
    let device = DeviceConfig::Vhost { socket: folder.join("vhost"), client: false, tso: false };
    let config = Config::new(device, STACK).unwrap().without_monitor();
    std::fs::write(folder.join("uwarp.toml"), config.to_toml().unwrap()).unwrap();
    let mut command = Command::new(tool("uwarp-nfs"));
    command.arg("--config").arg(folder.join("uwarp.toml")).args(["--engine", "threaded"]);
    command.args(["--backend", &format!("127.0.0.1:{server}")]).arg("--pcap").arg(folder.join("nfs.pcap"));
    let gateway = Guarded::start(&mut command);
    wait_for(&folder.join("vhost"));
    gateway
}

const MOUNT: &str = "mkdir -p /mnt && mount -i -t nfs -o vers=3,proto=rdma,port=20049,mountproto=tcp,mountport=2049,nolock,\
    addr=10.77.0.1,mountaddr=10.77.0.1 10.77.0.1:/ /mnt";

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
    let long = std::env::var_os("UWARP_LONG").is_some_and(|value| value != "0");
    for size in [1, 4096, 100_001, 1 << 20, if long { 64 << 20 } else { 8 << 20 }] {
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
    guest.run(MOUNT).success();
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
