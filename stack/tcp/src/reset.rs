//! The answer to a segment that belongs to no connection.

use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

/// The reset for a segment without a connection (RFC 9293 §3.10.7.1); `None` if the segment is itself a reset.
///
/// `payload_len` is the number of octets behind the header. The ports come out exchanged, ready to send.
pub fn reset_for(header: &TcpHeader, payload_len: u32) -> Option<TcpHeader> {
    if header.flags.contains(TcpFlags::RST) {
        return None;
    }
    let mut reset = if header.flags.contains(TcpFlags::ACK) {
        let mut reset = TcpHeader::new(TcpFlags::RST);
        reset.sequence = header.acknowledgment;
        reset
    } else {
        let mut reset = TcpHeader::new(TcpFlags::RST | TcpFlags::ACK);
        reset.sequence = SeqNumber(0);
        reset.acknowledgment = header.sequence + header.segment_len(payload_len);
        reset
    };
    reset.source_port = header.destination_port;
    reset.destination_port = header.source_port;
    Some(reset)
}
