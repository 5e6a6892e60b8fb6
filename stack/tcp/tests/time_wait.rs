//! The compact form of TIME-WAIT answers every segment as the connection does.

use std::time::Duration;

use proptest::prelude::*;
use uwarp_tcp::{BufferToken, Config, Connection, DropReason, Events, Instant, State, TimeWait};
use uwarp_wire::tcp::{SeqNumber, TcpFlags, TcpHeader, Timestamps};

const OUR_ISN: SeqNumber = SeqNumber(0xffff_fff0);
const PEER_ISN: SeqNumber = SeqNumber(0x7fff_fff8);
const WAIT: Duration = Duration::from_secs(3);

fn start() -> Instant {
    Instant::from_nanos(7_000_000_000)
}

fn header(flags: TcpFlags, sequence: i32, acknowledgment: i32, timestamp: Option<u32>) -> TcpHeader {
    let mut header = TcpHeader::new(flags);
    header.sequence = SeqNumber(PEER_ISN.0.wrapping_add(sequence as u32));
    header.acknowledgment = SeqNumber(OUR_ISN.0.wrapping_add(acknowledgment as u32));
    header.window = 3000;
    header.options.timestamps = timestamp.map(|value| Timestamps { value, echo: 0 });
    header
}

/// A connection in TIME-WAIT that has received 100 octets and sent none: SND.NXT is 2 and RCV.NXT 102.
fn waiting(config: &Config) -> Connection {
    let now = start();
    let value = config.timestamps.then_some(500);
    let mut syn = header(TcpFlags::SYN, 0, 0, value);
    syn.options.mss = Some(1000);
    syn.options.sack_permitted = true;
    syn.options.window_scale = Some(1);
    let mut connection = Connection::accept(config, &syn, OUR_ISN, now);
    let take = |connection: &mut Connection, header: &TcpHeader, len: u32| {
        let received = connection.on_segment(now, header, len, 0, BufferToken(0));
        assert_eq!(received.drop, None);
        received.events
    };
    connection.poll_transmit(now).expect("a SYN with ACK");
    take(&mut connection, &header(TcpFlags::ACK, 1, 1, value), 0);
    connection.close(now);
    connection.poll_transmit(now).expect("a FIN");
    let fin = TcpFlags::ACK | TcpFlags::FIN;
    assert!(take(&mut connection, &header(fin, 1, 2, value), 100).contains(Events::TIME_WAIT));
    assert!(connection.time_wait().is_none(), "the acknowledgment of the FIN is not sent");
    connection.poll_transmit(now).expect("its acknowledgment");
    assert_eq!(connection.state(), State::TimeWait);
    connection
}

fn config(timestamps: bool, sack: bool, scale: bool) -> Config {
    Config {
        timestamps,
        sack,
        window_scale: scale,
        time_wait: WAIT,
        receive_window: if scale { 1 << 20 } else { 5000 },
        challenge_acks: 3,
        ..Config::default()
    }
}

fn near(place: i32) -> impl Strategy<Value = i32> {
    prop_oneof![4 => Just(place), 4 => place - 300..place + 300, 1 => -10_000..2_000_000i32, 1 => any::<i32>()]
}

#[derive(Clone, Debug)]
struct Late {
    flags: u16,
    sequence: i32,
    acknowledgment: i32,
    len: u32,
    timestamp: Option<u32>,
    millis: u64,
}

