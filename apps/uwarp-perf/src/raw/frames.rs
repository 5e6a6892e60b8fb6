//! The frames of the raw tests: their format, and the number and length of the frames for a message.

use std::ops::Range;
use uwarp_dpdk::{HEADROOM, Mbuf};

/// IEEE 802's EtherType for local experiments.
pub const ETHER_TYPE: u16 = 0x88B5;
/// Octets of the Ethernet header.
pub const ETHERNET: usize = 14;
/// Octets of the Ethernet header and ours.
pub const HEADER: usize = ETHERNET + 16;
/// Shortest frame in octets: Ethernet's minimum, without its check sequence.
pub const FRAME_MIN: usize = 60;
/// Everybody's hardware address.
pub const BROADCAST: [u8; 6] = [0xFF; 6];

/// Octets of IPv4 and TCP headers without options, as in the stack's default segments.
const IP_AND_TCP: u64 = 40;
/// MPA's length field and CRC (RFC 5044 §4).
const MPA: u64 = 2 + 4;
/// DDP's tagged header with RDMAP's octet (RFC 5041 §4.2).
const TAGGED: u64 = 14;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The client's parameters; repeated until answered.
    Hello = 1,
    /// The server has received them.
    Welcome = 2,
    /// Part of a message.
    Data = 3,
    /// The client has sent its last message; repeated until answered.
    Stop = 4,
    /// The server's counts.
    Counts = 5,
    /// The client leaves; repeated until answered, for a while.
    Bye = 6,
    /// The server has seen it.
    Farewell = 7,
}

impl Kind {
    fn from_octet(octet: u8) -> Option<Self> {
        [Self::Hello, Self::Welcome, Self::Data, Self::Stop, Self::Counts, Self::Bye, Self::Farewell]
            .into_iter()
            .find(|&kind| kind as u8 == octet)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Which frame of the message.
    pub index: u32,
    /// Which message.
    pub message: u64,
}

/// Parses a frame's header; `None` for frames that are not ours.
#[inline]
pub fn parse(frame: &[u8]) -> Option<Header> {
    let header: &[u8; HEADER] = frame.first_chunk()?;
    if header[12..14] != ETHER_TYPE.to_be_bytes() {
        return None;
    }
    Some(Header {
        kind: Kind::from_octet(header[14])?,
        index: u32::from_le_bytes([header[16], header[17], header[18], header[19]]),
        message: u64::from_le_bytes([
            header[20], header[21], header[22], header[23], header[24], header[25], header[26], header[27],
        ]),
    })
}

/// Writes a frame into a fresh buffer; `payload` fills the part behind the header. False if the buffer is too small.
#[inline]
pub fn write(
    buffer: &mut Mbuf,
    addresses: &Addresses,
    header: Header,
    len: usize,
    payload: impl FnOnce(&mut [u8]),
) -> bool {
    let Some(frame) = buffer.storage_mut().and_then(|storage| storage.get_mut(HEADROOM..HEADROOM + len)) else {
        return false;
    };
    let Some((head, rest)) = frame.split_first_chunk_mut::<HEADER>() else {
        return false;
    };
    head[..6].copy_from_slice(&addresses.peer);
    head[6..12].copy_from_slice(&addresses.own);
    head[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    head[14] = header.kind as u8;
    head[16..20].copy_from_slice(&header.index.to_le_bytes());
    head[20..28].copy_from_slice(&header.message.to_le_bytes());
    payload(rest);
    buffer.set_range(HEADROOM, len)
}

/// The two ends' hardware addresses.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Ours.
    pub own: [u8; 6],
    /// The peer's, or broadcast while it is unknown.
    pub peer: [u8; 6],
}

/// How a message is cut into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Frames of a message.
    pub count: u32,
    /// Octets of each frame but the last, Ethernet header included.
    pub full: u32,
    /// Octets of the last.
    pub last: u32,
}

