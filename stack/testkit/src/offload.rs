//! What a device does to a frame that it is to finish: segments and checksums, from what the frame's headers and
//! [`TransmitChecksums`] say and nothing else.

use uwarp_wire::checksum::{append, combine, finish as complement, fold, sum};
use uwarp_wire::tcp::TcpFlags;

use uwarp_engine::port::TransmitChecksums;

/// Octets of a TCP header before the field.
const SEQUENCE: usize = 4;
const CONTROL: usize = 12;
const CHECKSUM: usize = uwarp_wire::tcp::CHECKSUM_OFFSET;

/// The frames that go out for one that `work` is to be done on.
pub(super) fn finish(frame: &[u8], work: TransmitChecksums) -> Vec<Vec<u8>> {
    let ip_at = usize::from(work.link_length);
    let tcp_at = ip_at + usize::from(work.ip_length);
    let payload_at = tcp_at + usize::from(work.tcp_length);
    let (headers, payload) = frame.split_at(payload_at);
    let is_ipv4 = headers[ip_at] >> 4 == 4;
    let size = if work.segment_size == 0 { payload.len().max(1) } else { usize::from(work.segment_size) };
    let count = payload.len().div_ceil(size).max(1);
    let segment = |number: usize| {
        let from = number * size;
        let piece = &payload[from..payload.len().min(from + size)];
        let mut out = headers.to_vec();
        let tcp_len = payload_at - tcp_at + piece.len();
        if work.segment_size > 0 {
            let ip_len = if is_ipv4 { payload_at - ip_at + piece.len() } else { tcp_len };
            let length_at = ip_at + if is_ipv4 { 2 } else { 4 };
            put(&mut out, length_at, ip_len as u16);
            let sequence = &mut out[tcp_at + SEQUENCE..tcp_at + SEQUENCE + 4];
            let number = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
            sequence.copy_from_slice(&number.wrapping_add(from as u32).to_be_bytes());
            if from + size < payload.len() {
                let control = get(&out, tcp_at + CONTROL) & !(TcpFlags::PSH | TcpFlags::FIN).bits();
                put(&mut out, tcp_at + CONTROL, control);
            }
        }
        if is_ipv4 && (work.ip || work.segment_size > 0) {
            put(&mut out, ip_at + 10, 0);
            let value = complement(sum(&out[ip_at..tcp_at]));
            put(&mut out, ip_at + 10, value);
        }
        // The field holds the sum of the pseudo-header, and is summed as such. A segment's has its own length in it.
        let whole_len = frame.len() - tcp_at;
        let mut partial = combine(sum(&out[tcp_at..]), u32::from(!fold(whole_len as u32)));
        partial = combine(partial, tcp_len as u32);
        partial = append(partial, payload_at - tcp_at, sum(piece));
        put(&mut out, tcp_at + CHECKSUM, !fold(partial));
        out.extend_from_slice(piece);
        out
    };
    (0..count).map(segment).collect()
}

fn get(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

fn put(octets: &mut [u8], at: usize, value: u16) {
    octets[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
