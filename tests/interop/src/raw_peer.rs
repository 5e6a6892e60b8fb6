//! A peer that implements MPA, DDP and RDMAP octet by octet over a kernel socket.
//!
//! It is written from the documents alone and shares no codec with the stack, so that agreement means something: frames
//! are literals, and the CRC is the `crc32c` crate's.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{self, SendFlags};

/// Octets of an MPA Request or Reply frame in front of its private data (RFC 5044 §7.1).
const STARTUP_HEADER: usize = 20;

/// One received FPDU, with a valid CRC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ulpdu(pub Vec<u8>);

impl Ulpdu {
    /// The RDMAP opcode (RFC 5040 §4.1).
    pub fn opcode(&self) -> u8 {
        self.0[1] & 0x0f
    }

    /// Whether the segment is the last of its DDP message (RFC 5041 §4.1).
    pub fn is_last(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// Layer, error type and error code of a Terminate (RFC 5040 §4.8).
    pub fn terminate(&self) -> Option<(u8, u8, u8)> {
        (self.opcode() == 7).then(|| (self.0[18] >> 4, self.0[18] & 0x0f, self.0[19]))
    }

    /// The payload behind the 18-octet untagged or the 14-octet tagged DDP header.
    pub fn payload(&self) -> &[u8] {
        &self.0[if self.0[0] & 0x80 != 0 { 14 } else { 18 }..]
    }
}

/// The kernel socket and the state for framing on it.
pub struct RawPeer {
    stream: TcpStream,
}

impl RawPeer {
    /// Connects from the kernel's TCP; every later read times out after 20 s.
    pub fn connect(to: SocketAddr) -> io::Result<Self> {
        Self::from_stream(TcpStream::connect_timeout(&to, Duration::from_secs(20))?)
    }

    /// Takes an accepted connection.
    pub fn from_stream(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self { stream })
    }

    /// Sends octets as urgent data (RFC 9293 §3.8.5).
    pub fn send_urgent(&mut self, octets: &[u8]) -> io::Result<()> {
        let sent = net::send(&self.stream, octets, SendFlags::OOB)?;
        if sent == octets.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Sends octets as they are.
    pub fn send(&mut self, octets: &[u8]) -> io::Result<()> {
        self.stream.write_all(octets)
    }

    /// The socket, for shutting it down or reading unframed octets.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends an MPA Request of revision 2 that requests CRCs, with the enhanced data of RFC 6581 §9.
    pub fn send_request(&mut self, ird: u16, ord: u16, private_data: &[u8]) -> io::Result<()> {
        self.send(&startup_frame(b"MPA ID Req Frame", 0x50, 2, &enhanced(ird, ord, private_data)))
    }

    /// Sends an MPA Reply of revision 2 with CRC.
    pub fn send_reply(&mut self, ird: u16, ord: u16, private_data: &[u8]) -> io::Result<()> {
        self.send(&startup_frame(b"MPA ID Rep Frame", 0x50, 2, &enhanced(ird, ord, private_data)))
    }

    /// Reads an MPA Request or Reply: its flags, revision and private data (enhanced octets included).
    pub fn read_startup(&mut self) -> io::Result<(u8, u8, Vec<u8>)> {
        let mut header = [0; STARTUP_HEADER];
        self.stream.read_exact(&mut header)?;
        let mut private_data = vec![0; usize::from(u16::from_be_bytes([header[18], header[19]]))];
        self.stream.read_exact(&mut private_data)?;
        Ok((header[16], header[17], private_data))
    }

    /// Frames a ULPDU and sends it.
    pub fn send_ulpdu(&mut self, ulpdu: &[u8]) -> io::Result<()> {
        self.send(&fpdu(ulpdu))
    }

    /// Reads one FPDU and checks its CRC.
    pub fn read_ulpdu(&mut self) -> io::Result<Ulpdu> {
        let mut frame = vec![0; 2];
        self.stream.read_exact(&mut frame)?;
        let length = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
        let padded = (2 + length).next_multiple_of(4);
        frame.resize(padded + 4, 0);
        self.stream.read_exact(&mut frame[2..])?;
        let wire = u32::from_le_bytes(frame[padded..].try_into().expect("four octets"));
        if wire != crc32c::crc32c(&frame[..padded]) {
            return Err(io::Error::other("an FPDU with a bad CRC came from the stack under test"));
        }
        frame.truncate(2 + length);
        Ok(Ulpdu(frame.split_off(2)))
    }

    /// Waits for a while in which nothing may arrive.
    ///
    /// # Panics
    /// Something arrives, or the stream ends; the text says what.
    #[track_caller]
    pub fn expect_silence(&mut self, time: Duration) {
        let patience = self.stream.read_timeout().ok().flatten();
        let _ = self.stream.set_read_timeout(Some(time));
        let mut octets = [0; 256];
        match self.stream.peek(&mut octets) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Ok(length) => panic!("instead of silence came {:02x?}", &octets[..length]),
            Err(error) => panic!("instead of silence came: {error}"),
        }
        let _ = self.stream.set_read_timeout(patience);
    }

    /// Waits until the peer has closed its half properly: FIN, and no reset.
    ///
    /// # Panics
    /// Something else arrives, or nothing for too long; the text says what.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let mut octets = [0; 256];
        match self.stream.read(&mut octets) {
            Ok(0) => {}
            Ok(length) => panic!("instead of the end came {:02x?}", &octets[..length]),
            Err(error) => panic!("instead of the end came: {error}"),
        }
    }
}

fn enhanced(ird: u16, ord: u16, private_data: &[u8]) -> Vec<u8> {
    [&ird.to_be_bytes()[..], &ord.to_be_bytes(), private_data].concat()
}

