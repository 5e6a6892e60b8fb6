//! A connection in TIME-WAIT, without the state for data.

use uwarp_wire::tcp::{SackBlock, SeqNumber, TcpFlags, TcpHeader};

use crate::DropReason;
use crate::acceptance::{Challenges, is_acceptable};
use crate::connection::{Connection, isn_beyond};
use crate::instant::{Instant, nanos};
use crate::position::Position;
use crate::state::Phase;
use crate::timestamps::TimestampState;

/// How long it takes until all clocks for timestamps have gone on, in ns: RFC 7323 §5.4 has them tick once a second at
/// least.
const TICKS: u64 = 1_000_000_000;

/// A connection in TIME-WAIT in some tens of octets, made by [`Connection::time_wait`]. It answers late segments at
/// once and as the connection would (RFC 9293 §3.10.7.4, RFC 5961, RFC 1337).
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    until: Instant,
    /// Twice the maximum segment lifetime, in ns.
    wait: u64,
    challenges: Challenges,
    timestamps: TimestampState,
    /// SND.NXT.
    next: SeqNumber,
    /// RCV.NXT.
    expected: SeqNumber,
    /// Octets of window offered behind `expected`.
    space: u32,
    /// The largest window that the peer ever offered (RFC 5961 §5.2).
    largest_window: u32,
    /// The window field of answers.
    window: u16,
    sack: bool,
}

/// The result of a late segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// A header to send, without payload. Its ports are zero; the owner fills them in.
    pub reply: Option<TcpHeader>,
    /// Why the segment was not used; `None` for an acknowledgment without new information.
    pub drop: Option<DropReason>,
}

impl Connection {
    /// The compact form of a connection in TIME-WAIT, with the same behaviour. The owner keeps it instead of the
    /// connection.
    ///
    /// `None` in any other state, and while the owner has yet to fetch a segment, records or received data.
    pub fn time_wait(&mut self) -> Option<TimeWait> {
        let Phase::TimeWait { until } = self.phase else { return None };
        let drained = self.sender.queue.is_drained() && self.receiver.reassembly.is_drained();
        if !drained || self.receiver.acks.is_owed() || self.ecn.owes() || self.pending.any() {
            return None;
        }
        Some(TimeWait::of(self, until))
    }
}

impl TimeWait {
    /// The compact form of a connection with nothing left to send or to hand out.
    pub(crate) fn of(connection: &mut Connection, until: Instant) -> TimeWait {
        TimeWait {
            until,
            wait: nanos(connection.config.time_wait),
            challenges: connection.challenges,
            timestamps: connection.timestamps,
            next: connection.sender.queue.next().sequence(),
            expected: connection.receiver.next().sequence(),
            window: connection.receiver.offer(false),
            space: connection.receiver.window(),
            largest_window: connection.sender.window.largest,
            sack: connection.options.sack,
        }
    }

    /// When TIME-WAIT ends and the value can be dropped. A retransmitted FIN of the peer postpones it.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.until
    }

    /// Whether `header` is a SYN that may start a new connection between the same endpoints, see
    /// [`Connection::admits_new_incarnation`]. Call it before [`TimeWait::on_segment`].
    pub fn admits_new_incarnation(&self, header: &TcpHeader) -> bool {
        self.timestamps.admits(header, Position::first(self.expected))
    }

    /// Whether this side may open a new connection between the same endpoints: both have timestamps, and a second has
    /// passed, so nobody takes an old segment for a new one (RFC 7323 B.2). Begin it with [`TimeWait::isn_beyond`].
    pub fn may_reopen(&self, now: Instant) -> bool {
        // The wait began, or began anew, so long before its end.
        self.timestamps.enabled && self.until.after_nanos(TICKS) <= now.after_nanos(self.wait)
    }

    /// An initial sequence number for that new connection, see [`Connection::isn_beyond`].
    pub fn isn_beyond(&self, proposed: SeqNumber) -> SeqNumber {
        isn_beyond(Position::first(self.next), proposed)
    }

    /// Processes a segment with `payload_len` octets behind its header, whose checksums have been verified.
    pub fn on_segment(&mut self, now: Instant, header: &TcpHeader, payload_len: u32) -> Answer {
        let flags = header.flags;
        let next = Position::first(self.expected);
        let start = next.near(header.sequence);
        let data_end = start + payload_len;
        let end = data_end + flags.sequence_len();
        // RFC 7323 §5.3, R1. A SYN is challenged whatever it carries (RFC 5961 §4.2).
        if self.timestamps.enabled && !flags.intersects(TcpFlags::RST | TcpFlags::SYN) {
            match header.options.timestamps {
                None => return Answer { reply: None, drop: Some(DropReason::NoTimestamp) },
                Some(timestamps) if self.timestamps.is_old(timestamps.value, now) => {
                    return self.refuse(now, start < end, DropReason::OldTimestamp);
                }
                Some(_) => {}
            }
        }
        // RFC 9293 §3.10.7.4, first check.
        let acceptable = is_acceptable(next, next + self.space, start, end);
        // Second: RFC 1337 §3, fix 1.
        if flags.contains(TcpFlags::RST) {
            return Answer { reply: None, drop: Some(DropReason::ResetInvalid) };
        }
        // Fourth: RFC 5961 §4.2.
        if flags.contains(TcpFlags::SYN) {
            return self.refuse(now, false, DropReason::SynInTimeWait);
        }
        if !acceptable {
            if flags.contains(TcpFlags::FIN) {
                // Eighth: a retransmitted FIN restarts TIME-WAIT.
                self.until = now.after_nanos(self.wait);
            }
            if end > next {
                return self.refuse(now, start < end, DropReason::OutsideWindow);
            }
            let mut answer = self.refuse(now, start < end, DropReason::Duplicate);
            if let Some(reply) = &mut answer.reply
                && self.sack
                && start < data_end
            {
                // RFC 2883 §4.
                reply.options.sack.push(SackBlock { left: start.sequence(), right: data_end.sequence() });
            }
            return answer;
        }
        // Fifth.
        if !flags.contains(TcpFlags::ACK) {
            return Answer { reply: None, drop: Some(DropReason::NoAck) };
        }
        // RFC 5961 §5.2.
        let sent = Position::first(self.next);
        let acknowledgment = sent.near(header.acknowledgment);
        if acknowledgment > sent || sent.since(acknowledgment) > u64::from(self.largest_window) {
            return self.refuse(now, false, DropReason::AckInvalid);
        }
        // RFC 7323 §4.3, rule 2, and §5.5: see `Connection`.
        if let Some(timestamps) = header.options.timestamps
            && self.timestamps.enabled
            && start <= next
        {
            self.timestamps.note(timestamps.value, now);
        }
        // Seventh and eighth: the peer has declared its stream complete.
        let drop = (start < data_end).then_some(DropReason::DataAfterFin);
        Answer { reply: (start < end).then(|| self.acknowledge(now)), drop }
    }

    /// Answers a segment that cannot be used: see `Connection::answer_unacceptable`.
    fn refuse(&mut self, now: Instant, takes_sequence: bool, reason: DropReason) -> Answer {
        let answers = takes_sequence || self.challenges.admit(now);
        Answer { reply: answers.then(|| self.acknowledge(now)), drop: Some(reason) }
    }

    fn acknowledge(&self, now: Instant) -> TcpHeader {
        let mut header = TcpHeader::new(TcpFlags::ACK);
        header.sequence = self.next;
        header.acknowledgment = self.expected;
        header.window = self.window;
        header.options.timestamps = self.timestamps.option(now);
        header
    }
}
