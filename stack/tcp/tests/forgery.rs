//! Segments of an attacker who knows the endpoints and guesses the numbers. Exactly what RFC 5961 accepts is accepted.
//! A forger's chance per segment is 1 in 2^32 for a reset and none for a SYN. For data it is the receive window's share
//! of the numbers times that of the acceptable acknowledgments.

use uwarp_tcp::{BufferToken, Config, Connection, DropReason, Instant, Payload, State};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader, Timestamps};

const OUR_ISN: SeqNumber = SeqNumber(0xffff_fc00);
const PEER_ISN: SeqNumber = SeqNumber(0xffff_f000);
/// The window that we offer.
const WINDOW: i64 = 5000;
/// The window that the peer offers.
const PEER_WINDOW: u16 = 8000;
/// The peer's timestamps.
const PEER_CLOCK: u32 = 7000;
/// Octets in flight.
const FLIGHT: i64 = 3000;

fn now() -> Instant {
    Instant::from_nanos(9_000_000_000)
}

fn header(flags: TcpFlags, sequence: i64, acknowledgment: i64) -> TcpHeader {
    let mut header = TcpHeader::new(flags);
    header.sequence = SeqNumber(PEER_ISN.0.wrapping_add(1).wrapping_add(sequence as u32));
    header.acknowledgment = SeqNumber(OUR_ISN.0.wrapping_add(1).wrapping_add(acknowledgment as u32));
    header.window = PEER_WINDOW;
    header
}

/// An open connection with [`FLIGHT`] octets in flight; RCV.NXT and SND.UNA are 0 in the numbers of [`header`].
fn open(challenges: u32) -> Connection {
    open_with(challenges, false)
}

/// The same, with or without timestamps; the peer's clock is at [`PEER_CLOCK`].
fn open_with(challenges: u32, timestamps: bool) -> Connection {
    let config = Config {
        timestamps,
        window_scale: false,
        keep_alive: None,
        receive_window: WINDOW as u32,
        challenge_acks: challenges,
        ..Config::default()
    };
    let stamp = timestamps.then_some(Timestamps { value: PEER_CLOCK, echo: 0 });
    let mut syn = header(TcpFlags::SYN, -1, 0);
    syn.options.mss = Some(1000);
    syn.options.timestamps = stamp;
    let mut connection = Connection::accept(&config, &syn, OUR_ISN, now());
    connection.poll_transmit(now()).expect("a SYN with ACK");
    let mut third = header(TcpFlags::ACK, 0, 0);
    third.options.timestamps = stamp;
    connection.on_segment(now(), &third, 0, 0, BufferToken(0));
    for token in 0..3 {
        connection.push(BufferToken(token), 1000);
    }
    while connection.poll_transmit(now()).is_some() {}
    assert_eq!((connection.state(), i64::from(connection.info().in_flight)), (State::Established, FLIGHT));
    connection
}

/// Every border of a window, its neighbours, and many numbers in between and far away.
fn numbers(borders: &[i64], seed: u64) -> Vec<i64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut numbers: Vec<i64> = borders.iter().flat_map(|border| border - 3..border + 4).collect();
    numbers.extend((0..200).map(|_| random.i64(-20_000..20_000)));
    numbers.extend((0..200).map(|_| i64::from(random.i32(..))));
    numbers.extend([i64::from(i32::MIN), i64::from(i32::MIN) + 1, i64::from(i32::MAX)]);
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[test]
fn reset_needs_the_one_right_number() {
    let mut taken = 0;
    for sequence in numbers(&[0, WINDOW], 1) {
        for flags in [TcpFlags::RST, TcpFlags::RST | TcpFlags::ACK] {
            let mut connection = open(100);
            let received = connection.on_segment(now(), &header(flags, sequence, 0), 0, 0, BufferToken(0));
            let answered = connection.poll_transmit(now()).is_some();
            if sequence == 0 {
                // RFC 5961 §3.2 (2).
                assert_eq!((connection.state(), answered), (State::Closed, false));
                taken += 1;
                continue;
            }
            assert_eq!(connection.state(), State::Established, "{sequence}");
            // RFC 5961 §3.2 (3) inside the window, (1) outside.
            let inside = (0..=WINDOW).contains(&sequence);
            let reason = if inside { DropReason::ResetChallenged } else { DropReason::ResetInvalid };
            assert_eq!((received.drop, answered), (Some(reason), inside), "{sequence}");
        }
    }
    assert_eq!(taken, 2);
}

