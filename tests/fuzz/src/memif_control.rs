//! A client of any habits on the control socket of a memif server.
//!
//! The two ends of a memif device share memory and trust each other with it (`SECURITY.md`), so this client's rings lie
//! in its regions, its descriptors in its rings, and it says nothing that only a server may say. It passes descriptors
//! with messages that the server takes, as the driver closes no others. All else is the input's choice: the order of
//! the messages, their fields, and where the connection ends. Afterwards the server has to take a usual client.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use uwarp_dpdk::{DeviceConfig, Eal, EalConfig, Mbuf, MemifRole, Port, PortOptions, Queue};

/// Octets of every message: its type and the largest body, rounded up.
const MESSAGE_LEN: usize = 128;
/// The octets that begin a ring, before its descriptors of 16 octets each.
const RING_HEADER_LEN: u64 = 128;
const RING_COOKIE: u32 = 0x03e3_1f20;
/// Version 2.0, the only one.
const VERSION: u16 = 0x0200;
/// What `/proc/self/fd` says of a region.
const REGION: &str = "/memfd:region (deleted)";
/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(8);

const ACK: u16 = 1;
const HELLO: u16 = 2;
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// The server, which all inputs of a process meet one after another.
struct Server {
    queue: Queue,
    port: Port,
    socket: PathBuf,
    /// Descriptors and inodes of regions that were open behind the last input.
    kept: Vec<(i32, u64)>,
    // The socket is in it.
    _directory: tempfile::TempDir,
}

impl Server {
    fn open() -> Server {
        let eal = Eal::init(&EalConfig { memory_mib: 64, ..EalConfig::default() }).expect("DPDK starts");
        let directory = tempfile::tempdir().expect("a folder for the socket");
        let socket = directory.path().join("memif");
        let device = DeviceConfig::Memif {
            role: MemifRole::Server,
            socket: socket.clone(),
            zero_copy: false,
            ring_size: Some(64),
            buffer_size: None,
        };
        let port = Port::open(&eal, &device, &PortOptions::default()).expect("the device opens");
        let queue = port.take_queue(0).expect("it has a queue");
        Server { queue, port, socket, kept: Vec::new(), _directory: directory }
    }

    /// One turn of an engine: what has come is dropped.
    fn turn(&mut self) {
        let mut frames: Vec<Mbuf> = Vec::with_capacity(uwarp_dpdk::MAX_BURST);
        self.queue.rx_burst(&mut frames);
    }

