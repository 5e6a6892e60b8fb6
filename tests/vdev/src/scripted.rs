//! A peer that violates the rules: it writes RDMA Sends by hand to a plain TCP stream, and reads nothing until the test
//! wants it.
//!
//! The frames follow RFC 5044, 5041 and 5040 alone. The stream's window is the smallest possible, so what the other
//! side sends is soon stuck.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use uwarp::{Context, TcpStream, TcpStreamOptions};

use crate::PATIENCE;

/// Octets of an MPA start-up frame without private data (RFC 5044 §7.1.1).
const STARTUP: usize = 20;

/// The peer, in full operation.
#[derive(Debug)]
pub struct Scripted {
    stream: TcpStream,
    /// Number of the last message (RFC 5041 §4.2); the first one is 1.
    last: u32,
    /// Octets read in full operation.
    read: u64,
}

impl Scripted {
    /// Connects and completes MPA start-up. Turns an inline engine.
    pub fn connect(context: &Context, server: SocketAddr, private_data: &[u8]) -> Self {
        let options = TcpStreamOptions { receive_buffer: 4096, ..TcpStreamOptions::default() };
        let start = Instant::now();
        let mut stream = loop {
            match TcpStream::connect_with(context, server, &options) {
                Ok(stream) => break stream,
                // The device may still be connecting to its peer.
                Err(error) if start.elapsed() < PATIENCE => eprintln!("tries again: {error}"),
                Err(error) => panic!("{error}: {:#?}", context.stats()),
            }
        };
        stream.set_read_timeout(Some(PATIENCE));
        // CRC, and revision 1.
        let length = u16::try_from(private_data.len()).expect("private data is short");
        let request = [b"MPA ID Req Frame", &[0x40, 1][..], &length.to_be_bytes(), private_data].concat();
        stream.write_all(&request).expect("room for the Request");
        let mut reply = [0; STARTUP];
        stream.read_exact(&mut reply).expect("a Reply");
        assert_eq!((&reply[..16], reply[16] & 0x20), (&b"MPA ID Rep Frame"[..], 0), "a Reply that is no rejection");
        let mut private_data = vec![0; usize::from(u16::from_be_bytes([reply[18], reply[19]]))];
        stream.read_exact(&mut private_data).expect("the Reply's private data");
        Self { stream, last: 0, read: 0 }
    }

    /// Sends a message of one segment, without reading anything from the other side. Returns whether the connection
    /// still accepts it.
    pub fn send(&mut self, message: &[u8]) -> bool {
        self.last += 1;
        // DDP: untagged, last segment, queue 0. RDMAP: Send.
        let header = [&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0][..], &self.last.to_be_bytes(), &[0; 4]].concat();
        let length = u16::try_from(header.len() + message.len()).expect("a message of one segment");
        let mut frame = [&length.to_be_bytes(), &header[..], message].concat();
        frame.resize(frame.len().next_multiple_of(4), 0);
        let crc = crc32c::crc32c(&frame);
        frame.extend_from_slice(&crc.to_le_bytes());
        self.stream.write_all(&frame).is_ok()
    }

    /// Repeats a message, up to `count` times while the connection accepts it; returns how often. It is slow enough for
    /// a server that posts its receives again: a server that runs out of them would disconnect this peer.
    pub fn flood(&mut self, message: &[u8], count: usize) -> usize {
        let paced = |_: &usize| {
            std::thread::sleep(Duration::from_millis(1));
            self.send(message)
        };
        (0..count).take_while(paced).count()
    }

    /// Reads until this many octets have been read since start-up.
    pub fn read_up_to(&mut self, octets: u64) {
        let mut room = [0; 4096];
        while self.read < octets {
            let length = self.stream.read(&mut room).expect("the other side goes on");
            assert!(length > 0, "the other side ends the stream");
            self.read += length as u64;
        }
    }
}
