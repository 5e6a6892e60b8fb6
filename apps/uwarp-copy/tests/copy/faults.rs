//! Files that fail, and a client that changes what it has sent: nothing wrong is stored.

use super::*;
use serde_json::{Value, json};
use uwarp::{Access, SendRequest};
use uwarp_vdev_tests::disk::{Disk, NAME, Trouble};

/// Octets of a slot.
const SLOT: usize = 128 << 10;

fn folders() -> (tempfile::TempDir, [PathBuf; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let folders = ["served", "back"].map(|name| folder.path().join(name));
    for folder in &folders {
        fs::create_dir(folder).unwrap();
    }
    (folder, folders)
}

/// Waits until a directory has these names alone.
fn wait_for_names(directory: &Path, expected: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while names(directory) != expected {
        assert!(Instant::now() < deadline, "{:?}", names(directory));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Puts a file, whose copy has the same octets.
fn puts(socket: &Path, folder: &Path, served: &Path) {
    let (file, content) = (folder.join("good"), vec![7; 300_000]);
    fs::write(&file, &content).unwrap();
    succeeds(&command(socket, "virtio").arg("put").arg(&file).output().unwrap());
    assert!(fs::read(served.join("good")).unwrap() == content);
}

const FULL: &str = "faults::a_full_disk_at_either_end_keeps_no_part_of_a_file";

#[test]
fn a_full_disk_at_either_end_keeps_no_part_of_a_file() {
    uwarp_netns::test_among_own_mounts(FULL, || {
        let (folder, [served, back]) = folders();
        for disk in [&served, &back] {
            let mut mount = Command::new("mount");
            uwarp_netns::run(mount.args(["-t", "tmpfs", "-o", "size=1M", "none"]).arg(disk)).unwrap();
        }
        let (socket, file) = (folder.path().join("s"), folder.path().join("file"));
        fs::write(&file, vec![1; 4 << 20]).unwrap();
        let server = serve(&socket, "virtio", &served, &[]);
        fails(&command(&socket, "virtio").arg("put").arg(&file).output().unwrap(), "No space left on device");
        wait_for_names(&served, &[]);
        puts(&socket, folder.path(), &served);
        drop(server);

        // From a directory with room to one without. The older file there does not change.
        fs::write(back.join("file"), "older").unwrap();
        fs::remove_file(&socket).unwrap();
        let roomy = folder.path().join("roomy");
        fs::create_dir(&roomy).unwrap();
        fs::rename(&file, roomy.join("file")).unwrap();
        let _server = serve(&socket, "virtio", &roomy, &[]);
        let get = command(&socket, "virtio").args(["get", "file", "--output"]).arg(&back).output().unwrap();
        fails(&get, "No space left on device");
        assert_eq!(names(&back), ["file"]);
        assert_eq!(fs::read(back.join("file")).unwrap(), b"older");
    });
}

#[test]
fn a_file_that_is_truncated_while_it_is_put_is_not_stored() {
    let (folder, [served, _]) = folders();
    let (_, file) = endless(folder.path());
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &[]);
    let mut put = command(&socket, "virtio");
    let mut put = put.arg("put").arg(&file).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_the_middle(&served, &[], &mut put);
    fs::File::options().write(true).open(&file).unwrap().set_len(5).unwrap();
    fails(&put.wait_with_output().unwrap(), "the file cannot be read, or became shorter meanwhile");
    wait_for_names(&served, &[]);
    puts(&socket, folder.path(), &served);
}

#[test]
fn a_file_that_is_truncated_while_it_is_served_is_an_error_at_both_ends() {
    let (folder, [served, back]) = folders();
    let (_, file) = endless(folder.path());
    fs::rename(&file, served.join("file")).unwrap();
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &[]);
    let mut get = command(&socket, "virtio");
    get.args(["get", "file", "--output"]).arg(&back);
    let mut get = get.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_the_middle(&back, &[], &mut get);
    fs::File::options().write(true).open(served.join("file")).unwrap().set_len(5).unwrap();
    let output = get.wait_with_output().unwrap();
    fails(&output, "the server says: 'file': the file cannot be read, or became shorter meanwhile");
    assert!(names(&back).is_empty(), "{:?}", names(&back));
    // And serves on, what the file is now.
    succeeds(&command(&socket, "virtio").args(["get", "file", "--output"]).arg(&back).output().unwrap());
    assert_eq!(fs::read(back.join("file")).unwrap(), [0; 5]);
}

const BROKEN: &str = "faults::a_disk_that_cannot_be_read_is_told_of_and_nothing_is_stored";

#[test]
fn a_disk_that_cannot_be_read_is_told_of_and_nothing_is_stored() {
    if uwarp_notes::lacks_root("a disk that cannot be read") {
        return;
    }
    uwarp_netns::test_among_own_mounts(BROKEN, || {
        let (folder, [served, back]) = folders();
        let (platter, mountpoint) = (folder.path().join("platter"), folder.path().join("disk"));
        let content: Vec<u8> = (0..4 << 20).map(|at: u32| (at % 251) as u8).collect();
        fs::write(&platter, &content).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        let disk = Disk { platter, mountpoint: mountpoint.clone(), deceitful: false };
        let mounted = disk.mount().unwrap();
        let [put_socket, get_socket] = ["p", "g"].map(|name| folder.path().join(name));
        let put = || command(&put_socket, "virtio").arg("put").arg(disk.file()).output().unwrap();
        let get = || {
            let mut get = command(&get_socket, "virtio");
            get.args(["get", NAME, "--output"]).arg(&back).output().unwrap()
        };
        let _servers = [serve(&put_socket, "virtio", &served, &[]), serve(&get_socket, "virtio", &mountpoint, &[])];
        mounted.set_trouble(Some(Trouble::Unreadable));
        fails(&put(), "Input/output error");
        fails(&get(), "Input/output error");
        wait_for_names(&served, &[]);
        assert!(names(&back).is_empty(), "{:?}", names(&back));
        mounted.set_trouble(None);
        succeeds(&put());
        succeeds(&get());
        for copy in [served.join(NAME), back.join(NAME)] {
            assert!(fs::read(&copy).unwrap() == content, "{}", copy.display());
        }
    });
}

/// A client of our own: the window that it may write to.
fn begin(client: &mut Channel, size: usize) -> Value {
    client.send(json!({"put": {"name": "file", "size": size}}).to_string().as_bytes()).unwrap();
    match client.next(Duration::from_secs(30)).unwrap() {
        Some(Event::Message(reply)) => serde_json::from_slice::<Value>(&reply).unwrap()["put-ready"]["window"].take(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_that_changes_a_slot_behind_its_message_gets_nothing_wrong_stored() {
    let (folder, [served, _]) = folders();
    let socket = folder.path().join("s");
    let _server = serve(&socket, "virtio", &served, &[]);
    let flags = NetworkFlags { socket: Some(socket.clone()), ..NetworkFlags::default() };
    let config = flags.resolve(Role::Client, EngineMode::Threaded).unwrap();
    let context = Context::open(uwarp_middlebox::behind(config)).unwrap();
    let domain = context.allocate_domain();
    let [good, bad] = [b'g', b'b'].map(|octet| domain.register(vec![octet; SLOT], Access::LOCAL_READ).unwrap());
    let hash = blake3::hash(&[b'g'; SLOT]).to_string();
    for late in 0..8 {
        let shape = Shape { message: 8192, messages: 8, work: 64 };
        let options = ConnectOptions::default().private_data(b"uwarp-copy/4");
        let (peer, patience) = ((SERVER_ADDRESS, 7175).into(), Duration::from_secs(30));
        let make = || Channel::new(&context, &domain, shape);
        let (mut client, _) = channel::connect(&context, peer, &options, patience, make, Channel::queue_pair).unwrap();
        let window = begin(&mut client, SLOT);
        let slot = &window["slots"][0];
        let (stag, offset) = (slot["stag"].as_u64().unwrap() as u32, slot["offset"].as_u64().unwrap());
        let write = |client: &mut Channel, region: &uwarp::MemoryRegion| {
            let entry = [region.sge(..).unwrap()];
            let write = SendRequest::write(1, &entry, stag, offset).signalled();
            client.queue_pair().send.post(&[write]).is_ok()
        };
        assert!(write(&mut client, &good));
        client.send(json!({"written": {"slot": 0, "length": SLOT}}).to_string().as_bytes()).unwrap();
        // Some arrive while the server has the slot for itself, which ends the connection; some behind that.
        for _ in 0..late {
            write(&mut client, &bad);
        }
        // The connection may have ended.
        let _ = client.send(json!({"put-end": {"hash": hash}}).to_string().as_bytes());
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match client.next(Duration::from_secs(1)) {
                Ok(Some(Event::Message(reply))) if reply.starts_with(b"{\"taken") => {}
                Ok(Some(Event::Done(_)) | None) => assert!(Instant::now() < deadline, "no answer and no end"),
                Ok(Some(_)) | Err(_) => break,
            }
        }
        drop(client);
        if late == 0 {
            wait_for_names(&served, &["file"]);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while names(&served).iter().any(|name| name != "file") {
            assert!(Instant::now() < deadline, "{:?}", names(&served));
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Ok(stored) = fs::read(served.join("file")) {
            assert!(stored == [b'g'; SLOT], "octets of another hash are stored");
            fs::remove_file(served.join("file")).unwrap();
        }
    }
    puts(&socket, folder.path(), &served);
}