#[test]
fn syn_is_never_taken() {
    for sequence in numbers(&[0, WINDOW, -1], 2) {
        for flags in [TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK, TcpFlags::SYN | TcpFlags::FIN] {
            // None, an old one, the last one, a new one.
            for value in [None, Some(PEER_CLOCK - 1), Some(PEER_CLOCK), Some(PEER_CLOCK + 1)] {
                for timestamps in [false, true] {
                    let mut connection = open_with(100, timestamps);
                    let mut segment = header(flags, sequence, 0);
                    segment.options.timestamps = value.map(|value| Timestamps { value, echo: 0 });
                    let received = connection.on_segment(now(), &segment, 7, 0, BufferToken(0));
                    // RFC 5961 §4.2: challenged whatever its number and timestamp.
                    assert_eq!(
                        (received.drop, received.payload),
                        (Some(DropReason::SynChallenged), Payload::Discarded)
                    );
                    let answer = connection.poll_transmit(now()).expect("a challenge").header;
                    assert_eq!((answer.flags, answer.acknowledgment), (TcpFlags::ACK, PEER_ISN + 1));
                    assert_eq!(connection.state(), State::Established);
                }
            }
        }
    }
}

#[test]
fn data_needs_both_numbers_inside_their_windows() {
    let len = 10;
    let oldest = -i64::from(PEER_WINDOW);
    for sequence in numbers(&[-i64::from(len), 0, WINDOW], 3).into_iter().step_by(3) {
        for acknowledgment in numbers(&[oldest, 0, FLIGHT], 4).into_iter().step_by(3) {
            let mut connection = open(100);
            let segment = header(TcpFlags::ACK, sequence, acknowledgment);
            let received = connection.on_segment(now(), &segment, len, 0, BufferToken(9));
            // RFC 9293 §3.10.7.4, first check; RFC 5961 §5.2: SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT.
            let fits = sequence + i64::from(len) > 0 && sequence < WINDOW;
            let acknowledges = (oldest..=FLIGHT).contains(&acknowledgment);
            let taken = matches!(received.payload, Payload::InOrder { .. } | Payload::Held);
            assert_eq!(taken, fits && acknowledges, "{sequence} {acknowledgment}: {received:?}");
            let progress = if taken { acknowledgment.max(0) } else { 0 };
            assert_eq!(connection.octets_acknowledged() as i64, progress, "{sequence} {acknowledgment}");
            connection.check();
        }
    }
}

/// RFC 5961 §7: however many segments are forged, the answers in a second are bounded.
#[test]
fn challenges_are_bounded() {
    let mut connection = open(10);
    let mut random = fastrand::Rng::with_seed(5);
    let mut answers = 0;
    for _ in 0..10_000 {
        let sequence = i64::from(random.i32(..));
        let flags = [TcpFlags::RST, TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK, TcpFlags::ACK][random.usize(..4)];
        if flags == TcpFlags::RST && sequence == 0 {
            continue;
        }
        connection.on_segment(now(), &header(flags, sequence, i64::from(random.i32(..))), 0, 0, BufferToken(0));
        while connection.poll_transmit(now()).is_some() {
            answers += 1;
        }
    }
    assert_eq!((connection.state(), answers), (State::Established, 10));
}

/// A forger that hits a valid number can add octets of its own ahead of a gap. Octets that arrived first are kept, and
/// octets handed out are unchanged (RFC 9293 §3.10.7.4, seventh check).
#[test]
fn what_came_first_is_not_overwritten() {
    let mut connection = open(100);
    let mut token = 0;
    let mut segment = |connection: &mut Connection, sequence: i64, len: u32| {
        token += 1;
        connection.on_segment(now(), &header(TcpFlags::ACK, sequence, 0), len, 0, BufferToken(token)).payload
    };
    assert_eq!(segment(&mut connection, 100, 100), Payload::Held);
    // Whole, to the left, to the right, around.
    assert_eq!(segment(&mut connection, 100, 100), Payload::Discarded);
    assert_eq!(segment(&mut connection, 50, 100), Payload::Held);
    assert_eq!(segment(&mut connection, 150, 100), Payload::Held);
    assert_eq!(segment(&mut connection, 0, 50), Payload::InOrder { skip: 0, len: 50 });
    let mut pieces = Vec::new();
    while let Some(held) = connection.take_in_order() {
        pieces.push((held.token.0, held.skip, held.len));
    }
    assert_eq!(pieces, [(3, 0, 50), (1, 0, 100), (4, 50, 50)]);
    // All of it again, and longer: only the new octets are accepted.
    assert_eq!(segment(&mut connection, 0, 260), Payload::InOrder { skip: 250, len: 10 });
}
