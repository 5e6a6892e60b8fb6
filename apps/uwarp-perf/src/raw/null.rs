//! The null protocol: what every octet of a Write costs, and nothing else. The sender copies, with the CRC32C in the
//! same pass, and computes the Internet checksum. The receiver verifies both before it places. The kernels are the
//! stack's.

use super::frames::{Geometry, HEADER, Header};
use anyhow::bail;
use uwarp_dpdk::Mbuf;
use uwarp_memory::kernels;

/// Octets of CRC and checksum, which stand in front of the payload.
const CHECKS: usize = 4 + 4;

/// The memory of one message.
pub fn memory(geometry: Geometry) -> Vec<u8> {
    (0..geometry.payload(geometry.count - 1).end).map(|octet| octet as u8).collect()
}

/// The value that shows whether the sum of a frame is right: kernels may give different sums that are congruent.
fn reduced(sum: u32) -> u32 {
    sum % 0xFFFF
}

/// Fills a frame behind its header from the message's memory.
#[inline]
pub fn fill(frame: &mut [u8], index: u32, geometry: Geometry, source: &[u8]) {
    let source = &source[geometry.payload(index)];
    let (checks, rest) = frame.split_at_mut(CHECKS);
    let payload = &mut rest[..source.len()];
    let crc = kernels::copy_crc32c(0, source, payload);
    checks[..4].copy_from_slice(&crc.to_le_bytes());
    checks[4..].copy_from_slice(&reduced(kernels::checksum_sum(payload)).to_le_bytes());
}

/// Verifies a frame, then places its payload.
///
/// # Errors
/// It is not what [`fill`] has written.
#[inline]
pub fn place(packet: &Mbuf, header: Header, geometry: Geometry, target: &mut [u8]) -> anyhow::Result<()> {
    let places = geometry.payload(header.index);
    let frame = packet.data();
    let end = HEADER + CHECKS + places.len();
    let (Some(checks), Some(payload)) = (frame[HEADER..].first_chunk::<CHECKS>(), frame.get(HEADER + CHECKS..end))
    else {
        bail!("frame {} of message {} is in pieces or too short", header.index, header.message);
    };
    let Some(target) = target.get_mut(places) else {
        bail!("message {} has no frame {}", header.message, header.index)
    };
    let [c0, c1, c2, c3, s0, s1, s2, s3] = *checks;
    let sum = reduced(kernels::checksum_sum(payload));
    let crc = kernels::crc32c_update(0, payload);
    if sum != u32::from_le_bytes([s0, s1, s2, s3]) || crc != u32::from_le_bytes([c0, c1, c2, c3]) {
        bail!("frame {} of message {} is damaged", header.index, header.message);
    }
    kernels::copy(payload, target);
    Ok(())
}
