//! Packet capture in the pcapng format.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use uwarp_tcp::Instant;

/// Longest time for which a frame is in memory alone: a signal may end the process at any moment, such as when its peer
/// has just left.
const LATEST: Duration = Duration::from_millis(10);
/// Octets that are written at once, before that time.
const CHUNK: usize = 1 << 20;
/// Stands in a file's name for the number of the process.
const PROCESS: &[u8] = b"%p";

/// A file that every frame is written to.
pub(super) struct Capture {
    file: File,
    /// Whole blocks that the file does not have yet.
    blocks: PcapNgWriter<Vec<u8>>,
    /// When they are written at the latest, if there are any.
    pub(super) due: Option<Instant>,
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
    /// A capture at `path`, or why there can be none. See [`open_own`].
    pub(super) fn open(path: &Path, now: Instant) -> Result<Capture, String> {
        let file = open_own(path).map_err(|error| error.to_string())?;
        let blocks = header().map_err(|error| error.to_string())?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = wall.saturating_sub(Duration::from_nanos(now.as_nanos()));
        Ok(Capture { file, blocks, due: Some(now), origin, written_ahead: 0, has_failed: false })
    }

    /// Adds a frame of these parts.
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
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: self.origin + Duration::from_nanos(now.as_nanos()),
            original_len: whole.len() as u32,
            data: whole,
            options: Vec::new(),
        };
        let added = self.blocks.write_pcapng_block(block);
        debug_assert!(added.is_ok(), "memory takes every block");
        self.due.get_or_insert(now + LATEST);
        if self.blocks.get_ref().len() >= CHUNK {
            self.flush();
        }
    }

    /// Writes what has waited long enough.
    pub(super) fn flush_if_due(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.flush();
        }
    }

    /// Writes whole blocks only, so that the file can be read whenever the process ends.
    fn flush(&mut self) {
        self.due = None;
        let blocks = self.blocks.get_mut();
        if let Err(error) = self.file.write_all(blocks)
            && !self.has_failed
        {
            self.has_failed = true;
            tracing::warn!(%error, "the capture ends here");
        }
        blocks.clear();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What a file begins with.
fn header() -> Result<PcapNgWriter<Vec<u8>>, PcapError> {
    let mut blocks = PcapNgWriter::new(Vec::new())?;
    // Times in units of 10^-9 s. A frame that the device is to segment may be longer than a packet of IP.
    let options = vec![InterfaceDescriptionOption::IfTsResol(9)];
    blocks.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 1 << 18, options })?;
    Ok(blocks)
}

/// Opens the file of a capture, and empties it. `%p` in its name becomes the number of this process. If another capture
/// is being written to the file, the number goes behind the name instead: `NAME-PID.EXTENSION`.
fn open_own(path: &Path) -> io::Result<File> {
    let path = with_process(path);
    match open_locked(&path)? {
        Some(file) => Ok(file),
        None => {
            let own = beside(&path);
            tracing::info!("another capture is written to {}, so this one is {}", path.display(), own.display());
            open_locked(&own)?.ok_or_else(|| {
                io::Error::other(format!("it and {} are other captures' files: name another one", own.display()))
            })
        }
    }
}

/// The path with this process's number for each `%p` in the file's name.
fn with_process(path: &Path) -> PathBuf {
    let Some(name) = path.file_name() else { return path.to_owned() };
    let (mut rest, mut made) = (name.as_bytes(), Vec::new());
    while let Some((first, behind)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(PROCESS) {
            made.extend_from_slice(std::process::id().to_string().as_bytes());
            rest = behind;
        } else {
            made.push(*first);
            rest = behind;
        }
    }
    path.with_file_name(OsString::from_vec(made))
}

/// `NAME-PID.EXTENSION` beside `NAME.EXTENSION`.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Opens a file that is this capture's until it is closed, and empties it. `None` if it is another's.
fn open_locked(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    // A pipe or a terminal, say, may have many writers.
    if file.metadata()?.is_file() {
        // Some file systems have no locks: a file there is taken for free.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Ok(None);
        }
        file.set_len(0)?;
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames in a file.
    fn frames(path: &Path) -> Vec<Vec<u8>> {
        let file = File::open(path).expect("the capture");
        let mut reader = pcap_file::pcapng::PcapNgReader::new(file).expect("a section");
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            frames.extend(block.expect("a whole block").into_enhanced_packet().map(|packet| packet.data.into_owned()));
        }
        frames
    }

    #[test]
    fn a_full_disk_ends_the_capture() {
        let mut capture = Capture::open(Path::new("/dev/full"), Instant::ZERO).expect("it can be opened");
        let frame = [0; 1500];
        for written in 0..2000 {
            capture.write(std::iter::once(&frame[..]), Instant::ZERO);
            assert!(capture.blocks.get_ref().len() < CHUNK);
            assert_eq!(capture.has_failed, written >= CHUNK / 1532, "after {written}");
        }
    }

    #[test]
    fn a_frame_is_in_the_file_soon() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.pcap");
        let mut capture = Capture::open(&path, Instant::ZERO).expect("a file");
        capture.flush_if_due(Instant::ZERO + LATEST);
        assert!(frames(&path).is_empty(), "a capture without frames can be read");
        assert_eq!(capture.due, None, "nothing waits");
        let now = Instant::ZERO + Duration::from_secs(1);
        capture.write([&b"in "[..], b"parts"].into_iter(), now);
        capture.write(std::iter::once(&b"whole"[..]), now + LATEST / 2);
        capture.flush_if_due(now + LATEST / 2);
        assert!(frames(&path).is_empty());
        capture.flush_if_due(now + LATEST);
        assert_eq!(frames(&path), [&b"in parts"[..], b"whole"]);
        capture.write(std::iter::once(&b"last"[..]), now + LATEST);
        drop(capture);
        assert_eq!(frames(&path).len(), 3);
    }

    #[test]
    fn each_capture_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.b.pcapng");
        let open = |path: &Path, octets: &[u8]| {
            Capture::open(path, Instant::ZERO).map(|mut capture| {
                capture.write(std::iter::once(octets), Instant::ZERO);
                capture
            })
        };
        let first = open(&path, b"first").expect("a file");
        let second = open(&path, b"second").expect("another file");
        let third = open(&path, b"third").expect_err("both are in use");
        assert!(third.contains("name another one"), "{third}");
        drop((first, second));
        let own = folder.path().join(format!("a.b-{}.pcapng", std::process::id()));
        assert_eq!((frames(&path), frames(&own)), (vec![b"first".to_vec()], vec![b"second".to_vec()]));
        // Nobody writes to it any more.
        drop(open(&path, b"again").expect("the file"));
        assert_eq!(frames(&path), [b"again"]);
        drop(open(&folder.path().join("%p.%p%x"), b"named").expect("a file"));
        let number = std::process::id();
        assert_eq!(frames(&folder.path().join(format!("{number}.{number}%x"))), [b"named"]);
    }

    #[test]
    fn a_device_is_shared() {
        let captures = [(); 2].map(|()| Capture::open(Path::new("/dev/null"), Instant::ZERO));
        assert!(captures.iter().all(Result::is_ok));
    }
}