fn late() -> impl Strategy<Value = Late> {
    (
        prop_oneof![3 => Just(0x10u16), 2 => Just(0x11u16), 2 => Just(0x02u16), 1 => Just(0x04u16), 2 => 0u16..0x100],
        near(102),
        near(2),
        prop_oneof![Just(0u32), 1u32..400],
        prop_oneof![1 => Just(None), 4 => (400u32..600).prop_map(Some)],
        prop_oneof![2 => Just(0u64), 1 => 0u64..800],
    )
        .prop_map(|(flags, sequence, acknowledgment, len, timestamp, millis)| Late {
            flags,
            sequence,
            acknowledgment,
            len,
            timestamp,
            millis,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// RFC 9293 §3.10.7.4, RFC 5961, RFC 6191, RFC 7323, RFC 2883: the same as the connection.
    #[test]
    fn compact_form_behaves_as_the_connection(
        timestamps in any::<bool>(),
        sack in any::<bool>(),
        scale in any::<bool>(),
        segments in prop::collection::vec(late(), 1..40),
        proposed in any::<u32>(),
    ) {
        let mut connection = waiting(&config(timestamps, sack, scale));
        let mut compact = connection.time_wait().expect("nothing is left to be fetched");
        let proposed = SeqNumber(proposed);
        prop_assert_eq!(compact.isn_beyond(proposed), connection.isn_beyond(proposed));
        let mut now = start();
        for late in segments {
            now += Duration::from_millis(late.millis);
            let flags = TcpFlags::from_bits(late.flags);
            let segment = header(flags, late.sequence, late.acknowledgment, late.timestamp);
            prop_assert_eq!(compact.admits_new_incarnation(&segment), connection.admits_new_incarnation(&segment));
            prop_assert_eq!(Some(compact.deadline()), connection.deadline());
            if compact.deadline() <= now {
                prop_assert!(connection.on_deadline(now).contains(Events::CLOSED));
                return Ok(());
            }
            let received = connection.on_segment(now, &segment, late.len, 0, BufferToken(1));
            let reply = connection.poll_transmit(now);
            prop_assert!(connection.poll_transmit(now).is_none());
            let answer = compact.on_segment(now, &segment, late.len);
            prop_assert_eq!(answer.drop, received.drop);
            prop_assert_eq!(answer.reply, reply.map(|transmit| transmit.header));
        }
    }
}

#[test]
fn it_takes_some_tens_of_octets() {
    assert!(size_of::<TimeWait>() <= 96, "{}", size_of::<TimeWait>());
}

/// RFC 9293 §3.10.7.4, eighth check: the peer has missed the last acknowledgment.
#[test]
fn repeated_fin_is_acknowledged_and_restarts_the_wait() {
    let mut wait = waiting(&config(false, true, false)).time_wait().unwrap();
    assert_eq!(wait.deadline(), start() + WAIT);
    let later = start() + Duration::from_secs(1);
    let fin = header(TcpFlags::ACK | TcpFlags::FIN, 101, 2, None);
    let answer = wait.on_segment(later, &fin, 0);
    let reply = answer.reply.unwrap();
    assert_eq!((reply.flags, reply.sequence, reply.acknowledgment), (TcpFlags::ACK, OUR_ISN + 2, PEER_ISN + 102));
    assert_eq!((answer.drop, wait.deadline()), (Some(DropReason::Duplicate), later + WAIT));
}

/// RFC 1337 §3, fix 1; RFC 5961 §7 for the SYN.
#[test]
fn resets_are_ignored_and_challenges_limited() {
    let mut wait = waiting(&config(false, true, false)).time_wait().unwrap();
    for sequence in [102, 103, 0] {
        let answer = wait.on_segment(start(), &header(TcpFlags::RST, sequence, 0, None), 0);
        assert_eq!((answer.reply, answer.drop), (None, Some(DropReason::ResetInvalid)));
    }
    let syn = header(TcpFlags::SYN, 50, 0, None);
    let answered = (0..10).filter(|_| wait.on_segment(start(), &syn, 0).reply.is_some()).count();
    assert_eq!(answered, 3);
    assert!(wait.on_segment(start() + Duration::from_secs(1), &syn, 0).reply.is_some());
}

/// RFC 9293 §3.10.7.4, fourth check: the new numbers begin beyond the old ones.
#[test]
fn new_connection_begins_beyond_the_old_one() {
    let wait = waiting(&config(false, true, false)).time_wait().unwrap();
    let sent = OUR_ISN + 2;
    assert_eq!(wait.isn_beyond(sent + 1), sent + 1);
    for old in [sent, OUR_ISN, SeqNumber(sent.0.wrapping_sub(1 << 30))] {
        let isn = wait.isn_beyond(old);
        assert!(isn - sent > 0xffff && isn - sent < 1 << 20, "{isn:?}");
    }
}

/// RFC 7323 B.2: timestamps tell the connections apart as soon as both clocks have gone on.
#[test]
fn this_side_may_reopen_after_a_second_if_both_have_timestamps() {
    for timestamps in [false, true] {
        let mut wait = waiting(&config(timestamps, true, false)).time_wait().unwrap();
        assert!(!wait.may_reopen(start() + Duration::from_millis(999)));
        assert_eq!(wait.may_reopen(start() + Duration::from_secs(1)), timestamps);
        // The peer has missed the last acknowledgment: it is not done.
        let fin = header(TcpFlags::ACK | TcpFlags::FIN, 101, 2, timestamps.then_some(900));
        wait.on_segment(start() + Duration::from_millis(500), &fin, 0);
        assert!(!wait.may_reopen(start() + Duration::from_millis(1499)));
        assert_eq!(wait.may_reopen(start() + Duration::from_millis(1500)), timestamps);
    }
}

/// A connection with anything left for its owner to fetch is not reduced.
#[test]
fn connection_with_something_left_is_not_compact() {
    let now = start();
    let config = config(false, true, false);
    let mut syn = header(TcpFlags::SYN, 0, 0, None);
    syn.options.sack_permitted = true;
    let mut connection = Connection::accept(&config, &syn, OUR_ISN, now);
    connection.poll_transmit(now).unwrap();
    connection.on_segment(now, &header(TcpFlags::ACK, 1, 1, None), 0, 0, BufferToken(0));
    assert!(connection.time_wait().is_none(), "not in TIME-WAIT");
    connection.push(BufferToken(9), 10);
    connection.close(now);
    while connection.poll_transmit(now).is_some() {}
    connection.on_segment(now, &header(TcpFlags::ACK | TcpFlags::FIN, 1, 12, None), 0, 0, BufferToken(0));
    while connection.poll_transmit(now).is_some() {}
    assert_eq!(connection.state(), State::TimeWait);
    assert!(connection.time_wait().is_none(), "a record is not fetched");
    assert_eq!(connection.pop_acknowledged(), Some(BufferToken(9)));
    assert!(connection.time_wait().is_some());
}

/// RFC 6191 §2: a timestamp distinguishes a new connection from the old one only if the new one will have timestamps.
#[test]
fn timestamp_admits_no_new_connection_where_none_are_taken() {
    let admits = |timestamps: bool, sequence, timestamp| {
        let wait = waiting(&config(timestamps, true, false)).time_wait().unwrap();
        wait.admits_new_incarnation(&header(TcpFlags::SYN, sequence, 0, timestamp))
    };
    assert!(!admits(false, 50, Some(900)));
    assert!(admits(false, 103, Some(900)));
    assert!(admits(true, 50, Some(900)));
    assert!(!admits(true, 50, None));
}