impl Geometry {
    /// The frames of an RDMA Write of `size` octets at this MTU.
    pub fn of_write(size: u64, mtu: u16) -> Self {
        // MPA pads each FPDU to four octets, so the longest payload makes an FPDU that is a multiple of four.
        let segment = u64::from(mtu) - IP_AND_TCP;
        let payload_max = segment / 4 * 4 - MPA - TAGGED;
        let count = size.div_ceil(payload_max).max(1);
        let rest = size - (count - 1) * payload_max;
        let frame = |payload: u64| {
            let fpdu = (2 + TAGGED + payload).next_multiple_of(4) + 4;
            // At most 9014: the MTU bounds it.
            (ETHERNET as u64 + IP_AND_TCP + fpdu) as u32
        };
        Self {
            // At most 2^30 octets in parts of more than 500.
            count: count as u32,
            full: frame(payload_max),
            last: frame(rest).max(FRAME_MIN as u32),
        }
    }

    /// One frame of a given length.
    pub fn of_frame(len: u32) -> Self {
        Self { count: 1, full: len, last: len }
    }

    /// Octets of frame `index`.
    #[inline]
    pub fn len(&self, index: u32) -> usize {
        (if index + 1 == self.count { self.last } else { self.full }) as usize
    }

    /// Octets of its message that frame `index` carries, as the same frame of an RDMA Write would.
    #[inline]
    pub fn payload(&self, index: u32) -> Range<usize> {
        let carried = |frame: u32| (frame as usize).saturating_sub(ETHERNET + (IP_AND_TCP + TAGGED + MPA) as usize);
        let start = index as usize * carried(self.full);
        start..start + carried(if index + 1 == self.count { self.last } else { self.full })
    }

    /// Octets of the longest frame.
    pub fn longest(&self) -> u32 {
        if self.count > 1 { self.full } else { self.last }
    }

    /// The three numbers, for a Hello.
    pub fn to_octets(self) -> [u8; 12] {
        let mut octets = [0; 12];
        for (field, value) in octets.chunks_exact_mut(4).zip([self.count, self.full, self.last]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        octets
    }

    /// Reads the output of [`to_octets`](Self::to_octets); `None` if none of our clients can have written it.
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let field = |index: usize| Some(u32::from_le_bytes(*octets.get(index * 4..)?.first_chunk::<4>()?));
        let geometry = Self { count: field(0)?, full: field(1)?, last: field(2)? };
        let lengths = FRAME_MIN as u32..=9014;
        (geometry.count > 0 && lengths.contains(&geometry.full) && lengths.contains(&geometry.last)).then_some(geometry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_the_frames_of_a_write() {
        // 64 octets: FPDU 2 + 14 + 64 + 4, in 54 octets of headers.
        assert_eq!(Geometry::of_write(64, 1500), Geometry { count: 1, full: 1514, last: 138 });
        // 1440 octets are the most at MTU 1500.
        assert_eq!(Geometry::of_write(1440, 1500).count, 1);
        assert_eq!(Geometry::of_write(1440, 1500).last, 1514);
        assert_eq!(Geometry::of_write(1441, 1500).count, 2);
        assert_eq!(Geometry::of_write(1, 576).last, 78);
        assert_eq!(Geometry::of_write(65_536, 9000).full, 9014);
        let geometry = Geometry::of_write(65_536, 1500);
        assert_eq!(Geometry::from_octets(&geometry.to_octets()), Some(geometry));
        assert_eq!(Geometry::from_octets(&[0; 12]), None);
        assert_eq!(Geometry::from_octets(&[1; 7]), None);
        // The frames carry the message, whose end may be padded.
        let parts: Vec<_> = (0..geometry.count).map(|index| geometry.payload(index)).collect();
        assert!(parts[0].start == 0 && parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!((65_536..65_540).contains(&parts.last().unwrap().end));
    }

    #[test]
    fn foreign_frames_are_not_ours() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0; 64]), None);
        let mut frame = [0_u8; 64];
        frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        assert_eq!(parse(&frame), None);
        frame[14] = Kind::Data as u8;
        frame[20] = 5;
        assert_eq!(parse(&frame), Some(Header { kind: Kind::Data, index: 0, message: 5 }));
    }
}