/// An MPA start-up frame (RFC 5044 §7.1).
pub fn startup_frame(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(private_data.len()).expect("private data of a test is short");
    [&key[..], &[flags, revision], &length.to_be_bytes(), private_data].concat()
}

/// An FPDU around a ULPDU: length, padding, CRC with the least significant octet first (RFC 5044 §4).
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let length = u16::try_from(ulpdu.len()).expect("a ULPDU has at most 65535 octets");
    let mut frame = [&length.to_be_bytes()[..], ulpdu].concat();
    frame.resize(frame.len().next_multiple_of(4), 0);
    let crc = crc32c::crc32c(&frame);
    frame.extend_from_slice(&crc.to_le_bytes());
    frame
}

/// One direction of a stream with markers (RFC 5044 §4.3), following the text of the document.
#[derive(Debug, Default)]
pub struct Marking {
    /// Octets of full operation so far.
    position: usize,
}

impl Marking {
    /// The FPDU around a ULPDU.
    pub fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ulpdu.len()).expect("a ULPDU has at most 65535 octets");
        let mut words = [&length.to_be_bytes()[..], ulpdu].concat();
        words.resize(words.len().next_multiple_of(4), 0);
        let (mut out, mut start) = (Vec::new(), 0);
        let mut mark = |out: &mut Vec<u8>| {
            if (self.position + out.len()).is_multiple_of(512) {
                start = if out.is_empty() { 4 } else { start };
                let pointer = if out.is_empty() { 0 } else { out.len() - start };
                out.extend_from_slice(&(pointer as u32).to_be_bytes());
            }
        };
        for word in words.chunks(4) {
            mark(&mut out);
            out.extend_from_slice(word);
        }
        mark(&mut out);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        self.position += out.len();
        out
    }

    /// Reads an FPDU and checks its markers and its CRC.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<Ulpdu> {
        let (mut raw, mut words) = (Vec::new(), Vec::new());
        let (mut start, mut total) = (0, usize::MAX);
        loop {
            if (self.position + raw.len()).is_multiple_of(512) {
                let mut marker = [0; 4];
                from.read_exact(&mut marker)?;
                start = if raw.is_empty() { 4 } else { start };
                let expected = if raw.is_empty() { 0 } else { raw.len() - start };
                if u32::from_be_bytes(marker) as usize != expected {
                    return Err(io::Error::other(format!("a marker of {marker:x?} instead of {expected}")));
                }
                raw.extend_from_slice(&marker);
            }
            let mut word = [0; 4];
            from.read_exact(&mut word)?;
            if words.len() >= total {
                if u32::from_le_bytes(word) != crc32c::crc32c(&raw) {
                    return Err(io::Error::other("an FPDU with a bad CRC came from the stack under test"));
                }
                self.position += raw.len() + 4;
                let length = usize::from(u16::from_be_bytes([words[0], words[1]]));
                return Ok(Ulpdu(words[2..2 + length].to_vec()));
            }
            raw.extend_from_slice(&word);
            words.extend_from_slice(&word);
            let length = usize::from(u16::from_be_bytes([words[0], words[1]]));
            total = (2 + length).next_multiple_of(4);
        }
    }
}

/// A whole RDMA Write in one segment (RFC 5040 §4.3).
pub fn write(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&[0xc1, 0x40][..], &stag.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
}

/// A Read Response in one segment (RFC 5040 §4.5).
pub fn read_response(stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&[0xc1, 0x42][..], &stag.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
}

/// An untagged segment: DDP control with or without the last flag, the opcode, queue, sequence number, offset.
pub fn untagged(last: bool, opcode: u8, queue: u32, sequence: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    [
        &[if last { 0x41 } else { 0x01 }, 0x40 | opcode][..],
        &[0; 4],
        &queue.to_be_bytes(),
        &sequence.to_be_bytes(),
        &offset.to_be_bytes(),
        payload,
    ]
    .concat()
}

/// A whole Send in one segment (RFC 5040 §4.6).
pub fn send(sequence: u32, payload: &[u8]) -> Vec<u8> {
    untagged(true, 3, 0, sequence, 0, payload)
}

/// An Atomic Request (RFC 7306 §5.2.1): identifier, place, data, mask, compare data, compare mask.
pub fn atomic_request(sequence: u32, operation: u8, identifier: u32, at: (u32, u64), operands: [u64; 4]) -> Vec<u8> {
    let mut header = vec![0, 0, 0, operation];
    header.extend(identifier.to_be_bytes());
    header.extend(at.0.to_be_bytes());
    header.extend(at.1.to_be_bytes());
    header.extend(operands.iter().flat_map(|operand| operand.to_be_bytes()));
    untagged(true, 0xa, 1, sequence, 0, &header)
}

/// An Atomic Response (RFC 7306 §5.2.2).
pub fn atomic_response(sequence: u32, identifier: u32, original: u64) -> Vec<u8> {
    untagged(true, 0xb, 3, sequence, 0, &[&identifier.to_be_bytes()[..], &original.to_be_bytes()].concat())
}

/// Immediate Data (RFC 7306 §6).
pub fn immediate(sequence: u32, solicited: bool, data: u64) -> Vec<u8> {
    untagged(true, if solicited { 9 } else { 8 }, 0, sequence, 0, &data.to_be_bytes())
}

/// A Read Request (RFC 5040 §4.4).
pub fn read_request(sequence: u32, sink: (u32, u64), length: u32, source: (u32, u64)) -> Vec<u8> {
    let header = [
        &sink.0.to_be_bytes()[..],
        &sink.1.to_be_bytes(),
        &length.to_be_bytes(),
        &source.0.to_be_bytes(),
        &source.1.to_be_bytes(),
    ]
    .concat();
    untagged(true, 1, 1, sequence, 0, &header)
}
