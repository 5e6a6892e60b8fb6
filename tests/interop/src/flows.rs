//! Plain streams between the kernel's sockets and the stack, compared octet by octet in both directions.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use sha2::{Digest, Sha256};

/// The kernel's congestion control, set for every socket: the system's default paces by a model of the path and hardly
/// reacts to losses.
pub const CONGESTION: &str = "cubic";
/// Longest wait of the kernel's sockets: only a defect makes a test wait this long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Octets of one write.
const CHUNK: usize = 64 << 10;

/// A summary of the octets that one end of a flow has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digested {
    /// SHA-256 of the octets.
    pub hash: [u8; 32],
    /// Their number.
    pub octets: u64,
}

/// A stream to be written: pseudo-random octets, and their digest.
pub struct Source {
    random: fastrand::Rng,
    hash: Sha256,
    chunk: Vec<u8>,
    at: usize,
    left: u64,
    octets: u64,
}

impl Source {
    /// The stream that `seed` stands for.
    pub fn new(seed: u64, octets: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, hash: Sha256::new(), chunk: Vec::new(), at: 0, left: octets, octets }
    }

    /// Writes once; returns 0 when nothing is left.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&mut self, to: &mut impl Write) -> io::Result<usize> {
        if self.at == self.chunk.len() {
            self.chunk.resize((CHUNK as u64).min(self.left) as usize, 0);
            self.random.fill(&mut self.chunk);
            self.hash.update(&self.chunk);
            self.left -= self.chunk.len() as u64;
            self.at = 0;
        }
        let count = if self.chunk.is_empty() { 0 } else { again(|| to.write(&self.chunk[self.at..]))? };
        self.at += count;
        Ok(count)
    }

    /// Of all octets.
    pub fn digest(self) -> Digested {
        Digested { hash: self.hash.finalize().into(), octets: self.octets }
    }
}

/// The octets read of a stream.
#[derive(Default)]
pub struct Sink {
    hash: Sha256,
    octets: u64,
    over: bool,
    chunk: Vec<u8>,
}

impl Sink {
    /// Reads once; returns 0 at the end.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<usize> {
        if self.over {
            return Ok(0);
        }
        self.chunk.resize(CHUNK, 0);
        let count = again(|| from.read(&mut self.chunk))?;
        self.hash.update(&self.chunk[..count]);
        self.octets += count as u64;
        self.over = count == 0;
        Ok(count)
    }

    /// Whether the end has arrived.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The digest of what has arrived.
    pub fn digest(self) -> Digested {
        Digested { hash: self.hash.finalize().into(), octets: self.octets }
    }
}

/// Retries a call that a signal interrupted.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Writes `octets` octets of the stream that `seed` defines.
///
/// # Errors
/// Those of the writer.
pub fn send(to: &mut impl Write, seed: u64, octets: u64) -> io::Result<Digested> {
    let mut source = Source::new(seed, octets);
    while source.write(to)? > 0 {}
    Ok(source.digest())
}

/// Reads until the end.
///
/// # Errors
/// Those of the reader.
pub fn receive(from: &mut impl Read) -> io::Result<Digested> {
    let mut sink = Sink::default();
    while sink.read(from)? > 0 {}
    Ok(sink.digest())
}

/// Reads exactly this many octets.
///
/// # Errors
/// Those of the reader, or the stream ends before.
pub fn receive_exactly(from: &mut impl Read, octets: u64) -> io::Result<Digested> {
    let mut from = from.take(octets);
    let digested = receive(&mut from)?;
    if digested.octets < octets {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the end after {}", digested.octets)));
    }
    Ok(digested)
}

/// Waits for a thread and adds the name of its end to its error.
///
/// # Errors
/// As the thread.
///
/// # Panics
/// If the thread did.
pub fn join<T>(name: &str, thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    let outcome = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    outcome.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
}

/// A listening kernel socket on a port that the kernel chooses.
///
/// # Errors
/// As the system.
pub fn kernel_listens(address: IpAddr) -> io::Result<std::net::TcpListener> {
    // Accepted sockets have the listening one's.
    let listener = std::net::TcpListener::bind(SocketAddr::new(address, 0))?;
    sockopt::set_tcp_congestion(&listener, CONGESTION)?;
    Ok(listener)
}

/// A connected kernel socket.
///
/// # Errors
/// As the system.
pub fn kernel_connects(to: SocketAddr) -> io::Result<std::net::TcpStream> {
    // The standard library's call continues if a signal interrupts it.
    let stream = std::net::TcpStream::connect(to)?;
    sockopt::set_tcp_congestion(&stream, CONGESTION)?;
    patient(stream)
}

/// A kernel socket that has started to connect.
///
/// # Errors
/// As the system.
pub fn kernel_begins(to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
    match net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Limits the waits of a kernel socket.
///
/// # Errors
/// As the system.
pub fn patient(stream: std::net::TcpStream) -> io::Result<std::net::TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A table of goodput, one line per cell.
#[derive(Debug, Default)]
pub struct Table(Vec<(String, u64, Duration)>);

impl Table {
    /// Records that `octets` took from `since` until now.
    pub fn note(&mut self, cell: String, octets: u64, since: Instant) {
        let taken = since.elapsed();
        println!("{}", Self::line(&cell, octets, taken));
        self.0.push((cell, octets, taken));
    }

    fn line(cell: &str, octets: u64, taken: Duration) -> String {
        let mbit = octets as f64 * 8e-6 / taken.as_secs_f64();
        format!("{cell:<54} {:>8.1} MiB {:>8.2} s {mbit:>9.1} Mbit/s", octets as f64 / 1048576.0, taken.as_secs_f64())
    }

    /// All lines.
    pub fn text(&self) -> String {
        self.0.iter().map(|(cell, octets, taken)| Self::line(cell, *octets, *taken) + "\n").collect()
    }
}