    /// A client as DPDK's own: it gets in, the link comes up, and goes down when the client goes.
    fn serve_usual_client(&mut self) {
        let began = Instant::now();
        while !self.try_usual_client() {
            assert!(began.elapsed() < PATIENCE, "the server takes no client any more");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Closes the regions of clients that left before they were connected, whose descriptors the driver keeps. It may
    /// be about to close those of the last clients itself.
    fn close_kept_regions(&mut self) {
        let mut regions = Vec::new();
        for entry in fs::read_dir("/proc/self/fd").expect("there is a /proc").flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let region = fs::read_link(entry.path()).ok().filter(|to| to.as_os_str() == REGION);
            let inode = region.and_then(|_| fs::metadata(entry.path()).ok()).map(|file| file.ino());
            regions.extend(number.zip(inode));
        }
        for region in regions.extract_if(.., |region| self.kept.contains(region)) {
            nix::unistd::close(region.0).expect("the driver has forgotten it");
        }
        self.kept = regions;
    }

    fn try_usual_client(&mut self) -> bool {
        let Ok(mut client) = Client::connect(&self.socket) else { return false };
        let connected = client.expect(HELLO)
            && client.init(VERSION, 0, 0)
            && client.expect(ACK)
            && client.add_region(0, 1 << 16, true)
            && client.expect(ACK)
            && client.add_ring(1, 0, 0, 0, 6, true)
            && client.expect(ACK)
            && client.add_ring(0, 0, 0, 1 << 15, 6, true)
            && client.expect(ACK)
            && client.send(CONNECT, &text(b"usual"), &[])
            && client.expect(CONNECTED);
        // A server that has not done with its last peer ends the connection of the next one.
        if !connected {
            return false;
        }
        self.port.wait_link_up(PATIENCE).expect("the link of a connected server comes up");
        self.turn();
        drop(client);
        let began = Instant::now();
        while self.port.link_up() {
            assert!(began.elapsed() < PATIENCE, "the server does not notice that its peer has gone");
            std::thread::yield_now();
        }
        true
    }
}

/// The client's end of a control connection.
struct Client {
    socket: OwnedFd,
    /// Sizes and memory of the regions that were offered.
    regions: Vec<(u64, OwnedFd)>,
    /// The events of the rings that were offered.
    bells: Vec<OwnedFd>,
    /// The server has been told which device this is for, and in no other way before.
    introduced: bool,
    /// The directions that have a ring: from the server, to the server.
    ringed: [bool; 2],
}

impl Client {
    fn connect(path: &PathBuf) -> io::Result<Client> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Client { socket, regions: Vec::new(), bells: Vec::new(), introduced: false, ringed: [false; 2] })
    }

    /// Sends a message; false if the server has ended the connection.
    fn send(&self, kind: u16, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut message = [0; MESSAGE_LEN];
        message[..2].copy_from_slice(&kind.to_le_bytes());
        let len = body.len().min(MESSAGE_LEN - 2);
        message[2..2 + len].copy_from_slice(&body[..len]);
        self.send_octets(&message, descriptors)
    }

    fn send_octets(&self, octets: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&self.socket, &[io::IoSlice::new(octets)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// The type of the next message, if one comes before the connection ends.
    fn next(&self, flags: RecvFlags) -> Option<u16> {
        let mut message = [0; MESSAGE_LEN];
        let mut ancillary = RecvAncillaryBuffer::default();
        let received = recvmsg(&self.socket, &mut [io::IoSliceMut::new(&mut message)], &mut ancillary, flags).ok()?;
        (received.bytes == MESSAGE_LEN).then(|| u16::from_le_bytes([message[0], message[1]]))
    }

    fn expect(&self, kind: u16) -> bool {
        self.next(RecvFlags::empty()) == Some(kind)
    }

    fn init(&self, version: u16, id: u32, mode: u8) -> bool {
        let mut body = Vec::from(version.to_le_bytes());
        body.extend(id.to_le_bytes());
        body.push(mode);
        // No secret.
        body.extend([0; 24]);
        body.extend(text(b"client"));
        self.send(INIT, &body, &[])
    }

    /// Offers memory of its own. A region is as large as the message says: the server maps it whole.
    fn add_region(&mut self, index: u16, size: u64, with_descriptor: bool) -> bool {
        let memory = memfd_create("region", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&memory, size).expect("it takes its size");
        let mut body = Vec::from(index.to_le_bytes());
        body.extend(size.to_le_bytes());
        let descriptors = [memory.as_fd()];
        let sent = self.send(ADD_REGION, &body, if with_descriptor { &descriptors } else { &[] });
        if with_descriptor {
            self.regions.push((size, memory));
        }
        sent
    }

    /// Offers a ring of `1 << log2_size` empty descriptors at that offset of a region.
    fn add_ring(&mut self, flags: u16, index: u16, region: u16, offset: u32, log2_size: u8, with_bell: bool) -> bool {
        if let Some((_, memory)) = self.regions.get(usize::from(region)) {
            let mut header = [0; RING_HEADER_LEN as usize];
            header[..4].copy_from_slice(&RING_COOKIE.to_le_bytes());
            pwrite(memory, &header, u64::from(offset)).expect("the ring lies in the region");
        }
        let mut body = Vec::new();
        for field in [flags, index, region] {
            body.extend(field.to_le_bytes());
        }
        body.extend(offset.to_le_bytes());
        body.push(log2_size);
        // No private headers.
        body.extend([0; 2]);
        let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an event");
        let descriptors = [bell.as_fd()];
        let sent = self.send(ADD_RING, &body, if with_bell { &descriptors } else { &[] });
        self.bells.push(bell);
        self.ringed[usize::from(flags)] |= with_bell;
        sent
    }
}

/// A text field of 32 octets.
fn text(octets: &[u8]) -> [u8; 32] {
    let mut field = [0; 32];
    let len = octets.len().min(31);
    field[..len].copy_from_slice(&octets[..len]);
    field
}

/// The octets that choose what the client does; zeros when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn octet(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.octet(), self.octet()])
    }

    fn flag(&mut self) -> bool {
        self.octet() & 1 != 0
    }

    /// Mostly the usual value.
    fn mostly<T>(&mut self, usual: T, other: impl FnOnce(&mut Self) -> T) -> T {
        if self.octet() < 224 { usual } else { other(self) }
    }
}

