//! Segments that are alike, one after the other: the short functions do what the general ones do.

use proptest::prelude::*;
use uwarp_tcp::{BufferToken, Config, Connection, Ecn, Instant, Transmit, UsualSegment};
use uwarp_wire::tcp::SeqNumber;

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Both ends of an open connection.
fn open(config: &Config) -> [Connection; 2] {
    let mut active = Connection::connect(config, SeqNumber(0xffff_f000), NOW);
    let syn = active.poll_transmit(NOW).expect("a SYN").header;
    let mut passive = Connection::accept(config, &syn, SeqNumber(7), NOW);
    let answer = passive.poll_transmit(NOW).expect("a SYN with ACK").header;
    active.on_segment(NOW, &answer, 0, 0, BufferToken(0));
    let ack = active.poll_transmit(NOW).expect("an ACK").header;
    passive.on_segment(NOW, &ack, 0, 0, BufferToken(0));
    [active, passive]
}

/// All that may leave now.
fn sent(connection: &mut Connection, alike: bool) -> Vec<Transmit> {
    let mut all = Vec::new();
    loop {
        if alike && let Some((mut segment, slice)) = connection.next_fresh(NOW) {
            all.push(Transmit::fresh(&segment, slice));
            let mut room = connection.room_for_alike(&segment);
            while let Some(slice) = connection.next_alike(NOW, &mut segment, &mut room) {
                all.push(Transmit::fresh(&segment, slice));
            }
        }
        match connection.poll_transmit(NOW) {
            Some(transmit) => all.push(transmit),
            None => return all,
        }
    }
}

/// Takes segments in one turn.
fn receive(connection: &mut Connection, segments: &[Transmit], alike: bool) {
    let mut last: Option<UsualSegment> = None;
    for transmit in segments {
        let header = &transmit.header;
        let len = transmit.payload.map_or(0, |slice| slice.len);
        let segment = UsualSegment {
            flags: uwarp_wire::tcp::TcpFlags::ACK,
            sequence: header.sequence,
            acknowledgment: header.acknowledgment,
            window: header.window,
            timestamps: header.options.timestamps,
            ecn: transmit.ecn,
            len,
        };
        let is_alike = alike && last.is_some_and(|last| segment.is_alike(&last));
        if is_alike && connection.on_alike_segment(NOW, &segment) {
            continue;
        }
        last = Some(segment);
        if connection.on_usual_segment_apart(NOW, &segment).is_none() {
            last = None;
            connection.on_segment(NOW, header, len, transmit.ecn, BufferToken(0));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn segments_that_are_alike_take_the_short_functions_and_nothing_else_changes(
        lengths in prop::collection::vec(prop_oneof![1u32..200, 1u32..4000, Just(1448)], 1..24),
        window in prop_oneof![2_000u32..40_000, Just(1 << 20)],
        initial_window_segments in 1u32..40,
        flags in any::<[bool; 4]>(),
        lost in prop::option::of(0usize..24),
    ) {
        let [timestamps, nagle, ecn, sack] = flags;
        let ecn = if ecn { Ecn::Offer } else { Ecn::Off };
        let config = Config {
            receive_window: window, initial_window_segments, timestamps, nagle, ecn, sack, ..Config::default()
        };
        let (mut general, mut short) = (open(&config), open(&config));
        // Responses make the next round's windows and acknowledgments differ from those of the first.
        for round in 0..3 {
            let sender = round % 2;
            for (number, length) in lengths.iter().enumerate() {
                for ends in [&mut general, &mut short] {
                    ends[sender].push(BufferToken(number as u32), *length);
                }
            }
            let (mut segments, others) = (sent(&mut general[sender], false), sent(&mut short[sender], true));
            prop_assert_eq!(&segments, &others);
            prop_assert_eq!(format!("{:?}", general[sender]), format!("{:?}", short[sender]));
            if let Some(lost) = lost.filter(|lost| *lost < segments.len()) {
                segments.remove(lost);
            }
            receive(&mut general[1 - sender], &segments, false);
            receive(&mut short[1 - sender], &segments, true);
            prop_assert_eq!(format!("{:?}", general[1 - sender]), format!("{:?}", short[1 - sender]));
        }
    }
}
