//! Answers to segments that belong to no connection: in CLOSED, and in LISTEN.

use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader};

/// How to answer a segment in LISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A connection ([`Connection::accept`](crate::Connection::accept)).
    Opens,
    /// Answer with this header, whose ports are exchanged and ready to send.
    Reset(TcpHeader),
    /// Nothing.
    Ignored,
}

/// Judges a segment that belongs to no connection but to a listening port (RFC 9293 §3.10.7.2).
///
/// `payload_len` is the number of octets behind the header. A SYN with a FIN is ignored, as Linux does. RFC 9293 would
/// process the FIN in SYN-RECEIVED, but such segments are sent to probe or bypass filters.
pub fn arrival_in_listen(header: &TcpHeader, payload_len: u32) -> Arrival {
    if header.flags.contains(TcpFlags::RST) {
        return Arrival::Ignored;
    }
    if header.flags.contains(TcpFlags::ACK) {
        return reset_for(header, payload_len).map_or(Arrival::Ignored, Arrival::Reset);
    }
    if header.flags.contains(TcpFlags::SYN) && !header.flags.contains(TcpFlags::FIN) {
        return Arrival::Opens;
    }
    Arrival::Ignored
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: TcpFlags) -> TcpHeader {
        let mut header = TcpHeader::new(flags);
        header.source_port = 1;
        header.destination_port = 2;
        header.sequence = SeqNumber(0xffff_fff0);
        header.acknowledgment = SeqNumber(77);
        header
    }

    #[test]
    fn without_ack_the_segment_is_acknowledged() {
        // RFC 9293 §3.10.7.1: <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>.
        let reset = reset_for(&segment(TcpFlags::SYN), 20).unwrap();
        assert_eq!(
            (reset.flags, reset.sequence, reset.acknowledgment),
            (TcpFlags::RST | TcpFlags::ACK, SeqNumber(0), SeqNumber(5))
        );
        assert_eq!((reset.source_port, reset.destination_port), (2, 1));
    }

    #[test]
    fn with_ack_its_number_is_used() {
        // RFC 9293 §3.10.7.1: <SEQ=SEG.ACK><CTL=RST>.
        let reset = reset_for(&segment(TcpFlags::ACK), 0).unwrap();
        assert_eq!((reset.flags, reset.sequence), (TcpFlags::RST, SeqNumber(77)));
    }

    #[test]
    fn reset_is_never_answered() {
        assert_eq!(reset_for(&segment(TcpFlags::RST), 0), None);
        assert_eq!(reset_for(&segment(TcpFlags::RST | TcpFlags::ACK), 0), None);
    }
}