/// Plays one client, or several in sequence, and then a usual one.
pub fn memif_control(data: &[u8]) {
    thread_local! {
        static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
    }
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(Server::open);
        let mut choices = Choices(data);
        let mut client = None;
        while !choices.0.is_empty() {
            match client.take() {
                // At the backlog's limit the socket takes no more until the server has looked.
                None => client = Client::connect(&server.socket).ok(),
                Some(mut open) => {
                    if act(&mut open, server, &mut choices) {
                        client = Some(open);
                    }
                }
            }
        }
        drop(client);
        server.serve_usual_client();
        server.close_kept_regions();
    });
}

/// One action. False ends the connection.
fn act(client: &mut Client, server: &mut Server, choices: &mut Choices<'_>) -> bool {
    match choices.octet() % 12 {
        0 | 1 => {
            let version = choices.mostly(VERSION, Choices::word);
            let id = choices.mostly(0, |choices| u32::from(choices.word()));
            let mode = choices.mostly(0, Choices::octet);
            client.introduced = (version, id, mode) == (VERSION, 0, 0);
            client.init(version, id, mode)
        }
        2 | 3 => {
            let next = u16::try_from(client.regions.len()).unwrap_or(u16::MAX);
            let index = choices.mostly(next, Choices::word);
            let size = 4096 << (choices.octet() % 9);
            let is_taken = client.introduced && index == next;
            let with_descriptor = is_taken && choices.mostly(true, Choices::flag);
            client.add_region(index, size, with_descriptor)
        }
        4 | 5 => {
            let known = client.regions.len();
            if known == 0 {
                return true;
            }
            let region = usize::from(choices.octet()) % known;
            let size = client.regions[region].0;
            let log2_size = choices.octet() % 15;
            let len = RING_HEADER_LEN + (16 << log2_size);
            if len > size {
                return true;
            }
            let offset = u64::from(choices.word()) * 64 % (size - len + 1);
            let flags = choices.octet() & 1;
            let index = choices.mostly(0, |choices| u16::from(choices.octet()));
            let is_taken = index == 0 && !client.ringed[usize::from(flags)];
            let with_bell = is_taken && choices.mostly(true, Choices::flag);
            client.add_ring(
                u16::from(flags),
                index,
                u16::try_from(region).expect("few regions"),
                u32::try_from(offset).expect("within a region"),
                log2_size,
                with_bell,
            )
        }
        // The server takes it that both rings are there.
        6 if client.ringed == [true; 2] => client.send(CONNECT, &text(&[choices.octet(); 40]), &[]),
        7 => {
            let mut body = [choices.octet(); MESSAGE_LEN];
            body[4 + usize::from(choices.octet() % 96)] = 0;
            body[MESSAGE_LEN - 3] = 0;
            client.send(DISCONNECT, &body, &[])
        }
        8 => {
            // A message of a later version.
            let kind = choices.word().max(DISCONNECT + 1);
            client.send(kind, &[choices.octet(); 16], &[])
        }
        9 => {
            let len = usize::from(choices.octet()) % (2 * MESSAGE_LEN);
            client.send_octets(&vec![choices.octet(); len], &[])
        }
        10 => {
            // The event of a ring, and an engine that looks into it.
            if let Some(bell) = client.bells.last() {
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
            server.turn();
            // What the server has said meanwhile; it may block when nobody reads.
            while client.next(RecvFlags::DONTWAIT).is_some() {}
            true
        }
        _ => choices.flag(),
    }
}
