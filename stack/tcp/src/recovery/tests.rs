use proptest::prelude::*;
use uwarp_wire::tcp::SeqNumber;

use super::*;
use crate::Config;
use crate::event::BufferToken;
use crate::queue::{Content, Segment};

const SEGMENT: u32 = 100;
const MICROSECOND: u64 = 1000;

/// A sender's scoreboard, RACK's state and a clock, without the rest of the connection.
struct Sender {
    now: Instant,
    queue: SendQueue,
    recovery: Recovery,
    rtt: RttEstimator,
}

impl Sender {
    fn new() -> Sender {
        let initial = Position::first(SeqNumber(7));
        let mut sender = Sender {
            now: Instant::from_nanos(1_000_000_000),
            queue: SendQueue::new(initial),
            recovery: Recovery::new(initial),
            rtt: RttEstimator::new(&Config::default()),
        };
        sender.queue.send_control(sender.now, Content::Syn);
        sender.wait(100);
        sender.acknowledge(initial + 1);
        sender
    }

    fn wait(&mut self, microseconds: u64) {
        self.now = self.now.after_nanos(microseconds * MICROSECOND);
    }

    /// Sends a record of this many octets.
    fn send(&mut self, len: u32) {
        self.queue.push(BufferToken(0), len);
        let unsent = self.queue.first_unsent().expect("a record");
        self.queue.send_fresh(self.now, unsent, len);
    }

    fn send_lost(&mut self, limit: u32) -> bool {
        let Some(index) = self.queue.first_lost() else { return false };
        self.queue.retransmit(self.now, index, limit).is_some()
    }

    fn acknowledge(&mut self, position: Position) {
        let mut delivered = Delivered::new();
        self.queue.acknowledge(position, &mut delivered);
        self.learn(&delivered);
    }

    fn sack(&mut self, left: Position, right: Position) {
        let inside = |segment: &Segment| left <= segment.start && segment.end() <= right;
        let fates: Vec<_> =
            self.queue.segments().iter().map(|it| if inside(it) { Fate::Sacked } else { it.fate }).collect();
        let mut delivered = Delivered::new();
        self.queue.sack(left, right, &mut delivered);
        assert!(self.queue.segments().iter().map(|segment| segment.fate).eq(fates));
        self.learn(&delivered);
    }

    fn learn(&mut self, delivered: &Delivered) {
        if let Some(sent_at) = delivered.oldest_sent {
            self.rtt.sample(self.now, self.now.nanos_since(sent_at), self.queue.segments().len() + 1);
        }
        self.recovery.update(self.now, delivered, &self.rtt, |_| false);
    }

    fn detect(&mut self) -> (bool, Option<Instant>) {
        self.recovery.detect(self.now, &mut self.queue, &self.rtt)
    }

    /// The first octet of the segment with this index, or the end if there is none.
    fn start(&self, index: usize) -> Position {
        self.queue.segments().get(index).map_or(self.queue.next(), |segment| segment.start)
    }

    fn is_sacked(&self, index: usize) -> bool {
        self.queue.segments()[index].fate == Fate::Sacked
    }

    fn lost(&self) -> Vec<Position> {
        let lost = self.queue.segments().iter().filter(|segment| segment.fate == Fate::Lost);
        lost.map(|segment| segment.start).collect()
    }

    /// RACK_detect_loss as in RFC 8985 §6.2, step 5: examines each segment. Returns what is lost, and when to check
    /// again.
    fn walk(&self) -> (Vec<Position>, Option<Instant>) {
        let window = self.recovery.reordering_window(&self.queue, &self.rtt);
        let newest = (self.recovery.sent_at, self.recovery.end);
        let (mut lost, mut again) = (self.lost(), None);
        for segment in self.queue.segments().iter() {
            if segment.fate != Fate::InFlight || (segment.sent_at, segment.end()) >= newest {
                continue;
            }
            let due = segment.sent_at.after_nanos(self.recovery.rtt.saturating_add(window));
            if due <= self.now {
                lost.push(segment.start);
            } else {
                again = again.max(Some(due));
            }
        }
        lost.sort_unstable();
        (lost, again)
    }

