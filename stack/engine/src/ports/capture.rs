//! Packet capture in the pcap format.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use uwarp_tcp::Instant;

/// A file that every frame is written to.
pub(super) struct Capture {
    writer: PcapWriter<BufWriter<File>>,
    /// Wall clock time of the engine's time zero.
    origin: Duration,
    /// Frames at the head of the transmit queue that were written already but not taken by the device yet.
    pub(super) written_ahead: usize,
    /// Writing has failed. What was written before can be read.
    has_failed: bool,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Capture")
    }
}

impl Capture {
    /// A new file at `path`, or why there can be none.
    pub(super) fn open(path: &Path, now: Instant) -> Result<Capture, String> {
        let file = File::create(path).map_err(|error| error.to_string())?;
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
            .map_err(|error| error.to_string())?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = wall.saturating_sub(Duration::from_nanos(now.as_nanos()));
        Ok(Capture { writer, origin, written_ahead: 0, has_failed: false })
    }

    /// Writes a frame of these parts.
    pub(super) fn write<'a>(&mut self, mut parts: impl Iterator<Item = &'a [u8]>, now: Instant) {
        if self.has_failed {
            return;
        }
        let (first, others) = (parts.next().unwrap_or_default(), parts.collect::<Vec<_>>());
        let whole = if others.is_empty() {
            Cow::Borrowed(first)
        } else {
            Cow::Owned([&[first], &others[..]].concat().concat())
        };
        let packet = PcapPacket::new(self.origin + Duration::from_nanos(now.as_nanos()), whole.len() as u32, &whole);
        if let Err(error) = self.writer.write_packet(&packet) {
            self.has_failed = true;
            tracing::warn!(%error, "the capture ends here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_ends_the_capture() {
        let mut capture = Capture::open(Path::new("/dev/full"), Instant::ZERO).expect("it can be opened");
        let frame = [0; 1500];
        for written in 0..2000 {
            capture.write(std::iter::once(&frame[..]), Instant::ZERO);
            assert_eq!(capture.has_failed, written >= (1 << 20) / 1516, "after {written}");
        }
    }
}
