//! Records that leave in frames which the device cuts into segments.

use uwarp_tcp::{BufferToken, Config, Connection, Instant, Slice};
use uwarp_wire::tcp::SeqNumber;

const NOW: Instant = Instant::from_nanos(1_000_000_000);
/// Octets of a segment that the device cuts.
const PIECE: u32 = 1000;

/// One end of an open connection that has sent a frame of so many octets, and the sequence number of that.
fn sent(octets: u32) -> (Connection, SeqNumber) {
    let config = Config::default();
    let mut connection = Connection::connect(&config, SeqNumber(100), NOW);
    let syn = connection.poll_transmit(NOW).expect("a SYN").header;
    let mut peer = Connection::accept(&config, &syn, SeqNumber(7), NOW);
    let answer = peer.poll_transmit(NOW).expect("a SYN with ACK").header;
    connection.on_segment(NOW, &answer, 0, 0, BufferToken(0));
    connection.leave_in_frames(6 * PIECE, PIECE);
    connection.push(BufferToken(5), octets);
    let frame = connection.poll_transmit(NOW).expect("a frame");
    assert_eq!(frame.payload.map(|slice| slice.len), Some(octets));
    assert!(connection.poll_transmit(NOW).is_none());
    (connection, frame.header.sequence)
}

/// RFC 8985 §7.3: the probe is the last segment. An acknowledgment that skips the others then shows what was lost.
#[test]
fn the_tail_loss_probe_of_a_frame_is_its_last_segment() {
    for (octets, from) in [(4500, 4000), (4000, 3000), (1500, 1000)] {
        let (mut connection, start) = sent(octets);
        let due = connection.deadline().expect("a timer for the probe");
        connection.on_deadline(due);
        assert_eq!(connection.info().counters.tail_loss_probes, 0);
        let probe = connection.poll_transmit(due).expect("a probe");
        let slice = Slice { token: BufferToken(5), offset: from, len: octets - from, whole_first_transmission: false };
        assert_eq!((probe.payload, probe.retransmission), (Some(slice), true));
        assert_eq!(probe.header.sequence, start + from);
        let info = connection.info();
        assert_eq!((info.counters.tail_loss_probes, info.counters.timeouts, info.in_flight), (1, 0, octets));
        assert!(connection.poll_transmit(due).is_none());
    }
}