    fn detect_and_compare(&mut self) {
        let (expected, expected_again) = self.walk();
        let before = self.lost().len();
        let (found, again) = self.detect();
        assert_eq!((self.lost(), again), (expected, expected_again));
        assert_eq!(found, self.lost().len() > before);
        self.queue.check();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Send(u32),
    /// Lost segments, at most this many octets of each.
    SendLost(usize, u32),
    /// Any segment that is not reported, as a tail loss probe sends the last.
    SendAny(usize, u32),
    /// This many segments, from the first number on.
    Sack(usize, usize),
    /// The same, without so many octets at either end: what left in one frame was cut into segments of so many octets.
    SackInside(usize, usize, u32, u32, u32),
    /// Up to this segment, and this many octets of it.
    Acknowledge(usize, u32),
    /// Without loss detection, as while nothing is missing.
    AcknowledgePlainly(usize),
    TimeOut(bool),
    Undo,
    Renege,
    LoseLargerThan(u32),
    Reordering,
    Mode(bool),
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let limit = prop_oneof![4 => Just(SEGMENT), 1 => 1..SEGMENT];
    prop_oneof![
        8 => prop_oneof![Just(0u64), 1..30u64, 50..400u64].prop_map(Step::Wait),
        12 => prop_oneof![Just(SEGMENT), 1..SEGMENT, SEGMENT..4 * SEGMENT].prop_map(Step::Send),
        8 => (1..6usize, limit.clone()).prop_map(|(count, limit)| Step::SendLost(count, limit)),
        2 => (any::<usize>(), limit).prop_map(|(index, limit)| Step::SendAny(index, limit)),
        12 => (0..30usize, 1..6usize).prop_map(|(first, count)| Step::Sack(first, count)),
        3 => (0..30usize, 1..6usize, 0..2 * SEGMENT, 0..2 * SEGMENT, SEGMENT - 4..=SEGMENT)
            .prop_map(|(first, count, before, behind, piece)| Step::SackInside(first, count, before, behind, piece)),
        3 => (0..6usize, prop_oneof![3 => Just(0), 1 => 0..SEGMENT]).prop_map(|(to, part)| Step::Acknowledge(to, part)),
        2 => (0..6usize).prop_map(Step::AcknowledgePlainly),
        1 => any::<bool>().prop_map(Step::TimeOut),
        1 => Just(Step::Undo),
        1 => Just(Step::Renege),
        1 => (1..2 * SEGMENT).prop_map(Step::LoseLargerThan),
        1 => Just(Step::Reordering),
        1 => any::<bool>().prop_map(Step::Mode),
        1 => Just(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_is_lost_as_in_a_walk_through_all_segments(steps in prop::collection::vec(step(), 1..150)) {
        let mut sender = Sender::new();
        for step in steps {
            let len = sender.queue.segments().len();
            match step {
                Step::Wait(microseconds) => sender.wait(microseconds),
                Step::Send(len) => sender.send(len),
                Step::SendLost(count, limit) => {
                    for _ in 0..count {
                        sender.send_lost(limit);
                    }
                }
                Step::SendAny(index, limit) if len > 0 && !sender.is_sacked(index % len) => {
                    sender.queue.retransmit(sender.now, index % len, limit);
                }
                Step::Sack(first, count) => {
                    let (left, right) = (sender.start(first), sender.start(first + count));
                    if left < right {
                        sender.sack(left, right);
                        sender.detect_and_compare();
                    }
                }
                Step::SackInside(first, count, before, behind, piece) => {
                    let (left, right) = (sender.start(first), sender.start(first + count));
                    if before + behind < right.octets_since(left) {
                        let right = left + (right.octets_since(left) - behind);
                        sender.queue.cut_around(left + before, right, (piece, SEGMENT));
                        sender.queue.check();
                        sender.sack(left + before, right);
                        sender.detect_and_compare();
                    }
                }
                Step::Acknowledge(to, part) => {
                    let position = (sender.start(to) + part).min(sender.queue.next());
                    if position > sender.queue.unacknowledged() {
                        sender.acknowledge(position);
                        sender.detect_and_compare();
                    }
                }
                Step::AcknowledgePlainly(to) => {
                    let position = sender.start(to);
                    if position > sender.queue.unacknowledged() {
                        sender.acknowledge(position);
                    }
                }
                Step::TimeOut(sack) => {
                    sender.recovery.mark_on_timeout(sender.now, &mut sender.queue, &sender.rtt, sack);
                }
                Step::Undo => sender.queue.forget_losses(),
                Step::Renege => sender.queue.forget_sacks(),
                Step::LoseLargerThan(limit) => {
                    sender.queue.lose_larger_than(limit);
                }
                Step::Reordering => sender.recovery.reordering_seen = true,
                Step::Mode(true) => sender.recovery.mode = Mode::Open,
                Step::Mode(false) => sender.recovery.mode = Mode::Loss { until: sender.queue.next() },
                Step::Shrink => sender.queue.shrink(),
                Step::SendAny(..) => {}
            }
            sender.queue.check();
        }
        sender.detect_and_compare();
    }
}

/// Segments of a long window.
const MANY: usize = 6000;

/// Sends a window of which every third segment is lost, and then every other retransmission. All others are reported
/// one by one. Returns how many segments were examined.
fn repair_a_long_window(reordering: bool) -> u64 {
    let mut sender = Sender::new();
    sender.recovery.reordering_seen = reordering;
    let start = sender.queue.next();
    for _ in 0..MANY {
        sender.send(SEGMENT);
        sender.wait(1);
    }
    let at = |index: usize| start + u32::try_from(index).unwrap() * SEGMENT;
    for index in (0..MANY).filter(|index| index % 3 != 0) {
        sender.sack(at(index), at(index + 1));
        sender.detect();
        sender.send_lost(SEGMENT);
        sender.wait(1);
    }
    loop {
        let left: Vec<_> =
            sender.queue.segments().iter().filter(|segment| segment.fate != Fate::Sacked).copied().collect();
        if left.is_empty() {
            break;
        }
        for (number, segment) in left.iter().enumerate() {
            sender.wait(1);
            if number % 2 == 0 {
                sender.sack(segment.start, segment.end());
                sender.detect();
            }
            sender.send_lost(SEGMENT);
        }
        // Much later deliveries show that the remaining ones are lost.
        sender.wait(10_000);
        let next = sender.queue.next();
        sender.send(SEGMENT);
        sender.wait(10_000);
        sender.sack(next, next + SEGMENT);
        sender.detect();
        while sender.send_lost(SEGMENT) {}
    }
    sender.queue.check();
    sender.queue.take_walked()
}

/// RFC 8985 §6.2, step 5, with a list in the order of transmission, as it advises: an acknowledgment examines what is
/// newly reported or lost, not the whole window.
#[test]
fn work_of_an_acknowledgment_does_not_grow_with_the_window() {
    for reordering in [false, true] {
        let looks = repair_a_long_window(reordering);
        assert!(
            looks <= 10 * MANY as u64,
            "{looks} looks at a window of {MANY} segments, with reordering: {reordering}"
        );
    }
}

/// Ranges are compared with duplicates only, so they are not kept for a peer that cannot report any; the first
/// timestamp is.
#[test]
fn ranges_are_kept_for_a_peer_with_sack_only() {
    for sack in [false, true] {
        let initial = Position::first(SeqNumber(7));
        let mut recovery = Recovery::new(initial);
        recovery.mode = Mode::Loss { until: initial + 100 * SEGMENT };
        recovery.arm_undo(false);
        for index in 0..100 {
            let start = initial + index * SEGMENT;
            recovery.note_retransmission(start, start + SEGMENT, Some(5), sack);
        }
        assert_eq!(recovery.heap() > size_of::<Undo>(), sack, "{} octets", recovery.heap());
        assert_eq!(recovery.take_stamp(), Some(5));
    }
}

#[test]
fn a_round_of_duplicates_ends_when_all_that_was_out_is_acknowledged() {
    let mut recovery = Recovery::new(Position::first(SeqNumber(7)));
    let at = |offset: u32| Position::first(SeqNumber(7)) + offset;
    let mut multiplier_after_report = |acknowledged: u32, next: u32| {
        recovery.advanced(at(acknowledged));
        recovery.duplicate_reported(at(next), (at(0), at(1)));
        recovery.multiplier
    };
    // RFC 8985 §6.2, step 4: once a round.
    assert_eq!(multiplier_after_report(1, 101), 2);
    assert_eq!(multiplier_after_report(2, 201), 2);
    assert_eq!(multiplier_after_report(100, 201), 2);
    assert_eq!(multiplier_after_report(101, 201), 3);
    assert_eq!(multiplier_after_report(200, 301), 3);
}
