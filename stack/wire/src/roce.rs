//! Unreliable datagrams of RoCE v2: InfiniBand's transport headers in UDP (InfiniBand Architecture Specification,
//! volume 1, §9.2, §9.3 and annex A17).
//!
//! | part | octets |
//! |---|---|
//! | UDP, to port 4791, without a checksum | 8 |
//! | base transport header (BTH) | 12 |
//! | datagram extended transport header (DETH) | 8 |
//! | immediate data, in one of the two kinds | 4 |
//! | payload, and 0 to 3 octets of padding | |
//! | invariant CRC (ICRC), the low octet first | 4 |

#[cfg(test)]
mod tests;

use crate::WireError;
use crate::octets::{put_u16, put_u32, u16_at, u32_at};
use crate::{ipv4, ipv6};

/// The IP protocol number of UDP.
pub const PROTOCOL: u8 = 17;
/// The UDP port of RoCE v2.
pub const PORT: u16 = 4791;
/// Octets of the largest headers with what follows the payload, without those of IP.
pub const MOST_OVERHEAD: usize = HEADERS_LEN + IMMEDIATE_LEN + 3 + ICRC_LEN;

const UDP_LEN: usize = 8;
const BTH_LEN: usize = 12;
const DETH_LEN: usize = 8;
/// Of a datagram without immediate data.
const HEADERS_LEN: usize = UDP_LEN + BTH_LEN + DETH_LEN;
const IMMEDIATE_LEN: usize = 4;
const ICRC_LEN: usize = 4;

/// UD SEND Only.
const SEND: u8 = 0x64;
/// UD SEND Only with Immediate.
const SEND_IMMEDIATE: u8 = 0x65;
/// The partition that everybody is in, by its full members or not.
const PARTITION: u16 = 0xffff;
const FULL_MEMBER: u16 = 0x8000;
/// Source ports say which datagrams belong to one flow; these are the dynamic ones.
const FIRST_SOURCE_PORT: u16 = 0xc000;
const NUMBER: u32 = 0xff_ffff;

/// What a datagram says beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The queue pair that it is for, 24 bits.
    pub destination: u32,
    /// The queue pair that sends it, 24 bits.
    pub source: u32,
    /// The key that the receiver has to have.
    pub key: u32,
    /// The number among those of its sender, 24 bits. Nobody checks it.
    pub sequence: u32,
    /// The receiver is to raise a solicited event.
    pub solicited: bool,
    /// Immediate data.
    pub immediate: Option<u32>,
}

impl Header {
    /// Octets of UDP's header and all that follows it, with so many octets of payload.
    pub const fn datagram_len(&self, payload_len: usize) -> usize {
        self.payload_at() + payload_len + padding(payload_len) + ICRC_LEN
    }

    /// Octets in front of the payload, from UDP's header on.
    pub(crate) const fn payload_at(&self) -> usize {
        HEADERS_LEN + if self.immediate.is_some() { IMMEDIATE_LEN } else { 0 }
    }

    /// Writes the headers, from UDP's on, to the start of `out`, which is as long as the datagram.
    pub(crate) fn emit(&self, out: &mut [u8], payload_len: usize) {
        let (headers, rest) = out.split_at_mut(self.payload_at());
        let flow = (self.source ^ self.destination) as u16 & !FIRST_SOURCE_PORT;
        put_u16(headers, 0, FIRST_SOURCE_PORT | flow);
        put_u16(headers, 2, PORT);
        put_u16(headers, 4, self.datagram_len(payload_len) as u16);
        put_u16(headers, 6, 0);
        let opcode = if self.immediate.is_some() { SEND_IMMEDIATE } else { SEND };
        headers[8] = opcode;
        headers[9] = u8::from(self.solicited) << 7 | (padding(payload_len) as u8) << 4;
        put_u16(headers, 10, PARTITION);
        put_u32(headers, 12, self.destination & NUMBER);
        put_u32(headers, 16, self.sequence & NUMBER);
        put_u32(headers, 20, self.key);
        put_u32(headers, 24, self.source & NUMBER);
        if let Some(data) = self.immediate {
            put_u32(headers, HEADERS_LEN, data);
        }
        rest[payload_len..].fill(0);
    }
}

