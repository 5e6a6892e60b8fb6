//! Packet capture in the pcap format.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use uwarp_tcp::Instant;

use crate::api::command::ControlError;
use crate::link::port::Buffer;

/// A file that every frame is written to.
pub(super) struct Capture {
    writer: PcapWriter<BufWriter<File>>,
    /// Wall clock time of the engine's time zero.
    origin: Duration,
    /// Frames at the head of the transmit queue that were written already but not taken by the device yet.
    pub(super) written_ahead: usize,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Capture")
    }
}

impl Capture {
    pub(super) fn open(path: &Path, now: Instant) -> Result<Capture, ControlError> {
        let failed = |cause: String| ControlError::File { path: path.to_owned(), cause };
        let file = File::create(path).map_err(|error| failed(error.to_string()))?;
        let header = PcapHeader {
            version_major: 2,
            version_minor: 4,
            ts_correction: 0,
            ts_accuracy: 0,
            snaplen: 65_535,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::native(),
        };
        let writer = PcapWriter::with_header(BufWriter::with_capacity(1 << 20, file), header)
            .map_err(|error| failed(error.to_string()))?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = wall.saturating_sub(Duration::from_nanos(now.as_nanos()));
        Ok(Capture { writer, origin, written_ahead: 0 })
    }

    pub(super) fn write<B: Buffer>(&mut self, frame: &B, now: Instant) {
        let timestamp = self.origin + Duration::from_nanos(now.as_nanos());
        let length = frame.total_len() as u32;
        let result = if frame.segment_count() == 1 {
            self.writer.write_packet(&PcapPacket::new(timestamp, length, frame.data()))
        } else {
            let parts = (0..frame.segment_count()).filter_map(|index| frame.segment(index));
            let octets: Vec<u8> = parts.flatten().copied().collect();
            self.writer.write_packet(&PcapPacket::new(timestamp, length, &octets))
        };
        // A full disk ends the capture silently: the packet path cannot report it.
        let _ = result;
    }
}
