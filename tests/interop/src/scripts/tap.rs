//! A tap device whose kernel side is the host 10.9.0.1; it carries the frames of the host 10.9.0.2.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use smoltcp::phy::{Device, Medium, RxToken, TunTapInterface, TxToken, wait};
use uwarp_netns::{self as netns, End};
use uwarp_wire::tcp::TcpHeader;

/// The kernel's address.
pub const KERNEL: [u8; 4] = [10, 9, 0, 1];
/// The address of the script's player.
pub const PEER: [u8; 4] = [10, 9, 0, 2];

const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
const ETHERNET: usize = 14;
const IP: usize = 20;

/// A TCP segment that the kernel sent.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Its header.
    pub header: TcpHeader,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The ECN field of its IP header.
    pub ecn: u8,
    /// When it was read.
    pub at: Instant,
}

/// The device.
pub struct Tap {
    device: TunTapInterface,
    arrived: VecDeque<Segment>,
}

impl Tap {
    /// Creates the device in this thread's namespace. `initial_window`, in segments, and `rto_min`, the least time to a
    /// retransmission, are the kernel's.
    pub fn new(initial_window: Option<u32>, rto_min: Option<Duration>) -> io::Result<Self> {
        let device = TunTapInterface::new("tap0", Medium::Ethernet)?;
        netns::ip(["link", "set", "tap0", "address", &text(KERNEL_MAC)])?;
        End::kernel("tap0", &["10.9.0.1/24"]).bring_up()?;
        netns::ip(["neigh", "add", "10.9.0.2", "lladdr", &text(PEER_MAC), "dev", "tap0"])?;
        // A route's metrics, since the kernel before 6.11 has no setting for the RTO.
        let window = initial_window.map(|segments| ["initcwnd".to_owned(), segments.to_string()]);
        let floor = rto_min.map(|time| ["rto_min".to_owned(), format!("{}ms", time.as_millis())]);
        let metrics: Vec<String> = window.into_iter().chain(floor).flatten().collect();
        if !metrics.is_empty() {
            let route = ["route", "add", "10.9.0.2/32", "dev", "tap0"].map(str::to_owned);
            netns::ip(route.into_iter().chain(metrics))?;
        }
        Ok(Self { device, arrived: VecDeque::new() })
    }

    /// Sends a segment of the peer with both checksums valid, and `ecn` in the ECN field of its IP header.
    pub fn send(&mut self, header: &TcpHeader, payload: &[u8], ecn: u8) -> io::Result<()> {
        let mut tcp = [0; 60];
        let length = header.emit(&mut tcp);
        let mut segment = [&tcp[..length], payload].concat();
        let total = IP + segment.len();
        let pseudo =
            [&PEER[..], &KERNEL, &[0, 6], &u16::try_from(segment.len()).map_err(io::Error::other)?.to_be_bytes()];
        let sum = checksum(&[&pseudo.concat()[..], &segment].concat());
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut ip = [0; IP];
        (ip[0], ip[1], ip[6], ip[8], ip[9]) = (0x45, ecn, 0x40, 64, 6);
        ip[2..4].copy_from_slice(&u16::try_from(total).map_err(io::Error::other)?.to_be_bytes());
        ip[12..16].copy_from_slice(&PEER);
        ip[16..20].copy_from_slice(&KERNEL);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let frame = [&KERNEL_MAC[..], &PEER_MAC, &[8, 0], &ip, &segment].concat();
        let token = self.device.transmit(smoltcp::time::Instant::ZERO).ok_or(io::ErrorKind::WouldBlock)?;
        token.consume(frame.len(), |octets| octets.copy_from_slice(&frame));
        Ok(())
    }

    /// The next segment from the kernel, if one comes until `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> io::Result<Option<Segment>> {
        loop {
            self.drain();
            if let Some(segment) = self.arrived.pop_front() {
                return Ok(Some(segment));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // Waits count in milliseconds.
            let left =
                smoltcp::time::Duration::from_millis(left.min(Duration::from_millis(100)).as_millis() as u64 + 1);
            wait(self.device.as_raw_fd(), Some(left))?;
        }
    }

    /// Returns a segment that is for later.
    pub fn put_back(&mut self, segment: Segment) {
        self.arrived.push_front(segment);
    }

    fn drain(&mut self) {
        while let Some((token, _)) = self.device.receive(smoltcp::time::Instant::ZERO) {
            let segment = token.consume(parse);
            self.arrived.extend(segment);
        }
    }
}

/// The TCP segment of a frame to the peer. The kernel also sends other frames.
fn parse(frame: &[u8]) -> Option<Segment> {
    let ip = frame.get(ETHERNET..).filter(|ip| ip.len() >= IP && frame[12..14] == [8, 0] && ip[9] == 6)?;
    assert_eq!(checksum(&ip[..IP]), 0, "the kernel's IP checksum");
    let segment = &ip[IP..usize::from(u16::from_be_bytes([ip[2], ip[3]]))];
    let pseudo = [&ip[12..20], &[0, 6], &(segment.len() as u16).to_be_bytes()].concat();
    assert_eq!(checksum(&[&pseudo[..], segment].concat()), 0, "the kernel's TCP checksum");
    let (header, length) = TcpHeader::parse(segment).expect("the kernel sends good headers");
    Some(Segment { header, payload: segment[length..].to_vec(), ecn: ip[1] & 3, at: Instant::now() })
}

/// The Internet checksum (RFC 1071) of `octets`; 0 if they contain their own.
fn checksum(octets: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in octets.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}