/// Octets that fill a payload up to a multiple of four.
const fn padding(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// Octets of a packet's IP header, if UDP follows it without options or extension headers.
fn ip_len(packet: &[u8]) -> Option<usize> {
    match packet.first()? {
        0x45 => (*packet.get(9)? == PROTOCOL).then_some(ipv4::HEADER_LEN),
        first if first >> 4 == 6 => (*packet.get(6)? == PROTOCOL).then_some(ipv6::HEADER_LEN),
        _ => None,
    }
}

/// Whether an IP packet without fragments is one of RoCE v2.
pub fn is_in(packet: &[u8]) -> bool {
    let port = ip_len(packet).and_then(|at| packet.get(at + 2..at + 4));
    port.is_some_and(|port| u16_at(port, 0) == PORT)
}

/// The queue pairs that a datagram's IP packet, which may be followed by the frame's padding, is from and for. `None`:
/// it is no such datagram. Lengths, key and CRC are not looked at.
pub fn ends(packet: &[u8]) -> Option<(u32, u32)> {
    let headers: &[u8; HEADERS_LEN] = packet.get(ip_len(packet)?..)?.first_chunk()?;
    let is_one = u16_at(headers, 2) == PORT && matches!(headers[8], SEND | SEND_IMMEDIATE);
    is_one.then(|| (u32_at(headers, 24) & NUMBER, u32_at(headers, 12) & NUMBER))
}

/// Reads the datagram of a whole IP packet; gives what it says, and its payload.
///
/// # Errors
/// [`WireError::Datagram`] for a packet that is not one, or whose lengths disagree; [`WireError::InvariantCrc`].
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), WireError> {
    const NONE: WireError = WireError::Datagram;
    let ip_len = ip_len(packet).ok_or(NONE)?;
    let datagram = packet.get(ip_len..).ok_or(NONE)?;
    let headers: &[u8; HEADERS_LEN] = datagram.first_chunk().ok_or(NONE)?;
    let has_immediate = headers[8] == SEND_IMMEDIATE;
    let is_one = u16_at(headers, 2) == PORT
        && usize::from(u16_at(headers, 4)) == datagram.len()
        && matches!(headers[8], SEND | SEND_IMMEDIATE)
        // The version of the transport's headers.
        && headers[9] & 0xf == 0
        && u16_at(headers, 10) | FULL_MEMBER == PARTITION;
    if !is_one {
        return Err(NONE);
    }
    let header = Header {
        destination: u32_at(headers, 12) & NUMBER,
        source: u32_at(headers, 24) & NUMBER,
        key: u32_at(headers, 20),
        sequence: u32_at(headers, 16) & NUMBER,
        solicited: headers[9] & 0x80 != 0,
        immediate: match datagram.get(HEADERS_LEN..).and_then(<[u8]>::first_chunk) {
            Some(data) if has_immediate => Some(u32::from_be_bytes(*data)),
            None if has_immediate => return Err(NONE),
            _ => None,
        },
    };
    let behind = usize::from(headers[9] >> 4 & 3) + ICRC_LEN;
    let end = datagram.len().checked_sub(behind).filter(|end| *end >= header.payload_at()).ok_or(NONE)?;
    if icrc(packet, ip_len) != packet.last_chunk().map(|octets| u32::from_le_bytes(*octets)) {
        return Err(WireError::InvariantCrc);
    }
    Ok((header, &datagram[header.payload_at()..end]))
}

/// Writes the CRC of a packet, IP headers included, that is complete but for that.
pub(crate) fn seal(packet: &mut [u8]) {
    let crc = ip_len(packet).and_then(|ip_len| icrc(packet, ip_len));
    if let (Some(crc), Some(place)) = (crc, packet.last_chunk_mut()) {
        *place = crc.to_le_bytes();
    }
}

/// The CRC of a packet: over all of it but the last four octets, with ones for what routers may change, and behind
/// eight octets of ones in place of InfiniBand's link header.
fn icrc(packet: &[u8], ip_len: usize) -> Option<u32> {
    const MOST: usize = 8 + ipv6::HEADER_LEN + UDP_LEN + BTH_LEN;
    let covered = packet.len().checked_sub(ICRC_LEN)?;
    let first = ip_len + UDP_LEN + BTH_LEN;
    let mut masked = [0xff; MOST];
    let headers = masked.get_mut(8..8 + first)?;
    headers.copy_from_slice(packet[..covered].get(..first)?);
    if ip_len == ipv4::HEADER_LEN {
        // Service class, hops left, checksum.
        headers[1] = 0xff;
        headers[8] = 0xff;
        headers[10..12].fill(0xff);
    } else {
        // Traffic class and flow label, hops left.
        headers[0] |= 0x0f;
        headers[1..4].fill(0xff);
        headers[7] = 0xff;
    }
    // UDP's checksum, and the octet of BTH for congestion.
    headers[ip_len + 6..ip_len + 8].fill(0xff);
    headers[ip_len + UDP_LEN + 4] = 0xff;
    Some(!crc32(crc32(u32::MAX, &masked[..8 + first]), &packet[first..covered]))
}

/// Tables of Ethernet's CRC for eight octets at a time: the first is for one octet, each further one for that octet
/// with one more octet of zeroes behind it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    /// The polynomial, the highest power in the lowest bit.
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut tables = [[0; 256]; 8];
    let mut octet = 0;
    while octet < 256 {
        let mut register = octet as u32;
        let mut bit = 0;
        while bit < 8 {
            register = register >> 1 ^ if register & 1 != 0 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][octet] = register;
        octet += 1;
    }
    let mut place = 1;
    while place < 8 {
        let mut octet = 0;
        while octet < 256 {
            let before = tables[place - 1][octet];
            tables[place][octet] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            octet += 1;
        }
        place += 1;
    }
    tables
}

/// Continues the register of Ethernet's CRC over more octets.
fn crc32(mut register: u32, octets: &[u8]) -> u32 {
    let (words, rest) = octets.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(register);
        register = 0;
        for (place, octet) in word.to_le_bytes().into_iter().enumerate() {
            register ^= TABLES[7 - place][usize::from(octet)];
        }
    }
    for octet in rest {
        register = register >> 8 ^ TABLES[0][usize::from(register as u8 ^ octet)];
    }
    register
}
