//! The same copy through a socket of the kernel's TCP, between two processes over loopback: what `pair` compares with.
//! Files are read, hashed and written by the same code and in parts of the same size as over RDMA.

use crate::protocol::{MESSAGE_MAX, Reply, Request, SLOT_SIZE};
use crate::report::{Copied, Meter};
use crate::store::{Outgoing, Store};
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uwarp_app::{NetworkFlags, output, signals};

/// How long the other side may be silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// One side.
#[derive(Args)]
pub struct SideArguments {
    /// Which one
    side: Side,
    /// The file, or the directory that it goes to
    path: PathBuf,
    /// File in which the server tells its port
    #[arg(long)]
    meet: PathBuf,
}

/// Which side.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Stores one file.
    Serve,
    /// Sends it.
    Put,
}

/// Runs one side; the client prints what it measured as JSON.
///
/// # Errors
/// The other side fails, or is silent for too long; a file cannot be read or written; or the hashes differ.
pub fn run(network: &NetworkFlags, arguments: &SideArguments) -> anyhow::Result<()> {
    network.pin()?;
    match arguments.side {
        Side::Serve => {
            let store = Store::open(&arguments.path)?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
            let port = listener.local_addr().context("cannot listen on loopback")?.port();
            // Under its name only when it is whole.
            let unfinished = arguments.meet.with_extension("new");
            std::fs::write(&unfinished, port.to_string())
                .and_then(|()| std::fs::rename(&unfinished, &arguments.meet))
                .with_context(|| format!("cannot write {}", arguments.meet.display()))?;
            let (stream, _) = listener.accept().context("no client")?;
            serve(Peer::new(stream)?, &store)
        }
        Side::Put => {
            let name = arguments.path.file_name().and_then(|name| name.to_str()).context("the file has no name")?;
            let file = File::open(&arguments.path).context("cannot open the file")?;
            let file = Outgoing::new(name, file)?;
            let port = port_of(&arguments.meet)?;
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("there is no connection")?;
            let copied = put(Peer::new(stream)?, name, file)?;
            output::write_json(Path::new("-"), &[copied])
        }
    }
}

/// Waits until the server has told its port.
fn port_of(meet: &Path) -> anyhow::Result<u16> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE && !signals::interrupted() {
        if let Ok(text) = std::fs::read_to_string(meet) {
            return text.parse().context("the server's port is not a number");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("the server has not told its port")
}

/// The other side: messages with their lengths in front, and octets between them.
struct Peer {
    stream: TcpStream,
    room: Vec<u8>,
}

impl Peer {
    fn new(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, room: vec![0; SLOT_SIZE as usize] })
    }

    fn tell(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let octets = serde_json::to_vec(message).context("a message cannot be written as JSON")?;
        self.stream.write_all(&(octets.len() as u32).to_be_bytes()).context("the other side takes nothing")?;
        self.stream.write_all(&octets).context("the other side takes nothing")
    }

    fn next<Message: DeserializeOwned>(&mut self) -> anyhow::Result<Message> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).context("the other side says nothing")?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_MAX {
            bail!("the other side sent a message of {length} octets");
        }
        let part = &mut self.room[..length];
        self.stream.read_exact(part).context("the other side says nothing")?;
        serde_json::from_slice(part).context("the other side sent a message that is none of this version's")
    }
}

fn serve(mut peer: Peer, store: &Store) -> anyhow::Result<()> {
    let Request::Put { name, size } = peer.next()? else { bail!("the client does not begin with a file") };
    let meter = Meter::start();
    let mut incoming = store.incoming(&name, size)?;
    while incoming.received() < size {
        let length = (size - incoming.received()).min(u64::from(SLOT_SIZE)) as usize;
        let part = &mut peer.room[..length];
        peer.stream.read_exact(part).context("the client left in the middle of the file")?;
        incoming.append(part)?;
    }
    let Request::PutEnd { hash } = peer.next()? else { bail!("the client does not end the file") };
    incoming.finish(&hash)?;
    peer.tell(&Reply::Stored { cpu_ns: meter.cpu_ns() })
}

fn put(mut peer: Peer, name: &str, mut file: Outgoing) -> anyhow::Result<Copied> {
    let meter = Meter::start();
    let size = file.size();
    peer.tell(&Request::Put { name: name.to_owned(), size })?;
    while file.left() > 0 {
        let length = file.next(&mut peer.room)?;
        peer.stream.write_all(&peer.room[..length]).context("the server takes nothing")?;
    }
    peer.tell(&Request::PutEnd { hash: file.hash() })?;
    match peer.next()? {
        Reply::Stored { cpu_ns } => Ok(meter.copied(name, size, Some(cpu_ns))),
        other => bail!("the server said {other:?} out of turn"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A client that sends a file's octets, and then another hash than theirs, or another octet than was hashed.
    fn put_corrupted(port: u16, content: &[u8], hash: &str) -> anyhow::Result<Reply> {
        let mut peer = Peer::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?;
        peer.tell(&Request::Put { name: "file".to_owned(), size: content.len() as u64 })?;
        peer.stream.write_all(content)?;
        peer.tell(&Request::PutEnd { hash: hash.to_owned() })?;
        peer.next()
    }

    #[test]
    fn an_octet_that_changed_on_the_way_is_noticed_and_leaves_nothing() {
        let mut content = vec![7; 3 * SLOT_SIZE as usize + 5];
        let hash = blake3::hash(&content).to_string();
        for corrupted in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path()).unwrap();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            content[2 * SLOT_SIZE as usize] ^= u8::from(corrupted);
            let (served, reply) = std::thread::scope(|scope| {
                let client = scope.spawn(|| put_corrupted(port, &content, &hash));
                let served = serve(Peer::new(listener.accept().unwrap().0).unwrap(), &store);
                (served, client.join().unwrap())
            });
            if corrupted {
                assert!(served.unwrap_err().to_string().contains("the content differs"), "{hash}");
                assert!(reply.is_err());
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
            } else {
                served.unwrap();
                assert!(matches!(reply.unwrap(), Reply::Stored { .. }));
                assert!(fs::read(folder.path().join("file")).unwrap() == content);
            }
        }
    }
}
