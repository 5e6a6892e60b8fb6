//! Captures of engines, read back.

use std::fs::File;
use std::path::Path;

use pcap_file::pcapng::PcapNgReader;

/// The frames in a capture.
///
/// # Panics
/// The file is not there, is no capture, or ends within a block.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let file = File::open(path).expect("the capture");
    let mut reader = PcapNgReader::new(file).expect("the beginning of a capture");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Some(packet) = block.expect("a whole block").into_enhanced_packet() {
            assert_eq!(packet.data.len(), packet.original_len as usize, "a frame is captured whole");
            frames.push(packet.data.into_owned());
        }
    }
    frames
}
